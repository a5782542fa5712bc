"""The records of an agent's durable steps: where they are, and what they look like.

A line of shared state has them, under these keys: `step/<key>` for steps, and `result/<key>` for large results,
`version/<change>` for versions of the code, `signal…/…`, `wait/…`, `timer…/…` and `sleep/…` for signals and timers. A
step that is being run has a row beside the line (`runs`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast._fields import Hidden, Internal, Label
from holdfast._lazy import load
from holdfast._structs import convert
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Change, Create, Expect, Get
from holdfast.backends.tables import LINES, STEPS
from holdfast.codec import msgpack
from holdfast.engine.append_tip import tip_to_append
from holdfast.engine.copy_mark import creation_conditions
from holdfast.engine.guard import Action, Permit, Preconditions, current_authority
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.row_format import Line, LineInfo, StepRef, info_row
from holdfast.engine.state_loader import weigh
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, read_line_at, read_scope
from holdfast.state.sharing.resource import SharedResource, find_resource
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite, commit

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister

T = TypeVar("T")

STEP, SIGNAL = "step", "signal"
"""The keys of the scope that decides who may use the steps of an agent: `signal` suffices to send signals."""

StepState: TypeAlias = Literal["running", "waiting", "done", "failed"]

MAX_KEY = 200

_LARGE = 4096
"""From how many bytes on a step has its result in a key of its own, so that a list of steps does not read it."""

_SHORT_WAIT = 10**9
"""For how many nanoseconds an agent waits at most without handing its run over."""

LEASE = 15.0
"""For how many seconds without a sign of life a process that runs a step is believed to live, by default."""

LEASE_LOST = "lease-lost"
"""The code of the error for a process that was presumed dead."""


class _Retry:
    """The type of `RETRY`."""

    def __repr__(self) -> str:
        return "RETRY"


RETRY = _Retry()
"""The result of a function that decides about an unknown outcome, to have the step run again."""


class StoredStep(msgspec.Struct, frozen=True, array_like=True):
    """A step as it is stored: a list of these fields, without those at its end that have their defaults."""

    state: StepState
    attempts: int
    function: str
    idempotency_key: bytes
    digest: bytes
    """The digest of its arguments."""
    started: int
    by: str
    ended: int = 0
    agent_version: int = 0
    resolved: str = ""
    error_kind: str = ""
    due: int = 0
    lease: float = LEASE

    def pack(self) -> bytes:
        """Return the packed list. It is never text, so that policies for sensitive data leave it alone."""
        found = list(msgspec.structs.astuple(self))
        while found[-1] == _DEFAULTS[len(found) - 1]:
            del found[-1]
        return msgspec.msgpack.encode(found)


_DEFAULTS = [*([msgspec.NODEFAULT] * 7), *StoredStep.__struct_defaults__]


class StepRecord(msgspec.Struct, frozen=True):
    """A durable step of an agent.

    The state is `running`, `waiting` for its next attempt, `done` or `failed`. If no process has the lease of one that
    is `running`, its outcome is unknown. A function that decides about it returns `RETRY` to have the step run again.
    """

    RETRY = RETRY

    key: Annotated[str, Label("step")]
    state: StepState
    attempts: int
    function: str
    """The name of the function; for people."""
    idempotency_key: Hidden[str]
    """Shared by all attempts, and different for all other steps."""
    started: datetime
    ended: Hidden[datetime | None] = None
    agent_version: Hidden[int] = 0
    """The version of the agent when the last attempt began."""
    error: str = ""
    error_kind: Hidden[str] = ""
    resolved: str = ""
    """How an unknown outcome was resolved: `retry`, `decided` or `by hand`."""
    by: Hidden[str] = ""
    """The process of the last attempt."""
    due: Hidden[datetime | None] = None
    """When a step that waits is run again."""
    lease: Hidden[float] = 0.0
    """For how many seconds without a sign of life its process is believed to live."""
    digest: Internal[str] = ""
    """The digest of its arguments."""

    @classmethod
    def of(cls, key: str, stored: StoredStep, error: str = "") -> StepRecord:
        """Return the record of a step that is stored under a key."""
        return cls(
            key,
            stored.state,
            stored.attempts,
            stored.function,
            stored.idempotency_key.hex(),
            to_datetime(stored.started),
            to_datetime(stored.ended) if stored.ended else None,
            stored.agent_version,
            error,
            stored.error_kind,
            stored.resolved,
            stored.by,
            to_datetime(stored.due) if stored.due else None,
            stored.lease,
            stored.digest.hex(),
        )


class RecordedStep(NamedTuple):
    """A step that has ended, or waits, and what came of it."""

    key: str
    step: StoredStep
    error: str = ""
    """The text of an error."""
    outcome: Any = MISSING
    """The result, or the error. `MISSING` if it is not stored, or in a key of its own, since it is large."""

    @classmethod
    def of(cls, key: str, value: Any) -> RecordedStep:
        """Return the step in the value of a key of the line. `CorruptError` if it is another value."""
        try:
            packed, *rest = value
            return cls(key.partition("/")[2], convert(msgpack.parse(packed), StoredStep), *rest)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise CorruptError(f"a durable step cannot be decoded: {error}", where=f"key {key!r}") from error

    @property
    def record(self) -> StepRecord:
        """The public form."""
        return StepRecord.of(self.key, self.step, self.error)


class LinePlace(NamedTuple):
    """The end of the line of steps, as far as it is known: its row, and its last step; None if there are none."""

    info: LineInfo | None
    point: StepRef | None


class StepLine:
    """The line of an agent's durable steps, as one identity may use it."""

    def __init__(self, line: AgentLine, owner: AgentPersister | None = None) -> None:
        """`owner` is the persister of a live agent, which writes only while that agent was not deleted."""
        self.agent = line
        self._owner = owner
        self.resource: SharedResource = find_resource(line.handle, "steps", "main", line.scope)

    @cached_property
    def handle(self) -> StoreHandle:
        """The handle for steps: writing them takes the right to."""
        return self.resource.handle_for(STEP)

    @cached_property
    def line(self) -> Line:
        """The line itself."""
        return self.agent.handle.line(self.resource.name)

    @property
    def where(self) -> str:
        """The agent's name for errors."""
        return self.agent.where

    async def require(self, action: Action, key: str = STEP) -> Permit:
        """Raise `DeniedError` unless the caller may do this."""
        return await self.resource.require(action, key)

    async def read(self, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read the state of the line. The caller has checked the right to."""
        return await read_scope(self.agent.handle, self.resource.name, look)

    async def place(self, *, stored: bool = False) -> LinePlace:
        """Return the end of the line: that in memory, if there is one, or the `stored` one."""
        lines = self.agent.handle.engine.lines
        tip = await lines.load_tip(self.line) if stored else await tip_to_append(lines, self.line)
        if tip is None:
            return LinePlace(None, None)
        point = tip.point if tip.is_only_branch else await lines.latest_step(self.line)
        return LinePlace(tip.info, point)

    async def is_current(self, place: LinePlace) -> bool:
        """Return whether a place is still the end of the line. It takes one read."""
        tip = await self.agent.handle.engine.lines.revalidate_tip(self.line)
        return tip is not None and tip.is_only_branch and (tip.info, tip.point) == place

    async def unchanged_since(self, place: LinePlace, again: bool) -> list[Change]:
        """Return the conditions that nothing was recorded since; they create the line, if there was none."""
        engine = self.agent.handle.engine
        if place.info is None:
            free = await creation_conditions(engine.context, self.line, check=again)
            return [*free, Create(LINES, info_row(self.line, engine.lines.new_info()))]
        branch, seq = (0, -1) if place.point is None else place.point[:2]
        return [
            engine.lines.line_unchanged(self.line, place.info),
            Expect(STEPS, (*self.line, branch, seq + 1), None),
        ]

    async def read_at(self, place: LinePlace, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read the state of the line at a place. `NotFoundError` if that is gone. The caller has checked the right."""
        return await read_line_at(self.agent.handle, self.line, place.point, look)

    async def write(
        self,
        writes: Callable[[ScopeView], Awaitable[Sequence[KeyWrite]]],
        key: str = STEP,
        attached: Callable[[], Sequence[Change]] | None = None,
        conditions: Preconditions | None = None,
    ) -> None:
        """Change keys, with changes of other rows, on conditions. A function that returns no changes ends without a
        step; it is called before the ones for other rows and for conditions, at each attempt."""

        owned = self._owner is not None and self._owner.point is not None

        async def require_all(again: bool) -> list[Change]:
            exists = await self.agent_exists(again) if owned else []
            others = [] if conditions is None else await conditions(again)
            return [*exists, *others, *(() if attached is None else attached())]

        async def require_some(view: ScopeView) -> Sequence[KeyWrite]:
            made = await writes(view)
            if not made:
                raise NothingToWrite("there is nothing to write")
            return made

        handle = self.handle if key == STEP else self.resource.handle_for(key)
        try:
            await commit(
                handle,
                {self.resource.name: require_some},
                preconditions=require_all if owned or conditions is not None or attached is not None else None,
            )
        except NothingToWrite:
            return

    async def require_agent(self) -> None:
        """Raise `NotFoundError` if the agent of a live handle was deleted."""
        await self.agent_exists(True)

    async def agent_exists(self, again: bool) -> list[Change]:
        """Return the condition that the agent of a live handle exists: that which it was saved or loaded as, and not
        another of its id. `NotFoundError` if it does not. None for an agent that was never saved."""
        owner, line = self._owner, self.agent.line
        if owner is None or owner.point is None:
            return []
        point, known = owner.point, owner.lifecycle.line_columns
        if again or known is None:
            place = (*line, point.branch, point.seq)
            queries = [Get(LINES, [tuple(line)]), Get(STEPS, [place])]
            lines, steps = await self.agent.handle.engine.context.backend.read(queries)
            if not lines or not steps or StepRef.of(steps[0]).hash != point.hash:
                raise deleted_error(self.where)
            known = owner.lifecycle.line_columns = lines[0].columns
        return [Expect(LINES, tuple(line), known)]

    async def hand_over(self, until: int | None, has_ended: Callable[[ScopeView], Awaitable[bool]]) -> None:
        """Hand the run over that a worker does of the agent, while that waits until a time, or for what is recorded
        here: raises what ends the attempt. Returns where the agent has to wait itself."""
        claim = current_authority().claim
        if claim is None or claim.attempt is None:
            return
        if until is not None and until - self.agent.handle.now() <= _SHORT_WAIT:
            return
        place = await self.place(stored=True)
        if not await self.read_at(place, has_ended):
            claim.attempt.wait(self.agent.line, until, await self.unchanged_since(place, False))

    async def run_changes(self, again: bool) -> list[Change]:  # noqa: ARG002 - it reads what is stored, each time
        """Return the changes that have a run of the agent go on, with something that it may wait for."""
        changes: list[Change] = await load("holdfast.agents.runs.waits", "changes_on_event")(
            self.agent.handle, self.agent.line
        )
        return changes

    def put(self, key: str, value: Any, outcome: str = "ok") -> KeyWrite:
        """Return the change that sets a key. The outcome is that of what the value records."""
        return KeyWrite(key, packed=self._pack(key, value), outcome=outcome)

    def put_step(self, key: str, step: StoredStep, error: str = "", outcome: Any = MISSING) -> list[KeyWrite]:
        """Return the changes that record a step: the text of an error, and the result or error that it ended with.
        Whole, so that the old value is not read."""
        name, values = f"step/{key}", [step.pack(), error, outcome]
        packed = self._pack(name, values if outcome is not MISSING else values[: 2 if error else 1])
        write = KeyWrite(name, packed=packed, outcome="error" if step.error_kind else "ok", whole=True)
        if outcome is MISSING or weigh(packed) <= _LARGE:
            return [write]
        write.packed = self._pack(name, values[:2])
        return [write, self.put(f"result/{key}", outcome)]

    def _pack(self, key: str, value: Any) -> Packed:
        return pack_value(self.agent.handle, key, value)

    def watch(self, pattern: str) -> WatchOperations:
        """Return a watch of keys of the line."""
        return WatchOperations(self.resource.handle_for(STEP, "write"), self.resource.name, pattern, None, False)

    def check_key(self, key: object, what: str = "key of a step") -> str:
        """Require a key, name or id that the line can have."""
        checked = self.agent.handle.guard.key(self.resource.scope, key, what)
        if len(checked.encode()) > MAX_KEY or "/" in checked:
            raise InvalidError(
                f"the {what} must have at most {MAX_KEY} bytes, and no slash", where=f"{checked[:40]!r} of {self.where}"
            )
        return checked


class NothingToWrite(ConflictError):
    """There is nothing to write."""


def deleted_error(where: str) -> NotFoundError:
    """Build the error for a live object whose agent was deleted."""
    return NotFoundError(
        "the agent of this object was deleted",
        where=where,
        hint="Attach a new object to this id, or load the agent that has it now: reload()",
        code="agent-deleted",
    )


def lost_error(where: str) -> ConflictError:
    """Build the error for a process that was presumed dead while it ran a step."""
    return ConflictError(
        "another process presumed this one dead, and resolved the step",
        where=where,
        hint="Leave the step to it. The machine was busy or asleep, or its clock was set",
        code=LEASE_LOST,
    )


def digest_arguments(line: StepLine, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return the digest of arguments. Equal ones have equal digests, in whichever order a dict or a set has them."""
    try:
        packed = line.agent.handle.codec.pack(_ordered(line, [args, kwargs]))
    except HoldfastError as error:
        raise InvalidError(
            f"the arguments of a durable step are recorded, and these cannot be: {error.what}",
            where=f"step {key!r} of {line.where}",
            hint="Give ids in place of objects, or bind them before: once(key, functools.partial(f, client), 42)",
        ) from error
    return blake2b(packed, digest_size=20).digest()


def _ordered(line: StepLine, value: Any) -> Any:
    pack = line.agent.handle.codec.pack
    if type(value) is dict:
        pairs = [[_ordered(line, key), _ordered(line, each)] for key, each in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: pack(pair[0]))}
    if type(value) in (set, frozenset):
        return {"set": sorted((_ordered(line, each) for each in value), key=pack)}
    return [_ordered(line, each) for each in value] if type(value) in (list, tuple) else value
