"""Running the command line: in this process, in one of its own, and in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from holdfast.interfaces.cli import completion_types
from holdfast.interfaces.cli.main import main

SECONDS = 120.0
"""How long a test waits for what must come. Only a failure takes as long, however busy the machine is."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)")

# Makes the terminal on stdin the controlling one, so that Ctrl-C gets to the program, and becomes the program. Signals
# are as a shell has them for what runs in front, whatever the tests themselves were started with.
_IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGTSTP):
    signal.signal(each, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of its output."""
        return self.out.splitlines()

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of its output, with `--json`."""
        return [json.loads(line) for line in self.lines]

    @property
    def error(self) -> dict[str, Any]:
        """What it says is wrong, with `--json`."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return error


class _Captured(io.StringIO):
    """Stands for stdout or stderr, where no terminal is."""


def run(*arguments: str | Path, store: str | None = None, typed: str = "") -> Result:
    """Run a command in this process."""
    given = [*(["--store", store] if store is not None else []), *map(str, arguments)]
    out, err = _Captured(), _Captured()
    before, sys.stdin = sys.stdin, io.StringIO(typed)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(given)
    finally:
        sys.stdin = before
    return Result(code, out.getvalue(), err.getvalue())


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: without what the user of this machine has set, and without coverage's own.

    Python keeps what it compiles where it does for everyone, so that each process starts quickly.
    """
    dropped = (
        "HOLDFAST_",
        "PYTHONDONTWRITEBYTECODE",
        "COV_",
        "COVERAGE_",
        "PAGER",
        "LESS",
        "NO_COLOR",
        "COLUMNS",
        "LINES",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "TERM": "xterm", **more}


def command(*arguments: str | Path) -> list[str]:
    """The words that run a command."""
    return [sys.executable, "-m", "holdfast", *map(str, arguments)]


COMPLETING = [
    sys.executable,
    "-c",
    "import sys; from holdfast.interfaces.cli import completion_types, main; "
    "completion_types._SECONDS = 100.0; sys.exit(main.main())",
]
"""The words that run a command which has time to complete what was typed, also on a machine that is busy."""


def completed(**env: str) -> Result:
    """What a shell is told that asks, as its environment says, for what may follow: in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    alarm = signal.getsignal(signal.SIGALRM)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with (
            patch.dict(os.environ, env),
            patch.object(completion_types, "_SECONDS", 100.0),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main()
    finally:  # completion sets a timer of its own, and the test has one
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, left)
    out.seek(0)
    return Result(code, out.read(), err.getvalue())


def spawn(*arguments: str | Path, env: Mapping[str, str] | None = None, typed: str = "") -> Result:
    """Run a command in a process of its own, with pipes."""
    return _spawned(command(*arguments), env or {}, typed)


def _spawned(words: list[str], env: Mapping[str, str], typed: str) -> Result:
    done = subprocess.run(
        words,
        env=environment(**env),
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A program in a terminal of its own. What it writes is read as it comes; keys can be sent to it."""

    def __init__(
        self, *words: str | Path, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None
    ) -> None:
        self.text = ""
        """All that was written so far, with its escape sequences."""
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _IN_TERMINAL, *map(str, words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(**(env or {})),
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)

    @property
    def plain(self) -> str:
        """What was written, without escape sequences."""
        return _ESCAPES.sub("", self.text).replace("\r\n", "\n")

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def expect(self, wanted: str) -> None:
        """Wait until something was written."""
        for _ in self._reading(f"{wanted!r} did not come"):
            if wanted in self.plain:
                return
        raise AssertionError(f"{wanted!r} did not come before the program ended; it wrote {self.text!r}")

    def wait(self) -> int:
        """Wait until the program ends. Returns its exit code; negative is a signal."""
        for _ in self._reading("the program did not come to an end"):
            pass
        return self._process.wait(SECONDS)

    def interrupt(self) -> int:
        """Press Ctrl-C until the program ends: a read that begins just after the signal does not notice it."""
        return self.answer("\x03")

    def answer(self, keys: str) -> int:
        """Answer a question, and wait until the program ends. Ctrl-C is repeated: see `interrupt`."""
        self.send(keys)
        nudge = keys if keys == "\x03" else ""
        for _ in self._reading("the program did not come to an end", nudge):
            pass
        return self._process.wait(SECONDS)

    def _reading(self, otherwise: str, nudge: str = "") -> Iterator[None]:
        """Reads until the program ends; yields after every bit, and once before. Keys to `nudge` it are sent while it
        is silent."""
        until = time.monotonic() + SECONDS
        yield
        while time.monotonic() < until:
            if not select.select([self._master], [], [], 0.1 if not nudge else 1.0)[0]:
                if nudge:
                    self.send(nudge)
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # on Linux, the end
                return
            if not data:
                return
            self.text += data.decode(errors="replace")
            yield
        raise AssertionError(f"{otherwise} in {SECONDS} s; the program wrote {self.text!r}")


# Runs a command that stops after a method was called so many times, until a file is there. Naps, and not one sleep: a
# signal that comes just before a sleep begins would be heard at its end.
_HALTED = """
import os, pkgutil, sys, time
from holdfast.interfaces.cli.main import main
at, left, until = sys.argv[1], [int(sys.argv[2])], sys.argv[3]
owner, _, method = at.rpartition(".")
owner = pkgutil.resolve_name(owner)
plain = getattr(owner, method)
def halting(*args, **kwargs):
    left[0] -= 1
    if left[0] == -1:
        print("halted", flush=True)
        while not os.path.exists(until):
            time.sleep(0.01)
    return plain(*args, **kwargs)
setattr(owner, method, halting)
sys.exit(main(sys.argv[4:]))
"""
PROGRESS = "holdfast.interfaces.cli.output:ProgressBar.__call__"


def halted(*arguments: str | Path, after: int, at: str = PROGRESS, until: Path = Path("no such file")) -> Terminal:
    """Run a command in a terminal that gets as far as to call a method `after` times: that which tells of progress, or
    another. It says so, and waits there until a file is there."""
    return Terminal(sys.executable, "-c", _HALTED, at, str(after), until, *arguments)


def in_terminal(*arguments: str | Path, **settings: Any) -> Terminal:
    """Run a command in a terminal: `with in_terminal("log", "t1") as terminal`."""
    return Terminal(*command(*arguments), **settings)
