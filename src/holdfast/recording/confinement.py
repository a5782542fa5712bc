"""Limits that the system sets for the process of a replay. They hold for native libraries, which no audit event of
Python's tells of: clients of databases, gRPC, event loops in C.

On Linux, Landlock refuses that files are created, written or removed, programs started, and TCP connections made. On
other systems, and with older kernels, only files cannot grow.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_RULE = 1
_SET_NO_NEW_PRIVILEGES = 38
_O_PATH = getattr(os, "O_PATH", 0)

_EXECUTE, _WRITE, _REFER, _TRUNCATE = 1 << 0, 1 << 1, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_CONNECT_TCP = 1 << 1
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
"""Those of processes outside."""

_ALLOWED = ("/dev/null", "/dev/full", "/dev/zero")
"""What may be written."""


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
