"""Hooks: functions that are called before and after changes, to refuse, change or follow them."""

from holdfast.errors import Veto as Veto
from holdfast.hooks.builtin import Audit as Audit
from holdfast.hooks.builtin import InvalidateCache as InvalidateCache
from holdfast.hooks.builtin import Metrics as Metrics
from holdfast.hooks.builtin import Validate as Validate
from holdfast.hooks.calls import Call as Call
from holdfast.hooks.calls import Changed as Changed
from holdfast.hooks.calls import Execution as Execution
from holdfast.hooks.calls import HookInfo as HookInfo
from holdfast.hooks.face import AsyncHooks as AsyncHooks
from holdfast.hooks.face import Hooks as Hooks
from holdfast.hooks.points import POINTS as POINTS
