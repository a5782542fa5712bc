"""Evaluation of batches, for stores that cannot check conditions themselves.

A store reads the columns of the rows that the conditions need, evaluates the batches here, and applies the effect:
first the deletions, then the writes. It has to ensure that nobody changes those rows meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row
from holdfast.backends.tables import JsonText, Key, Scalar, Table, WordList

RowKey: TypeAlias = tuple[Table, Key]

Columns: TypeAlias = tuple[Scalar, ...]

Lookup: TypeAlias = Callable[[Table, Key], Columns | None]
"""Returns the columns of a stored row; None if there is none."""


def condition_keys(batches: Iterable[Batch]) -> set[RowKey]:
    """Return the rows that `evaluate` may look up."""
    places: set[RowKey] = set()
    for batch in batches:
        for change in batch:
            if isinstance(change, Create | Ensure):
                places.add((change.space, change.row.key))
            elif isinstance(change, Expect):
                places.add((change.space, change.key))
    return places


class Effect:
    """The changes to a store: remove the rows of `deleted`, and then store those of `written`."""

    def __init__(self) -> None:
        self.deleted: dict[Table, set[Key]] = {}
        """Prefixes of keys."""
        self.written: dict[RowKey, Row] = {}
        self.created: set[RowKey] = set()
        """Written rows whose keys are free after the deletions."""

    def columns(self, space: Table, key: Key, lookup: Lookup) -> Columns | None:
        """Return the columns of a row after this effect."""
        row = self.written.get((space, key))
        if row is not None:
            return row.columns
        return None if self.deletes(space, key) else lookup(space, key)

    def deletes(self, space: Table, key: Key) -> bool:
        """Return whether a stored row is removed."""
        prefixes = self.deleted.get(space)
        return prefixes is not None and any(key[:width] in prefixes for width in range(len(key) + 1))

    def delete(self, space: Table, prefix: Key) -> None:
        """Remove rows, also those of `written`."""
        self.deleted.setdefault(space, set()).add(prefix)
        if len(prefix) == len(space.key):
            removed = [(space, prefix)]
        else:
            width = len(prefix)
            removed = [place for place in self.written if place[0] is space and place[1][:width] == prefix]
        for place in removed:
            self.written.pop(place, None)
            self.created.discard(place)

    def write(self, space: Table, row: Row, created: bool) -> None:
        """Store a row; `created` if its key is free."""
        place = (space, row.key)
        if created and place not in self.written:
            self.created.add(place)
        self.written[place] = row

    def add(self, other: Effect) -> None:
        """Append another effect."""
        for space, prefixes in other.deleted.items():
            for prefix in prefixes:
                self.delete(space, prefix)
        for place, row in other.written.items():
            self.write(place[0], row, place in other.created)


def evaluate(batches: Sequence[Batch], lookup: Lookup) -> tuple[list[int | None], Effect]:
    """Evaluate batches in order. Returns the outcome of each, and the effect of those that are not refused.

    Each sees the effect of those before it.
    """
    outcomes: list[int | None] = []
    total = Effect()

    def current(space: Table, key: Key) -> Columns | None:
        return total.columns(space, key, lookup)

    for batch in batches:
        effect = Effect()
        refused = next((at for at, change in enumerate(batch) if not _change(effect, change, current)), None)
        outcomes.append(refused)
        if refused is None:
            total.add(effect)
    return outcomes, total


def same_columns(space: Table, found: Columns | None, expected: Columns | None) -> bool:
    """Return whether columns are equal: JSON by its meaning, and words in any order."""
    if found == expected:
        return True
    if found is None or expected is None or len(found) != len(expected):
        return False
    kinds = space.columns.values()
    return all(
        one == two or _same_meaning(kind, one, two) for kind, one, two in zip(kinds, found, expected, strict=True)
    )


def _same_meaning(kind: type, one: Scalar, two: Scalar) -> bool:
    if not (isinstance(one, str) and isinstance(two, str)):
        return False
    if issubclass(kind, WordList):
        return set(one.split(" ")) == set(two.split(" "))
    if not issubclass(kind, JsonText):
        return False
    # Dumped again, since to Python 1, 1.0 and true are equal.
    return json.dumps(json.loads(one), sort_keys=True) == json.dumps(json.loads(two), sort_keys=True)


def _change(effect: Effect, change: Change, current: Lookup) -> bool:
    """Add a change to an effect. Returns False if its condition does not hold."""
    space = change.space
    match change:
        case Create(_, row) | Ensure(_, row):
            if effect.columns(space, row.key, current) is not None:
                return isinstance(change, Ensure)
            effect.write(space, row, created=True)
        case Put(_, row):
            effect.write(space, row, created=False)
        case Delete(_, prefix):
            effect.delete(space, prefix)
        case Expect(_, key, columns):
            return same_columns(space, effect.columns(space, key, current), columns)
    return True
