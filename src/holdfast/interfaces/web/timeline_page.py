"""The data of the pages of the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.interfaces.http.forwards import to_nodes
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.record_list import list_values

FIELDS = ("query", "thread", "scope", "since", "until")
_LONGEST = 4000


def timeline_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the timeline shows: a page of events."""
    errors = params.get("errors") == "true"
    return {**list_values(call.store.timeline.query, params, FIELDS, errors=errors), "errors": errors}


def event_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of an event shows: what led to it, and what it led to."""
    causes, effects = to_nodes(call.store.timeline.causes(id)), to_nodes(call.store.timeline.effects(id))
    events = [(each, _detail(each.detail)) for each in effects[0].events]
    return {"id": id, "events": events, "causes": causes[1:], "effects": effects[1:]}


def _detail(detail: Mapping[str, Any]) -> str:
    return long_text(dict(detail), _LONGEST)[0] if detail else ""
