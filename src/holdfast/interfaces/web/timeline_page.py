"""The data of the pages of the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.timeline_routes import get_causes, get_effects, query_timeline
from holdfast.interfaces.http.values import long_text

FIELDS = ("query", "thread", "scope", "since", "until")
_LONGEST = 4000


def timeline_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the timeline shows: a page of events."""
    given = {name: params.get(name, "").strip() for name in FIELDS}
    errors = params.get("errors") == "true"
    values: dict[str, Any] = {"given": given, "errors": errors, "items": [], "next": None, "problem": None}
    values["filtered"] = errors or any(given.values())
    present: dict[str, Any] = {name: value for name, value in given.items() if value}
    try:
        page = query_timeline(call, **present, errors=errors, cursor=params.get("cursor") or None)
    except (InvalidError, NotFoundError) as error:
        return {**values, "problem": to_problem(error)}
    return {**values, "items": page, "next": page.next}


def event_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of an event shows: what led to it, and what it led to."""
    causes, effects = get_causes(call, id), get_effects(call, id)
    events = [(each, _detail(each.detail)) for each in effects[0].events]
    return {"id": id, "events": events, "causes": causes[1:], "effects": effects[1:]}


def _detail(detail: Mapping[str, Any]) -> str:
    return long_text(dict(detail), _LONGEST)[0] if detail else ""
