"""The layout every store keeps: which kinds of rows there are, and how they are named.

A space is a set of rows. A row has a key, a few scalar columns that a person can read with the store's own tools, and a
body that only Holdfast opens. Keys are ordered: numbers by value, text by its UTF-8 bytes, bytes as they are, column by
column. Nothing in one tenant's or line's rows refers to another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

Scalar: TypeAlias = str | int | bytes
"""What a key or a column holds. Numbers fit in 63 bits and are not negative, but for `writes.place`."""

Key: TypeAlias = tuple[Scalar, ...]

MAX_NAME = 1024
"""How many bytes of UTF-8 the name of a tenant, a line or anything else in a key may have."""


class JsonText(str):
    """The type of a column that holds JSON text. A store that knows JSON keeps the value in its own form, for people to
    query, and gives back text that means the same. Never part of a key."""

    __slots__ = ()


class WordList(str):
    """The type of a column that holds words: distinct, with one space between them. A store that can look for words
    keeps an index of them (`Backend.match`), and may give them back in another order. Never part of a key. Stores take
    words of up to 1,000 bytes, and 500,000 bytes of them in a row."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A kind of rows: the columns of its key, its other columns, and its further orders by name."""

    name: str
    key: Mapping[str, type]
    columns: Mapping[str, type] = field(default_factory=dict)
    indexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def all_columns(self) -> dict[str, type]:
        """The key's columns and the others, in the order in which stores keep them."""
        return {**self.key, **self.columns}

    def order(self, index: str) -> tuple[str, ...]:
        """The columns by which rows are ordered: the key's, or those of an index and then what it lacks of the key."""
        return tuple(dict.fromkeys((*self.indexes[index], *self.key))) if index else tuple(self.key)


_LINE: dict[str, type] = {"tenant": str, "line": str}
_STEP: dict[str, type] = {**_LINE, "branch": int, "seq": int}

LINES = Table("lines", _LINE, {"created": int, "version": int, "form": int, "pruned": int})
"""One row for each line. `version` changes with anything but an append: what a writer remembers of the line is then
out of date. `form` numbers the sets of nodes; a rewrite of the line makes a new one. `pruned` counts the steps of which
only stubs are left."""

BRANCHES = Table(
    "branches", {**_LINE, "branch": int}, {"base_branch": int, "base_length": int, "created": int, "name": str}
)
"""Branches other than 0. Each goes on where the first `base_length` steps of its base end."""

STEPS = Table(
    "steps",
    _STEP,
    {
        "id": str,
        "revision": int,
        "depth": int,
        "hash": bytes,
        "time": int,
        "kind": str,
        "metadata": str,
        "tail": int,
        "size": int,
    },
    {"id": ("tenant", "line", "id", "revision")},
)
"""Steps. `depth` counts the steps before it, along its parents; `tail` those since the last folded one; `size` adds up
the stored bytes of the branch so far. What stands for a pruned step has no id and no body."""

FOLDS = Table("folds", _STEP, {"form": int, "hash": bytes})
"""The roots of folded states, at the steps they were folded at; `hash` is that of the step."""

NODES = Table("nodes", {**_LINE, "form": int, "node": bytes})
"""Nodes of folded states, by digest."""

OBJECTS = Table("objects", {**_LINE, "digest": bytes, "piece": int})
"""Pieces of large values, by the digest of the whole value."""

WRITES = Table("writes", {**_LINE, "step": str, "task": str, "place": int}, {"path": str, "channel": str})
"""Pending writes, by the id of the step that they follow. They are applied in the order of path, task and place."""

REFS = Table("refs", {**_LINE, "kind": str, "name": str, "step": str}, {"target": str, "time": int})
"""Names and tags, and the id of the step that has them. A tag's key holds that id too: many steps may have one tag."""

JOURNAL = Table("journal", {**_LINE, "number": int}, {"time": int})
"""What was written here and is yet to be written elsewhere, in order; and how far one has got."""

WORDS = Table("words", _STEP, {"time": int, "words": WordList})
"""The words that steps brought, for searching; `time` is that of the step. Made from the log, where that is wanted, and
can be made again."""

QUARANTINE = Table("quarantine", {**_LINE, "number": int}, {"space": str, "time": int, "reason": str})
"""Rows that were found damaged and taken out of their space, as they were found."""

JOBS = Table("jobs", {**_LINE, "name": str}, {"kind": str, "schedule": str, "state": str, "due": int, "version": int})
"""Scheduled work. It belongs to no line: the line's name is empty, which no line has."""

EVENTS = Table(
    "events",
    {**_LINE, "id": str, "number": int},
    {
        "time": int,
        "kind": str,
        "actor": str,
        "action": str,
        "target": str,
        "outcome": str,
        "correlation": str,
        "cause": str,
        "duration": int,
    },
)
"""What was done or tried, and by whom: rows that are made with the step they tell of, and have its `id`."""

LINKS = Table("links", {**_LINE, "kind": str, "name": str, "other": str}, {"time": int, "target": str})
"""What belongs together, to be found from either end: a kind of link, a name, and what it is linked with."""

# Readable rows: what the log says, for people and dashboards to query. They are made from it and can be made again.

_THREAD: dict[str, type] = {"tenant": str, "thread": str}

AGENT_STATES = Table(
    "agent_states",
    _THREAD,
    {"checkpoint": str, "parent": str, "kind": str, "time": str, "steps": int, "hash": str, "version": int},
)
"""One row for each thread: its latest checkpoint. `version` changes with anything that `state_values` and
`conversations` say of the thread."""

STATE_VALUES = Table(
    "state_values",
    {**_THREAD, "channel": str},
    {"kind": str, "items": int, "checkpoint": str, "time": str, "value": JsonText},
)
"""The channels of the latest state, and the checkpoint that changed each last. `kind` is `value`; `conversation`, and
then its `items` are in `conversations`; or `left out`, where the value is too large."""

CONVERSATIONS = Table(
    "conversations",
    {**_THREAD, "channel": str, "position": int},
    {"role": str, "name": str, "content": str, "checkpoint": str, "time": str, "message": JsonText},
)
"""The messages in the latest state, and the checkpoint that brought each."""

TRANSITIONS = Table(
    "transitions",
    {**_THREAD, "checkpoint": str},
    {"parent": str, "branch": str, "branch_number": int, "step": int, "kind": str, "time": str, "changed": JsonText},
)
"""One row for each checkpoint: what it follows, and the channels that it changed."""

METADATA = Table("metadata", {**_THREAD, "checkpoint": str, "key": str}, {"value": JsonText})
"""The entries of each checkpoint's metadata."""

READABLE = (AGENT_STATES, STATE_VALUES, CONVERSATIONS, TRANSITIONS, METADATA)
"""The spaces of readable rows."""

LATER = (WORDS, QUARANTINE, JOBS, EVENTS, LINKS)
"""Spaces that the first stores were made without. They get them when they are next opened for writing."""

TABLES = (LINES, BRANCHES, STEPS, FOLDS, NODES, OBJECTS, WRITES, REFS, JOURNAL, *READABLE, *LATER)
"""All there are. New ones come last: some stores number them."""
