"""Several that open a pair of stores for the first time, all at once: they make one pair of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.urls import compose
from holdfast.backends.wrappers.replica_pair import attach, read_cursor, read_identity
from holdfast.backends.wrappers.tiering import _attach
from tests.backends.wrappers.pairs import contents, opened, paired, settled, sqlite
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import mostly_nightly

CHILD = """
import sys
from holdfast.backends.interface import Create
from holdfast.backends.tables import STEPS
from holdfast.backends.runtime.drivers import run
from holdfast.backends.conformance.rows import step
from tests.backends.wrappers.pairs import opened

line = sys.argv[1]
print("ready", flush=True)
for url in sys.stdin:
    store = opened(url.strip())
    assert run(store.apply([Create(STEPS, step(line=line))])) is None
    run(store.close())
    print("done", flush=True)
"""

PARTS = {"write-behind": ("local", "remote"), "mirror": ("local", "remote"), "tiered": ("hot", "cold")}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(PARTS, daily=["mirror"]))
def test_processes_that_open_a_new_pair_at_once(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", CHILD]
    children = [
        subprocess.Popen([*command, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for line in "abc"
    ]
    try:
        answers = [_told(child) for child in children]
        for number in range(3):
            parts = {part: sqlite(tmp_path, f"{part}{number}") for part in PARTS[kind]}
            url = compose(kind, **parts)
            for child in children:
                assert child.stdin is not None
                child.stdin.write(url + "\n")
                child.stdin.flush()
            answers += [_told(child) for child in children]
            store = opened(url)
            assert [row.key[1] for row in contents(store)[STEPS.name]] == ["a", "b", "c"]
            assert run(store.check()) == []
            run(store.close())
        assert answers == ["ready\n"] * 3 + ["done\n"] * 9
    finally:
        for child in children:
            child.communicate()


def _told(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.mark.parametrize("part", [0, 1], ids=["local", "remote"])
def test_a_pair_that_another_makes_meanwhile(part: int) -> None:
    def scenario(moment: Moment) -> None:
        local, remote = stores = (InterferingBackend(), InterferingBackend())

        def other() -> None:
            store = paired(local, remote)
            assert run(store.apply([Create(STEPS, step())])) is None
            settled(store)

        with moment.interfere(stores[part], other):
            identity = run(attach(local, remote, restore=False))
        assert (identity, False) == run(read_identity(local))
        cursor = run(read_cursor(remote))
        assert cursor is not None
        assert cursor.id == identity.id
        assert len(contents(remote)[STEPS.name]) == moment.came

    at_every_moment(scenario, ["any"], at_least=5)


@pytest.mark.parametrize("part", [0, 1], ids=["local", "remote"])
def test_a_local_store_that_another_restores_meanwhile(part: int) -> None:
    def scenario(moment: Moment) -> None:
        remote = InterferingBackend()
        lost = paired(MemoryBackend(), remote)
        assert run(lost.apply([Create(STEPS, step(0))])) is None
        assert lost._sender.wait_sent(1, 10).wait()
        lost._sender.stop(10)
        local = InterferingBackend()
        stores = (local, remote)

        def other() -> None:
            run(attach(local, remote, restore=True))
            store = paired(local, remote)
            assert run(store.apply([Create(STEPS, step(1))])) is None
            settled(store)

        with moment.interfere(stores[part], other):
            run(attach(local, remote, restore=True))
        store = paired(local, remote)
        assert run(store.apply([Create(STEPS, step(2))])) is None
        settled(store)
        assert contents(remote) == contents(local)
        assert contents(remote)[STEPS.name] == [step(n) for n in (range(3) if moment.came else (0, 2))]

    at_every_moment(scenario, ["any"], at_least=5)


@pytest.mark.parametrize("part", [0, 1], ids=["hot", "cold"])
def test_tiers_that_another_makes_meanwhile(part: int) -> None:
    def scenario(moment: Moment) -> None:
        hot, cold = stores = (InterferingBackend(), InterferingBackend())
        with moment.interfere(stores[part], lambda: run(_attach(hot, cold))):
            run(_attach(hot, cold))
        before = contents(hot), contents(cold)
        run(_attach(hot, cold))
        assert (contents(hot), contents(cold)) == before

    at_every_moment(scenario, ["any"], at_least=5)
