"""What becomes of batches, worked out from a few rows that were read: for stores that test no conditions themselves.

A store reads the columns of the keys that conditions are about, has the batches judged here, and makes what is left:
first the deletions, then the writes. It has to see to it that nobody changes those rows meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row
from holdfast.backends.tables import JsonText, Key, Scalar, Table, WordList

Place: TypeAlias = tuple[Table, Key]
"""Where a row is."""

Columns: TypeAlias = tuple[Scalar, ...]

Lookup: TypeAlias = Callable[[Table, Key], Columns | None]
"""The columns of a row that is stored, or None where there is none."""


def asked(batches: Iterable[Batch]) -> set[Place]:
    """The places that `judge` may look up, all or some of them."""
    places: set[Place] = set()
    for batch in batches:
        for change in batch:
            if isinstance(change, Create | Ensure):
                places.add((change.space, change.row.key))
            elif isinstance(change, Expect):
                places.add((change.space, change.key))
    return places


class Effect:
    """What is to be done to a store: remove all that `deleted` says, and then store what `written` has."""

    def __init__(self) -> None:
        self.deleted: dict[Table, set[Key]] = {}
        """The prefixes whose rows are removed."""
        self.written: dict[Place, Row] = {}
        self.fresh: set[Place] = set()
        """Of what is written, that which goes where the store has no row once the deletions were made."""

    def columns(self, space: Table, key: Key, lookup: Lookup) -> Columns | None:
        """What a row has after this, given what is stored."""
        row = self.written.get((space, key))
        if row is not None:
            return row.columns
        return None if self.deletes(space, key) else lookup(space, key)

    def deletes(self, space: Table, key: Key) -> bool:
        """Whether a row that is stored there is removed."""
        prefixes = self.deleted.get(space)
        return prefixes is not None and any(key[:width] in prefixes for width in range(len(key) + 1))

    def delete(self, space: Table, prefix: Key) -> None:
        """Remove rows, also those that were to be written before."""
        self.deleted.setdefault(space, set()).add(prefix)
        if len(prefix) == len(space.key):
            gone = [(space, prefix)]
        else:
            width = len(prefix)
            gone = [place for place in self.written if place[0] is space and place[1][:width] == prefix]
        for place in gone:
            self.written.pop(place, None)
            self.fresh.discard(place)

    def write(self, space: Table, row: Row, fresh: bool) -> None:
        """Store a row. `fresh` says that none is there."""
        place = (space, row.key)
        if fresh and place not in self.written:
            self.fresh.add(place)
        self.written[place] = row

    def add(self, later: Effect) -> None:
        """Have another effect come after this one."""
        for space, prefixes in later.deleted.items():
            for prefix in prefixes:
                self.delete(space, prefix)
        for place, row in later.written.items():
            self.write(place[0], row, place in later.fresh)


def judge(batches: Sequence[Batch], lookup: Lookup) -> tuple[list[int | None], Effect]:
    """Take batches one after another. Returns what each is answered, and what those that were not refused come to.

    Each sees what the ones before it made. A batch that is refused makes nothing.
    """
    outcomes: list[int | None] = []
    whole = Effect()

    def so_far(space: Table, key: Key) -> Columns | None:
        return whole.columns(space, key, lookup)

    for batch in batches:
        effect = Effect()
        refused = next((place for place, change in enumerate(batch) if not _change(effect, change, so_far)), None)
        outcomes.append(refused)
        if refused is None:
            whole.add(effect)
    return outcomes, whole


def same_columns(space: Table, found: Columns | None, expected: Columns | None) -> bool:
    """Whether columns are these. JSON counts by what it means, and words in any order."""
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


def _change(effect: Effect, change: Change, so_far: Lookup) -> bool:
    """Add a change to an effect. False if its condition does not hold."""
    space = change.space
    match change:
        case Create(_, row) | Ensure(_, row):
            if effect.columns(space, row.key, so_far) is not None:
                return isinstance(change, Ensure)
            effect.write(space, row, fresh=True)
        case Put(_, row):
            effect.write(space, row, fresh=False)
        case Delete(_, prefix):
            effect.delete(space, prefix)
        case Expect(_, key, columns):
            return same_columns(space, effect.columns(space, key, so_far), columns)
    return True
