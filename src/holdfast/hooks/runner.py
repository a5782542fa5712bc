"""Running one hook: where it can not hold up whoever waits for it for longer than its budget.

A hook that is declared `inline` runs where the change is made: that is for hooks that are known to be quick. Another
one runs in a thread of its own, and an async one on the caller's event loop or, under a sync store, on a private one.
Who waits for it goes on when the budget is used up. A thread can not be stopped: what it still does has no effect on
the change.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from holdfast.backends.interface import Suspension
from holdfast.engine import trace_context
from holdfast.errors import InvalidError, VetoError
from holdfast.hooks.context import HookContext, HookResult
from holdfast.hooks.workers import LoopThread, WorkerThreads

_THREADS = 32
"""How many hooks of a store run at a time in threads. Those that never end are among them."""

_at_work: ContextVar[tuple[str, ...]] = ContextVar("holdfast_hooks", default=())
"""The hooks that led to what is done now. None of them is called for it again: that would have no end."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a hook is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_at_work(name: str) -> bool:
    """Whether what is done now was set off by this hook."""
    return name in _at_work.get()


def context_of(name: str, trace: trace_context.Trace) -> Context:
    """The context that a hook runs in: that of the change, and that it is this hook that runs."""
    context = copy_context()
    context.run(_enter, name, trace)
    return context


def _enter(name: str, trace: trace_context.Trace) -> None:
    _at_work.set((*_at_work.get(), name))
    trace_context.enter(trace)


def finished(start: int, value: Any = None, error: BaseException | None = None) -> HookResult:
    """How a hook ended that returned or raised something."""
    duration = time.perf_counter_ns() - start
    if error is None:
        return HookResult("ok", value, None, duration, True)
    return HookResult("veto" if isinstance(error, VetoError) else "error", None, error, duration)


def overrun(budget: float) -> TimeoutError:
    """What is wrong with a hook that took too long."""
    return TimeoutError(f"it took longer than its budget of {budget:g} s")


def late(budget: float, start: int) -> HookResult:
    """The result of a hook that did not end in time."""
    return HookResult("late", None, overrun(budget), time.perf_counter_ns() - start)


def call_inline(
    name: str, trace: trace_context.Trace, function: Callable[[HookContext], Any], told: HookContext
) -> HookResult:
    """Call a sync hook where the change is made."""
    start = time.perf_counter_ns()
    at_work = _at_work.set((*_at_work.get(), name))
    before = trace_context.current()
    trace_context.enter(trace)
    try:
        return call(function, told, start)
    finally:
        trace_context.enter(before)
        _at_work.reset(at_work)


def call(function: Callable[[HookContext], Any], told: HookContext, start: int) -> HookResult:
    """Call a sync hook, here."""
    try:
        value = function(told)
    except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
        return finished(start, error=error)
    return answered(start, value)


def answered(start: int, value: Any) -> HookResult:
    """How a sync hook ended that returned something."""
    if value is not None and inspect.isawaitable(value):
        if isinstance(value, Coroutine):
            value.close()
        return finished(start, error=InvalidError("it returned an awaitable", hint="Declare the hook with `async def`"))
    return finished(start, value)


class HookRunner:
    """Runs hooks of a store elsewhere than where the change is made."""

    def __init__(self) -> None:
        self.workers = WorkerThreads("holdfast-hook", _THREADS)
        self.loop = LoopThread()

    def in_thread(
        self, function: Callable[[HookContext], Any], told: HookContext, budget: float, context: Context
    ) -> Suspension[HookResult]:
        """Have a sync hook run in a thread."""
        return _InThread(self, function, told, budget, context)

    def on_loop(
        self, function: Callable[[HookContext], Awaitable[Any]], told: HookContext, budget: float, context: Context
    ) -> Suspension[HookResult]:
        """Have an async hook run on an event loop."""
        return _OnLoop(self, function, told, budget, context)

    def reinit_locks(self) -> None:
        """For a forked child."""
        self.workers.reinit_locks()
        self.loop.reinit_locks()

    def close(self) -> None:
        """End the threads, as far as they end."""
        self.workers.close()
        self.loop.close()


class _Elsewhere(Suspension[HookResult]):
    """A hook that runs elsewhere, for as long as its budget lasts."""

    def __init__(
        self,
        runner: HookRunner,
        function: Callable[[HookContext], Any],
        told: HookContext,
        budget: float,
        context: Context,
    ) -> None:
        self._runner = runner
        self._function = function
        self._told = told
        self._budget = budget
        self._context = context


class _InThread(_Elsewhere):
    def wait(self) -> HookResult:
        start, found, done = time.perf_counter_ns(), list[HookResult](), threading.Lock()
        done.acquire()

        def task() -> None:
            found.append(self._run(start))
            done.release()

        self._runner.workers.start(task)
        # Whoever ended just now is not late, even if it was this thread that had to wait for its turn.
        return found[0] if done.acquire(timeout=self._budget) or found else late(self._budget, start)

    def watch(self) -> asyncio.Future[HookResult]:
        start, loop = time.perf_counter_ns(), asyncio.get_running_loop()
        future: asyncio.Future[HookResult] = loop.create_future()

        def finish(result: HookResult) -> None:
            timer.cancel()
            if not future.done():
                future.set_result(result)

        def task() -> None:
            result = self._run(start)
            try:
                loop.call_soon_threadsafe(finish, result)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        timer = loop.call_later(self._budget, lambda: finish(late(self._budget, start)))
        self._runner.workers.start(task)
        return future

    def _run(self, start: int) -> HookResult:
        try:
            return self._context.run(call, self._function, self._told, start)
        except BaseException as error:  # noqa: BLE001 - it is not this thread's to end the program
            return finished(start, error=error)


class _OnLoop(_Elsewhere):
    def wait(self) -> HookResult:
        start, found, done = time.perf_counter_ns(), list[HookResult](), threading.Lock()
        done.acquire()
        loop = self._runner.loop.loop()
        tasks = []

        async def task() -> None:
            found.append(await self._awaited(start))
            done.release()

        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(task(), context=self._context)))
        if done.acquire(timeout=self._budget) or found:
            return found[0]
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        return late(self._budget, start)

    def watch(self) -> asyncio.Future[HookResult]:
        start, loop = time.perf_counter_ns(), asyncio.get_running_loop()
        task = loop.create_task(self._awaited(start), context=self._context)

        async def bounded() -> HookResult:
            try:
                done, _ = await asyncio.wait({task}, timeout=self._budget)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if done:
                return task.result()
            task.cancel()
            return late(self._budget, start)

        return loop.create_task(bounded())

    async def _awaited(self, start: int) -> HookResult:
        try:
            return finished(start, await self._function(self._told))
        except asyncio.CancelledError as error:
            return finished(start, error=error)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
            return finished(start, error=error)
