"""Threads to and from LangGraph's other savers: import, export, and taking over a thread when it is first touched.

A thread is taken over checkpoint by checkpoint, parents first, each with its pending writes before itself. The newest
of the thread's own comes last: it is in the store when the thread is complete, so an import that was interrupted goes
on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from holdfast.codec import default_codec
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.langgraph.peer_values import refuse_pickle
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.store import graph_forms
from holdfast.store.identity_view import IdentityOperations
from holdfast.store.store import StoreOperations

_COUNT = "SELECT count(*) AS n FROM checkpoints"
_COUNT_OF_THREAD = "SELECT count(*) AS n FROM checkpoints WHERE thread_id = ?"
_THREADS = "SELECT DISTINCT thread_id FROM checkpoints WHERE thread_id > ? ORDER BY 1 LIMIT 500"
_NAMESPACES = "SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = ?"
_IDS = (
    "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id > ? "
    "ORDER BY 1 LIMIT 500"
)
"""Pages of ids in the databases of LangGraph's SQL savers, which have the same columns."""

Progress = Callable[[int, int, str], None]
"""Called with the number of checkpoints that are done, that of all, and the thread."""


class ImportReport(msgspec.Struct, frozen=True):
    """The number of threads and checkpoints that were imported, and of those checkpoints that were there already. Each
    was read back, and was equal."""

    threads: int = 0
    checkpoints: int = 0
    skipped: int = 0


def import_threads(
    saver: BaseCheckpointSaver[Any],
    store: StoreOperations | IdentityOperations | HoldfastSaver,
    *,
    threads: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Copy the threads of another saver of LangGraph's, all or some, and compare each checkpoint after it was saved.

    Whole histories are copied, with pending writes, metadata and subgraphs, under the same ids. Nothing is changed in
    the other saver. What is in the store already is compared and skipped, so an import may be repeated and resumed.
    The saver must be one for sync programs. Raises `ConflictError` if a thread went on here since it was imported, and
    `CorruptError` if a checkpoint does not read back equal.
    """
    refuse_pickle(saver)
    source = _Source(saver)
    target = store if isinstance(store, HoldfastSaver) else HoldfastSaver(store)
    names = list(threads) if threads is not None else None
    total = source.count(names)
    report = ImportReport()
    for thread in source.threads() if names is None else names:
        before = report.checkpoints + report.skipped
        for key in source.keys(thread):
            added = _import_one(saver, target, key)
            report = msgspec.structs.replace(
                report, checkpoints=report.checkpoints + added, skipped=report.skipped + (not added)
            )
            if progress is not None:
                progress(report.checkpoints + report.skipped, total, thread)
        if report.checkpoints + report.skipped == before:
            raise NotFoundError("the other saver has no such thread", where=f"thread {thread!r}")
        report = msgspec.structs.replace(report, threads=report.threads + 1)
    return report


def _import_one(saver: BaseCheckpointSaver[Any], target: HoldfastSaver, key: RunnableConfig) -> bool:
    """Copy a checkpoint. Returns False if it was there already."""
    old = saver.get_tuple(key)
    if old is None:
        return False  # it was deleted meanwhile
    before = target.get_tuple(key)
    if before is not None and _is_equal(old, before):
        return False
    _copy(old, target)
    mine = target.get_tuple(key)
    if mine is not None and _is_equal(old, mine):
        return True
    place = graph_forms.place_of(key)
    where = f"thread {place.thread}, checkpoint {place.checkpoint_id}"
    if before is not None:
        raise ConflictError(
            "the store has another history of the thread than the other saver",
            where=where,
            hint="It went on since it was imported. Import the old one under another tenant, if it is needed",
        )
    raise CorruptError("a checkpoint does not read back as it was in the other saver", where=where)


def _copy(old: CheckpointTuple, saver: BaseCheckpointSaver[Any]) -> None:
    """Save a checkpoint in another saver, after its writes."""
    place = graph_forms.place_of(old.config)
    parent = old.parent_config or {"configurable": {"thread_id": place.thread_id, "checkpoint_ns": place.namespace}}
    writes: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in old.pending_writes or ():
        writes.setdefault(task, []).append((channel, value))
    for task, written in writes.items():
        saver.put_writes(old.config, written, task)
    saver.put(parent, old.checkpoint, old.metadata, old.checkpoint["channel_versions"])


def _is_equal(a: CheckpointTuple, b: CheckpointTuple) -> bool:
    """Return whether two savers have the same of a checkpoint. The order of writes of different tasks is no content."""
    return (
        graph_forms.checkpoint_id_of(a.parent_config) == graph_forms.checkpoint_id_of(b.parent_config)
        and _equal(_comparable(a.metadata), _comparable(b.metadata))
        and _equal(dict(a.checkpoint), dict(b.checkpoint))
        and _equal(_by_task(a), _by_task(b))
    )


def _comparable(metadata: Any) -> dict[str, Any]:
    return dict(metadata or {})


def _by_task(saved: CheckpointTuple) -> dict[str, list[tuple[str, Any]]]:
    writes: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in saved.pending_writes or ():
        writes.setdefault(task, []).append((channel, value))
    return writes


def _equal(a: object, b: object) -> bool:
    try:
        return bool(a == b) or default_codec.pack(a) == default_codec.pack(b)
    except (ValueError, TypeError):  # arrays, which are not simply equal or not
        return default_codec.pack(a) == default_codec.pack(b)


class _Source:
    """The checkpoints of a saver, by thread, in the order of an import. Ids of the SQL savers are read a page at a
    time; those of others are listed, and are in memory."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver
        own = type(saver).__module__
        self._cursor: Any = None
        self._mark = "?"
        if own.startswith("langgraph.checkpoint.sqlite"):
            self._cursor = getattr(saver, "cursor", None)
        elif own.startswith("langgraph.checkpoint.postgres"):
            self._cursor, self._mark = getattr(saver, "_cursor", None), "%s"
        if own.endswith(".aio"):
            raise InvalidError(
                f"threads are imported from a saver for sync programs, not from {type(saver).__name__}",
                hint="Open the same database with the sync class: SqliteSaver, PostgresSaver",
            )
        self._listed: dict[str, dict[str, list[str]]] | None = None

    def count(self, threads: list[str] | None) -> int:
        """Return the number of checkpoints."""
        if self._cursor is None:
            found = self._list()
            return sum(len(ids) for name in threads or found for ids in found.get(name, {}).values())
        if threads is None:
            return int(self._rows(_COUNT)[0][0])
        return sum(int(self._rows(_COUNT_OF_THREAD, name)[0][0]) for name in threads)

    def threads(self) -> Iterator[str]:
        """Yield the ids of all threads, in order."""
        if self._cursor is None:
            yield from sorted(self._list())
            return
        last = ""
        while rows := self._rows(_THREADS, last):
            yield from (str(row[0]) for row in rows)
            last = rows[-1][0]

    def keys(self, thread: str) -> Iterator[RunnableConfig]:
        """Yield what names the checkpoints of a thread: subgraphs first, parents before children."""
        for namespace in sorted(self._namespaces(thread), reverse=True):
            for id in self._ids(thread, namespace):
                yield graph_forms.config_of(thread, namespace, id)

    def _namespaces(self, thread: str) -> Iterable[str]:
        if self._cursor is None:
            return self._list().get(thread, {})
        return [str(row[0]) for row in self._rows(_NAMESPACES, thread)]

    def _ids(self, thread: str, namespace: str) -> Iterator[str]:
        if self._cursor is None:
            yield from sorted(self._list()[thread][namespace])
            return
        last = ""
        while rows := self._rows(_IDS, thread, namespace, last):
            yield from (str(row[0]) for row in rows)
            last = rows[-1][0]

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            found = cursor.execute(query.replace("?", self._mark), values).fetchall()
        return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in found]

    def _list(self) -> dict[str, dict[str, list[str]]]:
        if self._listed is None:
            self._listed = {}
            for each in self._saver.list(None):
                place = graph_forms.place_of(each.config)
                ids = self._listed.setdefault(str(place.thread_id), {}).setdefault(place.namespace, [])
                ids.append(str(place.checkpoint_id))
        return self._listed


