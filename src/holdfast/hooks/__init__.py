"""Hooks: functions that are called before and after changes, and those that come with the library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.hooks.builtin import AddAuditFields as AddAuditFields
    from holdfast.hooks.builtin import CountChanges as CountChanges
    from holdfast.hooks.builtin import InvalidateCache as InvalidateCache
    from holdfast.hooks.builtin import Validate as Validate
    from holdfast.hooks.context import HookContext as HookContext
    from holdfast.hooks.context import ReplaceValue as ReplaceValue

_MODULES = {
    "holdfast.hooks.builtin": ("AddAuditFields", "CountChanges", "InvalidateCache", "Validate"),
    "holdfast.hooks.context": ("HookContext", "ReplaceValue"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
