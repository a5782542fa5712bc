"""`holdfast agent steps`, `resolve-step`, `timers`, `cancel-timer` and `signal`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from holdfast.agents import PersistentAgent
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


class Payer(PersistentAgent, name="cli-payer"):
    """An agent that pays."""


def interrupt() -> None:
    raise KeyboardInterrupt


def test_what_an_agent_left_unknown_is_resolved_and_signals_reach_it(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        payer = Payer().attach(store, "p")
        payer.start()
        payer.once("fine", abs, -3)
        with pytest.raises(KeyboardInterrupt):
            payer.once("charge", interrupt)
        payer.timers.set("reminder", "1h")
        listed = hf("agent", "steps", "p").lines
        assert listed[0].split() == ["STEP", "STATE", "ATTEMPTS", "FUNCTION", "STARTED", "ERROR", "RESOLVED"]
        assert [line.split()[:3] for line in listed[1:]] == [["charge", "running", "1"], ["fine", "done", "1"]]
        assert "Idempotency key: " in hf("agent", "steps", "p", "charge").out
        assert hf("agent", "resolve-step", "p", "charge").code == 2
        assert hf("agent", "resolve-step", "p", "charge", "--result", "paid").code == 2, "it is no JSON"
        hf("agent", "resolve-step", "p", "charge", "--result", '{"paid": 9}')
        assert payer.once("charge", interrupt) == {"paid": 9}
        refused = hf("agent", "resolve-step", "p", "charge", "--retry")
        assert refused.code == 4
        assert "step-done" in refused.err
        assert hf("agent", "timers", "p").lines[1].split()[0] == "reminder"
        assert hf("agent", "cancel-timer", "p", "reminder").err == "Cancelled reminder.\n"
        assert hf("agent", "cancel-timer", "p", "reminder").err == "p has no timer reminder.\n"
        assert hf("agent", "signal", "p", "approved", '{"by": "Ada"}', "--id", "s1").err == "Sent approved to p.\n"
        assert hf("agent", "signal", "p", "approved", "1", "--id", "s1").err == "The signal s1 was sent before.\n"
        assert hf("agent", "signal", "p").lines[1].split()[0] == "approved"
        signal = payer.wait_for("approved")
        assert signal is not None
        assert signal.value == {"by": "Ada"}


def test_agents_that_were_never_saved_and_old_steps(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.agents.signal("early", "hello", create=True)
        payer = Payer().attach(store, "p")
        payer.start()
        payer.once("fine", abs, -3)
        assert hf("agent", "unsaved").lines == ["early"]
        assert hf("agent", "unsaved", "--json").records[0] == {"agent": "early"}
        assert hf("agent", "prune-steps").code == 2
        assert "0 steps" in hf("agent", "prune-steps", "--older-than", "1h").err
        tried = hf("agent", "prune-steps", "p", "--older-than", "0s", "--dry-run", "--json").records[0]
        assert (tried["steps"], tried["dry_run"]) == (1, True)
        assert [each.key for each in payer.steps.list()] == ["fine"]
        assert "1 steps" in hf("agent", "prune-steps", "p", "--older-than", "0s").err
        assert payer.steps.list() == []
        assert hf("agent", "unsaved").lines == ["early"]
        hf("agent", "prune-steps", "--older-than", "0s")
        assert store.agents.steps("early").signals() == []


def test_an_agent_whose_machine_is_elsewhere(hf: Hf, url: str) -> None:
    saved = hf("agent", "save-state", "e", "--type", "crawler", "--state", "idle", "--data", '{"url": "x"}')
    assert saved.err == "Saved e, version 1.\n"
    made = hf(
        "agent", "record-transition", "e", "idle", "busy", "--trigger", "fetch", "--data", "[1]", "--json"
    ).records[0]
    assert (made["trigger"], made["source"], made["target"], made["outcome"]) == ("fetch", "idle", "busy", "ok")
    assert hf("agent", "record-transition", "e", "busy", "done", "--error", "no").code == 2
    refused = hf("agent", "record-transition", "e", "busy", "done", "--refused", "--error", "pages are missing")
    assert refused.err == "Recorded busy → done of e, refused.\n"
    assert hf("agent", "save-state", "e", "--data", "[1]").code == 2
    assert hf("agent", "record-transition", "none", "a", "b").code == 3
    assert hf("agent", "save-state", "e", "--state", "x", "--as", "agent:other").code != 0
    with holdfast.open(url) as store:
        assert (store.agents.load("e").state, store.agents.load("e").version) == ("busy", 3)
        assert [each.error for each in store.agents.transitions("e")] == ["pages are missing", ""]
