"""Items of LangGraph's long-term memory, and what else a store does with them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, IndexConfig, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConfigError, DeniedError, InvalidError
from holdfast.langgraph import HoldfastSaver, HoldfastStore
from tests.engine.lines import store_on
from tests.servers import places
from tests.support.counting import CountingBackend

USERS = [("memories", "{user}")]
ALICE, BOB = ("memories", "alice"), ("memories", "bob")


@pytest.fixture(params=["memory", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HoldfastStore]:
    with HoldfastStore.from_conn_string(places.place(request.param, tmp_path), users=USERS) as items:
        yield items


def store_of(memory: HoldfastStore) -> Store:
    """The store that the items are in."""
    assert isinstance(memory.store, Store)
    return memory.store


class Node(TypedDict):
    name: str


def test_graphs_read_and_write_items_beside_their_checkpoints(tmp_path: Path) -> None:
    def remember(state: Node, *, store: BaseStore) -> Node:
        store.put(ALICE, "name", {"name": state["name"]})
        item = store.get(ALICE, "name")
        return {"name": item.value["name"].upper() if item else ""}

    with holdfast.open(tmp_path / "agents.db") as store:
        memory = HoldfastStore(store, users=USERS)
        builder = StateGraph(Node).add_node("remember", remember).add_edge(START, "remember").add_edge("remember", END)
        graph = builder.compile(checkpointer=HoldfastSaver(store), store=memory)
        assert graph.invoke({"name": "Ada"}, {"configurable": {"thread_id": "1"}}) == {"name": "ADA"}
        assert [scope.scope for scope in store.scopes()] == [store.state(user="alice", items="memories.alice").scope]
        assert store.state(user="alice", items="memories.alice")["name"] == {"name": "Ada"}


def random_value(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"n": rng.choice([-2.5, -1, 0, 1, 2, 3.5, 10**30, True, None])}
    fields["text"] = rng.choice(["a", "b", "x" * 128, "x" * 129, "ü", "a\x01b", ""])
    fields["inner"] = rng.choice([{"deep": 1}, {"deep": "a", "list": [1, 2]}, [1, 2], {"a": {"b": {"c": {"d": 1}}}}])
    if rng.random() < 0.1:
        fields |= {f"f{number}": number for number in range(20)}
    return fields


def random_filter(rng: random.Random) -> dict[str, Any]:
    value, number = random_value(rng), rng.choice([-3, -1, 0, 0.5, 2, 10**30])
    return rng.choice(
        [
            {"n": value["n"]},
            {"n": {"$gte": number}},
            {"n": {"$gt": number, "$lt": 3}},
            {"n": {"$lte": number}, "text": value["text"]},
            {"n": {"$ne": value["n"]}},
            {"text": {"$eq": value["text"]}},
            {"inner": value["inner"]},
            {"inner": {"deep": value["n"]}},
            {"missing": None},
            {"f3": 3},
            {},
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_searches_find_what_a_scan_of_all_items_finds(memory: HoldfastStore, seed: int) -> None:
    """Over mixed histories, with values of every form, against LangGraph's store in memory."""
    rng, model = random.Random(seed), dict[str, dict[str, Any]]()
    order: list[str] = []
    for number in range(150):
        key = f"k{rng.randrange(40)}"
        if rng.random() < 0.2:
            memory.delete(ALICE, key)
            model.pop(key, None)
        else:
            model[key] = random_value(rng)
            memory.put(ALICE, key, model[key])
            order = [each for each in order if each != key] + [key]
        if number % 10 == 0:
            state = store_of(memory).state(user="alice", items="memories.alice")
            if len(model) and rng.random() < 0.5:
                (scope,) = store_of(memory).scopes()
                version = scope.version
                memory.put(ALICE, "other", {"n": 1})
                state.rollback(version)  # which takes it away again, from the index too
        found = random_filter(rng)
        expected = [key for key in reversed(order) if key in model and _passes(model[key], found)]
        actual = [item.key for item in memory.search(("memories",), filter=found, limit=100)]
        assert sorted(actual) == sorted(expected), found
        assert [item.key for item in memory.search(ALICE, filter=found, limit=3, offset=1)] == actual[1:4]


def _passes(value: dict[str, Any], found: dict[str, Any]) -> bool:
    """Compare as LangGraph does in memory, without its errors for values that have no order."""
    single = InMemoryStore()
    single.put(("x",), "x", value)
    try:
        return bool(single.search(("x",), filter=found))
    except (TypeError, ValueError):
        return False


