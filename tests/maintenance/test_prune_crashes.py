"""Pruning is cut off: by the power, by a kill, by Ctrl-C. What the policy keeps is there, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import UnavailableError
from tests.engine.lines import Backends, Clock, store_on
from tests.engine.pruned import Mortal, filled
from tests.maintenance.kit import copied
from tests.maintenance.test_prune import states_of
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.powercut import Labels, check_cuts, record
from tests.support.sqlite.recording import Recorder

LATER = Clock().now + 3600 * 10**9


@pytest.mark.parametrize("cuts", mostly_nightly([25, 200], daily=[25]))
def test_power_cuts(cuts: int) -> None:
    whole: dict[str, Any] = {}

    def workload(folder: Path, recorder: Recorder) -> None:
        url = f"sqlite:///{folder}/store.db"
        opened = run(SQLiteBackend.open(url, vfs=recorder.vfs, exclusive=True, synchronous="full"))
        store = filled(opened, clock=Clock())
        for n in range(6):
            store.thread("u").put({"n": n, "list": list(range(n))}, id=str(n))
        whole.update({thread: states_of(store, thread) for thread in "tu"})
        recorder.mark("filled")
        store.maintenance.prune(keep_last=3)
        recorder.mark("pruned")
        run(opened.close())

    kept = {"t": ["7", "80", "81"], "u": ["3", "4", "5"]}
    seen: set[tuple[int, ...]] = set()

    def verify(folder: Path, labels: Labels) -> None:
        if not labels:
            return
        opened = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
        store = store_on(opened, fold_every=3, clock=Clock(LATER))
        try:
            for thread, ids in kept.items():
                found = states_of(store, thread)
                assert found == {id: whole[thread][id] for id in ids} or (
                    found == whole[thread] and "pruned" not in labels
                )
            seen.add(tuple(len(store.thread(thread).log()) for thread in kept))
            store.maintenance.prune(keep_last=3)
            for thread, ids in kept.items():
                assert states_of(store, thread) == {id: whole[thread][id] for id in ids}
            assert run(opened.check()) == []
        finally:
            run(opened.close())

    check_cuts(record(workload), verify, cuts=cuts)
    assert {(10, 6), (3, 3)} <= seen


def test_killed_at_any_point(fresh: Backends) -> None:
    left = Counter[int]()
    for lives in range(0, 1000, 2):
        on = fresh()
        store = copied(on, filled, fold_every=3)
        whole = states_of(store, "t")
        try:
            store_on(Mortal(on, lives), fold_every=3).maintenance.prune(keep_last=3)
            break
        except UnavailableError:
            pass
        later = store_on(on, fold_every=3, clock=Clock(LATER))
        found = states_of(later, "t")
        assert found in (whole, {id: whole[id] for id in ("81", "80", "7")})
        left[len(found)] += 1
        later.maintenance.prune(keep_last=3)
        assert list(states_of(later, "t")) == ["81", "80", "7"]
    else:
        pytest.fail("it never ended")
    assert left[10] >= 10, left
    assert left[3] >= 1, left


PRUNER = """
import signal, sys, time
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.backends.runtime.drivers import run
from tests.engine.lines import store_on
from tests.support.interference import InterferingBackend

url, how = sys.argv[1:]
backend = InterferingBackend(run(SQLiteBackend.open(url)))
with backend.interfere(lambda: signal.raise_signal(int(how)), at=9):
    store_on(backend, clock=time.time_ns).maintenance.prune(keep_last=5)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_process_that_is_ended_in_the_middle(tmp_path: Path, how: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        expected: dict[str, dict[str, Any]] = {}
        for number in range(4):
            for n in range(60):
                state = {"n": n, "list": list(range(n)), "text": f"{number} {n}" * 300}
                id = store.thread(f"t{number}").put(state).id
                expected.setdefault(f"t{number}", {})[id] = state
        done = subprocess.run(
            [sys.executable, "-c", PRUNER, url, str(int(how))], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == -how, done.stderr
        count_kill(how is signal.SIGKILL)
        for thread, states in expected.items():
            found = states_of(store, thread)
            assert found == {id: states[id] for id in found}
            assert list(found)[:5] == sorted(states, reverse=True)[:5]
        lengths = [len(store.thread(thread).log()) for thread in expected]
        assert 5 in lengths, "some were pruned"
        assert 60 in lengths, "and some were not"
    with holdfast.open(url) as store:
        if how is signal.SIGINT:
            report = store.maintenance.prune(keep_last=5)  # the lease was given back
            assert not report.problems
        assert store.thread("t0").get().state == expected["t0"][max(expected["t0"])]


@pytest.mark.nightly
def test_writers_go_on_without_errors(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as store:
        for number in range(5):
            for n in range(30):
                store.thread(f"t{number}").put({"n": n, "list": [f"item {i}" for i in range(n)]})
        errors: list[BaseException] = []
        saved: dict[str, Any] = {}
        over = threading.Event()

        def write() -> None:
            n = 0
            try:
                while not over.is_set() or n < 50:
                    state = {"n": f"new {n}", "list": [f"item {i}" for i in range(n)]}
                    saved[store.thread(f"t{n % 5}").put(state).id] = state
                    n += 1
            except BaseException as error:
                errors.append(error)
                raise

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(3):
                report = store.maintenance.prune(keep_last=10)
                assert not report.problems
        finally:
            over.set()
            writer.join()
        assert not errors
        for number in range(5):
            found = states_of(store, f"t{number}")
            assert found == {id: saved.get(id, state) for id, state in found.items()}
        store.maintenance.prune(keep_last=10)
        assert {len(store.thread(f"t{number}").log()) for number in range(5)} == {10}
        latest = max(saved)
        assert (
            store.thread(next(each.thread for each in store.threads() if each.latest == latest)).get().state
            == saved[latest]
        )
