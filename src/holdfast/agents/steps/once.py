"""Running a durable step: once, whoever asks for it, and however often.

The process that runs a step has its lease, and has recorded that it is running before it calls the function. So a
record that says `running`, with a lease that is free, is one of an attempt whose process died: the function may have
been called, or not. That is not guessed, but resolved by a policy.

The lease only says who may begin. What an attempt may record is decided by its token in the record: a process that was
presumed dead still records its result, unless another has resolved the step meanwhile.
"""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.steps.records import (
    LEASE_LOST,
    RETRY,
    StepLine,
    StepRecord,
    deleted_error,
    digest_arguments,
    lost_error,
)
from holdfast.agents.storage.record import error_text
from holdfast.backends.runtime.drivers import Pause
from holdfast.engine import validation
from holdfast.engine.leases import Lease
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
from holdfast.state.sharing.work_queue import Heartbeat
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_seconds

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister

_log = logging.getLogger("holdfast.steps")

LEASE = 15.0
"""For how many seconds without a sign of life a process that runs a step is believed to live, by default."""

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
            self.retry = Retry(self.retry)
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
    digest: str = field(default="", init=False)

    async def run(self) -> Any:
        """Return the recorded result, or run the step and record it; raises its recorded error likewise."""
        self._check()
        await self.line.require("write")
        await self.line.require("read")  # it returns what is recorded
        watch: WatchOperations | None = None
        while True:
            record = await read_step(self.line, self.key)
            if record is None:
                await self._check_unused()
            else:
                self._require_same(record)
                if record.state in ("done", "failed"):
                    return await outcome_of(self.line, record)
                await _wait_until_due(self.line, record)
            life = parse_seconds(self.options.lease, "lease") if record is None else record.lease
            lease = self.line.lease(self.key, life)
            try:
                await self._take(lease, life, record)
            except ConflictError:
                if watch is None:
                    watch = self.line.watch(f"step/{self.key}")
                    await WatchOperations.start(watch)  # and look again: it may have ended just now
                else:
                    await WatchOperations.poll(watch, min(life / 4, 1.0))  # its process may die without a change
                continue
            try:
                ended, value = await self._run_leased(lease)
            finally:
                with suppress(TransientError, UnavailableError):  # it expires anyway, and the outcome matters more
                    await lease.release()
            if ended:
                return value

    async def _take(self, lease: Lease, life: float, record: StepRecord | None) -> None:
        """Acquire the lease. If the outcome of an attempt is unknown and nobody is to resolve that, leave the lease to
        the process, which may yet record it, and raise the error."""
        if record is None or record.state != "running" or self.options.on_unknown != "raise":
            await lease.acquire(life * _OBSERVED)
            return
        await lease.require_free(life * _OBSERVED)
        latest = await read_step(self.line, self.key)  # it may have ended, or been begun again, before it was free
        if latest == record:
            raise unknown_error(self.line, record)
        raise ConflictError("the step was changed by another process", where=self._where)

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

    def _require_same(self, record: StepRecord) -> None:
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
            recorded = await self.line.read(lambda view: view.keys("step/"))
            lifecycle.recorded_steps = frozenset(recorded) - lifecycle.reached_steps
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

    # Under the lease --------------------------------------------------------------------------------------------

    async def _run_leased(self, lease: Lease) -> tuple[bool, Any]:
        """Run an attempt. Returns whether the step ended, and its result."""
        record = await read_step(self.line, self.key)
        if record is not None and record.state in ("done", "failed"):
            return False, None  # another process was first: its result is read as at any other time
        resolved = ""
        if record is not None and record.state == "running":
            decision = await self._resolve_unknown(record)
            if decision is not RETRY:
                await self._record(lease, "done", result=decision, resolved="decided", token=record.token)
                return True, decision
            resolved = "retry"
        key = record.idempotency_key if record is not None else secrets.token_hex(16)
        if not await self._begin(lease, record, key, resolved):
            return False, None
        return await self._attempt(lease, key)

    async def _resolve_unknown(self, record: StepRecord) -> Any:
        policy = self.options.on_unknown
        if policy == "raise":
            raise unknown_error(self.line, record)
        return RETRY if policy == "retry" or not callable(policy) else await invoke(policy, record)

    async def _begin(self, lease: Lease, before: StepRecord | None, idempotency_key: str, resolved: str) -> bool:
        """Record that an attempt begins. Returns False if the step is not as it was before."""
        begun = False

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal begun
            stored = await _stored(view, self.key)
            own = stored is not None and stored.get("token") == lease.token  # and only the answer was lost
            begun = own or (None if stored is None else StepRecord.of(self.key, stored)) == before
            if own or not begun:
                return []
            entry = {
                "state": "running",
                "attempts": (0 if stored is None else stored["attempts"]) + 1,
                "function": _function_name(self.function),
                "idempotency_key": idempotency_key,
                "started": view.now,
                "agent_version": self.agent_version,
                "by": f"{socket.gethostname()} {os.getpid()}",
                "lease": parse_seconds(self.options.lease, "lease"),
                "digest": self.digest,
                "resolved": resolved or ("" if stored is None else stored.get("resolved", "")),
                "token": lease.token,
            }
            return [self.line.put(f"step/{self.key}", entry)]

        await self.line.write(writes, lease)
        return begun

    async def _attempt(self, lease: Lease, idempotency_key: str) -> tuple[bool, Any]:
        retry = self.options.retry
        assert isinstance(retry, Retry)  # noqa: S101 - `check` made it one
        returned: list[Any] = []
        try:
            value = await self._call(lease, idempotency_key, returned)
        except OutcomeUnknownError:
            raise  # the function itself does not know: the step stays as one whose outcome is unknown
        except GeneratorExit:
            raise
        except Exception as error:
            record = await read_step(self.line, self.key)
            attempts = 1 if record is None else record.attempts
            if isinstance(error, self.options.final) or attempts > retry.count:
                await self._record(lease, "failed", error=error)
                raise
            pause = retry.pause_after(attempts) * (0.75 + 0.5 * rng.random())
            await self._record(lease, "waiting", error=error, due=self.line.agent.handle.now() + int(pause * 1e9))
            return False, None
        except BaseException:
            for value in returned:  # it was cancelled just after the function had ended
                with suppress(Exception):
                    await self._record(lease, "done", result=value)
            raise
        try:
            await self._record(lease, "done", result=value)
        except (InvalidError, UnsupportedError, DeniedError) as error:  # the value; the step was run all the same
            failure = InvalidError(
                f"the step was run, and its result cannot be recorded: {error.what}",
                where=self._where,
                hint="Return plain values; it is recorded as failed, and not run again",
                code="step-result",
            )
            await self._record(lease, "failed", error=failure)
            raise failure from error
        return True, value

    async def _call(self, lease: Lease, idempotency_key: str, returned: list[Any]) -> Any:
        """Call the function, and note also in a list what it returned."""
        kwargs = dict(self.kwargs)
        if _takes_key(self.function) and "idempotency_key" not in kwargs:
            kwargs["idempotency_key"] = idempotency_key

        async def call_async(_: object) -> Any:
            result = self.function(*self.args, **kwargs)
            returned.append(await result if inspect.isawaitable(result) else result)
            return returned[0]

        def call(_: object) -> Any:
            returned.append(self.function(*self.args, **kwargs))
            return returned[0]

        token = _active.set(_active.get() | {(self.line.line, self.key)})
        try:
            with Heartbeat(self.options.lease) as heartbeat:
                return await heartbeat.call(call_async if self.is_async else call, None, lease.renew)
        finally:
            _active.reset(token)

    async def _record(
        self,
        lease: Lease,
        state: str,
        *,
        result: Any = None,
        error: Exception | None = None,
        due: int = 0,
        resolved: str = "",
        token: str | None = None,
    ) -> None:
        """Record how an attempt ended, unless another process has resolved it: this one's, or the one with a token. It
        is attempted for a while, and when the task is cancelled, since the result is nowhere else."""
        expected = lease.token if token is None else token

        async def writes(view: ScopeView) -> list[KeyWrite]:
            stored = await _stored(view, self.key)
            current = None if stored is None else (stored.get("token", ""), stored["state"])
            if current == (lease.token, state):
                return []  # an earlier attempt recorded it, and only the answer was lost
            if stored is None:
                raise deleted_error(self._where)
            if current != (expected, "running"):
                raise lost_error(self._where)
            return ending(
                self.line, self.key, {**stored, "token": lease.token}, state, view.now, result, error, due, resolved
            )

        for number in range(1, _RECORD_ATTEMPTS + 1):
            try:
                await self.line.write(writes)
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
            except (Exception, GeneratorExit):
                raise
            except BaseException:
                with suppress(Exception):  # the caller must see the interruption
                    await self.line.write(writes)
                raise


