"""Databases of LangGraph's own savers: read where they lie, estimated, and written for those who go back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver

from holdfast._lazy import missing_extra
from holdfast.backends.urls import redacted_url
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.langgraph.peer_values import PeerSerializer
from holdfast.interfaces.langgraph.transfer import ImportReport, Progress, export_threads, import_threads
from holdfast.interfaces.peer_sessions import Estimate, file_bytes, measure_import
from holdfast.store.store import StoreOperations


@contextmanager
def open_peer(location: str, allow: Iterable[str] = ()) -> Iterator[BaseCheckpointSaver[Any]]:
    """Open a database of LangGraph's SQLite or PostgreSQL saver, to be read."""
    serde = PeerSerializer(allow)
    if _is_postgres(location):
        with _savers("postgres").PostgresSaver.from_conn_string(location) as postgres:
            postgres.serde = serde
            yield postgres
        return
    path = Path(location.removeprefix("sqlite:///"))
    if not path.exists():
        raise NotFoundError("there is no such file", where=str(path))
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        columns = _columns(connection, path)
        saver = _savers("sqlite").SqliteSaver(connection, serde=serde)
        saver.is_setup, saver._has_task_path = True, "task_path" in columns
        yield saver


@contextmanager
def _new_peer(location: str) -> Iterator[BaseCheckpointSaver[Any]]:
    """Set up an empty database of LangGraph's SQLite or PostgreSQL saver."""
    if _is_postgres(location):
        with _savers("postgres").PostgresSaver.from_conn_string(location) as postgres:
            postgres.setup()
            with postgres._cursor() as cursor:
                if cursor.execute("SELECT 1 FROM checkpoints LIMIT 1").fetchone() is not None:
                    raise ConflictError(
                        "the database has checkpoints already",
                        where=redacted_url(location),
                        hint="Name an empty database",
                    )
            yield postgres
        return
    if Path(location).exists():
        raise ConflictError("the file exists already", where=location, hint="Name a new file")
    with _savers("sqlite").SqliteSaver.from_conn_string(location) as saver:
        saver.setup()
        yield saver


def _is_postgres(location: str) -> bool:
    return location.startswith(("postgres://", "postgresql://"))


def _savers(kind: Literal["sqlite", "postgres"]) -> Any:
    """Return LangGraph's module with a kind of savers."""
    try:
        if kind == "sqlite":
            from langgraph.checkpoint import sqlite

            return sqlite
        from langgraph.checkpoint import postgres
    except ImportError as error:
        raise missing_extra("langgraph", error) from error
    return postgres


def _columns(connection: sqlite3.Connection, path: Path) -> set[str]:
    """Return the columns of the table of writes. `InvalidError` if the file is not such a database."""
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError:
        tables = set()
    if not {"checkpoints", "writes"} <= tables:
        raise InvalidError("the file is not a database of LangGraph's SqliteSaver", where=str(path))
    return {row[1] for row in connection.execute("PRAGMA table_info(writes)")}


def import_database(
    store: StoreOperations,
    location: str,
    threads: Iterable[str] = (),
    allow: Iterable[str] = (),
    progress: Progress | None = None,
) -> ImportReport:
    """Import the threads of a database, all or some."""
    with open_peer(location, allow) as saver:
        return import_threads(saver, store, threads=list(threads) or None, progress=progress)


def export_database(
    store: StoreOperations, location: str, threads: Iterable[str], progress: Progress | None = None
) -> int:
    """Write threads, all or some, to a new file of LangGraph's SqliteSaver, or to an empty database of its
    PostgresSaver. Returns the number of checkpoints."""
    with _new_peer(location) as saver:
        return export_threads(store, saver, threads=list(threads) or None, progress=progress)


def estimate(location: str, allow: Iterable[str] = (), progress: Progress | None = None) -> Estimate:
    """Import a database into a store that is deleted again, and return what both take."""
    with open_peer(location, allow) as saver:
        report, after = measure_import(lambda store: import_threads(saver, store, progress=progress))
        before = file_bytes(location) or _table_bytes(saver)
        return Estimate(threads=report.threads, checkpoints=report.checkpoints, before=before, after=after)


def _table_bytes(saver: Any) -> int:
    """Return the bytes of the tables of a database of PostgreSQL."""
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    with saver._cursor() as cursor:
        query = "SELECT sum(pg_total_relation_size(name::regclass)) AS n FROM unnest(%s::text[]) AS name"
        return int(cursor.execute(query, (list(tables),)).fetchone()["n"])
