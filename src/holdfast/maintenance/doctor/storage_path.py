"""What the doctor looks at where a store is kept in a file or directory, before it is opened: is it there, may it be
written, on what kind of disk is it, how much room is left."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.backends.urls import is_there
from holdfast.errors import DeniedError
from holdfast.maintenance.doctor.result import CheckResult, note, ok, problem, warning

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "davfs")
_MOUNTS = Path("/proc/mounts")

_LITTLE = 256 << 20
_NONE_LEFT = 16 << 20
_LARGE_LOG = 128 << 20


def checks(url: str, path: Path) -> Iterator[CheckResult]:
    """All of them, of one file or directory."""
    try:
        there = is_there(path, str(path.absolute()))
    except DeniedError as error:
        yield problem("store-permissions", f"{error.what} (at {error.where})", error.hint)
        return
    if not there:
        yield problem(
            "store-there",
            f"there is nothing at {path.absolute()}",
            "Check the URL and the current directory. Saving a first checkpoint makes the store",
        )
        return
    yield ok("store-there", f"{path.absolute()}, {_stored(path):,} bytes")
    yield from permissions(path)
    if url.startswith("sqlite:"):
        yield from network_disk(path)
        yield from log_size(path)
    yield from disk_space(path)


def permissions(path: Path) -> Iterator[CheckResult]:
    """Whether this user may write where it must."""
    folder = path if path.is_dir() else path.parent
    denied = [str(each) for each in dict.fromkeys((path, folder)) if not os.access(each, os.R_OK | os.W_OK)]
    if denied:
        yield problem(
            "store-permissions",
            f"this user may not write to {' and '.join(denied)}",
            "Grant reading and writing, of the directory too: SQLite puts its log beside the file",
        )
        return
    if hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0) and os.getuid() != 0:
        yield note("store-permissions", f"{path} may be written, and belongs to another user")
        return
    if os.name == "posix" and path.stat().st_mode & 0o002:
        yield warning(
            "store-permissions", f"every user of this machine may write to {path}", f"Take that away: chmod o-w {path}"
        )
        return
    yield ok("store-permissions", "this user may read and write there")


def network_disk(path: Path, mounts: Path = _MOUNTS) -> Iterator[CheckResult]:
    """Whether a SQLite file is on a disk of another machine, where its locks and its log do not work."""
    kind = _filesystem(path.resolve(), mounts)
    if kind in _NETWORK or kind.startswith("nfs"):
        yield problem(
            "store-disk",
            f"{path} is on a network filesystem ({kind}), where SQLite can damage it",
            "Put the file on a local disk; to share a store between machines, use PostgreSQL, MongoDB or Redis",
        )
    elif kind:
        yield ok("store-disk", f"a local disk ({kind})")


def _filesystem(path: Path, mounts: Path) -> str:
    """The kind of filesystem that a path is on; empty where that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        place = Path(fields[1].replace("\\040", " "))
        if (path == place or place in path.parents) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind


def log_size(path: Path) -> Iterator[CheckResult]:
    """How much waits in SQLite's log to be written back into the file."""
    size = _size(Path(f"{path}-wal"))
    if size > _LARGE_LOG:
        yield warning(
            "store-log",
            f"the write-ahead log has {size:,} bytes",
            "A process that reads without end keeps it from being written back: end it. Then run `holdfast jobs run` "
            "of a tidy job, or open and close the store",
        )
    else:
        yield ok("store-log", f"the write-ahead log has {size:,} bytes")


def disk_space(path: Path) -> Iterator[CheckResult]:
    """How much room is left, against what the store takes."""
    free, stored = shutil.disk_usage(path).free, _stored(path)
    found = f"{free:,} bytes are free, and the store takes {stored:,}"
    remedy = "Make room: delete other files, prune the store, or move it to a larger disk"
    if free < _NONE_LEFT:
        yield problem("disk-space", found, remedy)
    elif free < max(_LITTLE, stored // 5):
        yield warning("disk-space", found, remedy)
    else:
        yield ok("disk-space", found)


def _stored(path: Path) -> int:
    """The bytes that a file and what is beside it take, or a directory."""
    if path.is_dir():
        # Not `rglob`, which fails where others remove a directory meanwhile.
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)
    return _size(path) + _size(Path(f"{path}-wal"))


def _size(path: Path) -> int:
    """The bytes of a file; none, if it is gone by now or not for this user to see."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