def ending(
    line: StepLine,
    key: str,
    stored: dict[str, Any],
    state: str,
    now: int,
    result: Any = None,
    error: Exception | None = None,
    due: int = 0,
    resolved: str = "",
) -> list[KeyWrite]:
    """Return the changes that end an attempt."""
    entry = {**stored, "state": state, "ended": now, "due": due, "resolved": resolved or stored.get("resolved", "")}
    entry["error"] = "" if error is None else error_text(error, _MAX_ERROR)
    entry["error_kind"] = "" if error is None else type(error).__name__
    writes = [line.put(f"step/{key}", entry, "ok" if error is None else "error")]
    if state == "done":
        writes.append(line.put(f"result/{key}", result))
    elif state == "failed" and error is not None:
        try:
            writes.append(line.put(f"result/{key}", error))
        except HoldfastError:  # its text is recorded
            writes.append(line.put(f"result/{key}", None))
    return writes


async def read_step(line: StepLine, key: str) -> StepRecord | None:
    """Return the record of a step."""
    stored = await line.read(lambda view: _stored(view, key))
    return None if stored is None else StepRecord.of(key, stored)


async def _stored(view: ScopeView, key: str) -> dict[str, Any] | None:
    item = await view.item(f"step/{key}")
    return None if item is None else dict(item.value)


