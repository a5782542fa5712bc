"""A store and its copy elsewhere: `behind:?local=sqlite:///agents.db&remote=postgresql://…`.

The local store holds everything and answers all reads. Every batch is written there together with an entry in a
journal, and from the journal it is written to the remote store, in the background, in order and exactly once. A crash
loses nothing that was acknowledged: the journal is as durable as the local store, and what is left in it is sent when
the pair is opened again. If the local store is lost, the remote one alone is a whole store, as of the last entry it
got.

`behind:` acknowledges once a batch is in the local store. `mirror:`, in `holdfast.backends.wrappers.mirror`, waits for
the copy as well.

All writing has to go through the pair: what is written into the local store past it is not copied.

Options: `drain` (for how many seconds `close` waits for what is not yet copied, 10), `patience` (for how many seconds
opening waits for the remote store to answer, 5), `restore` (fill an empty local store from the copy; the store that the
copy was made from can then no longer write to it).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Sequence
from typing import Any, Self, cast

from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Capabilities,
    Change,
    Create,
    Ensure,
    Expect,
    Put,
    Query,
    Row,
    Scan,
)
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import renew_after_fork
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome, again, size_of
from holdfast.backends.tables import JOURNAL
from holdfast.backends.urls import seconds, switch
from holdfast.backends.wrappers import Wrapper, journal, store_diff
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of
from holdfast.backends.wrappers.journal import JournalRow, MergedBatch
from holdfast.backends.wrappers.journal_sender import JournalSender
from holdfast.backends.wrappers.lazy_open import LazyBackend
from holdfast.backends.wrappers.private_rows import move_theirs, read_theirs
from holdfast.backends.wrappers.replica_pair import ReplicaIdentity, attach, identity_of
from holdfast.errors import (
    ConfigError,
    DeniedError,
    HoldfastError,
    OutcomeUnknownError,
    TooLargeError,
    TransientError,
    UnavailableError,
)

_log = logging.getLogger("holdfast.copies")

PATIENCE = 5.0
DRAIN = 10.0

_BYTES = 8 << 20
_SLACK = 1 << 16
_PAGE = 64


class OutgoingBatch(tuple[Change, ...]):
    """A batch on its way, and the number of the journal's row that tells of it."""

    number: int | None = None


