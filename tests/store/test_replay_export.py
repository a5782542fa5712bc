"""A recorded thread becomes a test: without its sensitive data, and as it is written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import replay
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, NotFoundError, UnsupportedError
from tests.interfaces.cli import kit
from tests.interfaces.langgraph.refund_graph import SHOP
from tests.interfaces.langgraph.test_langgraph_replayed_interrupts import GRAPH, record

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as its owner would: in the root of the application."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
    return subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **env})


@pytest.mark.nightly  # the guide to replay runs one by day
def test_an_exported_thread_is_a_test_that_runs_as_it_is(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "agents.db"), tmp_path / "tests"
    with holdfast.open(url) as store:
        record(store, "chat of bob@example.com", answer=True)
    done = kit.run("--json", "replay", "export", "chat of bob@example.com", folder, "--graph", GRAPH, store=url)
    assert done.code == 0, done
    assert sorted(each.name for each in folder.iterdir()) == [
        "chat_of_redacted_email.replay",
        "test_chat_of_redacted_email.py",
    ]
    passed = run_pytest(folder)
    assert (passed.returncode, "1 passed" in passed.stdout) == (0, True), passed
    with holdfast.open("memory://") as scratch:
        scratch.maintenance.import_(io.BytesIO((folder / "chat_of_redacted_email.replay").read_bytes()))
        (thread,) = (each.name for each in scratch.threads().all())
        text = str([each.state for each in map(scratch.thread(thread).get, _ids(scratch, thread))])
    assert "order 7 of [redacted:email]" in text
    assert SHOP in text  # which is in the code
    assert "bob" not in text + thread


def _ids(store: holdfast.Store, thread: str) -> list[Any]:
    return [each.id for each in store.thread(thread).log().all()]


@pytest.mark.nightly  # by day, the first of these fails and the second runs
def test_an_exported_test_fails_if_the_code_changes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "chat", answer=False)
        recording, test = replay.export(store, "chat", tmp_path / "tests", GRAPH, env={"CHANGE": ""})
        test.write_text(test.read_text().replace('"CHANGE": ""', '"CHANGE": "removed"'), encoding="utf-8")
        failed = run_pytest(recording.parent)
        assert (failed.returncode, "waited for an answer" in failed.stdout) == (1, True), failed
        changed = test.read_text()
        assert replay.export(store, "chat", tmp_path / "tests", GRAPH) == (recording, test)
        assert test.read_text() == changed  # what its owner changed stays


def test_what_does_not_replay_is_not_exported(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "chat", answer=True)
        with pytest.raises(ConflictError, match="no account") as caught:
            replay.export(store, "chat", tmp_path / "tests", GRAPH, env={"CHANGE": "fails"})
        assert caught.value.code == "replay-diverged"
        with pytest.raises(NotFoundError):
            replay.export(store, "none", tmp_path / "tests", GRAPH)
    keys = Encryption(LocalKeys(b"1" * 32))
    with holdfast.open(tmp_path / "encrypted.db", encryption=keys) as store:
        record(store, "chat", answer=False)
        with pytest.raises(UnsupportedError) as refused:
            replay.export(store, "chat", tmp_path / "tests", GRAPH)
        assert refused.value.code == "clear-refused"
    assert not (tmp_path / "tests").exists()
