"""The data of the page of a thread: its history in lanes, a step as conversation, state, difference and metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup

from holdfast._views import plain
from holdfast.codec.value_text import json_text
from holdfast.engine.types import Checkpoint, ThreadStatus
from holdfast.errors import CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.step_summary import ONLY_INTERNAL
from holdfast.history.thread_status import parse_error
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.recording_routes import read_records, to_tasks
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import (
    describe_checkpoint,
    end_mark,
    get_blame,
    get_diff,
    get_history,
    get_log,
    get_messages,
    get_thread,
    get_value,
)
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.actions import action_values, may_change, offered
from holdfast.interfaces.web.answer_plan import QuestionView, view_question
from holdfast.interfaces.web.lanes import MAX_WIDTH, LaneRow, Lanes, width_of
from holdfast.interfaces.web.page_renderer import message_blocks, query_text, render, segment, short_span
from holdfast.interfaces.web.redaction import Redaction
from holdfast.interfaces.web.subgraphs import list_subgraphs
from holdfast.store.log_reader import LogEntry

log: logging.Logger = logging.getLogger("holdfast.web")

TABS = ("conversation", "state", "diff", "pending", "metadata", "recording")
ROWS = 30
"""How many checkpoints of a history are read at a time: more than a screen has."""

_AHEAD = 12
"""How many later steps are shown above one that is far from the latest."""

_ENDS = 8
"""Of so many branches, it is shown whether they wait for an answer."""

_STEPS = 4
"""How many steps are sent at once to who goes from step to step."""

_MESSAGES = 20
Params = Mapping[str, str]


class HistoryRow(NamedTuple):
    """A checkpoint in the history of a page."""

    entry: LogEntry
    lane: LaneRow
    node: str
    change: str
    gap: str
    """The time since the one before it."""
    mark: str
    """`waits` or `failed`, if an interrupt or an error is pending after it; only the last steps of branches are looked
    at. Or `tool`, if it added the result of a tool that failed."""
    names: list[tuple[str, str]]
    """Its branches, tags and labels, each with its kind."""

    @property
    def is_quiet(self) -> bool:
        """Whether it changed nothing that is shown, and nothing is to be said of it."""
        return self.change == ONLY_INTERNAL and not (self.names or self.mark or self.entry.damage or self.entry.head)


class History(NamedTuple):
    """A part of a history. `lanes` and `cursor` are what the next part starts with."""

    rows: list[HistoryRow]
    groups: list[list[HistoryRow]]
    """The rows, those that changed only internal channels together."""
    cursor: str | None
    lanes: str
    from_latest: bool
    width: int


# History ----------------------------------------------------------------------------------------------------------


def _history(
    call: Call,
    name: str,
    params: Params,
    found: models.CheckpointDetailModel | None = None,
    detail: models.ThreadDetailModel | None = None,
) -> History:
    """Read a part of the history: from a cursor on; from the latest; or around a checkpoint that is further back."""
    cursor = params.get("cursor")
    if cursor:
        page = _rows(call, name, params.get("lanes", ""), False, cursor=cursor)
        return page._replace(width=max(page.width, min(_number(params.get("width"), 0), MAX_WIDTH)))
    if found is None or not _is_far(found, detail):
        latest = _rows(call, name, "", True, all_branches=True)
        if found is None or any(row.entry.id == found.checkpoint.id for row in latest.rows):
            return latest
    at = found.checkpoint.id
    for ahead in range(_AHEAD, 0, -1):
        if not found.branch_name:
            break
        try:
            at = call.store.thread(name).find(f"{found.branch_name}#{found.checkpoint.step + ahead}").id
            break
        except NotFoundError:
            continue
    return _rows(call, name, "", False, at=at)


def _is_far(found: models.CheckpointDetailModel, detail: models.ThreadDetailModel | None) -> bool:
    """Whether a checkpoint is certainly not among the latest: so many are after it on its branch."""
    head = None if detail is None else detail.head
    return head is not None and head.branch == found.checkpoint.branch and head.step - found.checkpoint.step >= ROWS


def _rows(call: Call, name: str, waiting: str, from_latest: bool, **where: Any) -> History:
    page = get_log(call, name, limit=ROWS, **where)
    lanes = Lanes(waiting)
    times = {each.position: each.time for each in page}
    ends = [each.id for each in page if each.id and (each.head or each.branches)][:_ENDS]
    rows = [
        HistoryRow(
            each,
            lanes.row(each.position, each.parents),
            _node(each),
            ", ".join(each.summary) or ("pruned" if not each.id else "no change"),
            _gap(each.time, times.get(each.parents[0]) if each.parents else None),
            (each.id in ends and end_mark(call, name, each.id)) or ("tool" if each.failed else ""),
            _names(each),
        )
        for each in page
    ]
    groups = [list(found) for _, found in groupby(rows, lambda row: row.is_quiet or row.entry.position)]
    return History(rows, groups, page.next, lanes.waiting, from_latest, width_of(row.lane for row in rows))


def _names(entry: LogEntry) -> list[tuple[str, str]]:
    kinds = (("branch", entry.branches), ("tag", entry.tags), ("label", entry.labels))
    return [(kind, name) for kind, names in kinds for name in names]


def _node(entry: LogEntry) -> str:
    """Return what saved a checkpoint: the node of a graph, or its kind."""
    for key in ("node", "langgraph_node", "by", "agent", "author"):
        found = entry.metadata.get(key)
        if isinstance(found, str) and found:
            return found
    return ", ".join(each.strip("_") for each in entry.nodes) or entry.kind


def _gap(time: datetime, before: datetime | None) -> str:
    if before is None:
        return ""
    seconds = (time - before).total_seconds()
    return f"+{short_span(seconds)}" if seconds >= 1 else ""


# A step -----------------------------------------------------------------------------------------------------------


def step_values(call: Call, name: str, at: str = "HEAD", *, params: Params, want: str) -> dict[str, Any]:
    """Return what the page of a step shows. `want` is the part that a script asks for; empty for the whole page."""
    if want == "rows":
        return {"name": name, "history": _history(call, name, params), "selected": ""}
    detail = get_thread(call, name)
    if want in ("steps-before", "steps-after"):
        return {"steps": list(_several_steps(call, name, at, params, want.removeprefix("steps-"), detail))}
    return _step_values(call, name, at, params, want, detail)


def _several_steps(
    call: Call, name: str, at: str, params: Params, side: str, detail: models.ThreadDetailModel
) -> Iterator[tuple[str, Markup]]:
    """Yield a step, and those next to it on one side, each with its address and as it is shown."""
    for _ in range(_STEPS):
        values = _step_values(call, name, at, params, "step", detail)
        address = f"/threads/{segment(name)}/{segment(at)}{query_text(tab=params.get('tab'))}"
        yield address, Markup(render("parts/step.html", **values))  # noqa: S704 - rendered, and escaped by that
        if not (beside := values["neighbours"].get(side)):
            return
        at = beside


def _step_values(
    call: Call, name: str, at: str, params: Params, want: str, detail: models.ThreadDetailModel
) -> dict[str, Any]:
    try:
        found = describe_checkpoint(call, detail, at)
    except CorruptError as error:  # said plainly; the rest of the page works
        return _damaged_values(call, name, at, params, detail, error)
    checkpoint = found.checkpoint
    status = _status(call, name)
    tab = params.get("tab", "")
    a = params.get("a") or None
    if tab not in TABS:
        tab = "diff" if a else "conversation"
    values: dict[str, Any] = {
        "name": name,
        "found": found,
        "detail": detail,
        "selected": checkpoint.id,
        "tab": tab,
        "a": a,
        "status": status,
        "questions": list(_questions(call, name, status)) if status and status.checkpoint == checkpoint.id else [],
        "failures": _failures(found, status),
        "subgraphs": list_subgraphs(call, name, checkpoint) if tab in ("conversation", "state") else [],
        "last": _last_step(call, name, detail, found),
        "neighbours": _neighbours(call, name, found, detail),
        "editable": may_change(call, name),
        "actions": offered(call, found, [each.name for each in detail.branches if each.name]),
    }
    # Reads of identities are recorded: they are asked for only if they are looked at.
    records = _records(call, name, checkpoint) if tab == "recording" or not call.caller.identity else {}
    values["recorded"] = sum(len(record.get("calls", ())) for found in records.values() for record in found)
    redaction = values["redaction"] = Redaction(call, name, clear=params.get("clear") == "1")
    if want != "step":
        values["history"] = _history(call, name, params, found, detail)
    if want == "history":
        return values
    try:
        if tab == "recording":
            values["before_it"], values["after_it"] = (
                [redaction.apply(task) for task in to_tasks(call, name, id, records[id])] if records.get(id) else []
                for id in (checkpoint.parent or "", checkpoint.id)
            )
        values |= _tab_values(call, name, checkpoint, tab, a, params, redaction)
        if tab == "conversation" and values["conversation"].channel is None and not params.get("tab"):
            values["tab"] = "state"
            values |= _tab_values(call, name, checkpoint, "state", a, params, redaction)
    except CorruptError as error:  # said plainly; the rest of the page works
        values["damage"] = to_problem(error)
    return values


def _status(call: Call, name: str) -> ThreadStatus | None:
    """Return the status of a thread; None if it cannot be told, since a step is damaged."""
    try:
        return call.store.thread(name).status()
    except CorruptError:
        return None


def _questions(call: Call, name: str, status: ThreadStatus) -> Iterator[tuple[QuestionView, dict[str, Any] | None]]:
    """Yield the questions of a thread, each with its form, if the caller may answer."""
    may_answer = may_change(call, name)
    for each in status.questions:
        form = ActionForm({"question": [each.id]}, sent=False)
        yield view_question(each), action_values(call, name, "HEAD", "answer", form) if may_answer else None


class Failure(NamedTuple):
    """An error that a task raised after a step."""

    node: str
    error: str
    message: str


def _failures(found: models.CheckpointDetailModel, status: ThreadStatus | None) -> list[Failure]:
    """Return the errors that tasks raised after a step, the one of the thread's status with its node."""
    if status is not None and status.status == "failed" and status.checkpoint == found.checkpoint.id:
        first = Failure(status.node, status.error, status.message)
        others = [Failure("", *parse_error(str(each.value or each.preview))) for each in found.pending if each.error]
        return [first, *(each for each in others if each[1:] != first[1:])]
    return [Failure("", *parse_error(str(each.value or each.preview))) for each in found.pending if each.error]


