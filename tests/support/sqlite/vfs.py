"""Small things about SQLite's VFSs that recording and failing ones share."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import apsw
import apsw.sqlite_extra

Name: TypeAlias = str | apsw.URIFilename | None
"""What SQLite passes for the name of a file; None for a temporary one."""


def system_vfs() -> str:
    """The name of the VFS that talks to the system."""
    return next(name for name in apsw.vfs_names() if name in ("unix", "win32"))


def path_of(name: Name) -> Path | None:
    """Where a file is, if it is no temporary one."""
    if name is None:
        return None
    return Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
