"""Checkpoints, listings, differences and search results in a notebook: short, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Store
from holdfast._views import MAX_ROWS, html_listing, html_table

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        yield store


def is_escaped(html: str) -> bool:
    return "<script" not in html and "&lt;script&gt;" in html and html.startswith("<table>")


def test_hostile_text_is_escaped(store: Store) -> None:
    thread = store.thread(HOSTILE)
    saved = thread.put({HOSTILE: HOSTILE}, metadata={"note": HOSTILE})
    thread.update({(HOSTILE,): f"{HOSTILE} again"})
    for shown in (
        saved,
        thread.get(),
        thread.log(),
        thread.diff(),
        store.search("script"),
        store.threads(),
        thread.blame((HOSTILE,)),
    ):
        assert is_escaped(shown._repr_html_()), repr(shown)


def test_reprs_are_short(store: Store) -> None:
    thread = store.thread("chat")
    first = thread.put({"text": "word " * 1000})
    thread.put({"text": "other " * 1000})
    assert repr(first).startswith(f"<Checkpoint {first.id} of 'chat', step 0, save, ")
    assert repr(thread.log()) == "<Page of 2>"
    assert repr(thread.log(limit=1)) == "<Page of 1, more follow>"
    assert repr(thread.diff()) == "<Diff text: changed>"
    assert repr(thread.diff("HEAD", "HEAD")) == "<Diff no changes>"
    assert (
        repr(store.search("other", limit=1)) == "<SearchPage of 1, 2 checkpoints scanned without an index, more follow>"
    )
    assert len(thread.get()._repr_html_()) < 2000
    assert len(thread.diff()._repr_html_()) < 2000


def test_long_listings_are_cut_off(store: Store) -> None:
    thread = store.thread("counter")
    for n in range(MAX_ROWS + 3):
        thread.put({"n": n})
    html = thread.log()._repr_html_()
    assert html.count("<tr>") == MAX_ROWS + 2
    assert "… and 3 more" in html


def test_a_listing_of_anything() -> None:
    assert html_listing(["<b>"]).endswith("<tr><td>&lt;b&gt;</td></tr></tbody></table>")
    assert "item" in html_listing([])


def test_a_table() -> None:
    assert html_table(("a",), [("<b>",)]) == (
        "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>"
    )
