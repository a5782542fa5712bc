"""The data of the pages of sessions and artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.store_reads import list_artifacts
from holdfast.interfaces.http.values import long_text

SESSION_STATUSES = ("active", "ended", "archived")
_KEYS = 100
_LONGEST = 4000


def session_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of sessions shows."""
    user, status = params.get("user", "").strip(), params.get("status", "").strip()
    values: dict[str, Any] = {"user": user, "status": status, "statuses": SESSION_STATUSES, "problem": None}
    values |= {"items": [], "next": None, "filtered": bool(user or status)}
    try:
        page = call.store.sessions.list(
            user=user or None,
            status=status or None,  # type: ignore[arg-type]
            limit=100,
            cursor=params.get("cursor") or None,
        )
    except InvalidError as error:
        return {**values, "problem": to_problem(error)}
    return {**values, "items": page, "next": page.next}


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
    kind, producer = params.get("type", "").strip(), params.get("producer", "").strip()
    page = list_artifacts(call, type=kind or None, producer=producer or None, cursor=params.get("cursor") or None)
    return {
        "kind": kind,
        "producer": producer,
        "items": page,
        "next": page.next,
        "filtered": bool(kind or producer),
    }


def artifact_values(call: Call, id: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of an artifact shows: its description, and what was changed with it."""
    artifact = call.store.artifacts.get(id)
    links = call.store.artifacts.changes(id, limit=50, cursor=params.get("cursor") or None)
    metadata = long_text(dict(artifact.metadata), _LONGEST)[0] if artifact.metadata else ""
    return {"artifact": artifact, "links": links, "next": links.next, "metadata": metadata}
