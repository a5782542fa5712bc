"""Sessions in databases of other frameworks, read where they lie: those of the OpenAI Agents SDK and of Google ADK.

The frameworks need not be installed. A session becomes a thread as the adapter of its framework writes one, and is
compared with what it was. What is there already is skipped, so that an import which was interrupted goes on.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from holdfast._lazy import missing_extra
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.conversations import MESSAGES
from holdfast.state import Append
from holdfast.store.opener import open as open_store
from holdfast.store.store import Store

T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called with the number of messages that are done, that of all, and the thread."""

_PAGE = 200

OPENAI, ADK = "openai-sessions", "adk"
_TABLES = {OPENAI: {"agent_sessions", "agent_messages"}, ADK: {"sessions", "events", "app_states", "user_states"}}
_COUNTS = {OPENAI: "SELECT count(*) FROM agent_messages", ADK: "SELECT count(*) FROM events"}
_OPENAI_MESSAGES = "SELECT message_data FROM agent_messages WHERE session_id = ? ORDER BY id LIMIT ? OFFSET ?"
_ADK_EVENTS = (
    "SELECT event_data FROM events WHERE app_name = ? AND user_id = ? AND session_id = ? "
    "ORDER BY timestamp, id LIMIT ? OFFSET ?"
)
_WHAT = {OPENAI: "sessions of the OpenAI Agents SDK", ADK: "sessions of Google ADK"}


class SessionImport(msgspec.Struct, frozen=True):
    """The number of threads and messages that were imported, and of those messages that were there already."""

    threads: int = 0
    messages: int = 0
    skipped: int = 0


def adk_name(*parts: str) -> str:
    """Return a name for ADK's things in a store, from parts that may have any characters."""
    return "/".join(("adk", *(quote(part, safe=" @+") for part in parts)))


