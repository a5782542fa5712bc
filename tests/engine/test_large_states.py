"""Large states: a heavy step is folded at once, and whatever is done with it, it has the content that was saved."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Store
from holdfast.backends.interface import Batch, Create, Ensure, Get, Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FOLDS, LINES, NODES, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine import state_loader
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.model.operations import HEAVY
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.row_format import Line, fold_row, info_of, open_fold, open_fold_header
from holdfast.errors import CorruptError, TooLargeError
from tests.codec.values import identical
from tests.engine.lines import backend as new_backend
from tests.engine.model.histories import edited_state, states
from tests.store.stores import over
from tests.support.counting import CountingBackend
from tests.support.nightly import examples, mostly_nightly

chance = random.Random(5)
MEMORY = {f"key {number}": chance.randbytes(300).hex() for number in range(3000)}
MESSAGES = [{"role": "user", "content": chance.randbytes(400).hex()} for _ in range(300)]
STATE = {"memory": MEMORY, "messages": MESSAGES, "plan": {"done": 0}}
FEW = 0.05
"""Less than this part of the bytes is few."""


def check(store: Store, saved: dict[str, dict[str, Any]], thread: str = "t") -> None:
    """Require the saved state at every checkpoint, read as a whole and in parts, and no finding."""
    for id, state in saved.items():
        assert store.thread(thread).get(id).state == state, id
        lazy = store.thread(thread).get(id, lazy=True).state
        assert lazy.value(("memory", "key 7")) == state["memory"]["key 7"]
        assert lazy.slice("messages", start=-2) == state["messages"][-2:]
        assert lazy["plan"] == state["plan"]
    assert store.maintenance.verify(level="decode").findings == []


def fill(store: Store, **fields: Any) -> dict[str, dict[str, Any]]:
    """Save a large state and change it: in part, mostly, and as a whole. Return the states by id."""
    thread, saved = store.thread("t"), {}
    saved[thread.put(STATE, **fields).id] = STATE
    state: dict[str, Any] = {**STATE, "plan": {"done": 1}}
    saved[thread.update({"plan.done": 1}, **fields).id] = state
    state = {**state, "memory": {**MEMORY, "key 7": "new"}}
    saved[thread.update({("memory", "key 7"): "new"}, **fields).id] = state
    state = {**state, "memory": {key: value[::-1] for key, value in MEMORY.items()}}
    saved[thread.put(state, **fields).id] = state
    state = {**state, "messages": [*MESSAGES, "last"]}
    saved[thread.put(state, **fields).id] = state
    return saved


# Laws ---------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None)
@given(st.data(), st.sampled_from([1 << 11, 1 << 24]), st.sampled_from([2, 5, 32]))
def test_folding_at_once_changes_no_state(data: st.DataObject, cache_bytes: int, fold_every: int) -> None:
    heavy, usual = MemoryBackend(), MemoryBackend()
    with pytest.MonkeyPatch.context() as patch:
        state = data.draw(states)
        ids: list[tuple[str, str, dict[str, Any]]] = []
        for _ in range(data.draw(st.integers(1, 8))):
            state = data.draw(edited_state(state))
            path = data.draw(st.sampled_from([*state, None])) if state else None
            found = []
            for backend, limit in ((heavy, 40), (usual, HEAVY)):
                patch.setattr("holdfast.engine.append.HEAVY", limit)
                patch.setattr("holdfast.engine.model.operations.HEAVY", limit)
                thread = over(backend, fold_every=fold_every, cache_bytes=cache_bytes).thread("t")
                saved = thread.put(state) if path is None or not ids else thread.update({(path,): state[path]})
                found.append(saved.id)
            state = over(usual).thread("t").get().state
            ids.append((found[0], found[1], state))
        for one, other, expected in ids:
            folded, plain = over(heavy).thread("t"), over(usual).thread("t")
            assert identical(folded.get(one).state, expected)
            assert identical(plain.get(other).state, expected)
            assert list(folded.get(one, lazy=True).state) == list(expected)
            lazy = folded.get(one, lazy=True).state
            for name, value in expected.items():
                parts = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
                for key, part in parts:
                    assert identical(lazy.value((name, key)), part), (name, key)
        assert over(heavy).maintenance.verify(level="decode").findings == []


# Costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"plan.done": 5}, {("memory", "key 7"): "new"}, {("messages", 7): "new"}])
def test_an_update_reads_what_it_changes(changed: dict[Any, Any], tmp_path: Path) -> None:
    backend = CountingBackend(new_backend("sqlite", tmp_path))
    over(backend).thread("t").put(STATE)
    size = sum(backend.bytes_written.values())
    for _ in range(2):  # of the heavy step itself, and of one that follows it
        backend.reset()
        over(backend).thread("t").update(changed)
        assert sum(backend.bytes_read.values()) < FEW * size
        assert sum(backend.bytes_written.values()) < FEW * size


@pytest.mark.parametrize("cache_bytes", [1 << 20, 1 << 24], ids=["larger than the cache", "cached"])
def test_updates_in_one_process_read_little(cache_bytes: int, tmp_path: Path) -> None:
    backend = CountingBackend(new_backend("sqlite", tmp_path))
    thread = over(backend, cache_bytes=cache_bytes).thread("t")
    thread.put(STATE)
    size = sum(backend.bytes_written.values())
    backend.reset()
    for number in range(3):
        thread.update({"plan.done": number})
    assert sum(backend.bytes_read.values()) < FEW * size
    thread.put({**STATE, "plan": {"done": 7}})
    assert sum(backend.bytes_written.values()) < FEW * size
    assert thread.get().state == {**STATE, "plan": {"done": 7}}


@pytest.mark.parametrize("steps_since", [0, 1])
def test_one_key_is_read_without_its_channel(steps_since: int, tmp_path: Path) -> None:
    backend = CountingBackend(new_backend("sqlite", tmp_path))
    thread = over(backend).thread("t")
    thread.put(STATE, metadata={"user": "ann"})
    size = sum(backend.bytes_written.values())
    for number in range(steps_since):
        thread.update({"plan.done": number}, metadata={"user": "ann"})
    backend.reset()
    found = over(backend).thread("t").get(lazy=True)
    assert found.metadata == {"user": "ann"}
    assert found.state.value(("memory", "key 2000")) == MEMORY["key 2000"]
    assert sum(backend.bytes_read.values()) < FEW * size


def test_pointers_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Packed] = []
    search = state_loader.pointers_in

    def count(packed: Packed) -> Iterable[bytes]:
        calls.append(packed)
        return search(packed)

    monkeypatch.setattr(state_loader, "pointers_in", count)
    backend = MemoryBackend()
    thread = over(backend, fold_every=2).thread("t")
    for number in range(5):
        thread.put({"messages": [f"message {each}" for each in range(20 + number)]})
        assert len(thread.get().state["messages"]) == 20 + number
    assert not calls
    thread.put({"messages": ["short"], "text": "long " * 20_000})  # from here on, there may be some
    assert thread.get().state["text"] == "long " * 20_000
    assert calls
    assert over(backend).thread("t").get().state["text"] == "long " * 20_000


class Limited(Wrapper):
    """A store that refuses batches over a size."""

    refused = 0

    async def apply(self, batch: Batch) -> int | None:
        written = [change.row for change in batch if isinstance(change, Create | Ensure | Put)]
        if sum(len(row.body) for row in written) > 1.5 * HEAVY:
            self.refused += 1
            raise TooLargeError("the batch is too large")
        return await self.inner.apply(batch)


def test_a_store_that_takes_the_step_but_not_its_nodes() -> None:
    backend = Limited(MemoryBackend())
    store = over(backend)
    store.thread("t").put(STATE)
    assert backend.refused == 1
    store.thread("t").update({"plan.done": 1})
    assert backend.refused == 1  # it is not tried again
    assert store.thread("t").get().state == {**STATE, "plan": {"done": 1}}
    assert run(backend.inner.read([Scan(NODES, ("", "t"))])) == [[]]
    with pytest.raises(TooLargeError):
        store.thread("u").put({"memory": {**MEMORY, **{f"more {key}": value for key, value in MEMORY.items()}}})


# Beside other features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encryption", "project"),
    [
        pytest.param(None, False, id="plain", marks=pytest.mark.nightly),
        pytest.param(Encryption(LocalKeys(generate_key())), False, id="encrypted"),
        pytest.param(None, True, id="readable rows", marks=pytest.mark.nightly),
    ],
)
def test_history(tmp_path: Path, encryption: Encryption | None, project: bool) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url, encryption=encryption, project=project) as store:
        saved = fill(store)
        check(store, saved)
    with holdfast.open(url, encryption=encryption, project=project) as store:
        check(store, saved)
        first, *_, last = saved
        assert [each.path for each in store.thread("t").diff(first, last).changes if "plan" in each.path]
        restored = store.thread("t").restore(first)
        check(store, {**saved, restored.id: STATE})


def test_forks(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saved = fill(store)
        first = next(iter(saved))
        store.thread("t").fork("other", at=first)
        state = {**STATE, "plan": {"done": 9}}
        saved[store.thread("t").put(state, branch="other").id] = state
        check(store, saved)
    with holdfast.open(tmp_path / "a.db") as store:
        check(store, saved)


@pytest.mark.parametrize("kept", mostly_nightly([1, 2, 4], daily=[2]))
def test_prune(tmp_path: Path, kept: int) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saved = fill(store, metadata={"user": "ann"})
        store.maintenance.prune("t", keep_last=kept)
    left = dict(list(saved.items())[-kept:])
    with holdfast.open(tmp_path / "a.db") as store:
        assert {each.id for each in store.thread("t").log().all()} == set(left)
        check(store, left)
        assert store.thread("t").get(next(iter(left))).metadata == {"user": "ann"}
        store.thread("t").update({"plan.done": 5})
        check(store, left)


@pytest.mark.nightly  # of small states by day
def test_backup_and_copy(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saved = fill(store)
        store.backups(tmp_path / "backups").create()
        with holdfast.open(tmp_path / "b.db") as copy:
            store.maintenance.copy_to(copy)
            check(copy, saved)
    with holdfast.open(tmp_path / "c.db") as restored:
        restored.backups(tmp_path / "backups").restore()
        check(restored, saved)


def test_erasure(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        fill(store, metadata={"subject": "person 1842"})
        rows = run(store._engine.context.stored.read([Scan(FOLDS, ("", "t"))]))[0]
        assert len(rows) == 2
        store.erasure.erase("person 1842")
        assert store.maintenance.verify(level="decode").findings == []
        assert (
            run(store._engine.context.stored.read([Scan(each, ("", "t")) for each in (STEPS, FOLDS, NODES)]))
            == [[]] * 3
        )


def test_a_folded_state_with_another_header_is_found() -> None:
    backend = MemoryBackend()
    store = over(backend)
    saved = store.thread("t").put(STATE, metadata={"user": "ann"})
    line = Line("", "t")
    ((stored,), (info,)) = run(backend.read([Get(FOLDS, [(*line, 0, 0)]), Get(LINES, [tuple(line)])]))
    row = CHECKSUMS.decode(FOLDS, stored)
    point = run(store._engine.lines.find(line, saved.id))
    header = open_fold_header(row, point)
    assert header is not None
    changed = fold_row(
        line,
        (0, 0),
        point.hash,
        info_of(CHECKSUMS.decode(LINES, info)),
        open_fold(row, point.hash),
        header._replace(stamp="later"),
    )
    assert store.maintenance.verify(level="decode").findings == []
    run(backend.apply([Put(FOLDS, CHECKSUMS.encode(FOLDS, changed))]))
    (finding,) = over(backend).maintenance.verify(level="decode").findings
    assert finding.code == "fold-mismatch"


def test_the_log_of_a_large_step_is_read_though_its_folded_state_is_damaged() -> None:
    backend = MemoryBackend()
    saved = over(backend).thread("t").put(STATE)
    ((stored,),) = run(backend.read([Get(FOLDS, [("", "t", 0, 0)])]))
    run(backend.apply([Put(FOLDS, stored._replace(body=stored.body[:-40] + bytes(40)))]))
    store = over(backend)
    with pytest.raises(CorruptError):
        store.thread("t").get()
    assert [each.id for each in store.thread("t").log()] == [saved.id]
    assert {each.code for each in store.maintenance.verify().findings} != set()
