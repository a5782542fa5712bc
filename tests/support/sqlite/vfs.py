"""Small things about SQLite's VFSs that recording and failing ones share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import apsw
import apsw.sqlite_extra

from holdfast.errors import UnsupportedError

Name: TypeAlias = str | apsw.URIFilename | None
"""What SQLite passes for the name of a file; None for a temporary one."""

_CHECKSUMS = "cksmvfs"


def system_vfs() -> str:
    """The name of the VFS that talks to the system."""
    return next(name for name in apsw.vfs_names() if name in ("unix", "win32"))


def path_of(name: Name) -> Path | None:
    """Where a file is, if it is no temporary one."""
    if name is None:
        return None
    return Path(name.filename() if isinstance(name, apsw.URIFilename) else name)


@contextmanager
def under_checksums(vfs: str) -> Iterator[str]:
    """Put SQLite's checksum VFS on top of another one, and give the name to open databases with.

    There is one checksum VFS in a process, and it sits on what is the default when its extension is loaded. So it is
    loaded anew here, and again afterwards on what it was on before. Meanwhile nobody else should open databases.
    """
    if apsw.sqlite_extra.has("cksumvfs") is None:
        raise UnsupportedError("this apsw comes without SQLite's checksum VFS", hint="Record without checksums")
    names = apsw.vfs_names()
    loaded = _CHECKSUMS in names
    if loaded:
        apsw.unregister_vfs(_CHECKSUMS)
    default = apsw.vfs_names()[0]
    _load_on(vfs, default)
    try:
        yield _CHECKSUMS
    finally:
        apsw.unregister_vfs(_CHECKSUMS)
        if loaded:
            _load_on(system_vfs(), default)
        apsw.set_default_vfs(names[0])


def _load_on(vfs: str, default: str) -> None:
    with closing(apsw.Connection(":memory:")) as connection:
        apsw.set_default_vfs(vfs)
        try:
            apsw.sqlite_extra.load(connection, "cksumvfs")
        finally:
            apsw.set_default_vfs(default)
