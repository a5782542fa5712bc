"""What is replayed cannot reach the network, files, processes and stores; without the isolation, each attempt does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.store import escapes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A server on a port, and on a Unix socket of the folder."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        yield server.getsockname()[1]


def attempt(folder: Path, port: int, *options: str) -> dict[str, tuple[str, str]]:
    """Make all attempts, and return how each ended, and what was reported."""
    with holdfast.open(folder / "store.db") as store:
        store.thread("thread").put({"a": 0})
    for name in ("removed", "renamed", "unlinked"):
        (folder / name).write_text("x", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.escapes", folder, str(port), *options],
        capture_output=True,
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (result, report) for name, result, report in found}


def has_landlock() -> bool:
    release = [int(part) for part in os.uname().release.split("-")[0].split(".")[:2]]
    return sys.platform == "linux" and release >= [6, 7]


def test_nothing_gets_out(tmp_path: Path, port: int) -> None:
    found = attempt(tmp_path, port)
    with holdfast.open(tmp_path / "store.db", read_only=True) as store:
        assert store.thread("thread").get().state == {"a": 0}
    assert found.keys() == escapes.ATTEMPTS.keys()
    stopped = {name: each for name, each in found.items() if name not in escapes.NATIVE}
    assert {result for result, _ in stopped.values()} == {"stopped"}, found
    assert all("at escapes.py:" in report for _, report in stopped.values()), found
    if has_landlock():
        assert {found[name][0] for name in escapes.NATIVE} == {"refused"}, found
        assert sorted(each.name for each in tmp_path.iterdir() if not each.name.startswith("store.db")) == [
            "removed",
            "renamed",
            "socket",
            "unlinked",
        ]


def test_without_isolation_everything_gets_out(tmp_path: Path, port: int) -> None:
    found = attempt(tmp_path, port, "free")
    assert {result for result, _ in found.values()} == {"out"}, found
