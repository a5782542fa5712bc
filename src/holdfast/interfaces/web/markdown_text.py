"""Texts of messages as people write them: Markdown, rendered to HTML that cannot do anything.

Nothing in a text is HTML: tags are shown as text. Links lead to `http`, `https` and `mailto` only, in a new window that
is not told where it was opened; images are named and not loaded. What is rendered has no style and no script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from holdfast.interfaces.web.code_colors import colored_code

_SAFE = re.compile(r"https?://|mailto:", re.IGNORECASE)
_BLOCKS = ("paragraph_open", "heading_open", "list_item_open", "th_open", "td_open", "blockquote_open")
_LONGEST = 20_000
"""A longer text is shown as it is."""


@lru_cache(maxsize=512)
def rich_text(text: str) -> Markup:
    """Return a text of a message as HTML."""
    if len(text) > _LONGEST:
        return Markup('<p class="as-is" dir="auto">{}</p>').format(text)
    return Markup(_parser().render(text))  # noqa: S704 - rendered by rules that escape


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.validateLink = _is_safe  # type: ignore[method-assign, assignment]
    return parser


def _is_safe(address: str) -> bool:
    return _SAFE.match(address) is not None


class _Renderer(RendererHTML):
    """Renders without attributes that a page of ours would refuse, or that lead elsewhere unasked."""

    def renderToken(  # noqa: N802 - markdown-it calls it so
        self, tokens: Sequence[Token], idx: int, options: Any, env: Any
    ) -> str:
        """Return the tag of a token. A heading is a paragraph: the outline of the page is ours."""
        token = tokens[idx]
        align = str(token.attrs.pop("style", "")).removeprefix("text-align:")
        if align in ("right", "center"):
            token.attrs["class"] = align
        if token.type in _BLOCKS:
            token.attrs["dir"] = "auto"
        if token.type.startswith("heading"):
            token.attrs |= {"class": "heading"} if token.nesting == 1 else {}
            token.tag = "p"
        return super().renderToken(tokens, idx, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return the start of a table, which scrolls if it is wide."""
        return '<div class="wide-table" tabindex="0" role="region" aria-label="Table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return the end of a table."""
        return "</table></div>\n"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return the start of a link, which says where it leads."""
        token = tokens[idx]
        token.attrs |= {"rel": "noopener noreferrer nofollow", "target": "_blank", "title": token.attrs.get("href", "")}
        return super().renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return the address of an image, which is not loaded."""
        token = tokens[idx]
        return f'<span class="muted">{escape(token.content)} <code>{escape(token.attrs.get("src", ""))}</code></span>'

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return code, with colours if its language is known."""
        token = tokens[idx]
        language = token.info.strip().partition(" ")[0]
        label = f' data-language="{escape(language[:20])}"' if language else ""
        return f"<pre{label}><code>{colored_code(token.content.rstrip(), language)}</code></pre>\n"

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return code that is indented."""
        return f"<pre><code>{escape(tokens[idx].content.rstrip())}</code></pre>\n"
