"""Workflows and steps: plain functions whose results are recorded, so that a run that is taken up goes on from there.

::

    @holdfast.step
    def charge(order: str) -> str: ...

    @holdfast.workflow
    def sell(order: str) -> str:
        receipt = charge(order)
        ...

The result of a step is recorded under its number in the run, or in the task of a graph, and its name; where the order
of steps may differ, it is given a key. The run has the claim of its thread, so a step needs no lease: its row is put
before the function is called, and replaced by one with the outcome, both on the run's condition.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import update_wrapper, wraps
from hashlib import blake2b
from typing import Annotated, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.agents.runs.outage import until_answered
from holdfast.agents.runs.record import NO_VALUE, RUNNING, StoredRun, steps_prefix
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.agents.steps.once import Retry
from holdfast.agents.storage.record import error_text
from holdfast.backends.interface import Change, Expect, Put, Row, Scan
from holdfast.backends.runtime.drivers import Pause, arun, run
from holdfast.backends.tables import REFS
from holdfast.codec import msgpack
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Preconditions
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import LEASE, Line
from holdfast.engine.run_rows import RECORD
from holdfast.engine.types import to_datetime
from holdfast.errors import (
    ConflictError,
    CorruptError,
    DeniedError,
    HandlerError,
    InvalidError,
    OutcomeUnknownError,
    UnsupportedError,
)

P = ParamSpec("P")
T = TypeVar("T")

OnUnknown: TypeAlias = Literal["raise", "retry"]
"""The policy for a step whose worker died in it: the run fails and the step is resolved by hand, or it is run again."""

StepState: TypeAlias = Literal["running", "done", "failed", "unknown"]

_MAX_KEY = 200
_STEPS_OF = str(steps_prefix(Line("", ""), "")[3])

_TURN = 0.001
"""The pause in seconds while another step of the run is being recorded."""

_NUMBERED = re.compile(r"(?:[^/]* [0-9a-f]{12}/)?[0-9]{6}(?= )")


class StoredStep(msgspec.Struct, frozen=True, array_like=True):
    """A step as it is stored."""

    key: str
    name: str
    digest: bytes
    state: StepState
    attempts: int
    started: int
    outcome: bytes = NO_VALUE
    error: str = ""
    ordinal: int = 0
    """Its place among those that have ended, from 1; 0 if it has not."""
    is_repeated: bool = False
    """Whether it was resolved: it is to be run again."""

    @classmethod
    def of(cls, row: Row) -> StoredStep:
        """Return the step in a row. `CorruptError` if there is none."""
        try:
            return msgspec.convert(msgpack.parse(unwrap(row.body).content), cls)
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a step of a run cannot be decoded: {error}", where=f"row {row.key!r}") from error


msgspec.msgpack.Decoder(StoredStep)  # type: ignore[stored-bytes]  # as in `record`: before threads do


class RunStep(msgspec.Struct, frozen=True):
    """A step of a run: `running`, `done` or `failed`; `unknown`, if its worker died while it ran: what it did is for a
    person to find out."""

    key: Annotated[str, Label("step")]
    name: str
    state: StepState
    attempts: int
    started: datetime
    ended: datetime | None = None
    error: str = ""
    result: Hidden[Any] = None


class RunSteps:
    """The steps of a run that this process has."""

    def __init__(self, table: RunTable, held: HeldRun) -> None:
        self._table = table
        self._codec = table.handle.codec
        self.held: Final = held
        self._known: dict[str, StoredStep] | None = None
        self._by_number: dict[str, str] = {}
        """The keys of steps that have none of their own, by their numbers."""
        self._counts = Counter[str]()
        self._executions: dict[str, object] = {}
        """What tells the execution of a task that is under way from one before it."""
        self._is_ending = threading.Lock()

    @property
    def table(self) -> RunTable:
        """The runs of the store."""
        return self._table

    def next_key(self, name: str) -> str:
        """Return the key of a step without one: its number in the run, or in the task of a graph, and its name.

        A graph continues from a checkpoint, and does not come to the steps before it again; but a task that is begun
        again has the same id, also in this process, where LangGraph retries a node, or a program goes on with a graph.
        """
        place, execution = current_task(), _current_execution()
        if place and self._executions.get(place) is not execution:
            self._executions[place] = execution
            self._counts[place] = 0
        self._counts[place] += 1
        return f"{place}{self._counts[place]:06d} {name}"[:_MAX_KEY]

    async def begin(
        self, key: str, name: str, digest: bytes, on_unknown: OnUnknown
    ) -> tuple[StoredStep | None, StoredStep]:
        """Return what is recorded of a step that has ended, or None; and the attempt that is begun otherwise."""
        if self._known is None:
            stored, known_steps = self.held.stored, dict[str, StoredStep]()
            if stored.attempts > 1:
                known_steps = await read_steps(self._table, self.held.line, stored.id)
            self._by_number = {number: each for each in known_steps if (number := _number(each))}
            if self._known is None:  # others of the run may be here, too
                self._known = known_steps
                self.held.ended_steps = max((each.ordinal for each in known_steps.values()), default=0)
        known = self._known.get(key)
        if known is None and (number := _number(key)) and (other := self._by_number.get(number)) not in (None, key):
            raise ConflictError(
                f"the run recorded the step {other!r} here: its code was changed",
                where=self._where(key),
                hint="Run the code that began it; or give steps that move a key, as in @step(key=…)",
                code="step-order",
            )
        if known is not None and known.digest != digest:
            raise ConflictError(
                "the step was begun with other arguments",
                where=self._where(key),
                hint="A workflow must do the same when it is repeated: what it reads outside of steps may have changed",
                code="step-arguments",
            )
        if known is not None and known.state != "running":
            return known, known
        if self.held.claim.is_lost:
            raise self.held.claim.lost()
        if self.held.must_stop():
            raise self.held.hand_over
        if known is not None and on_unknown == "raise" and not known.is_repeated:
            raise OutcomeUnknownError(
                "the worker died in the step, and what it did is unknown",
                where=self._where(key),
                hint="Find out, and record it: store.runs.resolve(run, step, result=…), or retry=True",
                code="step-outcome-unknown",
            )
        begun = StoredStep(key, name, digest, "running", 0, 0)
        if known is not None:
            begun = msgspec.structs.replace(begun, attempts=known.attempts, ordinal=known.ordinal)
        return None, await self.begin_again(begun)

    async def begin_again(self, step: StoredStep) -> StoredStep:
        """Return the next attempt at a step, which is known to have ended without a result, or to be repeated."""
        now = self._table.context.clock()
        begun = msgspec.structs.replace(step, attempts=step.attempts + 1, started=step.started or now)
        await self._put(begun, self.held.claim.also)  # what was begun before the submitter was frozen has a result
        return begun

    async def end(self, begun: StoredStep, result: Any) -> None:
        """Record the result of a step. If that cannot be stored, the step has failed, and an error is raised."""
        try:
            packed = await protected(self._table, self.held.line, self._codec.pack(result), "result")
        except (InvalidError, UnsupportedError, DeniedError) as error:  # the value; the step was run all the same
            failure = InvalidError(
                f"the step was run, and its result cannot be recorded: {error.what}",
                where=self._where(begun.key),
                hint="Return plain values; it is recorded as failed, and not run again",
                code="step-result",
            )
            await self.fail(begun, failure)
            raise failure from error
        await self._end(msgspec.structs.replace(begun, state="done", outcome=packed))

    async def fail(self, begun: StoredStep, error: Exception) -> None:
        """Record the error of a step."""
        text = error_text(error)
        if (protection := self._table.handle.engine.protection) is not None:
            text = protection.redact_text(text)
        try:
            packed = await protected(self._table, self.held.line, self._codec.pack(error), "error")
        except (InvalidError, UnsupportedError, DeniedError):  # its text is recorded
            packed = NO_VALUE
        await self._end(msgspec.structs.replace(begun, state="failed", error=text, outcome=packed))

    async def _end(self, ended: StoredStep) -> None:
        while not self._is_ending.acquire(blocking=False):  # those who follow the run see them in this order
            await Pause(_TURN)
        try:
            ordinal = (self.held.ended_steps or 0) + 1
            await self._put(msgspec.structs.replace(ended, ordinal=ordinal))
            self.held.ended_steps = ordinal
        finally:
            self._is_ending.release()

    async def _put(self, step: StoredStep, also: Preconditions | None = None) -> None:
        """Store a step, on further conditions. The store is asked until it answers, since what the function did is
        known only here."""
        claim = self.held.claim
        row = step_row(self.held.line, self.held.stored.id, step, self._table.context.clock())
        batch: list[Change] = [claim.condition(), *(await also(False) if also else ()), Put(REFS, row)]
        if await until_answered(lambda: self._table.context.apply(batch), claim.life) is not None:
            if also is not None:
                await also(True)
            raise claim.lost()
        if self._known is not None:
            self._known[step.key] = step

    def outcome(self, step: StoredStep) -> Any:
        """Return the recorded result of a step, or raise its recorded error."""
        if step.state == "failed":
            error = self._codec.unpack(step.outcome) if step.outcome else None
            if isinstance(error, Exception):
                raise error
            raise HandlerError(f"the step failed: {step.error}", where=self._where(step.key), code="step-failed")
        return self._codec.unpack(step.outcome)

    def digest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the digest of the arguments of a step."""
        packed = self._codec.pack([list(args), dict(sorted(kwargs.items()))])
        return blake2b(packed, digest_size=16).digest()

    def _where(self, key: str) -> str:
        return f"step {key!r} of run {self.held.stored.id}"


