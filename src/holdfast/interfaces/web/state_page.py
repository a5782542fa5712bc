"""The data of the pages of state: scopes as a tree, the keys of a scope, and the history of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import to_change
from holdfast.interfaces.http.values import long_text
from holdfast.state.history import HistoryEntry
from holdfast.state.scopes import ScopeInfo

GLOBAL = "global"
_SCOPES = 500
_KEYS = 100
_CHANGES = 20
_SHOWN = 12
_LONGEST = 4000


class ScopeNode(NamedTuple):
    """A scope in the tree; without state of its own if `found` is None."""

    scope: str
    part: str
    depth: int
    found: ScopeInfo | None


class KeyChange(NamedTuple):
    """A change in the history of a key, with what it changed; nothing if that was pruned."""

    entry: HistoryEntry
    changes: list[models.ChangeModel]


def scope_tree(scopes: Sequence[ScopeInfo]) -> list[ScopeNode]:
    """Return scopes as the rows of a tree; parts that have no state of their own are rows, too."""
    nodes: dict[str, ScopeNode] = {}
    for each in sorted(scopes, key=lambda each: str(each.scope)):
        parts = (str(each.scope) or GLOBAL).split("/")
        for depth in range(len(parts)):
            path = "/".join(parts[: depth + 1])
            nodes.setdefault(path, ScopeNode(path, parts[depth], depth, None))
        own = "/".join(parts)
        nodes[own] = nodes[own]._replace(found=each)
    return list(nodes.values())


def scopes_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the tree of scopes shows."""
    prefix = params.get("prefix", "").strip()
    page = call.store.scopes(prefix, limit=_SCOPES, cursor=params.get("cursor") or None)
    return {
        "tree": scope_tree(page),
        "next": page.next,
        "prefix": prefix,
        "scope": None,
        "key": None,
    }


def scope_values(call: Call, scope: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of a scope shows: its keys, beside the tree."""
    prefix, cursor = params.get("key", "").strip(), params.get("cursor") or None
    page = call.store.state(scope).list_items(prefix, limit=_KEYS, cursor=cursor)
    return {**scopes_values(call, {}), "scope": scope, "rows": page, "more": page.next, "key_prefix": prefix}


def key_values(call: Call, scope: str, key: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of a key shows: its value, and its history."""
    state = call.store.state(scope)
    history = state.history(key, limit=_CHANGES, cursor=params.get("cursor") or None)
    if not history:
        raise NotFoundError(f"{scope} has no key {key}", hint="List the keys of the scope")
    values: dict[str, Any] = {**scopes_values(call, {}), "scope": scope, "key": key, "value": None, "whole": True}
    try:
        item = state.item(key)
        values["value"], values["whole"] = long_text(item.value, _LONGEST)
        values |= {"version": item.version, "expires": item.expires}
    except NotFoundError:
        values |= {"version": None, "expires": None}  # it was deleted, or has expired
    return {**values, "changes": [_key_change(state, each) for each in history], "more": history.next}


def _key_change(state: Any, entry: HistoryEntry) -> KeyChange:
    try:
        diff = state.diff(max(0, entry.step - 1), entry.step)
    except HoldfastError:
        return KeyChange(entry, [])  # the step was pruned
    found = [each for each in diff if each.path[:1] == (entry.key,)]
    return KeyChange(entry, [to_change(each) for each in found[:_SHOWN]])
