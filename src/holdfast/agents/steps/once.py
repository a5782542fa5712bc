"""Running a durable step: once, whoever asks for it, and however often.

A step takes two batches. The first puts the row of an attempt (`runs`), on condition that nobody has one, and that
nothing was recorded since this process read the line: so a step that is new costs no read. The second records the
outcome and removes the row. What became of an attempt whose process died is not guessed, but resolved by a policy.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.steps.records import (
    LEASE,
    LEASE_LOST,
    RETRY,
    LinePlace,
    NothingToWrite,
    RecordedStep,
    StepLine,
    StepRecord,
    StepState,
    StoredStep,
    deleted_error,
    digest_arguments,
    lost_error,
)
from holdfast.agents.steps.runs import StepRun, list_runs, read_run, run_absent
from holdfast.agents.storage.record import error_text
from holdfast.backends.interface import Change
from holdfast.backends.runtime.drivers import Pause, complete
from holdfast.engine import validation
from holdfast.engine.guard import UNCONDITIONAL, Permit, both_preconditions, current_authority
from holdfast.engine.model.missing import MISSING
from holdfast.engine.optimistic import Attempts
from holdfast.engine.rng import rng
from holdfast.engine.row_format import Line
from holdfast.errors import (
    ConflictError,
    DeniedError,
    HandlerError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    TransientError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.state.reader import ScopeView
from holdfast.state.sharing.work_queue import HandlerCall, heartbeat_of
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_seconds

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister

_log = logging.getLogger("holdfast.steps")

_MAX_ERROR = 2000
"""How many characters of an error are recorded as text."""

_RECORD_ATTEMPTS, _LONGEST_PAUSE = 10, 5.0
"""How often recording a result is attempted while the store does not answer, and the longest pause in seconds."""

_NOT_RETRIED = (LEASE_LOST, "redaction-refused")
"""Codes of errors about the step and its result, and not about the store."""

_OBSERVED = 0.5
"""For which part of the time of an expired lease it is observed before its process is presumed dead: longer than the
time between two renewals."""

_UNNAMED = "<lambda>"
"""The name of functions without one, which are not compared."""

ENDED = ("done", "failed")
"""The states of a step that is not run again."""

_active: ContextVar[frozenset[tuple[Line, str]]] = ContextVar("steps that are running here", default=frozenset())

OnUnknown: TypeAlias = Literal["raise", "retry"] | Callable[[StepRecord], Any]
"""The policy for an attempt whose outcome is unknown: raise `OutcomeUnknownError`, run the step again, or ask a
function, which returns the result to record, or `RETRY`, or raises an error."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a step is retried when its function raises an error: so often, after pauses that grow up to a limit."""

    count: int = 3
    backoff: Duration = 1.0
    factor: float = 2.0
    longest: Duration = 60.0

    def __post_init__(self) -> None:
        validation.require_count(self.count, "number of retries")
        factor: object = self.factor
        if not isinstance(factor, int | float) or not 1 <= factor <= 1000:
            raise InvalidError(f"the factor of pauses is from 1 to 1000, not {factor!r}"[:200])
        self.pause_after(1)

    def pause_after(self, attempts: int) -> float:
        """Return how many seconds to wait after so many attempts."""
        longest = parse_seconds(self.longest, "longest pause")
        first = parse_seconds(self.backoff, "backoff")
        return float(min(first * self.factor ** min(attempts - 1, 64), longest)) if first else 0.0


_NO_RETRY = Retry(0)


