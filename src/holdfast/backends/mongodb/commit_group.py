"""A group of batches, analysed for its commit, and the size of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pymongo.errors import OperationFailure

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.batch_eval import Columns, Effect, RowKey
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row, key_of
from holdfast.backends.mongodb.line_document import LINE_WIDTH, line_of
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import JsonText, Key, Table
from holdfast.errors import HoldfastError, InvalidError, TooLargeError

MAX_BODY = 1 << 28
MAX_BATCH = 1 << 28

PART_BYTES = 8 << 20
"""The most bytes of a body in one document."""

_MAX_COLUMNS = 6 << 20
_INT64_LIMIT = 1 << 63
_MAX_INLINE = 16 << 20
"""The most bytes of bodies in one transaction, which must fit into the server's cache several times."""
_ALWAYS_INLINE = 1 << 18
"""Smaller bodies are always stored in the transaction."""

_ROW = 512
"""The bytes of that cache that a row takes besides its text and its body: names of fields, entries of indexes, and the
server's own records."""


class Part:
    """Batches of a group that touch the same lines, and are decided together. No two parts touch the same line."""

    def __init__(self, numbers: Sequence[int], batches: Sequence[Batch]) -> None:
        self.numbers = numbers
        """The positions of the batches in the group."""
        self.batches: list[Batch] = [batches[number] for number in numbers]
        self.expected: dict[RowKey, Columns | None] = {}
        """The rows that are expected, with the columns that they are first expected to have."""
        self.put: set[RowKey] = set()
        self.deleted: set[RowKey] = set()
        self.created: set[RowKey] = set()
        ensured: set[RowKey] = set()
        independent = 0
        of_its_own = True
        for each in chain.from_iterable(self.batches):
            space = each.space
            match each:
                case Create(_, row):
                    self.created.add((space, row.key))
                    independent += space.independent
                case Put(_, row):
                    self.put.add((space, row.key))
                case Expect(_, key, columns):
                    self.expected.setdefault((space, key), columns)
                    of_its_own = of_its_own and columns is not None and space.embedded
                case Delete(_, prefix):
                    self.deleted.add((space, prefix))
                case Ensure(_, row):
                    ensured.add((space, row.key))
        self.only_ensured: set[RowKey] = ensured - self.created - self.put - self.expected.keys()
        """Rows that are stored unless they exist, and on which no condition depends."""
        self.wide_deletes: set[Key] = {prefix for space, prefix in self.deleted if len(prefix) < LINE_WIDTH}
        """The deleted prefixes that are shorter than a line."""
        gone = Effect()
        for space, prefix in self.deleted:
            gone.delete(space, prefix)
        self.deletes_created: bool = bool(self.deleted) and any(gone.deletes(*place) for place in self.created)
        """Whether a row is both created and deleted: inserting it does not show then that its key was free."""
        self.lines: set[Key] = find_lines(self.batches)
        self.large_rows: list[tuple[Table, Row]] = find_large_rows(self.batches)
        others = self.put or self.deleted or ensured
        self.is_independent: bool = (
            len(self.lines) == 1 and not others and of_its_own and 0 < independent == len(self.created)
        )
        """Whether it only adds rows whose order among other changes does not matter, on conditions of its own."""