async def stored_values(engine: Engine, line: Line) -> AsyncIterator[tuple[str, str, bytes]]:
    """Yield the packed values of a thread's runs and their steps: the run or step, what it is, and the value."""
    (rows,) = await engine.context.backend.read([Scan(REFS, (*line, LEASE))])
    for row in rows:
        values: list[tuple[str, bytes]] = []
        name = error = ""
        if row.key[3] == RECORD:
            found = StoredRun.of(row)
            name, error, values = f"run {found.id}", found.error, [("input", found.input), ("result", found.result)]
        elif str(row.key[3]).startswith(_STEPS_OF):
            step = StoredStep.of(row)
            name, error, values = f"step {step.key}", step.error, [("result", step.outcome)]
        values += [("error", engine.context.codec.pack(error))] if error else []
        for what, packed in values:
            if packed:
                yield name, what, packed


async def protected(table: RunTable, line: Line, packed: bytes, what: str) -> bytes:
    """Return a packed result to store in place of one. `DeniedError` if a policy for sensitive data refuses it."""
    protection = table.handle.engine.protection
    if protection is None or not packed:
        return packed
    (row,) = await protection.protect_writes(line, [PendingWriteRow("", "", 0, what, packed)])
    return row.packed


def _number(key: str) -> str:
    """Return the number of a step without a key of its own, with the task of a graph that it is in; else nothing."""
    found = _NUMBERED.match(key)
    return "" if found is None else found[0]