@dataclass(slots=True)
class StepOptions:
    """The options of a step, as they were given."""

    retry: int | Retry = 0
    final: tuple[type[Exception], ...] = ()
    on_unknown: OnUnknown = "raise"
    lease: Duration = LEASE
    formerly: tuple[str, ...] = ()
    """Names that the function had."""

    def check(self) -> None:
        """Raise `InvalidError` for wrong options."""
        if type(self.retry) is int:
            self.retry = _NO_RETRY if self.retry == 0 else Retry(self.retry)
        if not isinstance(self.retry, Retry):
            raise InvalidError(f"retry is a number or a Retry, not {self.retry!r}"[:200])
        final: tuple[object, ...] = self.final
        if not all(isinstance(each, type) and issubclass(each, Exception) for each in final):
            raise InvalidError(f"final is a tuple of classes of errors, not {self.final!r}"[:200])
        if self.on_unknown not in ("raise", "retry") and not callable(self.on_unknown):
            raise InvalidError(
                f"on_unknown cannot be {self.on_unknown!r}"[:200], hint="Pass 'raise', 'retry' or a function"
            )
        parse_seconds(self.lease, "lease", positive=True)
        names: tuple[object, ...] = self.formerly
        if not all(isinstance(each, str) for each in names):
            raise InvalidError(f"formerly is a name that the function had, or several, not {self.formerly!r}"[:200])