class ReplicatingBackend(Wrapper):
    """What `behind:` and `mirror:` share."""

    def __init__(
        self,
        local: Backend,
        remote: Backend,
        identity: ReplicaIdentity,
        *,
        patience: float = PATIENCE,
        drain: float = DRAIN,
    ) -> None:
        super().__init__(local)
        self.remote = remote
        self._identity = identity
        self._patience = patience
        self._drain = drain
        self._sender = JournalSender(local, remote, identity)
        self._queue = CommitQueue(self._commit, self.url)
        self._last: JournalRow | None = None
        self._doubt: tuple[JournalRow, list[OutgoingBatch]] | None = None
        """What was being written when this thread was interrupted, and may be there."""
        self._told = False
        weakref.finalize(self, self._sender.let_go)
        renew_after_fork(self)

    def renew_locks(self) -> None:
        """For a forked child."""
        self._queue.reset_after_fork()
        self._last = self._doubt = None

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a pair of stores, and make it one if they are not yet."""
        kind = cls.schemes[0]
        found = parts_of(url, kind, cls._options(), options)
        settings: dict[str, Any] = {
            name: seconds(url, name, found[name]) for name in ("patience", "drain") if name in found
        }
        settings |= cls._settings(url, found)
        restore = switch(url, "restore", found.get("restore", False))
        (local,) = await open_parts(found["local"])
        remote: Backend = LazyBackend(found["remote"])
        try:
            identity, filling = await identity_of(local)
            if identity is None or filling:
                identity = await attach(local, remote, restore)
            store = cls(local, remote, identity, **settings)
            await store._begin()
        except BaseException:
            await remote.close()
            await local.close()
            raise
        return store

    @classmethod
    def _options(cls) -> tuple[str, ...]:
        return ("patience", "drain", "restore")

    @classmethod
    def _settings(cls, url: str, found: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - for subclasses
        """Options of a kind's own."""
        return {}

    @property
    def url(self) -> str:
        return compose(self.schemes[0], local=self.inner.url, remote=self.remote.url)

    @property
    def capabilities(self) -> Capabilities:
        local = self.inner.capabilities
        # An entry of the journal holds the bodies once more.
        max_batch = min((local.max_batch - _SLACK) // 2, self._identity.max_batch - _SLACK)
        return local._replace(
            shared=local.shared and self._identity.shared,
            projected=local.projected or self._identity.projected,
            max_body=min(local.max_body, self._identity.max_body, max_batch),
            max_batch=max_batch,
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await read_theirs(self.inner, queries)

    async def apply(self, batch: Batch) -> int | None:
        return (await self._write(batch))[1]

    async def check(self) -> list[str]:
        """What the two stores find wrong with themselves, and what is not the same in them."""
        found = [f"{self.inner.url}: {what}" for what in await self.inner.check()]
        if not await self._caught_up():
            return [*found, f"{self.remote.url}: lags behind and was not compared: {self._sender.trouble}"]
        found += [f"{self.remote.url}: {what}" for what in await self.remote.check()]
        return [*found, *(difference.told() for difference in await self._differences())]

    async def tidy(self) -> None:
        await self.inner.tidy()
        await self.remote.tidy()

    async def status(self) -> dict[str, int | float | str]:
        """The lag (batches, bytes, seconds, where 0 is none), what is wrong with the remote store, and the rest."""
        found: dict[str, int | float | str] = {**await self._lag(), "trouble": self._sender.trouble}
        found |= {f"local_{name}": value for name, value in (await self.inner.status()).items()}
        found |= {f"remote_{name}": value for name, value in (await self.remote.status()).items()}
        return found

    async def close(self) -> None:
        """Waits for batches under way, and for the copy to get them. What is left is sent after opening again."""
        await BlockingCall(self._stop)
        await self.remote.close()
        await self.inner.close()

    # Writing --------------------------------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> tuple[int | None, int | None]:
        """Write a batch into the local store: the number of its entry, and the place that was refused."""
        if self._sender.over is not None:
            raise again(self._sender.over)
        self._check_sizes(batch)
        moved = await move_theirs(self.inner, batch)
        outgoing = OutgoingBatch(moved.changes)
        refused = await self._queue.submit(outgoing)
        return outgoing.number, None if refused is None else moved.places[refused]

    def _check_sizes(self, batch: Batch) -> None:
        """Nothing may get into the journal that the copy cannot take."""
        able = self.capabilities
        largest = max((len(change.row.body) for change in batch if isinstance(change, _WRITING)), default=0)
        if largest > able.max_body or size_of(batch) > able.max_batch:
            raise TooLargeError(
                f"a batch of {size_of(batch)} bytes, the largest body of {largest}, is more than this pair takes: "
                f"{able.max_batch}, and {able.max_body} a body",
                where=self.url,
            )

    def _commit(self, batches: list[Batch], outcomes: list[Outcome]) -> None:
        """Commit a group of batches, as `holdfast.backends.runtime.group_commit.Commit` has it."""
        self._recall()
        answers: dict[int, Outcome] = {}
        todo = [(place, cast(OutgoingBatch, batch)) for place, batch in enumerate(batches) if batch]
        todo = [(place, batch) for place, batch in todo if batch.number is None]
        while todo:
            # What is made here as one gets to the copy as one.
            merged = MergedBatch(min(_BYTES, self.capabilities.max_batch))
            count = next((n for n, (_, batch) in enumerate(todo) if not merged.take(batch)), len(todo))
            try:
                self._make(todo[:count], answers)
            except Exception as error:  # noqa: BLE001 - the answer to all but those that were made before
                left = [place for place, batch in todo if batch.number is None and place not in answers]
                answers.update((place, again(error)) for place in left)
                break
            del todo[:count]
        outcomes.extend(answers.get(place) for place in range(len(batches)))

    def _make(self, group: list[tuple[int, OutgoingBatch]], answers: dict[int, Outcome]) -> None:
        """Make batches as one, with an entry in the journal; those that are refused, without the others."""
        while group:
            changes = [change for _, batch in group for change in batch]
            entry: list[Change] = []
            mark: JournalRow | None = None
            try:
                if not all(isinstance(change, Expect) for change in changes):
                    self._last = self._last or self._find_last()
                    entry, mark = journal.write(self._last, changes, len(group))
                refused = run(self.inner.apply([*changes, *entry]))
            except HoldfastError as error:
                self._last = None
                if isinstance(error, UnavailableError | OutcomeUnknownError):
                    self._doubt = (mark, [batch for _, batch in group]) if mark else None
                if isinstance(error, UnavailableError | TransientError) or len(group) == 1:
                    raise
                # Nothing was made. It is the fault of one of them, and nobody else's.
                self._make_each(group, answers)
                return
            except BaseException:
                self._last, self._doubt = None, (mark, [batch for _, batch in group]) if mark else None
                raise
            if refused is None:
                self._made(mark, [batch for _, batch in group])
                return
            if refused >= len(changes):
                self._last = None  # another process was first in the journal
                continue
            for place, batch in group:
                if refused < len(batch):
                    answers[place] = refused
                    group.remove((place, batch))
                    break
                refused -= len(batch)

    def _make_each(self, group: list[tuple[int, OutgoingBatch]], answers: dict[int, Outcome]) -> None:
        for place, batch in group:
            try:
                self._make([(place, batch)], answers)
            except (UnavailableError, TransientError):
                raise
            except HoldfastError as error:
                answers[place] = error

    def _made(self, mark: JournalRow | None, batches: list[OutgoingBatch]) -> None:
        if mark is None:
            return
        self._last = mark
        for batch in batches:
            batch.number = mark.number
        self._sender.ring()

    def _recall(self) -> None:
        """Find out what became of what was interrupted."""
        if self._doubt is None:
            return
        mark, batches = self._doubt
        ((*rows,),) = run(self.inner.read([journal.at(mark.number)]))
        if rows and journal.mark_of(rows[0]) == mark:
            self._made(mark, batches)
        self._last = self._doubt = None

    def _find_last(self) -> JournalRow:
        ((*rows,),) = run(self.inner.read([journal.LAST]))
        if not rows:
            raise UnavailableError(
                "the journal of the local store is gone", where=self.inner.url, hint="Close the pair, and open it anew"
            )
        return journal.mark_of(rows[0])

    # The copy -------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Start sending; what is plainly wrong with the copy is said now."""
        await self._sender.begun(self._patience)
        error = self._sender.over or self._sender.failure
        if isinstance(error, ConfigError | DeniedError):
            raise again(error)

    async def _caught_up(self) -> bool:
        """Whether the copy has, by now or in a moment, all that is in the local store now."""
        ((last,),) = await self.inner.read([journal.LAST])
        return await self._sender.arrival(journal.mark_of(last).number, self._patience)

    async def _differences(self) -> list[store_diff.RowDifference]:
        return await store_diff.differences(self.inner, self.remote, self._caught_up)

    async def _lag(self) -> dict[str, int | float | str]:
        batches = size = oldest = 0
        start = self._sender.sent + 1
        while True:
            ((*rows,),) = await self.inner.read([Scan(JOURNAL, journal.LINE, start=(start,), limit=_PAGE)])
            for row in rows:
                oldest = oldest or journal.mark_of(row).time
                batches += journal.batches_in(row)
                size += len(row.body)
            if len(rows) < _PAGE:
                break
            start = journal.mark_of(rows[-1]).number + 1
        seconds = max(0.0, (time.time_ns() - oldest) / 1e9) if batches else 0.0
        return {"lag_batches": batches, "lag_bytes": size if batches else 0, "lag_seconds": round(seconds, 3)}

    def _stop(self) -> None:
        self._queue.close()
        self._sender.stop(self._drain)
        if self._sender.trouble and not self._told:
            self._told = True
            _log.warning("%s: closed before everything was copied; it goes on when it is opened again", self.url)


class WriteBehindBackend(ReplicatingBackend):
    """`behind:`: acknowledged once it is in the local store, copied soon after."""

    schemes = ("behind",)


_WRITING = (Create, Ensure, Put)
