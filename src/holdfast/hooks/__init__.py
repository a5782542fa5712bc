"""Hooks: functions that are called before and after changes, to refuse, change or follow them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import VetoError as VetoError
    from holdfast.hooks.api import AsyncHooks as AsyncHooks
    from holdfast.hooks.api import HookOperations as HookOperations
    from holdfast.hooks.api import HookOptions as HookOptions
    from holdfast.hooks.api import Hooks as Hooks
    from holdfast.hooks.builtin import AddAuditFields as AddAuditFields
    from holdfast.hooks.builtin import CountChanges as CountChanges
    from holdfast.hooks.builtin import InvalidateCache as InvalidateCache
    from holdfast.hooks.builtin import Validate as Validate
    from holdfast.hooks.context import HookContext as HookContext
    from holdfast.hooks.context import HookExecution as HookExecution
    from holdfast.hooks.context import HookInfo as HookInfo
    from holdfast.hooks.context import Recording as Recording
    from holdfast.hooks.context import ReplaceValue as ReplaceValue
    from holdfast.hooks.execution_log import HookStatistics as HookStatistics
    from holdfast.hooks.execution_log import HookStatisticsList as HookStatisticsList
    from holdfast.hooks.outbox import UndeliveredCall as UndeliveredCall
    from holdfast.hooks.points import POINTS as POINTS

_MODULES = {
    "holdfast.errors": ("VetoError",),
    "holdfast.hooks.api": ("AsyncHooks", "HookOperations", "HookOptions", "Hooks"),
    "holdfast.hooks.builtin": ("AddAuditFields", "CountChanges", "InvalidateCache", "Validate"),
    "holdfast.hooks.context": ("HookContext", "HookExecution", "HookInfo", "Recording", "ReplaceValue"),
    "holdfast.hooks.outbox": ("UndeliveredCall",),
    "holdfast.hooks.points": ("POINTS",),
    "holdfast.hooks.execution_log": ("HookStatistics", "HookStatisticsList"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
