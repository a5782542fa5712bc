"""Documents: edits of many are all in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from holdfast.backends.memory import MemoryBackend
from holdfast.engine.model.missing import MISSING
from holdfast.errors import ConflictError, InvalidError
from holdfast.history.merge import UNRESOLVED, MergeConflict
from holdfast.state.sharing.documents import DocumentVersion
from holdfast.store.store import Store
from tests.state.kit import Clock, awaited, store_on
from tests.support.interference import InterferingBackend
from tests.support.nightly import examples


@pytest.fixture
def store() -> Iterator[Store]:
    with store_on(MemoryBackend(), Clock()) as opened:
        yield opened


def test_reading_and_editing(store: Store) -> None:
    plan = store.sharing.document("plan")
    assert astuple(plan.read()) == (None, 0)
    assert astuple(plan.edit(lambda value: [*value, 1], default=[])) == ([1], 1)
    assert astuple(plan.edit(lambda value: [*value, 2])) == ([1, 2], 2)
    assert astuple(plan.read()) == ([1, 2], 2)
    assert astuple(plan.read(1)) == ([1], 1)
    assert astuple(plan.read(0)) == (None, 0)
    assert [(past.action, past.version) for past in plan.history()] == [("edit", 2), ("edit", 1)]
    assert list(plan.history(limit=1).all()) == plan.history()
    assert plan.delete()
    assert not plan.delete()
    assert astuple(plan.read()) == (None, 0)
    with pytest.raises(ConflictError, match="deleted"):
        plan.save([1, 2, 3], 2)
    assert plan.save("new", 0).value == "new"
    assert str(plan.scope) == "custom:document%2Fplan"
    assert "plan" in repr(plan)


def test_an_edit_is_made_anew_on_what_others_made() -> None:
    watched = InterferingBackend()
    mine, other = (
        store_on(watched, Clock()).sharing.document("plan"),
        store_on(watched, Clock()).sharing.document("plan"),
    )
    given: list[Any] = []

    def edit(value: list[int]) -> list[int]:
        given.append(list(value))
        value.append(1)
        return value

    with watched.interfere(lambda: other.edit(lambda value: [*value, 2], default=[])):
        assert mine.edit(edit, default=[]).value == [2, 1]
    assert given == [[], [2]]


def test_saves_on_one_version_are_merged(store: Store) -> None:
    plan = store.sharing.document("plan")
    base = plan.save({"text": "one\ntwo\nthree\n", "todo": ["a", "b"], "done": {}, "n": 1}, 0).version
    plan.save({"text": "one\n2\nthree\n", "todo": ["a", "b", "c"], "done": {"x": 1}, "n": 1}, base)
    found = plan.save({"text": "one\ntwo\nthree\nfour\n", "todo": ["z", "a", "b"], "done": {"y": 1}, "n": 2}, base)
    assert astuple(found) == (
        {"text": "one\n2\nthree\nfour\n", "todo": ["z", "a", "b", "c"], "done": {"x": 1, "y": 1}, "n": 2},
        3,
    )
    assert plan.read() == found


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "union"),
    [
        (["a"], ["a", "b"], ["a", "c"], ["a", "b", "c"]),
        ("a\n", "a\nb\n", "a\nc\n", "a\nb\nc\n"),
        ("a", "b", "c", "b\nc"),
        ("a\nx\n", "b\nx\n", "c\nx\n", "b\nc\nx\n"),
        ({"t": "", "l": []}, {"t": "b", "l": [1]}, {"t": "c", "l": [2]}, {"t": "b\nc", "l": [1, 2]}),
    ],
    ids=["list", "text", "text without end", "one line", "inside a dict"],
)
def test_edits_of_the_same_place(store: Store, base: Any, theirs: Any, mine: Any, union: Any) -> None:
    plan = store.sharing.document("plan")
    version = plan.save(base, 0).version
    after = plan.save(theirs, version).version
    with pytest.raises(ConflictError, match="both changed the same") as caught:
        plan.save(mine, version, on_conflict=lambda _: UNRESOLVED)
    assert caught.value.conflicts
    assert caught.value.code == "version-mismatch"
    with pytest.raises(ConflictError, match="version 1 was expected"):
        plan.save(mine, version, on_conflict="raise")
    assert astuple(plan.read()) == (theirs, after)
    assert plan.save(mine, version, on_conflict=lambda conflict: conflict.theirs).value == theirs
    assert plan.save(mine, version, on_conflict="merge").value == union
    assert plan.save(mine, version, on_conflict=lambda conflict: conflict.ours).value == mine


def test_save_without_a_merge(store: Store) -> None:
    plan = store.sharing.document("plan")
    assert astuple(plan.save({"a": 1}, 0, on_conflict="raise")) == ({"a": 1}, 1)
    assert astuple(plan.save({"a": 2}, 1, on_conflict="raise")) == ({"a": 2}, 2)
    with pytest.raises(ConflictError) as caught:
        plan.save({"b": 1}, 1, on_conflict="raise")
    assert caught.value.code == "version-mismatch"
    assert astuple(plan.save({"b": 1}, 1, on_conflict="overwrite")) == ({"b": 1}, 3)
    plan.delete()
    with pytest.raises(ConflictError):
        plan.save({"c": 1}, 3, on_conflict="raise")
    assert plan.save({"c": 1}, 3, on_conflict="overwrite").value == {"c": 1}


def test_what_cannot_be_united_is_refused_or_settled_by_a_function(store: Store) -> None:
    plan = store.sharing.document("plan")
    version = plan.save({"n": 1, "m": 1}, 0).version
    plan.save({"n": 2, "m": 2}, version)
    with pytest.raises(ConflictError, match="n, m"):
        plan.save({"n": 3, "m": 3}, version)
    seen: list[MergeConflict] = []

    def resolve(clash: MergeConflict) -> Any:
        seen.append(clash)
        return clash.ours + clash.theirs if clash.where == "n" else MISSING

    assert plan.save({"n": 3, "m": 3}, version, on_conflict=resolve).value == {"n": 5}
    assert [(clash.where, clash.base, clash.ours, clash.theirs) for clash in seen] == [("n", 1, 3, 2), ("m", 1, 3, 2)]
    with pytest.raises(ConflictError):
        plan.save({"n": 4}, version, on_conflict=lambda _: UNRESOLVED)
    with pytest.raises(ConflictError):
        plan.save({"n": 4}, version, on_conflict=lambda _: MISSING if _.path == () else UNRESOLVED)
    with pytest.raises(InvalidError, match="on_conflict must be"):
        plan.save(1, 0, on_conflict="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="version"):
        plan.save(1, -1)


def test_two_that_begin_a_document(store: Store) -> None:
    plan = store.sharing.document("plan")
    plan.save({"a": [1]}, 0)
    assert plan.save({"b": 2, "a": [2]}, 0).value == {"b": 2, "a": [1, 2]}


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 5), max_size=5),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["list", "text", "dict"])), min_size=1, max_size=8),
)
def test_no_edit_is_lost(start: list[int], edits: list[tuple[int, str]]) -> None:
    """Whatever version each editor saw last, what it adds is in the document."""
    plan = store_on(MemoryBackend(), Clock()).sharing.document("plan")
    first = plan.save({"list": start, "text": "".join(f"{n}\n" for n in start), "dict": {}}, 0)
    seen = dict.fromkeys(range(4), first)
    for number, (editor, what) in enumerate(edits):
        value, version = astuple(seen[editor])
        value = {"list": [*value["list"]], "text": value["text"], "dict": {**value["dict"]}}
        mark = f"edit {number}"
        if what == "list":
            value["list"].append(mark)
        elif what == "text":
            value["text"] += f"{mark}\n"
        else:
            value["dict"][mark] = editor
        seen[editor] = plan.save(value, version)
    final = plan.read().value
    marks = [f"edit {number}" for number in range(len(edits))]
    assert sorted(final["list"][len(start) :] + final["text"].splitlines()[len(start) :] + [*final["dict"]]) == marks
    assert final["list"][: len(start)] == start


def test_waiting_for_others_and_for_asyncio(store: Store) -> None:
    plan = store.sharing.document("plan")
    assert plan.wait(0, timeout=0) is None

    async def main() -> None:
        same = awaited(store).sharing.document("plan")
        waiting = asyncio.create_task(same.wait(0, timeout=60))
        await asyncio.sleep(0.01)
        await same.edit(lambda _: "x")
        assert await waiting == DocumentVersion("x", 1)

    asyncio.run(main())
