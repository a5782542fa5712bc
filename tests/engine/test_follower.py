"""Readable rows that follow the log: soon, all of them, and none of what is gone by then."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.agents import Machine, PersistentAgent
from holdfast.backends.interface import Backend, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BEHIND
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.projection import follower
from holdfast.engine.projection.follower import RowFollower
from holdfast.engine.row_format import Line
from holdfast.maintenance.doctor.result import CheckLevel
from holdfast.maintenance.doctor.store_checks import readable_rows
from holdfast.maintenance.erasure.audit_rows import AuditRewriter
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.store.store import Store
from tests.engine.lines import Clock
from tests.engine.pruned import dropping_ids, prune
from tests.engine.rows import check_rows, rows_of, showing, thread_rows_of
from tests.engine.test_histories import Thread, perform, scripts
from tests.support.nightly import examples

MINUTE = 60 * 10**9


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written when a test says so."""
    monkeypatch.setattr(follower, "_SECONDS", 1_000.0)


def follower_of(store: Store) -> RowFollower:
    found = store._engine.follower
    assert found is not None
    return found


def write(store: Store) -> None:
    run(follower_of(store).write())


def behind(on: Backend) -> int:
    (rows,) = run(on.read([Scan(BEHIND, ())]))
    return len(rows)


@given(script=scripts(), pauses=st.integers(0, (1 << 30) - 1), most=st.sampled_from([1, 512]))
@settings(max_examples=examples(15))
def test_whenever_rows_are_written_they_are_what_the_log_says(
    script: list[tuple[str, Any]], pauses: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(follower, "_SECONDS", 1_000.0)
        patched.setattr(follower, "_MAX_STEPS", most)
        on = MemoryBackend()
        thread = Thread(showing(on, fold_every=3, project="follow"))
        for number, (action, (state, chance)) in enumerate(script):
            perform(thread, action, state, chance)
            if pauses >> number & 1 and thread.store._engine.follower is not None:
                write(thread.store)
                check_rows(on, fold_every=3)
                assert not behind(on)
        thread.store.thread("t").put({"messages": ["the last"]}, id="9999")
        assert behind(on)
        write(thread.store)
        check_rows(on, fold_every=3)
        assert not behind(on)
        run(follower_of(thread.store).close())


def _delete(store: Store) -> None:
    store.thread("t").delete()


def _delete_and_save(store: Store) -> None:
    store.thread("t").delete()
    store.thread("t").put({"messages": ["another"]}, id="0001")


CROSSINGS: dict[str, Callable[[Store], object]] = {
    "nothing": lambda store: None,
    "prune": lambda store: prune(store, dropping_ids("0001", "0003")),
    "prune all that is new": lambda store: prune(store, dropping_ids("0002", "0003", "0004", "0005")),
    "deletion": _delete,
    "deletion, and a new thread of the name": _delete_and_save,
    "revision": lambda store: store.thread("t").put({"messages": ["revised"]}, id="0003"),
    "rename of a branch": lambda store: store.thread("t").fork("side", at="0003"),
    "restore": lambda store: store.thread("t").restore(at="0002"),
    "copy": lambda store: run(LineCopier(store._engine).copy({Line("", "t"): Line("", "u")})),
    "compaction": lambda store: store.maintenance.compact(),
}


@pytest.mark.parametrize("crossing", CROSSINGS)
def test_what_happens_before_rows_are_written_is_in_them(crossing: str, by_hand: None) -> None:
    on = MemoryBackend()
    store = showing(on, fold_every=2, project="follow")
    store.thread("t").put({"messages": ["secret 1"]}, id="0001", metadata={"who": "ann"})
    write(store)
    for n in range(2, 6):
        store.thread("t").put({"messages": [f"secret {i}" for i in range(n)], "n": n}, id=f"{n:04}", metadata={"n": n})
    assert behind(on) == 4  # there is something that could come back
    CROSSINGS[crossing](store)
    write(store)
    check_rows(on, fold_every=2)
    assert not behind(on)
    threads = {key[0] for rows in thread_rows_of(on).values() for key in rows}
    assert threads == (set() if crossing == "deletion" else {"t", "u"} if crossing == "copy" else {"t"})
    if crossing.startswith("deletion"):
        assert "secret" not in str(rows_of(on))
    run(follower_of(store).close())


def test_rows_of_an_erased_subject_do_not_come_back(by_hand: None) -> None:
    on = MemoryBackend()
    store = showing(on, project="follow")
    for user in ("ann", "bob"):
        store.state(user=user).set("note", f"secret of {user}")
    assert behind(on) >= 2
    store.erasure.erase("ann")
    write(store)
    assert "secret of bob" in str(rows_of(on))
    assert "secret of ann" not in str(rows_of(on))


def test_what_a_process_left_is_shown_by_the_next_that_writes(by_hand: None) -> None:
    on, clock = MemoryBackend(), Clock()
    dead = showing(on, project="follow", clock=clock)
    for n in range(3):
        dead.thread("t").put({"messages": [str(n)]})
    dead.thread("t").fork("side", at="HEAD~1")
    dead.thread("t").put({"messages": ["aside"]}, branch="side")
    assert not rows_of(on)["transitions"]
    left = behind(on)
    assert left == 4
    after = showing(on, project="follow", clock=lambda: clock() + MINUTE)
    details = after.status().details
    assert details["readable_rows_behind"] == left
    assert 59 < float(details["readable_rows_lag_seconds"]) < 62
    after.thread("u").put({"n": 1})
    write(after)
    assert not behind(on)
    check_rows(on)
    assert after.status().details["readable_rows_lag_seconds"] == 0


def test_what_a_process_leaves_just_before_another_starts_is_shown_a_little_later(by_hand: None) -> None:
    on, clock = MemoryBackend(), Clock()
    dead = showing(on, project="follow", clock=clock)
    dead.thread("t").put({"messages": ["left"]})
    later = 0
    after = showing(on, project="follow", clock=lambda: clock() + later)
    after.thread("u").put({"n": 1})
    write(after)
    assert behind(on) == 1  # its process may be about to write it
    later = 6 * 10**9
    write(after)
    assert not behind(on)
    check_rows(on)


@pytest.mark.parametrize("project", [True, False])
def test_what_is_left_is_no_longer_behind_when_another_kind_of_store_shows_or_prunes_it(
    project: bool, by_hand: None
) -> None:
    on, clock = MemoryBackend(), Clock()
    dead = showing(on, project="follow", clock=clock)
    dead.thread("t").put({"n": 0}, id="0000")
    write(dead)
    for n in range(1, 4):
        dead.thread("t").put({"n": n}, id=f"{n:04}")
    assert behind(on) == 3
    other = showing(on, project=project, clock=lambda: clock() + MINUTE)
    if project:
        other.thread("t").put({"n": 4}, id="0004")
        check_rows(on)
    else:
        prune(other, dropping_ids("0001", "0002", "0003"))
    assert not behind(on)
    assert other.maintenance.verify(level="decode").findings == []


def test_two_processes_that_write_to_one_thread_show_the_last(by_hand: None) -> None:
    on, clock = MemoryBackend(), Clock()
    stores = [showing(on, project="follow", clock=clock, fold_every=3) for _ in range(2)]
    for n in range(12):
        stores[n % 2].thread("t").put({"messages": [str(each) for each in range(n + 1)]}, metadata={"n": n})
        if n % 3 == 2:
            write(stores[n % 2])
    for store in stores:
        write(store)
    assert not behind(on)
    check_rows(on, fold_every=3)


def test_verify_and_doctor_know_that_rows_follow(by_hand: None) -> None:
    on, clock = MemoryBackend(), Clock()
    store = showing(on, project="follow", clock=clock)
    store.thread("t").put({"n": 1})
    write(store)
    store.thread("t").put({"n": 2})

    def problems(store: Store) -> tuple[list[FindingCode], CheckLevel]:
        summary = run(store._engine.lines.list_lines("", "thread", "", "", 9))
        (check,) = run(readable_rows(store._handle, summary))
        return [each.code for each in store.maintenance.verify(level="decode").findings], check.level

    assert problems(store) == ([], CheckLevel.OK)
    late = showing(on, project="follow", clock=lambda: clock() + 2 * MINUTE)
    assert problems(late) == ([FindingCode.STALE_ROWS], CheckLevel.WARNING)
    write(store)
    assert problems(late) == ([], CheckLevel.OK)


def test_rows_come_within_a_second_and_before_the_store_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url, project="follow") as store:
        on = store._engine.context.stored
        store.thread("t").put({"messages": ["one"]})
        deadline = time.monotonic() + 30
        while behind(on):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [row["content"] for row in rows_of(on)["conversation_history"].values()] == ["one"]
        store.thread("t").put({"messages": ["one", "two"]})
    with holdfast.open(url) as store:
        on = store._engine.context.stored
        assert not behind(on)
        check_rows(on)


