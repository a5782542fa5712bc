"""A registered hook: how it is run, its statistics, and the check of its signature."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.backends.interface import Suspension
from holdfast.backends.runtime.breaker import CircuitBreaker
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.backends.runtime.threads import WorkerPool
from holdfast.engine import trace_context
from holdfast.engine.guard import enter_owner
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, VetoError
from holdfast.hooks.context import HookContext, HookInfo, HookResult, Recording

# Runner ---------------------------------------------------------------------------------------------------------------
#
# Running a hook without blocking its caller for longer than the budget.
#
# An `inline` hook runs where the change is made, which is for hooks that are known to be quick. Others run in a thread
# of their own; async ones on the caller's event loop or, under a sync store, on a private one. The caller proceeds
# when the budget is used up. A thread cannot be stopped: what it still does has no effect on the change. So each hook
# has threads and a loop of its own: one that hangs keeps no other from running.

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

    after_workers: WorkerPool
    workers: WorkerPool

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


log: logging.Logger = logging.getLogger("holdfast.hooks")

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
        own = {name: getattr(self, name) for name in HookInfo.__struct_fields__ if hasattr(self, name)}
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
