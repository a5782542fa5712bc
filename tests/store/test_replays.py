"""Recorded calls of hooks and of agents' actions are replayed in another process, on a fork of their state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from benchmarks.replayed_hooks import register
from holdfast import Store, replay
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError, VetoError
from holdfast.jobs import JobRunner
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.store.replay.threads import hook_replay_job
from tests.store import replayed_hooks
from tests.support.nightly import mostly_nightly

REGISTER = "tests.store.replayed_hooks:register"
KIND = "tests.store.replayed_hooks:Clerk"
DESK = "tests.store.replayed_hooks:Desk"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with holdfast.open(tmp_path_factory.mktemp("replay") / "agents.db") as opened:
        replayed_hooks.register(opened)
        state = opened.state(agent="a")
        for value in (5, 70, 500, "text"):
            state.set("key", value)
        with pytest.raises(VetoError):
            state.set("key", "bad")
        yield opened


def test_hooks_are_replayed_exactly(store: Store) -> None:
    before = dict(store.state(agent="other").at("now"))
    found = replay.run_hooks(store, REGISTER, scope="agent:a").check()
    assert [(call.recorded_outcome, call.outcome) for call in found.calls] == [
        (each, each) for each in ("ok", "ok", "changed", "ok", "veto")
    ]
    assert dict(store.state(agent="other").at("now")) == before
    assert any(each.action == "replay" for each in store.audit.query(limit=50))


def test_changed_hooks_differ(store: Store) -> None:
    limited = replay.run_hooks(store, REGISTER, scope="agent:a", env={"CHANGE": "limit"})
    assert [call.matches for call in limited.calls] == [True, False, False, True, True]
    assert "50" in limited.differing[0].diff


@pytest.mark.parametrize("change", mostly_nightly(["post", "write"], daily=["write"]))
def test_what_hooks_do_elsewhere_is_stopped(store: Store, change: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = {"post": "uses the network", "write": "leak.txt"}[change]
    stopped = replay.run_hooks(store, REGISTER, scope="agent:a", env={"CHANGE": change}, limit=2)
    assert [text in call.effect for call in stopped.calls] == [True, False]  # the second is a veto before it
    assert not list(tmp_path.iterdir())


def test_hooks_are_replayed_with_another_value_and_one_by_one(store: Store) -> None:
    found = replay.run_hooks(store, REGISTER, scope="agent:a", value="bad", stop=lambda call: call.outcome == "veto")
    assert [call.outcome for call in found.calls] == ["veto"]
    with pytest.raises(ConflictError) as caught:
        found.check()
    assert caught.value.code == "replay-diverged"


def test_one_call_is_replayed_by_its_reference(store: Store) -> None:
    changed = next(each for each in store.hooks.history(scope="agent:a") if each.outcome == "changed")
    (found,) = replay.run_hooks(store, REGISTER, reference=changed.reference).check().calls
    assert (found.outcome, found.recorded_seconds) == ("changed", changed.duration)
    with pytest.raises(NotFoundError):
        replay.run_hooks(store, REGISTER, reference=f"9{changed.reference}")


def test_only_full_records_are_replayed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        opened.hooks.before("state.set", name="limit")(lambda call: call.value + 1)
        opened.state(agent="a").set("key", 1)
        with pytest.raises(UnsupportedError) as caught:
            replay.run_hooks(opened, REGISTER)
    assert caught.value.code == "replay-incomplete"


def test_hooks_read_the_state_of_that_moment(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        replayed_hooks.register_sums(opened)
        state, rates = opened.state(agent="sums"), opened.state(agent="rates")
        for value in range(1, 4):
            rates.set("rate", value * 100)
            state.set("key", value)
        assert state["key"] == 606
        found = replay.run_hooks(opened, "tests.store.replayed_hooks:register_sums").check()
    assert [call.outcome for call in found.calls] == ["changed"] * 3


@pytest.mark.nightly  # other changes of hooks by day
def test_what_if_changes_what_a_hook_is_told_per_call(tmp_path: Path) -> None:
    register = "tests.store.replayed_hooks:register_tellers"
    with holdfast.open(tmp_path / "agents.db") as opened:
        replayed_hooks.register_tellers(opened)
        for value in (1, 2):
            opened.as_identity(agent="told").state(agent="told").set("key", value)
        one, two = (each.reference for each in [*opened.hooks.history("tell")][::-1])
        same = replay.run_hooks(opened, register).check()
        assert [call.key for call in same.calls] == ["key", "key"]
        other: dict[str, Any] = {"key": "k2", "value": 5, "old": 4, "actor": "user:ann", "metadata": {"team": "red"}}
        found = replay.run_hooks(opened, register, changes=lambda each: other if each.reference == two else None)
        (changed,) = found.differing
        assert (changed.key, len(found.calls)) == ("k2", 2)
        for text in ("k2", "5", "4", "user:ann", "red"):
            assert text in changed.diff
        assert replay.run_hooks(opened, register, reference=one, changes={"actor": "user:bob"}).differing
        with pytest.raises(InvalidError, match="cannot change 'scope'"):
            replay.run_hooks(opened, register, changes={"scope": "agent:x"})


def test_hooks_are_replayed_by_a_job(tmp_path: Path) -> None:
    types = JobTypes()
    types.add(hook_replay_job(REGISTER))
    url = tmp_path / "agents.db"
    with holdfast.open(url) as opened:
        replayed_hooks.register(opened)
        opened.state(agent="a").set("key", 500)
        jobs = Jobs(opened, types)
        jobs.add("nightly", "replay-hooks", schedule="every 1s", settings={"limit": 10})
        while not jobs.due():
            time.sleep(0.05)
        JobRunner(opened, types).run_due()
        (done,) = jobs.get("nightly").runs
        assert (done.outcome, "1 calls, 0 differ" in done.summary) == ("ok", True), done
        assert any(each.action == "replay" for each in opened.audit.query(limit=50))


def test_only_the_owner_replays(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "clerk-1")
        opened.thread("thread").put({"a": 1})
        identity = opened.as_identity(agent="reader")
        for attempt in (
            lambda: replay.run_agent(identity, "clerk-1", KIND),  # type: ignore[arg-type]
            lambda: replay.run_hooks(identity, REGISTER),  # type: ignore[arg-type]
            lambda: replay.run(identity, "a:b", thread="thread"),  # type: ignore[arg-type]
            lambda: replay.record(identity, "thread", tmp_path / "file"),  # type: ignore[arg-type]
            lambda: list(replay.run_open(identity, agent=KIND)),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidError, match="owner"):
                attempt()
        with pytest.raises(NotFoundError):
            replay.record(opened, "no such thread", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def make_clerk(store: Store, id: str, *, close: bool = True, record: Any = True) -> None:
    """Make an agent whose transitions are recorded."""
    clerk = replayed_hooks.Clerk().attach(store, id, record=record)
    clerk.start()
    replayed_hooks.LIVE["tools"] = True
    clerk.transition("begin", "why")
    if close:
        clerk.transition("close")
    replayed_hooks.LIVE["tools"] = False
    clerk.stop()


def test_an_agent_is_replayed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "clerk-1")
        report = replay.run_agent(opened, "clerk-1", KIND).check()
        assert (report.steps, report.calls) == (2, 3)
        changed = replay.run_agent(opened, "clerk-1", KIND, env={"CHANGE": "prompt"}).divergence
        assert changed is not None
        assert (changed.kind, "why!" in changed.diff) == ("input", True)


def test_all_effects_of_an_agent_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "clerk-1")
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        report = replay.run_agent(opened, "clerk-1", KIND, env={"CHANGE": "leaks"})
    assert ["leak-1.txt" in report.effects[0], "leak-2.txt" in report.effects[1]] == [True, True]
    assert (len(report.effects), report.divergences, report.steps) == (2, 2, 2)
    assert str(report.divergence) == report.effects[0]
    assert not list((tmp_path / "empty").iterdir())


def test_open_agents_are_checked_against_new_code(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "finished")
        for number in range(2):
            make_clerk(opened, f"waiting-{number}", close=False)
        asyncio.run(make_desk(tmp_path / "agents.db"))  # of another class
        assert [(each.thread, each.matches) for each in replay.run_open(opened, agent=KIND)] == [
            ("waiting-0", True),
            ("waiting-1", True),
        ]


async def make_desk(path: Path, record: Any = True) -> list[str]:
    """Make an asyncio agent, and return its notes."""
    replayed_hooks.LIVE["tools"] = True
    async with holdfast.aopen(path) as store:
        desk = replayed_hooks.Desk()
        desk.attach(store, "desk", record=record)
        await desk.start()
        await store.agents.signal("desk", "go", "now")
        await desk.transition("begin", 42)
        await desk.stop()
    replayed_hooks.LIVE["tools"] = False
    return desk.notes


@pytest.mark.nightly
def test_durable_steps_of_an_asyncio_agent_are_replayed(tmp_path: Path) -> None:
    notes = asyncio.run(make_desk(tmp_path / "agents.db"))
    with holdfast.open(tmp_path / "agents.db") as opened:
        for env in ({}, {"CHANGE": "version"}):  # which the recorded code did not know of
            report = replay.run_agent(opened, "desk", DESK, env=env, timeout=60).check()
            assert report.state["fields"]["notes"] == notes
            assert (report.steps, report.calls, report.is_open) == (1, 4, True)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", mostly_nightly(["redacted", "digest"], daily=["digest"]))
def test_only_full_recordings_of_agents_are_replayed(tmp_path: Path, mode: str) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "clerk-1", record=mode)
        if mode == "digest":
            with pytest.raises(UnsupportedError, match="not recorded in full"):
                replay.run_agent(opened, "clerk-1", KIND).check()
        with pytest.raises(InvalidError, match="redacted"):
            make_clerk(opened, "clerk-2", record="some")


@pytest.mark.nightly
def test_a_changed_agent_differs(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened, "clerk-1")
        missing = replay.run_agent(opened, "clerk-1", KIND, env={"CHANGE": "code"}).divergence
        assert missing is not None
        assert missing.kind == "missing"


@pytest.mark.nightly
def test_a_thousand_calls_are_replayed_in_time(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        register(opened)
        for number in range(1000):
            opened.state(agent="a").set(f"key-{number % 10}", number)
        found = replay.run_hooks(opened, "benchmarks.replayed_hooks:register", scope="agent:a").check()
    assert len(found.calls) == 1000
    assert sum(call.seconds for call in found.calls) < 2 * sum(call.recorded_seconds for call in found.calls) + 1
