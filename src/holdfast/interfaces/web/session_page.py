"""The data of the pages of sessions and artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.artifact_preview import preview
from holdfast.interfaces.web.page_renderer import segment
from holdfast.interfaces.web.record_list import list_values

SESSION_STATUSES = ("active", "ended", "archived")
_KEYS = 100
_LONGEST = 4000


def session_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of sessions shows."""
    found = list_values(call.store.sessions.list, params, ("user", "status"))
    return {**found["given"], **found, "statuses": SESSION_STATUSES}


def session_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of a session shows: its record, and its state."""
    session = call.store.sessions.get(id)
    values: dict[str, Any] = {"session": session, "rows": [], "more": False, "archive": None}
    values["metadata"] = long_text(session.metadata, _LONGEST)[0] if session.metadata else ""
    try:
        page = call.store.state(session.scope).list_items(limit=_KEYS)
        values |= {"rows": page, "more": page.next is not None}
        if session.status == "archived":
            values["archive"] = long_text(call.store.sessions.archived(id), _LONGEST)[0]
    except HoldfastError:
        pass  # its state ended with it, or belongs to somebody else
    return values


def artifact_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of artifacts shows."""
    found = list_values(call.store.artifacts.list, params, ("type", "producer"))
    return {**found["given"], **found, "kind": found["given"]["type"]}


def artifact_values(call: Call, id: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of an artifact shows: its description, and what was changed with it."""
    artifact = call.store.artifacts.get(id)
    links = call.store.artifacts.changes(id, limit=50, cursor=params.get("cursor") or None)
    metadata = long_text(dict(artifact.metadata), _LONGEST)[0] if artifact.metadata else ""
    found = preview(call, artifact, f"/artifacts/{segment(id)}")
    values = {"artifact": artifact, "links": links, "next": links.next, "metadata": metadata, "preview": found}
    return {**values, "framed": found.kind == "document"}
