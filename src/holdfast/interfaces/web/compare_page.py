"""The data of the page that shows two branches side by side: what each says and has from their common step on, and the
merge of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import get_diff, get_log, get_messages, get_thread
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.actions import action_values, may_change
from holdfast.interfaces.web.page_renderer import MessageBlock, message_blocks
from holdfast.interfaces.web.redaction import Redaction
from holdfast.store.log_reader import LogEntry

_PAGE, _MOST_PAGES = 50, 20
"""How many steps of each side are read at a time, and how many times, to find the common one."""

_MESSAGES = 500
"""Of so many of the last messages of each side, those that differ are found."""


class Side(NamedTuple):
    """One of the two: a branch, or another checkpoint."""

    name: str
    id: str
    step: int
    ahead: list[LogEntry]
    """Its steps since the common one, the latest first."""
    blocks: list[MessageBlock]
    """Its messages from the first on that the other does not have."""


def compare_values(call: Call, name: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows: the branches `a` and `b`, by default HEAD's and another."""
    detail = get_thread(call, name)
    names = [each.name for each in detail.branches if each.name]
    current = next((each.name for each in detail.branches if each.current and each.name), "main")
    b = params.get("b") or current
    a = params.get("a") or next((each for each in reversed(names) if each != b), b)
    redaction = Redaction(call, name, clear=params.get("clear") == "1")
    values: dict[str, Any] = {"name": name, "branches": names, "a": a, "b": b, "redaction": redaction, "merge": None}
    values |= {"detail": detail, "common": None, "sides": [], "rows": [], "total": 0, "before": None, "channel": None}
    if a == b:
        return values
    common, ahead = _common_step(call, name, (a, b))
    talks = [redaction.apply(get_messages(call, name, each, limit=_MESSAGES)) for each in (a, b)]
    start = _first_difference(talks)
    before = next((each for each in talks[0].items if each.index == start - 1), None)
    found = [call.store.thread(name).find(each) for each in (a, b)]
    channel = talks[0].channel or talks[1].channel
    diff = redaction.apply(get_diff(call, name, a=found[0].id, b=found[1].id))
    values |= {
        "common": common,
        "before": before,
        "channel": channel,
        "sides": [
            Side(side, point.id, point.step, steps, list(message_blocks(_since(talk, start), set())))
            for side, point, steps, talk in zip((a, b), found, ahead, talks, strict=True)
        ],
        "rows": [each for each in diff.changes if not channel or not _is_inside(each.path, channel)],
        "total": diff.total - len(diff.changes),
        "merge": _merge(call, name, a, b) if a in names and b in names and may_change(call, name) else None,
    }
    return values


def _common_step(call: Call, name: str, ends: tuple[str, str]) -> tuple[LogEntry | None, list[list[LogEntry]]]:
    """Return the last step that both sides have, and the steps of each since; None if it is too far back."""
    read: list[list[LogEntry]] = [[], []]
    cursors: list[str | None] = [None, None]
    for turn in range(_MOST_PAGES):
        for side, end in enumerate(ends):
            if turn and cursors[side] is None:
                continue
            where: dict[str, Any] = {"cursor": cursors[side]} if turn else {"at": end}
            page = get_log(call, name, limit=_PAGE, **where)
            read[side] += page
            cursors[side] = page.next
        seen = {each.position for each in read[0]}
        common = next((each for each in read[1] if each.position in seen), None)
        if common is not None:
            others = {each.position for each in read[1]}
            return common, [
                [each for each in read[0] if each.position not in others],
                [each for each in read[1] if each.position not in seen],
            ]
        if cursors == [None, None]:
            break
    return None, read


def _first_difference(talks: list[models.ConversationModel]) -> int:
    """Return the number of the first message that the two do not have in common."""
    mine, others = ({each.index: each for each in talk.items} for talk in talks)
    start = max(talk.start for talk in talks)
    while start in mine and start in others and mine[start] == others[start]:
        start += 1
    return start


def _since(talk: models.ConversationModel, start: int) -> list[models.MessageModel]:
    return [each for each in talk.items if each.index >= start]


def _is_inside(path: str, channel: str) -> bool:
    return path == channel or path.startswith((f"{channel}[", f"{channel}."))


def _merge(call: Call, name: str, theirs: str, into: str) -> dict[str, Any] | None:
    form = ActionForm({"theirs": [theirs], "into": [into]}, sent=False)
    try:
        return action_values(call, name, "HEAD", "merge", form)
    except NotFoundError:
        return None
