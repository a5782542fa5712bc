"""What happens on a thread, run after run: the stored parts of its runs, with where each run begins and ends.

Every moment has a number that grows from run to run, so that a client goes on after the last one that it has, at any
server. It is made from what is stored already: the microsecond in which the run was begun, and the number of the part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from holdfast.agents.runs.parts import Part, RunReader, listeners
from holdfast.agents.runs.record import QUEUED, RUNNING, WAITING, Run
from holdfast.errors import NotFoundError
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.runs import find_run
from holdfast.interfaces.langgraph_server.threads import require, runs_on

_STEP = 4
"""How many numbers a part has: its own, that of an end after it, and those of a run that goes on after that."""

_SHORTEST, _LONGEST, _IDLE = 0.02, 0.25, 1.0
"""The pauses between two looks, in seconds: while a worker elsewhere does a run, and where there is no such run."""

_HEARTBEAT = 15.0
"""After so many seconds without a moment a client is sent a comment, and its token is looked at again."""

_SOON = timedelta(minutes=1)
"""A run that is due later does not count as one that is about to begin."""


class Moment(NamedTuple):
    """A part of a run, or its beginning or end."""

    number: int
    run: Run
    part: Part | None = None
    is_end: bool = False


class _Place:
    """Where in a thread somebody is: after a number, within a run that goes on."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        self.done = set[str]()
        self.run: Run | None = None
        self.base = 0
        self.coming: list[str] = []
        """The runs that are yet to begin."""


async def follow_thread(
    call: ClientCall, thread: str, after: int | None, limit: int = 100
) -> AsyncIterator[Moment | None]:
    """Yield the moments of a thread after one, as they come, until the thread or the caller's token is gone; None when
    none came for a while. Without a number, it begins with the run that goes on, or else the last one.

    Raises `NotFoundError` when there is no such thread, at the beginning or later."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    place, known = _Place(after), {thread}
    pause, quiet = _SHORTEST, 0.0
    listeners.add(thread, wake)
    try:
        while True:
            woken.clear()
            if call.server.is_stopping:
                return
            found = await call.server.work(partial(_look, call, thread, place, limit))
            for id in {*place.coming, *([place.run.id] if place.run else ())} - known:
                known.add(id)
                listeners.add(id, wake)
                woken.set()  # parts may have been stored since they were looked for
            for each in found:
                yield each
            if found:
                pause, quiet = _SHORTEST, 0.0
                continue
            is_here = place.run is not None and listeners.is_done_here(place.run.id)
            pause = _IDLE if is_here else pause
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), pause)
                pause = _SHORTEST
            quiet, pause = quiet + pause, min(2 * pause, _LONGEST if place.run or place.coming else _IDLE)
            if quiet >= _HEARTBEAT:
                quiet = 0.0
                if await call.server.work(partial(call.server.authenticator.ended, [call.caller])):
                    return
                yield None
    finally:
        for each in known:
            listeners.remove(each, wake)


def _look(call: ClientCall, thread: str, place: _Place, limit: int) -> list[Moment]:
    if place.run is not None:
        try:
            run = find_run(call, thread, place.run.id)
        except NotFoundError:  # it was rolled back
            require(call, thread)
            return [_leave(place, place.run)]
        return _moments(call, place, run, limit)
    require(call, thread)
    runs = runs_on(call, thread)
    begun = _begun(runs)
    bases, place.coming = _bases(begun), [each.id for each in runs if each.state == QUEUED]
    if place.after is None:
        place.after = _start(runs, begun, bases, place)
    for index, (run, base) in enumerate(zip(begun, bases, strict=True)):
        is_passed = index + 1 < len(begun) and bases[index + 1] <= place.after + 1
        if run.id in place.done or is_passed:
            continue
        place.run, place.base = run, base
        try:
            found = _moments(call, place, find_run(call, thread, run.id), limit)
        except NotFoundError:  # the caller may not see it
            place.done.add(run.id)
            place.run = None
            continue
        if found or place.run is not None:
            return found
    return []


def _begun(runs: Sequence[Run]) -> list[Run]:
    return sorted((each for each in runs if each.started), key=lambda each: each.started or _EPOCH)


def _bases(runs: Sequence[Run]) -> list[int]:
    """Return the number with which each run begins. Clocks of workers may differ: no run begins before the end of the
    one before it."""
    found, least = list[int](), 0
    for each in runs:
        base = max(_microseconds(each.started), least)
        found.append(base)
        least = max(base + _STEP, _microseconds(each.ended) + 1)
    return found


def _microseconds(moment: datetime | None) -> int:
    return 0 if moment is None else int((moment - _EPOCH) / timedelta(microseconds=1))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def last_number(call: ClientCall, thread: str) -> int:
    """Return the number of the last moment of a thread."""
    begun = _begun(runs_on(call, thread))
    if not begun:
        return 0
    return _bases(begun)[-1] + _STEP * RunReader(call.service.store).last_number(begun[-1]) + 1


def _start(runs: Sequence[Run], begun: Sequence[Run], bases: Sequence[int], place: _Place) -> int:
    """Return after which number somebody begins who has none."""
    going = [base for run, base in zip(begun, bases, strict=True) if run.state in (QUEUED, RUNNING)]
    soon = datetime.now(UTC) + _SOON
    if not going and any(each.state == QUEUED and (each.due is None or each.due < soon) for each in runs):
        place.done |= {each.id for each in begun}  # the next one is about to begin
        return bases[-1] if bases else 0
    first = going[0] if going else bases[-1] if bases else 1
    return first - 1


def _moments(call: ClientCall, place: _Place, run: Run, limit: int) -> list[Moment]:
    """Return the next moments of a run, and leave it when it is over."""
    after, base, found = place.after or 0, place.base, list[Moment]()
    number, slot = divmod(max(0, after - base), _STEP)
    if after < base:
        found.append(Moment(base, run))
    elif slot == 1 and run.state in (QUEUED, RUNNING):  # it waited, and goes on
        found.append(Moment(base + _STEP * number + 2, run))
    parts = RunReader(call.service.store).parts_of(run, number, limit)
    found += [Moment(base + _STEP * each.number, run, each) for each in parts]
    if found:
        place.after = found[-1].number
    if parts or not (run.is_over or run.state == WAITING):
        return found
    last = RunReader(call.service.store).last_number(run)
    end = max(base + _STEP * last + 1, (place.after or 0) + (slot == 2))
    if end > (place.after or 0):
        found.append(Moment(end, run, is_end=True))
        place.after = end
    if run.is_over:
        place.done.add(run.id)
    place.run = None  # it waits, or another one may begin
    return found


def _leave(place: _Place, run: Run) -> Moment:
    place.done.add(run.id)
    place.run, place.after = None, (place.after or 0) + 1
    return Moment(place.after, run, is_end=True)