@dataclass(slots=True)
class OnceCall:
    """A call of a durable step."""

    line: StepLine
    key: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions
    agent_version: int = 0
    is_async: bool = False
    persister: AgentPersister | None = None
    """That of a live agent."""
    digest: bytes = field(default=b"", init=False)
    permit: Permit = field(default=UNCONDITIONAL, init=False)

    async def run(self) -> Any:
        """Return the recorded result, or run the step and record it; raises its recorded error likewise."""
        self._check()
        self.permit = await self.line.require("write")
        await self.line.require("read")  # it returns what is recorded
        attempts = Attempts("beginning a step", self._where)
        watch: WatchOperations | None = None
        again = False
        while True:
            seen = await find_step(self.line, self.key, stored=again)
            if seen.run is None:
                ended = await self._go_on(seen, again, attempts)
            elif await self._is_lapsed(seen.run):
                ended = await self._resolve_unknown(seen, seen.run, attempts)
            else:
                if watch is None:
                    watch = self.line.watch(f"step/{self.key}")
                    await WatchOperations.start(watch)  # and look again: it may have ended just now
                else:  # its process may die without a change
                    await WatchOperations.poll(watch, min(seen.run.step.lease / 4, 1.0))
                ended = None
            if ended is not None:
                return ended[0]
            again = True

    async def _go_on(self, seen: SeenStep, again: bool, attempts: Attempts) -> tuple[Any] | None:
        """Return the recorded outcome, or run the step; None to look again."""
        recorded = seen.recorded
        if recorded is None:
            await self._check_unused()
        else:
            self._require_same(recorded.step)
            if recorded.step.state in ENDED:
                if again or await self.line.is_current(seen.place):
                    return (await outcome_of(self.line, recorded, seen.place),)
                return None
            await _wait_until_due(self.line, recorded.record)
        run = await self._begin(seen, seen.stale, None if recorded is None else recorded.step, "", again)
        if run is None:
            await attempts.begin()
            return None
        return await self._attempt(run)

    async def _is_lapsed(self, run: StepRun) -> bool:
        self._require_same(run.step)
        return await run.has_lapsed(run.step.lease * _OBSERVED)

    async def _resolve_unknown(self, seen: SeenStep, run: StepRun, attempts: Attempts) -> tuple[Any] | None:
        """Apply the policy to an attempt whose outcome is unknown. If nobody is to resolve that, leave the row to its
        process, which may yet record it, and raise the error."""
        policy, held = self.options.on_unknown, run
        if policy == "raise":
            if run.is_same(await read_run(self.line, self.key)):  # it has not ended before it was free
                raise unknown_error(self.line, run.record)
            return None
        if callable(policy):
            taken = await run.take()
            if taken is None:
                return None
            try:
                decision = await invoke(policy, run.record)
                if decision is not RETRY:
                    await self._record(taken, "done", result=decision, resolved="decided")
                    return (decision,)
            except GeneratorExit:
                raise
            except BaseException:
                with suppress(TransientError, UnavailableError):  # it expires anyway, and the error matters more
                    await taken.release()
                raise
            held = taken
        begun = await self._begin(seen, held, run.step, "retry", True)
        if begun is None:
            await attempts.begin()
            return None
        return await self._attempt(begun)

    def _check(self) -> None:
        self.options.check()
        if not callable(self.function):
            raise InvalidError(f"a step runs a function, not {self.function!r}"[:200], where=self._where)
        if inspect.iscoroutinefunction(self.function) and not self.is_async:
            raise InvalidError(
                "an agent of a synchronous Store cannot run coroutine functions",
                where=self._where,
                hint="Write it with `def`, or use AsyncPersistentAgent on an AsyncStore",
            )
        if (self.line.line, self.key) in _active.get():
            raise InvalidError(
                "the step was called from its own function, and would wait for itself",
                where=self._where,
                hint="Use another key for the inner step",
            )
        self.digest = digest_arguments(self.line, self.key, self.args, self.kwargs)

    def _require_same(self, record: StoredStep) -> None:
        if record.digest and record.digest != self.digest:
            raise ConflictError(
                "the step was started with different arguments",
                where=self._where,
                hint="Use another key for another piece of work; the key should name it, as charge-42 does",
                code="step-arguments",
            )
        name = _function_name(self.function)
        if _UNNAMED not in (name, record.function) and record.function not in ("", name, *self.options.formerly):
            raise ConflictError(
                f"the step was started by the function {record.function}, not by {name}",
                where=self._where,
                hint=f"Use another key for another piece of work; if it was renamed, give formerly={record.function!r}",
                code="step-function",
            )

    async def _check_unused(self) -> None:
        """Report that a resumed agent begins a new step, though there are recorded ones that it has not come to: its
        code may have changed. `ConflictError` if the agent is strict."""
        if self.persister is None:
            return
        lifecycle, key = self.persister.lifecycle, f"step/{self.key}"
        if lifecycle.recorded_steps is None:
            claim = current_authority().claim
            attempt = None if claim is None else claim.attempt
            recorded = await step_keys(self.line, 0 if attempt is None else attempt.since)
            lifecycle.recorded_steps = recorded - lifecycle.reached_steps
        unused = sorted(lifecycle.recorded_steps - lifecycle.reached_steps)
        if not unused:
            return
        found = f"{len(unused)} recorded steps were not asked for, such as {unused[0].partition('/')[2]!r}"
        if self.persister.options.strict:
            lifecycle.reached_steps.discard(key)
            raise ConflictError(
                f"the step is new, and {found}",
                where=self._where,
                hint="Run the code that recorded them, give the steps their keys back, or use steps.version()",
                code="steps-unused",
            )
        if not lifecycle.has_reported_unused:
            lifecycle.has_reported_unused = True
            _log.warning("steps-unused: the step %r of %s is new, and %s", self.key, self.line.where, found)

    @property
    def _where(self) -> str:
        return f"step {self.key!r} of {self.line.where}"

    # An attempt -------------------------------------------------------------------------------------------------

    async def _begin(
        self, seen: SeenStep, before: StepRun | None, step: StoredStep | None, resolved: str, again: bool
    ) -> StepRun | None:
        """Begin an attempt: put its row, in place of one `before`. None if the step is not as it was seen."""
        line, authority = self.line, current_authority()
        if authority.claim is not None and authority.claim.attempt is not None:
            authority.claim.attempt.go_on()
        run = StepRun.begin(
            line,
            self.key,
            StoredStep(
                "running",
                1 if step is None else step.attempts + 1,
                _function_name(self.function),
                os.urandom(16) if step is None else step.idempotency_key,
                self.digest,
                line.agent.handle.now(),
                f"{_host()} {os.getpid()}",
                agent_version=self.agent_version,
                resolved=resolved or ("" if step is None else step.resolved),
                lease=parse_seconds(self.options.lease, "lease"),
            ),
            before,
        )
        run_of = authority.conditions_of_run(line.agent.handle.engine.context, line.line)
        guards = both_preconditions(self.permit.guards, run_of)
        conditions = [*(() if guards is None else await guards(again)), *await line.agent_exists(again)]
        if seen.run is None:  # otherwise the row tells that nothing was recorded
            conditions += await line.unchanged_since(seen.place, again)
        try:
            failed = await line.agent.handle.engine.context.backend.apply([*conditions, *run.put_over(before)])
        except GeneratorExit:
            raise
        except BaseException:
            with suppress(Exception):  # it may have been put, and only the answer was lost
                await run.release()
            raise
        return run if failed is None else None

    async def _attempt(self, run: StepRun) -> tuple[Any] | None:
        """Run an attempt. Returns the result; None if the step is to be attempted again."""
        try:
            return await self._call_and_record(run)
        except GeneratorExit:
            raise
        except BaseException:
            if not run.is_over:
                with suppress(TransientError, UnavailableError):  # it expires anyway, and the outcome matters more
                    await run.release()
            raise

    async def _call_and_record(self, run: StepRun) -> tuple[Any] | None:
        retry = self.options.retry
        assert isinstance(retry, Retry)  # noqa: S101 - `check` made it one
        returned: list[Any] = []
        try:
            value = await self._call(run, returned)
        except OutcomeUnknownError:
            raise  # the function itself does not know: the step stays as one whose outcome is unknown
        except GeneratorExit:
            raise
        except Exception as error:
            attempts = run.step.attempts
            if isinstance(error, self.options.final) or attempts > retry.count:
                await self._record(run, "failed", error=error)
                raise
            pause = retry.pause_after(attempts) * (0.75 + 0.5 * rng.random())
            await self._record(run, "waiting", error=error, due=self.line.agent.handle.now() + int(pause * 1e9))
            return None
        except BaseException:
            for value in returned:  # it was cancelled just after the function had ended
                with suppress(Exception):
                    await self._record(run, "done", result=value)
            raise
        try:
            await self._record(run, "done", result=value)
        except (InvalidError, UnsupportedError, DeniedError) as error:  # the value; the step was run all the same
            failure = InvalidError(
                f"the step was run, and its result cannot be recorded: {error.what}",
                where=self._where,
                hint="Return plain values; it is recorded as failed, and not run again",
                code="step-result",
            )
            await self._record(run, "failed", error=failure)
            raise failure from error
        return (value,)

    async def _call(self, run: StepRun, returned: list[Any]) -> Any:
        """Call the function, and note also in a list what it returned."""
        kwargs = self.kwargs
        if _takes_key(self.function) and "idempotency_key" not in kwargs:
            kwargs = {**kwargs, "idempotency_key": run.step.idempotency_key.hex()}

        async def call_async(_: object) -> Any:
            run.is_called = True
            result = self.function(*self.args, **kwargs)
            returned.append(await result if inspect.isawaitable(result) else result)
            return returned[0]

        def call(_: object) -> Any:
            run.is_called = True
            returned.append(self.function(*self.args, **kwargs))
            return returned[0]

        token = _active.set(_active.get() | {(self.line.line, self.key)})
        try:
            heartbeat = heartbeat_of(self.line.agent.handle, self.options.lease, run.renew)
            return await HandlerCall(call_async if self.is_async else call, None, heartbeat)
        finally:
            _active.reset(token)

    async def _record(
        self,
        run: StepRun,
        state: StepState,
        *,
        result: Any = None,
        error: Exception | None = None,
        due: int = 0,
        resolved: str = "",
    ) -> None:
        """Record how an attempt ended, unless another process has resolved it. It is attempted for a while, and when
        the task is cancelled, since the result is nowhere else."""
        resolved = resolved or run.step.resolved

        async def writes(view: ScopeView) -> list[KeyWrite]:
            return ending(self.line, self.key, run.step, state, view.now, result, error, due, resolved)

        async def conditions(again: bool) -> list[Change]:
            """Return the removal of the row, which nobody has removed or replaced."""
            if not again or await run.reload():
                return run.removal()
            recorded = (await find_step(self.line, self.key)).recorded
            if recorded is None:
                raise deleted_error(self._where)
            if run.has_ended(recorded) and (recorded.step.state, recorded.step.resolved) == (state, resolved):
                raise NothingToWrite("an earlier attempt recorded it, and only the answer was lost")
            raise lost_error(self._where)

        async def write() -> None:
            await self.line.write(writes, conditions=conditions)
            run.is_over = True

        for number in range(1, _RECORD_ATTEMPTS + 1):
            try:
                await complete(write)
                return
            except HoldfastError as failure:
                if isinstance(failure, InvalidError | UnsupportedError) or failure.code in _NOT_RETRIED:
                    raise
                if number == _RECORD_ATTEMPTS or not isinstance(failure, TransientError | ConflictError):
                    raise OutcomeUnknownError(
                        f"the step was run, and its outcome could not be recorded: {failure.what}",
                        where=self._where,
                        hint="Resolve it by hand once that is possible: steps.resolve(key, result=…)",
                        code="step-outcome-unknown",
                    ) from failure
                await Pause(min(0.1 * 2**number, _LONGEST_PAUSE))