def test_a_rare_value_among_many_is_found_without_reading_all() -> None:
    backend = CountingBackend(MemoryBackend())
    memory = HoldfastStore(store_on(backend))
    for start in range(0, 4000, 500):
        values = [{"kind": "rare" if n == 77 else "common", "n": n} for n in range(start, start + 500)]
        memory.batch([PutOp(("m",), f"k{value['n']}", value) for value in values])
    for _ in range(150):  # the values are in folds, and not in the steps since
        memory.put(("m",), "last", {"n": -1})
    costs = {}
    filters: dict[str, dict[str, Any]] = {
        "equal": {"kind": "rare"},
        "range": {"n": {"$gte": 77, "$lt": 78}},
        "scan": {"n": [1]},
    }
    for name, wanted in filters.items():
        fresh = HoldfastStore(store_on(backend))
        backend.reset()
        assert [item.key for item in fresh.search(("m",), filter=wanted)] == ([] if name == "scan" else ["k77"])
        costs[name] = sum(backend.bytes_read.values())
    assert 5 * costs["equal"] < costs["scan"]
    assert 5 * costs["range"] < costs["scan"]


def test_batches_see_what_was_before_and_change_all_or_nothing(memory: HoldfastStore) -> None:
    memory.put(ALICE, "a", {"n": 1})
    found = memory.batch([PutOp(ALICE, "b", {"n": 2}), SearchOp(("memories",)), PutOp(BOB, "c", {"n": 3})])[1]
    assert [item.key for item in found] == ["a"]  # type: ignore[union-attr]
    with pytest.raises(InvalidError):
        memory.batch([PutOp(ALICE, "d", {"n": 4}), PutOp(BOB, "k" * 300, {"n": 5})])
    assert [item.key for item in memory.search(("memories",))] == ["c", "b", "a"] or len(memory.search(())) == 3


@pytest.mark.parametrize("label", ["a/b", "\u00fc", "u\u0308", "a%2Fb", "%", "a\\b", "line\nend", "日本", " ", "*"])
def test_any_label_and_key_is_one_of_its_own(memory: HoldfastStore, label: str) -> None:
    memory.put(("x", label), label, {"n": 1})
    memory.put(("x", "other"), "other", {"n": 2})
    found = memory.search(("x", label))
    assert [(item.namespace, item.key) for item in found] == [(("x", label), label)]
    assert memory.list_namespaces(prefix=("x", label) if label != "*" else ("x",))[0] in {("x", label), ("x", "*")}


def test_items_expire_and_reads_prolong_their_life() -> None:
    now = [1_700_000_000_000_000_000]
    with store_on(MemoryBackend(), clock=lambda: now[0]) as store:
        memory = HoldfastStore(store, ttl={"refresh_on_read": True, "default_ttl": 10})
        memory.put(("m",), "read", {"n": 1})
        memory.put(("m",), "left", {"n": 1})
        memory.put(("m",), "kept", {"n": 1}, ttl=None)
        now[0] += 6 * 60_000_000_000
        assert memory.get(("m",), "read") is not None
        now[0] += 6 * 60_000_000_000
        assert sorted(item.key for item in memory.search(("m",), filter={"n": 1}, refresh_ttl=False)) == [
            "kept",
            "read",
        ]
        assert memory.sweep_ttl() == 1
        assert store_of(memory).state(items="m").history("left", limit=1)[0].action == "delete"
        now[0] += 60 * 60_000_000_000
        assert asyncio.run(memory.asweep_ttl()) == 1
        assert [item.key for item in memory.search(("m",))] == ["kept"]


