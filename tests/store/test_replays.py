"""Recorded calls of hooks and of agents' actions are replayed in another process, on a fork of their state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from benchmarks.replayed_hooks import register
from holdfast import Store, replay
from holdfast.errors import ConflictError, UnsupportedError, VetoError
from tests.store import replayed_hooks
from tests.support.nightly import mostly_nightly

REGISTER = "tests.store.replayed_hooks:register"
KIND = "tests.store.replayed_hooks:Clerk"


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


def test_only_full_records_are_replayed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        opened.hooks.before("state.set", name="limit")(lambda call: call.value + 1)
        opened.state(agent="a").set("key", 1)
        with pytest.raises(UnsupportedError) as caught:
            replay.run_hooks(opened, REGISTER)
    assert caught.value.code == "replay-incomplete"


def make_clerk(store: Store) -> None:
    """Make an agent whose transitions are recorded."""
    clerk = replayed_hooks.Clerk().attach(store, "clerk-1", record=True)
    clerk.start()
    replayed_hooks.LIVE["tools"] = True
    clerk.transition("begin", "why")
    clerk.transition("close")
    replayed_hooks.LIVE["tools"] = False
    clerk.stop()


def test_an_agent_is_replayed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened)
        report = replay.run_agent(opened, "clerk-1", KIND).check()
        assert (report.steps, report.calls) == (2, 3)
        changed = replay.run_agent(opened, "clerk-1", KIND, env={"CHANGE": "prompt"}).divergence
        assert changed is not None
        assert (changed.kind, "why!" in changed.diff) == ("input", True)


@pytest.mark.nightly
def test_a_changed_agent_differs(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as opened:
        make_clerk(opened)
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
