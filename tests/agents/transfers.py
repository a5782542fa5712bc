"""Interrupted transfers: a store whose commits end the process, at a chosen point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import holdfast
from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.transfer.offer import Offer
from holdfast.errors import OutcomeUnknownError


class Crash(BaseException):
    """The process is gone."""


class Cut:
    """Where a process ends: at one of its commits, before that is made or after."""

    def __init__(self, at: int | None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.commits = 0
        self.dead = False

    def hit(self, *, after: bool) -> None:
        """Be at a commit, and perhaps end. Who is dead commits nothing more."""
        if self.dead or (self.commits == self.at and after is self.after):
            self.dead = True
            raise Crash


@contextmanager
def cut(store: holdfast.Store, where: Cut) -> Iterator[Cut]:
    """Have what a block does with a store end somewhere."""
    backend: Any = store._handle.engine.context.backend
    apply = backend.apply

    async def mortal(changes: Sequence[Any]) -> Any:
        where.hit(after=False)
        found = await apply(changes)
        where.hit(after=True)
        where.commits += 1
        return found

    backend.apply = mortal
    try:
        yield where
    finally:
        del backend.apply


@contextmanager
def unanswered(store: holdfast.Store, at: int, *, done: bool) -> Iterator[None]:
    """Have no answer come to one of the commits of a block, which is made, or not."""
    backend: Any = store._handle.engine.context.backend
    apply = backend.apply
    count = 0

    async def silent(changes: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        if count != at + 1:
            return await apply(changes)
        if done:
            await apply(changes)
        raise OutcomeUnknownError("no answer was received")

    backend.apply = silent
    try:
        yield
    finally:
        del backend.apply


@contextmanager
def interrupted(store: holdfast.Store, at: int, error: BaseException, *, when: str) -> Iterator[None]:
    """Have an error come in one of the commits of a block: `before` it is made, `after`, or while it is still to be
    made, `late`, before the next one."""
    backend: Any = store._handle.engine.context.backend
    apply = backend.apply
    count = 0
    late: list[Sequence[Any]] = []

    async def broken(changes: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        while late:
            await apply(late.pop())
        if count != at + 1:
            return await apply(changes)
        if when == "after":
            await apply(changes)
        elif when == "late":
            late.append(changes)
        raise error

    backend.apply = broken
    try:
        yield
    finally:
        del backend.apply


class Porter(PersistentAgent, name="porter-of-tests"):
    """Hands over and takes over, and may end while it does."""

    told: list[str] = []
    _dies = ""

    def accepts(self, offer: Offer) -> bool:
        """Yes, if it lives."""
        if self._dies == "accepts":
            raise Crash
        return True

    def on_receive(self, offer: Offer) -> None:
        """Note it."""
        if self._dies == "on_receive":
            raise Crash
        self.told.append(offer.id)


class AsyncPorter(AsyncPersistentAgent, name="async-porter-of-tests"):
    """The same for asyncio, and it always lives."""