def _config() -> Mapping[str, Any]:
    """Return the config of the task of a graph in which code is executed; nothing outside of one."""
    module = sys.modules.get("langchain_core.runnables.config")
    return (None if module is None else module.var_child_runnable_config.get()) or {}


def _current_execution() -> object:
    """Return what LangGraph makes anew for each execution of a task; None outside of one."""
    return (_config().get("configurable") or {}).get("__pregel_scratchpad")


def current_task() -> str:
    """Return what names the task of a graph in which code is executed; nothing outside of one."""
    place = str((_config().get("configurable") or {}).get("checkpoint_ns") or "")
    node = place.rpartition("|")[2].partition(":")[0].replace("/", " ")[:60]
    return f"{node} {blake2b(place.encode(), digest_size=6).hexdigest()}/" if place else ""


def step_row(line: Line, id: str, step: StoredStep, now: int) -> Row:
    """Return the row of a step."""
    name = blake2b(step.key.encode(), digest_size=12).hexdigest()
    body = wrap(msgspec.msgpack.encode(step), codec=BodyKind.RAW)
    return Row((*steps_prefix(line, id), name), (f"{step.state} {step.attempts} {step.ordinal}", now), body)


async def step_rows(table: RunTable, line: Line, id: str) -> list[tuple[StoredStep, Row]]:
    """Return the steps of a run, in the order in which they were begun."""
    (rows,) = await table.context.backend.read([Scan(REFS, steps_prefix(line, id))])
    found = [(StoredStep.of(row), row) for row in rows]
    return sorted(found, key=lambda each: (each[0].started, each[0].key))


