"""Hooks of keys: called for every change, however it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.backends.interface import Change
from holdfast.engine.events import Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import Operation, apply
from holdfast.engine.model.packed_state import Packed, unpack
from holdfast.engine.model.scopes import GLOBAL, KINDS, MARK
from holdfast.engine.trace_context import Trace
from holdfast.hooks.context import HookedChange, pack_notes
from holdfast.hooks.hook import Hook
from holdfast.hooks.registry import ActivePoints, HookRegistry
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import StoredValue

_PAYLOADS: Mapping[str, str | int] = {
    "requests.ask": "value",
    "requests.answer": 1,
    "pipeline.put": "value",
    "pipeline.done": "value",
}
"""Where the value for hooks is in what is stored; the rest is internal. Other keys of these lines have no hooks."""

_Load: TypeAlias = Callable[[Any], Any]
_Dump: TypeAlias = Callable[[str, Any], Any]

_PAYLOAD_KEYS = ("item/", "answer/", "result/")


class KeyHooks:
    """The hooks of the changes of one scope. A change that is attempted again calls none again, if it is the same."""

    wants_old: bool

    def __init__(
        self, registry: HookRegistry, handle: StoreHandle, scope: str, points: ActivePoints, trace: Trace
    ) -> None:
        self._registry = registry
        self._handle = handle
        self._scope = scope
        self._kind = _kind(scope)
        self._matched, self.wants_old = points
        self._trace = trace
        self._started = time.perf_counter_ns()
        self._changes: dict[str, HookedChange] = {}
        self.events: list[Event] = []
        """The executions."""
        self.notes: dict[str, Mapping[str, Any]] = {}
        """The notes of hooks, by key."""
        self.pending: list[tuple[Sequence[Hook], HookedChange]] = []
        """The after-hooks to call when the changes are committed."""

    def reset(self) -> None:
        """Start another attempt."""
        self.events, self.notes, self.pending = [], {}, []

    async def before(
        self, key: str, action: str, packed: Packed, patch: Operation | None, live: StoredValue | None, version: int
    ) -> Packed | None:
        """Call the before-hooks of a change. Returns the value, if they replaced it. Raises `VetoError`."""
        point = f"{self._kind}.{action}"
        meant = self._matched.get(point)
        if meant is None:
            return None
        name = key
        load: _Load = self._load
        dump: _Dump = self._dump
        if point in _PAYLOADS:
            if not key.startswith(_PAYLOAD_KEYS):
                return None
            name = key.partition("/")[2]
            load, dump = self._payload(packed, _PAYLOADS[point])
        before, after = (meant.before, meant.after) if meant.all_keys else meant.for_key(name)
        if not before and not after:
            return None
        stored: Any = MISSING if action == "delete" else packed
        if patch is not None and any(hook.wants_value for hook in (*before, *after)):
            stored = apply(patch, None if live is None else live.entry.value)
        old = MISSING if live is None else live.entry.value
        subject = self._changes.get(key)
        if subject is not None and subject.point == point and subject.original == stored:
            subject.before, subject.old = version, old
        else:
            actor, scope = self._handle.guard.actor, self._scope
            subject = HookedChange(
                point, scope, name, self._trace, self._started, stored, load, dump, actor, version, old
            )
            if before:
                await self._registry.before(before, subject)
            self._changes[key] = subject
        self.events += subject.events
        if subject.notes:
            self.notes[key] = subject.notes
        if after:
            if not self._registry.has_outbox(after):
                await self._registry.create_outbox()
            self.pending.append((after, subject))
        return subject.stored if subject.changed else None

    def packed_notes(self, key: str) -> bytes:
        """Return the packed notes about a key; empty if there are none."""
        notes = self.notes.get(key)
        return b"" if notes is None else pack_notes(self._handle.codec, notes)

    def _load(self, stored: Packed) -> Any:
        return unpack(self._handle.codec, stored)

    def _payload(self, packed: Packed, where: Any) -> tuple[_Load, _Dump]:
        """Return functions that read the value for hooks from what is stored, and that store another one in it."""

        def load(stored: Packed) -> Any:
            return self._load(stored)[where]

        def dump(key: str, value: Any) -> Packed:
            record = self._load(packed)
            record[where] = value
            return pack_value(self._handle, key, record)

        return load, dump

    def _dump(self, key: str, value: Any) -> Packed:
        return pack_value(self._handle, key, value)

    def pending_rows(self, id: str) -> list[Change]:
        """Return the rows of pending calls of durable hooks, to be stored with the step of the changes."""
        return [row for hooks, subject in self.pending for row in self._registry.pending_rows(hooks, subject, id)]

    def call_after(self, version: int, id: str) -> None:
        """Call the after-hooks, once the changes are committed."""
        for hooks, subject in self.pending:
            subject.version, subject.id = 0 if subject.stored is MISSING else version, id
            self._registry.after(hooks, subject)


def key_hooks(handle: StoreHandle, line: str, trace: Trace) -> KeyHooks | None:
    """Return the hooks of changes in a line; None if there are none."""
    registry, scope = HookRegistry.of(handle.engine), line.removeprefix(MARK)
    if registry is None:
        return None
    points = registry.cache.get(scope) or registry.points(scope)
    return KeyHooks(registry, handle, scope, points, trace) if points.matched else None


@lru_cache(4096)
def _kind(scope: str) -> str:
    """Return the kind of the points: `state` in scopes, and in the lines of a shared resource its kind, such as
    `topic`."""
    kinds = [part.partition(":")[0] for part in scope.split("/")]
    return "state" if scope == GLOBAL else next((kind for kind in kinds if kind not in KINDS), "state")
