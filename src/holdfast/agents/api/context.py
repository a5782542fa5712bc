"""Agents as blocks: started at the beginning, stopped at the end, and failed where an error ends it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

from holdfast.agents.api.restorer import revived
from holdfast.agents.recovery.startup import resume, start
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.listing import said_by
from holdfast.backends.runtime.drivers import arun, run


class HasPersister(Protocol):
    """What has a keeper."""

    @property
    def keeper(self) -> AgentPersister:
        """What saves it."""
        ...


K = TypeVar("K", bound=HasPersister)


async def _begin(keeper: AgentPersister) -> None:
    await keeper.line.allow("read")
    newest = await keeper.line.newest()
    if newest is not None and said_by(newest).get("status") == "paused":
        await resume(keeper.phases, revived)
    else:
        await start(keeper.phases, revived)


async def _end(keeper: AgentPersister, error: BaseException | None) -> None:
    if error is None:
        if keeper.data.status == "running":
            await keeper.phases.stop()
        return
    try:
        await keeper.phases.fail(error)
    except Exception as other:  # noqa: BLE001 - it is told with the error of the block
        # What ended the block is what its author has to know.
        error.add_note(f"That {keeper.where} failed could not be told: {type(other).__name__}: {other}")


class ChangeContext:
    """For agents of a `Store`."""

    def __enter__(self: K) -> K:
        """Start it, or have it go on if it is paused."""
        run(_begin(self.keeper))
        return self

    def __exit__(
        self: HasPersister, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop it, if it still runs; or say that it failed, by the error that ends the block."""
        run(_end(self.keeper, error))


class AsyncChangeContext:
    """For agents of an `AsyncStore`."""

    async def __aenter__(self: K) -> K:
        """Start it, or have it go on if it is paused."""
        await arun(_begin(self.keeper))
        return self

    async def __aexit__(
        self: HasPersister, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop it, if it still runs; or say that it failed, by the error that ends the block."""
        await arun(_end(self.keeper, error))
