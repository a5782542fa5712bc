"""The saver for programs of any framework, or none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast import Store
from holdfast.errors import DeniedError, InvalidError, UnsupportedError
from holdfast.savers import AsyncCheckpointer, BaseCheckpointer, Checkpointer

WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("langgraph", "langchain", "langchain_core", "langsmith", "pydantic"):
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
import holdfast

with holdfast.open(sys.argv[1]) as store:
    saver = holdfast.savers.Checkpointer(store)
    first = saver.put("t", {"messages": ["hi"]}, metadata={"n": 1})
    saver.put_writes("t", first, [("messages", "there")], task_id="task")
    found = saver.get_tuple("t")
    assert found.state == {"messages": ["hi"]}
    (write,) = found.pending_writes
    assert (write.task_id, write.channel, write.value) == ("task", "messages", "there")
    second = saver.put("t", {"messages": ["hi", "there"]}, parent_id=first)
    assert [each.id for each in saver.list("t")] == [second, first]
    saver.delete_thread("t")
    assert saver.get_tuple("t") is None
assert not {"langgraph", "langchain_core", "pydantic"} & set(sys.modules)
print("fine")
"""


def test_it_works_without_any_framework(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.fixture
def saver(store: Store) -> Checkpointer:
    return Checkpointer(store)


def test_put_and_get_tuple(saver: Checkpointer, store: Store) -> None:
    first = saver.put("t", {"n": 1}, metadata={"m": 1})
    second = saver.put("t", {"n": 2}, id="~2", parent_id=first)
    found = saver.get_tuple("t")
    assert found is not None
    assert (found.thread_id, found.id, found.parent_id, found.state) == ("t", "~2", first, {"n": 2})
    assert (found.metadata, found.pending_writes) == ({}, [])
    assert found.time == store.thread("t").get().time
    older = saver.get_tuple("t", first)
    assert older is not None
    assert (older.state, older.metadata, older.parent_id) == ({"n": 1}, {"m": 1}, None)
    assert second == "~2"


def test_what_is_not_there_is_none(saver: Checkpointer) -> None:
    assert saver.get_tuple("t") is None
    saver.put("t", {})
    assert saver.get_tuple("t", "nope") is None
    assert saver.list("nobody") == []
    saver.delete_thread("nobody")


def test_two_on_one_parent_make_a_branch(saver: Checkpointer, store: Store) -> None:
    first = saver.put("t", {"n": 0})
    ids = [saver.put("t", {"n": n}, parent_id=first) for n in range(3)]
    found = [saver.get_tuple("t", id) for id in ids]
    assert [each.state["n"] for each in found if each is not None] == [0, 1, 2]
    assert store.thread("t").info().branches == 3


def test_list(saver: Checkpointer) -> None:
    ids = [saver.put("t", {"n": n}, metadata={"even": n % 2 == 0}) for n in range(6)]
    saver.put_writes("t", ids[3], [("c", 1)], task_id="x")
    assert [each.state["n"] for each in saver.list("t")] == [5, 4, 3, 2, 1, 0]
    assert [each.state["n"] for each in saver.list("t", cursor=ids[4], limit=2)] == [3, 2]
    assert [each.state["n"] for each in saver.list("t", metadata={"even": True})] == [4, 2, 0]
    assert list(map(astuple, saver.list("t", cursor=ids[4], limit=1)[0].pending_writes)) == [("x", "c", 1)]


def test_writes_may_come_before_their_checkpoint(saver: Checkpointer, store: Store) -> None:
    saver.put_writes("t", "later", [("a", {1, 2})], task_id="x")
    assert saver.get_tuple("t") is None
    assert (store.thread("t").info().steps, store.thread("t").info().latest) == (0, None)
    saver.put("t", {"n": 1}, id="later")
    found = saver.get_tuple("t")
    assert found is not None
    assert list(map(astuple, found.pending_writes)) == [("x", "a", {1, 2})]
    assert store.thread("t").info().steps == 1


def test_writes_are_ordered_by_path_task_and_place(saver: Checkpointer) -> None:
    id = saver.put("t", {})
    saver.put_writes("t", id, [("c", n) for n in range(12)], task_id="b", task_path="1")
    saver.put_writes("t", id, [("c", "a1")], task_id="a", task_path="1")
    saver.put_writes("t", id, [("c", "z0")], task_id="z", task_path="0")
    saver.put_writes("t", id, [("c", "no path")], task_id="zz")
    found = saver.get_tuple("t", id)
    assert found is not None
    assert [write.value for write in found.pending_writes] == ["no path", "z0", "a1", *range(12)]
    assert found.pending_writes[0].task_id == "zz"


def test_the_first_value_of_a_place_is_kept(saver: Checkpointer) -> None:
    id = saver.put("t", {})
    saver.put_writes("t", id, [("c", "first")], task_id="x")
    saver.put_writes("t", id, [("c", "second"), ("d", "more")], task_id="x")
    found = saver.get_tuple("t", id)
    assert found is not None
    assert list(map(astuple, found.pending_writes)) == [("x", "c", "first"), ("x", "d", "more")]


def test_writes_of_another_checkpoint_and_thread_are_not_mixed_in(saver: Checkpointer) -> None:
    first, second = saver.put("t", {}), saver.put("t", {})
    saver.put("u", {}, id=first)
    saver.put_writes("t", first, [("c", 1)], task_id="x")
    for thread, id in (("t", second), ("u", first)):
        found = saver.get_tuple(thread, id)
        assert found is not None
        assert found.pending_writes == []


def test_a_deleted_thread_has_no_writes_left(saver: Checkpointer) -> None:
    saver.put("t", {}, id="1")
    saver.put_writes("t", "1", [("c", 1)], task_id="x")
    saver.delete_thread("t")
    saver.put("t", {}, id="1")
    found = saver.get_tuple("t")
    assert found is not None
    assert found.pending_writes == []


def test_bad_writes_are_refused_whole(saver: Checkpointer) -> None:
    id = saver.put("t", {})
    with pytest.raises(UnsupportedError):
        saver.put_writes("t", id, [("c", 1), ("d", object())], task_id="x")
    with pytest.raises(InvalidError, match="id of a task"):
        saver.put_writes("t", id, [("c", 1)], task_id="\ud800")
    with pytest.raises(InvalidError, match="path of a task"):
        saver.put_writes("t", id, [("c", 1)], task_id="x", task_path="x" * 2000)
    with pytest.raises(InvalidError, match="name of a channel must be a string, not int"):
        saver.put_writes("t", id, [(5, 1)], task_id="x")  # type: ignore[list-item]
    found = saver.get_tuple("t", id)
    assert found is not None
    assert found.pending_writes == []


def test_under_asyncio(url: str) -> None:
    async def go() -> None:
        async with holdfast.aopen(url) as store:
            saver = AsyncCheckpointer(store)
            first = await saver.put("t", {"n": 1})
            await asyncio.gather(*(saver.put_writes("t", first, [("c", n)], task_id=f"{n:02}") for n in range(64)))
            found = await saver.get_tuple("t")
            assert found is not None
            assert [write.value for write in found.pending_writes] == list(range(64))
            assert [each.id for each in await saver.list("t")] == [first]
            await saver.delete_thread("t")
            assert await saver.get_tuple("t") is None

    asyncio.run(go())


def test_pending_writes_are_there_after_reopening(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        Checkpointer(store).put_writes("t", "1", [("c", (1, 2))], task_id="x")
    with holdfast.open(url) as store:
        saver = Checkpointer(store)
        saver.put("t", {}, id="1")
        found = saver.get_tuple("t")
        assert found is not None
        assert list(map(astuple, found.pending_writes)) == [("x", "c", (1, 2))]


# LangGraph's forms -------------------------------------------------------------------------------------------------


def config(thread: str, namespace: str = "", **more: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, **more}}


def checkpoint(id: str, **channels: Any) -> dict[str, Any]:
    return {
        "v": 4,
        "id": id,
        "ts": "2026-11-18T10:00:00+00:00",
        "channel_values": channels,
        "channel_versions": dict.fromkeys(channels, 1),
        "versions_seen": {"node": {"start": 1}},
        "updated_channels": None,
    }


def test_a_config_names_a_thread_and_a_checkpoint(saver: Checkpointer, store: Store) -> None:
    first = saver.put(config("t"), checkpoint("1", messages=["hi"]), {"source": "input", "step": -1})
    assert first == config("t", checkpoint_id="1")
    second = saver.put(first, checkpoint("2", messages=["hi", "ho"]), {"source": "loop", "step": 0})
    saver.put_writes(second, [("messages", "more")], "task-1")
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert (found.config, found.parent_config) == (second, first)
    assert found.checkpoint == checkpoint("2", messages=["hi", "ho"])
    assert (found.state, found.metadata) == ({"messages": ["hi", "ho"]}, {"source": "loop", "step": 0})
    assert list(map(astuple, found.pending_writes)) == [("task-1", "messages", "more")]
    earlier = saver.get_tuple(first)
    assert earlier is not None
    assert (earlier.checkpoint, earlier.parent_config) == (checkpoint("1", messages=["hi"]), None)
    assert [each.config for each in saver.list(config("t"), metadata={"source": "loop"})] == [second]
    assert [each.id for each in saver.list("t")] == ["2", "1"], "the thread of this name has them"
    child = saver.put(config("t", "child"), checkpoint("3", n=1), {})
    assert child == config("t", "child", checkpoint_id="3")
    assert [each.config for each in saver.list(config("t", "child"))] == [child]
    assert store.thread("t").get().state["messages"] == ["hi", "ho"]


def test_a_config_takes_a_plain_state_too(saver: Checkpointer) -> None:
    first = saver.put(config("t"), {"n": 1}, {"m": 1})
    second = saver.put(first, {"n": 2})
    found = saver.get_tuple(second)
    assert found is not None
    assert (found.state, found.parent_config, found.checkpoint["channel_values"]) == ({"n": 2}, first, {"n": 2})
    assert saver.put("t", {"n": 3}) == saver.list("t")[0].id


def test_the_saver_of_langgraph_reads_what_it_saved_and_the_reverse(saver: Checkpointer, store: Store) -> None:
    from holdfast.langgraph import HoldfastSaver

    graph: Any = HoldfastSaver(store)
    made = saver.put(config("t"), checkpoint("1", a=1), {"source": "input", "step": -1})
    found = graph.get_tuple(config("t"))
    assert (found.config, found.checkpoint, found.metadata["source"]) == (made, checkpoint("1", a=1), "input")
    after = graph.put(made, checkpoint("2", a=2), {"source": "loop", "step": 0}, {"a": 1})
    mine = saver.get_tuple(after)
    assert mine is not None
    assert (mine.checkpoint, mine.parent_config) == (checkpoint("2", a=2), made)
    graph.put_writes(after, [("a", 3)], "task-1")
    assert [astuple(each) for each in saver.list(after)[0].pending_writes] == [("task-1", "a", 3)]


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.put({}, {"n": 1}),
        lambda saver: saver.put({"configurable": {}}, {"n": 1}),
        lambda saver: saver.put(config("t"), {"n": 1}, parent_id="x"),
        lambda saver: saver.put(config("t"), [1]),
        lambda saver: saver.put_writes(config("t"), [("a", 1)], "task"),
        lambda saver: saver.put_writes(config("t", checkpoint_id="1"), [("a", 1)]),
        lambda saver: saver.put_writes("t", "1", [("a", 1)]),
        lambda saver: saver.put_writes("t", [("a", 1)], "task"),
    ],
)
def test_forms_that_are_none(saver: Checkpointer, store: Store, call: Any) -> None:
    with pytest.raises(InvalidError):
        call(saver)
    assert list(store.threads()) == []


def test_a_base_class_for_type_hints(saver: Checkpointer) -> None:
    def count(given: BaseCheckpointer) -> int:
        given.put("t", {"n": 1})
        return len(given.list("t"))

    assert count(saver) == 1
    assert isinstance(saver, BaseCheckpointer)
    with pytest.raises(TypeError, match="abstract"):
        BaseCheckpointer()  # type: ignore[abstract]


def test_configs_of_an_identity_and_asyncio(store: Store, url: str) -> None:
    own = Checkpointer(store.as_identity("agent:a"))
    made = own.put(config("mine"), checkpoint("1", n=1), {})
    assert own.get_tuple(made) is not None
    with pytest.raises(DeniedError):
        Checkpointer(store.as_identity("agent:b")).get_tuple(made)

    async def work() -> None:
        async with await holdfast.aopen("memory://") as other:
            saver = AsyncCheckpointer(other)
            first = await saver.put(config("t"), checkpoint("1", n=1), {})
            found = await saver.get_tuple(first)
            assert found is not None
            assert found.checkpoint == checkpoint("1", n=1)

    asyncio.run(work())
