"""`blame` and `history`: results, cost, and pruned checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError, NotFoundError
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.support.counting import CountingBackend


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


def said(number: int) -> HumanMessage:
    return HumanMessage(f"message {number} " * 20, id=f"m{number}")


def test_who_wrote_a_message(store: holdfast.Store) -> None:
    for number in range(5):
        by = {"source": "loop", "author": f"agent {number}"}
        store.thread("t").put({"messages": [said(each) for each in range(number + 1)]}, metadata=by, id=f"c{number}")
    (origin,) = store.thread("t").blame("messages[3]")
    writer = origin.writer
    assert (origin.where, origin.value) == ("messages[3]", said(3))
    assert (writer.id, writer.step, writer.branch, writer.kind, writer.by) == ("c3", 3, 0, "save", "agent 3")
    assert (writer.metadata["source"], writer.pruned) == ("loop", False)
    assert (writer.time, writer.hash) == (store.thread("t").find("c3").time, store.thread("t").find("c3").hash)
    assert [each.writer.id for each in store.thread("t").blame("messages")] == ["c0", "c1", "c2", "c3", "c4"]
    assert [each.where for each in store.thread("t").blame("messages[-2:]")] == ["messages[3]", "messages[4]"]
    assert [each.writer.id for each in store.thread("t").blame("messages[1:]", cursor="1@c4", limit=2)] == ["c2", "c3"]
    assert store.thread("t").blame(("messages", -1))[0].writer.id == "c4"
    assert store.thread("t").blame("messages[0].content", "c2")[0].value == said(0).content


def test_who_wrote_a_key(store: holdfast.Store) -> None:
    store.thread("t").put({"memory": {"user": {"name": "Anna", "age": 30}, "seen": []}, "n": 0}, metadata={"by": "one"})
    store.thread("t").update({("memory", "user", "age"): 31}, metadata={"node": "two", "by": 5})
    store.thread("t").update({"n": 0})
    assert {each.where: each.writer.by for each in store.thread("t").blame("memory.user")} == {
        "memory.user.name": "one",
        "memory.user.age": "two",
    }
    assert [each.writer.step for each in store.thread("t").blame("memory.seen")] == [0]
    assert [each.writer.step for each in store.thread("t").blame("n")] == [0], "it was set to what it was"
    assert [each.writer.step for each in store.thread("t").history("memory")] == [1, 0]


def test_blame_inside_a_large_value(store: holdfast.Store) -> None:
    document = {"pages": ["page " * 30_000], "title": "a"}
    store.thread("t").put({"documents": [document]})
    store.thread("t").put({"documents": [document, {**document, "title": "b"}]})
    assert store.thread("t").blame("documents[1].title")[0].writer.step == 1
    assert store.thread("t").blame("documents[1].title")[0].value == "b"


def test_what_is_not_there(store: holdfast.Store) -> None:
    store.thread("t").put({"messages": [said(0)], "n": 1})
    for path in ("nothing", "messages[5]", "messages.x", "messages[0].nothing", "n.deeper", "messages[0].id[7]"):
        with pytest.raises(NotFoundError):
            store.thread("t").blame(path)
        with pytest.raises(NotFoundError):
            store.thread("t").history(path)
    with pytest.raises(NotFoundError, match=r"no value at mesages\.x .*Did you mean messages\?"):
        store.thread("t").blame("mesages.x")
    with pytest.raises(NotFoundError, match="not a list"):
        store.thread("t").blame("n[1:2]")


def test_a_removed_value_has_a_history(store: holdfast.Store) -> None:
    store.thread("t").put({"a": {"b": 1}, "n": 0})
    for number in range(1, 6):
        store.thread("t").put({"a": {"b": 1} if number < 3 else {}, "n": number})
    store.thread("t").put({"a": {"b": 2}, "n": 6})
    store.thread("t").put({"n": 7})
    with pytest.raises(NotFoundError, match=r"history\(\)"):
        store.thread("t").blame("a.b")
    found = store.thread("t").history("a.b")
    assert [each.writer.step for each in found] == [7, 6, 3, 0]
    assert [(each.changes[0].kind, each.changes[0].old, each.changes[0].new) for each in found] == [
        ("remove", 2, None),
        ("add", None, 2),
        ("remove", 1, None),
        ("add", None, 1),
    ]


def test_history_page_by_page(store: holdfast.Store) -> None:
    for number in range(100):
        store.thread("t").put({"n": number // 10, "x": number})
    whole = store.thread("t").history("n")
    assert [each.writer.step for each in whole] == list(range(90, -1, -10))
    page = store.thread("t").history("n", limit=4)
    assert page == whole[:4]
    assert store.thread("t").history("n", cursor=page.next, limit=4) == whole[4:8]
    assert list(page.all()) == whole
    assert list(store.thread("t").history("n", limit=5).all()) == whole
    assert [each.writer.step for each in store.thread("t").history("n", "#25")] == [20, 10, 0]
    assert whole.next is None
    for cursor in ("x", "1", "1.", ".1", "1.x"):
        with pytest.raises(InvalidError, match="does not belong to this listing"):
            store.thread("t").history("n", cursor=cursor)
    with pytest.raises(InvalidError, match="does not belong to this listing"):
        store.thread("t").blame("n", cursor="x")


def test_pruned_origins_say_so(store: holdfast.Store) -> None:
    for number in range(50):
        messages = [said(each) for each in range(number + 1)]
        store.thread("t").put({"messages": messages, "n": number // 10, "same": 1}, id=f"c{number:02}")
    times = {point.step: (point.time, point.hash) for point in store.thread("t").log().all()}
    store.thread("t").label("keep", "c15")
    store.maintenance.prune(keep_last=10, keep_labels=["keep"])
    (gone,) = store.thread("t").blame("messages[7]")
    assert (gone.writer.id, gone.writer.pruned, gone.writer.kind) == ("", True, "pruned")
    assert (gone.writer.time, gone.writer.hash, gone.writer.step) == (*times[7], 7)
    assert [each.writer.id for each in store.thread("t").blame("messages[38:42]")] == ["", "", "c40", "c41"]
    found = store.thread("t").history("n")
    assert [(each.writer.step, each.writer.pruned) for each in found] == [(40, False), (10, True)]
    assert [(each.changes[0].old, each.changes[0].new) for each in found] == [(1, 4), (None, 1)]
    assert [each.writer.step for each in store.thread("t").history("messages[7]")] == [7]
    assert [each.writer.step for each in store.thread("t").history("same")] == [0]
    store.thread("t").put({"messages": [], "same": 1})
    assert [each.writer.step for each in store.thread("t").history("n")] == [50, 40, 10]


PATHS: list[tuple[str, tuple[Any, ...]]] = [
    ("messages", ("messages",)),
    ("messages[3].content", ("messages", 3, "content")),
    ("messages[-1]", ("messages", -1)),
    ("messages[2:]", ("messages", slice(2, None))),
    ("messages[:-2]", ("messages", slice(None, -2))),
    ('memory["last name"].x', ("memory", "last name", "x")),
    ("memory['a.b']", ("memory", "a.b")),
    ("branch:to:agent", ("branch:to:agent",)),
    ('["a b"][0]', ("a b", 0)),
    ('["é\\n"]', ("é\n",)),
]


def test_paths(subtests: pytest.Subtests) -> None:
    for text, path in PATHS:
        with subtests.test(text=text):
            assert parse_path(text) == path
            assert parse_path(path_text(path)) == path


def test_wrong_paths(subtests: pytest.Subtests) -> None:
    for text in ["", ".", "[1]", "a..b", "a[", "a[x]", 'a["', "a]", "a.[1]", "a[1]b", "a[1:2].b"]:
        with subtests.test(text=text), pytest.raises(InvalidError):
            parse_path(text)


def test_paths_of_other_keys() -> None:
    assert path_text(("d", (1, 2), None)) == "d[(1, 2)][None]"


@pytest.mark.parametrize("path", [5, (), (1, 2), ("a", slice(1), "b")], ids=range(4))
def test_refused_paths(store: holdfast.Store, path: Any) -> None:
    store.thread("t").put({"a": 1})
    with pytest.raises(InvalidError):
        store.thread("t").blame(path)


# Costs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_line() -> CountingBackend:
    """A thread of 1,000 steps with a message each, and an edited message in the last."""
    counting = CountingBackend(run(MemoryBackend.open("memory://")))
    store = store_on(counting, cache_bytes=64 << 20)
    messages: list[HumanMessage] = []
    memory: dict[str, Any] = {f"key {number}": "value " * 10 for number in range(300)}
    for number in range(1000):
        messages = [*messages, said(number)]
        memory = {**memory, "key 7": number} if number % 10 == 0 else memory
        store.thread("t").put({"messages": messages, "memory": memory, "n": number})
    messages = [*messages]
    messages[300] = HumanMessage("edited " * 20, id="m300")
    store.thread("t").put({"messages": messages, "memory": memory, "n": 1000})
    run(LineCopier(store._engine).copy({Line("", "t"): Line("", "copy")}))
    store.thread("other").put({"messages": messages, "n": 1000})
    return counting


def cold(counting: CountingBackend) -> Store:
    counting.reset()
    return store_on(counting, cache_bytes=64 << 20)


@pytest.mark.nightly
def test_neighbours_are_compared_without_reading_shared_nodes(long_line: CountingBackend) -> None:
    for a, b in ((None, "HEAD"), ("#500", "#501"), ("#320", "#321")):
        diff = cold(long_line).thread("t").diff(a, b)
        assert 1 <= len(diff) <= 4
        assert long_line.rows_read["nodes"] <= 24
        assert long_line.rows_read["steps"] <= 80
        assert long_line.reads <= 30


@pytest.mark.nightly
def test_states_that_differ_in_one_message_and_in_many_steps(long_line: CountingBackend) -> None:
    diff = cold(long_line).thread("t").diff("#600", "#631")
    assert str(diff.summary[0]) == "messages: +31"
    assert long_line.rows_read["nodes"] <= 30


def test_a_given_state_is_compared_by_digests(long_line: CountingBackend) -> None:
    state = cold(long_line).thread("t").get().state
    state["messages"][5] = HumanMessage("other", id="m5")
    diff = cold(long_line).thread("t").diff(state=state)
    assert [change.where for change in diff] == ["messages[5].content"]
    assert long_line.rows_read["nodes"] <= 24 + 20, "indexes, one segment, and the dict, which has no digests"


def test_a_thread_and_its_copy_are_compared_by_digests(long_line: CountingBackend) -> None:
    cold(long_line).thread("t").get(at="#999")
    whole = long_line.rows_read["nodes"]
    diff = cold(long_line).thread("t").diff("#999", other="copy")
    assert [change.where for change in diff] == ["messages[300].content", "n"]
    assert long_line.rows_read["nodes"] <= whole - 12, "of sixteen segments, three were read"


def test_two_threads_are_compared_by_content(long_line: CountingBackend) -> None:
    diff = cold(long_line).thread("t").diff("#999", other="other")
    assert [change.where for change in diff] == ["messages[300].content", "n", "memory"]


def test_blame_reads_one_path(long_line: CountingBackend) -> None:
    for path, step in (("messages[700]", 700), ("messages[300]", 1000), ('memory["key 7"]', 990), ("messages[0]", 0)):
        (origin,) = cold(long_line).thread("t").blame(path)
        assert origin.writer.step == step
        assert long_line.rows_read["nodes"] <= 30
        assert long_line.rows_read["steps"] <= 160


def test_history_skips_steps_that_did_not_change_the_value(long_line: CountingBackend) -> None:
    found = cold(long_line).thread("t").history("messages[300]")
    assert [each.writer.step for each in found] == [1000, 300]
    assert long_line.rows_read["steps"] <= 250


# What merges brought in -------------------------------------------------------------------------------------------


def merged(store: holdfast.Store, *, strategy: str | None = None) -> str:
    """Two branches, one merged into the other."""
    store.thread("t").put({"m": ["1"], "k": {"x": 1}}, metadata={"author": "root"})
    store.thread("t").fork("side")
    store.thread("t").update({"m": ["1", "2"], ("k", "y"): {"deep": [1]}}, branch="side", metadata={"author": "sue"})
    store.thread("t").update({"m": ["0", "1"], "q": 1}, branch="main", metadata={"author": "mary"})
    return store.thread("t").merge("side", "main", strategy=strategy, metadata={"author": "merger"}).id


def by(origins: list[Any]) -> list[tuple[str, str]]:
    return [(origin.where, origin.writer.by) for origin in origins]


def test_blame_of_a_merged_value(store: holdfast.Store) -> None:
    merged(store)
    assert by(store.thread("t").blame("m", "main")) == [("m[0]", "mary"), ("m[1]", "root"), ("m[2]", "sue")]
    assert by(store.thread("t").blame("m[2]", "main")) == [("m[2]", "sue")]
    assert by(store.thread("t").blame("k", "main")) == [("k.x", "root"), ("k.y", "sue")]
    assert by(store.thread("t").blame("k.y.deep[0]", "main")) == [("k.y.deep[0]", "sue")]
    assert by(store.thread("t").blame("q", "main")) == [("q", "mary")]


def test_blame_of_a_value_merged_twice(store: holdfast.Store) -> None:
    store.thread("t").put({"n": 0})
    for name in ("a", "b"):
        store.thread("t").fork(name, at=0)
    store.thread("t").update({"from a": 1}, branch="a", metadata={"author": "ann"})
    store.thread("t").update({"from b": 1}, branch="b", metadata={"author": "bob"})
    store.thread("t").merge("a", "b", metadata={"author": "first"})
    store.thread("t").merge("b", "main", metadata={"author": "second"})
    assert by(store.thread("t").blame('["from a"]', "main")) == [('["from a"]', "ann")]
    assert by(store.thread("t").blame('["from b"]', "main")) == [('["from b"]', "bob")]


def test_a_value_of_neither_side_was_written_by_the_merge(store: holdfast.Store) -> None:
    store.thread("t").put({"n": 0})
    store.thread("t").fork("side", changes={"n": 1})
    store.thread("t").update({"n": 2}, branch="main")
    store.thread("t").merge(
        "side", "main", resolve=lambda clash: clash.ours + clash.theirs, metadata={"author": "merger"}
    )
    assert by(store.thread("t").blame("n", "main")) == [("n", "merger")]


def test_a_merge_that_was_pruned_still_leads_to_the_other_side(store: holdfast.Store) -> None:
    merge = merged(store)
    store.thread("t").update({"q": 2}, branch="main")
    for revision in ("side", "side~1", "main~2"):
        store.thread("t").pin(revision)
    store.maintenance.prune(threads="t", keep_latest=True)
    with pytest.raises(NotFoundError):
        store.thread("t").get(merge)
    # It wrote the short list anew: who wrote what only the first side has is not known any more.
    assert by(store.thread("t").blame("m", "main")) == [("m[0]", ""), ("m[1]", "root"), ("m[2]", "sue")]


def test_a_side_that_was_deleted(store: holdfast.Store) -> None:
    merged(store)
    store.thread("t").delete_branch("side")
    assert by(store.thread("t").blame("m[2]", "main")) == [("m[2]", "merger")]


# What was written again -------------------------------------------------------------------------------------------


def test_a_dict_that_is_written_again_at_every_step(store: holdfast.Store) -> None:
    for number in range(300):
        deep = {"p": number % 7, "in": {"p": number // 100}}
        store.thread("t").put({"d": {"a": 1, "b": "x" * (number % 50)}, "deep": deep})
    steps = {
        path: [each.writer.step for each in store.thread("t").blame(path)] for path in ("d", "d.a", "deep", "deep.in.p")
    }
    assert steps == {"d": [0, 299], "d.a": [0], "deep": [299, 200], "deep.in.p": [200]}
    assert [each.writer.step for each in store.thread("t").history("deep.in.p")] == [200, 100, 0]


def test_a_dict_that_is_written_again_costs_no_state_for_each() -> None:
    counting = CountingBackend(run(MemoryBackend.open("memory://")))
    store = store_on(counting)
    for number in range(500):
        store.thread("t").put({"d": {"a": 1, "b": "x" * (number % 50)}})
    fresh = store_on(counting)
    counting.reset()
    assert [each.writer.step for each in fresh.thread("t").blame("d.a")] == [0]
    assert counting.reads < 40


def test_a_dict_that_was_removed_in_between(store: holdfast.Store) -> None:
    for state in ({"d": {"a": 1}}, {}, {"d": {"a": 1}}, {"d": {"a": 1, "b": 2}}):
        store.thread("t").put(state)
    assert [each.writer.step for each in store.thread("t").blame("d")] == [2, 3]
    assert [each.writer.step for each in store.thread("t").blame("d.a")] == [2]


def test_an_update_that_changes_nothing(store: holdfast.Store) -> None:
    store.thread("t").put({"d": {"x": 1}})
    for number in range(3):
        store.thread("t").update({("d", "x"): 1, "n": number})
    assert [each.writer.step for each in store.thread("t").blame("d")] == [0]
    assert [each.writer.step for each in store.thread("t").blame("d.x")] == [0]


def test_pages_are_of_the_checkpoint_that_the_first_was_read_at(store: holdfast.Store) -> None:
    thread = store.thread("t")
    for number in range(6):
        thread.put({"n": number, "l": ["a", "b", "c", "d"]})
    blame, history = thread.blame("l", limit=2), thread.history("n", limit=2)
    thread.fork("b", at=1)
    thread.put({"n": -1, "l": ["new", "a", "b", "c", "d"]}, branch="b")
    assert [entry.value for entry in blame.all()] == ["a", "b", "c", "d"]
    assert [each.writer.step for each in history.all()] == [5, 4, 3, 2, 1, 0]
    assert [each.writer.step for each in thread.history("n", limit=9, cursor=history.next)] == [3, 2, 1, 0]
