"""Erasures whose process is killed: resumed, they leave nothing, and nothing else is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from tests.security.erasure.people import few_states, found_in, opened_rows, plant, plant_few, states_of
from tests.support.kills import MOMENTS, Moment, kill, kill_at_write, run_in_child
from tests.support.nightly import mostly_nightly

_NIGHTLY = 100

_PHASES = [
    "u-1 chat",
    "u-1 file",
    "user:u-1",
    "group",
    "histories of records",
    "audit records",
    "keys",
    "purge",
    "certificate",
]
_FEW = ["u-1 chat", "group", "certificate"]


@pytest.mark.parametrize("expected", mostly_nightly([_PHASES, _FEW], daily=[_FEW]), ids=len)
def test_an_erasure_is_resumed_wherever_it_was_killed(expected: list[str], tmp_path: Path) -> None:
    path, phases = tmp_path / "a.db", [each for each in _PHASES if each not in expected]
    with holdfast.open(path) as store:
        plant_few(store)
        before = few_states(store, "u-2")
    while phase := _erase_in_child(path, spared=phases):
        phases.append(phase)
    with holdfast.open(path) as store:
        (certificate,) = store.erasure.certificates()
        assert (certificate.erased, certificate.rewritten) == ({"scopes": 1, "threads": 2}, {"threads": 1})
        assert certificate.steps_removed == 5
        assert found_in(opened_rows(store))["u-1"] == set()
        assert few_states(store, "u-2") == before
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
        assert store.jobs.list() == []
    assert found_in(path.read_bytes() for path in tmp_path.iterdir())["u-1"] == set()
    assert phases[-len(expected) :] == expected


@pytest.mark.nightly
@pytest.mark.parametrize("encryption", [False, Encryption(LocalKeys(b"1" * 32))], ids=["plain", "encrypted"])
def test_erasures_that_are_killed_at_any_moment(encryption: Encryption | Literal[False], tmp_path: Path) -> None:
    rng, struck, number = random.Random(22), Counter[str](), 0
    phases = {"begin", "u-1", "session", "group", "histories", "audit"}
    while struck.total() < _NIGHTLY or (struck.total() < 3 * _NIGHTLY and not phases <= struck.keys()):
        path = tmp_path / f"{number}.db"
        number += 1
        with holdfast.open(path, encryption=encryption) as store:
            plant(store)
            before = states_of(store, "u-2")
        last = 40  # what comes first is there only once
        while phase := _erase_in_child(path, encryption, write=rng.randint(1, last), moment=rng.choice(MOMENTS)):
            struck[phase.split()[0]] += 1
            last = rng.choice([10, 20, 80])  # where most is done, what is left takes a few writes
        with holdfast.open(path, encryption=encryption) as store:
            certificate = store.erasure.certificates()[0]  # one that was killed after its last write has another
            assert (certificate.erased["threads"], certificate.erased["agents"]) == (2, 1)
            assert found_in(opened_rows(store))["u-1"] == set()
            assert states_of(store, "u-2") == before
            assert store.maintenance.verify(level="decode").findings == []
            assert store.audit.verify().findings == []
            assert store.jobs.list() == []
        assert found_in([path.read_bytes()])["u-1"] == set()
    assert struck.keys() >= phases, struck


def _erase_in_child(
    path: Path,
    encryption: Encryption | Literal[False] = False,
    *,
    spared: Collection[str] | None = None,
    write: int = 0,
    moment: Moment = "after",
) -> str:
    """Erase in a process that is killed when it reports anything but what is spared, or at a write. Returns the last
    thing that it reported, or `begin`; empty if it was faster."""

    def work(report: Callable[[str], None]) -> None:
        def progress(done: int, total: int | None, what: str) -> None:
            report(what)
            if spared is not None and what not in spared:
                kill()

        if write:
            kill_at_write(write, moment)
        with holdfast.open(path, encryption=encryption) as store:
            store.erasure.erase("u-1", progress=progress)  # at once, though the leases of the process before are there

    reported, killed = run_in_child(work)
    return "" if not killed else reported[-1] if reported else "begin"
