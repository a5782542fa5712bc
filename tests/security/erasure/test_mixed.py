"""Lines that two persons write: what one of them wrote is gone, and what the other wrote is not."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import holdfast
from tests.security.erasure.people import opened_rows

_WORD = re.compile(r"<(u-[12])-word-(\d+)>")

_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["u-1", "u-2", "u-2"]),
        st.sampled_from(["list", "text", "dict", "nested", "large", "drop", "key", "branch", "restore", "move"]),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=14,
)


def _edit(state: dict[str, Any], how: str, word: str, number: int) -> dict[str, Any]:
    """Return a state that somebody changed."""
    items, text, entries = [*state["list"]], state["text"], {**state["dict"]}
    words = text.split()
    match how:
        case "list":
            items.insert(number % (len(items) + 1), {"content": word})
        case "nested":
            entries[f"k{number % 3}"] = {"inner": [word, *entries.get(f"k{number % 3}", {}).get("inner", [])]}
        case "large":
            return {**state, "large": f"{state['large']} {word * 1200}"}
        case "text":
            text = " ".join([*words[: number % (len(words) + 1)], word, *words[number % (len(words) + 1) :]])
        case "dict":
            entries[word] = word
        case "drop" if items:
            del items[number % len(items)]
        case "move" if items:
            items.append(items.pop(number % len(items)))
        case "key":
            return {**state, f"key {number % 4}": word}
    return {**state, "list": items, "text": text, "dict": entries}


@given(_EDITS)
def test_only_what_the_other_wrote_is_left(edits: list[tuple[str, str, int]]) -> None:
    with holdfast.open("memory://") as store:
        thread = store.thread("group")
        thread.put({"list": [], "text": "", "dict": {}, "large": ""})
        store.erasure.mark_mixed("group")
        for step, (user, how, number) in enumerate(edits):
            if how == "branch":
                thread.fork(f"branch {step}", at=thread.log()[number % len(thread.log())].id)
                thread.switch(f"branch {step}")
            elif how == "restore":
                thread.restore(thread.log()[number % len(thread.log())].id)
            else:
                state = _edit(thread.get().state, how, f"<{user}-word-{step}>", number)
                thread.put(state, metadata={"subject": user})
        heads = {each.name: set(_WORD.findall(repr(thread.get(at=each.name).state))) for each in thread.branches()}
        hashes = {each.id: each.hash for each in thread.log().all()}
        wrote = any(user == "u-1" and how not in ("branch", "restore") for user, how, _ in edits)
        report = store.erasure.erase("u-1")
        left = "".join(map(repr, opened_rows(store)))
        assert "<u-1-word" not in left
        for name, words in heads.items():
            now = thread.get(at=name).state
            assert set(_WORD.findall(repr(now))) == {word for word in words if word[0] == "u-2"}, name
            if not words:
                assert now["list"] == []
        # What stays has the hashes that it had.
        assert {each.id: each.hash for each in thread.log().all() if each.kind != "erase"}.items() <= hashes.items()
        assert store.maintenance.verify(level="decode").findings == []
        assert report.rewritten == ({"threads": 1} if wrote else {})
