"""Several writers are killed at any moment, again and again: nothing that they were told is saved is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.conformance.processes import KILLED
from holdfast.backends.runtime.drivers import run
from tests.engine.writer import state_of
from tests.servers.places import DURABLE, place
from tests.support.kills import count_kill
from tests.support.nightly import by_day, mostly_nightly

WRITERS = ("ann", "bob", "cid")


def one_round(url: str, chance: random.Random, acknowledged: dict[str, dict[str, tuple[str, int]]]) -> None:
    """Start writers, kill them after a while, and note what they were told."""
    command = [sys.executable, "-m", "tests.engine.writer", url]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in WRITERS]
    try:
        first = writers[0].stdout
        assert first is not None
        said = [first.readline() for _ in range(3)]  # they are under way
        time.sleep(chance.uniform(0, 0.25))
    finally:
        for writer in writers:
            writer.kill()
    deleting: set[str] = set()
    for writer in writers:
        assert writer.stdout is not None
        out = writer.stdout.read()  # and not communicate(), which would miss what is buffered
        writer.stdout.close()
        writer.wait()
        assert writer.returncode == KILLED, "a writer ended by itself"
        count_kill()
        for line in said + out.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # cut off while speaking: not told
            what, thread, *rest = line[:-1].split("\t")
            if what == "saved":
                id, by, number = rest
                acknowledged.setdefault(thread, {})[id] = (by, int(number))
            elif what == "deleting":
                deleting.add(thread)
            else:
                deleting.discard(thread)
                acknowledged.pop(thread, None)
        said = []
    for thread in deleting & acknowledged.keys():  # may be there or not
        if not survived(url, thread, acknowledged[thread].keys()):
            del acknowledged[thread]


def survived(url: str, thread: str, ids: Collection[str]) -> bool:
    """Whether a thread was not deleted. A server may still be busy with a delete whose client was killed: a save to the
    same thread waits for it."""
    with holdfast.open(url) as store:
        store.thread(thread).put(state_of("nobody", 0), metadata={"number": 0})
        return any(checkpoint.id in ids for checkpoint in store.thread(thread).log().all())


def check(url: str, acknowledged: dict[str, dict[str, tuple[str, int]]], recent: int) -> None:
    """What was acknowledged is there, and everything that is there is whole."""
    with holdfast.open(url) as store:
        for thread, ids in acknowledged.items():
            log = list(store.thread(thread).log().all())
            assert ids.keys() <= {checkpoint.id for checkpoint in log}, thread
            for checkpoint in log[:recent]:
                state = store.thread(thread).get(checkpoint.id).state
                assert state == state_of(state["by"], state["number"])
                assert checkpoint.metadata["number"] == state["number"]
                if checkpoint.id in ids:
                    assert ids[checkpoint.id] == (state["by"], state["number"])


def rounds(url: str, count: int, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: dict[str, dict[str, tuple[str, int]]] = {}
    for _ in range(count):
        one_round(url, chance, acknowledged)
        check(url, acknowledged, recent=30)
    check(url, acknowledged, recent=10**6)
    assert sum(map(len, acknowledged.values())) > count
    with holdfast.open(url) as store:
        assert run(store._engine.context.backend.check()) == []


@pytest.mark.parametrize("count", mostly_nightly([2, 12], daily=[2]))
def test_killed_writers_lose_nothing(tmp_path: Path, count: int) -> None:
    rounds(place("sqlite", tmp_path), count, 1)


@pytest.mark.nightly  # by day on SQLite, and of each store in its conformance
@pytest.mark.parametrize("kind", [kind for kind in DURABLE if kind != "sqlite"])
def test_killed_writers_lose_nothing_on_any_store(tmp_path: Path, kind: str) -> None:
    rounds(place(kind, tmp_path), by_day(3, 1), 3)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(10, 20))
def test_killed_a_thousand_times(tmp_path: Path, seed: int) -> None:
    rounds(place("sqlite", tmp_path), 100, seed)


@pytest.mark.torture
@pytest.mark.parametrize("kind", [kind for kind in DURABLE if kind != "sqlite"])
def test_killed_a_hundred_times_on_any_store(tmp_path: Path, kind: str) -> None:
    rounds(place(kind, tmp_path), 100, 20)
