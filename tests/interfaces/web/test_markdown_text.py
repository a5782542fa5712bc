"""Markdown of messages: all of it is rendered, and nothing of it can do anything."""

from __future__ import annotations

import time

import pytest
from markupsafe import Markup as Html

from holdfast.interfaces.web.code_colors import colored_code
from holdfast.interfaces.web.markdown_text import rich_text
from tests.interfaces.web.kit import HOSTILE
from tests.interfaces.web.test_pages import Markup


def read(text: str) -> Markup:
    """The markup that a text becomes."""
    found = Markup()
    found.feed(str(rich_text(text)))
    return found


def test_what_people_write_is_rendered() -> None:
    text = "# a **b**\nline one\nline *two*\n\n|n|m|\n|-|-:|\n|1|~~2~~|\n\n1. x\n   - y\n\n> q\n\n[a](https://b.c/d)"
    rendered = " ".join(str(rich_text(text)).split())
    for part in (
        '<p dir="auto" class="heading">a <strong>b</strong></p>',
        "line one<br /> line <em>two</em>",
        '<th class="right" dir="auto">m</th>',
        "<s>2</s>",
        '<ol> <li dir="auto">x <ul> <li dir="auto">y</li>',
        "<blockquote",
        '<a href="https://b.c/d" rel="noopener noreferrer nofollow" target="_blank" title="https://b.c/d">a</a>',
    ):
        assert part in rendered, part


def test_code_is_coloured_by_its_language() -> None:
    rendered = str(rich_text('```py\nif x == 1.5:  # <b>\n    y = "a#b"\n```'))
    assert rendered == (
        '<pre data-language="py"><code><span class="hk">if</span> x == <span class="hn">1.5</span>:  '
        '<span class="hc"># &lt;b&gt;</span>\n    y = <span class="hs">&#34;a#b&#34;</span></code></pre>\n'
    )
    assert colored_code("SELECT 1 -- x", "sql") == (
        '<span class="hk">SELECT</span> <span class="hn">1</span> <span class="hc">-- x</span>'
    )
    assert colored_code("if <x>", "klingon") == "if &lt;x&gt;"


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        f"`{HOSTILE}` **{HOSTILE}**",
        f"```{HOSTILE}\n{HOSTILE}\n```",
        f"```py\n'{HOSTILE}' # {HOSTILE}\n```",
        f"|{HOSTILE}|\n|-|\n|{HOSTILE}|",
        f'[x](https://a.b/"onclick="x) [y](https://a.b \'" onmouseover="x\') ![{HOSTILE}](https://a.b/"onload="x)',
        f"[{HOSTILE}]: https://a.b\n\n[{HOSTILE}]",
        "<a href='javascript:x'>a</a>\n\n<style>* {}</style>\n<!-- -->\n<?x?>\n<![CDATA[x]]>",
    ],
)
def test_markup_in_a_text_stays_text(text: str) -> None:
    found = read(text)
    assert [each for each in found.suspicious if not each.startswith("a href=https://a.b")] == []
    assert found.scripts == []
    for tag in ("<script", "<img", "<style", "<a href='", " onclick=", " onload=", "<!--"):
        assert tag not in str(rich_text(text)).lower(), tag


@pytest.mark.parametrize(
    "address",
    [
        "javascript:x",
        "JaVaScRiPt:x",
        "java\nscript:x",
        "&#106;avascript:x",
        "data:text/html,x",
        "data:image/png;base64,AAAA",
        "vbscript:x",
        "file:///etc/passwd",
        "//evil.example",
        "/threads/a/HEAD/actions/prune",
        "blob:x",
        "holdfast:x",
    ],
)
def test_a_link_leads_to_the_web_or_nowhere(address: str) -> None:
    for text in (f"[a]({address})", f"[a](<{address}>)", f"<{address}>", f"[a]: {address}\n\n[a]"):
        assert "href" not in str(rich_text(text)), text
    for good in ("https://a.b", "http://a.b/c?d=e&f", "mailto:a@b.c"):
        assert "href" in str(rich_text(f"[a]({good})")), "the check finds links"


def test_nothing_that_is_written_takes_long() -> None:
    rich_text.cache_clear()
    texts = ("*" * 4000, "[(" * 2000, "a**b" * 1000, "`" * 4000, "> " * 2000, "![[" * 1333, "|a" * 2000, "<" * 4000)
    began = time.thread_time()
    for text in (*texts, *(f"```{name}\n{text}" for text in texts for name in ("py", "js", "sql"))):
        assert isinstance(rich_text(text), Html)
    assert time.thread_time() - began < 2
    assert "as-is" in rich_text("x " * 20_000)
