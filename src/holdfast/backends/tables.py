"""The tables of every store.

A row has a key, a few scalar columns that a person can read with the store's own tools, and a body that only Holdfast
reads. Keys are ordered column by column: numbers by value, text by its UTF-8 bytes, bytes as they are. No row refers to
rows of another tenant or line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

Scalar: TypeAlias = str | int | bytes
"""A value of a key or a column. Numbers fit in 63 bits and are not negative, except `writes.place`."""

Key: TypeAlias = tuple[Scalar, ...]

MAX_NAME = 1024
"""The longest text in a key, such as the name of a tenant or a line, in bytes of UTF-8."""


class JsonText(str):
    """The type of a column of JSON text. A store that knows JSON stores the value in its own form, for people to query,
    and returns text that means the same. Never part of a key."""

    __slots__ = ()


class WordList(str):
    """The type of a column of distinct words, with one space between them. A store that can search words has an index
    of them (`Backend.match`), and may return them in another order. Never part of a key. Stores take words of up to
    1,000 bytes, and 500,000 bytes of them in a row."""

    __slots__ = ()


def plain_text(value: object) -> str:
    """Return text of one of these types as a str, for an encoder that knows only that."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a column cannot contain a value of type {type(value).__name__}")


TIME = "time"
"""The order of rows by tenant and time, across lines, in tables that have it (`Table.timed`)."""


class Table:
    """The columns of the key of a table, its other columns, and its indexes by name. There is one object for each."""

    def __init__(
        self,
        name: str,
        key: Mapping[str, type],
        columns: Mapping[str, type] | None = None,
        indexes: Mapping[str, tuple[str, ...]] | None = None,
        *,
        in_feed: bool = True,
        timed: bool = False,
        embedded: bool = False,
        independent: bool = False,
    ) -> None:
        """`in_feed` says whether `Backend.changes` names the lines of rows that change. Not for what is derived from
        other tables, nor for private rows of wrappers. `timed` says whether stores with the capability `times` can
        scan the rows by `TIME`; of `STEPS`, those without an id, and those of lines that start with `␞`, may be left
        out: they are not listed by time. `embedded` says that a line has few such rows at a time, or few recent ones,
        and mostly small: a store with a document for each line has them in it. `independent` says that rows are
        created by whoever has them, and that their order among other changes of the line does not matter."""
        self.name = name
        self.key = key
        self.columns: Mapping[str, type] = columns or {}
        self.indexes: Mapping[str, tuple[str, ...]] = indexes or {}
        self.in_feed = in_feed
        self.timed = timed
        self.embedded = embedded
        self.independent = independent

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    @cached_property
    def all_columns(self) -> dict[str, type]:
        """The columns of the key and the others, in stored order."""
        return {**self.key, **self.columns}

    def order(self, index: str) -> tuple[str, ...]:
        """Return the columns by which rows are ordered: the key, or those of an index and then the rest of the key."""
        if not index:
            return tuple(self.key)
        return tuple(dict.fromkeys((*self.index_columns(index), *self.key)))

    def index_columns(self, index: str) -> tuple[str, ...]:
        """Return the columns of an index."""
        return ("tenant", TIME) if index == TIME and self.timed else self.indexes[index]


_LINE: dict[str, type] = {"tenant": str, "line": str}
_STEP: dict[str, type] = {**_LINE, "branch": int, "seq": int}

LINES = Table(
    "lines",
    _LINE,
    {"created": int, "version": int, "form": int, "pruned": int, "switched_from": str},
    embedded=True,
)
"""One row for each line. `version` changes with anything but an append: what a writer has cached of the line is then
out of date. `form` numbers the sets of nodes; a rewrite of the line creates a new one. `pruned` counts the steps of
which only stubs are left. `switched_from` is the id of the step that was HEAD when HEAD was last switched
to another branch."""

DAMAGED_LINE = 0
"""The `form` of a line that a store lists and knows to be damaged. It is never stored: forms are counted from 1."""

BRANCHES = Table(
    "branches",
    {**_LINE, "branch": int},
    {"base_branch": int, "base_length": int, "created": int, "name": str},
    embedded=True,
)
"""Branches other than 0. Each continues after the first `base_length` steps of its base."""

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
        "beside": int,
    },
    {"id": ("tenant", "line", "id", "revision")},
    timed=True,
    embedded=True,
)
"""Steps. `depth` counts the steps before it, along its parents; `tail` those since the last folded one; `size` is the
total of stored bytes of the branch so far. `beside` is -1, or the number of the branch that HEAD was on when the step
was saved on another one. The stub of a pruned step has no id and no body."""

