"""Timers that survive a restart.

The line of an agent's steps says which timers there are. For each there is a row among the jobs of the store, whose
name starts with the time: so what is due is found by the order of names, whatever else waits. A runner of jobs reads
the first of them and delivers the signal and the end of the timer as one step. Timer and row are set and removed
together; a row that was restored without its timer is found to be out of date, and removed.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast._fields import Hidden, Label
from holdfast._structs import decode_json
from holdfast.agents.steps.records import StepLine
from holdfast.agents.steps.signals import signal_entry, signal_writes
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Change, Delete, Put, Row, Scan
from holdfast.backends.tables import JOBS, Key
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import AGENTS, agent_of
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, DeniedError, HoldfastError, NotFoundError, TransientError
from holdfast.security.handle import StoreHandle
from holdfast.state.reader import ScopeView, StateItem, read_line_at
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import parse_deadline

PREFIX = "\x01timer/"
"""The start of the names of the rows of timers, which no job has."""

_PAGE = 100
_DELIVERED_AT_ONCE, _DELIVERED_LATE = 100, 16
"""How many timers an agent that waits delivers before it looks for its signal, and after the time of its wait is
over."""
_MAX_BODY = 1 << 16
_LONGEST_LOOK = 5.0

_log = logging.getLogger("holdfast.timers")

_reported: set[Key] = set()
_MAX_REPORTED = 1000


class Timer(msgspec.Struct, frozen=True):
    """A timer of an agent. A sleep of the agent is one that sends no signal."""

    name: Annotated[str, Label("timer")]
    due: datetime
    signal: str = ""
    """The name of the signal that it sends; empty for a sleep."""
    value: Hidden[Any] = None


class _TimerBody(msgspec.Struct, frozen=True):
    """The body of a timer's row, in the form of other jobs'."""

    settings: dict[str, str]
    created: int


def parse_when(when: object, now: int) -> int:
    """Return a time in nanoseconds: a datetime, a duration from now, or text for either."""
    moment = parse_deadline(when, to_datetime(now))
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


async def set_timer(line: StepLine, name: str, when: object, signal: str | None, value: Any) -> Timer:
    """Set a timer; one of the same name is replaced."""
    checked = line.check_key(name, "name of a timer")
    sent = line.check_key(checked if signal is None else signal, "name of a signal")
    await line.require("write")
    handle, due, token = line.agent.handle, parse_when(when, line.agent.handle.now()), secrets.token_hex(8)
    entry = {"due": due, "token": token, "signal": sent, "value": value}
    packed = line.put(f"timer/{checked}", entry)  # a value that cannot be stored is refused before there is a row
    row = _row(handle, line.agent.id, checked, due, token)
    replaced: list[Change] = []

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal replaced
        old = await view.item(f"timer/{checked}")
        replaced = _removal(handle, old)
        return [*_end_of(old), packed, line.put(_due_key(due, token), checked)]

    await line.write(writes, attached=lambda: [*replaced, Put(JOBS, row)])
    return Timer(checked, to_datetime(due), sent, value)


async def cancel_timer(line: StepLine, name: str) -> bool:
    """Cancel a timer, or end a sleep. Returns False if there is none."""
    checked = line.check_key(name, "name of a timer")
    await line.require("write")
    removed: list[Change] = []
    slept = False

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal removed, slept
        item, sleep = await view.item(f"timer/{checked}"), await view.item(f"sleep/{checked}")
        removed = _removal(line.agent.handle, item)
        slept = sleep is not None and not sleep.value["ended"]
        ended = line.put(f"sleep/{checked}", {**sleep.value, "ended": "cancelled"}) if sleep and slept else None
        return [*_end_of(item), *([] if ended is None else [ended])]

    await line.write(writes, attached=lambda: removed, conditions=line.run_changes)
    return bool(removed) or slept


async def list_timers(line: StepLine) -> list[Timer]:
    """Return the timers and sleeps of an agent that are not over, the next one first."""
    await line.require("read")

    async def look(view: ScopeView) -> list[Timer]:
        timers = await view.items("timer/")
        sleeps = [each for each in await view.items("sleep/") if not each.value["ended"]]
        found = [
            Timer(
                each.key.partition("/")[2],
                to_datetime(each.value["due"]),
                each.value.get("signal", ""),
                each.value.get("value"),
            )
            for each in (*timers, *sleeps)
        ]
        return sorted(found, key=lambda timer: (timer.due, timer.name))

    return await line.read(look)


async def sleep_until(line: StepLine, when: object, key: str) -> bool:
    """Sleep until a time, which is recorded under the key when it is first given. Returns False if the sleep was
    cancelled."""
    name = f"sleep/{line.check_key(key)}"
    await line.require("write")
    # By the monotonic clock: one that is set back does not make the sleep longer.
    begun, now = time.monotonic(), line.agent.handle.now()
    due, state = parse_when(when, now), ""

    async def begin(view: ScopeView) -> list[KeyWrite]:
        nonlocal due, state
        item = await view.item(name)
        if item is None:
            return [line.put(name, {"due": due, "ended": ""})]
        due, state = item.value["due"], item.value["ended"]
        return []

    await line.write(begin)

    async def has_ended(view: ScopeView) -> bool:
        item = await view.item(name)
        return item is None or bool(item.value["ended"])

    if not state and due > now:
        await line.hand_over(due, has_ended)
    end = begun + (due - now) / 1e9
    watch = line.watch(name)
    while not state and (left := end - time.monotonic()) > 0:
        await WatchOperations.poll(watch, min(left, _LONGEST_LOOK))
        item = await line.read(lambda view: view.item(name))
        state = "cancelled" if item is None else item.value["ended"]

    async def finish(view: ScopeView) -> list[KeyWrite]:
        nonlocal state
        item = await view.item(name)
        if item is None or item.value["ended"]:
            state = "cancelled" if item is None else item.value["ended"]
            return []
        state = "slept"
        return [line.put(name, {"due": due, "ended": state})]

    if not state:
        await line.write(finish)
    return state == "slept"


# For runners ----------------------------------------------------------------------------------------------------


async def next_due(handle: StoreHandle) -> int | None:
    """Return when the next timer is due that is not due yet: one that is damaged stays where it is."""
    start = f"{PREFIX}{handle.now() + 1:020d}"
    query = Scan(JOBS, (handle.tenant, ""), (start,), (PREFIX[:-1] + "0",), limit=1, bodies=False)
    (rows,) = await handle.engine.context.stored.read([query])
    return _due_of(rows[0]) if rows else None


async def fire_timers(handle: StoreHandle) -> int:
    """Deliver the signals of timers that are due. Returns how many rows were handled; call it again if there were any.

    Each is delivered once, whoever else does this: what a timer leaves in the agent's line is one step. A row that
    cannot be read is left, and does not keep the others from being delivered.
    """
    start, now = PREFIX, handle.now()
    done = 0
    while True:
        query = Scan(JOBS, (handle.tenant, ""), (start,), (f"{PREFIX}{now + 1:020d}",), limit=_PAGE)
        (rows,) = await handle.engine.context.stored.read([query])
        for row in rows:
            try:
                await _fire(handle, row)
                done += 1
            except TransientError:
                raise
            except HoldfastError as error:
                _warn(row, error)
        if len(rows) < _PAGE:
            return done
        start = str(rows[-1].key[2]) + "\0"


def _warn(row: Row, error: HoldfastError) -> None:
    """Log that a timer is skipped; once, since runners look often."""
    if row.key not in _reported and len(_reported) < _MAX_REPORTED:
        _reported.add(row.key)
        _log.warning("a timer is skipped: %s", error)


async def _fire(handle: StoreHandle, row: Row) -> None:
    settings = _decode(handle.engine.context.rows.decode(JOBS, row))
    line = StepLine(AgentLine(handle, settings["agent"]))
    await _deliver(line, settings["timer"], _due_of(row), settings["token"])


async def _deliver(line: StepLine, name: str, due: int, token: str) -> None:
    """Deliver the signal of a timer, and remove its row; the row alone, if the timer was cancelled, set again, or
    delivered by somebody else."""
    handle, is_current = line.agent.handle, False
    removal: list[Change] = [Delete(JOBS, _row_key(handle, due, token))]

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal is_current
        item = await view.item(f"timer/{name}")
        is_current = item is not None and item.value["token"] == token
        if item is None or not is_current:
            return [KeyWrite(key, "delete") for key in await view.all_keys(_due_key(due, token))]
        entry = signal_entry(line, item.value["signal"], item.value["value"], f"timer {token}")
        return [*await signal_writes(line, view, entry), *_end_of(item)]

    await line.write(writes, attached=lambda: removal, conditions=line.run_changes)
    if not is_current:
        await handle.engine.context.backend.apply(removal)


async def deliver_due(line: StepLine, end: float | None = None) -> float:
    """Deliver the timers of an agent that are due. Returns the seconds until the next one; infinity, if there is none.
    Of many, only some are delivered at a time, and few after an end by the monotonic clock.

    The line alone says which there are: so timers work also if their rows were not copied or restored with it.
    """
    handle = line.agent.handle

    async def next_timer(view: ScopeView) -> StateItem | None:
        return next(iter(await view.items("timer-due/", limit=1)), None)

    for number in range(_DELIVERED_AT_ONCE):
        item = await line.read(next_timer)
        if item is None:
            return math.inf
        if number >= _DELIVERED_LATE and end is not None and time.monotonic() >= end:
            return 0.0
        _, due, token = item.key.split("/")
        ahead = int(due) - handle.now()
        if ahead > 0:
            return ahead / 1e9
        await _deliver(line, item.value, int(due), token)
    return 0.0


def _decode(row: Row) -> dict[str, str]:
    try:
        body = decode_json(unwrap(row.body, max_bytes=_MAX_BODY).content, _TimerBody)
        return {name: body.settings[name] for name in ("agent", "timer", "token")}
    except (msgspec.MsgspecError, KeyError) as error:
        raise CorruptError(f"a timer cannot be decoded: {error}", where=f"timer row {row.key[2]!r}") from error


def _row(handle: StoreHandle, agent: str, timer: str, due: int, token: str) -> Row:
    body = _TimerBody({"agent": agent, "timer": timer, "token": token}, handle.now())
    packed = wrap(msgspec.json.encode(body), codec=BodyKind.RAW)
    return Row(_row_key(handle, due, token), ("timer", "", "ready", due, 1), packed)


def _row_key(handle: StoreHandle, due: int, token: str) -> tuple[str, str, str]:
    return (handle.tenant, "", f"{PREFIX}{max(due, 0):020d}/{token}")


def _due_of(row: Row) -> int:
    return int(str(row.key[2]).removeprefix(PREFIX).partition("/")[0])


def _due_key(due: int, token: str) -> str:
    return f"timer-due/{max(due, 0):020d}/{token}"


def _removal(handle: StoreHandle, timer: StateItem | None) -> list[Change]:
    """Return the change that removes the row of a timer, if there is one."""
    return [] if timer is None else [Delete(JOBS, _row_key(handle, timer.value["due"], timer.value["token"]))]


def _end_of(timer: StateItem | None) -> list[KeyWrite]:
    """Return the changes that end a timer, if there is one."""
    if timer is None:
        return []
    ends = (timer.key, _due_key(timer.value["due"], timer.value["token"]))
    return [KeyWrite(key, "delete") for key in ends]


# For those who remove and restore agents ------------------------------------------------------------------------


async def row_removals(engine: Engine, line: Line) -> list[Change]:
    """Return the changes that remove the rows of all timers that a line of steps has; none for other lines."""
    if agent_of(line) is None:
        return []
    handle = StoreHandle(engine, line.tenant)
    try:
        timers = await _timers(handle, line)
    except (CorruptError, DeniedError, NotFoundError):
        return []  # the line cannot be read: its rows are removed when they are due
    return [change for each in timers for change in _removal(handle, each)]


async def timer_rows(engine: Engine, line: Line) -> list[Row]:
    """Return the rows of all timers that a line of steps has; none for other lines."""
    if (agent := agent_of(line)) is None:
        return []
    handle, name = StoreHandle(engine, line.tenant), agent.name.removeprefix(AGENTS)
    return [
        _row(handle, name, each.key.removeprefix("timer/"), each.value["due"], each.value["token"])
        for each in await _timers(handle, line)
    ]


async def _timers(handle: StoreHandle, line: Line) -> Sequence[StateItem]:
    tip = await handle.engine.lines.revalidate_tip(line)
    return await read_line_at(handle, line, None if tip is None else tip.point, lambda view: view.items("timer/"))
