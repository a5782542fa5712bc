"""The recorder of the audit: denied attempts and reads of identities, as rows of a system line.

A denied attempt is recorded before its caller gets the error. Reads are collected and written together: when there are
many, some seconds after the first, and when the store is closed or the program ends. A program that is killed loses the
reads of those last seconds, and nothing else.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakSet

from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.engine import trace_context
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import HoldfastError

WINDOW = 5.0
"""After how many seconds reads are written at the latest, by default."""

MAX_READS = 1000
"""So many reads are written at once."""

_MAX_NAME = 200
"""How many characters of an invalid name are recorded."""


class _ReadKey(NamedTuple):
    actor: str
    scope: Scope
    key: str
    trace: trace_context.Trace


class _ReadCount:
    """How often something was read, and when first and last."""

    __slots__ = ("first", "keys", "last", "times")

    def __init__(self, now: int) -> None:
        self.first = self.last = now
        self.times = 0
        self.keys = 0


class AuditRecorder:
    """The recorder of one open store."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._line = SystemLine(engine, Line(tenant, AUDIT))
        self._codec = engine.context.codec
        self._clock = engine.context.clock
        self._reads: dict[_ReadKey, _ReadCount] = {}
        self._denials: list[Event] = []
        """Attempts that could not be written where they were made."""
        self._due = 0
        self._timer: threading.Timer | None = None
        self._writers: set[threading.Thread] = set()
        """Threads that are writing what was collected."""
        self._process = os.getpid()
        self.reinit_locks()
        reinit_after_fork(self)
        _recorders.add(self)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child. What the parent collected is the parent's to write."""
        self._lock = threading.Lock()
        if os.getpid() != self._process:
            self._process, self._reads, self._denials, self._timer, self._writers = os.getpid(), {}, [], None, set()

    # Reads ----------------------------------------------------------------------------------------------------

    async def read(self, actor: str, scope: Scope, keys: Sequence[str], window: float) -> None:
        """Record that a key was read; the whole scope, if there are several keys or none."""
        now = self._clock()
        name = _ReadKey(actor, scope, keys[0] if len(keys) == 1 else "", trace_context.current())
        with self._lock:
            seen = self._reads.get(name)
            if seen is None:
                seen = self._reads[name] = _ReadCount(now)
            seen.times += 1
            seen.last = now
            if len(keys) > seen.keys:
                seen.keys = len(keys)
            due = now + int(window * 1e9)
            if self._timer is None and window:
                self._start(window, due)
            elif window and due < self._due:
                self._stop()
                self._start(window, due)
            is_due = len(self._reads) >= MAX_READS or now >= self._due or not window
        if is_due:
            await self.flush()

    def _start(self, window: float, due: int) -> None:
        self._due = due
        timer = threading.Timer(window, self._flush_in_timer)
        timer.daemon = True
        timer.name = "holdfast-audit"
        self._timer = timer
        timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_in_timer(self) -> None:
        me = threading.current_thread()
        with self._lock:
            self._writers.add(me)
        try:
            run(self._flush())
        except HoldfastError:
            # What was to be written is kept: whoever reads next, or closes the store, tries again and is told.
            return
        finally:
            with self._lock:
                self._writers.discard(me)

    async def flush(self) -> None:
        """Write what was collected. What other threads are about to write is written, too, when this returns."""
        await self._flush()
        while others := self._other_writers():
            for each in others:
                await BlockingCall(each.join)
            await self._flush()  # what they could not write

    def _other_writers(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._writers)

    async def _flush(self) -> None:
        with self._lock:
            reads, self._reads = self._reads, {}
            tries, self._denials = self._denials, []
            self._stop()
        if not reads and not tries:
            return
        try:
            await self._write([*tries, *(self._read_event(name, seen) for name, seen in reads.items())])
        except BaseException:
            with self._lock:
                self._denials = tries + self._denials
                for name, seen in reads.items():
                    later = self._reads.get(name)
                    if later is not None:
                        seen.times += later.times
                        seen.last = later.last
                    self._reads[name] = seen
            raise

    def _read_event(self, name: _ReadKey, seen: _ReadCount) -> Event:
        detail: dict[str, int] = {"times": seen.times, "last": seen.last} if seen.times > 1 else {}
        if not name.key and seen.keys:
            detail["keys"] = seen.keys
        packed = self._codec.pack(detail) if detail else b""
        target = f"{name.scope}{BETWEEN}{name.key}"
        return Event("read", name.actor, "read", target, detail=packed, time=seen.first, trace=name.trace)

    # Tries ----------------------------------------------------------------------------------------------------

    async def denied(self, actor: str, action: str, scope: str, keys: Sequence[str], why: str) -> None:
        """Record a denied attempt; it is durable when this returns."""
        await self._write([self._denial(actor, action, scope, key, why) for key in keys or ("",)])

    def invalid_name(self, actor: str, scope: str, name: object, why: str, *, wait: bool) -> None:
        """Record an invalid name: truncated and escaped. If the caller must not block, another thread writes it."""
        event = self._denial(actor, "name", scope, escape(name), why)._replace(outcome="invalid")
        if wait:
            run(self._write([event]))
            return
        with self._lock:
            self._denials.append(event)
            self._stop()
            self._start(0, self._clock())

    def _denial(self, actor: str, action: str, scope: str, key: str, why: str) -> Event:
        detail = self._codec.pack({"why": why})
        target, now = f"{scope}{BETWEEN}{key}", self._clock()
        return Event("denied", actor, action, target, "denied", 0, detail, now, trace_context.current())

    async def _write(self, events: Sequence[Event]) -> None:
        await self._line.change("audit", lambda entries: add_events(self._line, entries, events))


async def add_events(line: SystemLine, entries: SystemLineEntries, events: Sequence[Event]) -> LineChange:
    """Return the change that adds events to the line of the audit, which counts its rows."""
    count = await entries.find("rows") or 0
    return LineChange(line.pack({"rows": count + len(events)}), events=events)


_recorders: WeakSet[AuditRecorder] = WeakSet()


@atexit.register
def _flush_all() -> None:
    for notes in list(_recorders):
        run(notes.flush())


def escape(name: object) -> str:
    """Return an invalid name as it is recorded."""
    if not isinstance(name, str):
        return f"<{ascii(type(name).__name__)[1:-1]}>"[:_MAX_NAME]
    return ascii(str.__getitem__(name, slice(_MAX_NAME)))[1:-1][:_MAX_NAME]
