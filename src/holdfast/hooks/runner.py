"""Running a hook without blocking its caller for longer than the budget.

An `inline` hook runs where the change is made, which is for hooks that are known to be quick. Others run in a thread of
their own; async ones on the caller's event loop or, under a sync store, on a private one. The caller proceeds when the
budget is used up. A thread cannot be stopped: what it still does has no effect on the change. So each hook has threads
and a loop of its own: one that hangs keeps no other from running.
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
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.backends.runtime.threads import WorkerPool
from holdfast.engine import trace_context
from holdfast.engine.guard import enter_owner
from holdfast.errors import InvalidError, VetoError
from holdfast.hooks.context import HookContext, HookResult

_THREADS = 32
"""The number of calls of a hook that run in threads at a time, including those that never end."""

_QUEUES = 4
"""The number of scopes for which an after-hook runs at a time."""

_CLOSE_SECONDS = 1.0
"""How long async hooks that are cancelled at the end may take."""

_running: ContextVar[tuple[str, ...]] = ContextVar("holdfast_hooks", default=())
"""The hooks that led to the current change. None of them is called for it again, or there would be no end."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a hook is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_running(name: str) -> bool:
    """Whether the current change was made by this hook, directly or not."""
    return name in _running.get()


def hook_context(name: str, trace: trace_context.Trace) -> Context:
    """Return the context that a hook runs in: that of the change, marked with the hook."""
    context = copy_context()
    context.run(_enter, name, trace)
    return context


def _enter(name: str, trace: trace_context.Trace) -> None:
    _running.set((*_running.get(), name))
    trace_context.enter(trace)
    enter_owner()


def build_result(start: int, value: Any = None, error: BaseException | None = None) -> HookResult:
    """Build the result of a hook that returned or raised something."""
    duration = time.perf_counter_ns() - start
    if error is None:
        return HookResult("ok", value, None, duration, True)
    return HookResult("veto" if isinstance(error, VetoError) else "error", None, error, duration)


def overrun_error(budget: float) -> TimeoutError:
    """Build the error of a hook that took too long."""
    return TimeoutError(f"it took longer than its budget of {budget:g} s")


def late_result(budget: float, start: int) -> HookResult:
    """Build the result of a hook that did not end in time."""
    return HookResult("late", None, overrun_error(budget), time.perf_counter_ns() - start)


def call_inline(
    name: str, trace: trace_context.Trace, function: Callable[[HookContext], Any], call: HookContext
) -> HookResult:
    """Call a sync hook where the change is made."""
    start = time.perf_counter_ns()
    at_work = _running.set((*_running.get(), name))
    before = trace_context.current()
    trace_context.enter(trace)
    try:
        return call_hook(function, call, start)
    finally:
        trace_context.enter(before)
        _running.reset(at_work)


def call_hook(function: Callable[[HookContext], Any], call: HookContext, start: int) -> HookResult:
    """Call a sync hook in this thread."""
    try:
        value = function(call)
    except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
        return build_result(start, error=error)
    return check_result(start, value)


def check_result(start: int, value: Any) -> HookResult:
    """Build the result of a sync hook that returned; it must not be awaitable."""
    if value is not None and inspect.isawaitable(value):
        if isinstance(value, Coroutine):
            value.close()
        return build_result(
            start, error=InvalidError("it returned an awaitable", hint="Declare the hook with `async def`")
        )
    return build_result(start, value)


