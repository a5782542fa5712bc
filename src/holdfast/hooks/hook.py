"""A registered hook, and the check of its signature."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.backends.runtime.breaker import CircuitBreaker
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError
from holdfast.hooks.context import HookContext, HookInfo, HookResult, Recording
from holdfast.hooks.runner import HookRunner

log = logging.getLogger("holdfast.hooks")

_STATES = {"closed": "on", "open": "off", "trying": "trying"}
"""The state of a hook, by that of its breaker."""


@dataclass(eq=False, slots=True)
class Hook:
    """A registered function, and its statistics."""

    name: str
    phase: str
    function: Callable[[HookContext], Any]
    points: frozenset[str]
    scope: str
    key: str
    order: int
    budget: float
    fail_closed: bool
    record: Recording
    inline: bool
    is_async: bool
    wants_value: bool
    wants_old: bool
    """Whether it may read the previous value."""
    pure: bool
    """Whether it only reads its context, and so needs no context variables of its own."""
    breaker: CircuitBreaker
    durable: bool = False
    """Whether its calls are stored with the change, until they are delivered."""
    max_attempts: int | None = None
    max_age: int = 0
    """After how many attempts, and how many nanoseconds, a durable call that fails is given up."""
    ordered: bool = False
    """Whether durable calls of one key are made one after another."""
    runner: HookRunner = field(default_factory=HookRunner)
    """Runs it, apart from all other hooks."""
    calls: int = 0
    failures: int = 0
    vetoes: int = 0
    skipped: int = 0
    dropped: int = 0
    bypassed: dict[str, int] = field(default_factory=dict)
    """How many changes were made without it that it could have refused, by outcome: it failed, was late or off."""
    total: int = 0
    worst: int = 0
    last_error: str = ""

    def info(self) -> HookInfo:
        """Return the public description."""
        until = self.breaker.until
        own = {name: getattr(self, name) for name in HookInfo._fields if hasattr(self, name)}
        own |= {"points": tuple(sorted(self.points)), "bypassed": sum(self.bypassed.values())}
        own |= {"average": self.total / self.calls / 1e9 if self.calls else 0.0, "worst": self.worst / 1e9}
        return HookInfo(**own, state=_STATES[self.breaker.state], off_until=to_datetime(until) if until else None)

    def count_result(self, result: HookResult) -> None:
        """Count an execution, and switch the hook off or on. Counts are approximate: two threads may count as one."""
        if result.outcome == "skipped":
            self.skipped += 1
            return
        self.count_call(result.duration)
        if result.outcome in ("error", "late"):
            self.failures += 1
            self.last_error = f"{type(result.error).__name__}: {result.error}"
            log.warning("the hook %s failed: %s", self.name, type(result.error).__name__)
            if result.error is not None and log.isEnabledFor(logging.DEBUG):  # not its text, which may quote the value
                log.debug("it failed here:\n%s", "".join(traceback.format_tb(result.error.__traceback__)))
            if self.breaker.failed():
                log.error("the hook %s failed again and again: it is off for now", self.name)
            return
        if result.outcome == "veto":
            self.vetoes += 1
        if self.breaker.succeeded():
            log.warning("the hook %s is back", self.name)

    def count_call(self, duration: int) -> None:
        """Count an execution that took so many nanoseconds."""
        self.calls += 1
        self.total += duration
        if duration > self.worst:
            self.worst = duration


def check_signature(function: Callable[..., Any], name: str, *parameters: str) -> None:
    """Raise `InvalidError` if a function cannot be called with these positional arguments. Callables whose signature
    Python does not know, such as some builtins, pass."""
    signature, problem = _signature(function), ""
    if signature is None and isinstance(function, partial) and (signature := _signature(function.func)) is not None:
        problem = "the arguments of the partial do not fit the function"
    elif signature is not None:
        try:
            signature.bind(*parameters)
        except TypeError as error:
            problem = str(error)
    if problem:
        raise InvalidError(
            f"the function cannot be called as a hook: {problem}",
            where=f"{name}{signature}"[:200],
            hint=f"The expected signature is ({', '.join(parameters)}), with defaults for any further parameters",
        )


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        # That of a decorator's wrapper, not of the function inside: the wrapper may add arguments.
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError, NameError):  # it has none, or its annotations cannot be evaluated
        return None


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2] or "hook"
