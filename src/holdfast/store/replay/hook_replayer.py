"""Replays of hooks: registers the application's hooks on a fork of the state, and calls them again."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from holdfast.codec import Codec
from holdfast.engine.model.missing import MISSING
from holdfast.engine.trace_context import Trace
from holdfast.errors import NotFoundError, VetoError
from holdfast.hooks.context import HookContext, HookedChange, ReplaceValue
from holdfast.hooks.hook import hook_context
from holdfast.hooks.registry import HookRegistry
from holdfast.recording.comparison import difference
from holdfast.recording.journal import DivergedRun
from holdfast.state.scope_state import State
from holdfast.store.opener import open as open_store
from holdfast.store.replay.code_lookup import find_code
from holdfast.store.replay.isolation import isolate
from holdfast.store.replay.process import Host
from holdfast.store.store import Store
from holdfast.store.store_rows import add_rows

_OLD = object()
"""Stands for the value before the change, which is read only if the hook asks for it."""

_BEFORE_IT = timedelta(microseconds=1)
"""A before-hook is recorded with the time of the change that it was called for, and saw the state before that."""


class ForkedState:
    """The state of a scope as it was at the moment of a call. Single keys are read from its history; for all else, the
    fork is rolled back to that moment first, and then is as any state."""

    def __init__(self, state: State, moment: datetime, fork: ForkedStore) -> None:
        self._state, self._moment, self._fork = state, moment, fork
        self._is_restored = False

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        with self._fork.timed():
            if self._is_restored or not self._fork.is_at(self._moment):
                return self._state.get(key, default)
            return self._state.get_at(key, self._moment, default)

    def __getitem__(self, key: str) -> Any:
        found = self.get(key, MISSING)
        return self._restored()[key] if found is MISSING else found  # which raises the error

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key, MISSING) is not MISSING

    def __setitem__(self, key: str, value: Any) -> None:
        self._restored()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._restored()[key]

    def __len__(self) -> int:
        return len(self._restored())

    def __iter__(self) -> Iterator[str]:
        return iter(self._restored())

    def __eq__(self, other: object) -> bool:
        return self._restored() == other

    __hash__ = None  # type: ignore[assignment]  # as that of a state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._restored(), name)

    def _restored(self) -> State:
        with self._fork.timed():
            if not self._is_restored and self._fork.is_at(self._moment):
                self._is_restored = True
                self._state.rollback(self._moment)
        return self._state


class ForkedStore:
    """The fork that hooks are registered on. It has the scopes that they read, as they were at the moment of the call;
    the host is asked for a scope when a hook first reads it: most hooks read none."""

    def __init__(self, store: Store, host: Host) -> None:
        self._fork = store
        self._host = host
        self._known: set[str] = set()
        self._states: dict[str, ForkedState] = {}
        self._moment: datetime | None = None
        self.spent: float = 0.0
        """The seconds that this call waited for its state, which are not the hook's."""

    def begin(self, moment: datetime | None) -> None:
        """Begin a call that was made at some moment; None for the end of one."""
        self._moment, self.spent = moment, 0.0
        self._states.clear()

    def is_at(self, moment: datetime) -> bool:
        """Return whether a call of that moment is under way."""
        return self._moment == moment

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure what restoring the state of the moment takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent += time.perf_counter() - start

    def state(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of a scope, as it was at the moment of the call."""
        found = self._fork.state(*args, **kwargs)
        scope = str(found.scope)
        self._load(scope)
        if self._moment is None:
            return found
        return self._states.setdefault(scope, ForkedState(found, self._moment, self))

    def load_before(self, scope: str, key: str, version: int) -> Any:
        """Return the value that a key had at a version."""
        self._load(scope)
        with self.timed():
            return self._fork.state(scope).get_at(key, version, MISSING)

    def _load(self, scope: str) -> None:
        with self.timed():
            if scope not in self._known:
                self._known.add(scope)
                if data := self._host.request(scope):
                    add_rows(self._fork, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fork, name)


class HookReplayer:
    """Calls hooks again, on a fork."""

    _fork: ForkedStore

    def __init__(self, host: Host) -> None:
        self._host = host
        self._functions: Mapping[str, Any] | None = None
        self._effects: list[str] = []

    def replay(self, order: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Replay calls as ordered, and return how each ended."""
        if self._functions is None:
            self._fork = ForkedStore(open_store("memory://", tenant=order["tenant"]), self._host)
            isolate(self._effects.append)
            find_code(order["register"], "hooks", "Name a function: package.module:register")(self._fork)
            registry = HookRegistry.of(self._fork._fork._handle.engine)
            self._functions = {} if registry is None else registry.functions()
        calls: list[dict[str, Any]] = Codec().unpack(data)
        return {"calls": [self._replay_call(call) for call in calls]}

    def _replay_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = (self._functions or {}).get(call["hook"])
        if function is None:
            raise NotFoundError(
                "the code registers no such hook",
                where=f"hook {call['hook']}",
                hint=f"It has {', '.join(self._functions or {})}",
            )
        subject = self._subject(call)
        self._fork.begin(call["time"] - _BEFORE_IT if call["phase"] == "before" else call["time"])
        self._effects.clear()
        value, error = None, None
        start = time.perf_counter()
        try:
            value = hook_context(call["hook"], subject.trace).run(_call, function, HookContext(subject, call["hook"]))
        except (Exception, SystemExit, DivergedRun) as raised:  # noqa: BLE001 - whatever it raises is its result
            error = raised
        seconds = time.perf_counter() - start - self._fork.spent
        self._fork.begin(None)
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
            "effect": "; ".join(self._effects),
        }

    def _subject(self, call: dict[str, Any]) -> HookedChange:
        def load(stored: Any) -> Any:
            if stored is not _OLD:
                return copy.deepcopy(stored)  # each hook has objects of its own
            return self._fork.load_before(call["scope"], call["key"], call["before"]) if call["before"] else MISSING

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
            old=call.get("old", _OLD if before is not None else MISSING),
            metadata=call.get("metadata", {}),
        )


def _call(function: Any, call: HookContext) -> Any:
    found = function(call)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


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
