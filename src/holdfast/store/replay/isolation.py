"""The isolation of a replay: code in its process can reach no network, write no file, start no process and open no
store.

It is meant to stop and report what a run does beside its models and tools, not to hold code that attacks Python: what
is replayed is the application's own code. Native libraries (clients of databases, gRPC, event loops in C) raise no
audit event: the system refuses their effects, and nothing reports them. On Linux, Landlock refuses that files are
created, written or removed, programs started, and TCP connections made. On other systems, and with older kernels, only
files cannot grow.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
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
        "socket.getnameinfo",
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
        "signal.pthread_kill",
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
        "os.chflags",
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
_STORES = frozenset({"holdfast.open"})
_WATCHED = frozenset({"open"}) | _NETWORK | _PROCESSES | _FILES | _STORES
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_RULE = 1
_SET_NO_NEW_PRIVILEGES = 38
_O_PATH = getattr(os, "O_PATH", 0)

_EXECUTE, _WRITE, _REFER, _TRUNCATE = 1 << 0, 1 << 1, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_CONNECT_TCP = 1 << 1
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
"""Of processes outside."""

_ALLOWED = ("/dev/null", "/dev/full", "/dev/zero")
"""The files that may be written."""


def isolate(report: Callable[[str], None]) -> None:
    """Block sockets, writes, processes and stores from now on, in this process, for good. `report` is told what was
    blocked."""
    inside = threading.local()

    def stop(what: str) -> None:
        inside.busy = True  # what reports it may open files to read
        try:
            report(f"{what}, at {_caller()}")
        finally:
            inside.busy = False
        raise DivergedRun(what)

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event not in _WATCHED or getattr(inside, "busy", False):
            return
        what = _blocked(event, args)
        if what is not None:
            stop(what)

    def start_program(*args: Any) -> None:
        stop(f"starts or ends a process: {_short(args[0] if args else '')}")

    sys.addaudithook(check)
    with suppress(ImportError):  # by which multiprocessing starts processes, without an audit event
        import _posixsubprocess

        _posixsubprocess.fork_exec = start_program  # type: ignore[assignment]


def _blocked(event: str, args: tuple[Any, ...]) -> str | None:
    """Return what is blocked of an event; None if it is allowed."""
    if event == "open":
        path, mode, flags = args
        if isinstance(path, int) or os.fsdecode(path) == os.devnull:
            return None
        writes = bool(flags & _WRITING) if isinstance(flags, int) else any(each in str(mode) for each in "wax+")
        return f"opens {_short(path)} to write" if writes else None
    if event in _STORES:
        return None if str(args[0]).startswith("memory:") else f"opens a store: {_short(args[0])}"
    if event == "socket.bind" and args[1] in (("::1", 0), ("127.0.0.1", 0)):
        return None  # libraries find out by it whether the machine has IPv6; nobody can be reached by it
    if event == "sqlite3.connect" and args[0] == ":memory:":
        return None
    if event in _NETWORK:
        if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
            return f"uses the network: {event} {_short(args[1] if event != 'socket.getaddrinfo' else args[:2])}"
        return f"uses the network: {event}"
    what = "starts or ends a process" if event in _PROCESSES else "changes files"
    return f"{what}: {event} {_short(args[0]) if args else ''}".rstrip()


def _short(value: Any) -> str:
    return ascii(value)[:120]


_LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}", str(Path(__file__).parents[2]))


def _caller() -> str:
    """Return the place in the code that led to it."""
    return _own_place([each for each in traceback.extract_stack() if each.filename != __file__])


def place_of(error: BaseException) -> str:
    """Return the place in the code that raised an error; of one in its syntax, that place."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = list(traceback.extract_tb(error.__traceback__))
    return _own_place(frames) if frames else "an unknown place"


def _own_place(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost frame that is not of a library."""
    own = [each for each in frames if not any(part in each.filename for part in _LIBRARIES)]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def confine() -> None:
    """Have the system refuse writes, connections and programs from now on, in this thread and those that it starts."""
    _forbid_growth()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # an older kernel, or one without it
            _restrict()


def _forbid_growth() -> None:
    try:
        import resource
        import signal
    except ImportError:
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _restrict() -> None:
    system = ctypes.CDLL(None, use_errno=True)

    def call(*args: object) -> int:
        found = int(system.syscall(*args))
        if found < 0:
            raise OSError(ctypes.get_errno(), "Landlock refused")
        return found

    version = call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    files = _EXECUTE | _WRITE | _REMOVE_AND_MAKE
    files |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    fields = [files]
    if version >= 4:
        fields.append(_CONNECT_TCP)
    if version >= 6:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    described = struct.pack(f"={len(fields)}Q", *fields)
    rules = call(_CREATE_RULESET, described, ctypes.c_size_t(len(described)), ctypes.c_uint32(0))
    try:
        for path in filter(os.path.exists, _ALLOWED):
            file = os.open(path, _O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", files & (_WRITE | _TRUNCATE), file)
                call(_ADD_RULE, rules, ctypes.c_int(_PATH_RULE), rule, ctypes.c_uint32(0))
            finally:
                os.close(file)
        if system.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
            call(_RESTRICT_SELF, rules, ctypes.c_uint32(0))
    finally:
        os.close(rules)
