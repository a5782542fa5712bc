"""A store with a copy: `write-behind:?local=agents.db&remote=postgresql://…`.

The local store has everything and answers all reads. Every batch is written there together with an entry in a journal,
and from the journal it is written to the remote store, in the background, in order and exactly once. A crash loses
nothing that was acknowledged: the journal is as durable as the local store, and its remaining entries are sent when the
pair is opened again. If the local store is lost, the remote one is a complete store, as of the last entry that it got.

`write-behind:` acknowledges once a batch is in the local store. `mirror:`, in `holdfast.backends.wrappers.mirror`,
waits for the copy as well.

All writing has to go through the pair: what is written directly into the local store is not copied.

Options: `drain` (for how many seconds `close` waits for the rest to be copied, 10), `patience` (for how many seconds
opening waits for the remote store to answer, 5), `restore` (fill an empty local store from the copy; the original store
can then no longer write to the copy).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

from msgspec.structs import replace

from holdfast.backends.distribution import Distribution
from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Capabilities,
    Change,
    Create,
    Ensure,
    Expect,
    Get,
    Put,
    Query,
    Row,
    RowCheck,
    closed_error,
)
from holdfast.backends.paging import scan_rows
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import ForkSafeLock, reinit_after_fork
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome, body_bytes, copy_error
from holdfast.backends.tables import JOURNAL, Key, Table
from holdfast.backends.urls import compose, parse_bool, parse_duration, redacted_url
from holdfast.backends.wrappers import ForwardingBackend, Wrapper, journal, open_parts, parse_composition, store_diff
from holdfast.backends.wrappers.journal import JournalRow, MergedBatch
from holdfast.backends.wrappers.journal_sender import JournalSender
from holdfast.backends.wrappers.private_rows import read_caller_rows, translate_batch
from holdfast.backends.wrappers.replica_pair import (
    PURGE,
    ReplicaCursor,
    ReplicaIdentity,
    attach,
    read_cursor,
    read_identity,
)
from holdfast.backends.wrappers.store_diff import RowDifference, read_row
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
T = TypeVar("T")

PATIENCE = 5.0
DRAIN = 10.0

_BYTES = 8 << 20
_SLACK = 1 << 16


_log = logging.getLogger("holdfast.copies")

_ATTEMPTS = 5
"""How often a row is written back while others write."""


class ReplicaHealer:
    """Repairs rows of one store of a pair from the other, and counts them.

    A row is written back at a moment at which both stores are at the same entry of the journal: then a row that one of
    them lacks, or has damaged, is as it should be in the other.
    """

    def __init__(self, local: Backend, remote: Backend, caught_up: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """`caught_up` waits until the copy has all that is in the local store; False if that takes too long."""
        self._local = local
        self._remote = remote
        self._caught_up = caught_up
        self.row_check: RowCheck | None = None
        self.healed: int = 0
        self.unhealed: int = 0

    def is_intact(self, space: Table, row: Row) -> bool:
        return self.row_check is None or self.row_check(space, row)

    async def heal(self, differences: Iterable[RowDifference]) -> None:
        """Repair what is damaged or missing in one store and OK in the other.

        Rows that are OK in both and still differ are left as they are, and in such a line also rows that only the copy
        has: somebody wrote to one of the stores directly, and nobody else can know which of the two is right.
        """
        found = [
            (each, self._is_ok(each.space, each.local), self._is_ok(each.space, each.remote)) for each in differences
        ]
        conflicts = {each.key[:2] for each, here, there in found if here and there}
        for each, here, there in found:
            cursor = await read_cursor(self._remote)
            if cursor is None:
                return
            is_lost = each.local is None and not each.damaged
            if there and not here and not (is_lost and each.key[:2] in conflicts):
                await self.restore([(each.space, each.key)], cursor)
            elif here and not there:
                await self._restore_copy(each.space, each.key, cursor)

    async def restore(self, rows: Iterable[tuple[Table, Key]], cursor: ReplicaCursor) -> None:
        """Write rows of the copy back, and count them."""
        healed: Counter[str] = Counter()
        for space, key in dict.fromkeys(rows):
            try:
                repaired = await self._restore_row(space, key, cursor)
            except HoldfastError as error:
                _log.warning("%s: a row of %s could not be repaired: %s", self._local.url, space.name, error)
                repaired = False
            healed[space.name] += repaired
            self.unhealed += not repaired
        self.healed += healed.total()
        for name, count in (+healed).items():
            _log.warning("%s: rows of %s were damaged or missing: %d repaired", self._local.url, name, count)

    async def _restore_row(self, space: Table, key: Key, cursor: ReplicaCursor | None) -> bool:
        """Write a row of the copy back. False if the copy does not have it, or others keep writing."""
        for _ in range(_ATTEMPTS):
            if cursor is None:
                break
            row, _ = await read_row(self._remote, space, key)
            if row is None or not self.is_intact(space, row):
                break
            unchanged = [cursor.last.condition, Expect(JOURNAL, (*journal.LINE, cursor.number + 1), None)]
            if await self._local.apply([*unchanged, Put(space, row)]) is None:
                return True
            # Something was written since.
            cursor = await read_cursor(self._remote) if await self._caught_up() else None
        return False

    async def _restore_copy(self, space: Table, key: Key, cursor: ReplicaCursor) -> None:
        """Write a row into the copy, if both stores are still at the cursor."""
        (last,), rows = await self._local.read([journal.LAST, Get(space, [key])])
        if journal.parse_row(last) != cursor.last or not rows or not self.is_intact(space, rows[0]):
            return
        if await self._remote.apply([cursor.condition, Put(space, rows[0])]) is None:
            self.healed += 1
            _log.warning("%s: a row of %s was damaged or missing, and is repaired", self._remote.url, space.name)

    def _is_ok(self, space: Table, row: Row | None) -> bool:
        return row is not None and self.is_intact(space, row)


class OutgoingBatch(tuple[Change, ...]):
    """A batch, and the number of its row in the journal once it is committed."""

    number: int | None = None


class ReplicatingBackend(Wrapper):
    """The base of `write-behind:` and `mirror:`."""

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
        self._healer = ReplicaHealer(local, remote, self._wait_caught_up)
        self._queue = CommitQueue(self._commit, self.url)
        self._last: JournalRow | None = None
        self._uncertain: tuple[JournalRow, list[OutgoingBatch]] | None = None
        """Batches that were interrupted while they were written, and may be stored."""
        self._warned = False
        weakref.finalize(self, self._sender.abandon)
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        self._queue.reset_after_fork()
        self._last = self._uncertain = None

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open two stores, and make them a pair if they are none yet."""
        kind = cls.schemes[0]
        parts = parse_composition(url, kind, cls._options(), options)
        settings: dict[str, Any] = {
            name: parse_duration(url, name, parts[name]) for name in ("patience", "drain") if name in parts
        }
        settings |= cls._settings(url, parts)
        restore = parse_bool(url, "restore", parts.get("restore", False))
        (local,) = await open_parts(parts["local"])
        remote: Backend = LazyBackend(parts["remote"])
        try:
            identity, filling = await read_identity(local)
            if identity is None or filling:
                identity = await attach(local, remote, restore)
            store = cls(local, remote, identity, **settings)
            await store._start()
        except BaseException:
            await remote.close()
            await local.close()
            raise
        return store

    @classmethod
    def _options(cls) -> tuple[str, ...]:
        return ("patience", "drain", "restore")

    @classmethod
    def _settings(cls, url: str, parts: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - for subclasses
        """Return the further settings of a subclass."""
        return {}

    @property
    def url(self) -> str:
        return compose(self.schemes[0], local=self.inner.url, remote=self.remote.url)

    @property
    def capabilities(self) -> Capabilities:
        local = self.inner.capabilities
        # An entry of the journal has the bodies a second time.
        max_batch = min((local.max_batch - _SLACK) // 2, self._identity.max_batch - _SLACK)
        return replace(
            local,
            shared=local.shared and self._identity.shared,
            projected=local.projected or self._identity.projected,
            max_body=min(local.max_body, self._identity.max_body, max_batch),
            max_batch=max_batch,
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await read_caller_rows(self.inner, queries)

    async def apply(self, batch: Batch) -> int | None:
        return (await self._write(batch))[1]

    async def check(self) -> list[str]:
        """Return the problems of both stores, and their differences."""
        problems = [f"{self.inner.url}: {what}" for what in await self.inner.check()]
        if not await self._wait_caught_up():
            return [*problems, f"{self.remote.url}: lags behind and was not compared: {self._sender.trouble}"]
        problems += [f"{self.remote.url}: {what}" for what in await self.remote.check()]
        return [*problems, *(difference.describe() for difference in await self._compare())]

    async def heal(self) -> list[str]:
        """Compare both stores completely, and repair one from the other; see `ReplicaHealer.heal`."""
        try:
            found = await self._compare()
            await self._healer.heal(found)
        except HoldfastError as error:
            return [f"{self.remote.url}: could not be compared: {error}"]
        return [difference.describe() for difference in found]

    def set_row_check(self, check: RowCheck) -> None:
        self._healer.row_check = check
        super().set_row_check(check)

    def group_sizes(self) -> Sequence[Distribution]:
        return (self._queue.sizes,)

    async def tidy(self) -> None:
        await self.inner.tidy()
        if await self._wait_caught_up():
            await self.remote.tidy()

    async def purge(self) -> list[str]:
        """Purge both stores, the copy when it has got everything, and the journal of what it got. If that takes too
        long, the sender does so as soon as the copy has caught up, also if the pair is closed and opened again."""
        if not await self._wait_caught_up():
            await self.inner.apply([Put(JOURNAL, Row(PURGE, (time.time_ns(),)))])
            self._sender.must_purge = True
            lag = f"the copy {self.remote.url} and the journal, until it has caught up: {self._sender.trouble}"
            return [*await self.inner.purge(), lag]
        await BlockingCall(self._sender.trim)
        return [*await self.inner.purge(), *await self.remote.purge()]

    async def status(self) -> dict[str, int | float | str]:
        """Return the lag in batches, bytes and seconds, the problem of the remote store, how many rows were healed or
        could not be, and the status of both stores."""
        found: dict[str, int | float | str] = {**await self._lag(), "trouble": self._sender.trouble}
        found |= {"healed": self._healer.healed, "unhealed": self._healer.unhealed}
        found |= {f"local_{name}": value for name, value in (await self.inner.status()).items()}
        found |= {f"remote_{name}": value for name, value in (await self.remote.status()).items()}
        return found

    async def close(self) -> None:
        """Wait for batches in progress, and for the copy to get them. The rest is sent after the next opening."""
        await BlockingCall(self._stop)
        await self.remote.close()
        await self.inner.close()

    # Writing --------------------------------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> tuple[int | None, int | None]:
        """Write a batch into the local store. Returns the number of its entry, and the position that was refused."""
        if self._sender.fatal_error is not None:
            raise copy_error(self._sender.fatal_error)
        self._check_sizes(batch)
        inner = await translate_batch(self.inner, batch)
        outgoing = OutgoingBatch(inner.changes)
        refused = await self._queue.submit(outgoing)
        return outgoing.number, None if refused is None else inner.positions[refused]

    def _check_sizes(self, batch: Batch) -> None:
        """Refuse what the copy could not take, before it is in the journal."""
        limits = self.capabilities
        largest = max(
            (len(change.row.body) for change in batch if isinstance(change, Create | Ensure | Put)), default=0
        )
        if largest > limits.max_body or body_bytes(batch) > limits.max_batch:
            raise TooLargeError(
                f"a batch of {body_bytes(batch)} bytes, the largest body of {largest}, is more than this pair takes: "
                f"{limits.max_batch}, and {limits.max_body} a body",
                where=self.url,
            )

    def _commit(self, batches: list[Batch], outcomes: list[Outcome]) -> None:
        """Commit a group of batches; see `holdfast.backends.runtime.group_commit.Commit`."""
        self._resolve_uncertain()
        answers: dict[int, Outcome] = {}
        todo = [(place, cast(OutgoingBatch, batch)) for place, batch in enumerate(batches) if batch]
        todo = [(place, batch) for place, batch in todo if batch.number is None]
        while todo:
            # What is one batch here is one batch in the copy.
            merged = MergedBatch(min(_BYTES, self.capabilities.max_batch))
            count = next((n for n, (_, batch) in enumerate(todo) if not merged.add(batch)), len(todo))
            try:
                self._write_group(todo[:count], answers)
            except Exception as error:  # noqa: BLE001 - the answer to all that are not committed
                left = [place for place, batch in todo if batch.number is None and place not in answers]
                answers.update((place, copy_error(error)) for place in left)
                break
            del todo[:count]
        outcomes.extend(answers.get(place) for place in range(len(batches)))

    def _write_group(self, group: list[tuple[int, OutgoingBatch]], answers: dict[int, Outcome]) -> None:
        """Apply batches as one, with an entry in the journal. Refused batches are left out."""
        while group:
            changes = [change for _, batch in group for change in batch]
            entry: list[Change] = []
            mark: JournalRow | None = None
            try:
                if not all(isinstance(change, Expect) for change in changes):
                    self._last = self._last or self._read_last()
                    entry, mark = journal.build_entry(self._last, changes, len(group))
                refused = run(self.inner.apply([*changes, *entry]))
            except HoldfastError as error:
                self._last = None
                if isinstance(error, UnavailableError | OutcomeUnknownError):
                    self._uncertain = (mark, [batch for _, batch in group]) if mark else None
                if isinstance(error, UnavailableError | TransientError) or len(group) == 1:
                    raise
                # Nothing was written. The fault is that of one batch, and the others are not to suffer for it.
                self._write_each(group, answers)
                return
            except BaseException:
                self._last, self._uncertain = None, (mark, [batch for _, batch in group]) if mark else None
                raise
            if refused is None:
                self._record_commit(mark, [batch for _, batch in group])
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

    def _write_each(self, group: list[tuple[int, OutgoingBatch]], answers: dict[int, Outcome]) -> None:
        for place, batch in group:
            try:
                self._write_group([(place, batch)], answers)
            except (UnavailableError, TransientError):
                raise
            except HoldfastError as error:
                answers[place] = error

    def _record_commit(self, mark: JournalRow | None, batches: list[OutgoingBatch]) -> None:
        if mark is None:
            return
        self._last = mark
        for batch in batches:
            batch.number = mark.number
        self._sender.wake()

    def _resolve_uncertain(self) -> None:
        """Find out whether interrupted batches were stored."""
        if self._uncertain is None:
            return
        mark, batches = self._uncertain
        ((*rows,),) = run(self.inner.read([journal.row_at(mark.number)]))
        if rows and journal.parse_row(rows[0]) == mark:
            self._record_commit(mark, batches)
        self._last = self._uncertain = None

    def _read_last(self) -> JournalRow:
        ((*rows,),) = run(self.inner.read([journal.LAST]))
        if not rows:
            raise UnavailableError(
                "the journal of the local store is missing",
                where=self.inner.url,
                hint="Close the pair, and open it again",
            )
        return journal.parse_row(rows[0])

    # The copy -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Start sending. Raises an error if the copy is misconfigured."""
        await self._sender.start(self._patience)
        error = self._sender.fatal_error or self._sender.last_error
        if isinstance(error, ConfigError | DeniedError):
            raise copy_error(error)

    async def _wait_caught_up(self) -> bool:
        """Wait until the copy has all that is in the local store now; False if it takes too long."""
        ((last,),) = await self.inner.read([journal.LAST])
        return await self._sender.wait_sent(journal.parse_row(last).number, self._patience)

    async def _compare(self) -> list[store_diff.RowDifference]:
        return await store_diff.compare_stores(self.inner, self.remote, self._wait_caught_up)

    async def _lag(self) -> dict[str, int | float | str]:
        batches = size = oldest = 0
        async for row in scan_rows(self.inner, JOURNAL, journal.LINE, (self._sender.sent + 1,)):
            oldest = oldest or journal.parse_row(row).time
            batches += journal.batch_count(row)
            size += len(row.body)
        seconds = max(0.0, (time.time_ns() - oldest) / 1e9) if batches else 0.0
        return {"lag_batches": batches, "lag_bytes": size if batches else 0, "lag_seconds": round(seconds, 3)}

    def _stop(self) -> None:
        self._queue.close()
        self._sender.stop(self._drain)
        if self._sender.trouble and not self._warned:
            self._warned = True
            _log.warning(
                "%s: closed before everything was copied; the rest is copied when it is opened again", self.url
            )


class WriteBehindBackend(ReplicatingBackend):
    """Acknowledges a batch once it is in the local store, and copies it soon after."""

    schemes: ClassVar[tuple[str, ...]] = ("write-behind",)


class LazyBackend(ForwardingBackend):
    """Opens the store at a URL or path on first use. Its `capabilities` are known once it is open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = ForkSafeLock()
        self._opened: Backend | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return redacted_url(self._url)

    @property
    def capabilities(self) -> Capabilities:
        if self._opened is None:
            raise UnavailableError("the store is not open yet", where=self.url)
        return self._opened.capabilities

    async def status(self) -> dict[str, int | float | str]:
        return {} if self._opened is None else await self._opened.status()

    async def close(self) -> None:
        self._closed = True
        if self._opened is not None:
            await self._opened.close()

    async def _forward(self, call: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        opened = self._opened or await BlockingCall(self._open_now)
        try:
            return await call(opened)
        except UnavailableError:
            await self._discard(opened)
            raise

    async def _discard(self, opened: Backend) -> None:
        """Close a store that failed. It is opened again on the next use."""
        with self._lock:
            if self._opened is not opened or self._closed:
                return
            self._opened = None
        await opened.close()

    def _open_now(self) -> Backend:
        with self._lock:
            if self._closed:
                raise closed_error(self.url)
            if self._opened is None:
                (self._opened,) = run(open_parts(self._url))
            return self._opened
