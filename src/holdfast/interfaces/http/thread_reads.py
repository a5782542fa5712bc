"""Operations of the API that read threads: lists, logs, checkpoints, parts of states, differences, blame, search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.codec import default_codec
from holdfast.engine.pages import Page
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.projection.rendering import messages
from holdfast.engine.types import Checkpoint
from holdfast.engine.types import PendingWrite as StoredWrite
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.history.diff_result import Diff
from holdfast.history.diff_text import Change as HistoryChange
from holdfast.history.thread_status import ERROR, INTERRUPT
from holdfast.history.usage import Usage, UsageKey
from holdfast.interfaces.http import models
from holdfast.interfaces.http.messages import to_message
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import FileContent, Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import StateParts, file_of, long_text, preview_of, small_json
from holdfast.maintenance.pins import PinInfo
from holdfast.store.log_reader import LogEntry, LogReader, branch_names
from holdfast.store.thread import Thread

THREADS = RouteTable()

MAX_CHANGES = 500
"""How many changes of a comparison are sent."""

_LONGEST = 4000
"""How many characters of a side of a change are sent."""

Reveal = Annotated[
    bool,
    msgspec.Meta(
        description="Whether tokens of sensitive data are replaced by what they stand for. It needs the right `keys`, "
        "and is recorded in the audit."
    ),
]


# Threads ----------------------------------------------------------------------------------------------------------


@THREADS.get("/threads/{thread}")
def get_thread(call: Call, thread: str) -> models.ThreadDetailModel:
    """Describe a thread: its size, its branches, tags, labels, pins and holds."""
    opened = call.store.thread(thread)
    info = opened.info()
    return models.ThreadDetailModel(
        thread=info,
        owner=opened.owner(),
        head=None if info.latest is None else _head(opened),
        branches=opened.branches(),
        tags=opened.tags(),
        labels=opened.labels(),
        pins=opened.pins(),
        holds=opened.holds(),
    )


def _head(thread: Thread[Any]) -> Checkpoint[Any] | None:
    """Return HEAD; None if it is damaged, which its own page says: the rest of the thread can be read."""
    try:
        return thread.find()
    except CorruptError:
        return None


@THREADS.get("/threads/{thread}/log")
def get_log(
    call: Call,
    thread: str,
    *,
    at: str | None = None,
    all_branches: bool = False,
    first_parent: bool = False,
    where: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Page[LogEntry]:
    """List the checkpoints that lead to one, to HEAD, or to all branches, with what each changed."""
    if not 0 < limit <= 1000:
        raise InvalidError("a page of a log has 1 to 1000 checkpoints")
    reader = LogReader(call.store.thread(thread), first_parents=first_parent, where=where)
    reader.start(at, all_branches=all_branches, cursor=cursor)
    return Page(reader.page(limit), reader.cursor)


# Checkpoints ------------------------------------------------------------------------------------------------------


@THREADS.get("/threads/{thread}/checkpoints/{at}")
def get_checkpoint(call: Call, thread: str, at: str) -> models.CheckpointDetailModel:
    """Describe a checkpoint: its position, tags, labels and pins, its channels, and what is pending after it."""
    opened = call.store.thread(thread)
    found = _read(call, thread, at)
    return _describe(opened, found, branch_names(opened), opened.tags(), opened.labels(), opened.pins())


def describe_checkpoint(call: Call, detail: models.ThreadDetailModel, at: str) -> models.CheckpointDetailModel:
    """Describe a checkpoint of a thread that was described already."""
    name = detail.thread.thread
    found = _read(call, name, at)
    branches = {each.branch: each.name for each in detail.branches}
    return _describe(call.store.thread(name), found, branches, detail.tags, detail.labels, detail.pins)


def _describe(
    thread: Thread[Any],
    found: Checkpoint[Any],
    branches: Mapping[int, str],
    tags: Mapping[str, str],
    labels: Mapping[str, Sequence[str]],
    pins: Sequence[PinInfo],
) -> models.CheckpointDetailModel:
    branch = branches.get(found.branch, "")
    return models.CheckpointDetailModel(
        checkpoint=found,
        branch_name=branch,
        revision=f"{branch}#{found.step}" if branch else found.id,
        tags=[tag for tag, id in tags.items() if id == found.id],
        labels=[label for label, ids in labels.items() if found.id in ids],
        pins=[each for each in pins if each.id == found.id],
        channels=StateParts(found.state).names(),
        pending=_pending_writes(thread, found.id),
    )


def _pending_writes(thread: Thread[Any], id: str) -> list[models.PendingWriteModel]:
    """Return what is pending after a checkpoint; nothing if a later step is damaged, so that it cannot be told."""
    try:
        return [_pending(each) for each in thread.pending_writes(id)]
    except CorruptError:
        return []


_END_MARKS: Mapping[str, Literal["waits", "failed"]] = {"waiting": "waits", "failed": "failed"}


def end_mark(call: Call, name: str, id: str) -> Literal["", "waits", "failed"]:
    """Return whether a task failed after a checkpoint, or waits for an answer that it has not got."""
    thread = call.store.thread(name)
    pending = _pending_writes(thread, id)
    if any(each.error or each.interrupt for each in pending):
        status = thread.status()
        if status.checkpoint == id:  # an answer may be there already
            return _END_MARKS.get(status.status, "")
    if any(each.error for each in pending):
        return "failed"
    return "waits" if any(each.interrupt for each in pending) else ""


def _read(call: Call, thread: str, at: str) -> Checkpoint[Any]:
    """Read a checkpoint, once for a request; for the store's owner, its state part by part."""
    found = call.checkpoints.get((thread, at))
    if found is None:
        found = call.store.thread(thread).get(at, lazy=not call.caller.identity)
        call.checkpoints |= {(thread, at): found, (thread, found.id): found}
    return found


