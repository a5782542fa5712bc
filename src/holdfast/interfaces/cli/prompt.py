"""Asking people a question. Ctrl-C is an answer whenever it comes."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

import click

from holdfast.interfaces.cli.output import on_terminal


def ask(question: str, default: str) -> str:
    """Put a question on stderr, and return the line that is typed; empty for the default, which is shown."""
    sys.stderr.write(f"{question} [{default}]: ")
    sys.stderr.flush()
    if on_terminal(sys.stdin):
        _await_line()
    line = sys.stdin.readline()
    if not line:
        raise click.exceptions.Abort
    return line.strip()


def agreed(question: str) -> bool:
    """Whether the answer to a question is yes."""
    while True:
        answer = ask(question, "y/N").lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        sys.stderr.write("Please answer y or n.\n")


def _await_line() -> None:
    """Wait until a line was typed, or a signal's handler raises.

    Python runs a handler only between two steps of its own. A read that begins just after the signal came knows
    nothing of it, and waits for a key: `input()` does. A signal that also writes into a pipe is not missed.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        return  # no waiting for two things at once there; signals go to the main thread
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
            os.read(woken, 4096)  # a signal whose handler let it pass: that of a resized window, say
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)