class CommitGroup:
    """Batches that are committed together, under a stamp."""

    def __init__(self, batches: Sequence[Batch], stamp: GroupStamp) -> None:
        self.stamp = stamp
        self.token: str = f"{stamp.client}-{stamp.slot}-{stamp.number}"
        found: list[Outcome] = [_find_error(batch) for batch in batches]
        self._outcomes = found
        valid = [number for number, error in enumerate(found) if error is None]
        self.parts: list[Part] = [Part(numbers, batches) for numbers in _split(valid, batches)]
        self.is_partly_decided: bool = False
        """Whether a part has outcomes while others have not."""
        self.lines: set[Key] = {line for part in self.parts for line in part.lines}
        self.has_wide_deletes: bool = any(part.wide_deletes for part in self.parts)
        self.large_rows: list[tuple[Table, Row]] = [each for part in self.parts for each in part.large_rows]

    def settle(self, part: Part, outcomes: Sequence[Outcome]) -> None:
        """Set the outcomes of a part."""
        self.is_partly_decided = True
        for number, outcome in zip(part.numbers, outcomes, strict=True):
            self._outcomes[number] = outcome

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all batches."""
        return self._outcomes


def _split(numbers: Sequence[int], batches: Sequence[Batch]) -> Iterator[list[int]]:
    """Split batches into those that touch the same lines."""
    touched = {number: find_lines([batches[number]]) for number in numbers}
    wide = any(
        isinstance(change, Delete) and len(change.prefix) < LINE_WIDTH
        for number in numbers
        for change in batches[number]
    )
    if wide:
        yield list(numbers)
        return
    parts: dict[Key, list[int]] = {}
    for number, lines in touched.items():
        joined = [number]
        for part in {id(part): part for line in lines if (part := parts.get(line)) is not None}.values():
            joined += part
        joined.sort()
        for line in {line for each in joined for line in touched[each]}:
            parts[line] = joined
    yield from {id(part): part for part in parts.values()}.values()


def find_lines(batches: Iterable[Batch]) -> set[Key]:
    """Find the lines that batches touch, except by deleting a prefix shorter than a line."""
    return {line_of(key) for batch in batches for change in batch if len(key := key_of(change)) >= LINE_WIDTH}


def cache_weight(batch: Batch) -> int:
    """Estimate the bytes of the server's cache that a batch takes until it is committed, without what is uploaded
    before."""
    rows = [change.row for change in batch if isinstance(change, Create | Ensure | Put)]
    uploaded = {id(row) for _, row in find_large_rows([batch])}
    weight = _ROW * len(rows)
    for row in rows:
        # The key is in the index too.
        weight += sum(len(value) for value in (*row.key, *row.key, *row.columns) if not isinstance(value, int))
        if id(row) not in uploaded:
            weight += len(row.body)
    return weight


def _find_error(batch: Batch) -> HoldfastError | None:
    """Return the error of a batch that MongoDB cannot store, so that others in its group are not affected."""
    try:
        columns = max((_measure_columns(change) for change in batch), default=0)
    except UnicodeEncodeError as error:
        return InvalidError(f"a name is not valid text: {error}")
    except OverflowError as error:
        return InvalidError(f"a number is too large: {error}")
    if columns > _MAX_COLUMNS:
        what = f"columns of {columns} bytes are over the {_MAX_COLUMNS} that fit into a document"
        return TooLargeError(what, hint="Save less metadata with one step")
    return None


def _measure_columns(change: Change) -> int:
    """Return the bytes of the columns of a change. Raises if MongoDB cannot store a value."""
    columns = () if isinstance(change, Delete) else change.columns if isinstance(change, Expect) else change.row.columns
    size = 0
    for at, value in enumerate((*key_of(change), *(columns or ()))):
        if isinstance(value, int):
            if not -_INT64_LIMIT <= value < _INT64_LIMIT:
                raise OverflowError(f"{value} has more than 64 bits")
        elif isinstance(value, bytes) or value.isascii():
            size += len(value)
        else:
            kind = list(change.space.all_columns.values())[at]
            size += len(value.encode("utf-8", "surrogatepass" if issubclass(kind, JsonText) else "strict"))
    return size


def find_large_rows(batches: Iterable[Batch]) -> list[tuple[Table, Row]]:
    """Find the rows whose bodies are too large for a document, or together for a transaction."""
    changes = [change for batch in batches for change in batch if isinstance(change, Create | Ensure | Put)]
    rows = {id(change.row): (change.space, change.row) for change in changes}
    overflow = sum(len(row.body) for _, row in rows.values()) > _MAX_INLINE
    return [
        (space, row) for space, row in rows.values() if len(row.body) > (_ALWAYS_INLINE if overflow else PART_BYTES)
    ]


_DIRTY_SHARE = 5
"""One part in so many of the cache may be dirty; what is not committed cannot be written back. Beyond that share the
server blocks all writers and aborts the oldest transaction: this one. On a busy server it may do so from less than half
of that on, since the log of the replica set is in the cache too."""


_MAY_NOT_ASK = frozenset({13, 59, 115, 303, 8000})


async def read_transaction_limit(collections: Collections) -> int | None:
    """Return the most bytes of changes that the primary takes in one transaction; None if it does not report it."""
    try:
        status = await collections.database.client.admin.command("serverStatus", repl=0, metrics=0, locks=0)
    except OperationFailure as error:
        if error.code not in _MAY_NOT_ASK:
            raise
        return None
    cache = status.get("wiredTiger", {}).get("cache", {}).get("maximum bytes configured")
    return None if cache is None else int(cache) // _DIRTY_SHARE
