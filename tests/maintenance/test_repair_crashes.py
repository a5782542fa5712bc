"""Repair is cut off: by the power, by a kill; or others write meanwhile. Whatever could be read before can be read."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import NODES, STEPS
from holdfast.engine.integrity.findings import FindingCode
from holdfast.errors import CorruptError
from holdfast.store.store import Store
from tests.agents.autosaved import until
from tests.damaged import flipped
from tests.engine.lines import Clock, store_on
from tests.engine.pruned import filled
from tests.maintenance.damage import damage_in, memory
from tests.maintenance.test_prune import states_of
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.powercut import Labels, check_cuts, record
from tests.support.sqlite.recording import Recorder

LATER = Clock().now + 3600 * 10**9


def spoil(store: Store, thread: str, *seqs: int) -> None:
    """Damage steps of a thread, and take a node away that older states need, and the latest does not."""
    backend = store._engine.context.stored
    steps, nodes = run(backend.read([Scan(STEPS, ("", thread, 0)), Scan(NODES, ("", thread))]))
    for node in nodes:
        run(backend.apply([Delete(NODES, node.key)]))
        try:
            store_on(backend).thread(thread).get()
            break
        except CorruptError:
            run(backend.apply([Put(NODES, node)]))
    else:
        pytest.fail("the latest state needs every node")
    for row in steps:
        if row.key[3] in seqs:
            run(backend.apply([Put(STEPS, row._replace(body=flipped(row.body, -17)))]))


@pytest.mark.parametrize(("copy", "cuts"), mostly_nightly([*product([True, False], [25, 120])], daily=[(True, 25)]))
def test_power_cuts(copy: bool, cuts: int) -> None:
    whole: dict[str, Any] = {}
    readable: dict[str, Any] = {}
    intact = store_on(memory(), fold_every=3)

    def workload(folder: Path, recorder: Recorder) -> None:
        url = f"sqlite:///{folder}/store.db"
        opened = run(SQLiteBackend.open(url, vfs=recorder.vfs, exclusive=True, synchronous="full"))
        store = filled(opened, clock=Clock())
        whole.update(states_of(store, "t"))
        store.maintenance.copy_to(intact)
        spoil(store, "t", 6)
        readable.update({id: whole[id] for id in whole if can_read(store, id)})
        recorder.mark("damaged")
        assert store.maintenance.repair(intact if copy else ()).ok
        recorder.mark("repaired")
        run(opened.close())

    def verify(folder: Path, labels: Labels) -> None:
        if not labels:
            return
        opened = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
        store = store_on(opened, fold_every=3, clock=Clock(LATER), cache_bytes=0)
        try:
            assert {id: store.thread("t").get(id).state for id in readable} == readable
            assert store.maintenance.repair(intact if copy else ()).ok
            assert damage_in(store._engine) == []
            found = states_of(store, "t")
            assert found == whole if copy else readable.items() <= found.items() <= whole.items()
        finally:
            run(opened.close())

    check_cuts(record(workload), verify, cuts=cuts)
    assert 0 < len(readable) < len(whole)


def can_read(store: Store, id: str) -> bool:
    fresh = store_on(store._engine.context.backend, fold_every=3, cache_bytes=0)
    try:
        fresh.thread("t").get(id)
    except ValueError:
        return False
    return True


LEAF = 13
"""The first byte of a page with rows."""

REPAIRER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    print("open", flush=True)
    store.maintenance.repair()
"""


@pytest.mark.nightly
def test_a_process_that_is_killed_while_it_puts_a_file_in_order(tmp_path: Path) -> None:
    killed, delays = 0, [0.0, 0.02, 0.05, 0.1]
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        killed += killed_while_it_repairs(folder, delays.pop() if delays else 0.0)
        if killed and not delays:
            return
    pytest.fail("it was always done before it was killed")


def killed_while_it_repairs(tmp_path: Path, delay: float) -> bool:
    """Return whether it was killed before it was done. Either way the file is in order when it is repaired again."""
    path = tmp_path / "store.db"
    with holdfast.open(f"sqlite:///{path}") as store:
        for n in range(60):
            store.thread("t").put({"n": n, "text": f"{n} " * 500}, id=f"{n:02}")
        truth = states_of(store, "t")
    data = bytearray(path.read_bytes())
    page = max(page for page in range(1, len(data) // 4096) if data[page * 4096] == LEAF)
    data[page * 4096] ^= 1
    path.write_bytes(data)
    child = subprocess.Popen(
        [sys.executable, "-c", REPAIRER, f"sqlite:///{path}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=300)
    finally:
        child.kill()
    opened = run(SQLiteBackend.open(f"sqlite:///{path}"))
    try:
        store = store_on(opened, clock=Clock(time.time_ns() + 3600 * 10**9))  # whoever had a lease is taken for dead
        assert {each.code for each in store.maintenance.repair().left} == {FindingCode.LOST_ROWS}
        assert store.maintenance.repair(accept_loss=True).ok
        assert states_of(store, "t").items() <= truth.items()
        assert len(store.thread("t").log()) >= 40  # those on other pages
        assert store.maintenance.verify(level="decode").findings == []
    finally:
        run(opened.close())
    kept = list(tmp_path.glob("store.db.damaged-*"))
    assert any(bytes(data[page * 4096 : (page + 1) * 4096]) in each.read_bytes() for each in kept)
    killed = child.returncode == -signal.SIGKILL
    count_kill(killed)
    return killed


@pytest.mark.nightly
def test_writers_go_on_while_rows_are_mended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store, holdfast.open(url) as other:
        for n in range(80):
            store.thread("t").put({"n": n, "list": list(range(n % 50))}, id=f"{n:03}")
        store.maintenance.copy_to(f"sqlite:///{tmp_path}/copy.db")
        truth = states_of(store, "t")
        spoil(store, "t", 20, 50)
        errors: list[BaseException] = []
        saved: dict[str, Any] = {}
        over = threading.Event()

        def write() -> None:
            n = 0
            try:
                while not over.is_set():
                    state = {"new": n}
                    saved[other.thread("t").put(state, id=f"new {n:05}").id] = state
                    n += 1
                    time.sleep(0.02)
            except BaseException as error:
                errors.append(error)
                raise

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: saved or errors, 60)
            done = store.maintenance.repair(f"sqlite:///{tmp_path}/copy.db")
        finally:
            over.set()
            writer.join()
        assert not errors
        assert done.ok
        assert saved
        assert states_of(store, "t") == {**truth, **saved}
        assert store.maintenance.verify(level="decode").damage == []
