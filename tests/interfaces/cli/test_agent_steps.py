"""`holdfast agent steps`, `resolve-step`, `timers`, `cancel-timer` and `signal`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from holdfast import PersistentAgent
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
        assert listed[0].split() == ["STEP", "STATE", "ATTEMPTS", "STARTED", "FUNCTION", "RESOLVED", "ERROR"]
        assert [line.split()[:3] for line in listed[1:]] == [["charge", "running", "1"], ["fine", "done", "1"]]
        assert "idempotency_key: " in hf("agent", "steps", "p", "charge").out
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
