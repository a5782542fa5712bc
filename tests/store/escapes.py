"""Tries to get out of the isolation of a replay, in a process of its own: `python -m … FOLDER PORT [free]`.

Prints a line for each attempt: its name, and whether it got out, was reported, or only refused by the system.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

import holdfast
from holdfast.recording.journal import DivergedRun
from holdfast.store.replay.isolation import confine, isolate

is_run = __name__ == "__main__"
folder, port = (Path(sys.argv[1]), int(sys.argv[2])) if is_run else (Path(), 0)
target, unix = folder / "written", str(folder / "socket")
libc = ctypes.CDLL(None, use_errno=True)
NATIVE = ("libc connect", "libc open", "libc unlink", "libc system", "apsw")
"""No audit event tells of these: the system refuses them, if it is a Linux with Landlock."""


def connect(family: int, address: Any) -> None:
    with socket.socket(family) as opened:
        opened.connect(address)


def native_connect() -> None:
    with socket.socket() as opened:
        head = int(socket.AF_INET).to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
        address = head + bytes([127, 0, 0, 1]) + bytes(8)
        _check(libc.connect(opened.fileno(), address, len(address)))


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, "refused")


def native_open() -> None:
    _check(min(0, libc.open(os.fsencode(target), os.O_CREAT | os.O_WRONLY, 0o600)))


def in_thread() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            connect(socket.AF_INET, ("127.0.0.1", port))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    process.start()
    process.join()


ATTEMPTS: dict[str, Callable[[], Any]] = {
    "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
    "connect to a Unix socket": lambda: connect(socket.AF_UNIX, unix),
    "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
    "name": lambda: socket.getaddrinfo("localhost", 80),
    "in a thread": in_thread,
    "write": lambda: target.write_text("x"),
    "append": lambda: (folder / "store.db").open("ab").close(),
    "os.open": lambda: os.open(target, os.O_CREAT | os.O_WRONLY),
    "remove": lambda: (folder / "removed").unlink(),
    "rename": lambda: (folder / "renamed").rename(folder / "other"),
    "sqlite3": lambda: sqlite3.connect(target).execute("create table a (b)"),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "os.system": lambda: os.system("true"),
    "multiprocessing": spawn,
    "the store": lambda: holdfast.open(folder / "store.db").thread("thread").put({"a": 1}),
    "libc connect": native_connect,
    "libc open": native_open,
    "libc unlink": lambda: _check(libc.unlink(os.fsencode(folder / "unlinked"))),
    "libc system": lambda: _check(libc.system(b"true")),
    "apsw": lambda: apsw.Connection(str(folder / "apsw.db")).execute("create table a (b)"),
}


def main() -> None:
    reports: list[str] = []
    if "free" not in sys.argv:
        confine()
        isolate(reports.append)
    assert not {"SECRET", "HOLDFAST_STORE"} & os.environ.keys()
    for name, attempt in ATTEMPTS.items():
        reports.clear()
        try:
            attempt()
            result = "out"
        except (OSError, apsw.Error):
            result = "refused"
        except DivergedRun:
            result = "stopped"
        sys.stdout.write(json.dumps([name, result, "; ".join(reports)]) + "\n")
    sys.stdout.flush()


if is_run:
    main()
