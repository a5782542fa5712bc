"""Hooks of keys: called for every change of them, whichever way it is asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from holdfast.hooks.calls import Subject
from holdfast.hooks.hook import Hook
from holdfast.hooks.registry import Ran, Registry
from holdfast.model.missing import MISSING
from holdfast.model.operations import Operation, apply
from holdfast.model.packed import Packed, unpack
from holdfast.model.scopes import GLOBAL, KINDS
from holdfast.security.events import Event
from holdfast.security.tracing import Trace
from holdfast.state.handles import Handle
from holdfast.state.reading import Stored
from holdfast.state.writing import pack_value


class KeyHooks:
    """The hooks of the changes of one scope. A change that is attempted again calls none again, if it is the same."""

    def __init__(self, registry: Registry, handle: Handle, scope: str, trace: Trace) -> None:
        self._registry = registry
        self._handle = handle
        self._scope = scope
        self._kind = _kind(scope)
        self._trace = trace
        self._started = time.perf_counter_ns()
        self._ran: dict[str, tuple[str, Any, Ran]] = {}
        self._soon: list[tuple[Sequence[Hook], Subject]] = []
        self.events: list[Event] = []
        """What is to be told of those that ran."""
        self.notes: dict[str, dict[str, Any]] = {}
        """What they noted, by key."""

    def begin(self) -> None:
        """Another attempt is made."""
        self._soon, self.events, self.notes = [], [], {}

    async def before(
        self, key: str, action: str, packed: Packed, patch: Operation | None, live: Stored | None, version: int
    ) -> Packed | None:
        """Call the hooks of a change. Returns the value, if they made it another one than was given. Raises `Veto`."""
        point = f"{self._kind}.{action}"
        before, after = self._registry.matching(point, self._scope, key)
        if not before and not after:
            return None
        stored: Any = MISSING if action == "delete" else packed
        if patch is not None and any(hook.wants_value for hook in (*before, *after)):
            stored = apply(patch, None if live is None else live.entry.value)
        known = self._ran.get(key)
        if known is not None and known[0] == action and known[1] == stored:
            ran = known[2]
            self._settle(ran.subject, live, version)
        else:
            subject = self._subject(point, key, stored)
            self._settle(subject, live, version)
            ran = await self._registry.before(before, subject) if before else Ran(subject)
            self._ran[key] = (action, stored, ran)
        self.events += ran.events
        if ran.notes:
            self.notes[key] = ran.notes
        if after:
            self._soon.append((after, ran.subject))
        return ran.subject.stored if ran.changed else None

    def _subject(self, point: str, key: str, stored: Any) -> Subject:
        handle = self._handle
        load, dump = partial(unpack, handle.codec), partial(pack_value, handle, key)
        return Subject(point, self._scope, key, self._trace, self._started, stored, load, dump, handle.guard.actor)

    @staticmethod
    def _settle(subject: Subject, live: Stored | None, version: int) -> None:
        subject.before = version
        subject.old = MISSING if live is None else live.entry.value

    def committed(self, version: int, id: str) -> None:
        """The changes are made: have those called that follow them."""
        for hooks, subject in self._soon:
            subject.version, subject.id = 0 if subject.stored is MISSING else version, id
            self._registry.after(hooks, subject)


@lru_cache(4096)
def _kind(scope: str) -> str:
    """What the points are called: `state` in scopes, and in lines of ours what they hold, such as `topic`."""
    kinds = [part.partition(":")[0] for part in scope.split("/")]
    return "state" if scope == GLOBAL else next((kind for kind in kinds if kind not in KINDS), "state")
