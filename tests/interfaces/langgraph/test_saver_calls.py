"""What a `HoldfastSaver` does when it is called by hand, sync and async."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, UnavailableError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from holdfast.store.checkpoint_store import BOOKKEEPING as KEPT
from tests.engine.lines import store_on
from tests.interfaces.langgraph.calls import Caller, made, parent_of, write
from tests.interfaces.langgraph.savers import HOLDFAST, holdfast_saver
from tests.interfaces.langgraph.sessions import on
from tests.support.counting import CountingBackend
from tests.support.nightly import mostly_nightly

CALLS = [f"{kind}-{how}" for kind in HOLDFAST for how in ("sync", "async")]


@pytest.fixture(params=mostly_nightly(CALLS, daily=["memory-async", "sqlite-sync"]))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Caller]:
    kind, how = request.param.split("-")
    with holdfast_saver(kind, tmp_path) as opened:
        yield Caller(opened, how == "async")


# Opening and closing ----------------------------------------------------------------------------------------------


def test_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with HoldfastSaver.from_conn_string(url) as saver:
        Caller(saver, False).put("1", {"x": 1})
    with pytest.raises(UnavailableError):
        saver.get_tuple(on("t"))

    async def again() -> Any:
        async with HoldfastSaver.from_conn_string(url) as other:
            found = await other.aget_tuple(on("t"))
            assert found is not None
        with pytest.raises(UnavailableError):
            await other.aget_tuple(on("t"))
        return found.checkpoint["channel_values"]

    assert asyncio.run(again()) == {"x": 1}


def test_closed_by_hand_and_twice(tmp_path: Path) -> None:
    saver = HoldfastSaver.from_conn_string(f"sqlite:///{tmp_path}/s.db")
    saver.close()
    saver.close()
    with pytest.raises(UnavailableError):
        saver.get_tuple(on("t"))
    other = HoldfastSaver.from_conn_string("memory://")

    async def close() -> None:
        await other.aclose()
        await other.aclose()

    asyncio.run(close())
    with pytest.raises(UnavailableError):
        other.get_tuple(on("t"))


def test_a_store_that_was_open_stays_open() -> None:
    with holdfast.open("memory://") as store:
        with HoldfastSaver(store) as saver:
            Caller(saver, False).put("1", {"x": 1})
        saver.close()
        asyncio.run(saver.aclose())
        assert store.thread("t").get().state["x"] == 1


def test_an_async_store() -> None:
    async def go() -> None:
        async with holdfast.aopen("memory://") as store:
            saver = HoldfastSaver(store)
            await saver.aput(on("t"), made("1", {"x": 1}), {"source": "loop"}, {})
            assert saver.get_tuple(on("t")) == await saver.aget_tuple(on("t"))
            assert (await store.thread("t").get()).state["x"] == 1
            await saver.aclose()
            assert (await store.thread("t").get()).id == "1"

    asyncio.run(go())


def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with (
        HoldfastSaver.from_conn_string(url, tenant="a") as one,
        HoldfastSaver.from_conn_string(url, tenant="b") as other,
    ):
        Caller(one, False).put("1")
        assert list(other.list(None)) == []
        other.delete_thread("t")
        assert Caller(one, False).ids(None) == ["1"]


# Names ------------------------------------------------------------------------------------------------------------

names = st.text(st.sampled_from("ab␟:|é\0")) | st.text()
namespaces = names.filter(lambda name: not name.startswith("␟"))


@given(thread=names, namespace=namespaces)
def test_names_round_trip(thread: str, namespace: str) -> None:
    assert split_name(thread_name(thread, namespace)) == (thread, namespace)


@given(one=st.tuples(names, namespaces), other=st.tuples(names, namespaces))
def test_no_two_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (thread_name(*one) == thread_name(*other)) == (one == other)
    assert thread_name(*one), "a store's thread has a name"


def test_a_thread_of_the_store_has_the_name_of_the_thread() -> None:
    assert thread_name("chat-1") == "chat-1"
    assert thread_name("chat-1", "child:1") == "chat-1␟child:1"
    with pytest.raises(InvalidError, match="does not start with"):
        thread_name("a", "␟b")


def test_thread_ids_of_all_kinds(saver: Caller) -> None:
    threads: list[Any] = ["", "␟", "␟␟", "a", "ab", "a␟", "a␟b", "a␟␟b", "␟a", " ", "é", "\0", "日本", "😀", 7]
    threads.append(uuid.UUID(int=5))
    for number, thread in enumerate(threads):
        for namespace in ("", "b", "b␟c"):
            config = saver.put(f"{number:02}", {"own": [number, namespace]}, thread=thread, namespace=namespace)
            assert config["configurable"]["thread_id"] == thread
    for number, thread in enumerate(threads):
        for namespace in ("", "b", "b␟c"):
            assert saver.values(None, thread, namespace) == {"own": [number, namespace]}
        found = saver.listed(on(thread))
        assert [each.checkpoint["channel_values"]["own"][0] for each in found] == [number] * 3
        assert {each.config["configurable"]["thread_id"] for each in found} == {str(thread)}
    for number, thread in enumerate(threads):
        saver.call("delete_thread", thread)
        assert saver.ids(on(thread)) == []
        assert len(saver.listed(None)) == 3 * (len(threads) - number - 1)


def test_deleting_leaves_neighbours(saver: Caller) -> None:
    for thread in ("a", "ab", "a␟x", "a␟", "b"):
        for namespace in ("", "x", "x:1|y"):
            saver.put("1", thread=thread, namespace=namespace)
    saver.call("delete_thread", "a")
    left = {each.config["configurable"]["thread_id"] for each in saver.listed(None)}
    assert left == {"ab", "a␟x", "a␟", "b"}
    assert len(saver.listed(None)) == 12
    saver.call("delete_thread", "a")
    assert len(saver.listed(None)) == 12


# Wrong use --------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "no configurable": (lambda s: s.call("get_tuple", {"tags": []}), "has no 'configurable'"),
    "no config": (lambda s: s.call("get_tuple", None), "has no 'configurable'"),
    "configurable of another kind": (lambda s: s.call("get_tuple", {"configurable": 1}), "has no 'configurable'"),
    "no thread": (lambda s: s.call("put", {"configurable": {}}, made("1"), {}, {}), "names no thread"),
    "no thread to list": (lambda s: s.listed({"configurable": {"checkpoint_id": "1"}}), "names no thread"),
    "writes after nothing": (
        lambda s: s.call("put_writes", on("t"), [("a", 1)], "task"),
        "does not name the checkpoint",
    ),
    "no task": (lambda s: s.call("put_writes", on("t", checkpoint_id="1"), [("a", 1)], ""), "a task must not be empty"),
    "own name": (lambda s: s.put("1", {KEPT: 1}), "is reserved"),
    "strategy": (lambda s: s.call("prune", ["t"], strategy="some"), "'keep_latest' or 'delete', not 'some'"),
    "surrogates in a thread": (lambda s: s.put("1", thread="\ud800"), "lone surrogates"),
    "surrogates in a namespace": (lambda s: s.put("1", namespace="\ud800"), "lone surrogates"),
    "surrogates in an id": (lambda s: s.put("\ud800"), "the id of a checkpoint is not text"),
    "surrogates in a parent": (lambda s: s.put("1", parent="\ud800"), "the id of a checkpoint is not text"),
    "surrogates in a task": (
        lambda s: s.call("put_writes", on("t", checkpoint_id="1"), [("a", 1)], "\ud800"),
        "the id of a task is not text",
    ),
    "an id of another kind": (lambda s: s.put(7), "must be a string, not int"),
    "no id": (lambda s: s.put(""), "the id of a checkpoint must not be empty"),
    "an id that is a branch": (lambda s: s.put("main"), "the id of a checkpoint cannot be 'main'"),
    "an id that is the latest": (lambda s: s.put("HEAD"), "the id of a checkpoint cannot be 'HEAD'"),
    "an id that is the latest, in short": (lambda s: s.put("@"), "the id of a checkpoint cannot be '@'"),
    "long thread": (lambda s: s.put("1", thread="x" * 1025), "at most 1024 bytes of UTF-8, and this one has 1025"),
    "long id": (lambda s: s.put("é" * 513), "at most 1024 bytes of UTF-8, and this one has 1026"),
    "long thread and namespace": (lambda s: s.put("1", thread="x" * 512, namespace="y" * 512), "at most 1024 bytes"),
    "a channel's name": (lambda s: s.put("1", {1: 1}, versions={}), "the name of a channel must be a string"),
    "a namespace that starts with the mark": (lambda s: s.put("1", namespace="␟x"), "does not start with"),
}


def test_wrong_use_is_told(saver: Caller, subtests: pytest.Subtests) -> None:
    for what, (wrong, message) in WRONG.items():
        with subtests.test(what):
            with pytest.raises(InvalidError, match=message):
                wrong(saver)
            assert saver.listed(None) == []


def test_what_cannot_be_saved_is_named(saver: Caller) -> None:
    with pytest.raises(UnsupportedError, match=r"at channel\.a\[1\]"):
        saver.put("1", {"fine": 1, "channel": {"a": [1, lambda: 1]}})
    with pytest.raises(UnsupportedError, match=r"\.a\[0\]"):
        saver.call("put_writes", on("t", checkpoint_id="1"), [("x", 1), ("y", {"a": [lambda: 1]})], "task")
    with pytest.raises(UnsupportedError, match="at more"):
        saver.put("1", metadata={"source": "loop", "more": lambda: 1})
    assert saver.listed(None) == []


def test_odd_texts_are_kept(saver: Caller) -> None:
    saver.put("1", {"\ud800": "\udfff"}, metadata={"source": "loop", "odd": "\ud800"})
    assert saver.values() == {"\ud800": "\udfff"}
    assert saver.ids(on("t"), filter={"odd": "\ud800"}) == ["1"]
    saver.call("delete_for_runs", ["\ud800", "another"])
    assert saver.ids(on("t")) == ["1"]


# Saving -----------------------------------------------------------------------------------------------------------


def test_a_parent_that_is_not_there(saver: Caller) -> None:
    saver.put("5", {"x": 5}, parent="4")
    assert parent_of(saver.get()) == "4"
    saver.put("6", {"x": 6}, parent="5")
    saver.put("7", {"x": 7}, parent="nowhere")
    assert [(each.checkpoint["id"], parent_of(each)) for each in saver.listed(on("t"))] == [
        ("7", "nowhere"),
        ("6", "5"),
        ("5", "4"),
    ]
    assert [each.checkpoint["channel_values"] for each in saver.listed(on("t"))] == [{"x": 7}, {"x": 6}, {"x": 5}]


def test_a_channel_without_a_new_version_is_the_parents(saver: Caller) -> None:
    filled = ["one"]
    saver.put("1", {"topic": filled, "n": 1}, versions={"topic": 1, "n": 1})
    filled.append("two")  # as LangGraph's Topic does, for the step after the next
    saver.put("2", {"topic": filled, "n": 2}, versions={"topic": 1, "n": 2}, parent="1", new={"n": 2})
    assert saver.values("2") == {"topic": ["one"], "n": 2}
    saver.put("3", {"topic": filled, "n": 2}, versions={"topic": 2, "n": 2}, parent="2", new={"topic": 2})
    assert saver.values("3") == {"topic": ["one", "two"], "n": 2}
    saver.put("4", {"topic": ["other"], "n": 3}, versions={"topic": 3, "n": 3}, parent="3", new={})
    assert saver.values("4") == {"topic": ["other"], "n": 3}, "a version that differs from the parent's is new"
    saver.put("5", {"topic": filled}, versions={"topic": 1}, parent="gone", new={})
    assert saver.values("5") == {"topic": ["one", "two"]}, "there is no parent to have it from"


def test_the_same_id_again(saver: Caller) -> None:
    saver.put("1", {"x": 1})
    saver.put("2", {"x": 2}, parent="1")
    saver.put("3", {"x": 3}, parent="2")
    saver.put("2", {"x": "other"}, parent="1")
    assert saver.values("2") == {"x": "other"}
    assert parent_of(saver.get("2")) == "1"
    saver.put("3", {"x": "moved"}, parent="1")
    assert (saver.values("3"), parent_of(saver.get("3"))) == ({"x": "moved"}, "1")
    saver.put("3", {"x": "rootless"})
    assert (saver.values("3"), parent_of(saver.get("3"))) == ({"x": "rootless"}, None)
    saver.put("1", {"x": "new"}, parent="0")
    assert (saver.values("1"), parent_of(saver.get("1"))) == ({"x": "new"}, "0")
    assert saver.ids(on("t")) == ["3", "2", "1"]
    saver.put("3", {"x": "rootless"})
    assert saver.ids(on("t")) == ["3", "2", "1"]


def test_two_writers_on_one_parent(saver: Caller) -> None:
    saver.put("1", {"x": 1})
    saver.put("2", {"x": 2}, parent="1")
    saver.put("3", {"x": 3}, parent="1")
    saver.put("4", {"x": 4}, parent="2")
    assert [(each.checkpoint["id"], parent_of(each)) for each in saver.listed(on("t"))] == [
        ("4", "2"),
        ("3", "1"),
        ("2", "1"),
        ("1", None),
    ]
    assert saver.values("3") == {"x": 3}


def test_all_that_a_checkpoint_holds_comes_back(saver: Caller) -> None:
    whole = made(
        "1",
        {"x": (1, {2})},
        {"x": 3, "not saved": 1.5, "version of version of ": "0003.1"},
        versions_seen={"node": {"x": 2}, "seen by ": {}, "": {"a": "b"}},
        updated_channels=["x"],
        of_later_releases={"any": ["thing"]},
    )
    saver.call("put", on("t"), whole, {"source": "loop", "step": 1}, {})
    assert saver.get().checkpoint == whole
    assert saver.get("1").checkpoint == whole


def test_versions(saver: Caller) -> None:
    next_version = saver.saver.get_next_version
    assert [next_version(version, None) for version in (None, 1, 1.5)] == [1, 2, 2.5]
    text = next_version(f"{7:032}.0123456789", None)
    assert text > f"{7:032}.9"
    assert next_version(text, None) > text
    assert int(text.split(".")[0]) == 8


# Writes -----------------------------------------------------------------------------------------------------------


def test_marks_are_overwritten_and_others_are_not(saver: Caller) -> None:
    saver.put("1")
    write(saver, [("a", 1), ("b", 1)])
    write(saver, [("a", 2)])
    for value in (1, 2):
        for channel in ("__resume__", "__error__", "__interrupt__", "__scheduled__"):
            write(saver, [(channel, value)])
    write(saver, [])
    found = {channel: value for _, channel, value in saver.get().pending_writes or ()}
    assert found == {
        "a": 1,
        "b": 1,
        "__resume__": 2,
        "__error__": 2,
        "__interrupt__": 2,
        "__scheduled__": 2,
    }


def test_writes_before_their_checkpoint(saver: Caller) -> None:
    write(saver, [("a", [1, (2,)])], id="2")
    assert saver.call("get_tuple", on("t")) is None
    assert saver.listed(None) == []
    saver.put("1")
    assert saver.get().pending_writes == []
    saver.put("2", parent="1")
    assert saver.get().pending_writes == [("task", "a", [1, (2,)])]


def test_writes_in_order(saver: Caller) -> None:
    saver.put("1")
    for task, path in (("z", "p1"), ("a", "p2"), ("b", "p1"), ("c", "")):
        write(saver, [("x", f"{task}0"), ("y", f"{task}1"), ("__error__", ValueError(task))], task, path)
    told = [(task, channel, value) for task, channel, value in saver.get().pending_writes or ()]
    assert told == [
        (task, channel, value)
        for task in ("c", "b", "z", "a")
        for channel, value in (("__error__", f"ValueError('{task}')"), ("x", f"{task}0"), ("y", f"{task}1"))
    ]
    assert [each.pending_writes for each in saver.listed(on("t"))] == [told]


# Listing ----------------------------------------------------------------------------------------------------------


def test_list(saver: Caller) -> None:
    for n in range(1, 10):
        namespace = "" if n % 3 else "child:1"
        saver.put(str(n), {"n": n}, namespace=namespace, metadata={"source": "loop", "step": n, "even": n % 2 == 0})
    saver.put("55", thread="u", metadata={"source": "input", "step": 5, "nested": {"a": [1]}})
    whole, root = on("t"), on("t", checkpoint_ns="")
    assert saver.ids(None) == ["9", "8", "7", "6", "55", "5", "4", "3", "2", "1"]
    assert saver.ids({}) == saver.ids(None)
    assert saver.ids(whole) == ["9", "8", "7", "6", "5", "4", "3", "2", "1"]
    assert saver.ids(root) == ["8", "7", "5", "4", "2", "1"]
    assert saver.ids(on("t", checkpoint_ns="child:1")) == ["9", "6", "3"]
    assert saver.ids(on("t", checkpoint_ns="none")) == saver.ids(on("nobody")) == []
    for limit in (0, 1, 4, 100):
        assert saver.ids(whole, limit=limit) == saver.ids(whole)[:limit]
        assert saver.ids(None, limit=limit) == saver.ids(None)[:limit]
    assert saver.ids(whole, before=on("t", checkpoint_id="4")) == ["3", "2", "1"]
    assert saver.ids(None, before=on("x", checkpoint_id="55"), limit=2) == ["5", "4"]
    assert saver.ids(whole, before=on("t")) == saver.ids(whole)
    assert saver.ids(whole, filter={"even": True}) == ["8", "6", "4", "2"]
    assert saver.ids(whole, filter={"even": True}, limit=1, before=on("t", checkpoint_id="6")) == ["4"]
    assert saver.ids(None, filter={"nested": {"a": [1]}}) == saver.ids(None, filter={"source": "input"}) == ["55"]
    assert saver.ids(None, filter={"step": 5}) == ["55", "5"]
    assert saver.ids(None, filter={"missing": None, "step": 1}) == ["1"]
    assert saver.ids(None, filter={"step": -1}) == []
    assert saver.ids(on("t", checkpoint_id="6")) == ["6"]
    assert saver.ids(on("t", checkpoint_ns="", checkpoint_id="6")) == []
    assert saver.ids(on("t", checkpoint_id="6"), before=on("t", checkpoint_id="6")) == []
    assert saver.ids(on("t", checkpoint_id="6"), before=on("t", checkpoint_id="7")) == ["6"]
    assert saver.ids(on("t", checkpoint_id="6"), limit=0) == []


@pytest.mark.parametrize("asynchronous", mostly_nightly([False, True], daily=[False]), ids=["sync", "async"])
def test_many_threads_take_few_reads(asynchronous: bool) -> None:
    counting = CountingBackend(run(MemoryBackend.open("memory://")))
    saver = Caller(HoldfastSaver(store_on(counting)), asynchronous)
    for n in range(300):
        for turn in range(2):
            saver.put(f"{n * 7 % 300:03}-{turn}", parent=f"{n * 7 % 300:03}-0" if turn else None, thread=f"thread {n}")
    expected = [f"{n:03}-{turn}" for n in range(299, -1, -1) for turn in (1, 0)]
    counting.reset()
    assert saver.ids(None, limit=10) == expected[:10]
    assert counting.reads <= 60
    assert counting.queries <= 500
    counting.reset()
    assert saver.ids(None, limit=1, filter={"step": 1}) == expected[:1]
    assert counting.reads <= 20
    counting.reset()
    assert saver.ids(None) == expected
    assert counting.reads <= 8 * len(expected)


# Copying, pruning -------------------------------------------------------------------------------------------------


def test_copies(saver: Caller) -> None:
    for namespace in ("", "child:1"):
        saver.put("1", {"x": namespace}, namespace=namespace)
        saver.put("2", {"x": "two"}, parent="1", namespace=namespace)
    write(saver, [("a", 1)], id="2")
    saver.put("1", thread="taken")
    saver.put("1", thread="below", namespace="child")
    for target in ("taken", "below", "t"):
        with pytest.raises(ConflictError, match="already"):
            saver.call("copy_thread", "t", target)
    saver.call("copy_thread", "nobody", "nothing")
    assert saver.ids(on("nothing")) == []
    saver.call("copy_thread", "t", 7)
    assert [each._replace(config={}, parent_config={}) for each in saver.listed(on("7"))] == [
        each._replace(config={}, parent_config={}) for each in saver.listed(on("t"))
    ]
    assert parent_of(saver.get("2", 7, "child:1")) == "1"


def test_pruning(saver: Caller) -> None:
    for n in range(1, 6):
        for namespace in ("", "child"):
            saver.put(str(n), {"n": n}, parent=str(n - 1) if n > 1 else None, namespace=namespace)
    saver.put("1", thread="other")
    saver.saver.store._handle.engine.context.cache.clear()
    lines, line = saver.saver.store._handle.engine.lines, Line(saver.saver.store._handle.tenant, "t")
    run(lines.set_ref(line, "tag", "best", "2"))
    run(lines.set_ref(line, "label", "good", "3"))
    saver.call("prune", [])
    saver.call("prune", ["nobody", "t"])
    assert saver.ids(on("t", checkpoint_ns="")) == ["5", "3", "2"]
    assert saver.ids(on("t", checkpoint_ns="child")) == ["5"]
    saver.put("6", {"n": 6}, parent="4")
    assert parent_of(saver.get("6")) == "4"
    saver.call("prune", ["t"], strategy="delete")
    assert saver.ids(None) == ["1"]


def test_runs_are_deleted(saver: Caller) -> None:
    for n in range(1, 5):
        metadata = {"source": "loop", "run_id": f"run {n % 2}", "says": "run 1"}
        saver.put(str(n), {"n": n}, parent=str(n - 1) if n > 1 else None, metadata=metadata)
    saver.call("delete_for_runs", [])
    saver.call("delete_for_runs", ["run 7"])
    assert saver.ids(on("t")) == ["4", "3", "2", "1"]
    saver.call("delete_for_runs", ["run 1"])
    assert saver.ids(on("t")) == ["4", "2"]
    assert saver.values("4") == {"n": 4}
    assert saver.call("get_tuple", on("t", checkpoint_id="3")) is None
