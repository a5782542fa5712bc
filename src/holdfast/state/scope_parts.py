"""How callers name a scope: by its text, or by its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from holdfast.engine.model.scopes import Scope
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle


class ScopeParts(TypedDict, total=False):
    """What a scope is made of."""

    user: str | None
    session: str | None
    workflow: str | None
    agent: str | None
    step: str | None
    tool: str | None
    hook: str | None
    custom: str | None


def parse_scope(handle: StoreHandle, scope: Scope | str | None, parts: ScopeParts) -> Scope:
    """The scope that a caller names."""
    if scope is None:
        return handle.guard.scope(cast(Mapping[str, Any], parts))
    if parts:
        raise InvalidError("a scope is named by its text or by its parts, not by both", where=str(scope)[:80])
    return handle.guard.scope(scope)