def read_parts(call: Call, thread: str, at: str, *, reveal: bool = False) -> StateParts:
    """Read a state for a request. Sensitive data is as it is stored, tokens, unless the request asks for what they
    stand for, and the caller has the right: what a browser or a program shows is decided here."""
    if not reveal:
        return StateParts(_read(call, thread, at).state)
    state = call.store.thread(thread).get(at).state
    return StateParts(call.store.redaction.reveal(state, thread=thread))


def _pending(write: StoredWrite) -> models.PendingWriteModel:
    return models.PendingWriteModel(
        task_id=write.task_id,
        channel=write.channel,
        interrupt=write.channel == INTERRUPT,
        error=write.channel == ERROR,
        value=small_json(write.value),
        preview=preview_of(write.value),
    )


@THREADS.get("/threads/{thread}/checkpoints/{at}/value")
def get_value(
    call: Call,
    thread: str,
    at: str,
    *,
    path: str = "",
    start: int = 0,
    limit: Limit = 50,
    internal: bool = False,
    reveal: Reveal = False,
) -> models.ValuePartModel:
    """Read a part of a state: the value at a path, or a page of what it contains; without a path, the channels."""
    return read_parts(call, thread, at, reveal=reveal).part(path, start, limit, internal=internal)


@THREADS.get("/threads/{thread}/checkpoints/{at}/content")
def get_content(call: Call, thread: str, at: str, *, path: str, reveal: Reveal = False) -> FileContent:
    """Read a value of a state as a file, or a range of its bytes."""
    return FileContent(*file_of(read_parts(call, thread, at, reveal=reveal).value(parse_path(path))))


@THREADS.get("/threads/{thread}/checkpoints/{at}/messages")
def get_messages(
    call: Call,
    thread: str,
    at: str,
    *,
    channel: str | None = None,
    start: int | None = None,
    limit: Limit = 50,
    reveal: Reveal = False,
) -> models.ConversationModel:
    """Read messages of a state: the last ones, or those from a number on."""
    if not 0 < limit <= 500:
        raise InvalidError("a page has 1 to 500 messages")
    parts = read_parts(call, thread, at, reveal=reveal)
    names = parts.names(internal=False) if channel is None else [channel]
    for name in sorted(names, key=lambda each: each != "messages"):
        node = parts.node((name,))
        total = node.length or 0
        if node.kind != "array" or not total:
            continue
        first = max(0, total - limit) if start is None else max(0, start)
        rendered = messages(name, default_codec.pack_items(parts.slice(name, first, first + limit)))
        if rendered is not None:
            found = [to_message(name, first + number, each) for number, each in enumerate(rendered)]
            return models.ConversationModel(channel=name, items=found, start=first, total=total)
    return models.ConversationModel(channel=None, items=[], start=0, total=0)


# Comparing --------------------------------------------------------------------------------------------------------