def ending(
    line: StepLine,
    key: str,
    step: StoredStep,
    state: StepState,
    now: int,
    result: Any = None,
    error: Exception | None = None,
    due: int = 0,
    resolved: str = "",
) -> list[KeyWrite]:
    """Return the changes that end an attempt."""
    ended = replace(
        step,
        state=state,
        ended=now,
        due=due,
        resolved=resolved or step.resolved,
        error_kind="" if error is None else type(error).__name__,
    )
    if error is None:
        return line.put_step(key, ended, outcome=result if state == "done" else MISSING)
    text = error_text(error, _MAX_ERROR)
    if state == "failed":
        with suppress(HoldfastError):  # its text is recorded
            return line.put_step(key, ended, text, error)
    return line.put_step(key, ended, text)


class SeenStep(NamedTuple):
    """A step as it was seen at the end of its line."""

    place: LinePlace
    recorded: RecordedStep | None
    run: StepRun | None
    """The attempt that has not ended. It is looked for only in the store."""
    stale: StepRun | None
    """The row of an attempt whose end is recorded."""


async def find_step(line: StepLine, key: str, *, stored: bool = True) -> SeenStep:
    """Return a step as it is in memory, without rows of attempts, or as it is stored."""
    while True:
        # The row before the line: the batch that removes it records the outcome there.
        run = await read_run(line, key) if stored else None
        place = await line.place(stored=stored)
        try:
            recorded = await line.read_at(place, lambda view: recorded_in(view, key))
        except NotFoundError:  # the line was pruned or deleted meanwhile
            if stored and place == await line.place(stored=True):
                raise
            stored = True
            continue
        if run is not None and run.has_ended(recorded):
            return SeenStep(place, recorded, None, run)
        return SeenStep(place, recorded, run, None)


