"""The data of the pages of hooks: the history of their calls, statistics, and a call with its replay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.hooks.context import HookExecution
from holdfast.hooks.points import POINTS
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.recording_routes import (
    replay_hook,
)
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.page_renderer import python_text, shell_text
from holdfast.interfaces.web.record_list import list_values

FIELDS = ("hook", "point", "scope", "key", "slower_than", "since")
ORDERS = {"slowest": "Slowest", "failing": "Failing", "most-called": "Most often"}
_ROWS = 50
_LONGEST = 4000
_VALUES = ("value", "result", "metadata")
"""The details of a call that are values, and shown one by one."""

_DETAILS = {"before": "Version before", "error": "Error", "reason": "Reason", "message": "Message"}


def hook_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the history of hooks shows: a page of calls."""
    failed = params.get("failed") == "true"
    found = list_values(call.owned.hooks.history, params, FIELDS, _ROWS, failed=failed)
    return {**found, "failed": failed, "points": sorted(POINTS)}


def undelivered_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the outbox of durable hooks shows: a page of calls that were not delivered."""
    found = list_values(call.owned.hooks.undelivered, params, ("hook", "state"), _ROWS)
    return {**found["given"], **found, "changeable": call.service.may_write(call.caller)}


def change_undelivered(call: Call, reference: str, change: str) -> None:
    """Retry or discard an undelivered call."""
    call.require_write()
    hooks = call.owned.hooks
    if change == "retry":
        hooks.retry(reference)
    elif change == "discard":
        hooks.discard(reference)
    else:
        raise NotFoundError("an undelivered call can only be retried or discarded")


def hook_statistics_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the statistics of hooks show: those that are slowest, that fail, or that are called most often."""
    since, by = params.get("since", "").strip(), params.get("by", "slowest")
    by = by if by in ORDERS else "slowest"
    values: dict[str, Any] = {"since": since, "by": by, "orders": ORDERS, "items": [], "problem": None, "longest": 0.0}
    try:
        found = call.owned.hooks.statistics(since=since or None)
    except InvalidError as error:
        return {**values, "problem": to_problem(error)}
    return {**values, "items": sorted(found, key=_SORT[by]), "longest": max((each.worst for each in found), default=0)}


_SORT: Mapping[str, Any] = {
    "slowest": lambda each: (-each.average, each.hook),
    "failing": lambda each: (-each.failures / max(1, each.calls), -each.failures, each.hook),
    "most-called": lambda each: (-each.calls, each.hook),
}


class CallValue(NamedTuple):
    """A value that was recorded with a call."""

    title: str
    text: str
    complete: bool


def hook_call_values(call: Call, reference: str, form: ActionForm) -> dict[str, Any]:
    """Return what the page of a call shows; if its form was sent, also how its replay ended."""
    found = call.owned.hooks.get(reference)
    detail = found.detail
    shown = [CallValue(name.capitalize(), *long_text(detail[name], _LONGEST)) for name in _VALUES if name in detail]
    exact = detail.get("recording") == "full"
    code = call.service.options.hooks
    values: dict[str, Any] = {
        "found": found,
        "values": shown,
        "exact": exact,
        "rest": {label: str(detail[name]) for name, label in _DETAILS.items() if name in detail},
        "code": code,
        "replayable": exact and bool(code) and call.service.may_write(call.caller),
        "given": form.text("value") if form.sent else "",
        "replayed": None,
        "problem": None,
    }
    values["python"] = _python(found, code or "MODULE:FUNCTION", values["given"])
    values["cli"] = _command(found, code or "MODULE:FUNCTION", values["given"])
    if form.sent:
        values |= _replay(call, reference, values["given"])
    return values


def _replay(call: Call, reference: str, given: str) -> dict[str, Any]:
    try:
        value = json.loads(given) if given else None
    except ValueError as error:
        return {"problem": to_problem(InvalidError(f"the value is not JSON: {error}", hint='A text is in "quotes"'))}
    try:
        call.require_write()
        return {"replayed": replay_hook(call, reference, value=value)}
    except HoldfastError as error:
        return {"problem": to_problem(error)}


def _python(found: HookExecution, code: str, value: str) -> str:
    """Return the replay of a call as Python."""
    other = f", value={value}" if value else ""
    arguments = f"{python_text(code)}, reference={python_text(found.reference)}{other}"
    return f"from holdfast import replay\nreplay.run_hooks(store, {arguments})"


def _command(found: HookExecution, code: str, value: str) -> str:
    """Return the replay of a call as a command."""
    other = f" --value {shell_text(value)}" if value else ""
    return f"holdfast replay hooks {shell_text(code)} --reference {shell_text(found.reference)}{other}"
