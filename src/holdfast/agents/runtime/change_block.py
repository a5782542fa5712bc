"""Blocks in which an agent is in the middle of something: nothing of it is saved in the background meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import arun

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister


@contextmanager
def undisturbed(keeper: AgentPersister) -> Iterator[None]:
    """Nothing of an agent is saved in the background during this block."""
    with keeper.lock:
        keeper.held += 1
    try:
        yield
    finally:
        with keeper.lock:
            keeper.held -= 1
        if not keeper.held and keeper.watch is not None:
            keeper.watch.freed()


class ChangeBlock:
    """A block in which things are changed that belong together: see `agent.changing`."""

    def __init__(self, keeper: AgentPersister) -> None:
        self._keeper = keeper

    def __enter__(self) -> None:
        keeper, watch = self._keeper, self._keeper.watch
        keeper.lock.acquire()
        if watch is not None and watch.wanted and watch.sync and not keeper.held:
            keeper.lock.release()
            watch.make_room()
            keeper.lock.acquire()
        keeper.held += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        keeper, watch = self._keeper, self._keeper.watch
        keeper.held -= 1
        keeper.lock.release()
        if watch is None:
            return
        if error is None:
            keeper.changed()
        else:
            watch.changed(1)  # what was done up to there is not waited for: there is an error to be told of
        if not keeper.held:
            watch.freed()

    async def __aenter__(self) -> None:
        watch, task = self._keeper.watch, asyncio.current_task()
        if watch is not None:
            if watch.wanted and not watch.sync and task not in watch.inside:
                await watch.amake_room()
            watch.inside.append(task)
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        watch, task = self._keeper.watch, asyncio.current_task()
        if watch is not None and task in watch.inside:
            watch.inside.remove(task)
        self.__exit__(kind, error, at)
        if error is None:
            await arun(self._keeper.written())
