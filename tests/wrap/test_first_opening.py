"""Several that open a pair of stores for the first time, all at once: they make one pair of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.backends.memory import Memory
from holdfast.backends.port import Batch, Create, Query, Row
from holdfast.backends.spaces import STEPS
from holdfast.backends.waiting import run
from holdfast.backends.wrap.pair import attach, cursor_of, identity_of
from holdfast.backends.wrap.tiers import _pair
from holdfast.backends.wrap.urls import compose
from holdfast.testing.rows import step
from tests.wrap.pairs import contents, opened, paired, settled, sqlite

CHILD = """
import sys
from holdfast.backends.port import Create
from holdfast.backends.spaces import STEPS
from holdfast.backends.waiting import run
from holdfast.testing.rows import step
from tests.wrap.pairs import opened

line = sys.argv[1]
print("ready", flush=True)
for url in sys.stdin:
    store = opened(url.strip())
    assert run(store.apply([Create(STEPS, step(line=line))])) is None
    run(store.close())
    print("done", flush=True)
"""

PARTS = {"behind": ("local", "remote"), "mirror": ("local", "remote"), "tiers": ("hot", "cold")}


@pytest.mark.parametrize("kind", PARTS)
def test_processes_that_open_a_new_pair_at_once(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", CHILD]
    children = [
        subprocess.Popen([*command, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for line in "abc"
    ]
    try:
        answers = [_told(child) for child in children]
        for number in range(6):
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
        assert answers == ["ready\n"] * 3 + ["done\n"] * 18
    finally:
        for child in children:
            child.communicate()


def _told(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


class Interrupted(Memory):
    """Before one of its calls, somebody else does something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at = 0
        self.meanwhile: Callable[[], object] = lambda: None

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._call()
        return await super().read(queries)

    async def apply(self, batch: Batch) -> int | None:
        self._call()
        return await super().apply(batch)

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.meanwhile()


PLACES = [(which, at) for which in range(2) for at in range(1, 8)]


@pytest.mark.parametrize(("which", "at"), PLACES)
def test_a_pair_that_another_makes_meanwhile(which: int, at: int) -> None:
    local, remote = stores = (Interrupted(), Interrupted())
    stores[which].at = at

    def other() -> None:
        store = paired(local, remote)
        assert run(store.apply([Create(STEPS, step())])) is None
        settled(store)

    stores[which].meanwhile = other
    identity = run(attach(local, remote, restore=False))
    assert (identity, False) == run(identity_of(local))
    cursor = run(cursor_of(remote))
    assert cursor is not None
    assert cursor.id == identity.id


@pytest.mark.parametrize(("which", "at"), PLACES)
def test_a_local_store_that_another_restores_meanwhile(which: int, at: int) -> None:
    remote = Interrupted()
    lost = paired(Memory(), remote)
    assert run(lost.apply([Create(STEPS, step(0))])) is None
    assert lost._sender.arrival(1, 10).wait()
    lost._sender.stop(10)
    local = Interrupted()
    remote.calls = 0
    stores = (local, remote)
    stores[which].at = at

    def other() -> None:
        run(attach(local, remote, restore=True))
        store = paired(local, remote)
        assert run(store.apply([Create(STEPS, step(1))])) is None

    stores[which].meanwhile = other
    run(attach(local, remote, restore=True))
    store = paired(local, remote)
    assert run(store.apply([Create(STEPS, step(2))])) is None
    settled(store)
    assert contents(remote) == contents(local)
    assert contents(remote)[STEPS.name][0] == step(0)
    assert contents(remote)[STEPS.name][-1] == step(2)


@pytest.mark.parametrize(("which", "at"), PLACES)
def test_tiers_that_another_makes_meanwhile(which: int, at: int) -> None:
    hot, cold = stores = (Interrupted(), Interrupted())
    stores[which].at = at
    stores[which].meanwhile = lambda: run(_pair(hot, cold))
    run(_pair(hot, cold))
    run(_pair(hot, cold))
