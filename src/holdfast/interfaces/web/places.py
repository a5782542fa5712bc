"""The pages of what records name: of a scope and a key, as audit records and events of the timeline have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.engine.model.scopes import parse_place
from holdfast.errors import HoldfastError

_LISTS = {"sessions": "/sessions", "artifacts": "/artifacts", "schemas": "/schemas", "jobs": "/jobs", "runs": "/runs"}
_AGENT_KINDS = ("transition", "lifecycle", "transfer", "recovery", "agent", "step")


def place_address(each: Any) -> str:
    """Return the page of what an event or a record of the audit is about; empty if it has none.

    That of a checkpoint is the step, of an agent's the agent, of a record the record, and of a change of a key its
    history.
    """
    scope, key, kind = str(each.scope), str(each.key), str(each.kind)
    if scope == "access":
        return f"/access/identities/{_quoted(key)}" if key and not key.startswith("role:") else "/access/roles"
    if scope in _LISTS:
        named = key and scope != "schemas"
        return f"{_LISTS[scope]}/{_quoted(key)}" if named else _LISTS[scope]
    try:
        place = parse_place(scope)
    except HoldfastError:
        return ""
    if place.thread:
        detail: Mapping[str, Any] = each.detail or {}
        at = each.id if kind == "checkpoint" else detail.get("checkpoint") or (key if kind == "change" else "")
        return f"/threads/{_quoted(place.thread)}" + (f"/{_quoted(at)}" if at else "")
    if kind in _AGENT_KINDS and scope.startswith("agent:") and "/" not in scope:
        return f"/agents/{_quoted(scope.removeprefix('agent:'))}"
    address = f"/state/{_quoted(scope or 'global')}"
    return f"{address}/{_quoted(key)}" if key and kind in ("change", "hook") else address


def correlation_address(correlation: str) -> str:
    """Return the page of everything that happened with a correlation id."""
    escaped = correlation.replace("\\", "\\\\").replace('"', '\\"')
    return "/timeline?" + urlencode({"query": f'correlation="{escaped}"'})


def _quoted(text: object) -> str:
    return quote(str(text), safe="")
