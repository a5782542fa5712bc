"""Hooks of sessions, artifacts, agents and other features whose changes are not those of keys or checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.trace_context import Trace
from holdfast.hooks.context import HookedChange

if TYPE_CHECKING:
    from holdfast.hooks.registry import HookRegistry

_NOTHING: Mapping[str, Any] = {}


class FeatureHooks:
    """The outcome of before-hooks for a change that a feature is about to make."""

    def __init__(self, value: Any, registry: HookRegistry | None = None, subject: HookedChange | None = None) -> None:
        self.value = value
        """The value, as the hooks left it."""
        self._registry = registry
        self._subject = subject

    @property
    def events(self) -> Sequence[Event]:
        """The executions, to be stored with the step of the change. Their target is the key."""
        return () if self._subject is None else self._subject.events

    @property
    def notes(self) -> Mapping[str, Any]:
        """Fields for the audit row of the change."""
        return _NOTHING if self._subject is None else self._subject.notes

    def call_after(self, version: int = 0, id: str = "") -> None:
        """Call the after-hooks, once the step with this id is committed."""
        subject = self._subject
        if self._registry is None or subject is None:
            return
        subject.version, subject.id = version, id
        _, hooks = self._registry.matching(subject.point, subject.scope, subject.key)
        if hooks:
            self._registry.after(hooks, subject)


async def call_hooks(
    engine: Engine,
    point: str,
    *,
    scope: str,
    key: str = "",
    value: Any = MISSING,
    actor: str = "",
    trace: Trace | None = None,
    metadata: Mapping[str, Any] = _NOTHING,
    before: int | None = None,
) -> FeatureHooks:
    """Call the before-hooks of a point. Raises `VetoError`, after the veto was recorded.

    Without hooks nothing is packed.
    """
    registry = cast("HookRegistry | None", engine.hooks)
    if registry is None:
        return FeatureHooks(value)
    hooks, after = registry.matching(point, scope, key)
    if not hooks and not after:
        return FeatureHooks(value)
    codec = engine.context.codec
    stored = value if value is MISSING else codec.pack(value)
    subject = HookedChange(
        point,
        scope,
        key,
        trace or Trace(),
        time.perf_counter_ns(),
        stored,
        codec.unpack,
        lambda _, value: codec.pack(value),
        actor,
        before,
        metadata=metadata,
    )
    await registry.before(hooks, subject)
    return FeatureHooks(codec.unpack(subject.stored) if subject.changed else value, registry, subject)
