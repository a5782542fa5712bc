"""Calls of durable hooks that are pending before anything of a hook was recorded: the store keeps them like others."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, LINKS, REFS, STEPS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.copy_mark import copy_mark
from holdfast.engine.row_format import Line
from holdfast.hooks import HookContext
from holdfast.hooks.outbox import OutboxCall
from holdfast.store.store import Store
from tests.hooks.kit import Clock, beside, store

PENDING = [("agent:a", "n"), ("chat", ""), ("user:ann", "m")]


@contextmanager
def blocked(held: Store) -> Iterator[None]:
    """Have a hook that does not end while something is done, so that nothing of it is recorded."""
    block = threading.Event()

    @held.hooks.after("state.set", "checkpoint.save", durable=True, name="deliver")
    def deliver(_: HookContext) -> None:
        block.wait(60)

    try:
        yield
    finally:
        block.set()
        assert held.hooks.drain(60)


def save(held: Store) -> None:
    held.state(agent="a")["n"] = 1
    held.thread("chat").put({"n": 2})
    held.as_identity(user="ann").state(user="ann")["m"] = 3
    assert not recorded(held)  # or the test would show nothing


def recorded(held: Store) -> bool:
    (rows,) = run(held._engine.context.backend.read([Scan(STEPS, (held.tenant, "␞hooks"))]))
    return bool(rows)


def pending(held: Store) -> list[tuple[str, str]]:
    return sorted((each.scope, each.key) for each in held.hooks.undelivered())


@pytest.mark.parametrize("tenant", ["", "one"])
@pytest.mark.parametrize("first", ["state", "thread"])
def test_the_line_exists_with_its_first_call(first: str, tenant: str) -> None:
    with holdfast.open("memory://", tenant=tenant) as held, blocked(held):
        if first == "state":
            held.state(agent="a")["n"] = 1
        else:
            held.thread("chat").put({"n": 1})
        (rows,) = run(held._engine.context.backend.read([Get(LINES, [(tenant, "␞hooks")])]))
        assert len(rows) == 1
        assert not recorded(held)
        assert held.maintenance.verify().findings == []


def test_a_backup_has_them(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as held, blocked(held):
        save(held)
        held.backups(f"file://{tmp_path}/backups").create()
    with holdfast.open(tmp_path / "restored.db") as restored:
        restored.backups(f"file://{tmp_path}/backups").restore()
        assert pending(restored) == PENDING
        assert restored.maintenance.verify().findings == []


def test_a_copy_has_them() -> None:
    clock = Clock()
    with store(clock) as held, store(clock) as copy:
        with blocked(held):
            save(held)
            held.maintenance.copy_to(copy)
            assert pending(copy) == PENDING
        assert held.hooks.undelivered() == []
        held.maintenance.copy_to(copy)  # with what was recorded meanwhile
        assert recorded(copy)
        assert copy.maintenance.verify().findings == []


@pytest.mark.parametrize("tenant", ["", "one"])
def test_they_are_no_orphans(tenant: str) -> None:
    with holdfast.open("memory://", tenant=tenant) as held, blocked(held):
        save(held)
        assert held.maintenance.verify().findings == []
        assert held.maintenance.sweep_orphans(grace="0s").found == []
        assert pending(held) == PENDING


def test_encryption_that_is_turned_on_takes_them_along(tmp_path: Path) -> None:
    keys = LocalKeys(b"1" * 32)
    with holdfast.open(tmp_path / "s.db") as held, blocked(held):
        save(held)
        with closing(sqlite3.connect(tmp_path / "s.db")) as own, closing(sqlite3.connect(tmp_path / "left.db")) as left:
            own.backup(left)  # as a process leaves it that is killed
    with holdfast.open(tmp_path / "left.db", encryption=Encryption(keys, mode="turning-on")) as turning:
        turning.encryption_keys.reencrypt()
        assert pending(turning) == PENDING
    with holdfast.open(tmp_path / "left.db", encryption=Encryption(keys)) as encrypted:
        assert pending(encrypted) == PENDING
        assert encrypted.maintenance.verify().findings == []


def test_erasure_removes_those_about_a_person() -> None:
    with store() as held, blocked(held):
        save(held)
        held.erasure.erase("ann")
        assert pending(held) == PENDING[:2]


def test_another_process_makes_them() -> None:
    clock, made = Clock(), list[object]()
    with store(clock) as held, beside(held) as other, blocked(held):
        save(held)
        clock.pass_by(3600)
        for call in run(held._engine.context.backend.read([Scan(LINKS, ("", "␞hooks", "pending"))]))[0]:
            left = OutboxCall.of(call)
            run(held._engine.context.backend.apply(left.change_to(left.released(0))))
        done = threading.Event()

        @other.hooks.after("state.set", "checkpoint.save", durable=True, name="deliver")
        def deliver(call: HookContext) -> None:
            made.append(call.value)
            if len(made) == len(PENDING):
                done.set()

        assert done.wait(60)
        assert other.hooks.drain(60)
        assert sorted(map(str, made)) == ["1", "3", "{'n': 2}"]
        assert pending(other) == []
        assert other.maintenance.verify().findings == []


def test_the_rest_of_a_copy_that_was_killed_is_not_taken_for_the_line() -> None:
    with store() as held, blocked(held):
        line, backend = Line("", "␞hooks"), held._engine.context.backend
        rest = Row((*line, "pending", "other", "0 0"), (0, ""))
        run(backend.apply([Put(REFS, copy_mark(line, "elsewhere")), Put(LINKS, rest)]))
        save(held)
        assert pending(held) == PENDING
        assert held.maintenance.verify().findings == []


def test_a_damaged_line_does_not_hinder_saves() -> None:
    with store() as held, beside(held) as other, blocked(held), blocked(other):
        save(held)
        stored = held._engine.context.stored
        (rows,) = run(stored.read([Get(LINES, [("", "␞hooks")])]))
        run(stored.apply([Put(LINES, rows[0]._replace(columns=(*rows[0].columns[:-1], b"damaged")))]))
        assert held.maintenance.verify().findings  # it is damaged
        other.state(agent="a")["later"] = 1
        assert len(pending(other)) == len(PENDING) + 1
        run(stored.apply([Put(LINES, rows[0])]))
