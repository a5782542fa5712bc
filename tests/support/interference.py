"""Interference: a second party acts just before or just after a call that the code under test makes to its backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.backends.interface import Backend, Batch, Query, Row, WordMatch, WordMatches
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.wrappers import Wrapper

Kind = Literal["read", "apply", "any"]
Filter = Callable[[Sequence[Any]], bool]
"""Chooses calls by their queries or by the changes of their batch."""

MOST_MOMENTS = 500
"""Sweeps that have more moments than this are taken for endless loops."""


@dataclass
class Interference:
    """Says at which calls a second party acts, and counts how often it did."""

    act: Callable[[], object]
    kind: Kind
    at: int = 0
    times: int | None = 1
    after: bool = False
    where: Filter = lambda _: True
    allowed: tuple[type[Exception], ...] = ()
    calls: int = 0
    struck: int = 0
    error: Exception | None = None

    def due(self, kind: Kind, content: Sequence[Any]) -> bool:
        """Count a call, and say whether it is one of those to interfere with."""
        if self.kind not in (kind, "any") or not self.where(content):
            return False
        call, self.calls = self.calls, self.calls + 1
        return self.at <= call and (self.times is None or call < self.at + self.times)

    def strike(self) -> None:
        """Let the second party act. An error of its own is remembered, since the code under test may swallow it."""
        self.struck += 1
        try:
            self.act()
        except self.allowed:
            raise
        except Exception as error:
            self.error = error
            raise

    def check(self) -> None:
        """Fail if the second party's own action failed."""
        if self.error is not None:
            raise AssertionError(f"the interference itself failed: {self.error!r}") from self.error


class InterferingBackend(Wrapper):
    """Lets a second party act at chosen calls; by default around a new store in memory.

    Calls that the second party makes itself, through this backend, are neither counted nor interfered with.
    A `match` counts as a read.
    """

    def __init__(self, inner: Backend | None = None) -> None:
        super().__init__(inner or MemoryBackend())
        self.reads = 0
        self.batches: list[Batch] = []
        self.most_batches = 10_000
        """With more batches than this, the code under test is taken to be in an endless loop."""
        self._interference: Interference | None = None

    @contextmanager
    def interfere(
        self,
        act: Callable[[], object],
        kind: Kind = "apply",
        *,
        at: int = 0,
        times: int | None = 1,
        after: bool = False,
        where: Filter = lambda _: True,
        allowed: tuple[type[Exception], ...] = (),
    ) -> Iterator[Interference]:
        """Have `act` called before the next call of a kind, and fail in the end if that call did not come.

        `at` skips so many calls, `times` says how many are interfered with from there (None: all of them), `where`
        chooses among calls. `after` has `act` called when the call is done, but before its caller gets the result.
        `act` must not fail, except with errors that are `allowed`.
        """
        interference = Interference(act, kind, at, times, after, where, allowed)
        try:
            with self.armed(interference):
                yield interference
        except Exception as error:
            interference.check()
            if not interference.struck and not isinstance(error, AssertionError):
                raise AssertionError(f"ended before the {kind} that was to be interfered with") from error
            raise
        interference.check()
        assert interference.struck, f"ended before the {kind} that was to be interfered with"
        assert times is None or interference.struck == times, f"interfered {interference.struck} times, not {times}"

    @contextmanager
    def armed(self, interference: Interference) -> Iterator[None]:
        """Interfere with the calls that are made inside, if any is chosen."""
        assert self._interference is None, "one interference at a time"
        self._interference = interference
        try:
            yield
        finally:
            self._interference = None

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self.reads += 1
        finish = self._begin("read", queries)
        found = await self.inner.read(queries)
        finish()
        return found

    async def match_words(self, match: WordMatch) -> WordMatches:
        self.reads += 1
        finish = self._begin("read", [match])
        found = await self.inner.match_words(match)
        finish()
        return found

    async def apply(self, batch: Batch) -> int | None:
        assert len(self.batches) < self.most_batches, "the same batch is tried again and again"
        finish = self._begin("apply", batch)
        self.batches.append(batch)
        refused = await self.inner.apply(batch)
        finish()
        return refused

    def _begin(self, kind: Kind, content: Sequence[Any]) -> Callable[[], None]:
        """Interfere before a call, or return what interferes after it."""
        interference = self._interference
        if interference is None or not interference.due(kind, content):
            return lambda: None
        if interference.after:
            return lambda: self._strike(interference)
        self._strike(interference)
        return lambda: None

    def _strike(self, interference: Interference) -> None:
        self._interference = None
        try:
            interference.strike()
        finally:
            self._interference = interference


@dataclass
class Moment:
    """One moment of a sweep: before the call number `at` (from 0) of a kind."""

    kind: Kind
    at: int
    came: bool = False
    """Whether the operation made so many calls; known when it has ended."""
    used: bool = field(default=False, repr=False)

    @contextmanager
    def interfere(self, backend: InterferingBackend, act: Callable[[], object]) -> Iterator[None]:
        """Have `act` called at this moment of the operation that is run inside, if the moment comes."""
        assert not self.used, "a moment is of one operation"
        self.used = True
        interference = Interference(act, self.kind, self.at)
        try:
            with backend.armed(interference):
                yield
        finally:
            self.came = interference.struck > 0
            interference.check()


def at_every_moment(
    scenario: Callable[[Moment], object],
    kinds: Collection[Kind] = ("read", "apply"),
    *,
    at_least: int = 1,
    stride: int = 1,
) -> dict[Kind, int]:
    """Run a scenario once for each moment of its operation, until the operation ends before the moment comes.

    The scenario sets up a store of its own and runs the operation inside `moment.interfere(backend, act)`. It is also
    run for the first moment that does not come, with `moment.came` false: its assertions should hold there, too.
    `at_least` says how many moments of each kind there must be. With a stride, some of them are left out. Returns how
    many there were, up to the last one that was tried.
    """
    counts: dict[Kind, int] = {}
    for kind in kinds:
        struck = 0
        for at in itertools.count(0, stride):
            moment = Moment(kind, at)
            try:
                scenario(moment)
                assert moment.used, "the scenario has no operation to interfere with"
            except BaseException as error:
                error.add_note(f"with interference before {kind} number {moment.at} (from 0)")
                raise
            if not moment.came:
                break
            struck = at + 1
            assert struck <= MOST_MOMENTS, f"the operation makes ever more calls ({kind})"
        counts[kind] = struck
        assert struck >= at_least, f"interfered before {struck} calls ({kind}), and not before {at_least} or more"
    return counts
