"""Hooks: functions that are called before and after changes, to refuse, change or follow them."""

from typing import TYPE_CHECKING, Any

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

_BUILTIN = ("AddAuditFields", "InvalidateCache", "CountChanges", "Validate")
_CALLS = ("HookContext", "ReplaceValue", "HookExecution", "HookInfo")
_FACE = ("AsyncHooks", "Hooks")

__all__ = [*_BUILTIN, *_CALLS, *_FACE, "POINTS", "VetoError"]  # noqa: PLE0604 - strings all of them


def __getattr__(name: str) -> Any:
    # Loaded on first use: sessions and artifacts have points for hooks, and most stores have no hook.
    found: Any = None
    if name in _BUILTIN:
        from holdfast.hooks import builtin as found
    elif name in _CALLS:
        from holdfast.hooks import context as found
    elif name in _FACE:
        from holdfast.hooks import api as found
    elif name == "POINTS":
        from holdfast.hooks import points as found
    elif name == "VetoError":
        from holdfast import errors as found
    if found is None:
        raise AttributeError(f"module 'holdfast.hooks' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