FOLDS = Table("folds", _STEP, {"form": int, "hash": bytes}, embedded=True)
"""The roots of folded states, at the steps they were folded at; `hash` is that of the step."""

NODES = Table("nodes", {**_LINE, "form": int, "node": bytes})
"""Nodes of folded states, by digest."""

OBJECTS = Table("objects", {**_LINE, "digest": bytes, "piece": int})
"""Pieces of large values, by the digest of the whole value."""

WRITES = Table(
    "writes",
    {**_LINE, "step": str, "task": str, "place": int},
    {"path": str, "channel": str},
    embedded=True,
    independent=True,
)
"""Pending writes, by the id of the step that they follow. They are applied in the order of path, task and place."""

REFS = Table("refs", {**_LINE, "kind": str, "name": str, "step": str}, {"target": str, "time": int}, embedded=True)
"""Tags, labels, pins and holds, and the id of their step, which is in the key of a label: many steps may have it."""

JOURNAL = Table("journal", {**_LINE, "number": int}, {"time": int}, in_feed=False)
"""Batches that are still to be written to a copy, in order; and private rows of wrappers."""

WORDS = Table("words", _STEP, {"time": int, "words": WordList}, in_feed=False)
"""The words that steps added, for searching; `time` is that of the step. Built from the log on request, and can be
rebuilt."""

QUARANTINE = Table("quarantine", {**_LINE, "number": int}, {"space": str, "time": int, "reason": str})
"""Damaged rows that a repair removed from their table, as they were found."""

JOBS = Table("jobs", {**_LINE, "name": str}, {"kind": str, "schedule": str, "state": str, "due": int, "version": int})
"""Scheduled jobs. They belong to no line: the name of the line is empty."""

FIRST_JOB = "\x02"
"""The first name that a job can have. Rows before it are timers of agents, of which there may be many."""

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
    timed=True,
)
"""Actions that were done or tried, and by whom: rows that are stored with the step they describe, and have its `id`."""

LINKS = Table("links", {**_LINE, "kind": str, "name": str, "other": str}, {"time": int, "target": str})
"""Links, to be found from either end: a kind of link, a name, and the other end."""

KEYS = Table(
    "keys",
    {**_LINE, "kind": str, "number": int},
    {"id": bytes, "wrapped_by": str, "state": str, "time": int},
    in_feed=False,
)
"""Keys of an encrypted store, each encrypted by another one: those of a tenant, under an empty `line`, by a key that is
not in the store, and those of lines by the tenant's. They are never copied: whoever deletes a key here erases what is
encrypted with it, everywhere."""

SIGNING = "signing"
"""The kind of the key that signs certificates. A store that is not encrypted has this one only."""

FIELDS = Table("fields", {**_LINE, "field": str, "value": str, "thread": str}, in_feed=False)
"""The fields of threads that lists filter by: the values of each thread, and in one line of the tenant the threads of
each value. Derived from the log, and can be rebuilt."""

# Readable rows, for people and dashboards to query. They are derived from the log and can be rebuilt.

_THREAD: dict[str, type] = {"tenant": str, "thread": str}

HEADS = Table(
    "heads",
    _THREAD,
    {
        "agent": str,
        "type": str,
        "status": str,
        "state": str,
        "checkpoint": str,
        "parent": str,
        "kind": str,
        "created": str,
        "time": str,
        "steps": int,
        "hash": str,
        "version": int,
    },
    in_feed=False,
)
"""One row for each thread and agent: its latest checkpoint. Of an agent also its id, its class, its status and the
state of its machine, which are empty otherwise. `version` changes with the rows in `state_values` and
`conversation_history`. The views `agent_states` and `threads` are made from it."""

STATE_VALUES = Table(
    "state_values",
    {**_THREAD, "channel": str},
    {"kind": str, "items": int, "checkpoint": str, "time": str, "value": JsonText},
    in_feed=False,
)
"""The channels of the latest state, and the checkpoint that changed each last. `kind` is `value`; `conversation`, and
then its `items` are in `conversation_history`; or `left out`, if the value is too large."""

