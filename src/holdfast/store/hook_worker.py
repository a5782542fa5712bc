"""The process of a replay of hooks: registers the application's hooks on a fork of the state, and calls them again."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import time
from typing import Any

from holdfast._lazy import import_declared
from holdfast.codec import Codec
from holdfast.engine.model.missing import MISSING
from holdfast.engine.trace_context import Trace
from holdfast.errors import ConfigError, HoldfastError, NotFoundError, VetoError
from holdfast.hooks.context import HookContext, HookedChange, ReplaceValue
from holdfast.hooks.registry import HookRegistry
from holdfast.recording import DivergedRun, answer_host, difference, isolate, read_order
from holdfast.store.opener import open as open_store
from holdfast.store.store import Store

_OLD = object()
"""Stands for the value before the change, which is read only if the hook asks for it."""


class NeedsState(BaseException):
    """Raised by the first hook that reads the state, where the process did not get it: most hooks never do."""


class ForkedStore:
    """The fork that hooks are registered on. A hook that takes the scope of its call from it finds the state of that
    moment."""

    def __init__(self, store: Store, has_state: bool) -> None:
        self._fork = store
        self.has_state = has_state
        self.call: dict[str, Any] | None = None
        self.spent = 0.0
        """The seconds that restoring the state of the moment took, which are not the hook's."""

    def state(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of a scope: of the scope of the call as it was at that moment."""
        if not self.has_state:
            raise NeedsState
        found = self._fork.state(*args, **kwargs)
        if self.call is not None and str(found.scope) == self.call["scope"]:
            start, call, self.call = time.perf_counter(), self.call, None
            found.rollback(call["time"])
            self.spent = time.perf_counter() - start
        return found

    def __getattr__(self, name: str) -> Any:
        if not self.has_state and name != "hooks":
            raise NeedsState
        return getattr(self._fork, name)


def replay(order: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Replay calls as ordered, and return how each ended."""
    calls: list[dict[str, Any]] = Codec().unpack(data[: order["size"]])
    store = open_store("memory://")
    has_state = len(data) > order["size"]
    if has_state:
        store.import_(io.BytesIO(data[order["size"] :]))
    fork = ForkedStore(store, has_state)
    effects: list[str] = []
    isolate(effects.append)
    _find(order["register"])(fork)
    registry = HookRegistry.of(store._handle.engine)
    functions = {} if registry is None else registry.functions()
    return {"calls": [_replay_call(fork, functions, call, effects) for call in calls]}


def _replay_call(fork: ForkedStore, functions: Any, call: dict[str, Any], effects: list[str]) -> dict[str, Any]:
    function = functions.get(call["hook"])
    if function is None:
        raise NotFoundError(
            "the code registers no such hook", where=f"hook {call['hook']}", hint=f"It has {', '.join(functions)}"
        )
    subject = _subject(fork, call)
    fork.call, fork.spent = call, 0.0
    effects.clear()
    value, error = None, None
    start = time.perf_counter()
    try:
        value = function(HookContext(subject))
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except (Exception, DivergedRun) as raised:  # noqa: BLE001 - whatever it raises is its result
        error = raised
    seconds = time.perf_counter() - start - fork.spent
    fork.call = None
    outcome, result = _outcome(call, value, error)
    before = {name: call[name] for name in ("result", "error", "reason") if name in call}
    return {
        "hook": call["hook"],
        "scope": call["scope"],
        "key": call["key"],
        "recorded_outcome": call["outcome"],
        "outcome": outcome,
        "recorded_seconds": call["duration"],
        "seconds": seconds,
        "diff": difference(before, result) or "",
        "effect": "; ".join(effects),
    }


def _subject(fork: ForkedStore, call: dict[str, Any]) -> HookedChange:
    def load(stored: Any) -> Any:
        if stored is not _OLD:
            return stored
        if not fork.has_state:
            raise NeedsState
        state = fork._fork.state(call["scope"])
        return state.get_at(call["key"], call["before"], MISSING) if call["before"] else MISSING

    before = call.get("before")
    return HookedChange(
        call["point"],
        call["scope"],
        call["key"],
        Trace(call["correlation"], call["cause"]),
        time.perf_counter_ns(),
        call.get("value", MISSING),
        load,
        actor=call["actor"],
        before=before,
        old=_OLD if before is not None else MISSING,
        metadata=call.get("metadata", {}),
    )


def _outcome(call: dict[str, Any], value: Any, error: BaseException | None) -> tuple[str, dict[str, Any]]:
    """Return how a call ended, and what would be recorded of it."""
    if isinstance(error, VetoError):
        return "veto", {"error": type(error).__name__, "reason": error.what[:500]}
    if error is not None:
        return "error", {"error": type(error).__name__}
    if call["phase"] == "before" and value is not None:
        result = value.value if isinstance(value, ReplaceValue) else value
        if difference(call.get("value"), result) is not None:
            return "changed", {"result": result}
    return "ok", {}


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        return getattr(import_declared(module), path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the hooks cannot be imported: {error}", where=name[:200], hint="Name a function: package.module:register"
        ) from error


def main() -> None:
    """Replay what the host sends."""
    order, data = read_order()
    answers = os.dup(1)
    os.dup2(2, 1)  # what the code prints is not an answer
    try:
        found = replay(order, data)
    except NeedsState:
        found = {"needs_state": True}
    except HoldfastError as error:
        found = {"error": {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}}
    answer_host(answers, found)
    os._exit(0)  # without waiting for threads of the code


if __name__ == "__main__":
    main()