async def read_steps(table: RunTable, line: Line, id: str) -> dict[str, StoredStep]:
    """Return the steps of a run by their keys."""
    return {step.key: step for step, _ in await step_rows(table, line, id)}


async def list_steps(table: RunTable, id: str) -> list[RunStep]:
    """Return the steps of a run, for people."""
    stored = await table.get(id)
    codec = table.handle.codec
    return [
        RunStep(
            step.key,
            step.name,
            "unknown" if step.state == "running" and stored.state != RUNNING and not step.is_repeated else step.state,
            step.attempts,
            to_datetime(step.started),
            None if step.state == "running" else to_datetime(int(row.columns[1])),
            step.error,
            codec.unpack(step.outcome) if step.outcome and step.state == "done" else None,
        )
        for step, row in await step_rows(table, stored.line(table.tenant), id)
    ]


async def resolve_step(table: RunTable, id: str, key: str, packed: bytes | None) -> None:
    """Record the result of a step whose outcome is unknown, or that failed; without one, it is run again."""
    stored = await table.get(id)
    line = stored.line(table.tenant)
    found = {step.key: (step, row) for step, row in await step_rows(table, line, id)}
    if key not in found or found[key][0].state == "done" or stored.state == "running":
        raise ConflictError(
            "the step is done, unknown, or being run",
            where=f"step {key!r} of run {id}",
            hint="See store.runs.steps(run)",
            code="run-state",
        )
    step, row = found[key]
    if packed is None:
        changed = msgspec.structs.replace(step, state="running", outcome=NO_VALUE, error="", is_repeated=True)
    else:
        ordinal = step.ordinal or 1 + max(each.ordinal for each, _ in found.values())
        changed = msgspec.structs.replace(step, state="done", outcome=packed, error="", ordinal=ordinal)
    batch = [Expect(REFS, row.key, row.columns), stored.unchanged(table.tenant)]
    put = Put(REFS, step_row(line, id, changed, table.context.clock()))
    if await table.context.backend.apply([*batch, put]) is not None:
        raise ConflictError("others changed the run at the same time", where=f"run {id}", hint="Look again")


# Functions --------------------------------------------------------------------------------------------------------

current_steps: ContextVar[RunSteps | Literal[False] | None] = ContextVar("holdfast_run", default=None)
"""The steps of the run in which code is executed; false in a step."""


async def _find_steps() -> RunSteps | None:
    """Return the steps of the run in which code is executed, which may be one that a saver began for a program; None
    outside of one, and in another step."""
    steps = current_steps.get()
    if steps is not None:
        return steps or None
    config = _config()
    find = getattr((config.get("configurable") or {}).get("__pregel_checkpointer"), "_steps_of", None)
    found: RunSteps | None = None if find is None else await find(config)
    return found