def test_rows_follow_saves_of_asyncio(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def save() -> None:
        async with holdfast.aopen(url, project="follow") as store:
            await store.thread("t").put({"messages": ["one"]})
            assert store._engine.follower is not None

    asyncio.run(save())
    with holdfast.open(url) as opened:
        assert not behind(opened._engine.context.stored)
        check_rows(opened._engine.context.stored)


CHILD = """
import os, sys
import holdfast
from holdfast.engine.projection import follower
follower._SECONDS = 1_000.0
store = holdfast.open(sys.argv[1], project="follow")
for n in range(5):
    store.thread("t").put({"messages": [str(each) for each in range(n + 1)]})
print("saved", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    done = subprocess.run([sys.executable, "-c", CHILD, url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    assert done.stdout == "saved\n"
    monkeypatch.setattr(follower, "_LEFT_SECONDS", 0)
    with holdfast.open(url, project="follow") as store:
        on = store._engine.context.stored
        assert behind(on) == 5
        assert store.status().details["readable_rows_behind"] == 5
        store.thread("other").put({"n": 1})
    with holdfast.open(url) as store:
        on = store._engine.context.stored
        assert not behind(on)
        check_rows(on)


def test_metrics_say_how_far_rows_are_behind(by_hand: None) -> None:
    on, clock = MemoryBackend(), Clock()
    store = showing(on, project="follow", clock=clock)
    store.thread("t").put({"n": 1})

    def samples() -> dict[str, float]:
        found = store._engine.context.metrics.read()
        rows = [each for each in found if each.family.startswith("readable_rows")]
        return {each.family: each.value for each in rows if isinstance(each.value, int | float)}

    before = samples()
    assert before["readable_rows_behind"] == 1
    assert before["readable_rows_lag_seconds"] > 0
    write(store)
    assert set(samples().values()) == {0}


# Transitions of agents ----------------------------------------------------------------------------------------------


class Baker(PersistentAgent, name="follower-test-baker"):
    loaves: int = 0

    machine = Machine("idle", "kneading", "baking")
    machine.add("knead", "idle", "kneading", action="mix")
    machine.add("bake", "kneading", "idle", via="baking", guard="is_hot")

    def mix(self, count: int) -> None:
        self.loaves += 10 // count

    def is_hot(self, degrees: int) -> bool:
        return degrees >= 220


def bake(store: Store, id: str) -> None:
    baker = Baker().attach(store, id)
    baker.start()
    for trigger, data in (("knead", 5), ("bake", 180), ("bake", 230), ("knead", 0)):
        with suppress(Exception):
            baker.transition(trigger, data)
    baker.stop()


def transitions_of(on: Backend) -> list[tuple[Any, ...]]:
    rows = rows_of(on)["state_transitions"].values()
    names = ("agent", "from_state", "trigger", "to_state", "success", "error", "data")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("project", [True, "follow"])
def test_transitions_of_agents_are_rows(project: bool | Literal["follow"], by_hand: None) -> None:
    on = MemoryBackend()
    store = showing(on, project=project)
    bake(store, "a/b")
    if project == "follow":
        assert not transitions_of(on)
        write(store)
    found = transitions_of(on)
    assert [(*each[:5], each[6]) for each in found] == [
        ("a/b", "idle", "knead", "kneading", True, 5),
        ("a/b", "kneading", "bake", "idle", False, 180),
        ("a/b", "kneading", "bake", "idle", True, 230),
        ("a/b", "idle", "knead", "kneading", False, 0),
    ]
    assert [bool(each[5]) for each in found] == [False, True, False, True]
    assert "ZeroDivisionError" in found[3][5]
    check_rows(on)
    assert store.maintenance.verify(level="decode").findings == []
    store.agents.delete("a/b")
    assert not transitions_of(on)


def test_the_state_of_an_agent_is_a_row(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db", project="follow") as store:
        bake(store, "a/b")
        store.thread("t").put({"messages": ["no agent's"]})
        with Baker().attach(store, "a/b") as baker:
            baker.conversation.append({"role": "assistant", "content": "", "tool_calls": [{"name": "oven"}]})
            baker.conversation.append({"role": "user", "content": "?"})
        saved = store.agents.load("a/b")
    with sqlite3.connect(tmp_path / "a.db") as database:
        columns = "agent, type, status, state, version, created, checkpoint, fields"
        (row,) = database.execute(f"SELECT {columns} FROM agent_states")
        said = database.execute("SELECT number, role, tool_calls FROM conversation_history WHERE agent = 'a/b'")
        assert said.fetchall() == [(0, "assistant", '[{"name":"oven"}]'), (1, "user", "null")]
        assert database.execute("SELECT agent FROM conversation_history WHERE thread = 't'").fetchall() == [("",)]
    database.close()
    assert (
        row[:4]
        == ("a/b", "follower-test-baker", "stopped", "idle")
        == (saved.id, saved.kind, saved.status, saved.state)
    )
    assert (row[4], row[6]) == (saved.version, saved.checkpoint)
    assert abs((datetime.fromisoformat(row[5]) - saved.created).total_seconds()) < 60
    assert json.loads(row[7]) == {"loaves": 2}


def test_erasure_takes_the_data_of_transitions(by_hand: None) -> None:
    """Of what is written, and of what is about to be."""
    for written in (True, False):
        on = MemoryBackend()
        store = showing(on, project="follow")
        bake(store, "desk")
        if written:
            write(store)
            assert "ZeroDivisionError" in str(transitions_of(on))
        _erase_details(store)
        write(store)
        assert len(transitions_of(on)) == 4  # the rows stay, without details
        assert "ZeroDivisionError" not in str(rows_of(on)["state_transitions"])
        check_rows(on)


def _erase_details(store: Store) -> None:
    """As an erasure does with the events of agents."""
    engine = store._engine
    rewriter = AuditRewriter(engine, ErasureLedger(engine, ""), lambda row, packed: (row, b""))
    assert run(rewriter.run("", "test")) >= 4
