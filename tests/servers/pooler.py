"""PgBouncer in transaction mode, of the machine or from Debian."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.servers.debian import find_program
from tests.servers.postgresql import PostgresServer
from tests.servers.processes import HOST, Server


class PgBouncerServer(Server):
    """A PgBouncer in front of a PostgreSQL server: all its databases, and all its users without a password."""

    name = "PgBouncer"

    def __init__(self, behind: PostgresServer) -> None:
        self._program = find_program("pgbouncer", "pgbouncer")
        self.behind = behind
        super().__init__()

    @property
    def url(self) -> str:
        """The first database behind it."""
        return self.through(self.behind.url)

    def fresh(self) -> str:
        """The URL of a new, empty database behind it."""
        return self.through(self.behind.fresh())

    def through(self, url: str) -> str:
        """The URL of a database behind it, through it."""
        return url.replace(f":{self.behind.port}/", f":{self.port}/")

    def command(self) -> list[str | Path]:
        (self.directory / "users.txt").write_text('"app" ""\n')
        (self.directory / "pgbouncer.ini").write_text(
            "\n".join(
                [
                    "[databases]",
                    f"* = host={HOST} port={self.behind.port} auth_user=app",
                    "[pgbouncer]",
                    f"listen_addr = {HOST}",
                    f"listen_port = {self.port}",
                    "unix_socket_dir =",
                    "auth_type = trust",
                    f"auth_file = {self.directory / 'users.txt'}",
                    "admin_users = app",
                    "pool_mode = transaction",
                    "server_login_retry = 1",
                ]
            )
        )
        return [self._program.path, self.directory / "pgbouncer.ini"]

    def environment(self) -> dict[str, str]:
        return self._program.environment()

    def answers(self) -> None:
        psycopg.connect(self.url, connect_timeout=2, prepare_threshold=None).close()
