"""Eight processes save to threads in MongoDB that they share, and are killed all the time. What each was acknowledged
is in a file that knows nothing of the store."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import holdfast
from holdfast.errors import ConflictError
from tests.backends.test_mongodb_lines import _check_places
from tests.servers import mongodb
from tests.support.kills import count_kill

PROCESSES = 8
KILLS = 16
THREADS = ("shared 0", "shared 1")
ROOT = Path(__file__).resolve().parents[2]


def work(url: str, ledger: str, name: str) -> None:
    """Save to own and to shared threads until killed, or until the input ends, and note what was acknowledged."""
    os.set_blocking(0, False)
    chance = random.Random(name)
    noted = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with holdfast.open(url, timeout=120) as store:
        number = 0
        while not _has_ended():
            number += 1
            thread = chance.choice([*THREADS, name])
            said = [f"{name} says {n}" for n in range(max(0, number - 20), number)]
            try:
                store.thread(thread).put({"messages": said, "by": name}, metadata={"by": name, "number": number})
            except ConflictError:
                continue  # on a busy machine the others may be first for half a minute
            os.write(noted, f"{thread}\t{name}\t{number}\n".encode())  # at once: a short line is not torn


def _has_ended() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def _start(url: str, ledger: Path, name: str) -> subprocess.Popen[bytes]:
    command = f"from tests.backends.test_mongodb_processes import work; work({url!r}, {str(ledger)!r}, {name!r})"
    return subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.nightly
def test_eight_processes_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    url, ledger, chance = mongodb(), tmp_path / "ledger", random.Random(3)
    numbers = iter(range(1_000))
    names = [f"worker {next(numbers)}" for _ in range(PROCESSES)]
    running = {name: _start(url, ledger, name) for name in names}
    deadline = time.monotonic() + 600

    def acknowledged() -> list[tuple[str, str, int]]:
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [(thread, name, int(number)) for thread, name, number in (line.split("\t") for line in lines)]

    for _ in range(KILLS):
        name = chance.choice(list(running))
        while sum(each[1] == name for each in acknowledged()) < 2:  # it is at work
            assert time.monotonic() < deadline
            assert running[name].poll() is None, running[name].communicate()[1].decode()
            time.sleep(0.01)
        time.sleep(chance.random() * 0.05)
        running[name].kill()
        running.pop(name).communicate()
        count_kill()
        new = f"worker {next(numbers)}"
        running[new] = _start(url, ledger, new)
    for process in running.values():  # at once: those that go on are in the way of the one that ends
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    for process in running.values():
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    expected = acknowledged()
    found: Counter[tuple[str, str, int]] = Counter()
    with holdfast.open(url) as store:
        for thread in {each[0] for each in expected}:
            for each in store.thread(thread).log().all():
                found[thread, each.metadata["by"], each.metadata["number"]] += 1
        assert store.maintenance.verify().findings == []
    assert [each for each, times in found.items() if times > 1] == [], "saved twice"
    assert [each for each in expected if each not in found] == [], "acknowledged and lost"
    assert len(found) - len(expected) <= KILLS, "saved and not acknowledged, by processes that were not killed"
    with holdfast.open(url) as store:
        store.maintenance.project()  # the readable rows of those that died, however short ago that was
    with MongoClient[dict[str, Any]](url) as client:
        assert _check_places(client.get_default_database()) > 0
        assert client.get_default_database().lines.count_documents({"behind": {"$gt": {}}}) == 0
