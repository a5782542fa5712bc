"""Two branches side by side, from their common step on, and the merge of them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import holdfast
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import HOSTILE
from tests.interfaces.web.test_actions import apply, post, request_of
from tests.interfaces.web.test_pages import get, read


def said(*texts: str) -> list[dict[str, str]]:
    """Messages with these texts."""
    return [{"role": "user", "content": text} for text in texts]


@pytest.fixture
def compared(tmp_path: Path) -> Iterator[ServedStore]:
    """A thread with two branches that went on differently, and changes allowed."""
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("t")
        thread.put({"messages": said("zero"), "n": 0, "goal": "a"}, id="c0")
        thread.put({"messages": said("zero", "one"), "n": 0, "goal": "a"}, id="c1")
        thread.fork("what-if", "c1", changes={"messages[1].content": "other"})
        thread.update({"n": 1}, id="c2")
        thread.append("messages", *said("on main"), id="c3")
        thread.append("messages", *said("on the fork"), branch="what-if")
        thread.update({"n": 2, "goal": "b"}, branch="what-if")
        with ServedStore(store, page_routes, write=True) as served:
            yield served


def sides_of(text: str) -> dict[str, list[str]]:
    """What each side says."""
    found = re.findall(r'<section class="card" aria-label="([^"]*)">(.*?)</section>', text, re.DOTALL)
    return {name: re.findall(r'<p dir="auto">([^<]*)</p>', part) for name, part in found}


def test_branches_stand_side_by_side_from_their_common_step_on(compared: ServedStore) -> None:
    text = get(compared, "/compare/t").text
    assert sides_of(text) == {"what-if": ["other", "on the fork"], "main": ["one", "on main"]}
    assert re.findall(r'Both have <a href="([^"]*)">(#\d)', text) == [("/threads/t/c1", "#1")]
    assert "the last message of both" in text
    assert "zero" in text
    rows = re.findall(r'<th scope="row" class="mono">([^<]*)</th><td>(.*?)</td><td>(.*?)</td>', text)
    assert [(path, *(re.sub("<[^>]*>", "", each) for each in sides)) for path, *sides in rows] == [
        ("n", "2", "1"),
        ("goal", "b", "a"),
    ]
    assert [len(re.findall("steps? of its own", text)), "3 steps of its own" in text] == [2, True]
    swapped = get(compared, "/compare/t?a=main&b=what-if").text
    assert list(sides_of(swapped)) == ["main", "what-if"]
    ticked = get(compared, "/compare/t?a=c1&b=c3").text
    assert sides_of(ticked) == {"c1": [], "c3": ["on main"]}
    assert 'id="merge"' not in ticked, "what is merged are branches"


def test_the_page_is_linked_where_there_are_branches(compared: ServedStore) -> None:
    assert 'href="/compare/t"' in get(compared, "/threads/t/c1").text
    assert 'href="/compare/t?a=what-if"' in get(compared, "/threads/t/what-if").text
    assert "/compare/t?a=c0&amp;b=c1" in get(compared, "/threads/t/c1?tab=diff&a=c0").text
    compared.store.thread("one").put({"n": 1})
    assert "/compare/" not in get(compared, "/threads/one").text
    assert "The thread has one branch" in get(compared, "/compare/one").text
    for path in ("/compare/none", "/compare/t?a=none"):
        assert get(compared, path).status == 404, path


def test_branches_are_merged_there_with_a_side_for_each_conflict(compared: ServedStore) -> None:
    shown = get(compared, "/compare/t")
    paths = [html.unescape(each) for each in re.findall(r'<legend class="mono">([^<]+)', shown.text)]
    assert "n" in paths
    assert request_of(shown) is None
    fields = [("theirs", "what-if"), ("into", "main"), *((f"resolve:{path}", "theirs") for path in paths)]
    chosen = post(compared, "/threads/t/HEAD/actions/merge", fields)
    apply(compared, chosen)
    assert compared.store.thread("t").get().state["n"] == 2


def test_who_only_reads_compares_and_does_not_merge(served: ServedStore) -> None:
    text = get(served, "/compare/chat-1?a=shorter").text
    assert len(sides_of(text)) == 2
    assert 'id="merge"' not in text
    assert "data-apply" not in text


def test_markup_in_both_sides_stays_text(compared: ServedStore) -> None:
    thread = compared.store.thread(HOSTILE)
    thread.put({"messages": said(HOSTILE), HOSTILE: HOSTILE}, id="c1")
    thread.fork(HOSTILE, "c1", changes={"messages[0].content": f"a {HOSTILE}", "x": HOSTILE})
    thread.update({(HOSTILE,): f"b {HOSTILE}"})
    for query in ("", f"?a={quote(HOSTILE)}&b=main", f"?a=c1&b={quote(HOSTILE)}"):
        answer = get(compared, f"/compare/{quote(HOSTILE, safe='')}{query}")
        found = read(answer)
        assert (answer.status, found.suspicious) == (200, [])
        assert "&lt;script&gt;" in answer.text
