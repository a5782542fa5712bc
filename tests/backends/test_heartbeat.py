"""Leases that are extended while work is done: those of a store do not wait for another's, nor end with an error."""

from __future__ import annotations

import logging
import threading

import pytest

import holdfast
from holdfast.backends.runtime.heartbeat import Heartbeat


def test_a_store_that_does_not_answer_keeps_no_leases_of_another_waiting() -> None:
    answers, stuck, extended = threading.Event(), threading.Event(), threading.Event()

    async def wait() -> None:
        stuck.set()
        assert answers.wait(60)

    async def extend() -> None:
        extended.set()

    silent, other = (holdfast.open("memory://")._handle.engine.context.heartbeats for _ in range(2))
    with Heartbeat(silent, 0.003, wait):
        assert stuck.wait(60)
        with Heartbeat(other, 0.003, extend):
            assert extended.wait(60)
        answers.set()


def test_an_unexpected_error_is_logged_and_ends_no_other_lease(caplog: pytest.LogCaptureFixture) -> None:
    raised, extended = threading.Event(), threading.Event()

    async def fail() -> None:
        raised.set()
        raise ZeroDivisionError

    async def extend() -> None:
        if raised.is_set():
            extended.set()

    with holdfast.open("memory://") as store, caplog.at_level(logging.ERROR, "holdfast.leases"):
        beats = store._handle.engine.context.heartbeats
        with Heartbeat(beats, 0.003, fail):
            assert raised.wait(60)
        with Heartbeat(beats, 0.003, extend):
            assert extended.wait(60)
    assert "a lease could not be extended" in caplog.text
