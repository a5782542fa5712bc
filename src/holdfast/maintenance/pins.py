"""Pins and holds, as the API returns them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from holdfast._fields import Label
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import NotFoundError


class PinInfo(msgspec.Struct, frozen=True):
    """A pin: the checkpoint, its reason and time."""

    id: Annotated[str, Label("checkpoint")]
    reason: str
    time: Annotated[datetime, Label("since")]


class HoldInfo(msgspec.Struct, frozen=True):
    """A hold: the thread, its reason and time."""

    thread: str
    reason: str
    time: Annotated[datetime, Label("since")]


async def _stored(engine: Engine, line: Line, reason: str | None) -> str | None:
    """Return what is stored for a reason, where sensitive data in it is replaced."""
    return None if reason is None else await engine.protect_text(line, reason, "reason")


async def unpin(engine: Engine, line: Line, id: str, reason: str | None, apply: Apply | None = None) -> str:
    """Remove a pin of a checkpoint, or all of them, and return its id."""
    if not (
        await engine.holds.unpin(line, id, reason, apply)
        or await engine.holds.unpin(line, id, await _stored(engine, line, reason), apply)
    ):
        raise NotFoundError(f"checkpoint {id} has no such pin", where=f"thread {line}", hint="See pins()")
    return id


async def pins(engine: Engine, line: Line) -> list[PinInfo]:
    """Return the pins of a thread."""
    await engine.lines.info(line)
    return [PinInfo(each.step, each.reason, to_datetime(each.time)) for each in await engine.holds.pins(line)]


async def release(engine: Engine, line: Line, reason: str | None, apply: Apply | None = None) -> None:
    """Remove a hold of a thread, or all of them."""
    if not (
        await engine.holds.release(line, reason, apply)
        or await engine.holds.release(line, await _stored(engine, line, reason), apply)
    ):
        raise NotFoundError("the thread has no such hold", where=f"thread {line}", hint="See holds()")


async def holds(engine: Engine, tenant: str, line: Line | None) -> list[HoldInfo]:
    """Return the holds of a thread, or of all threads."""
    if line is not None:
        await engine.lines.info(line)
    found = await (engine.holds.all_holds(tenant) if line is None else engine.holds.holds(line))
    return [HoldInfo(each.line.name, each.reason, to_datetime(each.time)) for each in found]
