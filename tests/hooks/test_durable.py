"""Durable after-hooks: their calls survive a process that is killed, and are made at least once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINKS
from holdfast.errors import InvalidError

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


def test_a_call_that_was_skipped_or_whose_change_is_gone() -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(InvalidError):
            store.hooks.after("session.start", durable=True)(lambda _: None)
        off: dict[str, Any] = {"durable": True, "max_failures": 1, "name": "failing"}
        store.hooks.after("state.set", **off)(lambda _: 1 / 0)
        store.state(agent="a")["n"] = 1
        assert store.hooks.drain(60)
        assert pending(store) == 0  # it was made, and failed
        store.state(agent="a")["n"] = 2
        assert store.hooks.drain(60)
        assert pending(store) == 1  # it was not made: the hook is off
