"""Hooks: functions that are called before and after changes, to refuse, change or follow them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import VetoError as VetoError
    from holdfast.hooks.api import AsyncHooks as AsyncHooks
    from holdfast.hooks.api import Hooks as Hooks
    from holdfast.hooks.builtin import AddAuditFields as AddAuditFields
    from holdfast.hooks.builtin import CountChanges as CountChanges
    from holdfast.hooks.builtin import InvalidateCache as InvalidateCache
    from holdfast.hooks.builtin import Validate as Validate
    from holdfast.hooks.context import HookContext as HookContext
    from holdfast.hooks.context import HookExecution as HookExecution
    from holdfast.hooks.context import HookInfo as HookInfo
    from holdfast.hooks.context import ReplaceValue as ReplaceValue
    from holdfast.hooks.points import POINTS as POINTS

_EXPORTS = {
    "AddAuditFields": "holdfast.hooks.builtin",
    "AsyncHooks": "holdfast.hooks.api",
    "CountChanges": "holdfast.hooks.builtin",
    "HookContext": "holdfast.hooks.context",
    "HookExecution": "holdfast.hooks.context",
    "HookInfo": "holdfast.hooks.context",
    "Hooks": "holdfast.hooks.api",
    "InvalidateCache": "holdfast.hooks.builtin",
    "POINTS": "holdfast.hooks.points",
    "ReplaceValue": "holdfast.hooks.context",
    "Validate": "holdfast.hooks.builtin",
    "VetoError": "holdfast.errors",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
