"""The interface of a store: it reads rows, and applies batches of changes atomically.

Everything that Holdfast stores is in the tables of `holdfast.backends.tables`. A backend stores their rows, and knows
nothing of their meaning. `holdfast.testing` has the suite that checks the guarantees made here.

**Waiting.** `read`, `apply` and the rest are coroutines, written once for sync and async callers. They await only a
`Suspension`; the driver decides whether that blocks a thread or an asyncio task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from holdfast._named_tuple import NamedTuple
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import UnavailableError, UnsupportedError

if TYPE_CHECKING:
    import asyncio  # slower to import than all of this package, and not needed by sync programs

    from holdfast.backends.distribution import Distribution

T = TypeVar("T")


class Row(NamedTuple):
    """A stored row. Its columns are in the order of the table."""

    key: Key
    columns: tuple[Scalar, ...] = ()
    body: bytes = b""


# Queries


class Get(NamedTuple):
    """The rows with these keys, each once, in any order. Missing rows are left out.

    `required` says that other rows refer to all of them, so that a missing one is lost (`lacks_rows`).
    """

    space: Table
    keys: Sequence[Key]
    required: bool = False


class ColumnHint(NamedTuple):
    """The texts that a column of the needed rows has: one of these; or none of them, if they are `excluded`; or
    all of them as parts of it, if it `contains` them."""

    column: str
    values: tuple[str, ...]
    excluded: bool = False
    contains: bool = False


class Scan(NamedTuple):
    """The rows whose key starts with `prefix`, in order.

    `start` (inclusive) and `stop` (exclusive) bound what follows the prefix; they may have fewer columns, and then only
    those are compared. With `by`, prefix, bounds and order are by the columns of that index, and then by the rest of
    the key (`Table.order`); `TIME` is one where the store has the capability `times`. A store may leave out rows that
    do not fit the `hints`. Without `bodies` rows may come with empty ones. `required` is how many rows there
    are according to other rows, so that fewer mean that some are lost.
    """

    space: Table
    prefix: Key
    start: Key = ()
    stop: Key = ()
    reverse: bool = False
    limit: int | None = None
    by: str = ""
    bodies: bool = True
    required: int = 0
    hints: tuple[ColumnHint, ...] = ()


Query: TypeAlias = Get | Scan


def lacks_rows(query: Query, found: Sequence[Row]) -> bool:
    """Return whether an answer lacks rows that the query requires. A store with a copy then reads the copy."""
    if isinstance(query, Get):
        return query.required and len(found) < len(set(query.keys))
    return len(found) < query.required


# Changes


class Create(NamedTuple):
    """Store a row, on condition that its key is free."""

    space: Table
    row: Row


class Ensure(NamedTuple):
    """Store a row unless its key is taken."""

    space: Table
    row: Row


class Put(NamedTuple):
    """Store a row, or replace it."""

    space: Table
    row: Row


class Delete(NamedTuple):
    """Remove the rows whose key starts with the prefix, if there are any."""

    space: Table
    prefix: Key


class Expect(NamedTuple):
    """A condition: the row exists and has these columns; with None, it does not exist."""

    space: Table
    key: Key
    columns: tuple[Scalar, ...] | None


Change: TypeAlias = Create | Ensure | Put | Delete | Expect
Batch: TypeAlias = Sequence[Change]


def key_of(change: Change) -> Key:
    """Return the key that a change is about; of a deletion, the prefix."""
    return change.row.key if isinstance(change, Create | Ensure | Put) else change[1]


RowCheck: TypeAlias = Callable[[Table, Row], bool]
"""Returns whether a row is undamaged."""


def closed_error(where: str, hint: str = "Open it again") -> UnavailableError:
    """Return the error for a call of a store that is closed."""
    return UnavailableError("the store is closed", where=where, hint=hint, code="closed")


class Capabilities(msgspec.Struct, frozen=True):
    """The optional features of a backend, and its limits."""

    durable: bool
    """Acknowledged batches survive a crash of the process, and of the machine."""
    shared: bool
    """Several processes may use one store at a time."""
    max_body: int
    """The largest body of a row, in bytes: 1 MiB at least."""
    max_batch: int
    """The most bytes of bodies in a batch: `max_body` at least."""
    fresh: bool = True
    """A read sees what was acknowledged to other processes. Otherwise it sees what this process wrote, and what was
    there when a condition failed."""
    projected: bool = False
    """Readable rows are stored beside the log by default."""
    words: bool = False
    """`match` finds rows of `WORDS` by their words."""
    joint_batches: bool = False
    """A batch with rows of several lines costs less than a batch for each line."""
    times: bool = False
    """`Scan` takes `by=TIME` for tables that are `timed`: the rows of a tenant by time, across lines."""
    lags: bool = False
    """Reads that may lag (`reads_may_lag`) may be answered by a replica. They see what this process has written and
    read of the same lines."""


reads_may_lag: ContextVar[bool] = ContextVar("holdfast_reads_may_lag", default=False)
"""Whether nothing that is read is the base of a change, so that a replica may answer, where a store has one."""


class WordMatch(NamedTuple):
    """A search for words."""

    tenant: str
    words: Sequence[str]
    prefixes: Sequence[str]
    line: str | None
    after: str | None
    limit: int


class WordMatches(NamedTuple):
    """A page of results, and the cursor of the next page; None at the end."""

    keys: list[Key]
    next: str | None


class Changes(NamedTuple):
    """The lines that changed, each as tenant and name, in any order; and the token to ask with the next time."""

    lines: list[tuple[str, str]]
    token: str
    complete: bool
    """Whether these are all. If not, the store does not know any more what changed: any line may have."""


class Backend(ABC):
    """A store of rows.

    Safe for many threads and tasks at a time. After `close` everything raises `UnavailableError`; after a failure with
    an unknown outcome too, until the store has opened its medium again and has found there what it acknowledged last.
    Errors of drivers are raised as those of `holdfast.errors`.
    """

    schemes: ClassVar[tuple[str, ...]]
    """The URL schemes that this backend serves."""
    takes_tenant: ClassVar[bool] = False
    """Whether `open` takes the option `tenant`: the store itself then hides the rows of other tenants."""
    takes_read_only: ClassVar[bool] = False
    """Whether `open` takes the option `read_only`, for an existing store, also one that this user may not write. If
    there is none, it raises `NotFoundError` with the code `no-store`. Changes raise `DeniedError`."""

    @classmethod
    @abstractmethod
    async def open(cls, url: str, **options: Any) -> Backend:
        """Open a store, and create it if it does not exist. A bad URL or option raises `ConfigError`."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for people to read; without passwords."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The features and limits of this store."""

    @abstractmethod
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Return the rows of each query, all as of one moment.

        That moment is not before the last `apply` that was acknowledged, in any process, when `read` was called.
        Damaged bytes raise `CorruptError`, if the store can detect them.
        """

    @abstractmethod
    async def apply(self, batch: Batch) -> int | None:
        """Apply all changes of a batch, or none. Returns None, or the position in the batch of the first change whose
        condition does not hold (`Create`, `Expect`; conditions see the changes before them in the batch).

        When it returns, the batch is durable. Batches are serializable: of two that create one key, one fails. A batch
        writes no key twice and deletes nothing that it wrote; it may delete first and then write, and may expect what
        it writes. An empty batch is acknowledged after all that this process submitted before it. If the caller is
        cancelled or the process dies, the batch is applied completely or not at all. If it raises, nothing was applied,
        unless it raises `UnavailableError` or `OutcomeUnknownError`: then it may have been.
        """

    @abstractmethod
    async def changes(self, since: str | None = None) -> Changes:
        """Return the lines that changed since a token was issued, and a new token. Without a token, only that.

        A line is named if a batch that was applied after the token was issued, in any process, wrote or deleted a row
        of it, in a table with `in_feed`. What was applied before, a read sees that starts after it. None is missing,
        however many write at once, but a line may be named again, and one whose rows are as they were.

        Not so if the answer is not `complete`: then any line may have changed, and a caller lists all. The token is
        older than what the store remembers (some thousand lines); or whole tenants were deleted since; or the store was
        replaced by another or an older one.

        On a store at rest the answer is empty, and cheap, except that stores of objects list them.

        Tokens depend on no clock. They stay valid when the store is opened again, if it is `durable`, in any process.
        One that this kind of store never issued raises `InvalidError`.
        """

    async def match(
        self,
        tenant: str,
        words: Sequence[str] = (),
        *,
        prefixes: Sequence[str] = (),
        line: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> WordMatches:
        """Return the keys of the rows of `WORDS` of a tenant, or of one of its lines, that have all of these words, and
        for each prefix a word that starts with it. A page has at most `limit` keys; it may have fewer, and yet not be
        the last.

        For stores with the capability `words`. The latest rows come first, as far as the store can tell. Results may
        include false positives, such as words that differ in capitals only, but nothing is missing, except what is
        written meanwhile. `after` is the `next` of the previous page of the same search.
        """
        return await self.match_words(WordMatch(tenant, words, prefixes, line, after, limit))

    async def match_words(self, match: WordMatch) -> WordMatches:  # noqa: ARG002 - for subclasses
        """Implement `match`, in a store with the capability `words`."""
        raise UnsupportedError(
            "this store does not support text search",
            where=self.url,
            hint="Search without an index, or copy the threads to a store that has one, such as sqlite:///agents.db",
        )

    async def count_rows(self, scans: Sequence[Scan]) -> list[int] | None:  # noqa: ARG002 - for subclasses
        """Return how many rows each scan has, all as of about now; None if the store cannot count without reading them.

        The scans are of one table other than `JOURNAL`, by key, and without a limit.
        """
        return None

    async def announce(self, topic: str) -> None:  # noqa: B027 - most stores cannot
        """Tell all who listen to a topic, in any process and on any machine. A hint: it may be lost, and that the
        server does not answer is no error."""

    async def listen(self, topic: str, heard: Callable[[], None]) -> Callable[[], None] | None:  # noqa: ARG002
        """Call a function, from any thread, after a topic was announced, or may have been. Returns what ends that; None
        if this store has no announcements: who waits looks from time to time."""
        return None

    @abstractmethod
    async def size(self) -> int:
        """Return the approximate size of the store in bytes."""

    @abstractmethod
    async def check(self) -> list[str]:
        """Run the store's own check. Returns descriptions of problems; none if it is OK."""

    async def heal(self) -> list[str]:
        """Repair the store from its copy, if it has one. Returns descriptions of what differed."""
        return []

    async def rebuild_line(self, tenant: str, line: str) -> bool:  # noqa: ARG002 - for subclasses
        """Make the rows that are left of a damaged line readable, so that it can be deleted. False if the store reads
        them anyway, or if what is lost may forbid the deletion."""
        return False

    @abstractmethod
    async def tidy(self) -> None:
        """Release space that deletions freed, as far as that is cheap."""

    async def purge(self) -> list[str]:
        """Remove what is left of rows that were deleted or replaced. Returns where some of them may still be."""
        await self.tidy()
        return [f"logs, freed space and backups of the server or disk of {self.url}"]

    def set_row_check(self, check: RowCheck) -> None:  # noqa: B027 - most do not need it
        """Set the check for damaged rows, which the engine knows. A mirror heals rows that do not pass it."""

    def group_sizes(self) -> Sequence[Distribution]:
        """Return how many batches were committed together, for each of its queues of commits, if it has any."""
        return ()

    async def status(self) -> dict[str, int | float | str]:
        """Return statistics by name: what waits, what was healed, what is unreachable. For people and monitoring."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Wait for batches in progress, and release everything. May be called again."""


# Waiting


class Suspension(ABC, Generic[T]):
    """A wait of a backend. Awaited inside `holdfast.backends.runtime.drivers.run` or `arun` only."""

    def __await__(self) -> Generator[Suspension[T], T, T]:
        return (yield self)

    @abstractmethod
    def wait(self) -> T:
        """Wait in this thread."""

    @abstractmethod
    def watch(self) -> asyncio.Future[T]:
        """Return a future of the running event loop."""


class BlockingCall(Suspension[T]):
    """A blocking function: called directly by a sync caller, in a worker thread for an async one."""

    def __init__(self, function: Callable[..., T], *args: Any) -> None:
        self._function, self._args = function, args

    def wait(self) -> T:
        return self._function(*self._args)

    def watch(self) -> asyncio.Future[T]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self._function, *self._args)
