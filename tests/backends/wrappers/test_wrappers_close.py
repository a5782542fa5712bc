"""Closing a pair sends what was written last, also if the sender has just found nothing to send."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.urls import compose
from holdfast.backends.wrappers.journal_sender import JournalSender


def test_what_is_written_after_the_last_look_of_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, written = threading.Event(), threading.Event()
    step = JournalSender._step
    looked = 0

    def look_before_the_write(sender: JournalSender) -> bool:
        nonlocal looked
        more = step(sender)
        if not more and not idle.is_set():
            looked += 1
            idle.set()
            assert written.wait(30)
        return more

    monkeypatch.setattr(JournalSender, "_step", look_before_the_write)
    local, remote = (f"sqlite:///{tmp_path}/{name}.db" for name in ("local", "remote"))
    store = holdfast.open(compose("write-behind", local=local, remote=remote))
    store.thread("chat").put({"n": 1})
    assert idle.wait(30)
    store.thread("chat").put({"n": 2})
    stop = JournalSender.stop

    def stop_then_go_on(sender: JournalSender, patience: float) -> None:
        sender._stop_at = float("inf")
        written.set()
        stop(sender, patience)

    monkeypatch.setattr(JournalSender, "stop", stop_then_go_on)
    store.close()
    assert looked == 1, "the sender never looked before the write"
    with holdfast.open(remote) as copy:
        assert copy.thread("chat").get().state == {"n": 2}