def vectors_of(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
@pytest.mark.parametrize("has_numpy", [True, False])
def test_queries_find_the_most_similar(
    memory: HoldfastStore, distance: str, has_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_numpy:
        monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    config: Any = {"dims": 3, "embed": vectors_of, "fields": ["text", "notes[*]"], "distance_type": distance}
    memory = HoldfastStore(memory.store, index=config, users=USERS)
    memory.put(ALICE, "a", {"text": "aaa", "kind": 1})
    memory.put(ALICE, "b", {"text": "bbb", "notes": ["ccc", "cab"], "kind": 2})
    memory.put(BOB, "plain", {"text": "aaa"}, index=False)
    found = memory.search(("memories",), query="aa")
    assert [item.key for item in found] == ["a", "b", "plain"]
    assert found[2].score is None
    assert [item.key for item in memory.search(("memories",), query="c", filter={"kind": 2})] == ["b"]
    memory.put(ALICE, "a", {"text": "ccc"})
    assert [item.key for item in memory.search(("memories",), query="ccc", limit=1)] in (["a"], ["b"])
    store_of(memory).state(user="alice", items="memories.alice").set("a", {"text": "set without an embedder"})
    assert memory.search(ALICE, query="ccc")[1].score is None
    wrong: Any = {**config, "embed": lambda texts: [[1.0, 2.0] for _ in texts]}
    with pytest.raises(ConfigError, match="dimensions"):
        HoldfastStore(memory.store, index=cast(IndexConfig, wrong), users=USERS).search(ALICE, query="x")


# Crossings ------------------------------------------------------------------------------------------------------


def test_an_identity_reads_its_own_items_and_nobody_elses(memory: HoldfastStore) -> None:
    memory.put(ALICE, "a", {"secret": 1})
    memory.put(BOB, "b", {"secret": 1})
    alice = HoldfastStore(store_of(memory).as_identity(user="alice"), users=USERS)
    assert [item.key for item in alice.search((), filter={"secret": 1})] == ["a"]
    assert alice.list_namespaces() == [ALICE]
    alice.put(ALICE, "mine", {"n": 1})
    with pytest.raises(DeniedError):
        alice.get(BOB, "b")
    with pytest.raises(DeniedError):
        alice.put(BOB, "b", {})
    with pytest.raises(DeniedError):
        alice.delete(BOB, "b")
    assert alice.search(BOB) == []
    change = store_of(memory).state(user="alice", items="memories.alice").history("mine")[0]
    assert change.actor == "user:alice"


def test_erasure_of_a_person_takes_their_items_and_leaves_the_others(memory: HoldfastStore) -> None:
    memory.put(ALICE, "a", {"secret": 1})
    memory.put(BOB, "b", {"secret": 1})
    store = store_of(memory)
    store.erasure.erase("alice")
    assert [item.key for item in memory.search(())] == ["b"]
    assert memory.list_namespaces() == [BOB]


def test_items_are_in_copies_backups_and_encrypted_stores(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(b"m" * 32))) as store:
        memory = HoldfastStore(store, users=USERS)
        memory.put(ALICE, "a", {"kind": "secret words"}, ttl=5)
        memory.put(("docs",), "d", {"kind": "secret words"})
        assert [item.key for item in memory.search((), filter={"kind": "secret words"})] == ["d", "a"]
        assert [item.key for item in memory.search(("docs",))] == ["d"]
        assert b"secret words" not in b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))
        with holdfast.open(tmp_path / "b.db") as other:
            store.maintenance.copy_to(other)
            assert [item.key for item in HoldfastStore(other, users=USERS).search((), filter={"kind": "secret words"})]
        store.backups(tmp_path / "backup").create()
    with holdfast.open(tmp_path / "c.db", encryption=Encryption(LocalKeys(b"m" * 32))) as restored:
        restored.backups(tmp_path / "backup").restore()
        found = HoldfastStore(restored, users=USERS).search((), filter={"kind": "secret words"})
        assert [item.key for item in found] == ["d", "a"]


def test_items_of_tenants_are_apart_and_prune_leaves_them(tmp_path: Path) -> None:
    for tenant in ("one", "two"):
        with HoldfastStore.from_conn_string(tmp_path / "a.db", tenant=tenant) as memory:
            for number in range(300):
                memory.put(("m",), f"k{number % 7}", {"tenant": tenant, "n": number})
            store = store_of(memory)
            store.maintenance.prune(keep_last=1, kinds="all")
            assert [item.value["n"] for item in memory.search(("m",), filter={"tenant": tenant})] == list(
                range(299, 292, -1)
            )
            assert memory.search(("m",), filter={"n": {"$lt": 293}}) == []
            assert store.maintenance.verify().ok


def test_the_index_has_nothing_that_policies_replace(memory: HoldfastStore) -> None:
    token = "ghp_" + "a1B2" * 9
    memory.put(ALICE, "before", {"note": "plain", "kind": 1})
    store_of(memory).redaction.protect("redact", formats="credentials")
    memory.put(ALICE, "a", {"token": token, "kind": 1})
    memory.put(ALICE, "a", {"token": token, "kind": 2})
    assert memory.search(ALICE, filter={"token": token}) == []
    assert [item.key for item in memory.search(ALICE, filter={"kind": 2})] == ["a"]
    assert [item.key for item in memory.search(ALICE, filter={"kind": 1})] == ["before"]
    memory.put(ALICE, "a", {"kind": 3})
    assert [item.key for item in memory.search(ALICE)] == ["a", "before"]
    memory.delete(ALICE, "a")
    assert [item.key for item in memory.search(ALICE)] == ["before"]


def test_who_stops_the_sweeper_waits_for_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeping, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def sweep() -> int:
        sweeping.set()
        assert go_on.wait(30)
        ended.set()
        return 0

    with HoldfastStore.from_conn_string(str(tmp_path / "agents.db")) as memory:
        assert memory.stop_ttl_sweeper()  # there is none
        monkeypatch.setattr(memory, "sweep_ttl", sweep)
        first = memory.start_ttl_sweeper(0.0001)
        assert sweeping.wait(30)
        assert memory.start_ttl_sweeper().done()  # it works already
        assert not memory.stop_ttl_sweeper(timeout=0.01)
        assert not memory.stop_ttl_sweeper(timeout=0)  # it still has not ended
        go_on.set()
        assert memory.stop_ttl_sweeper()
        assert ended.is_set()
        assert first.done()
        ended.clear()
        memory.start_ttl_sweeper(0.0001)
        assert ended.wait(30)
    assert memory.stop_ttl_sweeper(timeout=0)  # closing has waited for it
