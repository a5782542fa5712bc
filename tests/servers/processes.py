"""Servers as child processes: with ports and a directory of their own, as an unprivileged user, and never left over.

What PyPI or the system offers is started as it is. When the tests run as root, a server runs as `nobody`. Each has a
watchdog: a shell that waits at a pipe from this process, and ends the server and removes its directory when the pipe
closes, which it does however this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.temporary_root import temporary_root

HOST = "127.0.0.1"
NAME = "localhost"
"""The name of the same host, which certificates are for."""

# Below the ports that the system gives to outgoing connections, so that nothing takes the port of a server that is
# down for a moment; and SeaweedFS adds 10,000 for its own use, which are no ports of another's.
_PORTS = range(10_000, 20_000)

_START = 180.0
"""How many seconds a server may take to start: a shared runner may be slow."""


_WATCHDOG = """
pid=
while read -r what value; do
  case $what in
    pid) pid=$value;;
    path) set -- "$@" "$value";;
  esac
done
[ -z "$pid" ] || kill -9 -"$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$@" && break; sleep 1; done
"""
"""Is told the pid of the server, and what to remove besides its directory."""


class Missing(Exception):
    """A server that cannot be had on this machine, and why."""


class Server(ABC):
    """A server of one test or of one test process. As a context manager, it is stopped at the end."""

    name: str
    ports: int = 1
    """How many ports it listens on."""
    ending: signal.Signals | None = None
    """What lets it go quickly and take its own processes along; it is killed where there is no such signal."""

    def __init__(self, identity: bytes | None = None) -> None:
        self.identity = identity
        """A certificate and its key, as PEM: with it, the server takes only connections with TLS. It may be replaced
        between starts."""
        self.directory = _directory()
        self.port = 0
        self.others: list[int] = []
        self._claims: list[Port] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()
        _started.append(self)

    @abstractmethod
    def command(self) -> list[str | Path]:
        """What to run, in the foreground."""

    @abstractmethod
    def answers(self) -> None:
        """Use the server once; raises anything while it is not ready."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Make what the server needs before its first start, in its directory."""

    def settle(self) -> None:  # noqa: B027
        """What to do once, after the first start."""

    def environment(self) -> dict[str, str]:
        """What the server finds in its environment besides the usual."""
        return {}

    def litter(self) -> list[Path]:
        """What it leaves outside its directory."""
        return []

    def start(self) -> Self:
        """Start it for the first time."""
        try:
            self.prepare()
            for attempt in range(4):
                self._release()
                self._claims = [Port() for _ in range(self.ports)]
                self.port, *self.others = (each.number for each in self._claims)
                try:
                    self._run()
                    break
                except Ended:  # somebody took the port meanwhile, who does not claim it
                    if attempt == 3:
                        raise
            self.settle()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Start it again, where it was and with what it had; kills it first if it runs."""
        for attempt in range(4):
            self.kill()
            try:
                self._run()
                break
            except Ended:  # something of the one before is still in its way, on a machine that is busy
                if attempt == 3:
                    raise
                time.sleep(1)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._freeze()  # it has no more children meanwhile, which would be left over
            killed = signal_all(self._process.pid, signal.SIGKILL)
            self._process.wait()
            while not all(map(gone, killed)):  # its children are not ours to wait for
                time.sleep(0.001)
            self._process = None
            self._tell("pid")

    def pause(self) -> None:
        """Let it stand still: connections stay open, nothing is answered."""
        assert self._process is not None, f"{self.name} does not run"
        signal_all(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        assert self._process is not None, f"{self.name} does not run"
        signal_all(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its directory."""
        if self._owner != os.getpid():  # a forked child has no say here
            return
        if self._process is not None and self.ending is not None:
            self._process.send_signal(self.ending)
            self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.kill()
        if self in _started:
            _started.remove(self)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on removing by itself
                self._watchdog.communicate(timeout=10)
        self._release()

    @property
    def host(self) -> str:
        """Under which name to connect to it."""
        return HOST if self.identity is None else NAME

    @property
    def identity_file(self) -> Path:
        """Where it finds its certificate and the key."""
        return self.directory / "identity.pem"

    @property
    def pid(self) -> int | None:
        """Its first process."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run_tool(self, *command: str | Path) -> None:
        """Run something to its end as the server's user."""
        with (self.directory / "log").open("ab") as log:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environment()},
                check=False,
                **_as_user(),
            ).returncode
        if code:
            raise RuntimeError(f"{command[0]} ended with {code}: {self.log()}")

    def log(self) -> str:
        """The end of what it wrote."""
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def _run(self) -> None:
        if self.identity is not None:
            self.identity_file.unlink(missing_ok=True)
            self.identity_file.touch(0o600)  # PostgreSQL refuses a key that others may read
            self.identity_file.write_bytes(self.identity)
            _give(self.identity_file)
        with (self.directory / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "HOME": str(self.directory), "TMPDIR": str(self.directory), **self.environment()},
                start_new_session=True,  # so that Ctrl-C at the tests does not end it in their middle
                **self._user(),
            )
        self._tell("pid", str(process.pid))
        for path in self.litter():
            self._tell("path", str(path))
        try:
            wait_for(self.answers, self.name, self._alive)
        except BaseException:
            self.kill()
            raise

    def _freeze(self) -> None:
        """Have its first process stand still."""
        assert self._process is not None
        while self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            if _state(self._process.pid) in ("T", "Z", ""):
                break
            time.sleep(0.001)

    def _release(self) -> None:
        while self._claims:
            self._claims.pop().close()

    def _tell(self, *words: str) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(" ".join(words).encode() + b"\n")
        self._watchdog.stdin.flush()

    def _alive(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise Ended(f"{self.name} ended with {code}: {self.log()}")

    def _user(self) -> dict[str, Any]:
        return _as_user()


class Ended(Exception):
    """A server that was to start and did not stay."""


_started: list[Server] = []


@atexit.register
def stop_all() -> None:
    """Stop every server of this process."""
    for server in list(reversed(_started)):
        server.stop()


def wait_for(works: Callable[[], object], name: str, watch: Callable[[], None] = lambda: None) -> None:
    """Call until it does not raise."""
    deadline = time.monotonic() + _START
    pause = 0.01
    while True:
        try:
            works()
        except Exception as error:
            watch()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not start in {_START:g} s") from error
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        else:
            watch()  # what answered might be another's
            return


def signal_all(pid: int, number: signal.Signals) -> list[int]:
    """Send a signal to a process and all its children, and tell which these are."""
    found = [pid, *descendants(pid)]
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)
    return found


