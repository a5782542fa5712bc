"""Which process did something, and whether it still runs."""

from __future__ import annotations

import os
from pathlib import Path


def process_identity() -> str:
    """Return what tells this process from all others, on any machine; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getpid()} {_started(os.getpid())}"
    except OSError:
        return ""


def is_near(identity: str) -> bool:
    """Return whether a process is of this machine, so that it is known whether it runs."""
    mine, parts = process_identity().split(" "), identity.split(" ")
    return len(parts) == len(mine) == 4 and parts[:2] == mine[:2]


def is_dead(identity: str) -> bool:
    """Return whether a process is known to be dead: one of this machine that is not there any more."""
    if not is_near(identity):
        return False
    _, _, pid, started = identity.split(" ")
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return _started(int(pid)) != started
    except OSError:  # it is not ours to look at
        return False


def _started(pid: int) -> str:
    """Return when a process was started; empty of one that has ended and was not waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
