"""A group of batches, and what has to be known to commit it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.batch_eval import Effect, RowKey, condition_keys
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import JsonText, Key, Table
from holdfast.errors import HoldfastError, InvalidError, TooLargeError

MAX_BODY = 1 << 28
MAX_BATCH = 1 << 28

PART = 8 << 20
"""How many bytes of a body are kept in one document."""

_MAX_COLUMNS = 6 << 20
_TOO_MUCH = 1 << 63
_ROOM = 16 << 20
"""How many bytes of bodies go into one transaction: it has to fit into the server's cache, several times."""
_SPARED = 1 << 18
"""Bodies smaller than this stay in it all the same."""

_ROW = 512
"""How many bytes of that cache a row takes besides its text and its body: for names of fields, entries of indexes, and
what the server notes of each."""

LINE = 2
"""How many columns of a key name the line, over which groups come into conflict."""


class CommitGroup:
    """Batches that are committed together, under a stamp."""

    def __init__(self, batches: Sequence[Batch], stamp: GroupStamp) -> None:
        self.stamp = stamp
        self._wrong = [_wrong(batch) for batch in batches]
        self.batches = [batch for batch, error in zip(batches, self._wrong, strict=True) if error is None]
        changes = [change for batch in self.batches for change in batch]
        self.asked = condition_keys(self.batches)
        self.expected: set[RowKey] = {(each.space, each.key) for each in changes if isinstance(each, Expect)}
        self.put: set[RowKey] = {(each.space, each.row.key) for each in changes if isinstance(each, Put)}
        self.deleted: set[RowKey] = {(each.space, each.prefix) for each in changes if isinstance(each, Delete)}
        self.created: set[RowKey] = {(each.space, each.row.key) for each in changes if isinstance(each, Create)}
        ensured = {(each.space, each.row.key) for each in changes if isinstance(each, Ensure)}
        self.only_ensured = ensured - self.created - self.put - self.expected
        """What is stored if it is not there, and nobody asks whether it was."""
        self.wide = {prefix for space, prefix in self.deleted if len(prefix) < _width(space)}
        """The prefixes that are deleted and name less than a line."""
        gone = Effect()
        for space, prefix in self.deleted:
            gone.delete(space, prefix)
        self.deletes_created = bool(self.deleted) and any(gone.deletes(*place) for place in self.created)
        """Whether something is created and deleted as well: inserting it does not tell then that its key was free."""
        self.lines = lines_of(self.batches)
        self.outgrown = _outgrown(self.batches)

    def all_outcomes(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """The outcomes of all batches, given those of the ones that can be made at all."""
        rest = iter(outcomes)
        return [next(rest) if error is None else error for error in self._wrong]


def line_of(key: Key) -> Key:
    """The line that a key is in."""
    return key[:LINE]


def lines_of(batches: Iterable[Batch]) -> set[Key]:
    """The lines that batches touch, but for what is deleted by less than a line."""
    lines: set[Key] = set()
    for batch in batches:
        for change in batch:
            if isinstance(change, Expect):
                lines.add(line_of(change.key))
            elif not isinstance(change, Delete):
                lines.add(line_of(change.row.key))
            elif len(change.prefix) >= _width(change.space):
                lines.add(line_of(change.prefix))
    return lines


def weight_of(batch: Batch) -> int:
    """About how many bytes of the server's cache a batch takes until it is committed. Nothing of that can be written
    back before; what is uploaded beforehand does not count."""
    rows = [change.row for change in batch if isinstance(change, Create | Ensure | Put)]
    uploaded = {id(row) for _, row in _outgrown([batch])}
    weight = _ROW * len(rows)
    for row in rows:
        # What the key has is in the index as well.
        weight += sum(len(value) for value in (*row.key, *row.key, *row.columns) if not isinstance(value, int))
        if id(row) not in uploaded:
            weight += len(row.body)
    return weight


def _width(space: Table) -> int:
    return min(LINE, len(space.key))


def _wrong(batch: Batch) -> HoldfastError | None:
    """What is wrong with a batch that MongoDB could not hold. Others in its group are not to suffer from it."""
    try:
        columns = max((_measured(change) for change in batch), default=0)
    except UnicodeEncodeError as error:
        return InvalidError(f"a name is no text: {error}")
    except OverflowError as error:
        return InvalidError(f"a number is too large: {error}")
    if columns > _MAX_COLUMNS:
        what = f"columns of {columns} bytes are over the {_MAX_COLUMNS} that a document has room for"
        return TooLargeError(what, hint="Save less metadata with one step")
    return None


def _measured(change: Change) -> int:
    """How many bytes the columns of a change take; their text and numbers are such as MongoDB can hold."""
    if isinstance(change, Delete | Expect):
        key, columns = (change.prefix, ()) if isinstance(change, Delete) else (change.key, change.columns or ())
    else:
        key, columns = change.row.key, change.row.columns
    size = 0
    for kind, value in zip(change.space.all_columns.values(), (*key, *columns), strict=False):
        if isinstance(value, int):
            if not -_TOO_MUCH <= value < _TOO_MUCH:
                raise OverflowError(f"{value} has more than 64 bits")
        elif isinstance(value, bytes) or value.isascii():
            size += len(value)
        else:
            size += len(value.encode("utf-8", "surrogatepass" if issubclass(kind, JsonText) else "strict"))
    return size


def _outgrown(batches: Iterable[Batch]) -> list[tuple[Table, Row]]:
    """The rows whose bodies are too large for a document, or together for a transaction."""
    changes = [change for batch in batches for change in batch if isinstance(change, Create | Ensure | Put)]
    rows = {id(change.row): (change.space, change.row) for change in changes}
    much = sum(len(row.body) for _, row in rows.values()) > _ROOM
    return [(space, row) for space, row in rows.values() if len(row.body) > (_SPARED if much else PART)]
