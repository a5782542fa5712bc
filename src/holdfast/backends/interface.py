"""What a store has to do: read rows, and apply a batch of changes at once.

Everything Holdfast keeps lies in the few spaces of `holdfast.backends.tables`. A backend stores their rows, and knows
nothing of what is in them. `holdfast.testing` has the suite that tells whether one keeps the promises made here.

**Waiting.** `read`, `apply` and the rest are coroutines, written once for sync and async callers. They wait only by
awaiting a `Suspension`; whoever drives them decides whether that blocks a thread or an asyncio task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import UnsupportedError

if TYPE_CHECKING:
    import asyncio  # takes longer to load than all of this package, and sync programs have no use for it

T = TypeVar("T")


class Row(NamedTuple):
    """A stored row. Columns come in the order that its space declares."""

    key: Key
    columns: tuple[Scalar, ...] = ()
    body: bytes = b""


# What can be asked ------------------------------------------------------------------------------------------------


class Get(NamedTuple):
    """The rows with these keys, each once. What is not there is left out; the order is the backend's own."""

    space: Table
    keys: Sequence[Key]


class Scan(NamedTuple):
    """The rows whose key starts with `prefix`, in order.

    `start` (inclusive) and `stop` (exclusive) bound what follows the prefix; they may name fewer columns than follow,
    and then only those are compared. With `by`, prefix, bounds and order are by the columns of that index, and then by
    those of the key that it lacks (`Space.order`). Without `bodies` rows may come with empty ones.
    """

    space: Table
    prefix: Key
    start: Key = ()
    stop: Key = ()
    reverse: bool = False
    limit: int | None = None
    by: str = ""
    bodies: bool = True


Query: TypeAlias = Get | Scan


# What can be done -------------------------------------------------------------------------------------------------


class Create(NamedTuple):
    """Store a row, on condition that its key is free."""

    space: Table
    row: Row


class Ensure(NamedTuple):
    """Store a row unless its key is taken; then leave what is there."""

    space: Table
    row: Row


class Put(NamedTuple):
    """Store a row, in place of what was there."""

    space: Table
    row: Row


class Delete(NamedTuple):
    """Remove the rows whose key starts with this; a whole key removes one. Nothing there is no failure."""

    space: Table
    prefix: Key


class Expect(NamedTuple):
    """A condition alone: the row is there and has these columns; with None, it is not there."""

    space: Table
    key: Key
    columns: tuple[Scalar, ...] | None


Change: TypeAlias = Create | Ensure | Put | Delete | Expect
Batch: TypeAlias = Sequence[Change]


RowCheck: TypeAlias = Callable[[Table, Row], bool]
"""Tells whether a row is what was written into it."""


class Capabilities(NamedTuple):
    """What a backend can do beyond the least, and how far it goes."""

    durable: bool
    """What was acknowledged survives a crash of the process, and of the machine."""
    shared: bool
    """Several processes may use one store at a time."""
    max_body: int
    """How many bytes the body of a row may have: 1 MiB at least."""
    max_batch: int
    """How many bytes of bodies a batch may have: as many as a body at least."""
    fresh: bool = True
    """A read sees what was acknowledged to other processes. Where not, it sees what this process wrote, and what was
    there when a condition failed."""
    projected: bool = False
    """Readable rows are kept beside the log, unless the caller wants it otherwise."""
    words: bool = False
    """Rows of `WORDS` are found by their words, with `match`."""


class WordMatch(NamedTuple):
    """Words to look for."""

    tenant: str
    words: Sequence[str]
    prefixes: Sequence[str]
    line: str | None
    after: str | None
    limit: int


class WordMatches(NamedTuple):
    """Where words were found, and where to go on; None for that, if there is no more."""

    keys: list[Key]
    next: str | None


