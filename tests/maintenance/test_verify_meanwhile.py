"""Verifying while others write, fork, merge, rename, prune, compact and delete: nothing is found that is not so."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from holdfast.backends.interface import Delete, Get, Put, Query, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, REFS
from holdfast.engine.integrity.findings import FindingCode, Severity
from holdfast.engine.row_format import LEASE
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, TransientError
from holdfast.store.store import Store
from tests.engine.lines import Clock, backend, store_on
from tests.engine.pruned import dropping_ids, prune
from tests.support.interference import InterferingBackend
from tests.support.nightly import mostly_nightly


class Others:
    """Do this and that to two threads, by chance."""

    def __init__(self, store: Store, chance: Random) -> None:
        self._store = store
        self._chance = chance
        self._number = 0
        self.often = 1.0
        self.changes = 0
        """How often something was done, and not refused."""

    def __call__(self) -> None:
        if self._chance.random() < self.often:
            self._number += 1
            with suppress(
                NotFoundError, ConflictError, DeniedError, InvalidError
            ):  # such as a branch that another one starts from
                self._do(self._chance.choice("aaab"), self._chance.random())
                self.changes += 1

    def _do(self, thread: str, chance: float) -> None:
        store, choose, number = self._store, self._chance.choice, self._number
        branches = [each.name for each in store.thread(thread).branches()]
        if chance < 0.4:
            state = {"messages": [f"message {n}" for n in range(number % 50)], "large": "x" * (number % 8 * 10_000)}
            store.thread(thread).put(state, branch=choose(branches))
        elif chance < 0.45:
            store.thread(thread).put({"again": number}, id=choose(store.thread(thread).log(limit=5)).id)
        elif chance < 0.55:
            store.thread(thread).fork(f"branch {number}", at=choose(store.thread(thread).log(limit=30)).id)
        elif chance < 0.65:
            store.thread(thread).merge(choose(branches), into=choose(branches), strategy="ours")
        elif chance < 0.7:
            store.thread(thread).rename_branch(choose(branches), f"renamed {number}")
        elif chance < 0.75:
            store.thread(thread).delete_branch(choose(branches))
        elif chance < 0.78:
            store.thread(thread).delete()
            store.thread(thread).put({"made": "anew"})
        elif chance < 0.83:
            store.maintenance.compact(thread)
        elif chance < 0.93:
            store.maintenance.prune(keep_last=1 + number % 20, threads=thread)
        elif chance < 0.97:
            store.thread(thread).tag(f"name {number % 4}")
        else:
            store.thread(thread).pin(choose(store.thread(thread).log(limit=20)).id)


@pytest.mark.nightly
@pytest.mark.parametrize("often", mostly_nightly([0.1, 0.4], daily=[0.1]))
@pytest.mark.parametrize("kind", mostly_nightly(["memory", "sqlite"], daily=["sqlite"]))
def test_nothing_is_found_that_is_not_so(kind: str, often: float, tmp_path: Path) -> None:
    for seed in range(3 if kind == "memory" else 2):
        (tmp_path / str(seed)).mkdir()
        inner, clock = backend(kind, tmp_path / str(seed)), Clock()
        there = store_on(inner, fold_every=4, clock=clock)
        for thread in "ab":
            for turn in range(20):
                there.thread(thread).put({"messages": [f"message {n}" for n in range(turn)]})
        others = Others(there, Random(seed))
        for _ in range(40):
            others()
        others.often = often
        busy = InterferingBackend(inner)
        store = store_on(busy, fold_every=4, clock=clock)
        for level in ("structure", "hashes", "decode"):
            heads, before = there.maintenance.heads(), others.changes
            with busy.interfere(others, "read", times=None):
                found = store.maintenance.verify(level=level, heads=heads).findings
            assert others.changes > before
            assert [each for each in found if each.severity is Severity.DAMAGE] == [], (seed, level)
            assert {each.code for each in found} <= {
                *(
                    FindingCode.GONE_THREAD,
                    FindingCode.GONE_BRANCH,
                    FindingCode.PRUNED_SINCE,
                    FindingCode.RENAMED_BRANCH,
                ),
                *(FindingCode.CHANGED_NAMES, FindingCode.NOT_COMPARED),
            }
        assert there.maintenance.verify(level="decode").ok
        there.close()


def filled(inner_kind: str, folder: Path) -> tuple[InterferingBackend, Store, Store]:
    inner, clock = backend(inner_kind, folder), Clock()
    there = store_on(inner, fold_every=4, clock=clock)
    for turn in range(300):
        there.thread("t").put({"turn": turn})
    busy = InterferingBackend(inner)
    return busy, store_on(busy, fold_every=4, clock=clock), there


@pytest.mark.parametrize("kind", mostly_nightly(["memory", "sqlite"], daily=["sqlite"]))
def test_long_threads_are_the_same_by_id_and_by_place(kind: str, tmp_path: Path) -> None:
    _, store, there = filled(kind, tmp_path)
    assert store.maintenance.verify().findings == []
    there.maintenance.prune(keep_last=3)
    assert store.maintenance.verify().findings == []
    there.close()


def test_a_rewrite_that_ends_meanwhile_leaves_no_orphans(tmp_path: Path) -> None:
    """Nodes of another form are read while it is under way; before anything else is read, they and its lease go."""
    busy, store, _ = filled("memory", tmp_path)
    node, lease = ("", "t", 2, bytes(20)), ("", "t", LEASE, "rewrite", "")
    run(busy.apply([Put(NODES, Row(node, (), b"")), Put(REFS, Row(lease, ("", 0)))]))
    last: list[Query] = []

    def nodes_were_read(queries: Sequence[Query]) -> bool:
        were, last[:] = [query.space for query in last] == [NODES], queries
        return were and queries[0].space is not NODES

    def end() -> None:
        run(busy.apply([Delete(NODES, node), Delete(REFS, lease)]))

    with busy.interfere(end, "read", where=nodes_were_read):
        assert store.maintenance.verify().findings == []
    run(busy.apply([Put(NODES, Row(node, (), b""))]))
    assert [each.code for each in store.maintenance.verify().findings] == [FindingCode.ORPHAN]


def test_an_end_that_was_pruned_and_written_over_is_no_other_history(tmp_path: Path) -> None:
    store = store_on(backend("memory", tmp_path))
    for turn in range(3):
        store.thread("t").put({"turn": turn}, id=str(turn))
    store.thread("t").fork("side", at="0")
    for turn in range(3):
        store.thread("t").put({"side": turn}, branch="side", id=f"side {turn}")
    heads = store.maintenance.heads()
    prune(store, dropping_ids("side 1", "side 2"))
    (found,) = store.maintenance.verify(heads=heads).findings
    assert found.code is FindingCode.PRUNED_SINCE
    for turn in (9, 10):
        store.thread("t").put({"side": turn}, branch="side", id=f"side {turn}")
    (found,) = store.maintenance.verify(heads=heads).findings
    assert (found.code, "another checkpoint" in found.message) == (FindingCode.PRUNED_SINCE, True)


@pytest.mark.usefixtures("impatient")
def test_a_thread_that_keeps_changing_is_not_compared(tmp_path: Path) -> None:
    busy, store, there = filled("memory", tmp_path)
    heads = there.maintenance.heads()
    there.thread("t").tag("changed")
    numbers = count()

    def of_the_line(queries: Sequence[Query]) -> bool:
        return any(isinstance(query, Get) and query.space is LINES for query in queries)

    def fork() -> None:
        there.thread("t").fork(f"branch {next(numbers)}")

    with busy.interfere(fork, "read", times=None, where=of_the_line):
        (found,) = store.maintenance.verify("t", heads=heads).findings
    assert (found.code, found.severity) == (FindingCode.NOT_COMPARED, Severity.NOTICE)


def test_a_store_that_cannot_be_reached_is_not_damaged(tmp_path: Path) -> None:
    busy, store, _ = filled("memory", tmp_path)

    def of_nodes(queries: Sequence[Query]) -> bool:
        return busy.reads > 10 and any(query.space is NODES for query in queries)

    def fail() -> None:
        raise TransientError("the network is down")

    with (
        pytest.raises(TransientError),
        busy.interfere(fail, "read", times=None, where=of_nodes, allowed=(TransientError,)),
    ):
        store.maintenance.verify(level="decode")
