"""Claims: exclusive rights to run a thread, of which everything is a condition that the run stores.

The token of a claim is a row that nobody touches until the claim ends: a sign of life is another row, which is in no
feed and no backup. So a batch under way does not fail since the claim was renewed meanwhile, and a process that was
stopped and presumed dead stores nothing when it is woken: its batches name a token that is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Query, Row
from holdfast.backends.runtime.drivers import complete
from holdfast.backends.tables import JOURNAL, REFS, Key
from holdfast.engine.context import EngineContext
from holdfast.engine.leases import new_token, process_of
from holdfast.engine.row_format import LEASE, Line
from holdfast.errors import ClaimLostError, ConflictError

RUN = "run"
"""The name of the row of a claim, among the leases of a thread."""

CLAIM_SECONDS = 30.0
"""How long a claim is valid without a sign of life, unless it says otherwise."""

_LONGEST_NS = 24 * 3600 * 10**9
"""A claim that is said to be valid for longer was made by a clock that is wrong."""


class Attempt(Protocol):
    """What a worker does under a claim, as the code that it runs sees it."""

    @property
    def since(self) -> int:
        """When the run was first begun: what was recorded before is not of it."""

    def go_on(self) -> None:
        """Hand the run over before its next step, if the worker stops: raises what ends the attempt."""

    def wait(self, line: Line, until: int | None, unless: Sequence[Change]) -> None:
        """Hand the run over while what has this line waits until a time, or for an event: raises what ends the attempt.
        Not if these conditions of what it waits for do not hold any more. Returns where it has to wait itself."""


class Claim:
    """An exclusive right to run a thread. Its condition is part of every batch that the run stores."""

    def __init__(self, context: EngineContext, line: Line, life: float = CLAIM_SECONDS) -> None:
        self._context = context
        self.line = line
        self.life = life
        self.row = Row(claim_key(line), (new_token(), context.clock()))
        self.also: Callable[[bool], Awaitable[Sequence[Change]]] | None = None
        """Further conditions of what the run stores."""
        self.attempt: Attempt | None = None
        """What a worker does under it, if that can be handed over in the middle."""
        self.is_lost = False
        """Whether it is known that another has the thread."""

    @property
    def token(self) -> str:
        """The token of the claim, which no other has."""
        return str(self.row.columns[0])

    def condition(self) -> Expect:
        """Return the condition that the claim was neither released nor taken over."""
        return Expect(REFS, self.row.key, self.row.columns)

    def put_over(self, before: Row | None) -> list[Change]:
        """Return the changes that make the claim, in place of one that is free, or of none."""
        return [
            Expect(REFS, self.row.key, None if before is None else before.columns),
            Put(REFS, self.row),
            self._sign_of_life(),
        ]

    def end(self) -> list[Change]:
        """Return the changes that release the claim."""
        return claim_removal(self.line)

    async def acquire(self) -> None:
        """Make the claim. `ConflictError` if another process has the thread."""
        rows = await read_claims(self._context, [self.line])
        before = rows.get(self.line)
        if before is not None and before.is_held(self._context):
            raise self.busy()
        if await self._context.backend.apply(self.put_over(None if before is None else before.row)) is not None:
            raise self.busy()

    async def beat(self) -> None:
        """Give a sign of life. `ClaimLostError` if the claim is lost."""
        if await self._context.backend.apply([self.condition(), self._sign_of_life()]) is not None:
            raise self.lost()

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return the condition of a batch of the run; if an earlier attempt has failed, after a look at the claim."""
        if again:
            await self.require_valid()
        return (self.condition(), *(() if self.also is None else await self.also(again)))

    async def require_valid(self) -> None:
        """Raise `ClaimLostError` if the claim is lost."""
        (rows,) = await self._context.backend.read([Get(REFS, [self.row.key])])
        if not rows or rows[0].columns != self.row.columns:
            raise self.lost()

    async def release(self) -> None:
        """Release the claim, if this process has it: even if the task is cancelled just now."""

        async def give_up() -> None:
            await self._context.backend.apply([self.condition(), *self.end()])

        await complete(give_up)

    def lost(self) -> ClaimLostError:
        """Note that the claim is lost, and return the error for it."""
        self.is_lost = True
        return ClaimLostError(
            "the run of the thread was taken over, or cancelled",
            where=f"thread {self.line}",
            hint="This process stops: it was presumed dead since it gave no sign of life, or somebody ended the run",
        )

    def covers(self, context: EngineContext, line: Line) -> bool:
        """Return whether a line, as one handle of a store has it, is in the store and tenant of the claim."""
        return line.tenant == self.line.tenant and context.is_same_store(self._context)

    def _sign_of_life(self) -> Change:
        """The row says until when the claim is valid, so that nobody has to know for how long it was made."""
        until = self._context.clock() + int(self.life * 1e9)
        return Put(JOURNAL, Row(_life_key(self.line), (until,)))

    def busy(self) -> ConflictError:
        """Return the error for who wants the thread while another has it."""
        return ConflictError(
            "another run of the thread is in progress",
            where=f"thread {self.line}",
            hint="Wait for it to end",
            code="under-way",
        )


class StoredClaim:
    """A claim as others see it."""

    def __init__(self, row: Row, until: int) -> None:
        self.row = row
        self.until = until
        """Until when it is valid, by the clock of its process."""

    @property
    def has_ended(self) -> bool | None:
        """Whether its process has ended; None if that is not known here."""
        from holdfast.backends.runtime.process_identity import has_ended

        return has_ended(process_of(str(self.row.columns[0])))

    def is_held(self, context: EngineContext) -> bool:
        """Return whether it is valid: it has not expired, and its process is not known to have ended."""
        return not self.has_ended and 0 <= self.until - context.clock() < _LONGEST_NS


def claim_key(line: Line) -> Key:
    """Return the key of the row of the claim of a thread."""
    return (*line, LEASE, RUN, "")


def _life_key(line: Line) -> Key:
    return (*line, 0)


def claim_removal(line: Line) -> list[Change]:
    """Return the changes that remove the claim of a thread, whoever has it."""
    return [Delete(REFS, claim_key(line)), Delete(JOURNAL, _life_key(line))]


async def read_claims(context: EngineContext, lines: Sequence[Line]) -> dict[Line, StoredClaim]:
    """Return the claims of some threads."""
    return (await read_with_claims(context, [], lines))[1]


async def read_with_claims(
    context: EngineContext, queries: Sequence[Query], lines: Sequence[Line]
) -> tuple[list[list[Row]], dict[Line, StoredClaim]]:
    """Return the answers to some queries, and the claims of some threads, all as of one moment."""
    own = [Get(REFS, [claim_key(line) for line in lines]), Get(JOURNAL, [_life_key(line) for line in lines])]
    *answers, rows, signs = await context.backend.read([*queries, *own])
    until = {row.key[:2]: int(row.columns[0]) for row in signs}
    claims = {Line(*map(str, row.key[:2])): StoredClaim(row, until.get(row.key[:2], 0)) for row in rows}
    return answers, claims


async def held_claims(context: EngineContext, refs: Sequence[Row]) -> set[Line]:
    """Return the threads of which a valid claim is among these rows. Reads nothing if there is none."""
    lines = [Line(*map(str, row.key[:2])) for row in refs if row.key[2:4] == (LEASE, RUN)]
    if not lines:
        return set()
    return {line for line, claim in (await read_claims(context, lines)).items() if claim.is_held(context)}