def export_threads(
    store: StoreOperations | IdentityOperations | HoldfastSaver,
    saver: BaseCheckpointSaver[Any],
    *,
    threads: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Copy threads of a store to another saver of LangGraph's, all or some, and compare each checkpoint. Returns their
    number."""
    source = store if isinstance(store, HoldfastSaver) else HoldfastSaver(store)
    count = 0
    configs: list[RunnableConfig | None] = [None]
    if threads is not None:
        configs = [{"configurable": {"thread_id": name}} for name in threads]
    for config in configs:
        for each in source.list(config):
            _copy(each, saver)
            back = saver.get_tuple(each.config)
            if back is None or not _is_equal(each, back):
                place = graph_forms.place_of(each.config)
                raise CorruptError(
                    "a checkpoint does not read back equal from the other saver",
                    where=f"thread {place.thread}, checkpoint {place.checkpoint_id}",
                )
            count += 1
            if progress is not None:
                progress(count, count, str(graph_forms.place_of(each.config).thread_id))
    return count


class Fallback:
    """An old saver, whose threads are taken over when they are first touched."""

    def __init__(self, saver: BaseCheckpointSaver[Any], target: HoldfastSaver) -> None:
        refuse_pickle(saver)
        _Source(saver)  # fails if it is none for sync programs
        self._saver = saver
        self._target = target
        self._done: set[str] = set()

    def take_over(self, thread_id: str) -> None:
        """Import a thread, unless that was done, or it is new."""
        if thread_id in self._done:
            return
        newest = self._saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
        if newest is not None and self._target.get_tuple(newest.config) is None:
            import_threads(self._saver, self._target, threads=[thread_id])
        self._done.add(thread_id)

    def delete(self, thread_id: str) -> None:
        """Delete a thread from the old saver: it would come back."""
        self._saver.delete_thread(thread_id)
        self._done.add(thread_id)