def _records(call: Call, name: str, checkpoint: Checkpoint[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what was recorded of the tasks that led to a checkpoint, and of those after it, by the checkpoints that
    they began with."""
    ids = [id for id in (checkpoint.parent, checkpoint.id) if id]
    try:
        return dict(zip(ids, read_records(call, name, ids), strict=True))
    except CorruptError:
        return {}


def _damaged_values(
    call: Call, name: str, at: str, params: Params, detail: models.ThreadDetailModel, error: CorruptError
) -> dict[str, Any]:
    """Return what the page of a step that cannot be read shows: why, and the history with its neighbours."""
    history = _history(call, name, params)
    rows = [row.entry for row in history.rows if row.entry.id]
    place = next((number for number, each in enumerate(rows) if each.id == at or (at == "HEAD" and each.head)), None)
    near = {} if place is None else {"after": rows[place - 1 : place], "before": rows[place + 1 : place + 2]}
    return {
        "name": name,
        "at": at if place is None else rows[place].id,
        "detail": detail,
        "history": history,
        "selected": at if place is None else rows[place].id,
        "damaged": to_problem(error),
        "readable": next((each for each in rows[(place or 0) + 1 :] if not each.damage), None),
        "neighbours": {side: found[0].id if found else None for side, found in near.items()},
    }


def _last_step(call: Call, name: str, detail: models.ThreadDetailModel, found: models.CheckpointDetailModel) -> int:
    """Return the number of the last step of the branch that a step is shown on."""
    branch = next((each for each in detail.branches if each.name and each.name == found.branch_name), None)
    if branch is not None and not branch.current and branch.head:
        return max(call.store.thread(name).find(branch.head).step, found.checkpoint.step)
    if branch is None or detail.head is None:
        return found.checkpoint.step
    return max(detail.head.step, found.checkpoint.step)


def _neighbours(
    call: Call, name: str, found: models.CheckpointDetailModel, detail: models.ThreadDetailModel
) -> dict[str, str | None]:
    """Return the ids of the checkpoints before and after one, on its branch."""
    after = None
    if found.branch_name and not (detail.head is not None and detail.head.id == found.checkpoint.id):
        try:
            after = call.store.thread(name).find(f"{found.branch_name}#{found.checkpoint.step + 1}").id
        except HoldfastError:
            after = None  # it is the last
    return {"before": found.checkpoint.parent, "after": after}


def _tab_values(
    call: Call,
    name: str,
    checkpoint: Checkpoint[Any],
    tab: str,
    a: str | None,
    params: Params,
    redaction: Redaction,
) -> dict[str, Any]:
    at = checkpoint.id
    if tab == "conversation":
        limit = min(500, max(1, _number(params.get("messages"), _MESSAGES)))
        found = redaction.apply(get_messages(call, name, at, limit=limit))
        diff = _diff(call, name, at, None)
        new = {each.path for each in diff.changes if each.kind == "add"} if diff is not None else set[str]()
        return {"conversation": found, "blocks": list(message_blocks(found.items, new)), "shown": limit}
    if tab == "state":
        internal = params.get("internal") == "1"
        part = get_value(call, name, at, internal=internal, limit=200)
        return {"part": redaction.apply(part), "internal": internal}
    if tab == "diff":
        diff = _diff(call, name, at, a)
        return {"diff": None if diff is None else redaction.apply(diff), "against": a}
    if tab == "metadata":
        return {"metadata": json_text(plain(dict(checkpoint.metadata)), indent=2)}
    return {}


def _diff(call: Call, name: str, at: str, a: str | None) -> models.DiffModel | None:
    """Compare a checkpoint with another, or with its parent; None if that was pruned."""
    try:
        return get_diff(call, name, a=a, b=at)
    except NotFoundError:
        if a is not None:
            raise
        return None


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


# Values -----------------------------------------------------------------------------------------------------------


def value_values(call: Call, name: str, at: str, params: Params) -> dict[str, Any]:
    """Return what a part of a state shows: the value at a path, and a page of what it contains."""
    path, start = params.get("path", ""), _number(params.get("start"), 0)
    redaction = Redaction(call, name, clear=params.get("clear") == "1")
    part = get_value(call, name, at, path=path, start=start, internal=True)
    return {
        "name": name,
        "at": at,
        "part": redaction.apply(part),
        "path": path,
        "redaction": redaction,
        "editable": may_change(call, name),
    }


def inspect_values(call: Call, name: str, at: str, params: Params) -> dict[str, Any]:
    """Return what the inspector shows of a value: itself, who wrote it, and how it changed."""
    path = params.get("path", "")
    if not path:
        raise InvalidError("the path of the value is missing", hint="Choose one in the state")
    part = get_value(call, name, at, path=path, internal=True, limit=1)
    values: dict[str, Any] = {"name": name, "at": at, "path": path, "part": part, "writer": None, "changes": []}
    values["editable"] = may_change(call, name)
    redaction = values["redaction"] = Redaction(call, name, clear=params.get("clear") == "1")
    values["part"] = redaction.apply(part)
    try:
        wrote = get_blame(call, name, path=path, at=at, limit=1)
        values["writer"] = wrote[0].writer if wrote else None
        values["changes"] = get_history(call, name, path=path, at=at, limit=12)
    except (NotFoundError, InvalidError):
        pass  # a value inside an object of a class: it has no history of its own
    return values
