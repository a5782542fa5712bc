"""A limit on the time of every test. One that overruns it fails with the stacks of all threads.

The limit holds for the set-up, the call and the teardown of a test, each on its own. It is the number of seconds of the
mark `time_limit`, or that of the option `--time-limit`; a test that runs by night has at least `NIGHT`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

DAY = 60.0
NIGHT = 900.0

GRACE = 30.0
"""How many seconds after the limits of all its phases the process is ended, where a test does not react: it waits in
native code."""


_terminal = 2
"""The standard error output of the process, while pytest captures that of a test."""


class OverTime(BaseException):
    """A test that ran for longer than its limit. Not an `Exception`: what is tested must not catch it, nor Hypothesis,
    which would try the example again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that sets the limit of tests without one of their own."""
    parser.addoption("--time-limit", type=float, default=DAY, help="seconds that a test may take (%(default)s)")


def pytest_configure() -> None:
    """Keep the output of the process: pytest does not capture yet."""
    global _terminal
    _terminal = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process if a test does not react to its limit. Once for all phases: it takes longer than most of them."""
    with ended(3 * limit_of(item) + GRACE):
        return (yield)


def _limit_phase(item: pytest.Item) -> Iterator[None]:
    with limited(item.nodeid, limit_of(item)):
        return (yield)


pytest_runtest_setup = pytest.hookimpl(wrapper=True, tryfirst=True)(_limit_phase)
pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_limit_phase)
pytest_runtest_teardown = pytest.hookimpl(wrapper=True, tryfirst=True)(_limit_phase)


def limit_of(item: pytest.Item) -> float:
    """Return how many seconds a test may take."""
    mark = item.get_closest_marker("time_limit")
    if mark is not None:
        return float(mark.args[0])
    seconds = float(item.config.getoption("--time-limit"))
    return max(seconds, NIGHT) if any(map(item.get_closest_marker, ("nightly", "torture"))) else seconds


@contextmanager
def limited(name: str, seconds: float) -> Iterator[None]:
    """Stop what runs inside after a number of seconds."""

    def stop(*_: object) -> None:
        raise OverTime(f"{name} took longer than {seconds:g} s. Its threads:\n{stacks()}")

    # Where there are no timers that signal, and outside the main thread, the process is ended later.
    signals = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGALRM, stop) if signals else None
    if signals:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if signals:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


@contextmanager
def ended(seconds: float) -> Iterator[None]:
    """End the process after a number of seconds, with the stacks of its threads."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_terminal)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def stacks() -> str:
    """Return the stack of every thread, the current one last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda each: each[0] == here)
    return "\n".join(
        f"--- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames
    )