async def read_step(line: StepLine, key: str) -> StepRecord | None:
    """Return the record of a step."""
    seen = await find_step(line, key)
    if seen.run is not None:
        return seen.run.record
    return None if seen.recorded is None else seen.recorded.record


async def list_steps(line: StepLine, after: str, limit: int) -> list[StepRecord]:
    """Return the first steps after a key, in the order of keys."""
    runs = {each.key: each for each in await list_runs(line) if each.key > after}
    start = f"step/{after}" if after else ""
    items = await line.read(lambda view: view.items("step/", after=start, limit=limit))
    found: dict[str, RecordedStep | StepRun] = {
        each.key: each for each in (RecordedStep.of(item.key, item.value) for item in items)
    }
    last = max(found) if len(found) == limit else None
    for key, run in runs.items():
        recorded = found.get(key)
        if (last is None or key <= last) and not (isinstance(recorded, RecordedStep) and run.has_ended(recorded)):
            found[key] = run
    return [found[key].record for key in sorted(found)[:limit]]


async def step_keys(line: StepLine, since: int = 0) -> frozenset[str]:
    """Return the keys of the line that steps have which have begun, since a time if there is one."""
    runs = [f"step/{each.key}" for each in await list_runs(line) if each.step.started >= since]
    if not since:
        return frozenset((*runs, *await line.read(lambda view: view.keys("step/"))))
    found = [RecordedStep.of(each.key, each.value) for each in await line.read(lambda view: view.items("step/"))]
    return frozenset((*runs, *(f"step/{each.key}" for each in found if each.step.started >= since)))


async def recorded_in(view: ScopeView, key: str) -> RecordedStep | None:
    """Return a step that has ended, or waits."""
    item = await view.item(f"step/{key}")
    return None if item is None else RecordedStep.of(item.key, item.value)