class _Database:
    """A database that is only read."""

    def __init__(self, execute: Callable[[str, tuple[Any, ...]], Iterable[Any]], tables: str) -> None:
        self._execute = execute
        self._tables = tables

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self._execute(query, values)]

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {name for (name,) in self.rows(self._tables)}

    def pages(self, query: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query by pages. It ends with `LIMIT ? OFFSET ?`."""
        start = 0
        while found := self.rows(query, *values, _PAGE, start):
            yield found
            start += len(found)


@contextmanager
def _opened(location: str) -> Iterator[_Database]:
    if location.startswith(("postgres://", "postgresql://")):
        try:
            import psycopg
        except ImportError as error:
            raise missing_extra("postgres", error) from error
        with psycopg.connect(location) as connection:
            connection.read_only = True

            def execute(query: str, values: tuple[Any, ...]) -> Any:
                return connection.execute(query.replace("?", "%s").encode(), values or None)

            tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
            yield _Database(execute, tables)
        return
    path = Path(location.removeprefix("sqlite:///"))
    if not path.exists():
        raise NotFoundError("there is no such file", where=str(path))
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        yield _Database(file.execute, "SELECT name FROM sqlite_master WHERE type = 'table'")


def _is_of(kind: str, database: _Database) -> bool:
    """Return whether a database has the tables of a kind."""
    try:
        return _TABLES[kind] <= database.tables()
    except sqlite3.DatabaseError:
        return False


def find_kind(location: str) -> str | None:
    """Return the kind of sessions that a database has; None if it is one of something else."""
    with _opened(location) as database:
        return next((kind for kind in _TABLES if _is_of(kind, database)), None)


def import_sessions(
    store: Store, kind: str, location: str, threads: Iterable[str] = (), progress: Progress | None = None
) -> SessionImport:
    """Import sessions from a database, all or those with these ids, each as a thread, and compare them.

    `ConflictError` if a thread has other messages than the session: it went on here since it was imported, or it is
    another one.
    """
    report = SessionImport()
    with _opened(location) as database:
        if not _is_of(kind, database):
            raise InvalidError(f"this is not a database with {_WHAT[kind]}", where=location)
        sessions = _openai_sessions(database) if kind == OPENAI else _adk_sessions(store, database)
        wanted = set(threads)
        missing = set(wanted)
        (total,) = database.rows(_COUNTS[kind])[0]
        for session in sessions:
            if not wanted or session.id in wanted:
                missing.discard(session.id)
                report = _import_one(store, session, report, int(total), progress)
    if missing:
        raise NotFoundError("the database has no such session", where=f"session {min(missing)!r}")
    return report


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a database of another framework has, its bytes, and the bytes that a store takes for the same."""

    threads: int
    checkpoints: int = 0
    messages: int = 0
    before: int
    after: int


def measure_import(run: Callable[[Store], T]) -> tuple[T, int]:
    """Import into a store that is deleted again. Returns what the import returns, and the bytes that the store took."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        with open_store(Path(folder) / "estimate.db") as store:
            report = run(store)
        return report, sum(path.stat().st_size for path in Path(folder).iterdir())


def file_bytes(location: str) -> int:
    """Return the bytes of a database of SQLite with its log; 0 if there is no such file."""
    path = Path(location.removeprefix("sqlite:///"))
    files = (path, path.with_name(path.name + "-wal"))
    return sum(each.stat().st_size for each in files if each.exists())


def estimate_sessions(kind: str, location: str, progress: Progress | None = None) -> Estimate:
    """Import a database into a store that is deleted again, and return what both take."""
    report, after = measure_import(lambda store: import_sessions(store, kind, location, progress=progress))
    before = file_bytes(location)
    if not before:
        with _opened(location) as database:
            query = "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(?::text[]) AS name"
            before = int(database.rows(query, sorted(_TABLES[kind]))[0][0])
    return Estimate(threads=report.threads, messages=report.messages, before=before, after=after)


class _Session(msgspec.Struct, frozen=True):
    """A session: its thread, what is stored with it, and its messages by pages, each with the state that it changed."""

    id: str
    thread: str
    metadata: dict[str, Any]
    first: dict[str, Any]
    last: dict[str, Any]
    pages: Callable[[], Iterator[list[tuple[Any, dict[Any, Any]]]]]
    one_by_one: bool


def _import_one(
    store: Store, session: _Session, report: SessionImport, total: int, progress: Progress | None
) -> SessionImport:
    thread = store.thread(session.thread)
    try:
        stored = thread.get().state
    except NotFoundError:
        stored = dict(session.first)
        if stored or not any(session.pages()):
            thread.put(
                stored or {MESSAGES: []}, metadata=session.metadata, parent="", on_conflict="raise", kind="create"
            )
    known: list[Any] = stored.get(MESSAGES, [])
    count = 0
    for page in session.pages():
        added: list[tuple[Any, dict[Any, Any]]] = []
        for message, changes in page:
            if count >= len(known):
                added.append((message, changes))
            elif known[count] != message:
                raise _other_history(session)
            count += 1
        for group in [[each] for each in added] if session.one_by_one else [added] if added else []:
            changed: dict[Any, Any] = {MESSAGES: Append(*(message for message, _ in group))}
            for _, changes in group:
                changed |= changes
            thread.update(changed, metadata=session.metadata, kind="import")
        report = msgspec.structs.replace(
            report, messages=report.messages + len(added), skipped=report.skipped + len(page) - len(added)
        )
        if progress is not None:
            progress(report.messages + report.skipped, total, session.thread)
    if len(known) > count:
        raise _other_history(session)
    found = thread.get().state
    if any(found.get(name) != value for name, value in session.last.items()):
        thread.put({**found, **session.last}, metadata=session.metadata, kind="import")
        found = thread.get().state
    messages = [message for page in session.pages() for message, _ in page]
    if found.get(MESSAGES, []) != messages or any(found.get(name) != value for name, value in session.last.items()):
        raise CorruptError("a session does not read back as it was in the database", where=f"thread {session.thread}")
    return msgspec.structs.replace(report, threads=report.threads + 1)


def _other_history(session: _Session) -> ConflictError:
    return ConflictError(
        "the store has another history of the thread than the database",
        where=f"thread {session.thread}",
        hint="It went on since it was imported. Import the old one under another tenant, if it is needed",
    )


def _openai_sessions(database: _Database) -> Iterator[_Session]:
    for (id,) in database.rows("SELECT session_id FROM agent_sessions ORDER BY session_id"):

        def pages(id: str = id) -> Iterator[list[tuple[Any, dict[Any, Any]]]]:
            for page in database.pages(_OPENAI_MESSAGES, id):
                yield [(_json(text), {}) for (text,) in page]

        yield _Session(id, id, {"framework": "openai-agents"}, {}, {}, pages, one_by_one=False)


def _adk_sessions(store: Store, database: _Database) -> Iterator[_Session]:
    try:
        database.rows("SELECT event_data FROM events LIMIT 1")
    except Exception as error:
        raise InvalidError(
            "the database has events in the pickled form of older releases of ADK",
            hint="Convert it first: adk migrate session",
        ) from error
    for app, state in database.rows("SELECT app_name, state FROM app_states ORDER BY app_name"):
        _set(store.state(custom=adk_name(app)), _json(state))
    for app, user, state in database.rows("SELECT app_name, user_id, state FROM user_states ORDER BY 1, 2"):
        _set(store.state(user=user, custom=adk_name(app)), _json(state))
    query = "SELECT app_name, user_id, id, state FROM sessions ORDER BY 1, 2, 3"
    for app, user, id, state in database.rows(query):

        def pages(app: str = app, user: str = user, id: str = id) -> Iterator[list[tuple[Any, dict[Any, Any]]]]:
            for page in database.pages(_ADK_EVENTS, app, user, id):
                yield [(event, _changes(event)) for event in (_json(text) for (text,) in page)]

        metadata = {"framework": "google-adk", "app": app, "subject": user}
        first = {MESSAGES: [], "state": {}, "updated": 0.0, "session": [app, user, id]}
        last = {"state": _json(state), "session": [app, user, id]}
        yield _Session(id, adk_name(app, user, id), metadata, first, last, pages, one_by_one=True)


def _changes(event: Mapping[str, Any]) -> dict[Any, Any]:
    """Return what an event changed of the state of its session."""
    delta = (event.get("actions") or {}).get("state_delta") or {}
    own = {key: value for key, value in delta.items() if not key.startswith(("app:", "user:", "temp:"))}
    return {"updated": float(event["timestamp"])} | {("state", key): value for key, value in own.items()}


def _set(state: Any, values: Mapping[str, Any]) -> None:
    """Set the keys of a scope that it does not have."""
    if missing := {key: value for key, value in values.items() if key not in state}:
        state.batch(missing)


def _json(value: Any) -> Any:
    """Return what is in a column of JSON, which some drivers decode."""
    return json.loads(value) if isinstance(value, str | bytes) else value
