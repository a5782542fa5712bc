"""Durable after-hooks: their calls survive a process that is killed, and are made at least once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.process_identity import process_identity
from holdfast.backends.tables import LINKS
from holdfast.hooks.outbox import OutboxCall
from holdfast.hooks.registry import HookRegistry
from tests.hooks.kit import Clock, store
from tests.support.kills import count_kill

KILLED = """
import os, signal, sys, threading
import holdfast

store = holdfast.open(sys.argv[1])
moment = sys.argv[2]

@store.hooks.after("state.*", "checkpoint.save", durable=True, name="deliver")
def deliver(call):
    with open(sys.argv[3], "a") as file:
        file.write(call.call_id + "\\n")
    if moment == "running":
        os.kill(os.getpid(), signal.SIGKILL)

if moment == "waiting":
    block = threading.Event()
    @store.hooks.after("state.*", name="blocker")
    def blocker(call):
        pass
    store.hooks.remove("deliver")
    @store.hooks.after("state.*", "checkpoint.save", durable=True, name="deliver")
    def never(call):
        block.wait()
store.state(agent="a")["order"] = {"total": 7}
store.state(agent="a").delete("order")
store.state(agent="a")["other"] = [1, 2]
store.thread("chat").put({"n": 1})
if moment == "recorded":
    store.hooks.drain()
if moment != "running":
    os.kill(os.getpid(), signal.SIGKILL)
threading.Event().wait(60)
"""


def pending(store: holdfast.Store) -> int:
    (rows,) = run(store._engine.context.backend.read([Scan(LINKS, ("", "␞hooks", "pending"))]))
    return len(rows)


@pytest.mark.parametrize("moment", ["waiting", "running", "recorded"])
def test_calls_of_a_process_that_was_killed_are_made(tmp_path: Path, moment: str) -> None:
    url, seen = f"sqlite:///{tmp_path}/store.db", tmp_path / "seen"
    killed = subprocess.run([sys.executable, "-c", KILLED, url, moment, str(seen)], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    count_kill()
    before = seen.read_text().splitlines() if seen.exists() else []
    assert bool(before) is (moment != "waiting")  # each moment was struck
    with holdfast.open(url) as store:
        left = pending(store)
        assert bool(left) is (moment != "recorded")
        made: list[tuple[str, str, Any, bool]] = []
        done = threading.Event()

        @store.hooks.after("state.*", "checkpoint.save", durable=True, name="deliver")
        def deliver(call: Any) -> None:
            made.append((call.call_id, call.point, call.value, call.is_repeated))
            if len(made) == left:
                done.set()

        if left:
            assert done.wait(60)
        assert store.hooks.drain(60)
        assert pending(store) == 0
        assert all(repeated for *_, repeated in made)
        assert len({id for id, *_ in made}) == len(made) == left
        if moment == "running":
            assert before[0] in {id for id, *_ in made}  # made once more, under the same id
        if moment == "waiting":
            assert [(point, value) for _, point, value, _ in made if point != "checkpoint.save"] == [
                ("state.set", {"total": 7}),
                ("state.delete", holdfast.MISSING),
                ("state.set", [1, 2]),
            ]
            assert ("checkpoint.save", {"n": 1}) in [(point, value) for _, point, value, _ in made]
        assert store.hooks.recover() == 0


def test_calls_of_a_living_process_are_left_to_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store.db") as one, holdfast.open(tmp_path / "store.db") as two:
        block, calls = threading.Event(), list[str]()

        @one.hooks.after("state.set", durable=True, name="slow")
        def slow(_: Any) -> None:
            block.wait(60)
            calls.append("one")

        one.state(agent="a")["n"] = 1
        assert pending(two) == 1
        two.hooks.after("state.set", durable=True, name="slow")(lambda _: calls.append("two"))
        assert two.hooks.recover() == 0
        block.set()
        assert one.hooks.drain(60)
        assert (calls, pending(two)) == (["one"], 0)


def test_no_more_calls_are_taken_over_than_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, block, made = Clock(), threading.Event(), list[int]()
    with store(clock) as held:

        @held.hooks.after("state.set", durable=True, name="deliver")
        def deliver(call: Any) -> None:
            block.wait(60)
            made.append(call.value)

        registry = HookRegistry.of(held._engine)
        assert registry is not None
        monkeypatch.setattr(registry.after_queue, "_max_waiting", 3)
        for n in range(8):
            held.state(agent="a")["n"] = n
        assert held.hooks.list()[0].dropped
        clock.pass_by(100)
        assert held.hooks.recover() == 0  # those that wait are not taken over, and there is no place for the others
        block.set()
        rounds = 0
        while pending(held):
            assert held.hooks.drain(60)
            clock.pass_by(100)
            assert held.hooks.recover() <= 3
            rounds += 1
        assert rounds > 2
        assert sorted(made) == [*range(8)]


def test_a_store_that_fails_for_a_moment_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, made = Clock(), list[int]()
    with store(clock) as held:
        held.hooks.after("state.set", durable=True, name="deliver")(lambda call: 1 / 0)
        held.state(agent="a")["n"] = 1
        assert held.hooks.drain(60)
        assert pending(held) == 1
        held.hooks.remove("deliver")
        held.hooks.after("state.set", durable=True, name="deliver")(lambda call: made.append(call.value))
        clock.pass_by(100)

        async def fail(*_: object) -> None:
            raise holdfast.errors.TransientError("the server restarts")

        with monkeypatch.context() as patched:
            patched.setattr(held._engine.lines, "find", fail)
            with pytest.raises(holdfast.errors.TransientError):
                held.hooks.recover()
        assert pending(held) == 1
        clock.pass_by(100)
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert (made, pending(held)) == ([1], 0)


@pytest.mark.skipif(not process_identity(), reason="the system does not say when a process was started")
def test_another_process_with_the_number_of_one_that_ended_does_not_have_its_calls() -> None:
    boot, namespace, _, started = process_identity().split(" ")
    parent = os.getppid()  # it lives

    def is_left(process: str, age: int = 0) -> bool:
        target = json.dumps([f"{process}|token", "p", "s", "k", "", "", 1000])
        row = Row(("", "", "pending", "h", "x id"), (1000, target))
        return OutboxCall.of(row).is_left("me", 1000 + age, lambda _: False)

    assert is_left(f"{boot} {namespace} {parent} 1")
    assert is_left(f"{boot} {namespace} {os.getpid()} {started}")  # a store of this process that was closed
    began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    assert not is_left(f"{boot} {namespace} {parent} {began}", 10**15)
    assert not is_left(f"other {namespace} {parent} {began}", 10**11)
    assert is_left(f"other {namespace} {parent} {began}", 10**12)
