"""Workers: they do the runs that were submitted, and those that a dead worker left.

::

    with store.worker(graph, sell):      # in threads of this program; `async with` on an AsyncStore
        ...
    store.worker(graph).work()           # until stop(); `holdfast work app.py:graph` is this

Any number of workers may work on one store, in any number of processes and on any number of machines.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.agents.runs.limits import ALL, NoRoom
from holdfast.agents.runs.parts import listeners
from holdfast.agents.runs.record import FAILED, QUEUED, WAITING, FoundRun, Run, StoredRun
from holdfast.agents.runs.steps import RunSteps, current_steps
from holdfast.agents.runs.table import MAX_DEATHS, HandOver, HeldRun, Parked, RunTable
from holdfast.agents.runs.targets import GraphTarget, Outcome, Target, make_targets
from holdfast.agents.runs.waits import settle_some
from holdfast.agents.runs.wake import Bell
from holdfast.agents.steps.once import Retry
from holdfast.agents.storage.record import error_text
from holdfast.backends.runtime.background import TaskWork, ThreadWork
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.heartbeat import Heartbeat
from holdfast.backends.runtime.threads import WorkerPool
from holdfast.engine import validation
from holdfast.engine.claims import CLAIM_SECONDS
from holdfast.engine.guard import Authority, acting
from holdfast.engine.leases import process_of
from holdfast.engine.row_format import Line
from holdfast.errors import (
    ClaimLostError,
    CorruptError,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    TransientError,
    UnavailableError,
)
from holdfast.security.handle import HasHandle, owner_handle
from holdfast.time_parser import Duration, parse_seconds

LOOK_EVERY = 1.0
"""The longest time in seconds between two looks for runs of a worker that nobody wakes: they were submitted on another
machine."""

CONCURRENCY = 4
"""How many runs a worker does at a time, unless it says otherwise."""

_SETTLE_EVERY = 10.0
"""The time in seconds between two looks at runs that wait: their threads may have gone on without them."""

_FEWEST = 8
"""How many runs that are due a worker looks at, at least."""

_NOT_RETRIED = (
    "step-order",
    "step-arguments",
    "step-failed",
    "step-result",
    "run-empty",
    "run-input",
    "redaction-refused",
)
"""Codes of errors that another attempt would find again."""

_OBSERVED = 0.6
"""For what part of a lease a claim that has expired is observed: it would have been renewed meanwhile."""

_BACKOFF = Retry(1000, backoff=1.0, factor=2.0, longest=300.0)
"""The pauses after attempts that failed."""

_log = logging.getLogger("holdfast.runs")

OnEnd = Callable[[Run], None]


class _SeenClaim(NamedTuple):
    """The claim of another worker, as it was seen."""

    until: int
    """Until when it is valid by its own word."""
    since: float
    """Since when, by the monotonic clock, it was not renewed."""
    looked: float
    """When it was looked at last."""


class _WorkerBase:
    """The part of workers that does not wait."""

    def __init__(
        self,
        store: HasHandle,
        *graphs: Any,
        concurrency: int = CONCURRENCY,
        limits: Mapping[str, int] | None = None,
        lease: Duration = CLAIM_SECONDS,
        look_every: Duration = LOOK_EVERY,
        code: str = "",
        on_end: OnEnd | None = None,
        **named: Any,
    ) -> None:
        """A worker for compiled graphs, workflows and classes of agents, on the store's tenant.

        It does up to `concurrency` runs at a time, and of a graph up to its number in `limits`. A run is taken over by
        others if its worker gives no sign of life for the time of the `lease`. A worker looks for runs when one is
        submitted on its machine, and at least `look_every` so often. `code` is the version of the code, which the runs
        get. `on_end` is called with each run when an attempt at it has ended.
        """
        self._table = RunTable(owner_handle(store))
        self._targets = make_targets(store, graphs, named)
        self._concurrency = validation.require_count(concurrency, "concurrency", 1)
        self._limits = {
            each: validation.require_count(limit, f"limit of {each}", 1) for each, limit in (limits or {}).items()
        }
        if unknown := self._limits.keys() - self._targets.keys():
            raise InvalidError(f"there is a limit for {min(unknown)!r}, which this worker does not run")
        self._lease = parse_seconds(lease, "lease", positive=True)
        self._look_every = parse_seconds(look_every, "look_every", positive=True)
        self._code = code
        self._on_end = on_end
        self._stopped = False
        self._active: dict[Line, HeldRun] = {}
        self._seen: dict[Line, _SeenClaim] = {}
        self._last_busy = ""
        """After which run the next look at those of others goes on."""
        self._last_waiting = ""
        """After which run the next look at those that wait goes on."""
        self._settle_from = 0.0
        """From when on by the monotonic clock those that wait are looked at again."""
        self._passed: dict[tuple[str, int], float] = {}
        """Runs that could not be begun, and until when by the monotonic clock they are passed over."""
        self._problem = ""

    def _start(self, held: HeldRun) -> None:
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """What it runs."""
        return list(self._targets)

    async def look(self) -> float:
        """Begin runs. Returns the seconds until the next look."""
        try:
            pause = await self._look()
        except HoldfastError as error:
            if str(error) != self._problem:
                _log.warning("the runs could not be read: %s", error)
            self._problem = str(error)
            return self._look_every
        self._problem = ""
        return pause

    async def _look(self) -> float:
        free = self._concurrency - len(self._active)
        if free <= 0:
            return self._look_every
        limit = max(2 * free, _FEWEST) + len(self._passed)
        if time.monotonic() >= self._settle_from:
            self._last_waiting = await settle_some(self._table, self._last_waiting)
            self._settle_from = time.monotonic() + (0 if self._last_waiting else _SETTLE_EVERY)
        due, busy, self._last_busy, limits = await self._table.look(self._targets, limit, self._last_busy)
        limited = {each.graph for each in limits}
        full = set[str]()
        now, moment = self._table.context.clock(), time.monotonic()
        self._passed = {key: until for key, until in self._passed.items() if until > moment}
        ready = [each for each in due if each.due <= now and (each.id, each.due) not in self._passed]
        for found in (*await self._abandoned(busy, is_limited=ALL in limited), *ready):
            if len(self._active) >= self._concurrency or self._stopped:
                break
            if full & {found.graph, ALL} and not found.token:
                continue
            try:
                has_begun = await self._begin(found, is_limited=bool(limited & {found.graph, ALL}))
            except NoRoom as error:
                full.add(error.graph)  # until one of them ends
                continue
            except CorruptError as error:
                _log.warning("run %s is skipped: %s", found.id, error)
                has_begun = False
            if not has_begun:
                self._passed[found.id, found.due] = moment + self._look_every
        ahead = [each.due - now for each in due if each.due > now]
        return max(min(self._look_every, min(ahead, default=10**18) / 1e9), 0.0)

    async def _begin(self, found: FoundRun, *, is_limited: bool) -> bool:
        """Begin a run. Returns False if that is not possible now: others were first, or have the thread. One of a graph
        that is not run here is queued, since it counts while its worker has it."""
        line, target = Line(self._table.tenant, found.thread), self._targets.get(found.graph)
        if line in self._active:
            return False
        if target is None:
            left = await self._table.begin(found, self._lease, self._code, is_graph=False, is_ours=False)
            return isinstance(left, StoredRun)
        limit = self._limits.get(found.graph)
        if limit is not None and Counter(each.stored.graph for each in self._active.values())[found.graph] >= limit:
            return True  # when one of them ends
        is_graph = isinstance(target, GraphTarget)
        held = await self._table.begin(found, self._lease, self._code, is_graph=is_graph, is_limited=is_limited)
        if held is None:
            return False
        if isinstance(held, StoredRun):  # so many workers died in it that it is given up
            self._report(held)
            return True
        held.must_stop = lambda: self._stopped or held.claim.is_lost
        self._active[line] = held
        self._start(held)
        return True

    async def _abandoned(self, busy: list[FoundRun], *, is_limited: bool) -> list[FoundRun]:
        """Return the runs whose worker has ended, or gave no sign of life for long: by its own word, and as observed
        here, since clocks differ and go on while a machine sleeps. Also those of other graphs, if all are limited."""
        from holdfast.backends.runtime.process_identity import has_ended

        own = [each for each in busy if is_limited or each.graph in self._targets]
        others = [each for each in own if Line(self._table.tenant, each.thread) not in self._active]
        dead = [each for each in others if has_ended(process_of(each.token))]
        now = time.monotonic()
        longest = 10 * (self._lease + self._look_every)  # they may come in many pages
        self._seen = {line: seen for line, seen in self._seen.items() if now - seen.looked < longest}
        silent = [each for each in others if each not in dead and self._is_to_look(each, now)]
        claims = await self._table.claims(silent) if silent else {}
        for found in silent:
            line = Line(self._table.tenant, found.thread)
            claim, seen = claims.get(line), self._seen.get(line)
            until = 0 if claim is None else claim.until
            since = now if seen is None or seen.until != until else seen.since
            self._seen[line] = _SeenClaim(until, since, now)
            if (claim is None or not claim.is_held(self._table.context)) and now - since >= self._lease * _OBSERVED:
                dead.append(found)
        return dead

    def _is_to_look(self, found: FoundRun, now: float) -> bool:
        seen = self._seen.get(Line(self._table.tenant, found.thread))
        return seen is None or now - seen.looked >= self._lease / 6

    # An attempt -------------------------------------------------------------------------------------------------

    def _enter(self, held: HeldRun) -> Target:
        """Prepare this context for a run: what it stores is on the condition of its claim."""
        current_steps.set(RunSteps(self._table, held))
        return self._targets[held.stored.graph]

    def _after(self, outcome: Outcome) -> dict[str, Any]:
        """Return the fields of a run after an attempt without an error."""
        fields: dict[str, Any] = {"state": outcome.state, "failures": 0, "error": "", "error_code": ""}
        if outcome.state == QUEUED:
            return {"state": QUEUED, "due": self._table.context.clock()}
        return fields | {"result": outcome.result}

    def _after_error(self, held: HeldRun, error: BaseException) -> dict[str, Any]:
        """Return the fields of a run after an attempt that raised an error, or handed it over. An error that came since
        the claim was lost is raised."""
        if isinstance(error, HandOver):
            return error.fields if isinstance(error, Parked) else self._after(Outcome(QUEUED))
        if isinstance(error, ClaimLostError) or held.claim.is_lost:
            raise error
        code = error.code if isinstance(error, HoldfastError) else type(error).__name__
        fields: dict[str, Any] = {"error": error_text(error), "error_code": code}
        failures, deaths = held.stored.failures, held.stored.deaths
        if isinstance(error, TransientError | UnavailableError) and not held.is_unknown:
            deaths += 1  # the store does not answer: the run did not fail, but may not go on for ever
        else:
            failures += 1
        fields |= {"failures": failures, "deaths": deaths}
        _log.warning("run %s of thread %s: attempt failed: %s", held.stored.id, held.line, fields["error"])
        is_final = isinstance(error, OutcomeUnknownError) and code == "step-outcome-unknown"
        if failures >= held.stored.max_attempts or deaths >= MAX_DEATHS or is_final or code in _NOT_RETRIED:
            return fields | {"state": FAILED}
        pause = _BACKOFF.pause_after(failures + deaths - held.stored.deaths) * (0.75 + 0.5 * random.random())  # noqa: S311
        return fields | {"state": QUEUED, "due": self._table.context.clock() + int(pause * 1e9)}

    def _report(self, ended: StoredRun) -> None:
        listeners.notify(ended.id)
        if ended.state == WAITING and not ended.agent:
            self._settle_from = 0.0  # it may have been answered meanwhile
        if self._on_end is not None:
            self._on_end(ended.describe(self._table.handle.codec))

    def _lost(self, held: HeldRun, error: Exception) -> None:
        if isinstance(error, ClaimLostError):
            _log.warning("run %s is not run here any more: %s", held.stored.id, error)
        else:
            _log.error("run %s: its end could not be recorded: %s", held.stored.id, error, exc_info=error)


class Worker(ThreadWork, _WorkerBase):
    """Does runs in threads: `work` until `stop`, or in a `with` block."""

    name, title, log = "holdfast-worker", "worker", _log

    def __init__(self, store: HasHandle, *graphs: Any, **options: Any) -> None:
        super().__init__(store, *graphs, **options)
        self._bell: Bell | None = None
        self._pool = WorkerPool("holdfast-run", self._concurrency)
        self._idle = threading.Condition()

    def work(self) -> None:
        """Do runs until `stop`, or until the program ends; those that are being done are handed over at a step."""
        self._bell = bell = Bell(self._table.context)
        run(bell.listen(self._table.context, self._table.tenant))
        try:
            while not self._is_over():
                bell.wait(run(self.look()))
        finally:
            self._stopped = True
            with self._idle:
                self._idle.wait_for(lambda: not self._active)
            self._bell = None
            bell.close()

    def run_due(self) -> None:
        """Do what is due now, and return when nothing is left that can be begun."""
        self._stopped, self._settle_from = False, 0.0
        while True:
            run(self._look())  # an error is not "nothing is due"
            if not self._active:
                return
            with self._idle:
                self._idle.wait_for(lambda: not self._active)

    def _wake(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _start(self, held: HeldRun) -> None:
        self._pool.start(lambda: contextvars.Context().run(self._do, held))

    def _do(self, held: HeldRun) -> None:
        try:
            with Heartbeat(self._table.context.heartbeats, self._lease, held.claim.beat):
                fields = self._attempt(held)
                self._report(run(self._table.finish(held, **fields)))
        except Exception as error:  # noqa: BLE001 - logged: the run is taken up by whoever finds it
            self._lost(held, error)
        finally:
            with self._idle:
                self._active.pop(held.line, None)
                self._idle.notify_all()
            if (bell := self._bell) is not None:
                bell.ring()

    def _attempt(self, held: HeldRun) -> dict[str, Any]:
        target = self._enter(held)
        try:
            with acting(Authority(claim=held.claim)):
                return self._after(target.call(self._table, held))
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the thread is the worker's
            return self._after_error(held, error)


class AsyncWorker(TaskWork, _WorkerBase):
    """Does runs in tasks: `await worker.work()`, or in an `async with` block."""

    name, title = "holdfast-worker", "worker"

    def __init__(self, store: HasHandle, *graphs: Any, **options: Any) -> None:
        super().__init__(store, *graphs, **options)
        self._tasks: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        """Do runs until `stop`; those that are being done are handed over at a step."""
        loop, bell = asyncio.get_running_loop(), Bell(self._table.context)
        await arun(bell.listen(self._table.context, self._table.tenant))

        def wake() -> None:
            bell.drain()
            self._woken.set()

        with suppress(NotImplementedError):  # a loop without sockets: it looks from time to time
            for each in bell.sockets:
                loop.add_reader(each, wake)
        try:
            while not self._stopped:
                self._woken.clear()
                pause = await arun(self.look())
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
        finally:
            self._stopped = True
            if self._tasks:
                await asyncio.wait(self._tasks)
            for each in bell.sockets:
                with suppress(NotImplementedError):
                    loop.remove_reader(each)
            bell.close()

    def _start(self, held: HeldRun) -> None:
        task = asyncio.get_running_loop().create_task(self._do(held), context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, held: HeldRun) -> None:
        try:
            async with Heartbeat(self._table.context.heartbeats, self._lease, held.claim.beat):
                fields = await self._attempt(held)
                self._report(await arun(self._table.finish(held, **fields)))
        except Exception as error:  # noqa: BLE001 - logged: the run is taken up by whoever finds it
            self._lost(held, error)
        finally:
            self._active.pop(held.line, None)
            self._woken.set()

    async def _attempt(self, held: HeldRun) -> dict[str, Any]:
        target = self._enter(held)
        try:
            with acting(Authority(claim=held.claim)):
                return self._after(await target.acall(self._table, held))
        except BaseException as error:  # noqa: BLE001 - recorded, or raised again
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                return self._after(Outcome(QUEUED))  # the program ends
            return self._after_error(held, error)