CONVERSATION_HISTORY = Table(
    "conversation_history",
    {**_THREAD, "channel": str, "number": int},
    {
        "agent": str,
        "role": str,
        "name": str,
        "content": str,
        "tool_calls": JsonText,
        "checkpoint": str,
        "time": str,
        "message": JsonText,
    },
    in_feed=False,
)
"""The messages in the latest state, and the checkpoint that added each."""

TRANSITIONS = Table(
    "transitions",
    {**_THREAD, "checkpoint": str},
    {"parent": str, "branch": str, "branch_number": int, "step": int, "kind": str, "time": str, "changed": JsonText},
    in_feed=False,
)
"""One row for each checkpoint: its parent, and the channels that it changed."""

METADATA = Table("metadata", {**_THREAD, "checkpoint": str, "key": str}, {"value": JsonText}, in_feed=False)
"""The entries of each checkpoint's metadata."""

STATE_TRANSITIONS = Table(
    "state_transitions",
    {**_THREAD, "checkpoint": str, "number": int},
    {
        "agent": str,
        "from_state": str,
        "to_state": str,
        "trigger": str,
        "time": str,
        "success": JsonText,
        "error": str,
        "data": JsonText,
        "actor": str,
        "seconds": JsonText,
    },
    in_feed=False,
)
"""The transitions of agents, by the checkpoint that recorded each: also those that failed or were refused."""

READABLE = (HEADS, STATE_VALUES, CONVERSATION_HISTORY, TRANSITIONS, METADATA, STATE_TRANSITIONS)
"""The tables of readable rows."""

BY_CHECKPOINT = (TRANSITIONS, METADATA, STATE_TRANSITIONS)
"""Those of them with rows about each checkpoint, whose id follows the thread in their key."""

AGENT_FIELDS: Mapping[str, str] = {
    **{name: name for name in ("tenant", "thread", "agent", "type", "status", "state")},
    "version": "steps",
    **{name: name for name in ("created", "time", "checkpoint")},
}
"""The fields of the view `agent_states`, and the columns of `heads` that they show: of lines that have an `agent`."""

AGENT_VALUES = ("configuration", "fields", "context", "tools", "workflow", "metadata")
"""Further fields of it: the values of these channels in `state_values`."""


def agent_view(schema: str = "") -> str:
    """Return the SELECT of the view `agent_states` in SQL; `schema` is put before the names of tables."""
    values = (
        f"(SELECT v.value FROM {schema}{STATE_VALUES.name} v"  # noqa: S608 - declared names
        f" WHERE v.tenant = h.tenant AND v.thread = h.thread AND v.channel = '{name}') AS {name}"
        for name in AGENT_VALUES
    )
    columns = ", ".join((*(f"h.{column} AS {name}" for name, column in AGENT_FIELDS.items()), *values))
    return f"SELECT {columns} FROM {schema}{HEADS.name} h WHERE h.agent <> ''"  # noqa: S608


BEHIND = Table("behind", {**_THREAD, "checkpoint": str}, {"time": int}, in_feed=False, embedded=True)
"""The checkpoints that readable rows do not have yet, and when each was saved."""

TABLES = (
    *(LINES, BRANCHES, STEPS, FOLDS, NODES, OBJECTS, WRITES, REFS, JOURNAL, *READABLE[:5]),
    *(WORDS, QUARANTINE, JOBS, EVENTS, LINKS, KEYS, FIELDS, BEHIND, STATE_TRANSITIONS),
)
"""All tables. New ones come last: some stores number them."""


# Keys as bytes that sort the same way, for stores that order by bytes alone: no two keys have the same bytes, and the
# bytes of a prefix of a key are a prefix of its bytes.

_UINT64 = struct.Struct(">Q")
_ZERO_POINT = 1 << 63

# A text ends in 00 01. A zero byte inside one is written 00 FF, so that no text is a prefix of another.
_END = b"\x00\x01"
_ZERO = b"\x00\xff"


def encode_key(key: Iterable[Scalar]) -> bytes:
    """Return the bytes of a key, or of its first columns."""
    return b"".join(map(_encode, key))


def _encode(value: Scalar) -> bytes:
    if isinstance(value, int):
        return _UINT64.pack(value + _ZERO_POINT)
    data = value.encode() if isinstance(value, str) else value
    return data.replace(b"\x00", _ZERO) + _END
