"""The records of an agent's durable steps: where they are, and what they look like.

A line of shared state has them, under these keys: `step/<key>` and `result/<key>` for steps, `version/<change>` for
versions of the code, `signal…/…`, `wait/…`, `timer…/…` and `sleep/…` for signals and timers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from holdfast._fields import Hidden, Internal, Label
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Change, Expect, Get
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.guard import Action
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, read_scope
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

LEASE_LOST = "lease-lost"
"""The code of the error for a process that was presumed dead."""


class _Retry:
    """The type of `RETRY`."""

    def __repr__(self) -> str:
        return "RETRY"


RETRY = _Retry()
"""The result of a function that decides about an unknown outcome, to have the step run again."""


@dataclass(frozen=True, slots=True)
class StepRecord:
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
    digest: Internal[str] = field(default="", repr=False)
    """The digest of its arguments."""
    token: Internal[str] = field(default="", repr=False)
    """The token of the attempt, or of who resolved it."""

    @classmethod
    def of(cls, key: str, stored: dict[str, Any]) -> StepRecord:
        """Return the record that was stored under a key."""
        times = {name: to_datetime(stored[name]) if stored.get(name) else None for name in ("started", "ended", "due")}
        return cls(key, **{**stored, **times})


class StepLine:
    """The line of an agent's durable steps, as one identity may use it."""

    def __init__(self, line: AgentLine, owner: AgentPersister | None = None) -> None:
        """`owner` is the persister of a live agent, which writes only while that agent was not deleted."""
        self.agent = line
        self._owner = owner
        self.resource: SharedResource = find_resource(line.handle, "steps", "main", line.scope)

    @property
    def handle(self) -> StoreHandle:
        """The handle for steps: writing them takes the right to."""
        return self.resource.handle_for(STEP)

    @property
    def line(self) -> Line:
        """The line itself."""
        return self.agent.handle.line(self.resource.name)

    @property
    def where(self) -> str:
        """The agent's name for errors."""
        return self.agent.where

    async def require(self, action: Action, key: str = STEP) -> None:
        """Raise `DeniedError` unless the caller may do this."""
        await self.resource.require(action, key)

    async def read(self, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read the state of the line. The caller has checked the right to."""
        return await read_scope(self.agent.handle, self.resource.name, look)

    async def write(
        self,
        writes: Callable[[ScopeView], Awaitable[Sequence[KeyWrite]]],
        lease: Lease | None = None,
        key: str = STEP,
        attached: Callable[[], Sequence[Change]] | None = None,
    ) -> None:
        """Change keys, under a lease if one is given, and with changes of other rows. A function that returns no
        changes ends without a step; it is called before the one for other rows, at each attempt."""

        owned = self._owner is not None and self._owner.point is not None

        async def conditions(again: bool) -> list[Change]:
            exists = [await self._require_agent(again)] if owned else []
            if lease is not None and again and not await lease.is_valid():
                raise lost_error(self.where)
            held = [] if lease is None else [lease.condition()]
            return [*exists, *held, *(() if attached is None else attached())]

        async def require_some(view: ScopeView) -> Sequence[KeyWrite]:
            made = await writes(view)
            if not made:
                raise _Nothing("there is nothing to write")
            return made

        handle = self.resource.handle_for(key)
        try:
            await commit(
                handle,
                {self.resource.name: require_some},
                preconditions=conditions if owned or lease is not None or attached is not None else None,
            )
        except _Nothing:
            return

    async def require_agent(self) -> None:
        """Raise `NotFoundError` if the agent of a live handle was deleted."""
        if self._owner is not None and self._owner.point is not None:
            await self._require_agent(True)

    async def _require_agent(self, again: bool) -> Change:
        """Return the condition that the agent of a live handle exists: that which it was saved or loaded as, and not
        another of its id. `NotFoundError` if it does not."""
        owner, line = self._owner, self.agent.line
        assert owner is not None  # noqa: S101 - the caller has checked that
        assert owner.point is not None  # noqa: S101 - as well
        point, known = owner.point, owner.lifecycle.line_columns
        if again or known is None:
            place = (*line, point.branch, point.seq)
            queries = [Get(LINES, [tuple(line)]), Get(STEPS, [place])]
            lines, steps = await self.agent.handle.engine.context.backend.read(queries)
            if not lines or not steps or StepRef.of(steps[0]).hash != point.hash:
                raise deleted_error(self.where)
            known = owner.lifecycle.line_columns = lines[0].columns
        return Expect(LINES, tuple(line), known)

    def put(self, key: str, value: Any, outcome: str = "ok") -> KeyWrite:
        """Return the change that sets a key. The outcome is that of what the value records."""
        return KeyWrite(key, packed=pack_value(self.agent.handle, key, value), outcome=outcome)

    def lease(self, key: str, life: float) -> Lease:
        """Return the lease under which a step is run. The digest keeps its row as private as the step."""
        purpose = f"step {blake2b(key.encode(), digest_size=16).hexdigest()}"
        return Lease(self.agent.handle.engine.context, self.line, purpose, life)

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


class _Nothing(ConflictError):
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


def digest_arguments(line: StepLine, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the digest of arguments. Equal ones have equal digests, in whichever order a dict or a set has them."""
    try:
        packed = line.agent.handle.codec.pack(_ordered(line, [args, kwargs]))
    except HoldfastError as error:
        raise InvalidError(
            f"the arguments of a durable step are recorded, and these cannot be: {error.what}",
            where=f"step {key!r} of {line.where}",
            hint="Give ids in place of objects, or bind them before: once(key, functools.partial(f, client), 42)",
        ) from error
    return blake2b(packed, digest_size=20).hexdigest()


def _ordered(line: StepLine, value: Any) -> Any:
    pack = line.agent.handle.codec.pack
    if type(value) is dict:
        pairs = [[_ordered(line, key), _ordered(line, each)] for key, each in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: pack(pair[0]))}
    if type(value) in (set, frozenset):
        return {"set": sorted((_ordered(line, each) for each in value), key=pack)}
    return [_ordered(line, each) for each in value] if type(value) in (list, tuple) else value
