"""`holdfast replay` records, runs and compares."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.interfaces.langgraph.test_replay import GRAPH, record
from tests.store import replayed_hooks
from tests.store.test_replays import KIND, REGISTER, make_clerk


@pytest.mark.nightly
def test_a_thread_is_recorded_run_and_compared(tmp_path: Path) -> None:
    url, file = str(tmp_path / "agents.db"), tmp_path / "chat.replay"
    with holdfast.open(url) as store:
        record(store, "chat", 1)
    assert kit.run("replay", "record", "chat", file, store=url).code == 0
    done = kit.run("replay", "run", file, "--graph", GRAPH)
    assert (done.code, done.out.startswith("chat: as recorded (")) == (0, True), done
    changed = kit.run("--json", "replay", "run", "chat", "--graph", GRAPH, "--change", '2:tools#0="none"', store=url)
    assert changed.code == 6
    assert changed.records[0]["divergence"]["step"] == 2
    assert kit.run("replay", "compare", file, file).code == 0
    assert kit.run("replay", "run", "--open", "--graph", GRAPH, store=url).out == ""
    missing = kit.run("--json", "replay", "run", "chat", "--graph", "tests.none:graph", store=url)
    assert (missing.code, missing.error["code"]) == (1, "config")


@pytest.mark.nightly
def test_agents_and_hooks_are_replayed(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    with holdfast.open(url) as store:
        make_clerk(store, "clerk-1", close=False)
        replayed_hooks.register(store)
        store.state(agent="a").set("key", 70)
    one = kit.run("replay", "run", "clerk-1", "--agent", KIND, store=url)
    assert (one.code, one.out.strip()) == (0, "clerk-1: as recorded (1 step, 2 calls)"), one
    every = kit.run("--json", "replay", "run", "--open", "--agent", KIND, "--env", "CHANGE=prompt", store=url)
    assert (every.code, [each["thread"] for each in every.records]) == (6, ["clerk-1"]), every
    same = kit.run("replay", "hooks", REGISTER, "--scope", "agent:a", store=url)
    assert (same.code, same.out.startswith("1 calls, 0 differ")) == (0, True), same
    other = kit.run("--json", "replay", "hooks", REGISTER, "--scope", "agent:a", "--value", '"bad"', store=url)
    assert (other.code, other.records[0]["outcome"]) == (6, "veto"), other


def test_a_source_is_needed() -> None:
    assert kit.run("replay", "run", "--graph", GRAPH).code == 2
    assert kit.run("replay", "run", "chat", "--open", "--graph", GRAPH).code == 2
    assert kit.run("replay", "run", "chat").code == 2
    assert kit.run("replay", "run", "chat", "--graph", GRAPH, "--agent", KIND).code == 2
    assert kit.run("replay", "run", "clerk", "--agent", KIND, "--since", "HEAD").code == 2


def test_an_operator_schedules_replays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hooks.db"
    code = ("--hooks", "tests.store.replayed_hooks:register")
    with holdfast.open(url) as store:
        replayed_hooks.register(store)
        store.state(agent="a").set("key", 500)
    assert kit.run("jobs", "add", "nightly", "replay-hooks", "--every", "1d", store=url).code == 2  # without its code
    assert kit.run("jobs", "add", "nightly", "replay-hooks", "--every", "1d", *code, store=url).code == 0
    done = kit.run("jobs", "run", "nightly", *code, "--json", store=url)
    assert (done.code, done.records[0]["outcome"]) == (0, "ok")
    assert "1 calls, 0 differ" in done.records[0]["summary"]
    assert kit.run("jobs", "run", "nightly", store=url).code != 0
    assert kit.run("jobs", "work", "--once", *code, store=url).code == 0
    changed = kit.run("replay", "hooks", code[1], "--set", "value=7", "--json", store=url)
    assert (changed.code, changed.records[0]["matches"]) == (6, False)


@pytest.mark.nightly
def test_an_operator_schedules_replays_of_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with holdfast.open(url) as store:
        record(store, "chat", 1)
    added = kit.run("jobs", "add", "check", "replay", "--set", "thread=chat", "--graph", GRAPH, store=url)
    assert added.code == 0, added
    done = kit.run("jobs", "run", "check", "--graph", GRAPH, "--json", store=url)
    assert (done.code, done.records[0]["summary"]) == (0, "1 threads replayed, 0 differ"), done
    both = ("--set", "thread=chat", "--set", "prefix=c")
    assert kit.run("jobs", "add", "both", "replay", *both, "--graph", GRAPH, store=url).code == 2
