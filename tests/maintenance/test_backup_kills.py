"""Backups, following, pruning, repairing and restoring, each killed in the middle: repository and target stay OK."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.object_store.object_storage import RetryingStorage
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.engine.copy import row_writer
from holdfast.maintenance.backup import pruner
from holdfast.store.backups import Backups
from tests.maintenance.test_backup import both_places, contents, fill
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly

Announce: TypeAlias = Callable[[str], None]


def work(url: str, repository: str, kind: str, pipe: Connection) -> None:
    """Do something again and again, and announce each phase of it, until this process is killed."""
    with holdfast.open(url) as store:
        backups = store.backups(repository)
        if kind == "restore":
            row_writer._JOINT_BYTES = 500  # several batches
            watch(SQLiteBackend, "apply", lambda method, arguments: pipe.send(method))
        else:
            pruner.MAX_REPACKS = 1
            for method in ("create", "put", "delete"):
                watch(RetryingStorage, method, lambda *call: pipe.send(phase_of(*call)))
        while True:
            WORK[kind](store, backups, pipe.send)


def watch(owner: Any, method: str, announce: Callable[[str, Sequence[Any]], None]) -> None:
    """Announce calls of a method."""
    original = getattr(owner, method)

    async def call(self: Any, *arguments: Any) -> Any:
        announce(method, arguments)
        return await original(self, *arguments)

    setattr(owner, method, call)


def phase_of(method: str, arguments: Sequence[Any]) -> str:
    name = arguments[0] if isinstance(arguments[0], str) else next(iter(arguments[0]), "nothing")
    first, *others = name.split("/")
    return f"{method} {first}/{others[0]}" if first == "copies" else f"{method} {first}"


def change(store: Store) -> None:
    store.thread("chat").put({"n": time.time(), "text": "x" * 1000})


def create(store: Store, backups: Backups[Any], announce: Announce) -> None:
    change(store)
    backups.create()


def follow(store: Store, backups: Backups[Any], announce: Announce) -> None:
    rounds = itertools.count()

    def stop() -> bool:
        change(store)
        return next(rounds) > 3

    backups.follow(interval=0.001, stop=stop)


def prune(store: Store, backups: Backups[Any], announce: Announce) -> None:
    change(store)
    store.thread("garbage").put({"text": os.urandom(5000).hex()})
    backups.create()
    store.thread("garbage").delete()
    backups.prune(keep_last=2, grace=0)


def repair(store: Store, backups: Backups[Any], announce: Announce) -> None:
    """Damage one object after another, and repair each."""
    repository = Path(str(backups._target))
    for number, damage in enumerate(DAMAGE):
        change(store)
        store.thread(f"other {number}").put({"text": os.urandom(500).hex()})
        backups.create()
        manifest, *_ = sorted((repository / "backups").glob("*/*"))[-3:]
        damage(manifest, both_places(repository, manifest)[1], newest_pack(repository))
        backups.repair()
        backups.prune(keep_last=4, grace=0, max_unused=1)


def newest_pack(repository: Path) -> Path:
    return max((repository / "packs").glob("*/*"), key=lambda path: path.stat().st_mtime_ns)


def lose_both(manifest: Path, copy: Path, pack: Path) -> None:
    manifest.write_bytes(b"")
    copy.write_bytes(b"")


def damage_pack(manifest: Path, copy: Path, pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[60] ^= 1
    pack.write_bytes(data)


DAMAGE: tuple[Callable[[Path, Path, Path], object], ...] = (
    lambda manifest, copy, pack: manifest.write_bytes(b"damaged"),
    lambda manifest, copy, pack: copy.write_bytes(b"damaged"),
    lose_both,
    damage_pack,
    lambda manifest, copy, pack: pack.unlink(),
)
"""Ways to damage a repository, given a manifest, its copy, and a pack."""


def restore(store: Store, backups: Backups[Any], announce: Announce) -> None:
    backups.restore("1", progress=lambda done, total, what: announce(what.split()[0]))
    for thread in list(store.threads()):
        store.thread(thread.thread).delete()


WORK: dict[str, Callable[[Store, Backups[Any], Announce], None]] = {
    "create": create,
    "follow": follow,
    "prune": prune,
    "repair": repair,
    "restore": restore,
}

COMMIT = {
    "create locks",
    "create packs",
    "create copies/packs",
    "create backups",
    "create copies/backups",
}
"""The phases of a backup."""

PHASES = {
    "create": COMMIT,
    "follow": COMMIT,
    "prune": {
        *COMMIT,
        "create removed",
        "create repacks",
        "create copies/repacks",
        "create sweeps",
        "delete backups",
        "delete packs",
        "delete sweeps",
        "delete repacks",
        "delete locks",
    },
    "repair": {
        *COMMIT,
        "put backups",
        "put copies/backups",
        "create removed",
        "create repacks",
        "create copies/repacks",
        "create losses",
        "create copies/losses",
        "delete backups",
        "delete packs",
    },
    "restore": {"copied", "apply"},
}

KILLS = int(os.environ.get("HOLDFAST_KILLS", "60"))
"""How often each is killed by night."""


PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])  # an attempt need not import everything


def strike(kind: str, url: str, repository: Path, phase: str, times: int, delay: float) -> None:
    """Run a process until it has announced a phase so many times, and kill it in the middle of that."""
    announced, pipe = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(url, str(repository), kind, pipe), daemon=True)
    process.start()
    pipe.close()
    try:
        while times:
            times -= announced.recv() == phase
    except EOFError:
        pytest.fail(f"it ended before {phase}")
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    count_kill()
    announced.close()


@pytest.mark.parametrize("kind", mostly_nightly(PHASES, daily=["create", "prune"]))
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
        print(number + 1, phase, times)  # shown if it fails
        with holdfast.open(target) as store:
            report = store.backups(repository).verify()
            if kind == "repair":
                store.backups(repository).repair()
            elif not report.ok:
                # It was killed between the two copies of an object.
                assert phase.startswith(("create", "delete"))
                assert {each.code for each in report.findings} == {"damaged-copy"}
                assert not store.backups(repository).repair().lost
            report = store.backups(repository).verify()
            assert report.ok, report.findings
            if kind == "restore":
                assert len(store.threads()) in range(4)
                store.maintenance.sweep_orphans(grace=0)
            elif number % 5 == 4:  # hundreds of backups would take long to verify after each kill
                store.backups(repository).prune(keep_last=2, grace=0)
            assert store.maintenance.verify().ok
    with holdfast.open(target) as store, holdfast.open("memory://") as new:
        if kind == "restore":
            for thread in list(store.threads()):
                store.thread(thread.thread).delete()
            store.backups(repository).restore("1")
            assert contents(store)[1] == first[1]  # type: ignore[index]
        else:
            store.backups(repository).create()
            new.backups(repository).restore()
            assert contents(new) == contents(store)
    assert sum(struck.values()) == kills
    if kills == KILLS:
        assert struck.keys() == PHASES[kind]