class Backend(ABC):
    """A store of rows.

    Safe to use from many threads and tasks at a time. After `close`, and after a failure that leaves open what is
    stored, everything raises `UnavailableError`. Errors of drivers come out as errors of `holdfast.errors`.
    """

    schemes: ClassVar[tuple[str, ...]]
    """The URL schemes that this backend serves."""
    takes_tenant: ClassVar[bool] = False
    """Whether `open` takes the option `tenant`: to have the store itself keep this tenant's rows from others."""
    takes_read_only: ClassVar[bool] = False
    """Whether `open` takes the option `read_only`: to look at a store that is there, also where one may not write. It
    makes none: where there is none, it raises `NotFoundError` with the code `no-store`. What changes something raises
    `DeniedError`."""

    @classmethod
    @abstractmethod
    async def open(cls, url: str, **options: Any) -> Backend:
        """Open a store, and make it if it is not there. A bad URL or option raises `ConfigError`."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Names the store to people; without passwords."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    @abstractmethod
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows that each query finds, all as of one moment.

        That moment is not before the last `apply` acknowledged to anybody, in any process, when `read` was called.
        Bytes that are not what was written raise `CorruptError`, where the store can tell.
        """

    @abstractmethod
    async def apply(self, batch: Batch) -> int | None:
        """Make all changes of a batch, or none. Returns None, or the place in the batch of the first change whose
        condition does not hold (`Create`, `Expect`; conditions see the changes before them in the batch).

        When it returns, the batch is durable. Batches appear to all readers one after another; of two that create one
        key, one fails. A batch writes no key twice and deletes nothing that it wrote; it may delete first and then
        write, and may expect what it writes. An empty batch is acknowledged after all that this process submitted
        before it. If the caller is cancelled or the process dies, the batch is made whole or not at all. If it raises,
        nothing was made, unless it raises `UnavailableError` or `OutcomeUnknownError`: then it may have been.
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
        """The keys of a tenant's rows of `WORDS` (or of one of its lines) that have all of these words, and for each
        prefix a word that starts with it. A page has at most `limit`; it may have fewer, and yet not be the last.

        For stores that say so in their capabilities. What was written last comes first, as far as the store can tell.
        It may find too much, such as words that differ in capitals only, but never too little. `after` is the `next`
        of the page before, of the same question. What is written meanwhile may be missed.
        """
        return await self.matched(WordMatch(tenant, words, prefixes, line, after, limit))

    async def matched(self, match: WordMatch) -> WordMatches:  # noqa: ARG002 - for those who give it
        """What `match` finds: for a backend to give."""
        raise UnsupportedError(
            "this store does not look for words",
            where=self.url,
            hint="Search without an index, or copy the threads to a store that keeps one, such as sqlite:///agents.db",
        )

    @abstractmethod
    async def size(self) -> int:
        """About how many bytes the store takes."""

    @abstractmethod
    async def check(self) -> list[str]:
        """What the store's own means find wrong with it, in words; nothing if all is well."""

    @abstractmethod
    async def tidy(self) -> None:
        """Give room that deletions freed back, as far as that is cheap."""

    def set_row_check(self, sound: RowCheck) -> None:  # noqa: B027 - most have no use for it
        """Told how to see whether a row is what was written: the layers above know. A mirror then heals what is not."""

    async def status(self) -> dict[str, int | float | str]:
        """How the store is doing, by name: what waits, what was healed, what is cut off. For people and monitors."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; again is no failure. Waits for batches under way."""


# Waiting ----------------------------------------------------------------------------------------------------------


class Suspension(ABC, Generic[T]):
    """Something a backend waits for. Awaited inside `holdfast.backends.runtime.drivers.run` or `arun` only."""

    def __await__(self) -> Generator[Suspension[T], T, T]:
        return (yield self)

    @abstractmethod
    def wait(self) -> T:
        """Have it done, in this thread."""

    @abstractmethod
    def watch(self) -> asyncio.Future[T]:
        """Have it done elsewhere, and tell the running event loop."""


class BlockingCall(Suspension[T]):
    """A function that blocks: called where the caller is sync, in a worker thread where it is async."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function

    def wait(self) -> T:
        return self._function()

    def watch(self) -> asyncio.Future[T]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self._function)
