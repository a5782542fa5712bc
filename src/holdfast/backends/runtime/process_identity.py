"""The identity of a process, by which others on the machine find out whether it has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path


def process_identity() -> str:
    """Return what tells this process from all others, on any machine; empty where the system does not say."""
    return _identity(os.getpid())


@lru_cache(1)
def _identity(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {pid} {_started(pid)}"
    except OSError:
        return ""


def has_ended(identity: str) -> bool | None:
    """Return whether a process has ended; None if that is not known here, as it ran on another machine."""
    mine, parts = process_identity().split(" "), identity.split(" ")
    if len(parts) != 4 or len(mine) != 4 or parts[:2] != mine[:2]:
        return None
    pid = int(parts[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return _started(pid) != parts[3]  # another process may have its number
    except OSError:  # it is not ours to look at
        return False


def _started(pid: int) -> str:
    """Return when a process was started; empty of one that has ended and was not waited for."""
    fields: Sequence[str] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
