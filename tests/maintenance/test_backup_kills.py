"""Backups, following, pruning and restoring, each killed in the middle: repository and target stay OK."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import holdfast
from tests.maintenance.test_backup import contents, fill

CHILD = """
import os, sys, time
import holdfast
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.engine.copy import row_writer
from holdfast.maintenance.backup.storage import RepositoryStorage

def announce(what):
    print(what, flush=True)

def watch(cls, method, name):
    original = getattr(cls, method)
    async def call(self, *arguments):
        announce(name(arguments))
        return await original(self, *arguments)
    setattr(cls, method, call)

def folder(arguments):
    first = arguments[0] if isinstance(arguments[0], str) else next(iter(arguments[0]), "nothing")
    return first.partition("/")[0]

url, repository, kind = sys.argv[1:]
with holdfast.open(url) as store:
    backups = store.backups(repository)
    if kind == "restore":
        row_writer._JOINT_BYTES = 500  # several batches
        watch(SQLiteBackend, "apply", lambda arguments: "apply")
    else:
        watch(RepositoryStorage, "create", lambda arguments: f"create {folder(arguments)}")
        watch(RepositoryStorage, "delete", lambda arguments: f"delete {folder(arguments)}")

    def put():
        store.put("chat", {"n": time.time(), "text": "x" * 1000})

    while True:
        if kind == "create":
            put()
            backups.create()
        elif kind == "prune":
            put()
            store.put("garbage", {"text": os.urandom(5000).hex()})
            backups.create()
            store.delete("garbage")
            backups.prune(keep_last=2, grace=0)
        elif kind == "follow":
            rounds = []
            def stop():
                put()
                rounds.append(1)
                return len(rounds) > 3
            backups.follow(interval=0.001, stop=stop)
        else:
            backups.restore("1", progress=lambda done, total, what: announce(what.split()[0]))
            for thread in list(store.threads()):
                store.delete(thread.thread)
"""

PHASES = {
    "create": {"create locks", "create packs", "create backups"},
    "follow": {"create locks", "create packs", "create backups"},
    "prune": {
        "create locks",
        "create packs",
        "create backups",
        "create removed",
        "create repacks",
        "create sweeps",
        "delete backups",
        "delete packs",
        "delete sweeps",
        "delete locks",
    },
    "restore": {"copied", "apply"},
}

KILLS = int(os.environ.get("HOLDFAST_KILLS", "200"))
"""How often each is killed by night."""


def strike(kind: str, url: str, repository: Path, phase: str, times: int, delay: float) -> None:
    """Run a process until it has announced a phase so many times, and kill it in the middle of that."""
    command = [sys.executable, "-c", CHILD, url, str(repository), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == phase:
                times -= 1
                if not times:
                    break
        else:
            pytest.fail(f"it ended before {phase}, with {process.wait()}")
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_killed(kind: str, kills: int, tmp_path: Path) -> None:
    repository, url = tmp_path / "repository", f"sqlite:///{tmp_path / 'agents.db'}"
    with holdfast.open(url) as store:
        fill(store)
        store.backups(repository).create()
        first = contents(store)
    target = f"sqlite:///{tmp_path / 'target.db'}" if kind == "restore" else url
    struck, random = Counter[str](), Random(kind)
    for number in range(kills):
        # In turns, since a phase that is rare or short would hardly ever be struck by chance.
        phase = random.choice(sorted(PHASES[kind])) if kills == 1 else sorted(PHASES[kind])[number % len(PHASES[kind])]
        times, delay = random.randint(1, 20 if phase == "apply" else 3), random.choice((0.0, random.random() / 100))
        strike(kind, target, repository, phase, times, delay)
        struck[phase] += 1
        with holdfast.open(target) as store:
            report = store.backups(repository).verify()
            assert report.ok, report.findings
            if kind == "restore":
                assert len(store.threads()) in range(4)
                store.maintenance.sweep_orphans(grace=0)
            assert store.maintenance.verify().ok
    with holdfast.open(target) as store, holdfast.open("memory://") as new:
        if kind == "restore":
            for thread in list(store.threads()):
                store.delete(thread.thread)
            store.backups(repository).restore("1")
            assert contents(store)[1] == first[1]  # type: ignore[index]
        else:
            store.backups(repository).create()
            new.backups(repository).restore()
            assert contents(new) == contents(store)
    assert sum(struck.values()) == kills
    if kills == KILLS:
        assert struck.keys() == PHASES[kind]
