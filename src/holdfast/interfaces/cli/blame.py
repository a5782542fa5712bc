"""`holdfast blame`: the checkpoints that wrote each part of a state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import plain
from holdfast.interfaces.cli.base import CliContext, command, limit_option
from holdfast.interfaces.cli.completion_types import REVISION, THREAD
from holdfast.interfaces.cli.formatting import ago, first_line, safe

if TYPE_CHECKING:
    from holdfast.history.blame import BlameEntry, CheckpointRef, ValueChange
    from holdfast.store.store import Store

_PAGE = 200
"""How many items are read at a time."""

_HEADS = ("CHECKPOINT", "STEP", "WHEN", "BY", "PATH", "VALUE")


@command("blame", thread=THREAD)
@click.option("--at", "at", type=REVISION, default="HEAD", help="The state of this checkpoint.")
@click.option("--history", is_flag=True, help="Show every checkpoint that changed the path, the latest first.")
@limit_option()
@click.option("--word", is_flag=True, help="With --history: show changed words as [-old-]{+new+}.")
def blame(session: CliContext, thread: str, path: str, at: str, history: bool, limit: int | None, word: bool) -> None:
    """Show which checkpoint wrote each part of a state, when, and by whom.

    PATH is a channel or a path below it: messages, messages[3], messages[-10:], memory.user, memory["last name"]. Each
    item of a list or a dict is listed.

    holdfast blame chat 'messages[-10:]'
    holdfast blame chat plan.goal
    """
    store = session.open()
    if history:
        _history(session, store, thread, path, at, limit, word)
    else:
        _blame(session, store, thread, path, at, limit)


def _blame(session: CliContext, store: Store, thread: str, path: str, at: str, limit: int | None) -> None:
    entries = iter(islice(store.thread(thread).blame(path, at, limit=_PAGE).all(), limit))
    widths: list[int] = []
    while page := list(islice(entries, _PAGE)):
        if session.json:
            session.list({"path": origin.where, **plain(origin.writer), "value": origin.value} for origin in page)
        else:
            session.out.page()
            short = _short(store, thread, [each.writer for each in page])
            rows = [_row(origin, id) for origin, id in zip(page, short, strict=True)]
            widths = session.out.table(_HEADS, rows, right=("STEP",), widths=widths)


def _history(session: CliContext, store: Store, thread: str, path: str, at: str, limit: int | None, word: bool) -> None:
    changes = list(islice(store.thread(thread).history(path, at, limit=_PAGE).all(), limit))
    if session.json:
        session.list(
            {**plain(each.writer), "changes": [_change(change) for change in each.changes]} for each in changes
        )
        return
    out = session.out
    out.page()
    short = _short(store, thread, [each.writer for each in changes])
    for number, (each, id) in enumerate(zip(changes, short, strict=True)):
        if number:
            out.line()
        _title(session, each, id)
        for line in each.lines(by_word=word):
            out.line(f"  {out.diff_line(line)}".rstrip())


def _title(session: CliContext, each: ValueChange, id: str) -> None:
    writer = each.writer
    parts = [session.out.style(safe(id), "yellow"), f"step {writer.step}", safe(writer.kind), _when(writer)]
    if writer.by:
        parts.append(f"by {safe(writer.by)}")
    session.out.line("  ".join(parts))


def _when(writer: CheckpointRef) -> str:
    return "" if writer.time is None else ago(writer.time)


def _short(store: Store, thread: str, writers: Sequence[CheckpointRef]) -> list[str]:
    """Return short ids of checkpoints."""
    from holdfast.store.log_reader import short_ids

    short = short_ids(store.thread(thread), [writer.id for writer in writers if writer.id])
    return [short.get(writer.id, "(pruned)") for writer in writers]


def _row(origin: BlameEntry, id: str) -> tuple[str, ...]:
    writer = origin.writer
    return id, str(writer.step), _when(writer), writer.by, origin.where, _value(origin.value)


def _value(value: Any) -> str:
    """Format the start of a value; of a message, its role and content."""
    tree = plain(value)
    if isinstance(tree, str):
        return first_line(tree)
    if isinstance(tree, dict) and isinstance(tree.get("content"), str):
        role = tree.get("role") or tree.get("type") or ""
        return first_line(f"{role}: {tree['content']}" if role else tree["content"])
    return json.dumps(tree, ensure_ascii=False)


def _change(change: Any) -> dict[str, Any]:
    return {"kind": change.kind, "path": change.where, "old": plain(change.old), "new": plain(change.new)}
