"""Entries of a log, made of batches."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from holdfast.backends.batch_eval import Effect, evaluate
from holdfast.backends.interface import Batch, Row, Scan
from holdfast.backends.object_store.formats import DeletedRows, LogEntry, WrittenRow, check_of
from holdfast.backends.object_store.shard_view import ShardView
from holdfast.backends.tables import Key, Table


class LogEntryDraft:
    """An entry to be, with the bodies that go into it."""

    def __init__(self, view: ShardView, transaction: str = "", last: bool = False) -> None:
        self.name = view.next_name()
        """Where it goes: what it says was found true of what comes before that."""
        self.entry = LogEntry(view.names, view.token, secrets.token_bytes(8), transaction, last, False, [], [])
        self.bodies: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.entry.deleted or self.entry.written)

    def delete(self, view: ShardView, space: Table, prefix: Key) -> None:
        """Remove rows, if there are any."""
        if view.scan(Scan(space, prefix), 1):
            self.entry.deleted.append(DeletedRows(space.name, prefix[2:]))

    def write(self, space: Table, row: Row) -> None:
        """Store a row."""
        body = bytes(row.body)
        self.entry.written.append(WrittenRow(space.name, row.key[2:], row.columns, len(body), check_of(body)))
        self.bodies.append(body)


def drafted(view: ShardView, batches: Sequence[Batch]) -> tuple[list[int | None], LogEntryDraft]:
    """What batches about one shard come to: their outcomes, and the entry that makes those that are not refused."""
    outcomes, effect = evaluate(batches, view.columns)
    draft = LogEntryDraft(view)
    fill(draft, view, effect)
    return outcomes, draft


def fill(draft: LogEntryDraft, view: ShardView, effect: Effect) -> None:
    """Put the part of an effect that is about one shard into its entry."""
    for space, prefixes in effect.deleted.items():
        for prefix in prefixes:
            if prefix[:2] == view.names[: len(prefix)]:
                draft.delete(view, space, prefix if len(prefix) >= 2 else view.names)
    for (space, key), row in effect.written.items():
        if key[:2] == view.names:
            draft.write(space, row)
