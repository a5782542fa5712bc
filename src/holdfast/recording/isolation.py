"""The isolation of a replay: code in its process can reach no network, write no file, and start no process.

It is meant to stop and report what a run does beside its models and tools, not to hold code that attacks Python: what
is replayed is the application's own code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.recording.journal import DivergedRun

_NETWORK = frozenset(
    {
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "urllib.Request",
        "http.client.connect",
        "ftplib.connect",
        "smtplib.connect",
    }
)
_PROCESSES = frozenset(
    {
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.kill",
        "os.killpg",
        "pty.spawn",
    }
)
_FILES = frozenset(
    {
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "os.chown",
        "os.utime",
        "os.setxattr",
        "os.removexattr",
        "shutil.rmtree",
        "shutil.move",
        "shutil.copyfile",
        "sqlite3.connect",
        "tempfile.mkstemp",
        "tempfile.mkdtemp",
    }
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def isolate(report: Callable[[str], None]) -> None:
    """Block sockets, writes and processes from now on, in this process, for good. `report` is told what was blocked."""
    inside = threading.local()

    def check(event: str, args: tuple[Any, ...]) -> None:
        what = _blocked(event, args)
        if what is None or getattr(inside, "busy", False):
            return
        inside.busy = True  # what reports it may open files to read
        try:
            report(f"{what}, at {_caller()}")
        finally:
            inside.busy = False
        raise DivergedRun(what)

    _forbid_growth()
    sys.addaudithook(check)


def _forbid_growth() -> None:
    """Have the system refuse that files grow, which also stops libraries that no audit event tells of."""
    try:
        import resource
        import signal
    except ImportError:
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _blocked(event: str, args: tuple[Any, ...]) -> str | None:
    if event == "open":
        path, mode, flags = args
        if path == os.devnull or isinstance(path, int):
            return None
        writes = bool(flags & _WRITING) if isinstance(flags, int) else any(each in str(mode) for each in "wax+")
        return f"opens {_short(path)} to write" if writes else None
    if event == "socket.bind" and isinstance(args[1], tuple) and args[1][:1] in (("::1",), ("127.0.0.1",)):
        return None  # libraries find out by it whether the machine has IPv6; nobody can be reached by it
    if event in _NETWORK:
        if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
            return f"uses the network: {event} {_short(args[1] if event != 'socket.getaddrinfo' else args[:2])}"
        return f"uses the network: {event}"
    if event in _PROCESSES:
        return f"starts or ends a process: {event} {_short(args[0]) if args else ''}".rstrip()
    return f"changes files: {event} {_short(args[0]) if args else ''}".rstrip() if event in _FILES else None


def _short(value: Any) -> str:
    return ascii(value)[:120]


def _caller() -> str:
    """Return the place in the code that led to it: the innermost frame that is not of a library."""
    frames = [each for each in traceback.extract_stack() if each.filename != __file__]
    own = [
        each for each in frames if "site-packages" not in each.filename and f"{os.sep}lib{os.sep}" not in each.filename
    ]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