@THREADS.get("/threads/{thread}/diff")
def get_diff(
    call: Call,
    thread: str,
    *,
    a: str | None = None,
    b: str = "HEAD",
    other: str | None = None,
    large: bool = False,
    internal: bool = False,
) -> models.DiffModel:
    """Compare two checkpoints; without `a`, a checkpoint with its parent."""
    found = call.store.thread(thread).diff(a, b, other=other, large=large)
    return to_diff(found if internal else found.without_internal())


def to_diff(diff: Diff) -> models.DiffModel:
    """Return a difference as a response. Of many changes, the first."""
    return models.DiffModel(
        old=diff.old if diff.old.id else None,
        new=diff.new if diff.new.id else None,
        summary=list(diff.summary),
        changes=[to_change(each) for each in diff.changes[:MAX_CHANGES]],
        total=len(diff.changes),
    )


def to_change(change: HistoryChange) -> models.ChangeModel:
    """Return a change as a response, with its values as text."""
    has_old = change.kind in ("remove", "change")
    has_new = change.kind in ("add", "change", "move")
    old, old_whole = long_text(change.old, _LONGEST) if has_old else (None, True)
    new, new_whole = long_text(change.new, _LONGEST) if has_new else (None, True)
    words: Sequence[tuple[str, str]] = ()
    if isinstance(change.old, str) and isinstance(change.new, str) and old_whole and new_whole:
        words = [(span.kind, span.text) for span in change.words]
    return models.ChangeModel(
        kind=change.kind,
        path=change.where,
        was=path_text(change.was),
        old=old,
        new=new,
        words=list(words),
        complete=old_whole and new_whole,
    )


@THREADS.get("/threads/{thread}/blame")
def get_blame(
    call: Call, thread: str, *, path: str, at: str = "HEAD", limit: Limit = 100, cursor: str | None = None
) -> Page[models.BlameEntryModel]:
    """Find the checkpoint that wrote the value at a path, or each item of a list."""
    page = call.store.thread(thread).blame(path, at, limit=limit, cursor=cursor)
    items = [
        models.BlameEntryModel(path=each.where, preview=preview_of(each.value), writer=each.writer) for each in page
    ]
    return Page(items, page.next)


@THREADS.get("/threads/{thread}/history")
def get_history(
    call: Call, thread: str, *, path: str, at: str = "HEAD", limit: Limit = 100, cursor: str | None = None
) -> Page[models.ValueChangeModel]:
    """List the checkpoints that changed the value at a path, the latest first."""
    page = call.store.thread(thread).history(path, at, limit=limit, cursor=cursor)
    items = [
        models.ValueChangeModel(writer=each.writer, changes=[to_change(change) for change in each.changes])
        for each in page
    ]
    return Page(items, page.next)


@THREADS.get("/search")
def search(
    call: Call, *, query: str, limit: Limit = 20, cursor: str | None = None, scan_limit: int = 10_000
) -> models.SearchPageModel:
    """Search for checkpoints that match a query."""
    if not 0 < scan_limit <= 1_000_000:
        raise InvalidError("a search reads 1 to 1,000,000 checkpoints")
    page = call.store.search(query, limit=limit, cursor=cursor, scan_limit=scan_limit)
    return models.SearchPageModel(
        items=list(page), next=page.next, how=page.how, examined=page.examined, stopped=page.stopped
    )


@THREADS.get("/usage")
def get_usage(
    call: Call,
    *,
    by: UsageKey = "day",
    where: str = "",
    since: str | None = None,
    until: str | None = None,
    scan_limit: int = 10_000,
) -> Usage:
    """Sum the tokens that models took, and what they cost by the prices of the server."""
    if not 0 < scan_limit <= 1_000_000:
        raise InvalidError("usage is summed over 1 to 1,000,000 checkpoints")
    return call.store.usage(by=by, where=where, since=since, until=until, scan_limit=scan_limit)


# Conditions -------------------------------------------------------------------------------------------------------


def open_thread(call: Call, name: str) -> Thread[Any]:
    """Return the thread to change. With If-Match, HEAD must still be a checkpoint that it names."""
    thread = call.store.thread(name)
    if call.if_match:
        head = thread.find().id
        if head not in call.if_match:
            try:
                diff = to_diff(thread.diff(call.if_match[0], head).without_internal())
            except NotFoundError:  # it was pruned, or never was
                diff = None
            raise StaleError(head, diff)
    return thread
