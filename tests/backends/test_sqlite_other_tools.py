"""A SQLite file beside other tools: whatever another SQLite does to it, nothing is lost, and nothing is damaged."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.interface import Change
from holdfast.backends.sqlite import backend, database_file, use_lock
from tests.support.kills import count_kill

SHELL = shutil.which("sqlite3")


def connect_once(path: Path, *statements: str) -> list[object]:
    """Run statements with the SQLite of Python, in this process, and close the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        return [other.execute(statement).fetchall() for statement in statements]


def read(path: Path) -> None:
    assert connect_once(path, "SELECT count(*) FROM steps", "PRAGMA integrity_check")[1] == [("ok",)]


def set_version(path: Path) -> None:
    version = connect_once(path, "PRAGMA user_version", "PRAGMA user_version = 7", "PRAGMA user_version")[2]
    assert version == [(7,)]


def checkpoint(path: Path) -> None:
    connect_once(path, "PRAGMA wal_checkpoint(TRUNCATE)")


def vacuum(path: Path) -> None:
    connect_once(path, "VACUUM")


def write_elsewhere(path: Path) -> None:
    connect_once(path, "CREATE TABLE IF NOT EXISTS notes (text)", "INSERT INTO notes VALUES ('mine')", "ANALYZE")


def back_up(path: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(f"{path}.copy")) as target:
        source.backup(target)
    with holdfast.open(f"{path}.copy") as copy:
        assert copy.thread("chat").get().state["n"] >= 4
        assert copy.maintenance.verify(level="decode").findings == []


ACTIONS: dict[str, Callable[[Path], None]] = {
    "read": read,
    "version": set_version,
    "checkpoint": checkpoint,
    "vacuum": vacuum,
    "write": write_elsewhere,
    "backup": back_up,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_another_sqlite_in_this_process(tmp_path: Path, action: str) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        for n in range(5):
            store.thread("chat").put({"n": n})
        ACTIONS[action](path)
        assert store.thread("chat").get().state == {"n": 4}
        store.thread("chat").put({"n": 5})
        ACTIONS[action](path)
    ACTIONS[action](path)
    with holdfast.open(path) as store:
        assert store.thread("chat").get().state == {"n": 5}
        assert len(store.thread("chat").log()) == 6
        assert store.maintenance.verify(level="decode").findings == []


WRITER = """
import os, signal, sqlite3, sys, holdfast
store = holdfast.open(sys.argv[1])
for n in range(10):
    store.thread("chat").put({"n": n})
    if n == 4 and sys.argv[2] == "opened":
        other = sqlite3.connect(sys.argv[1])
        other.execute("SELECT count(*) FROM steps").fetchall()
        other.close()
print("acknowledged", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_killed(path: Path, mode: str) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, str(path), mode], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("acknowledged\n", -signal.SIGKILL), done.stderr
    count_kill()


@pytest.mark.skipif(use_lock._SET_LOCK is None, reason="this system has no locks of open files")
@pytest.mark.parametrize("mode", ["opened", "alone"])
def test_what_was_acknowledged_survives_another_sqlite_in_the_process_and_a_kill(tmp_path: Path, mode: str) -> None:
    """The other one must not believe to be the last one, and delete the log to which the store still writes."""
    path = tmp_path / "agents.db"
    run_killed(path, mode)
    with holdfast.open(path) as store:
        assert store.thread("chat").get().state == {"n": 9}


@pytest.mark.skipif(SHELL is None, reason="there is no sqlite3 shell")
def test_the_shell_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    run_killed(path, "alone")
    assert Path(f"{path}-wal").stat().st_size > 0  # control: there is a log to write back
    for statement in ("SELECT count(*) FROM steps", "PRAGMA integrity_check", f".backup {tmp_path}/copy.db", "VACUUM"):
        subprocess.run([SHELL or "", str(path), statement], check=True, capture_output=True)
    assert not Path(f"{path}-wal").exists()
    for name in ("agents.db", "copy.db"):
        with holdfast.open(tmp_path / name) as store:
            assert store.thread("chat").get().state == {"n": 9}
            assert store.maintenance.verify(level="decode").findings == []


@pytest.mark.skipif(SHELL is None, reason="there is no sqlite3 shell")
def test_the_shell_beside_an_open_store(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        for n in range(10):
            store.thread("chat").put({"n": n})
            subprocess.run([SHELL or "", str(path), "SELECT count(*) FROM steps"], check=True, capture_output=True)
        assert store.thread("chat").get().state == {"n": 9}
    with holdfast.open(path, read_only=True) as store:
        assert store.maintenance.verify().findings == []


def test_the_last_store_of_a_process_still_writes_the_log_back(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    first, second = holdfast.open(path), holdfast.open(path)
    first.thread("chat").put({"n": 1})
    first.close()
    assert second.thread("chat").get().state == {"n": 1}
    second.thread("chat").put({"n": 2})
    assert str(path) in use_lock._locks or use_lock._SET_LOCK is None
    second.close()
    assert [each.name for each in tmp_path.iterdir()] == ["agents.db"]
    assert use_lock._locks == {}


PUT = """
import sys, holdfast
from holdfast.backends.sqlite import backend
backend._CHECKPOINT_PAGES = 10
with holdfast.open(sys.argv[1], busy_timeout=0.2) as store:
    try:
        for n in range(int(sys.argv[2])):
            store.thread("other").put({"n": n, "text": "x" * 2000})
        print("stored")
    except holdfast.errors.TransientError as error:
        print(error.code)
"""


def put_elsewhere(path: Path, count: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PUT, str(path), str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(use_lock._SET_LOCK is None, reason="this system has no locks of open files")
def test_two_processes_never_write_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another SQLite in this process drops the locks of SQLite in the middle of a commit."""
    path = tmp_path / "agents.db"
    answers: list[str] = []
    apply_change = backend._apply_change

    def disturbed(cursor: apsw.Cursor, change: Change) -> bool:
        if not answers:
            connect_once(path, "SELECT count(*) FROM lines")
            answers.append(put_elsewhere(path, 1))
        return apply_change(cursor, change)

    with holdfast.open(path) as store:
        store.thread("chat").put({"n": 0})
        monkeypatch.setattr(backend, "_apply_change", disturbed)
        store.thread("chat").put({"n": 1})
        assert answers == ["busy"]
        assert put_elsewhere(path, 1) == "stored"  # control: when this one does not write
        assert store.thread("chat").get().state == {"n": 1}
        assert store.maintenance.verify().findings == []


@pytest.mark.skipif(use_lock._SET_LOCK is None, reason="this system has no locks of open files")
def test_a_log_written_back_below_a_reader_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another SQLite in this process drops the locks of SQLite in the middle of a check."""
    path = tmp_path / "agents.db"
    found: list[list[str]] = []
    check = database_file.find_damage

    def disturbed(cursor: apsw.Cursor, _: None) -> list[str]:
        if not found:
            monkeypatch.setattr(database_file, "refresh_index", disturb)
        found.append(check(cursor, None))
        return found[-1]

    def disturb(cursor: apsw.Cursor) -> None:
        cursor.execute("SELECT count(*) FROM steps").fetchall()
        monkeypatch.setattr(database_file, "refresh_index", lambda _: None)
        connect_once(path, "SELECT count(*) FROM lines")
        assert put_elsewhere(path, 60) == "stored"

    with holdfast.open(path) as store:
        for n in range(50):
            store.thread("chat").put({"n": n})
        monkeypatch.setattr(backend, "find_damage", disturbed)
        assert store.maintenance.verify().findings == []
        assert [bool(each) for each in found] == [True, False]
