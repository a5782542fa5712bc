"""Databases of LangGraph's own savers: read where they lie, estimated, and written for those who go back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from holdfast._lazy import missing_extra
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.langgraph.peer_values import PeerSerializer
from holdfast.interfaces.langgraph.transfer import ImportReport, Progress, export_threads, import_threads
from holdfast.interfaces.peer_sessions import Estimate, file_bytes, measure_import
from holdfast.store.store import StoreOperations


@contextmanager
def open_peer(location: str, allow: Iterable[str] = ()) -> Iterator[BaseCheckpointSaver[Any]]:
    """Open a database of LangGraph's SQLite or PostgreSQL saver, to be read."""
    serde = PeerSerializer(allow)
    if location.startswith(("postgres://", "postgresql://")):
        try:
            from langgraph.checkpoint.postgres import PostgresSaver
        except ImportError as error:
            raise missing_extra("langgraph", error) from error
        with PostgresSaver.from_conn_string(location) as postgres:
            postgres.serde = serde
            yield postgres
        return
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise missing_extra("langgraph", error) from error
    path = Path(location.removeprefix("sqlite:///"))
    if not path.exists():
        raise NotFoundError("there is no such file", where=str(path))
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        columns = _columns(connection, path)
        saver = SqliteSaver(connection, serde=serde)
        saver.is_setup, saver._has_task_path = True, "task_path" in columns
        yield saver


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


def export_to_file(store: StoreOperations, file: str, threads: Iterable[str], progress: Progress | None = None) -> int:
    """Write threads, all or some, to a new database of LangGraph's SqliteSaver. Returns the number of checkpoints."""
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise missing_extra("langgraph", error) from error
    if Path(file).exists():
        raise ConflictError("the file exists already", where=file, hint="Name a new file")
    with SqliteSaver.from_conn_string(file) as saver:
        saver.setup()
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
