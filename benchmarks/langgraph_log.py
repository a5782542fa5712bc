"""Commits to a SQLite file, counted in its log, which says the same of every program that writes it.

In a log (WAL) the last page of each commit is marked as such. With `synchronous=full` SQLite flushes the log once per
commit, so the marks are also the flushes that somebody waited for. Not counted are the two flushes each time the log is
written back to the file, which is after about every thousand pages for both savers. A reader in another process keeps
the log from being started over meanwhile; runs that are counted are not timed.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_HEADER, _FRAME_HEADER = 32, 24

_READER = """
import pathlib, sqlite3, sys
connection = sqlite3.connect(pathlib.Path(sys.argv[1]).as_uri() + "?mode=ro", uri=True, isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""


class Count:
    """How often was committed, and how many bytes of log that made, once the block has ended."""

    commits = 0
    written = 0


@contextmanager
def counted(path: str) -> Iterator[Count]:
    """Count what is committed in the block to a file that is open already, in WAL mode."""
    count = Count()
    # In another process: closing a file gives up all locks that a process has on it, also those of another SQLite.
    with subprocess.Popen(
        [sys.executable, "-c", _READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        before = _look(path)
        yield count
        after = _look(path)
        reader.communicate()
    if after.number != before.number:
        # What was all written back already may still be overwritten, once, by the first commit.
        assert before.number is None or after.number == before.number + 1, "the log was started over meanwhile"
        before = _Log(after.number, 0, 0)
    count.commits, count.written = after.commits - before.commits, after.size - before.size


class _Log(NamedTuple):
    number: int | None
    """How often the log was started over."""
    commits: int
    size: int


def _look(path: str) -> _Log:
    log = pathlib.Path(f"{path}-wal").read_bytes()
    if not log:
        return _Log(None, 0, 0)
    page_size, number = (int.from_bytes(log[at : at + 4], "big") for at in (8, 12))
    salts, frame = log[16:24], _FRAME_HEADER + page_size
    commits, end = 0, _HEADER
    for at in range(_HEADER, len(log) - frame + 1, frame):
        if log[at + 8 : at + 16] != salts:
            break  # left over from before the log was last started over
        commits += log[at + 4 : at + 8] != b"\0\0\0\0"
        end = at + frame
    return _Log(number, commits, end)
