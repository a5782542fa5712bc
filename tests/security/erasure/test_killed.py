"""Erasures whose process is killed: resumed, they leave nothing, and nothing else is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConflictError
from holdfast.store import erasure
from tests.security.erasure.people import few_states, found_in, opened_rows, plant, plant_few, states_of
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


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an erasure be resumed soon after its process died."""
    monkeypatch.setattr(erasure, "_LIFE", 0.3)


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
        assert found_in(opened_rows(store))["u-1"] == set()
        assert few_states(store, "u-2") == before
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
        assert store.jobs.list() == []
    assert found_in(path.read_bytes() for path in tmp_path.iterdir())["u-1"] == set()
    assert phases[-len(expected) :] == expected


@pytest.mark.nightly
def test_erasures_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    rng, struck, number = random.Random(22), Counter[str](), 0
    while struck.total() < _NIGHTLY:
        path = tmp_path / f"{number}.db"
        number += 1
        with holdfast.open(path) as store:
            plant(store)
            before = states_of(store, "u-2")
        while phase := _erase_in_child(path, seconds=rng.uniform(0.01, 0.6)):
            struck[phase.split()[0]] += 1
        with holdfast.open(path) as store:
            (certificate,) = store.erasure.certificates()
            assert (certificate.erased["threads"], certificate.erased["agents"]) == (2, 1)
            assert found_in(opened_rows(store))["u-1"] == set()
            assert states_of(store, "u-2") == before
            assert store.maintenance.verify(level="decode").findings == []
            assert store.audit.verify().findings == []
            assert store.jobs.list() == []
        assert found_in([path.read_bytes()])["u-1"] == set()
    assert len(struck) >= 6, struck


def _erase_in_child(path: Path, *, spared: Collection[str] | None = None, seconds: float = 0.0) -> str:
    """Erase in a process that is killed when it reports anything but what is spared, or after some seconds. Returns the
    last thing that it reported, or `begin`; empty if it was faster."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _erase_and_die(path, spared, seconds, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        reported = pipe.read().decode().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, reported
    if not os.WIFSIGNALED(status):
        return ""
    return reported[-1] if reported else "begin"


def _erase_and_die(path: Path, spared: Collection[str] | None, seconds: float, write: int) -> None:
    """Erase, in a child."""
    code = 1
    try:
        timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL))
        timer.daemon = True

        def progress(done: int, total: int | None, what: str) -> None:
            os.write(write, f"{what}\n".encode())
            if spared is not None and what not in spared:
                os.kill(os.getpid(), signal.SIGKILL)

        with holdfast.open(path) as store:
            while True:
                with suppress(ConflictError):  # the lease of the process before has not ended
                    if seconds and not timer.is_alive():
                        timer.start()
                    store.erasure.erase("u-1", progress=progress)
                    code = 0
                    break
                time.sleep(0.05)
    finally:
        os._exit(code)
