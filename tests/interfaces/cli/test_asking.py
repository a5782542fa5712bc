"""Questions to people."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

import click
import pytest

from holdfast.interfaces.cli import prompt


@pytest.mark.parametrize(
    ("typed", "yes"), [("y\n", True), ("YES \n", True), ("\n", False), ("no\n", False), ("what\ny\n", True)]
)
def test_yes_or_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, yes: bool) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert prompt.agreed("Sure?") is yes
    said = capsys.readouterr().err
    assert said.startswith("Sure? [y/N]: ")
    assert said.count("Sure?") == typed.count("\n")


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(click.exceptions.Abort):
        prompt.ask("Which?", "o")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """Where keys are pressed; standard input is the other end."""
    master, slave = os.openpty()
    with os.fdopen(master, "w") as keys, os.fdopen(slave) as screen:
        monkeypatch.setattr(sys, "stdin", screen)
        yield keys


def type_in(terminal: TextIO, text: str) -> None:
    terminal.write(text)
    terminal.flush()


def test_a_terminal(terminal: TextIO) -> None:
    type_in(terminal, "theirs\n")
    assert prompt.ask("Which?", "o") == "theirs"
    type_in(terminal, "\n")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(prompt.ask("Which?", "o")))  # signals do not come here
    thread.start()
    thread.join()
    assert found == [""]


def test_signals_are_heard_just_before_the_wait(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one whose handler lets it pass, nothing comes; one that raises ends the question."""
    waits: list[str] = []
    plain = select.select

    def late(*files: Any) -> Any:
        if not waits:
            signal.raise_signal(signal.SIGUSR1)  # nobody has typed: without more, this would wait for ever
        else:
            type_in(terminal, "t\n")
        waits.append("waited")
        return plain(*files)

    monkeypatch.setattr(select, "select", late)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert prompt.ask("Which?", "o") == "t"
        assert len(waits) == 2

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        waits.clear()
        signal.signal(signal.SIGUSR1, stop)
        with pytest.raises(KeyboardInterrupt):
            prompt.ask("Which?", "o")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.set_wakeup_fd(-1) == -1  # all is as it was
