"""Files that pages make for who asks, and that no browser shows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

SAFE_HEADERS = {
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""The headers of what a store has: whatever it is, it is no page of ours."""


class Download(NamedTuple):
    """A file that was made for a request, and the name under which it is saved."""

    path: str
    name: str

    def response(self) -> Response:
        """Return the response that sends the file, and removes it."""
        return FileResponse(
            self.path,
            headers=SAFE_HEADERS,
            media_type="application/octet-stream",
            filename=self.name,
            background=BackgroundTask(Path(self.path).unlink),
        )


@contextmanager
def new_download(name: str) -> Iterator[Download]:
    """Return a file to write. It is removed if that fails."""
    ending = name[name.index(".") :] if "." in name else ""
    handle, path = tempfile.mkstemp(ending if ending.isascii() and "/" not in ending else "", "holdfast-")
    os.close(handle)
    try:
        yield Download(path, name)
    except BaseException:
        Path(path).unlink()
        raise