async def outcome_of(line: StepLine, record: StepRecord) -> Any:
    """Return the recorded result of a step, or raise its recorded error."""
    item = await line.read(lambda view: view.item(f"result/{record.key}"))
    value = None if item is None else item.value
    if record.state == "done":
        return value
    if isinstance(value, Exception):
        raise value
    raise HandlerError(
        f"the step failed: {record.error}",
        where=f"step {record.key!r} of {line.where}",
        hint="To run it again: steps.resolve(key, retry=True)",
        code="step-failed",
        kind=record.error_kind,
        message=record.error,
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
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


async def resolve_step(line: StepLine, key: str, how: Literal["result", "error", "retry"], value: Any) -> StepRecord:
    """Record by hand what became of a step."""
    await line.require("write")
    key = line.check_key(key)
    record = await read_step(line, key)
    if record is None:
        raise NotFoundError("there is no such step", where=f"step {key!r} of {line.where}", hint="See steps.list()")
    lease = line.lease(key, record.lease)
    try:
        await lease.acquire()
    except ConflictError:
        raise ConflictError(
            "the step is being run",
            where=f"step {key!r} of {line.where}",
            hint=f"Wait until it ends; if its process died, wait {record.lease:g} s",
            code="under-way",
        ) from None

    async def writes(view: ScopeView) -> list[KeyWrite]:
        stored = await _stored(view, key)
        if stored is None or stored["state"] == "done":
            raise ConflictError(
                "the step is done, and its result is recorded", where=f"step {key!r} of {line.where}", code="step-done"
            )
        stored["token"] = lease.token
        if how == "retry":
            stored["attempts"] = 0
            return ending(line, key, stored, "waiting", view.now, resolved="by hand", due=view.now)
        if how == "error":
            failure = value if isinstance(value, Exception) else HandlerError(str(value), code="step-failed")
            return ending(line, key, stored, "failed", view.now, error=failure, resolved="by hand")
        return ending(line, key, stored, "done", view.now, value, resolved="by hand")

    try:
        await line.write(writes, lease)
    finally:
        await lease.release()
    found = await read_step(line, key)
    assert found is not None  # noqa: S101 - it was just written
    return found
