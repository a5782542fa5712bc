"""Update operators on threads: append, increment, add to a set, maximum; alone, together, and beside other features."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

import holdfast
from holdfast import Store, replay
from holdfast.backends.interface import Get, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import NODES, OBJECTS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, QuotaError, VetoError
from holdfast.schemas import Migration, Schema, SchemaSet, rename
from holdfast.state import AddToSet, Append, Increment, Max
from tests.interfaces.langgraph.test_replay import GRAPH, record
from tests.security.sensitive.samples import github_token
from tests.security.sensitive.test_protection import KEYS
from tests.servers.places import place
from tests.store.stores import aover, over
from tests.support.cases import case
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import fewer_examples, mostly_nightly

ASK = {"role": "user", "content": "Where is my parcel?"}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "On its way."}]}


# What they do -------------------------------------------------------------------------------------------------------


def test_items_are_appended_to_a_list(store: Store) -> None:
    thread = store.thread("chat")
    first = thread.append("messages", ASK, ANSWER, metadata={"by": "web"}, tag="asked")
    assert (first.kind, first.step, first.metadata) == ("update", 0, {"by": "web"})
    second = thread.append("messages", HumanMessage("Thanks"), (1, 2))
    assert thread.get().state == {"messages": [ASK, ANSWER, HumanMessage("Thanks"), (1, 2)]}
    assert thread.get("asked").state == {"messages": [ASK, ANSWER]}
    assert (second.parent, thread.get().id) == (first.id, second.id)
    assert [change.writer.id for change in thread.history("messages")] == [second.id, first.id]
    assert thread.blame("messages[0]")[0].writer.id == first.id
    assert thread.blame("messages[-1]")[0].writer.id == second.id


def test_the_other_operators(store: Store) -> None:
    thread = store.thread("t")
    thread.put({"cost": 1.5, "plan": {"done": 2}, "seen": {"a"}})
    thread.increment("cost", 0.25)
    thread.increment("plan.done")
    thread.increment(("plan", "new"), 3)
    thread.add_to_set("seen", "a", "b")
    thread.add_to_set("tags", "x")
    at = datetime(2026, 11, 1, tzinfo=UTC)
    thread.max("last", at)
    thread.max("last", datetime(2025, 1, 1, tzinfo=UTC))
    thread.append(["plan", "steps"], "search")  # a path as JSON has it
    assert thread.get().state == {
        "cost": 1.75,
        "plan": {"done": 3, "new": 3, "steps": ["search"]},
        "seen": {"a", "b"},
        "tags": {"x"},
        "last": at,
    }
    together: dict[Any, Any] = {
        "cost": Increment(1),
        "plan.steps": Append("read"),
        "seen": AddToSet("c"),
        "goal": "a",
        "last": Max(at),
    }
    thread.update(together, remove=["tags"])
    state = thread.get().state
    assert (state["cost"], state["plan"]["steps"], state["seen"]) == (2.75, ["search", "read"], {"a", "b", "c"})
    assert (state["goal"], "tags" in state) == ("a", False)


WRONG: list[tuple[str, Callable[[Any], object], str]] = [
    ("append to a number", lambda thread: thread.append("n", 1), "items can be appended only to a list"),
    ("append to a dict", lambda thread: thread.append("d", 1), "items can be appended only to a list"),
    ("append to a text", lambda thread: thread.append("d.text", 1), "items can be appended only to a list"),
    ("append nothing", lambda thread: thread.append("list"), "at least one item must be appended"),
    ("increment a list", lambda thread: thread.increment("list"), "only a number can be incremented"),
    ("increment by a text", lambda thread: thread.increment("n", "1"), "only be incremented by a finite number"),
    ("add to a list", lambda thread: thread.add_to_set("list", 1), "items can be added only to a set"),
    ("a list in a set", lambda thread: thread.add_to_set("set", [1]), "an item cannot be in a set"),
    ("the maximum of a list", lambda thread: thread.max("list", 1), "only numbers, strings and times"),
    ("in an item", lambda thread: thread.increment("list[0].n"), "not inside an item of a list"),
    ("a range", lambda thread: thread.append("list[0:1]", 1), "cannot end in a range of items"),
    ("no path", lambda thread: thread.append("", 1), "a path cannot be empty"),
    ("what migrations keep", lambda thread: thread.append("__aside__", 1), "is reserved"),
    ("an object", lambda thread: thread.append("list", object()), r"list\[0\]|object"),
]


def test_what_does_not_go_together_is_refused(store: Store, subtests: pytest.Subtests) -> None:
    thread = store.thread("t")
    state = {"n": 1, "d": {"text": "x"}, "list": [{"n": 1}], "set": {1}}
    thread.put(state)
    for name, act, message in WRONG:
        with case(subtests, name), pytest.raises(holdfast.errors.HoldfastError, match=message):
            act(thread)
    assert thread.get().state == state
    assert len(thread.log()) == 1


def test_a_value_that_was_removed_or_replaced_starts_again(store: Store) -> None:
    """The last change of the channel says whether it is a list, also after a fold."""
    thread = store.thread("t")
    for number in range(40):
        thread.append("a", number)
    thread.update({}, remove=["a"])
    thread.append("a", "first")
    assert thread.get().state == {"a": ["first"]}
    thread.update({"a": "text"})
    with pytest.raises(InvalidError, match="items can be appended only to a list"):
        thread.append("a", 1)
    thread.update({"a": {"b": []}})
    with pytest.raises(InvalidError, match="items can be appended only to a list"):
        thread.append("a", 1)
    thread.append("a.b", 1)
    thread.update({"a": [1]})
    thread.append("a", 2)
    thread.update({"a[0]": {"x": "y" * 50_000}})
    thread.append("a", {"x": "z" * 200_000})  # each a large value
    thread.append("a", 3)
    assert [each if isinstance(each, int) else len(each["x"]) for each in thread.get().state["a"]] == [
        50_000,
        2,
        200_000,
        3,
    ]
    assert store.maintenance.verify().ok


items = st.one_of(
    st.integers(0, 3), st.text("ab", max_size=2), st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))
)
places = st.sampled_from(["a", "b", "d.a", "d.b"])
actions = st.one_of(
    st.tuples(st.just("append"), places, st.lists(items, min_size=1, max_size=3)),
    st.tuples(st.just("increment"), places, st.integers(-3, 3)),
    st.tuples(st.just("set"), places, st.one_of(items, st.lists(items, max_size=2))),
    st.tuples(st.just("remove"), places, st.none()),
    st.tuples(st.just("put"), st.none(), st.dictionaries(st.sampled_from("ab"), st.lists(items, max_size=20))),
    st.tuples(st.just("forget"), st.none(), st.none()),
    st.tuples(st.just("read"), st.none(), st.none()),
)


def place_of(state: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *stem, last = path.split(".")
    for key in stem:
        state = state.setdefault(key, {})
    return state, last


def model(state: dict[str, Any], what: str, path: str, value: Any) -> None:
    """What an action does to a state, in plain Python. `TypeError` if it cannot be."""
    if what == "put":
        state.clear()
        state.update(copy.deepcopy(value))
        return
    if what == "remove":
        inside = state.get("d", {}) if path.startswith("d.") else state
        del inside[path[-1]]
        return
    inside, key = place_of(state, path)
    if what == "append":
        before = inside.get(key, [])
        if type(before) is not list:
            raise TypeError(path)
        inside[key] = before + value
    elif what == "increment":
        before = inside.get(key, 0)
        if type(before) is not int:
            raise TypeError(path)
        inside[key] = before + value
    else:
        inside[key] = copy.deepcopy(value)


@fewer_examples()
@given(st.lists(actions, max_size=30), st.sampled_from([2, 3, 32]))
def test_a_thread_is_what_python_says(todo: list[tuple[str, Any, Any]], fold_every: int) -> None:
    backend = MemoryBackend()
    store, expected = over(backend, fold_every=fold_every), dict[str, Any]()
    store.thread("t").put({})
    for what, path, value in todo:
        thread = store.thread("t")
        if what in ("forget", "read"):
            if what == "forget":
                store = over(backend, fold_every=fold_every)
            assert store.thread("t").get().state == expected
            continue
        wanted = copy.deepcopy(expected)
        try:
            model(wanted, what, path, value)
        except (TypeError, KeyError):
            wanted = expected
        try:
            if what == "put":
                thread.put(value)
            elif what == "append":
                thread.append(path, *value)
            elif what == "increment":
                thread.increment(path, value)
            elif what == "set":
                thread.update({path: value})
            else:
                thread.update({}, remove=[path])
        except (InvalidError, NotFoundError):
            assert wanted == expected
        expected = wanted
    assert store.thread("t").get().state == expected
    assert over(backend).thread("t").get().state == expected
    assert store.maintenance.verify().ok


def test_the_caller_may_change_what_it_appended(store: Store) -> None:
    message = {"role": "user", "content": ["a"]}
    thread = store.thread("t")
    thread.append("messages", message)
    message["content"].append("b")  # type: ignore[attr-defined]
    thread.append("messages", message)
    read = thread.get().state["messages"]
    assert [each["content"] for each in read] == [["a"], ["a", "b"]]
    read[0]["content"].append("mine")
    assert thread.get().state["messages"][0]["content"] == ["a"]


def test_plain_messages_that_were_changed_in_place_are_saved(store: Store) -> None:
    """`put` reuses the bytes of messages that are unchanged, and only of those."""
    thread = store.thread("t")
    chat: list[Any] = [{"role": "user", "content": [{"text": f"message {number}"}]} for number in range(40)]
    thread.put({"messages": chat})
    saved = [copy.deepcopy(chat)]

    def save() -> None:
        thread.put({"messages": chat})
        saved.append(copy.deepcopy(chat))

    chat.append({"role": "assistant", "content": ""})
    for word in ("It ", "is ", "on ", "its ", "way."):  # as a stream arrives
        chat[-1]["content"] += word
        save()
    chat[3]["content"][0]["text"] = "edited"
    save()
    chat[5]["name"] = chat[5].pop("role")
    save()
    del chat[0]
    save()
    chat[7] = dict(chat[7])
    save()
    log = list(thread.log())[::-1]
    assert [thread.get(each).state["messages"] for each in log] == saved


# What they cost -----------------------------------------------------------------------------------------------------


class CountingBackend(InterferingBackend):
    """Counts the rows of states that are read."""

    rows = 0

    async def read(self, queries: Any) -> Any:
        answers = await super().read(queries)
        for query, rows in zip(queries, answers, strict=True):
            if isinstance(query, Get | Scan) and (query.space is NODES or query.space is OBJECTS):
                self.rows += len(rows)
        return answers


def appended_bytes(thread: Any, count: int) -> int:
    before = thread.info().bytes
    for number in range(count):
        thread.append("messages", {"role": "user", "content": f"question {number:06}"})
    return int(thread.info().bytes - before)


def test_the_cost_does_not_grow_with_the_chat(store: Store) -> None:
    short, long = store.thread("short"), store.thread("long")
    short.put({"messages": []})
    long.put({"messages": [{"role": "user", "content": f"message {number}"} for number in range(20_000)]})
    for thread in (short, long):
        appended_bytes(thread, 64)
    assert appended_bytes(long, 64) < 2 * appended_bytes(short, 64) + 20_000


def test_a_long_chat_is_not_read_to_append_to_it() -> None:
    memory = MemoryBackend()
    chat = [{"role": "user", "content": f"message {number} {'x' * 300}"} for number in range(3000)]
    first = over(memory)
    for start in range(0, 3000, 60):
        first.thread("t").append("messages", *chat[start : start + 60])
    backend = CountingBackend(memory)
    store = over(backend)
    for number in range(40):
        store.thread("t").append("messages", {"role": "user", "content": str(number)})
    few = backend.rows
    assert len(over(backend).thread("t").get().state["messages"]) == 3040
    assert few < 20 < (backend.rows - few)


# Several writers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "processes", "count"),
    mostly_nightly([("sqlite", 3, 15), ("postgres", 3, 15), ("file", 3, 10)], daily=[("sqlite", 3, 15)]),
)
def test_what_several_processes_append_is_all_there(kind: str, processes: int, count: int, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url) as store:
        thread = store.thread("t")
        thread.put({"messages": [], "n": 0})
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "tests.state.state_worker", url, "append"]
        with ExitStack() as stack:
            workers = [
                stack.enter_context(subprocess.Popen([*command, f"p{n}", str(count)], stdin=pipe, stdout=pipe))
                for n in range(processes)
            ]
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"ready\n"
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"go\n")
                worker.stdin.flush()
            for number in range(count):  # and this process
                thread.append("messages", ["here", number])
        assert [worker.returncode for worker in workers] == [0] * processes
        state = thread.get().state
        assert state["n"] == processes * count
        names = ["here", *(f"p{n}" for n in range(processes))]
        assert sorted(state["messages"]) == sorted([name, number] for name in names for number in range(count))
        for name in names:  # each in the order of its writer
            assert [number for who, number in state["messages"] if who == name] == list(range(count))
        assert thread.info().branches == 1
        assert store.maintenance.verify().ok


def test_a_change_by_others_at_any_moment_is_kept() -> None:
    def scenario(moment: Moment) -> None:
        memory = MemoryBackend()
        over(memory).thread("t").put({"messages": ["first"], "n": 1})
        backend = InterferingBackend(memory)
        store = over(backend)

        def act() -> None:
            over(memory).thread("t").append("messages", "theirs")
            over(memory).thread("t").increment("n")

        with moment.interfere(backend, act):
            store.thread("t").append("messages", "mine")
            store.thread("t").increment("n")
        state = over(memory).thread("t").get().state
        assert sorted(state["messages"]) == ["first", "mine", *(["theirs"] * moment.came)]
        assert state["n"] == 2 + moment.came

    at_every_moment(scenario)


def test_tasks_of_an_event_loop() -> None:
    async def work() -> dict[str, Any]:
        store = aover(MemoryBackend())
        thread = store.thread("t")
        turns = (thread.append("messages", number) for number in range(50))
        await asyncio.gather(*turns, *(thread.increment("n") for _ in range(20)))
        state = (await thread.get()).state
        await store.close()
        return dict(state)

    state = asyncio.run(work())
    assert (sorted(state["messages"]), state["n"]) == (list(range(50)), 20)


# Branches and merges ------------------------------------------------------------------------------------------------


def test_a_merge_has_what_both_branches_did(store: Store) -> None:
    thread = store.thread("t")
    base = thread.put({"messages": ["hi"], "n": 1, "seen": {1}, "top": 3})
    thread.fork("side", at=base)
    for number in range(40):  # folds in between
        thread.append("messages", f"side {number}", branch="side")
    thread.increment("n", branch="side")
    thread.add_to_set("seen", 2, branch="side")
    thread.max("top", 9, branch="side")
    thread.append("messages", "main")
    thread.increment("n", 5)
    thread.add_to_set("seen", 3)
    thread.max("top", 7)
    preview = thread.merge("side", dry_run=True).state
    merged = thread.merge("side")
    assert preview == thread.get(merged).state
    assert thread.get().state == {
        "messages": ["hi", "main", *(f"side {number}" for number in range(40))],
        "n": 7,
        "seen": {1, 2, 3},
        "top": 9,
    }
    thread.append("messages", "again", branch="side")
    thread.increment("n", branch="side")
    thread.merge("side")
    assert thread.get().state["n"] == 8
    assert thread.get().state["messages"][-1] == "again"


def test_branches_that_were_merged_into_each_other_lose_nothing(store: Store) -> None:
    thread = store.thread("t")
    thread.put({"n": 0, "messages": []})
    thread.fork("side")
    branches = ("main", "side")
    for number in range(1, 5):
        for branch in branches:
            thread.increment("n", branch=branch)
            thread.append("messages", f"{branch} {number}", branch=branch)
        thread.merge("side", "main")
        thread.merge("main", "side")
        assert {thread.get(at=branch).state["n"] for branch in branches} == {2 * number}
    for branch in branches:
        messages = thread.get(at=branch).state["messages"]
        assert len(messages) == 8
        for one in branches:
            assert [each for each in messages if each.startswith(one)] == [f"{one} {number}" for number in range(1, 5)]


def test_a_merge_of_a_value_that_was_set_compares_values(store: Store) -> None:
    thread = store.thread("t")
    thread.put({"n": 1, "m": 1})
    thread.fork("side")
    thread.increment("n", branch="side")
    thread.update({"n": 9}, branch="side")  # ends what the operator began
    thread.increment("n", branch="side")
    thread.put({"n": 1, "m": 2})
    thread.merge("side")
    assert thread.get().state == {"n": 10, "m": 2}


def test_on_conflict_merges_appends(store: Store) -> None:
    thread = store.thread("t")
    base = thread.put({"messages": ["hi"]})
    thread.append("messages", "first", parent=base, on_conflict="merge")
    merged = thread.append("messages", "second", parent=base, on_conflict="merge")
    assert merged.kind == "merge"
    assert thread.get().state == {"messages": ["hi", "first", "second"]}
    with pytest.raises(ConflictError, match="another checkpoint follows"):
        thread.append("messages", "third", parent=base, on_conflict="raise")
    beside = thread.append("messages", "fourth", parent=base)
    assert thread.get(beside).state == {"messages": ["hi", "fourth"]}


def test_the_same_id_again_is_no_new_checkpoint(store: Store) -> None:
    thread = store.thread("t")
    thread.append("messages", "a", id="1")
    thread.append("messages", "b", id="2")
    thread.append("messages", "b", id="2")
    assert thread.get().state == {"messages": ["a", "b"]}
    thread.append("messages", "c", id="2")  # a new revision
    assert thread.get().state == {"messages": ["a", "c"]}


# Other features -----------------------------------------------------------------------------------------------------


def test_two_changes_at_one_path_are_refused(store: Store) -> None:
    thread = store.thread("t")
    thread.put({"n": 1})
    for changes in ({"n": Increment(), ("n",): Increment()}, {"n": 2, ("n",): 3}):
        with pytest.raises(InvalidError, match="the same value is changed twice"):
            thread.update(changes)
    assert thread.get().state == {"n": 1}


def test_in_a_transaction(store: Store) -> None:
    store.thread("t").append("messages", "a")
    with store.transaction() as together:
        together.update("t", {"messages": Append("b"), "n": Increment()})
        together.update("u", {"messages": Append("c")})
        together.state(agent="x")["k"] = 1
    assert store.thread("t").get().state == {"messages": ["a", "b"], "n": 1}
    assert store.thread("u").get().state == {"messages": ["c"]}


def test_hooks_see_the_state_that_comes_of_it(store: Store) -> None:
    seen: list[Any] = []

    def check(call: Any) -> None:
        seen.append(dict(call.value))
        if "secret" in call.value["messages"]:
            raise VetoError("no secrets")

    store.hooks.before("checkpoint.save", name="check", inline=True)(check)
    thread = store.thread("t")
    thread.append("messages", "a")
    thread.append("messages", "b")
    assert seen == [{"messages": ["a"]}, {"messages": ["a", "b"]}]
    with pytest.raises(VetoError):
        thread.append("messages", "secret")
    assert thread.get().state == {"messages": ["a", "b"]}


class Chat1(TypedDict):
    msgs: list[str]
    n: int


class Chat2(TypedDict):
    messages: list[str]
    n: int


ONE = SchemaSet(Schema("chat", "1.0.0", Chat1))
TWO = SchemaSet(
    Schema("chat", "1.0.0", Chat1),
    Schema("chat", "2.0.0", Chat2),
    Migration("chat", "1.0.0", "2.0.0", rename("msgs", "messages")),
)


def test_a_schema_is_checked_and_older_states_are_upgraded() -> None:
    backend = MemoryBackend()
    old, new = over(backend), over(backend)
    old.schemas.attach(ONE, threads="*")
    old.thread("t").put({"msgs": ["a"], "n": 1})
    old.thread("t").append("msgs", "b")
    with pytest.raises(InvalidError, match=r"msgs"):
        old.thread("t").append("msgs", 3)
    new.schemas.attach(TWO, threads="*")
    new.thread("t").append("messages", "c")
    assert new.thread("t").get().state == {"messages": ["a", "b", "c"], "n": 1}
    assert [each.schema for each in new.thread("t").log()] == ["chat@2.0.0", "chat@1.0.0", "chat@1.0.0"]


def test_an_identity_needs_the_right_to_write(store: Store) -> None:
    mine, other = store.as_identity(user="alice", read_window=0), store.as_identity(user="bob", read_window=0)
    mine.thread("t").append("messages", "a")
    assert mine.thread("t").owner() == "user:alice"
    attempts: list[Callable[[Any], object]] = [
        lambda thread: thread.append("messages", "b"),
        lambda thread: thread.increment("n"),
        lambda thread: thread.add_to_set("s", 1),
        lambda thread: thread.max("m", 1),
    ]
    for act in attempts:
        with pytest.raises((DeniedError, NotFoundError)):
            act(other.thread("t"))
    mine.thread("t").append("messages", "c")
    assert mine.thread("t").get().state == {"messages": ["a", "c"]}


def test_a_quota_limits_them(store: Store) -> None:
    store.maintenance.set_quota(steps=3)
    thread = store.thread("t")
    for number in range(3):
        thread.append("messages", number)
    with pytest.raises(QuotaError, match="3 of 3 steps"):
        thread.append("messages", 3)
    assert thread.get().state == {"messages": [0, 1, 2]}


def test_secrets_are_replaced_and_revealed(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    thread, key = store.thread("t"), github_token(Random("x"))
    thread.append("messages", {"text": f"use {key}!"})
    thread.append("messages", HumanMessage(key))
    thread.add_to_set("seen", key)
    state = thread.get().state
    assert key not in str(state)
    revealed = store.redaction.reveal(state, thread="t")
    assert revealed == {"messages": [{"text": f"use {key}!"}, HumanMessage(key)], "seen": {key}}


def test_encrypted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    for turn in range(2):
        with holdfast.open(url, encryption=Encryption(LocalKeys(b"k" * 32))) as store:
            for number in range(40):
                store.thread("t").append("messages", {"text": f"unmistakable {turn} {number}"})
            assert len(store.thread("t").get().state["messages"]) == 40 * (turn + 1)
    assert b"unmistakable" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_older_checkpoints_are_pruned_copied_and_restored(store: Store, tmp_path: Path) -> None:
    thread = store.thread("t")
    for number in range(100):
        thread.append("messages", AIMessage(str(number)), id=f"{number:03}")
    store.maintenance.prune(keep_last=3)
    thread.append("messages", AIMessage("100"))
    expected = [str(number) for number in range(101)]
    assert [each.content for each in thread.get().state["messages"]] == expected
    thread.restore(at="098")
    thread.append("messages", AIMessage("new"))
    assert [each.content for each in thread.get().state["messages"]] == [*expected[:99], "new"]
    with holdfast.open(f"sqlite:///{tmp_path}/copy.db") as other:
        store.maintenance.copy_to(other)
        other.thread("t").append("messages", AIMessage("there"))
        assert [each.content for each in other.thread("t").get().state["messages"]] == [*expected[:99], "new", "there"]
        assert other.maintenance.verify().ok
    assert store.maintenance.verify().ok


def test_words_that_were_appended_are_found(store: Store) -> None:
    store.maintenance.build_index()
    store.thread("t").append("messages", {"text": "hello"})
    made = store.thread("t").append("messages", {"text": "a refund please"})
    assert [match.id for match in store.search("refund")] == [made.id]


@pytest.mark.nightly  # it runs a graph in a process of its own
def test_a_graph_goes_on_and_is_replayed_after_an_append(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "chat", 1)
        store.thread("chat").append("messages", HumanMessage("by hand", id="h"))
        record(store, "chat", 2)
        assert "by hand" in [each.content for each in store.thread("chat").get().state["messages"]]
        assert replay.run(store, GRAPH, thread="chat").check().matches
