"""Waking workers: on this machine by a datagram to the socket of each, in a directory that the store's URL names; on
others by an announcement of the store, if it has such.

Both are hints only: a worker that gets none looks from time to time.
"""

from __future__ import annotations

import os
import select
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from holdfast.engine.context import EngineContext
from holdfast.errors import HoldfastError

_LONGEST_PATH = 90
"""The addresses of sockets are short: this many bytes for the directory."""

_HAS_SOCKETS = hasattr(socket, "AF_UNIX")

_MOST = 1000
"""How many datagrams are taken at a time."""


def wake_folder(context: EngineContext) -> Path:
    """Return the directory with the sockets of the workers of a store: beside the file of one in SQLite, so that all
    who may write there may wake them."""
    return _folder(context.backend.url)


@lru_cache(256)
def _folder(url: str) -> Path:
    scheme, _, path = url.partition("://")
    if scheme == "sqlite":
        beside = Path(path.partition("?")[0] + "-wake")
        if beside.parent.is_dir() and len(os.fsencode(beside)) <= _LONGEST_PATH:
            return beside
    digest = blake2b(url.encode(), digest_size=12).hexdigest()
    return Path(tempfile.gettempdir()) / f"holdfast-wake-{os.getuid()}-{digest}"


async def ring(context: EngineContext, tenant: str) -> None:
    """Wake the workers of a store: there may be something to do for a tenant."""
    _ring_here(context)
    await context.backend.announce(_topic(tenant))


def _topic(tenant: str) -> str:
    """Return the topic of the runs of a tenant, whose name may be private."""
    return f"runs-{blake2b(tenant.encode(), digest_size=12).hexdigest()}"


def _ring_here(context: EngineContext) -> None:
    if not _HAS_SOCKETS:
        return
    try:
        sockets = list(wake_folder(context).iterdir())
    except OSError:
        return  # no worker on this machine
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        for path in sockets:
            try:
                bell.sendto(b"", str(path))
            except ConnectionRefusedError:
                with suppress(OSError):  # its worker was killed
                    path.unlink()
            except OSError:  # it is awake: so much waits for it already
                continue


class Bell:
    """What wakes a worker: a socket of its own, and where there are any, one for other processes of this machine."""

    def __init__(self, context: EngineContext) -> None:
        inner, self._own = socket.socketpair()
        self.sockets = [inner]
        """They are readable when it rings."""
        self._path: Path | None = None
        self._end_listening: Callable[[], None] | None = None
        for each in (inner, self._own):
            each.setblocking(False)
        if not _HAS_SOCKETS:
            return
        with suppress(OSError):  # where none can be made, it looks from time to time
            folder = wake_folder(context)
            folder.mkdir(exist_ok=True)
            outer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            outer.setblocking(False)
            self.sockets.append(outer)
            path = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
            outer.bind(str(path))
            self._path = path

    async def listen(self, context: EngineContext, tenant: str) -> None:
        """Have it ring, too, when the store announces runs of a tenant."""
        with suppress(HoldfastError):
            self._end_listening = await context.backend.listen(_topic(tenant), self.ring)

    def ring(self) -> None:
        """Wake this worker: from any thread, or from a signal handler."""
        with suppress(OSError):
            self._own.send(b"!")

    def wait(self, seconds: float) -> None:
        """Wait until it rings, or for some seconds."""
        select.select(self.sockets, [], [], max(seconds, 0.0))
        self.drain()

    def drain(self) -> None:
        """Take what has rung."""
        for each in self.sockets:
            with suppress(OSError):
                for _ in range(_MOST):
                    each.recv(1024)

    def close(self) -> None:
        """Close it."""
        if self._end_listening is not None:
            self._end_listening()
        for each in (*self.sockets, self._own):
            each.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # fails while others work
