"""Sessions are collected while threads and processes work in them; the power fails in the middle of a collection."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import STEPS
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import StepRef
from holdfast.store.store import Store
from tests.engine.lines import Clock, store_on
from tests.state.session_worker import IDLE, SESSIONS, work
from tests.support.nightly import by_day
from tests.support.sqlite.powercut import Labels, check_cuts, record
from tests.support.sqlite.recording import Recorder

SECONDS = by_day(1.5, 0.8)


def steps_of(store: Store, prefix: str) -> dict[str, list[StepRef]]:
    """The steps of all lines whose names start so."""
    found = {}
    for line in run(store._engine.lines.names("", prefix)):
        (rows,) = run(store._engine.context.backend.read([Scan(STEPS, tuple(line), bodies=False)]))
        found[line.name] = [StepRef.of(row) for row in rows]
    return found


@pytest.mark.nightly
def test_live_sessions_are_left_alone(tmp_path: Path) -> None:
    """Whatever the timing: no session ended that had been active a moment before, and no write in one was lost."""
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        for number in range(SESSIONS):
            store.sessions.start(str(number), idle=IDLE, on_end="archive")
        command = [sys.executable, "-m", "tests.state.session_worker", url]
        others = [
            subprocess.Popen([*command, f"p{number}", str(SECONDS)], stdout=subprocess.PIPE, text=True)
            for number in range(2)
        ]
        ends, stop = 0, threading.Event()

        def collect() -> int:
            ended = 0
            while not stop.is_set():
                ended += store.sessions.collect().ended
            return ended

        with ThreadPoolExecutor(4) as pool:
            collectors = [pool.submit(collect) for _ in range(2)]
            workers = {f"t{number}": pool.submit(work, store, f"t{number}", SECONDS) for number in range(2)}
            done = {name: worker.result(60) for name, worker in workers.items()}
            for number, process in enumerate(others):
                out, _ = process.communicate(timeout=60)
                assert process.returncode == 0
                done[f"p{number}"] = json.loads(out)
            stop.set()
            ends = sum(collector.result(60) for collector in collectors)
        assert ends > 0
        lasted = 0
        for id in map(str, range(SESSIONS)):
            lines = steps_of(store, f"{MARK}session:{id}")
            store.sessions.resume(id)
            archives = [step for step in lines[f"{MARK}session:{id}"] if step.kind == "archive"]
            lasted += len(archives)
            for archive in archives:
                before = [
                    step.time
                    for steps in lines.values()
                    for step in steps
                    if step.time < archive.time and step.kind not in ("archive", "restore")
                ]
                assert archive.time - max(before, default=0) >= IDLE * 1e9
            for worker, counts in done.items():
                key = f"count/{worker}"
                states = store.state(session=id), store.state(session=id, agent=worker)
                told = {name: [step.kind for step in steps] for name, steps in lines.items()}
                assert sum(state.get(key, 0) for state in states) == counts[id], (id, worker, told)
        assert lasted == ends
        assert not store.maintenance.verify().damaged


def test_power_cuts_while_sessions_are_collected() -> None:
    kept = {"a": 1, "large": "x" * 70_000}

    def workload(folder: Path, recorder: Recorder) -> None:
        opened = run(
            SQLiteBackend.open(f"sqlite:///{folder}/store.db", vfs=recorder.vfs, exclusive=True, synchronous="full")
        )
        clock = Clock()
        store = store_on(opened, clock=clock)
        for on_end in ("delete", "archive", "keep"):
            session = store.sessions.start(on_end, idle=60, on_end=on_end, retention=60)
            session.state.batch(kept)
            store.state(session=on_end, agent="x")["b"] = 2
        store.sessions.start("alive", idle=10**6).state.batch(kept)
        recorder.mark("filled")
        clock.now += 61 * 10**9
        store.sessions.collect()
        recorder.mark("collected")
        store.sessions.resume("archive")
        recorder.mark("restored")
        clock.now += 61 * 10**9
        store.sessions.collect()
        recorder.mark("forgotten")
        run(opened.close())

    seen: set[tuple[Any, ...]] = set()

    def verify(folder: Path, labels: Labels) -> None:
        if not labels:
            return
        opened = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
        clock = Clock(Clock().now + 122 * 10**9 + 10**9)
        store = store_on(opened, clock=clock)
        try:
            found = {session.id: (session.ended is None, session) for session in store.sessions.list()}
            for id, (alive, session) in found.items():
                whole = kept if alive or id == "keep" else {}
                assert dict(session.state) == whole
                assert dict(store.state(session=id, agent="x")) == ({"b": 2} if whole and id != "alive" else {})
                if id == "archive" and not alive:
                    assert store.sessions.archived(id) == kept
            assert found["alive"][0]
            assert ("delete" in found) or "restored" in labels
            if "collected" in labels and "delete" in found:
                assert not found["delete"][0]
            seen.add(tuple(sorted((id, alive) for id, (alive, _) in found.items())))
            assert not store.maintenance.verify().damaged
            store.sessions.collect()
            assert [each.id for each in store.sessions.list(status="active")] == ["alive"]
        finally:
            run(opened.close())

    check_cuts(record(workload), verify, cuts=by_day(60, 30))
    assert len(seen) >= 4
