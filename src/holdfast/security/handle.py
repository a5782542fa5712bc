"""Handles: a store as one identity may use it; and how callers name scopes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, TypedDict, cast, runtime_checkable

from msgspec import Struct, field

from holdfast.codec import Codec
from holdfast.engine.engine import Engine
from holdfast.engine.guard import OWNER, Guard, current_authority
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import line_name
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError, InvalidError


class StoreHandle(Struct, frozen=True):
    """The engine, the tenant and the guard of operations on scoped state."""

    engine: Engine
    tenant: str
    guard: Guard = field(default_factory=Guard)

    def line(self, scope: Scope) -> Line:
        """Return the line of a scope."""
        return _line(self.tenant, scope)

    def thread_line(self, thread: str) -> Line:
        """Return the line of a thread that a caller names. `InvalidError` if it is the name of another kind of line:
        those of state and of the store's own records have their own interfaces."""
        return Line(self.tenant, line_name(thread))

    @property
    def is_owner(self) -> bool:
        """Whether the store's owner uses it, and no identity."""
        return not self.guard.actor and current_authority() is OWNER

    @property
    def codec(self) -> Codec:
        """The codec of values."""
        return self.engine.context.codec

    def now(self) -> int:
        """Return the time in nanoseconds since 1970."""
        return self.engine.context.clock()


@lru_cache(4096)
def _line(tenant: str, scope: Scope) -> Line:
    return Line(tenant, scope.line)


@runtime_checkable
class HasHandle(Protocol):
    """A store, or a view of one."""

    _handle: StoreHandle


def owner_handle(store: HasHandle | StoreHandle) -> StoreHandle:
    """Return the handle of a store, for what only its owner may do. `DeniedError` if it is an identity's view."""
    handle = store if isinstance(store, StoreHandle) else store._handle
    if handle.guard.actor:
        raise DeniedError(
            "only the owner of the store can do this, not an identity",
            where=handle.guard.actor,
            hint="Use the store itself, or what the view offers: `store.as_identity(…)`",
            code="owner-only",
        )
    return handle


class ScopeParts(TypedDict, total=False):
    """The parts of a scope, as keyword arguments."""

    user: str | None
    session: str | None
    workflow: str | None
    agent: str | None
    step: str | None
    tool: str | None
    hook: str | None
    custom: str | None
    items: str | None


def parse_scope(handle: StoreHandle, scope: Scope | str | None, parts: ScopeParts) -> Scope:
    """Return the scope that a caller names by its text or by its parts."""
    if scope is None:
        return handle.guard.scope(cast(Mapping[str, Any], parts))
    if parts:
        raise InvalidError("a scope must be given as text or as parts, not both", where=str(scope)[:80])
    return handle.guard.scope(scope)
