"""Notes of what identities tried and read, as rows of a line of ours.

A try that is denied is noted before its caller hears of it. Reads are collected, and written together: when there are
many, some seconds after the first, when the store is closed and when the program ends. A program that is killed loses
the reads of those last seconds; nothing else is ever lost.
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
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import SystemLine, SystemLineChange, SystemLineEntries
from holdfast.errors import HoldfastError

AUDIT = MARK + "audit"
"""The name of the line."""

WINDOW = 5.0
"""After how many seconds, at the latest, reads are written, unless told otherwise."""

MANY = 1000
"""So many reads are written at once, whenever it is."""

_LONGEST = 200
"""How many characters of a name are noted that is none."""


class _Read(NamedTuple):
    actor: str
    scope: Scope
    key: str
    trace: trace_context.Trace


class _Seen:
    """How often something was read, and when first and last."""

    __slots__ = ("first", "keys", "last", "times")

    def __init__(self, now: int) -> None:
        self.first = self.last = now
        self.times = 0
        self.keys = 0


class AuditRecorder:
    """The notes that are made in one open store."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._ledger = SystemLine(engine, Line(tenant, AUDIT))
        self._codec = engine.context.codec
        self._clock = engine.context.clock
        self._reads: dict[_Read, _Seen] = {}
        self._tries: list[Event] = []
        """Tries that could not be written where they were made."""
        self._due = 0
        self._timer: threading.Timer | None = None
        self._writing: set[threading.Thread] = set()
        """Threads that write what was collected, right now."""
        self._process = os.getpid()
        self.reinit_locks()
        reinit_after_fork(self)
        _living.add(self)

    def reinit_locks(self) -> None:
        """For a forked child: what the parent collected is the parent's to write."""
        self._lock = threading.Lock()
        if os.getpid() != self._process:
            self._process, self._reads, self._tries, self._timer, self._writing = os.getpid(), {}, [], None, set()

    # Reads ----------------------------------------------------------------------------------------------------

    async def read(self, actor: str, scope: Scope, keys: Sequence[str], window: float) -> None:
        """Note that keys were read, or, if there are several or none, the scope as a whole."""
        now = self._clock()
        name = _Read(actor, scope, keys[0] if len(keys) == 1 else "", trace_context.current())
        with self._lock:
            seen = self._reads.get(name)
            if seen is None:
                seen = self._reads[name] = _Seen(now)
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
            is_due = len(self._reads) >= MANY or now >= self._due or not window
        if is_due:
            await self.flush()

    def _start(self, window: float, due: int) -> None:
        self._due = due
        timer = threading.Timer(window, self._flush_late)
        timer.daemon = True
        timer.name = "holdfast-audit"
        self._timer = timer
        timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_late(self) -> None:
        me = threading.current_thread()
        with self._lock:
            self._writing.add(me)
        try:
            run(self._flush())
        except HoldfastError:
            # What was to be written is kept: whoever reads next, or closes the store, tries again and is told.
            return
        finally:
            with self._lock:
                self._writing.discard(me)

    async def flush(self) -> None:
        """Write what was collected. What others are about to write is written, too, when this returns."""
        await self._flush()
        while others := self._others():
            for each in others:
                await BlockingCall(each.join)
            await self._flush()  # what they could not write

    def _others(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._writing)

    async def _flush(self) -> None:
        with self._lock:
            reads, self._reads = self._reads, {}
            tries, self._tries = self._tries, []
            self._stop()
        if not reads and not tries:
            return
        try:
            await self._write([*tries, *(self._told(name, seen) for name, seen in reads.items())])
        except BaseException:
            with self._lock:
                self._tries = tries + self._tries
                for name, seen in reads.items():
                    later = self._reads.get(name)
                    if later is not None:
                        seen.times += later.times
                        seen.last = later.last
                    self._reads[name] = seen
            raise

    def _told(self, name: _Read, seen: _Seen) -> Event:
        detail: dict[str, int] = {"times": seen.times, "last": seen.last} if seen.times > 1 else {}
        if not name.key and seen.keys:
            detail["keys"] = seen.keys
        packed = self._codec.pack(detail) if detail else b""
        target = f"{name.scope}{BETWEEN}{name.key}"
        return Event("read", name.actor, "read", target, detail=packed, time=seen.first, trace=name.trace)

    # Tries ----------------------------------------------------------------------------------------------------

    async def denied(self, actor: str, action: str, scope: str, keys: Sequence[str], why: str) -> None:
        """Note a try that is denied; durably, when this returns."""
        await self._write([self._try(actor, action, scope, key, why) for key in keys or ("",)])

    def hostile(self, actor: str, scope: str, name: object, why: str, *, wait: bool) -> None:
        """Note a name that is none: cut, and without any character that is not plain text. Whoever cannot wait for that
        has it done elsewhere."""
        event = self._try(actor, "name", scope, escaped(name), why)._replace(outcome="invalid")
        if wait:
            run(self._write([event]))
            return
        with self._lock:
            self._tries.append(event)
            self._stop()
            self._start(0, self._clock())

    def _try(self, actor: str, action: str, scope: str, key: str, why: str) -> Event:
        detail = self._codec.pack({"why": why})
        target, now = f"{scope}{BETWEEN}{key}", self._clock()
        return Event("denied", actor, action, target, "denied", 0, detail, now, trace_context.current())

    async def _write(self, events: Sequence[Event]) -> None:
        await self._ledger.change("audit", "", lambda entries: counted(entries, events))


async def counted(entries: SystemLineEntries, events: Sequence[Event]) -> SystemLineChange:
    """The change of the line that tells of more: it holds how many rows it has."""
    count = await entries.find("rows") or 0
    return SystemLineChange({"rows": count + len(events)}, (), events)


_living: WeakSet[AuditRecorder] = WeakSet()


@atexit.register
def _flush_all() -> None:
    for notes in list(_living):
        run(notes.flush())


def escaped(name: object) -> str:
    """A name that is none, as it is noted."""
    if not isinstance(name, str):
        return f"<{ascii(type(name).__name__)[1:-1]}>"[:_LONGEST]
    return ascii(str.__getitem__(name, slice(_LONGEST)))[1:-1][:_LONGEST]