async def outcome_of(line: StepLine, recorded: RecordedStep, place: LinePlace) -> Any:
    """Return the recorded result of a step, or raise its recorded error."""
    value = recorded.outcome
    if value is MISSING:  # it is large, or an error that could not be stored
        item = await line.read_at(place, lambda view: view.item(f"result/{recorded.key}"))
        value = None if item is None else item.value
    record = recorded.step
    if record.state == "done":
        return value
    if isinstance(value, Exception):
        raise value
    raise HandlerError(
        f"the step failed: {recorded.error}",
        where=f"step {recorded.key!r} of {line.where}",
        hint="To run it again: steps.resolve(key, retry=True)",
        code="step-failed",
        kind=record.error_kind,
        message=recorded.error,
    )


async def _wait_until_due(line: StepLine, record: StepRecord) -> None:
    """Wait for the time of the next attempt; no longer than the longest pause, whatever a clock that was set says."""
    if record.state == "waiting" and record.due is not None:
        left = record.due.timestamp() - line.agent.handle.now() / 1e9
        longest = 0.0 if record.ended is None else 1.01 * (record.due - record.ended).total_seconds()
        if left > 0:
            await Pause(min(left, longest))


def unknown_error(line: StepLine, record: StepRecord) -> OutcomeUnknownError:
    """Build the error for a step whose process died before it recorded an outcome."""
    return OutcomeUnknownError(
        f"attempt {record.attempts} began at {record.started.isoformat(timespec='seconds')} and did not record an "
        "outcome: its process died, or was interrupted; what it did is unknown",
        where=f"step {record.key!r} of {line.where}",
        hint="Find out what it did, and record it: steps.resolve(key, result=…), error=… or retry=True; "
        "or give a policy: on_unknown",
        code="step-outcome-unknown",
    )


@cache
def _host() -> str:
    return socket.gethostname()


def _function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, without those of functions that it is defined in; that of a partial is the one of
    its function."""
    while isinstance(function, partial):
        function = function.func
    if not getattr(function, "is_named", True):  # that of a script may not be
        return _UNNAMED
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    return name.rpartition("<locals>.")[2][:200]


def _takes_key(function: Callable[..., Any]) -> bool:
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):  # the usual case, which is fast
        code = function.__code__
        return "idempotency_key" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _under_way_error(where: str, seen: SeenStep) -> ConflictError:
    life = "" if seen.run is None else f"; if its process died, wait {seen.run.step.lease:g} s"
    return ConflictError("the step is being run", where=where, hint=f"Wait until it ends{life}", code="under-way")


async def resolve_step(line: StepLine, key: str, how: Literal["result", "error", "retry"], value: Any) -> StepRecord:
    """Record by hand what became of a step."""
    await line.require("write")
    key = line.check_key(key)
    seen = await find_step(line, key)
    where = f"step {key!r} of {line.where}"
    if seen.run is None and seen.recorded is None:
        raise NotFoundError("there is no such step", where=where, hint="See steps.list()")
    if seen.run is not None and not await seen.run.has_lapsed():
        raise _under_way_error(where, seen)
    run = seen.run or seen.stale

    async def conditions(again: bool) -> list[Change]:
        if again:
            now = await read_run(line, key)
            if not (now is None if run is None else run.is_same(now)):
                raise _under_way_error(where, seen)
        return run_absent(line, key) if run is None else run.removal()

    async def writes(view: ScopeView) -> list[KeyWrite]:
        stored = await recorded_in(view, key)
        step = run.step if run is not None and not run.has_ended(stored) else None if stored is None else stored.step
        if step is None or step.state == "done":
            raise ConflictError("the step is done, and its result is recorded", where=where, code="step-done")
        if how == "retry":
            again = replace(step, attempts=0)
            return ending(line, key, again, "waiting", view.now, resolved="by hand", due=view.now)
        if how == "error":
            failure = value if isinstance(value, Exception) else HandlerError(str(value), code="step-failed")
            return ending(line, key, step, "failed", view.now, error=failure, resolved="by hand")
        return ending(line, key, step, "done", view.now, value, resolved="by hand")

    await line.write(writes, conditions=conditions)
    found = await read_step(line, key)
    assert found is not None  # noqa: S101 - it was just written
    return found
