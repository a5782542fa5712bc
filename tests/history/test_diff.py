"""`diff`: summary, changes, words, conversations, patches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.codec import Codec, OpaqueValue
from holdfast.engine.model.json_diff import UnloadedValue
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.history.diff_result import Diff
from holdfast.history.diff_text import line_spans, word_spans
from tests.engine.lines import store_on


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


def told(diff: Diff) -> list[tuple[str, str, Any, Any]]:
    return [(change.kind, change.where, change.old, change.new) for change in diff]


def compare(store: holdfast.Store, old: dict[str, Any], new: dict[str, Any]) -> Diff:
    store.thread("t").put(old)
    store.thread("t").put(new)
    return store.thread("t").diff()


def chat(*texts: str) -> list[HumanMessage]:
    return [HumanMessage(text, id=f"m{number}") for number, text in enumerate(texts)]


def test_changes_of_the_latest_checkpoint(store: holdfast.Store) -> None:
    diff = compare(
        store,
        {"messages": chat("hello", "again"), "plan": {"goal": "rest", "steps": ["one", "two"]}, "n": 1, "old": 5},
        {"messages": chat("hello", "again", "more"), "plan": {"goal": "work", "steps": ["two"]}, "n": 1, "new": None},
    )
    assert told(diff) == [
        ("add", "messages[2]", None, HumanMessage("more", id="m2")),
        ("change", "plan.goal", "rest", "work"),
        ("remove", "plan.steps[0]", "one", None),
        ("add", "new", None, None),
        ("remove", "old", 5, None),
    ]
    assert list(map(str, diff.summary)) == ["messages: +1", "plan: ~2", "new: added", "old: removed"]
    assert repr(diff) == "<Diff messages: +1; plan: ~2; new: added; old: removed>"
    assert len(diff) == 5
    assert diff.old.step == 0
    assert diff.new.id == store.thread("t").get().id


def test_the_first_checkpoint_is_compared_with_nothing(store: holdfast.Store) -> None:
    store.thread("t").put({"x": 1})
    diff = store.thread("t").diff()
    assert told(diff) == [("add", "x", None, 1)]
    assert diff.old.id == ""
    assert diff.to_json()["old"] is None


def test_nothing_differs(store: holdfast.Store) -> None:
    diff = compare(store, {"x": [1, 2]}, {"x": [1, 2]})
    assert not diff
    assert diff.text() == ""
    assert diff.patch() == []
    assert repr(diff) == "<Diff no changes>"


def test_items_that_came_and_went_do_not_change_those_behind_them(store: holdfast.Store) -> None:
    items = [f"item {number}" for number in range(100)]
    diff = compare(store, {"l": items}, {"l": ["first", *items[:40], *items[41:60], "item sixty!", *items[61:]]})
    assert told(diff) == [
        ("add", "l[0]", None, "first"),
        ("remove", "l[40]", "item 40", None),
        ("change", "l[60]", "item 60", "item sixty!"),
    ]
    assert str(diff.summary[0]) == "l: +1 ~1 -1"


def test_a_changed_item_shows_where_it_was(store: holdfast.Store) -> None:
    diff = compare(
        store, {"messages": chat("one", "two")}, {"messages": [AIMessage("zero", id="z"), *chat("one", "2")]}
    )
    _, change = diff.changes
    assert (change.where, change.was, change.old, change.new) == (
        "messages[2].content",
        ("messages", 1, "content"),
        "two",
        "2",
    )
    assert "messages[2].content (was messages[1].content)" in diff.text()


def test_messages_with_other_ids_are_other_messages(store: holdfast.Store) -> None:
    diff = compare(store, {"messages": chat("one")}, {"messages": [HumanMessage("one!", id="other")]})
    assert [change.kind for change in diff] == ["remove", "add"]


def test_a_moved_item(store: holdfast.Store) -> None:
    items = [f"item {number}" for number in range(10)]
    diff = compare(store, {"l": items}, {"l": [*items[1:], items[0]]})
    (change,) = diff
    assert (change.kind, change.path, change.was, change.new) == ("move", ("l", 9), ("l", 0), "item 0")
    assert str(diff.summary[0]) == "l: moved 1"
    assert diff.text().splitlines()[2:] == ["l[9] (moved from l[0])", '  "item 0"']


def test_keys_in_another_order(store: holdfast.Store) -> None:
    diff = compare(store, {"d": {"a": 1, "b": 2}}, {"d": {"b": 2, "a": 1}})
    assert told(diff) == [("move", "d", None, None)]
    assert diff.patch() == []
    assert "d (in another order)" in diff.text()


def test_keys_of_a_large_dict_in_another_order(store: holdfast.Store) -> None:
    old = {f"key {number}": "value " * 10 for number in range(500)}
    new = dict(old)
    new["key 3"] = new.pop("key 3")
    diff = compare(store, {"d": old}, {"d": new})
    assert told(diff) == [("move", "d", None, None)]


def test_one_entry_of_a_large_dict(store: holdfast.Store) -> None:
    old = {f"key {number}": number for number in range(5000)}
    diff = compare(store, {"d": old}, {"d": {**old, "key 7": "seven", "new": 1}})
    assert told(diff) == [("change", 'd["key 7"]', 7, "seven"), ("add", "d.new", None, 1)]


def test_dicts_with_keys_that_are_no_text(store: holdfast.Store) -> None:
    diff = compare(store, {"d": {1: "a", 2: "b"}}, {"d": {1: "a", 2: "c", (3, 4): "d"}})
    assert told(diff) == [("change", "d[2]", "b", "c"), ("add", "d[(3, 4)]", None, "d")]


@dataclass
class Task:
    name: str
    done: bool


class Note(BaseModel):
    text: str
    by: str = ""


def test_fields_of_objects(store: holdfast.Store) -> None:
    diff = compare(
        store,
        {"task": Task("rest", False), "note": Note(text="a"), "pair": (1, 2), "kinds": {1, 2}},
        {"task": Task("rest", True), "note": Note(text="a", by="me"), "pair": (1, 3), "kinds": {2, 3}},
    )
    assert told(diff) == [
        ("change", "task.done", False, True),
        ("change", "note.by", "", "me"),
        ("change", "pair[1]", 2, 3),
        ("remove", "kinds[0]", 1, None),
        ("add", "kinds[1]", None, 3),
    ]
    assert diff.apply(store.thread("t").get(at=0).state) == store.thread("t").get().state


def test_values_of_classes_that_are_not_loaded_are_opaque() -> None:
    codec = Codec(may_revive=lambda _: False)
    with holdfast.open("memory://", codec=codec) as store:
        diff = compare(store, {"x": [Task("a", False)]}, {"x": [Task("a", False), Task("b", True)]})
        (change,) = diff
        assert isinstance(change.new, OpaqueValue)
        assert '{"name": "b", "done": true}' in diff.text()
        assert compare(store, {"x": Task("a", False)}, {"x": Task("b", False)}).changes[0].where == "x.name"


def test_texts_word_by_word(store: holdfast.Store) -> None:
    diff = compare(store, {"t": "the quick brown fox"}, {"t": "the slow brown fox jumps"})
    (change,) = diff
    assert "".join(f"[{span.kind}{span.text}]" for span in change.words) == (
        "[=the ][-quick][+slow][= brown fox][+ jumps]"
    )
    assert diff.text(by_word=True).splitlines()[-1] == "  the [-quick-]{+slow+} brown fox{+ jumps+}"
    assert compare(store, {"t": 1}, {"t": 2}).changes[0].words == []


def test_long_texts_line_by_line(store: holdfast.Store) -> None:
    old = "".join(f"line {number}\n" for number in range(20))
    diff = compare(store, {"t": old}, {"t": old.replace("line 9\n", "nine\nand a half\n").replace("line 19\n", "")})
    assert diff.text().splitlines()[3:] == [
        "  …",
        "  line 7",
        "  line 8",
        "- line 9",
        "+ nine",
        "+ and a half",
        "  line 10",
        "  line 11",
        "  …",
        "  line 17",
        "  line 18",
        "- line 19",
    ]


def test_several_lines_word_by_word(store: holdfast.Store) -> None:
    diff = compare(store, {"t": "one two three\nfour\nsix\n"}, {"t": "one three\nfour five\n\nnew\n"})
    assert diff.text(by_word=True).splitlines()[3:] == [
        "  one [-two -]three",
        "  four{+ five+}",
        "  [-six-]",
        "  {+new+}",
        "  ",
    ]
    diff = compare(store, {"t": "one\ntwo"}, {"t": "one two"})
    assert diff.text(by_word=True).splitlines()[3:] == ["  one[-↵-]{+ +}two"]


@pytest.mark.parametrize("compared", [word_spans, line_spans])
@pytest.mark.parametrize(
    ("old", "new"),
    [("", ""), ("", "a\nb"), ("a b c", "a c"), ("a\n" * 500, "b\n" + "a\n" * 499), ("x y " * 900, "y x " * 900)],
    ids=["empty", "new", "word gone", "line in front", "turned round"],
)
def test_spans_make_up_both_texts(compared: Any, old: str, new: str) -> None:
    spans = compared(old, new)
    assert "".join(span.text for span in spans if span.kind != "+") == old
    assert "".join(span.text for span in spans if span.kind != "-") == new


def test_messages_are_formatted_as_a_conversation(store: holdfast.Store) -> None:
    calls = [{"name": "look", "args": {"at": "map"}, "id": "1"}]
    said = [HumanMessage("Where to?\nAnd when?", id="a"), AIMessage("", id="b", tool_calls=calls)]
    diff = compare(store, {"messages": [{"role": "system", "content": "Be brief."}]}, {"messages": said})
    text = diff.text()
    assert "messages[0] (removed)\n- system: Be brief." in text
    assert "messages[0] (added)\n+ user: Where to?\n+ And when?" in text
    assert '+ assistant: {\n+   "type": "ai"' in text
    assert diff.changes[1].message is not None
    assert diff.changes[1].message.role == "user"


def test_large_values_are_fetched_on_request(store: holdfast.Store) -> None:
    text = "word " * 50_000
    diff = compare(store, {"t": text, "same": "s" * 200_000}, {"t": text + "more", "same": "s" * 200_000})
    (change,) = diff
    assert isinstance(change.old, UnloadedValue)
    assert change.old.bytes > 250_000
    assert "<2500" in diff.text()
    with pytest.raises(InvalidError, match="large=True"):
        diff.patch()
    (change,) = store.thread("t").diff(large=True)
    assert [(span.kind, span.text) for span in change.words if span.kind != "="] == [("+", "more")]


def test_a_large_value_inside_another(store: holdfast.Store) -> None:
    large = "x" * 200_000
    diff = compare(store, {"l": [1]}, {"l": [1, {"text": large}], "d": {"deep": [large]}})
    assert all("bytes, digest" in str(change["new"]) for change in diff.to_json()["changes"])
    assert told(store.thread("t").diff(large=True))[1] == ("add", "d", None, {"deep": [large]})


def test_threads_states_and_revisions(store: holdfast.Store) -> None:
    for number in range(5):
        store.thread("one").put({"n": number})
    store.thread("two").put({"n": "two"})
    assert told(store.thread("one").diff("#1")) == [("change", "n", 1, 4)]
    assert told(store.thread("one").diff("HEAD~1", "#0")) == [("change", "n", 3, 0)]
    assert told(store.thread("one").diff(other="two")) == [("change", "n", 4, "two")]
    assert told(store.thread("one").diff("#2", state={"n": 2, "m": 1})) == [("add", "m", None, 1)]
    assert store.thread("one").diff(state={"n": 1}).to_json()["new"] is None
    with pytest.raises(NotFoundError):
        store.thread("one").diff("nope")
    with pytest.raises(NotFoundError):
        store.thread("nobody").diff()
    with pytest.raises(InvalidError):
        store.thread("one").diff(other="two", state={})
    with pytest.raises(InvalidError):
        store.thread("one").diff(state=5)  # type: ignore[arg-type]


def test_a_patch_refuses_a_state_that_it_does_not_fit(store: holdfast.Store) -> None:
    diff = compare(store, {"l": [1, 2], "d": {"a": 1}, "x": 1}, {"l": [1], "d": {"a": 1, "b": 2}, "x": True})
    assert diff.apply({"l": [1, 2], "d": {"a": 1}, "x": 1, "more": 0}) == {
        "l": [1],
        "d": {"a": 1, "b": 2},
        "x": True,
        "more": 0,
    }
    for state in (
        {"l": [1, 2], "d": {"a": 1}, "x": 1.0},
        {"l": [1], "d": {"a": 1}, "x": 1},
        {"l": [1, 2], "d": {"a": 1, "b": 0}, "x": 1},
        {"l": [1, 2], "d": 5, "x": 1},
        {},
    ):
        with pytest.raises(ConflictError, match="does not fit"):
            diff.apply(state)


def test_with_asyncio() -> None:
    async def go() -> None:
        async with await holdfast.aopen("memory://") as store:
            await store.thread("t").put({"n": 1})
            await store.thread("t").put({"n": 2})
            assert told(await store.thread("t").diff()) == [("change", "n", 1, 2)]
            (origin,) = await store.thread("t").blame("n")
            assert origin.writer.step == 1
            assert len(await store.thread("t").history("n")) == 2

    asyncio.run(go())


def test_after_the_thread_was_compacted(store: holdfast.Store) -> None:
    messages: list[HumanMessage] = []
    for number in range(80):
        messages.append(HumanMessage(f"message {number} " * 10, id=str(number)))
        store.thread("t").put({"messages": messages, "n": number})
    first = store.thread("t").diff("#10", "#70")
    store.maintenance.compact("t")
    assert store.thread("t").diff("#10", "#70").patch() == first.patch()


def test_while_another_process_rewrites_the_thread() -> None:
    backend = run(MemoryBackend.open("memory://"))
    mine, other = store_on(backend), store_on(backend)
    messages: list[HumanMessage] = []
    for number in range(100):
        messages.append(HumanMessage(f"message {number} " * 10, id=str(number)))
        other.thread("t").put({"messages": messages, "n": number})
    point = run(mine._engine.lines.find(Line("", "t"), mine.thread("t").find("#70").id))
    held = run(mine._engine.states.get(Line("", "t"), point))
    other.maintenance.compact("t")
    assert str(mine.thread("t").diff("#69", "#70").summary[0]) == "messages: +1"
    mine._engine.states.cache_state(Line("", "t"), point.hash, held)
    assert mine.thread("t").blame("messages[3]", "#70")[0].writer.step == 3
