"""Runs as an identity sees them: those of threads that it may read. It changes those of threads that it may write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from holdfast.agents.runs.api import RunEvent, RunOperations, RunStream
from holdfast.agents.storage.agent_line import AgentLine, agent_id
from holdfast.backends.runtime.drivers import AsyncApi, Operation, SyncApi, declare
from holdfast.engine.guard import Authority, acting
from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.store.thread_access import thread_access
from holdfast.time_parser import Duration, parse_seconds

if TYPE_CHECKING:
    from holdfast.security.access.policy import Right


class _IdentityAccess:
    """What an identity may do with runs."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self.actor = handle.guard.actor

    def submitting(self, line: Line) -> AbstractAsyncContextManager[None]:
        """Require the right to write an agent, or a thread, which may be created."""
        return _access(self._handle, line, "write", creates=True)

    async def visible(self, lines: Any) -> set[Line]:
        """Return the threads and agents of some that may be read. `DeniedError` if the identity is frozen."""
        guard = self._handle.guard
        await guard.require_active("runs")
        agents = {Scope.of(agent=id): line for line in lines if (id := agent_id(line)) is not None}
        threads = await guard.visible_threads([line for line in lines if line not in agents.values()])
        return {*threads, *(agents[scope] for scope in await guard.visible(list(agents)))}


@asynccontextmanager
async def _access(handle: StoreHandle, line: Line, right: Right, *, creates: bool = False) -> AsyncIterator[None]:
    """Require a right to a thread or an agent, and act under it."""
    id = agent_id(line)
    if id is None:
        async with thread_access(handle, line, (right,), creates=creates):
            yield
        return
    if not creates:
        await handle.guard.require_active("runs")
    try:
        permit = await AgentLine(handle, id).allow("write" if right == "write" else "read")
    except DeniedError:
        if creates:
            raise
        raise NotFoundError("there is no such agent", where=f"agent {id!r}") from None
    with acting(Authority(handle.guard.actor, permit.guards)):
        yield


def _guarded(inherited: Operation[..., Any]) -> Any:
    """Return an operation on a run as an identity has it: it needs a right to its thread."""
    function, declared = inherited.__wrapped__, inherited.declaration
    right: Right = "write" if declared.changes else "read"

    @wraps(function)
    async def guarded(self: IdentityRunOperations, id: str, *args: Any, **kwargs: Any) -> Any:
        async with self._access_to(id, right):
            return await function(self._runs, id, *args, **kwargs)

    return Operation(guarded, declared._replace(rights=(right,)))


def _own(inherited: Operation[..., Any]) -> Any:
    """Return an operation that asks for rights itself."""
    function = inherited.__wrapped__

    @wraps(function)
    async def own(self: IdentityRunOperations, *args: Any, **kwargs: Any) -> Any:
        return await function(self._runs, *args, **kwargs)

    return Operation(own, inherited.declaration)


@declare(not_in_scripts="Workers are processes of the host.")
class IdentityRunOperations:
    """Operations of an identity on runs. `IdentityRuns` and `AsyncIdentityRuns` have these as methods.

    For who may not read its thread, a run does not exist. A thread that does not exist yet is the identity's when it
    submits a run on it. While the identity is frozen, its runs are not begun, and store nothing.
    """

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._runs = RunOperations(StoreHandle(handle.engine, handle.tenant), _IdentityAccess(handle))

    submit = _own(RunOperations.submit)
    list = _own(RunOperations.list)
    get = _guarded(RunOperations.get)
    wait = _guarded(RunOperations.wait)
    steps = _guarded(RunOperations.steps)
    events = _guarded(RunOperations.events)
    cancel = _guarded(RunOperations.cancel)
    retry = _guarded(RunOperations.retry)
    answer = _guarded(RunOperations.answer)

    def follow(self, id: str, after: str = "", *, timeout: Duration | None = None) -> RunStream:
        """Iterate over the events of a run as they come, as `store.runs.follow` does. The right to read its thread is
        checked each time."""
        return RunStream(self, id, after, None if timeout is None else parse_seconds(timeout, "timeout"))

    async def _events(self, id: str, after: str) -> tuple[Any, bool]:
        async with self._access_to(id, "read"):
            found: tuple[list[RunEvent], bool] = await self._runs._events(id, after)
            return found

    @asynccontextmanager
    async def _access_to(self, id: str, right: Right) -> AsyncIterator[None]:
        """Require a right to the thread of a run. `NotFoundError` without it, as if there were no such run."""
        stored = await self._runs._table.get(id)
        try:
            async with _access(self._handle, stored.line(self._handle.tenant), right):
                yield
        except NotFoundError:
            pass
        else:
            return
        raise self._runs._table.missing(id)  # outside of the block, or the other error would be its context


class IdentityRuns(SyncApi, IdentityRunOperations):
    """The runs that an identity may see: `store.as_identity(…).runs`."""


class AsyncIdentityRuns(AsyncApi, IdentityRunOperations):
    """The runs that an identity may see, awaited."""
