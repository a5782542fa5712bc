"""The parts of the stream of a run, as they come: what its graph yields, for those who follow it from elsewhere.

They are rows of the thread beside the record of the run, each with the parts of a moment, on the condition of the run's
claim: every part has a number, and none is lost or comes twice, also when another worker goes on. Like the run, they
are in no copy and no backup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast._structs import convert
from holdfast.agents.runs.outage import until_answered
from holdfast.agents.runs.record import Run, StoredRun, key_of, parts_prefix, record_key
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.backends.interface import Change, Delete, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.backends.tables import REFS
from holdfast.codec import msgpack
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError
from holdfast.security.handle import HasHandle, owner_handle

_MAX_BODY = 1 << 30


class Part(NamedTuple):
    """A part of a stream: its number in the run, from 1 on, its kind, what it says, as JSON, and when it was stored, in
    nanoseconds since 1970."""

    number: int
    kind: str
    data: bytes
    time: int = 0


class _Listeners:
    """Who waits for parts in this process, by run, and which runs a worker here does: those need not be looked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, set[Callable[[], None]]] = {}
        self._here = set[str]()

    def add(self, id: str, wake: Callable[[], None]) -> None:
        with self._lock:
            self._all.setdefault(id, set()).add(wake)

    def remove(self, id: str, wake: Callable[[], None]) -> None:
        with self._lock:
            left = self._all.get(id, set())
            left.discard(wake)
            if not left:
                self._all.pop(id, None)

    def notify(self, id: str) -> None:
        with self._lock:
            waiting = list(self._all.get(id, ()))
        for wake in waiting:
            wake()

    def begin(self, id: str) -> None:
        """Say that a worker here does a run, and wakes those who wait for each of its parts."""
        self._here.add(id)
        self.notify(id)

    def end(self, id: str) -> None:
        """Say that it does it no longer."""
        self._here.discard(id)
        self.notify(id)

    def is_done_here(self, id: str) -> bool:
        """Return whether a worker in this process does a run."""
        return id in self._here


listeners = _Listeners()


class PartLog:
    """Stores the parts of a run that this process does. They are stored in the background, those of a moment together:
    a graph does not wait for the store."""

    def __init__(self, table: RunTable, held: HeldRun) -> None:
        self._table = table
        self._held = held
        self._ready = threading.Condition()
        self._added: list[Part] = []
        self._is_closed = False
        self._error: BaseException | None = None
        self._number = run(_last(table, held.line, held.stored.id))
        self._thread = WorkerThread("holdfast-parts", self._work, daemon=True)
        listeners.begin(held.stored.id)

    def add(self, kind: str, data: bytes) -> None:
        """Add a part."""
        protection = self._table.handle.engine.protection
        if protection is not None:
            data = protection.redact_text(data.decode()).encode()
        with self._ready:
            if self._error is not None:
                raise self._error
            self._number += 1
            self._added.append(Part(self._number, kind, data))
            self._ready.notify()

    def close(self) -> None:
        """Wait until all parts are stored. `ClaimLostError` if the claim was lost meanwhile."""
        with self._ready:
            self._is_closed = True
            self._ready.notify()
        self._thread.join()
        listeners.end(self._held.stored.id)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._added or self._is_closed)
                parts, self._added = self._added, []
            if not parts:
                return
            try:
                run(self._store(parts))
            except BaseException as error:  # noqa: BLE001 - the run is told
                with self._ready:
                    self._error = error
                return
            listeners.notify(self._held.stored.id)

    async def _store(self, parts: Sequence[Part]) -> None:
        claim, id = self._held.claim, self._held.stored.id
        body = wrap(msgspec.msgpack.encode([each[:3] for each in parts]), codec=BodyKind.RAW)
        key = (*parts_prefix(self._held.line, id), f"{parts[-1].number:012d}")
        row = Row(key, ("", self._table.context.clock()), body)
        batch: list[Change] = [claim.condition(), Put(REFS, row)]
        if claim.also is not None:  # the submitter is not frozen
            batch += await claim.also(False)
        if await until_answered(lambda: self._table.context.apply(batch), claim.life) is not None:
            if claim.also is not None:
                await claim.also(True)
            raise claim.lost()


async def _last(table: RunTable, line: Line, id: str) -> int:
    scan = Scan(REFS, parts_prefix(line, id), reverse=True, limit=1, bodies=False)
    (rows,) = await table.context.backend.read([scan])
    return int(str(rows[0].key[-1])) if rows else 0


def _parts_of(row: Row) -> list[Part]:
    try:
        found: Any = msgpack.parse(unwrap(row.body, max_bytes=_MAX_BODY).content)
        _, time = convert(row.columns, tuple[str, int])
        return [each._replace(time=time) for each in convert(found, list[Part])]
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the parts of a run cannot be decoded: {error}", where=f"row {row.key!r}") from error


class RunReader:
    """Reads runs by their threads, and the parts of their streams, for an interface that has checked the rights of who
    asks."""

    def __init__(self, store: HasHandle) -> None:
        self._table = RunTable(owner_handle(store))

    def runs_of(self, thread: str) -> list[Run]:
        """Return the runs of a thread, the latest first. One that is damaged is left out."""
        found = run(self._table.of_thread(Line(self._table.tenant, thread)))
        return [each.describe(self._table.handle.codec) for each in found]

    def ensure_thread(self, thread: str) -> None:
        """Make a thread that has only namespaces yet: its owner is kept there, and would be in no copy."""
        run(self._table.handle.engine.lines.ensure_row(self._table.handle.thread_line(thread)))

    def find(self, thread: str, key: str, actor: str) -> Run | None:
        """Return the run that was submitted with an idempotency key by an identity, or the owner; None if none was."""
        _, found = run(self._table.before_submit(Line(self._table.tenant, thread), key_of(actor, key)))
        return None if found is None else found.describe(self._table.handle.codec)

    def look(self, given: Run, after: int, limit: int) -> tuple[Run, list[Part]]:
        """Return a run as it is now, and its parts after one with a number, those of so many moments at most.
        `NotFoundError` if it was deleted."""
        line = Line(self._table.tenant, given.thread)
        record = Get(REFS, [record_key(line, given.id)])  # before the parts: those of a run that is over are all there
        (records, rows) = run(self._table.context.backend.read([record, self._after(given, after, limit)]))
        if not records:
            raise self._table.missing(given.id)
        found = StoredRun.of(records[0]).describe(self._table.handle.codec)
        return found, [part for row in rows for part in _parts_of(row) if part.number > after]

    def parts_of(self, given: Run, after: int, limit: int) -> list[Part]:
        """Return the parts of a run after one with a number, those of so many moments at most."""
        (rows,) = run(self._table.context.backend.read([self._after(given, after, limit)]))
        return [part for row in rows for part in _parts_of(row) if part.number > after]

    def _after(self, given: Run, after: int, limit: int) -> Scan:
        line = Line(self._table.tenant, given.thread)
        return Scan(REFS, parts_prefix(line, given.id), (f"{after + 1:012d}",), limit=limit)

    def last_number(self, given: Run) -> int:
        """Return the number of the last part of a run; 0 if there is none."""
        return run(_last(self._table, Line(self._table.tenant, given.thread), given.id))

    def drop_parts(self, runs: Sequence[Run]) -> None:
        """Delete the parts of some runs, which are over."""
        lines = [(Line(self._table.tenant, each.thread), each.id) for each in runs]
        changes: list[Change] = [Delete(REFS, parts_prefix(line, id)) for line, id in lines]
        if changes:
            run(self._table.context.backend.apply(changes))
