"""Agents with `recover`, while a program runs them: if it dies, a worker that has their class goes on.

The run begins with the start of the agent, and ends with its stop or pause. It is recorded as failed if the agent is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.agents.runs.record import DONE, FAILED
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.backends.runtime.heartbeat import Heartbeat
from holdfast.engine.claims import CLAIM_SECONDS
from holdfast.security.handle import StoreHandle


class LiveRun:
    """The run of an agent that this program has."""

    def __init__(self, table: RunTable, held: HeldRun, persister: AgentPersister) -> None:
        self._table = table
        self._held = held
        self._persister = persister
        self._heartbeat = Heartbeat(table.context.heartbeats, CLAIM_SECONDS, held.claim.beat)
        self._heartbeat.__enter__()
        persister.claim, persister.live_run = held.claim, self

    async def end(self, error: str = "") -> None:
        """End the run, as failed if there is an error."""
        self._heartbeat.__exit__()
        self._persister.claim = self._persister.live_run = None
        if error:
            await self._table.finish(self._held, FAILED, error=error, error_code="agent-failed")
        else:
            await self._table.finish(self._held, DONE, removes=True)


async def begin_live(persister: AgentPersister, start: Callable[[], Awaitable[None]]) -> None:
    """Start an agent, after this program has its claim. `ConflictError` if another process has it."""
    line = persister.line
    table = RunTable(StoreHandle(line.handle.engine, line.handle.tenant))
    held = await table.take(line.line, persister.spec.name, CLAIM_SECONDS, is_graph=False)
    live = LiveRun(table, held, persister)
    try:
        await start()
    except BaseException:
        await live.end()
        raise
