"""Checks of the file or directory of a store, before it is opened: existence, permissions, filesystem, free space."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl

from holdfast.backends.fsutil import path_exists
from holdfast.backends.urls import COMPOSITIONS, is_url, path_to_url
from holdfast.errors import DeniedError
from holdfast.maintenance.doctor.result import CheckResult, note, ok, problem, warning

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "davfs")
_MOUNTS = Path("/proc/mounts")

_LOW_SPACE = 256 << 20
_NO_SPACE = 16 << 20
_LARGE_LOG = 128 << 20


def parts(url: str) -> Iterator[str]:
    """Yield the URLs of the stores that a composition consists of; a plain store is its own part."""
    kind, _, rest = url.partition(":")
    if kind not in COMPOSITIONS:
        yield url if is_url(url) else path_to_url(url)
        return
    for name, value in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if name in COMPOSITIONS[kind] and value:
            yield from parts(value)


def checks(url: str, path: Path) -> Iterator[CheckResult]:
    """Run all checks of a file or directory."""
    try:
        exists = path_exists(path, str(path.absolute()))
    except DeniedError as error:
        yield problem("store-permissions", f"{error.what} (at {error.where})", error.hint)
        return
    if not exists:
        yield problem(
            "store-there",
            f"there is nothing at {path.absolute()}",
            "Check the URL and the current directory. The first save creates the store",
        )
        return
    yield ok("store-there", f"{path.absolute()}, {_stored(path):,} bytes")
    yield from permissions(path)
    if url.startswith("sqlite:"):
        yield from network_disk(path)
        yield from log_size(path)
    yield from disk_space(path)


def permissions(path: Path) -> Iterator[CheckResult]:
    """Check whether this user may read and write the store."""
    folder = path if path.is_dir() else path.parent
    denied = [str(each) for each in dict.fromkeys((path, folder)) if not os.access(each, os.R_OK | os.W_OK)]
    if denied:
        yield problem(
            "store-permissions",
            f"this user may not write to {' and '.join(denied)}",
            "Grant reading and writing, on the directory too: SQLite puts its log beside the file",
        )
        return
    if hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0) and os.getuid() != 0:
        yield note("store-permissions", f"{path} is writable, and belongs to another user")
        return
    if os.name == "posix" and path.stat().st_mode & 0o002:
        yield warning(
            "store-permissions", f"every user of this machine may write to {path}", f"Revoke that: chmod o-w {path}"
        )
        return
    yield ok("store-permissions", "this user may read and write it")


def network_disk(path: Path, mounts: Path = _MOUNTS) -> Iterator[CheckResult]:
    """Check whether a SQLite file is on a network filesystem, where its locks and its log do not work."""
    kind = _filesystem(path.resolve(), mounts)
    if kind in _NETWORK or kind.startswith("nfs"):
        yield problem(
            "store-disk",
            f"{path} is on a network filesystem ({kind}), where SQLite can corrupt it",
            "Put the file on a local disk; to share a store between machines, use PostgreSQL, MongoDB or Redis",
        )
    elif kind:
        yield ok("store-disk", f"a local disk ({kind})")


def _filesystem(path: Path, mounts: Path) -> str:
    """Return the type of filesystem of a path; empty if it is unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = Path(fields[1].replace("\\040", " "))
        if (path == mount or mount in path.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), fields[2]
    return kind


def log_size(path: Path) -> Iterator[CheckResult]:
    """Check the size of SQLite's log, which is written back to the file."""
    size = _size(Path(f"{path}-wal"))
    if size > _LARGE_LOG:
        yield warning(
            "store-log",
            f"the write-ahead log has {size:,} bytes",
            "A process that reads without end prevents that: end it. Then run a tidy job with `holdfast jobs run`, "
            "or open and close the store",
        )
    else:
        yield ok("store-log", f"the write-ahead log has {size:,} bytes")


def disk_space(path: Path) -> Iterator[CheckResult]:
    """Check the free space, compared with the size of the store."""
    free, stored = shutil.disk_usage(path).free, _stored(path)
    found = f"{free:,} bytes are free, and the store takes {stored:,}"
    remedy = "Free some space: delete other files, prune the store, or move it to a larger disk"
    if free < _NO_SPACE:
        yield problem("disk-space", found, remedy)
    elif free < max(_LOW_SPACE, stored // 5):
        yield warning("disk-space", found, remedy)
    else:
        yield ok("disk-space", found)


def _stored(path: Path) -> int:
    """Return the bytes of a file and its log, or of a directory."""
    if path.is_dir():
        # Not `rglob`, which fails when another process removes a directory.
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)
    return _size(path) + _size(Path(f"{path}-wal"))


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 if it is gone or hidden from this user."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