def descendants(pid: int) -> Iterator[int]:
    """All processes that stem from one, as far as they are there."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def gone(pid: int) -> bool:
    """A process has ended; one that nobody waited for yet counts as ended."""
    if state := _state(pid):
        return state == "Z"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def _state(pid: int) -> str:
    """What a process is about, as the system tells it in a letter; nothing if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    return ""


def packaged(package: str, path: str) -> Path:
    """A file of an installed package, without importing it."""
    if not sys.platform.startswith("linux"):
        raise Missing(f"{package} is started on Linux only")
    try:
        found = Path(str(distribution(package).locate_file(path))).resolve()
    except PackageNotFoundError:
        raise Missing(f"{package} is not installed: `make test` installs it, from requirements/servers.txt") from None
    return usable(found)


def usable(program: Path) -> Path:
    """A program, if the user that a server runs as may run it."""
    if not program.is_file():
        raise Missing(f"{program} is not there")
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in (program, *program.parents)):
        raise Missing(f"{program} is out of reach for nobody; as root, keep the checkout where others may go")
    return program


def _as_user() -> dict[str, Any]:
    """For Popen: who a server runs as."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _directory() -> Path:
    """A new directory that belongs to the servers' user and that it can get to."""
    base = temporary_root()
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in (base, *base.parents)):
        base = Path("/tmp")
    made = Path(tempfile.mkdtemp(prefix="holdfast-server-", dir=base))
    _give(made)
    return made


def _give(path: Path) -> None:
    """Have something belong to the servers' user."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


class Port:
    """A port that is free, and that no other test process takes until this one is closed, or the process ends."""

    def __init__(self) -> None:
        self._claim: socket.socket | None = None
        while True:
            self.number = random.SystemRandom().choice(_PORTS)
            try:
                self._claim = _claimed(self.number)
                for port in (self.number, self.number + 10_000):
                    with socket.socket() as probe:
                        probe.bind((HOST, port))
                return
            except OSError:
                self.close()

    def close(self) -> None:
        """Leave it to others."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def _claimed(port: int) -> socket.socket | None:
    """A name that only one process has at a time, and that goes with it. Where the system has none, ports are many."""
    if not sys.platform.startswith("linux"):
        return None
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0holdfast-test-port-{port}")
    except OSError:
        claim.close()
        raise
    return claim