class HookRunner:
    """Runs one hook in threads and on an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop_thread: LoopThread | None = None
        self._create_pools()

    def _create_pools(self) -> None:
        self.workers = WorkerPool("holdfast-hook", _THREADS)
        self.after_workers = WorkerPool("holdfast-after", _QUEUES)
        """The threads that wait for an after-hook."""

    def in_thread(
        self, function: Callable[[HookContext], Any], call: HookContext, budget: float, context: Context
    ) -> Suspension[HookResult]:
        """Run a sync hook in a thread."""
        return _InThread(self, function, call, budget, context)

    def on_loop(
        self, function: Callable[[HookContext], Awaitable[Any]], call: HookContext, budget: float, context: Context
    ) -> Suspension[HookResult]:
        """Run an async hook on an event loop."""
        return _OnLoop(self, function, call, budget, context)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child."""
        self.workers.reinit_locks()
        self.after_workers.reinit_locks()
        self._lock = threading.Lock()
        self._loop_thread = None

    def close(self) -> None:
        """End the threads that do end. Calls that still wait get others."""
        pools = self.workers, self.after_workers
        self._create_pools()
        for pool in pools:
            pool.close()
        with self._lock:
            loop_thread, self._loop_thread = self._loop_thread, None
        if loop_thread is not None:
            loop_thread.stop(_CLOSE_SECONDS)

    def private_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop for an async hook of a sync program."""
        with self._lock:
            if self._loop_thread is None:
                self._loop_thread = LoopThread("holdfast-hook-loop")
            return self._loop_thread.loop


class _HookCall(Suspension[HookResult]):
    """A hook that runs elsewhere, for at most its budget."""

    def __init__(
        self,
        runner: HookRunner,
        function: Callable[[HookContext], Any],
        call: HookContext,
        budget: float,
        context: Context,
    ) -> None:
        self._runner = runner
        self._function = function
        self._call = call
        self._budget = budget
        self._context = context


class _InThread(_HookCall):
    _is_late = False
    """Whether nobody waits any more: a call that has not begun until then never does."""

    def wait(self) -> HookResult:
        start, results, done = time.perf_counter_ns(), list[HookResult](), threading.Lock()
        done.acquire()

        def task() -> None:
            if not self._is_late:
                results.append(self._run(start))
                done.release()

        self._runner.workers.start(task)
        # Whoever ended just now is not late, even if it was this thread that had to wait for its turn.
        if done.acquire(timeout=self._budget) or results:
            return results[0]
        self._is_late = True
        return late_result(self._budget, start)

    def watch(self) -> asyncio.Future[HookResult]:
        start, loop = time.perf_counter_ns(), asyncio.get_running_loop()
        future: asyncio.Future[HookResult] = loop.create_future()

        def finish(result: HookResult) -> None:
            timer.cancel()
            if not future.done():
                future.set_result(result)

        def task() -> None:
            if self._is_late or future.cancelled():
                return
            result = self._run(start)
            try:
                loop.call_soon_threadsafe(finish, result)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        def give_up() -> None:
            self._is_late = True
            finish(late_result(self._budget, start))

        timer = loop.call_later(self._budget, give_up)
        self._runner.workers.start(task)
        return future

    def _run(self, start: int) -> HookResult:
        try:
            return self._context.run(call_hook, self._function, self._call, start)
        except BaseException as error:  # noqa: BLE001 - it is not this thread's to end the program
            return build_result(start, error=error)


class _OnLoop(_HookCall):
    def wait(self) -> HookResult:
        start, results, done = time.perf_counter_ns(), list[HookResult](), threading.Lock()
        done.acquire()
        loop = self._runner.private_loop()
        tasks = []

        async def task() -> None:
            results.append(await self._run(start))
            done.release()

        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(task(), context=self._context)))
        if done.acquire(timeout=self._budget) or results:
            return results[0]
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        return late_result(self._budget, start)

    def watch(self) -> asyncio.Future[HookResult]:
        start, loop = time.perf_counter_ns(), asyncio.get_running_loop()
        task = loop.create_task(self._run(start), context=self._context)

        async def bounded() -> HookResult:
            try:
                done, _ = await asyncio.wait({task}, timeout=self._budget)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if done:
                return task.result()
            task.cancel()
            return late_result(self._budget, start)

        return loop.create_task(bounded())

    async def _run(self, start: int) -> HookResult:
        try:
            return build_result(start, await self._function(self._call))
        except asyncio.CancelledError as error:
            return build_result(start, error=error)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
            return build_result(start, error=error)
