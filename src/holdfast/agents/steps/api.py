"""The operations on durable steps: `agent.steps` and `agent.timers`; and of any agent, `store.agents.steps("id")`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.steps.once import (
    OnceCall,
    OnUnknown,
    Retry,
    StepOptions,
    list_steps,
    read_step,
    resolve_step,
    step_keys,
)
from holdfast.agents.steps.records import LEASE, StepLine, StepRecord
from holdfast.agents.steps.signals import Signal, pending_signals
from holdfast.agents.steps.timers import Timer, cancel_timer, list_timers, set_timer
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, operation
from holdfast.engine import validation
from holdfast.engine.model.missing import MISSING
from holdfast.engine.pages import Page, paged
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.recording.journal import current_journal, record_call
from holdfast.state.reader import ScopeView
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, Time

F = TypeVar("F", bound=Callable[..., Any])

StepKey = str | Callable[..., str]
"""The key of a step; for a decorator also a function that computes it from the arguments."""


class OnceOperations:
    """Runs functions once, on an agent and on its steps."""

    def _durable_steps(self) -> Any:
        """Return the steps of the agent."""
        raise NotImplementedError

    @overload
    def once(
        self,
        key: StepKey,
        function: None = None,
        /,
        *,
        retry: int | Retry = 0,
        final: type[Exception] | tuple[type[Exception], ...] = (),
        on_unknown: OnUnknown = "raise",
        lease: Duration = LEASE,
        formerly: str | tuple[str, ...] = (),
    ) -> Callable[[F], F]: ...
    @overload
    def once(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: int | Retry = 0,
        final: type[Exception] | tuple[type[Exception], ...] = (),
        on_unknown: OnUnknown = "raise",
        lease: Duration = LEASE,
        formerly: str | tuple[str, ...] = (),
        **kwargs: Any,
    ) -> Any: ...
    def once(
        self,
        key: StepKey,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        retry: int | Retry = 0,
        final: type[Exception] | tuple[type[Exception], ...] = (),
        on_unknown: OnUnknown = "raise",
        lease: Duration = LEASE,
        formerly: str | tuple[str, ...] = (),
        **kwargs: Any,
    ) -> Any:
        """Run a function once under a key, and return its result: `agent.once("charge-42", charge, 42)`. Once that is
        recorded, it is returned, and the function is not run again: after a crash, by a retry, in another process.
        Without a function, return a decorator; its key may be a function of the arguments. Under asyncio, the call is
        awaited, and the function may be a coroutine function.

        An error of the function is recorded, too, and raised again: after `retry` further attempts, or at once if it is
        one of `final`. If the process of an attempt died, what it did is unknown: `OutcomeUnknownError`, unless
        `on_unknown` is `"retry"`, or a function that decides. A process without a sign of life for the time of the
        `lease` is presumed dead; another that calls the same step waits as long. The same key with other arguments is
        a `ConflictError`, code `step-arguments`, and with another function, code `step-function`, unless it is the one
        that was `formerly` called so. A parameter `idempotency_key` of the function gets a text that is the
        same for all attempts.
        """
        steps = self._durable_steps()
        names = (formerly,) if isinstance(formerly, str) else formerly
        options = StepOptions(retry, final if isinstance(final, tuple) else (final,), on_unknown, lease, names)
        if function is not None:
            if not isinstance(key, str):
                raise InvalidError("the key of a step must be a string", where=repr(key)[:80])
            return steps._run(key, function, args, kwargs, options)
        if args or kwargs:
            raise InvalidError(
                "as a decorator, once takes only options; pass the arguments when calling the function",
                where=repr(key)[:80],
            )

        def decorate(decorated: F) -> F:
            @wraps(decorated)
            def call(*args: Any, **kwargs: Any) -> Any:
                name = key(*args, **kwargs) if callable(key) else key
                return steps._run(name, decorated, args, kwargs, options)

            return call  # type: ignore[return-value]

        return decorate


class StepsOperations(OnceOperations):
    """Operations on the durable steps of an agent. `Steps` and `AsyncSteps` have these as methods."""

    def __init__(self, line: StepLine, persister: AgentPersister | None = None) -> None:
        self._line = line
        self._handle = line.agent.handle
        self._persister = persister

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._line.where}>"

    @operation
    async def get(self, key: str) -> StepRecord:
        """Return the record of a step. `NotFoundError` if it was never begun."""
        await self._line.require("read")
        found = await read_step(self._line, self._line.check_key(key))
        if found is None:
            raise NotFoundError(
                "there is no such step", where=f"step {key!r} of {self._line.where}", hint="See steps.list()"
            )
        return found

    @operation(changes=True)
    async def resolve(
        self, key: str, *, result: Any = MISSING, error: BaseException | str | None = None, retry: bool = False
    ) -> StepRecord:
        """Record by hand what became of a step whose outcome is unknown, or that failed: its `result`, its `error`, or
        that it is to run again. `ConflictError` if it is being run (code `under-way`), or is done (`step-done`)."""
        if (result is not MISSING) + (error is not None) + bool(retry) != 1:
            raise InvalidError(
                "pass exactly one of result, error and retry to resolve a step", where=f"step {key!r}"[:200]
            )
        if result is not MISSING:
            return await resolve_step(self._line, key, "result", result)
        return await resolve_step(self._line, key, "retry" if error is None else "error", error)

    @operation(changes=True, not_remote="It is for the code of an agent.")
    async def version(self, change: str, version: int = 1, *, oldest: int = 0, within: str = "") -> int:
        """Return which version of the code this agent is to follow where the code was changed::

            if agent.steps.version("new-pricing") >= 1:
                ...  # the new way
            else:
                ...  # as agents that began before do

        The first call records it: `version`, if the agent has reached no step, sleep or wait in the past that this
        process has not reached, too; otherwise 0, since it went past this place with the old code. `UnsupportedError`,
        code `step-version`, if the recorded version is older than the `oldest` that the code supports.

        An agent that loops goes past a place again and again. Give the start of the keys of a round as `within`, such
        as `order-42`: only records whose keys start with it count, and each round has a version of its own.
        """
        name = self._line.check_key(change, "name of a change")
        name = f"{name} in {self._line.check_key(within)}" if within else name
        checked, least = validation.require_count(version, "version"), validation.require_count(oldest, "oldest")
        await self._line.require("write")
        journal, choose = current_journal.get(), partial(self._choose_version, name, checked, within)
        found = await (choose() if journal is None else journal.choose_version(name, choose))
        if found < least:
            raise UnsupportedError(
                f"the agent follows version {found} of the change {name!r}, and the code supports {least} and later",
                where=self._line.where,
                hint="Let the agent finish with the older code, or keep both ways in the code",
                code="step-version",
            )
        return found

    async def _choose_version(self, name: str, checked: int, within: str) -> int:
        reached = set() if self._persister is None else self._persister.lifecycle.reached_steps
        begun, found = await step_keys(self._line), checked

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal found
            item = await view.item(f"version/{name}")
            if item is not None:
                found = item.value
                return []
            keys = [key for kind in ("step/", "sleep/", "wait/") for key in await view.keys(kind + within)]
            keys += (key for key in begun if key.startswith(f"step/{within}"))
            found = checked if reached.issuperset(keys) else 0
            return [self._line.put(f"version/{name}", found)]

        await self._line.write(writes)
        return found

    @operation
    async def signals(self, name: str | None = None) -> list[Signal]:
        """Return the signals that wait for the agent, in their order: of one name, or all."""
        return await pending_signals(self._line, name)

    @operation(changes=True)
    async def _run(
        self,
        key: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        persister = self._persister
        call = OnceCall(
            self._line,
            self._line.check_key(key),
            function,
            args,
            kwargs,
            options,
            0 if persister is None else persister.version,
            isinstance(self, AsyncApi),
            persister,
        )
        if persister is not None:
            persister.lifecycle.reached_steps.add(f"step/{call.key}")
        return await record_call("step", key, [list(args), kwargs], call.run)

    def _durable_steps(self) -> Any:
        return self  # sync or async: so is what it returns

    @operation
    @paged
    async def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[StepRecord]:
        """List the steps by their keys, a page of them. The key of a step is a cursor."""
        await self._line.require("read")
        count = validation.require_count(limit, "limit")
        found = await list_steps(self._line, validation.cursor_text(cursor), count + 1)
        return Page.cut(found, count, lambda record: record.key)


class Steps(SyncApi, StepsOperations):
    """The durable steps of an agent: `agent.steps`."""


class AsyncSteps(AsyncApi, StepsOperations):
    """The asyncio form of `Steps`: operations are awaited."""


class TimersOperations:
    """Operations on the timers of an agent. `Timers` and `AsyncTimers` have these as methods.

    A runner of jobs delivers what is due, as a signal to the agent: `JobRunner(store)`, or `holdfast jobs work`.
    """

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self._handle = line.agent.handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._line.where}>"

    @operation(changes=True)
    async def set(self, name: str, when: Time | Duration, *, signal: str | None = None, value: Any = None) -> Timer:
        """Set a timer for a time, or for a duration from now such as `"2h"`. When it is due, the agent gets a signal
        with this value: of the name of the timer, or another. A timer of the same name is replaced."""
        return await set_timer(self._line, name, when, signal, value)

    @operation(changes=True)
    async def cancel(self, name: str) -> bool:
        """Cancel a timer, or end a sleep by its key. Returns False if there is none."""
        return await cancel_timer(self._line, name)

    @operation
    async def list(self) -> list[Timer]:
        """Return the timers and sleeps that are not over, the next one first."""
        return await list_timers(self._line)


class Timers(SyncApi, TimersOperations):
    """The timers of an agent: `agent.timers`."""


class AsyncTimers(AsyncApi, TimersOperations):
    """The asyncio form of `Timers`: operations are awaited."""
