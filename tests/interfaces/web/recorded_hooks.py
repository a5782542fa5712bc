"""Hooks whose calls are recorded: what pages show, and what servers replay."""

from __future__ import annotations

import contextlib
from typing import Any

import holdfast
from holdfast.errors import VetoError
from holdfast.hooks import HookContext


def register(store: holdfast.Store) -> None:
    """Register the hooks."""

    @store.hooks.before("state.set", record="full", scope="agent:*")
    def limit_discount(call: HookContext) -> Any:
        if not isinstance(call.value, int):
            raise TypeError("a discount is a number")
        return min(call.value, 100)

    @store.hooks.before("state.set", scope="user:*")
    def check_name(call: HookContext) -> None:
        if call.value == "root":
            raise VetoError("root is nobody's name")


def record_hooks(store: holdfast.Store) -> None:
    """Record calls that changed a value, that failed, that were vetoed, and that did nothing."""
    register(store)
    for value in (50, 250, "much"):
        store.state(agent="clerk").set("discount", value)
    store.state(user="carol").set("name", "Carol")
    with contextlib.suppress(VetoError):
        store.state(user="carol").set("name", "root")
    store.hooks.remove("limit_discount")
    store.hooks.remove("check_name")
