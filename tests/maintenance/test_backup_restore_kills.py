"""Restores, killed in the middle: the store is as it was, or all is restored; and then the application goes on, or the
next restore comes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Store
from tests.support.kills import count_kill

CHILD = """
import sys
import holdfast
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.backends.tables import JOBS, LINES
from holdfast.engine.copy import row_writer
from holdfast.engine.row_format import LEASE

row_writer._JOINT_BYTES = 500  # several batches
row_writer.BATCH_ROWS = 8

def phase(batch):
    created = [each for each in batch if type(each).__name__ in ("Create", "Put")]
    if any(each.space is JOBS or (each.space is LINES and each.row.key[1] == "x") for each in created):
        return "commit"
    if any(each.row.key[2:4] == (LEASE, "copy") for each in created):
        return "begin"
    return "rows" if created else "other"

original = SQLiteBackend.apply

async def apply(self, batch):
    print(f"before {phase(batch)}", flush=True)
    result = await original(self, batch)
    print(f"after {phase(batch)}", flush=True)
    return result

url, repository, backup = sys.argv[1:]
with holdfast.open(url) as store:
    SQLiteBackend.apply = apply
    store.backups(repository).restore(backup, in_place=True, progress=lambda *_: print("progress", flush=True))
print("end", flush=True)
"""

PHASES = {f"{when} {what}" for when in ("before", "after") for what in ("begin", "rows", "commit")}
KILLS = 60


def state_of(store: Store) -> dict[str, Any]:
    """What the application sees."""
    found: dict[str, Any] = {each.thread: store.thread(each.thread).get().state["n"] for each in store.threads().all()}
    found |= {f"agent {each}": store.state(agent=each).get("n", None) for each in ("r", "q")}
    return found | {"jobs": [each.name for each in store.jobs.list()]}


def prepare(folder: Path) -> dict[str, dict[str, Any]]:
    """Fill a store and make two backups. Returns what they have, and what the store has afterwards: it has gone on in
    some threads, and lacks others; and a second store has but the first backup."""
    seen = {}
    with holdfast.open(f"sqlite:///{folder / 'original.db'}") as store:
        backups = store.backups(folder / "repository")
        for number in (1, 2):
            for name in ("x", "y", "deleted"):
                for step in range(6):
                    store.thread(name).put({"n": number, "step": step, "text": f"{name} {number} {step} " * 500})
            for agent in ("r", "q"):
                store.state(agent=agent)["n"] = number
            store.jobs.add(f"tidy-{number}", "tidy", schedule="every 1h")
            seen[str(number)] = state_of(store)
            backups.create()
        for name in ("x", "y"):
            store.thread(name).put({"n": 3})
        for agent in ("r", "q"):
            store.state(agent=agent)["n"] = 3
        store.thread("deleted").delete()
        for number in (1, 2):
            store.jobs.remove(f"tidy-{number}")
        seen["gone on"] = state_of(store)
    with holdfast.open(f"sqlite:///{folder / 'older.db'}") as older:
        older.backups(folder / "repository").restore("1")
        seen["older"] = state_of(older)
    return seen


def strike(url: str, repository: Path, backup: str, after: int) -> str:
    """Restore in another process, and kill it when it has announced so many phases. Returns the last one."""
    command = [sys.executable, "-c", CHILD, url, str(repository), backup]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        phase = ""
        for _ in range(after):
            phase = process.stdout.readline().strip() or phase
            if phase == "end":
                break
        process.send_signal(signal.SIGKILL)
    count_kill(process.returncode == -signal.SIGKILL)
    return phase


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_killed(kills: int, tmp_path: Path) -> None:
    seen, repository, random = prepare(tmp_path), tmp_path / "repository", Random(7)
    struck, outcomes = Counter[str](), Counter[str]()
    for number in range(kills):
        for file in tmp_path.glob("target.db*"):
            file.unlink()
        start = "older" if number % 2 else "gone on"
        backup = "2" if start == "older" else random.choice("12")
        shutil.copy(tmp_path / f"{'older' if number % 2 else 'original'}.db", tmp_path / "target.db")
        url = f"sqlite:///{tmp_path / 'target.db'}"
        struck[strike(url, repository, backup, random.randint(1, 22))] += 1
        with holdfast.open(url) as store:
            found = state_of(store)
            wanted = {**seen[backup], "jobs": sorted({*seen[start]["jobs"], *seen[backup]["jobs"]})}
            outcome = "before" if found == seen[start] else "after" if found == wanted else "half"
            assert outcome != "half", (found, seen[start], wanted)
            report = store.maintenance.verify(level="decode")
            assert report.ok, report.findings
            act = random.choice(["put", "the same", "another"])
            outcomes[f"{outcome}, then {act}"] += 1
            if act == "put":
                for name in ("x", "deleted", "new"):
                    store.thread(name).put({"n": "mine"})
                    assert store.thread(name).get().state == {"n": "mine"}
            else:
                chosen = backup if act == "the same" else {"1": "2", "2": "1"}[backup]
                store.backups(repository).restore(chosen, in_place=True)
                again = {name: value for name, value in state_of(store).items() if name != "jobs"}
                assert again == {name: value for name, value in seen[chosen].items() if name != "jobs"}
            report = store.maintenance.verify(level="decode")
            assert report.ok, report.findings
            if act == "put":
                store.backups(repository).restore("2", in_place=True)
                assert store.maintenance.verify(level="decode").ok
    assert struck.keys() <= PHASES | {"progress", "before other", "after other", "end"}
    if kills == KILLS:
        assert struck.keys() >= PHASES, f"never struck: {PHASES - struck.keys()}"
        assert {each.partition(",")[0] for each in outcomes} == {"before", "after"}
        assert len(outcomes) == 6, outcomes
