"""Hooks around saves: those of checkpoints, called for every step of a thread, whatever saves it; and the refusal of
saves that a before-hook makes where its own change is being made."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.backends.interface import Change
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest, Edit
from holdfast.engine.append_queue import OuterSave, outer_saves
from holdfast.engine.events import event_contents, rows
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import EditMap, apply_map
from holdfast.engine.model.packed_state import PackedMap, pack_state, unpack_state
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.errors import InvalidError, VetoError
from holdfast.hooks.context import HookedChange
from holdfast.hooks.hook import Hook
from holdfast.hooks.registry import HookRegistry

SAVE = "checkpoint.save"

Save = Callable[..., Awaitable[list[StepInfo]]]


class SaveHooks:
    """Wraps the saving of steps."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    async def save(self, save: Save, requests: Sequence[AppendRequest]) -> list[StepInfo]:
        """Save steps, and call the hooks of those that are checkpoints. `VetoError` if a save of the same lines waits
        for the hook that makes this one: each would wait for the other."""
        engine, outer, lines = self._registry.engine, outer_saves.get(), frozenset(each.line for each in requests)
        for each in outer:
            if each.waits and each.owner is engine and not lines.isdisjoint(each.lines):
                raise _own_change_error(min(lines & each.lines).name)
        outer_saves.set((*outer, OuterSave(engine, lines)))
        try:
            return await self._save(save, requests)
        finally:
            outer_saves.set(outer)

    async def _save(self, save: Save, requests: Sequence[AppendRequest]) -> list[StepInfo]:
        hooked = [None if request.line.name.startswith(MARK) else self._hooks_for(request) for request in requests]
        if not any(hooked):
            return await save(*requests)
        given = [
            request if each is None else await each.begin() for request, each in zip(requests, hooked, strict=True)
        ]
        heads = await save(*given)
        for each, head in zip(hooked, heads, strict=True):
            if each is not None:
                each.end(head)
        return heads

    def _hooks_for(self, request: AppendRequest) -> _HookedSave | None:
        registry, thread = self._registry, request.line.name
        before, after = registry.matching(SAVE, thread)
        return _HookedSave(registry, request, before, after) if before or after else None


def _own_change_error(line: str) -> VetoError:
    return VetoError(
        "a before-hook cannot write where its own change is being made",
        where=f"scope {line.removeprefix(MARK)}" if line.startswith(MARK) else f"thread {line}",
        hint="Return the value to store instead, write to another scope or thread, or use an after-hook",
        code="hook-own-change",
    )


class _HookedSave:
    """A checkpoint that has hooks."""

    def __init__(
        self, registry: HookRegistry, request: AppendRequest, before: Sequence[Hook], after: Sequence[Hook]
    ) -> None:
        self._registry = registry
        self._request = request
        self._before = before
        self._after = after
        self._wants_value = any(hook.wants_value for hook in (*before, *after))
        codec = registry.engine.context.codec
        metadata = codec.unpack(request.metadata) if len(request.metadata) > 1 else {}
        self._subject = HookedChange(
            SAVE,
            request.line.name,
            "",
            trace_context.current_or_new(),
            time.perf_counter_ns(),
            load=partial(unpack_state, codec),
            dump=self._dump,
            metadata={**metadata, "kind": request.kind},
        )
        self._started = registry.engine.context.clock()
        self._called = False

    def _dump(self, key: str, value: Any) -> PackedMap:  # noqa: ARG002 - a checkpoint has none
        if not isinstance(value, Mapping):
            raise InvalidError(f"the state of a checkpoint is a mapping, not {type(value).__name__}")
        return pack_state(self._registry.engine.context.codec, value)

    async def begin(self) -> AppendRequest:
        """Call the before-hooks, and return the request to save instead."""
        request, state = self._request, self._request.state
        if callable(state):
            state = self._edit(state) if self._wants_value or self._before else state
        else:
            state = await self._call(state)
        if not self._registry.has_outbox(self._after):
            await self._registry.create_outbox()
        return replace(request, state=state, attached_changes=self._attach)

    async def _call(self, state: PackedMap | None) -> Any:
        """Call the hooks, unless they were called for the same state already. Returns the state to save."""
        subject = self._subject
        stored = MISSING if state is None else state
        if not self._called or stored != subject.original:
            subject.reset(stored)
            await self._registry.before(self._before, subject)
            self._called = True
        return subject.stored

    def _edit(self, edit: Edit) -> Edit:
        """Wrap an edit, so that hooks see its result."""

        async def hooked(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
            found = await edit(parent, loaded)
            if not self._wants_value:
                await self._call(None)
                return found
            line, states = self._request.line, self._registry.engine.states
            old: PackedMap = {}
            if loaded is not None:
                old = await states.resolve_pointers(line, await states.whole(line, loaded))
            new = await self._call(apply_map(found, old))
            return diff_maps(old, new) if self._subject.changed else found

        return hooked

    def _attach(self, id: str) -> list[Change]:
        request, clock = self._request, self._registry.engine.context.clock
        own = [] if request.attached_changes is None else list(request.attached_changes(id))
        own += self._registry.pending_rows(self._after, self._subject, id)
        if not self._subject.events:
            return own
        now, protection = clock(), self._registry.engine.protection
        return [
            *own,
            *rows(
                request.line, id, event_contents(now, self._subject.trace, self._subject.events, protection), first=now
            ),
        ]

    def end(self, head: StepInfo) -> None:
        """Call the after-hooks; not if nothing was saved because nothing changed."""
        subject = self._subject
        if self._request.if_changed and head.point.time < self._started:
            return
        subject.version, subject.id = head.point.depth + 1, head.point.id
        if self._after:
            self._registry.after(self._after, subject)
