"""Executions of hooks as rows: those of before-hooks ride with the change, others have steps of a line of their own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from holdfast.backends.runtime.drivers import run
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import flatten
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, audited_request
from holdfast.engine.trace_context import Trace
from holdfast.errors import VetoError
from holdfast.hooks.context import HookedChange

LINE = f"{MARK}hooks"
"""The line whose steps tell of hooks that ran after a change, or refused one."""

_SALT = 8
_MAX_REASON = 500
"""How many characters of a veto's reason are stored."""


def flat(stored: Any) -> bytes:
    """What is stored, as bytes."""
    return flatten(stored)


def pack_detail(
    engine: Engine,
    record: bool,
    subject: HookedChange,
    phase: str,
    given: Any,
    changed: bool,
    error: BaseException | None,
) -> bytes:
    """The packed details of an execution: where it was, and what of the value may be told.

    A value stands there as it is only if the hook is registered so. Else it is a digest with a salt of its own: equal
    values are not seen to be equal. Of an error only the kind is told: its text may quote the value.
    """
    about: dict[str, Any] = {"point": subject.point, "phase": phase}
    if subject.before is not None:
        about["before"] = subject.before
    if given is not MISSING:
        about["value"] = subject.load(given) if record else _digest(given)
    if changed:
        about["result"] = subject.load(subject.stored) if record else _digest(subject.stored)
    if record and subject.metadata:
        about["metadata"] = dict(subject.metadata)
    if error is not None:
        about["error"] = type(error).__name__
        if isinstance(error, VetoError):
            about["reason"] = error.what[:_MAX_REASON]
    return engine.context.codec.pack(about)


def _digest(stored: Any) -> str:
    salt = os.urandom(_SALT)
    return f"blake2b:{salt.hex()}:{hashlib.blake2b(flat(stored), digest_size=16, salt=salt).hexdigest()}"


async def record_veto(engine: Engine, tenant: str, subject: HookedChange) -> None:
    """Store that a change was refused by a hook, and what its hooks did."""
    target = f"{subject.scope}{BETWEEN}{subject.key}"
    change = Event("change", subject.actor, subject.point.split(".")[1], target, "vetoed", trace=subject.trace)
    events = [change, *(event._replace(target=target, trace=subject.trace) for event in subject.events)]
    await _append(engine, tenant, "veto", events)


def record_executions(engine: Engine, tenant: str, events: Sequence[Event]) -> None:
    """Store that after-hooks ran. For threads that may wait."""
    run(_append(engine, tenant, "hooks", events))


async def _append(engine: Engine, tenant: str, kind: str, events: Sequence[Event]) -> None:
    async def edit(*_: object) -> LineChange:
        return LineChange(events=events)

    await engine.writer.save(audited_request(engine, Line(tenant, LINE), kind, "", edit, trace=Trace()))