class StepFunction:
    """The options of a function under `step`, and how it is called in a run."""

    def __init__(
        self, function: Callable[..., Any], key: str | Callable[..., str] | None, retry: int | Retry, unknown: OnUnknown
    ) -> None:
        self.function = function
        self.name = function.__name__
        self._key = key
        self._retry = Retry(retry) if isinstance(retry, int) else retry
        self._unknown = unknown

    def _start(self, steps: RunSteps, args: Any, kwargs: Any) -> tuple[str, bytes]:
        if self._key is None:
            key = steps.next_key(self.name)
        else:
            key = self._key(*args, **kwargs) if callable(self._key) else self._key
            given: object = key
            if not isinstance(given, str) or not 0 < len(given) <= _MAX_KEY:
                raise InvalidError(f"the key of a step is a text of 1 to {_MAX_KEY} characters", where=repr(key)[:80])
            key = f"{self.name}/{key}"
        return key, steps.digest(args, kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function once in this run; outside of a run, or in another step, just call it."""
        steps = run(_find_steps())
        if steps is None:
            return self.function(*args, **kwargs)
        key, digest = self._start(steps, args, kwargs)
        recorded, begun = run(steps.begin(key, self.name, digest, self._unknown))
        if recorded is not None:
            return steps.outcome(recorded)
        while True:
            token = current_steps.set(False)
            try:
                result = self.function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - recorded, and raised unless it is tried again
                failure = error
            else:
                run(steps.end(begun, result))
                return result
            finally:
                current_steps.reset(token)
            begun = run(self._again(steps, begun, failure))

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call the coroutine function likewise."""
        steps = await arun(_find_steps())
        if steps is None:
            return await self.function(*args, **kwargs)
        key, digest = self._start(steps, args, kwargs)
        recorded, begun = await arun(steps.begin(key, self.name, digest, self._unknown))
        if recorded is not None:
            return steps.outcome(recorded)
        while True:
            token = current_steps.set(False)
            try:
                result = await self.function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - recorded, and raised unless it is tried again
                failure = error
            else:
                await arun(steps.end(begun, result))
                return result
            finally:
                current_steps.reset(token)
            begun = await arun(self._again(steps, begun, failure))

    async def _again(self, steps: RunSteps, begun: StoredStep, error: Exception) -> StoredStep:
        """Begin the next attempt after a pause. If there is none, record the error and raise it."""
        if isinstance(error, OutcomeUnknownError):
            steps.held.is_unknown = True
            raise error  # the function itself does not know: the step stays as one whose outcome is unknown
        if begun.attempts > self._retry.count:
            await steps.fail(begun, error)
            raise error
        await Pause(self._retry.pause_after(begun.attempts))
        return await steps.begin_again(begun)


@overload
def step(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def step(
    *, key: str | Callable[..., str] | None = None, retry: int | Retry = 0, on_unknown: OnUnknown = "raise"
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def step(
    function: Any = None,
    /,
    *,
    key: str | Callable[..., str] | None = None,
    retry: int | Retry = 0,
    on_unknown: OnUnknown = "raise",
) -> Any:
    """Decorate a function whose result is recorded in the run that calls it: when the run is taken up by another
    process, the result is returned, and the function is not called again.

    Its error is recorded, too, after `retry` further attempts. Steps are told apart by their order, which must be the
    same each time; those whose order may differ, such as in nodes of a graph, get a `key`, or a function of their
    arguments that returns one. If the worker died in the step, what it did is unknown: the run fails, and
    `store.runs.resolve` says what became of it; with `on_unknown="retry"` the step is run again. Outside of a run, the
    function is just called.
    """

    def decorate(decorated: Any) -> Any:
        found = StepFunction(decorated, key, retry, on_unknown)
        if inspect.iscoroutinefunction(decorated):

            @wraps(decorated)
            async def acall(*args: Any, **kwargs: Any) -> Any:
                return await found.acall(*args, **kwargs)

            return acall

        @wraps(decorated)
        def call(*args: Any, **kwargs: Any) -> Any:
            return found.call(*args, **kwargs)

        return call

    return decorate if function is None else decorate(function)


class Workflow(Generic[P, T]):
    """A function that workers run: `store.runs.submit(None, […], graph=…)`. Called, it just runs here."""

    def __init__(self, function: Callable[P, T], name: str) -> None:
        self.function = function
        self.name = name
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)


@overload
def workflow(function: Callable[P, T], /) -> Workflow[P, T]: ...
@overload
def workflow(*, name: str) -> Callable[[Callable[P, T]], Workflow[P, T]]: ...
def workflow(function: Any = None, /, *, name: str = "") -> Any:
    """Decorate a function that workers run to its end, whoever of them dies:
    `store.runs.submit(None, ["order-42"], graph=sell)`.

    It must do the same when it is run again; what may differ, and what has effects outside, is in functions under
    `step`, whose results are recorded.
    """

    def decorate(decorated: Callable[P, T]) -> Workflow[P, T]:
        return Workflow(decorated, name or decorated.__name__)

    return decorate if function is None else decorate(function)
