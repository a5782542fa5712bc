"""Scoped state: keys and values of agents, users, sessions and workflows, each scope a line of steps."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.model.scopes import Scope as Scope
    from holdfast.state.access_api import Grant as Grant
    from holdfast.state.access_api import StoreAccess as StoreAccess
    from holdfast.state.reader import StateItem as StateItem
    from holdfast.state.scope_state import State as State
    from holdfast.state.scopes import ScopeInfo as ScopeInfo
    from holdfast.state.sessions.api import RETENTION as RETENTION
    from holdfast.state.sessions.api import Session as Session
    from holdfast.state.watcher import WatchedChange as WatchedChange

_EXPORTS = {
    "Grant": "holdfast.state.access_api",
    "RETENTION": "holdfast.state.sessions.api",
    "Scope": "holdfast.engine.model.scopes",
    "ScopeInfo": "holdfast.state.scopes",
    "Session": "holdfast.state.sessions.api",
    "State": "holdfast.state.scope_state",
    "StateItem": "holdfast.state.reader",
    "StoreAccess": "holdfast.state.access_api",
    "WatchedChange": "holdfast.state.watcher",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
