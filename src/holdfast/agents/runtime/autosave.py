"""Save agents in the background: one worker for each store, with a queue for each event loop.

A `DirtyTracker` counts the unsaved changes of one agent, and decides when it is due. An agent of an `AsyncStore` is
saved on its own event loop. All agents of a `Store` share one thread with a loop in it, so that saves of many agents
are committed together.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from math import inf
from threading import Event, Lock, RLock, get_ident
from types import TracebackType
from typing import Any, Protocol

from holdfast.agents.definition.options import AgentOptions, Autosave
from holdfast.agents.runtime.data import AgentData, CapturedState
from holdfast.agents.runtime.metrics import SAVE, AgentMetrics, StoreMetrics, read_saves
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import error_text
from holdfast.backends.runtime.breaker import BreakerState, CircuitBreaker
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.backends.runtime.metrics import Metrics, Sample
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, InvalidError, TransientError, UnavailableError, UnsupportedError

_log = logging.getLogger("holdfast.agents")

_MAX_SAVES = 16
"""How many agents of a queue are saved at a time."""

_BUSY_PAUSE = 0.005
"""After how many seconds an agent that was just being changed is checked again."""

_CANCEL_PAUSE = 1.0
"""For how many seconds, at least, nothing is begun in a loop that cancelled a save."""

_LAST_TASKS = ("shutdown_asyncgens", "shutdown_default_executor", "async_generator_athrow")
"""The coroutines that an event loop runs after all other tasks, and the one that closes a generator of a task that was
cancelled."""

_JOIN_TIMEOUT = 5.0
"""How many seconds closing a store waits for the thread."""

_create_lock = threading.Lock()

_MAX_TORN = 5
"""How often in a row a state that changes during its capture is captured again soon, before that is a failure."""

_CAPTURE_TIMEOUT = 0.05
"""How many seconds a change block waits at most, before it begins, for a save that is due."""

_INACTIVE = ("paused", "stopped", "failed")
"""Statuses in which an agent is checked only after it reports a change."""


class AgentBusy(Exception):
    """Raised when an agent is in the middle of something and cannot be captured in the background."""


class TrackedAgent(Protocol):
    """An agent that can be saved automatically: an `AgentPersister`."""

    line: AgentLine
    data: AgentData
    options: AgentOptions
    point: StepRef | None
    lock: RLock
    statistics: Metrics
    tracker: DirtyTracker | None
    open_blocks: int
    committing_thread: int
    error: BaseException | None
    sync: bool

    @property
    def version(self) -> int: ...
    @property
    def needs_save(self) -> bool: ...
    def has_changes(self) -> bool: ...
    def capture(self) -> CapturedState: ...
    def mark_changed(self, count: int = 1) -> None: ...
    async def save(self, kind: str = "save", *, if_changed: bool = False, background: bool = False) -> StepRef: ...
    async def write_through(self) -> None: ...
    def reinit_locks(self) -> None: ...


class DirtyTracker:
    """Counts the changes of one agent, and knows when it is due to be saved."""

    def __init__(self, agent: TrackedAgent, settings: Autosave, scheduler: AutosaveWorker, *, sync: bool) -> None:
        self.agent = agent
        self.settings = settings
        self.sync = sync
        """Whether the agent belongs to a `Store`."""
        self.breaker: CircuitBreaker = scheduler.breaker(settings)
        self.change_count: int = 0
        """All changes so far."""
        self.halt_error: Exception | None = None
        """The error that ended automatic saves."""
        self.due_when_idle: bool = False
        """Whether the agent became due inside a block."""
        self.next_check: float = inf
        """When the queue checks the agent next."""
        self.is_saving: bool = False
        """Whether a background save is under way."""
        self.queue: SaveQueue | None = None
        """The queue of the event loop that used the agent last."""
        self.overdue: bool = False
        """Whether the agent is due and could not be saved because it was inside a block."""
        self._capture_done = Event()
        self.block_tasks: list[asyncio.Task[Any] | None] = []
        """The tasks that are inside change blocks."""
        self._scheduler = scheduler
        # Where the program waits for each change to be saved, the background has no reason to hurry.
        self._threshold = 1 if settings.write_through and not sync else settings.changes
        self.saves_in_caller: bool = settings.write_through and sync
        """Whether a caller that changes the agent waits until the change is saved."""
        self._saved_count = 0
        self._oldest_unsaved = inf
        """When the oldest unsaved change was made."""
        self._oldest_uncaptured = 0.0
        """When the oldest change since the last capture was made; infinite without one."""
        self._last_check = scheduler.clock()
        self._failures = 0
        self._torn_captures = 0
        self._last_conflict: Exception | None = None
        self._retry_at = 0.0
        self._belongs_to_parent = False
        """Whether the agent came from the process that this one was forked from, and was not changed here."""
        self._lock = Lock()

    # Changes --------------------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """The number of counted changes that are not saved."""
        return self.change_count - self._saved_count

    @property
    def oldest(self) -> float:
        """The age in seconds of the oldest unsaved change; 0.0 without one."""
        return 0.0 if self._oldest_unsaved == inf else max(0.0, self._scheduler.clock() - self._oldest_unsaved)

    def add_changes(self, count: int) -> None:
        """Count changes, and schedule a save of them."""
        with self._lock:
            before = self.change_count - self._saved_count
            self.change_count += count
            self._belongs_to_parent = False
            if not before or self._oldest_uncaptured == inf:
                now = self._scheduler.clock()
                self._oldest_unsaved = min(self._oldest_unsaved, now)
                self._oldest_uncaptured = min(self._oldest_uncaptured, now)
        if before < self._threshold <= before + count and not self._failures:
            self._scheduler.hurry(self)
        elif not before or not (self.sync or (self.queue is not None and not self.queue.ended)):
            self._scheduler.put(self, self._oldest_unsaved + self.settings.interval)

    def due(self) -> float:
        """Return when the agent is to be saved, by the scheduler's clock; infinite if it need not be."""
        if self.halt_error is not None:
            return inf
        with self._lock:
            if self._failures:
                at = self._retry_at if self.unsaved or self.is_running else inf
            elif self.unsaved >= self._threshold:
                at = 0.0
            elif self.unsaved:
                at = self._oldest_unsaved + self.settings.interval
            elif self.is_running:
                at = self._last_check + self.settings.interval
            else:
                at = inf
            return max(at, self._retry_at) if self._torn_captures else at

    @property
    def is_running(self) -> bool:
        """Whether the agent is checked periodically: it is in the store, and active."""
        active = self.agent.point is not None and self.agent.data.status not in _INACTIVE
        return active and not self._belongs_to_parent

    def claim_conflict(self) -> bool:
        """Return, once for each conflict, whether the thread that runs the agent is to resolve it."""
        if type(self.halt_error) is not ConflictError or not self.sync or self._last_conflict is self.halt_error:
            return False
        self._last_conflict = self.halt_error
        return self.agent.options.on_conflict != "raise"

    @property
    def needs_save(self) -> bool:
        """Whether there is, or may be, something to save."""
        return self.halt_error is None and (self.unsaved > 0 or self.is_running)

    # Saves ----------------------------------------------------------------------------------------------------

    def start_capture(self) -> int:
        """Note that the state is captured now, and return how many changes it contains."""
        with self._lock:
            self._oldest_uncaptured = inf
            return self.change_count

    def mark_saved(self, mark: int) -> int:
        """Note that the first `mark` changes are saved, and return how many of them are newly so."""
        with self._lock:
            now, new = self._scheduler.clock(), max(0, mark - self._saved_count)
            self._saved_count += new
            oldest = now if self._oldest_uncaptured == inf else self._oldest_uncaptured
            self._oldest_unsaved = oldest if self.unsaved else inf
            self._last_check, self._failures, self._torn_captures, self.halt_error = now, 0, 0, None
        if new:
            self.agent.statistics.add(changes=new)
        self._scheduler.end_save(self)
        return new

    def capture(self) -> CapturedState:
        """Capture the agent's state in the background. Raises `AgentBusy` rather than wait for the agent."""
        agent = self.agent
        if not agent.lock.acquire(blocking=False):
            raise AgentBusy
        try:
            if agent.open_blocks:
                raise AgentBusy
            captured = agent.capture()
            self.set_overdue(False)
            return captured
        except Exception as error:
            if self._is_torn(error):
                raise AgentBusy from error
            raise
        finally:
            agent.lock.release()

    def record_step(self, mark: int) -> None:
        """Note that a step with the first `mark` changes was saved."""
        new = self.mark_saved(mark)
        if new > 1:
            self.agent.statistics.add(coalesced=new - 1)
        if self.breaker.succeeded():
            self._scheduler.retry_all()

    def record_failure(self, error: BaseException) -> bool:
        """Note that a save failed, and return whether that opened the breaker."""
        settings, opened = self.settings, False
        with self._lock:
            if isinstance(error, ConflictError) or (isinstance(error, UnavailableError) and error.code == "closed"):
                self.halt_error = error
            pause = min(settings.pause * 2**self._failures, settings.max_pause)
            self._failures = min(self._failures + 1, 60)
            self._torn_captures = 0
            self._retry_at = self._scheduler.clock() + pause * random.uniform(0.5, 1)  # noqa: S311 - not all at once
        if isinstance(error, TransientError | UnavailableError):
            closed = not self.breaker.until
            opened = self.breaker.failed() and closed
        self._scheduler.end_save(self)
        return opened

    def _is_torn(self, error: Exception) -> bool:
        """Whether the state changed during its capture, and is to be captured again soon."""
        if self._torn_captures >= _MAX_TORN or not _is_concurrent_change(error):
            return False
        with self._lock:
            self._torn_captures += 1
            self._retry_at = self._scheduler.clock() + 0.002 * 2**self._torn_captures
        return True

    def retry_now(self) -> None:
        """Skip the pause before the next attempt: the store is back."""
        self._retry_at = 0.0

    def set_overdue(self, overdue: bool) -> None:
        """Have the next change block wait for a save that is due, or no longer."""
        self.overdue = overdue
        if overdue:
            self._capture_done.clear()
        else:
            self._capture_done.set()

    def wait_for_capture(self) -> None:
        """Wait briefly until the state is captured: an agent that is changed by one block after another would never be
        saved otherwise."""
        self._capture_done.wait(_CAPTURE_TIMEOUT)
        self.overdue = False  # one wait for each attempt

    async def await_capture(self) -> None:
        """Wait as `wait_for_capture` does, on the event loop that captures the state."""
        end = time.monotonic() + _CAPTURE_TIMEOUT
        while self.overdue and time.monotonic() < end:
            await asyncio.sleep(0.001)
        self.overdue = False

    def end_blocks(self) -> None:
        """Note that the last open block ended."""
        if self.due_when_idle:
            self.due_when_idle = False
            self._scheduler.hurry(self)

    def retire(self) -> None:
        """End automatic saves: the agent has another tracker."""
        self.halt_error = InvalidError("the agent was attached again")
        self._scheduler.end_save(self)

    def mark_loaded(self) -> None:
        """Note that the agent loaded a state that is saved."""
        self.mark_saved(self.start_capture())

    def reinit_locks(self) -> None:
        """Reset after a fork: unsaved changes are the parent's to save, until the child makes one of its own."""
        self._lock = Lock()
        self.queue, self.next_check, self.due_when_idle, self.is_saving = None, inf, False, False
        self.overdue, self._capture_done, self.block_tasks = False, Event(), []
        self._saved_count, self._oldest_unsaved, self._belongs_to_parent = self.change_count, inf, True


class SaveTimer:
    """Times one save of an agent, and counts its outcome."""

    __slots__ = ("_agent", "_done", "_started")

    def __init__(self, agent: TrackedAgent) -> None:
        self._agent = agent

    def __enter__(self) -> None:
        self._done = self._agent.statistics.counter("done")
        self._started = time.perf_counter()
        self._agent.committing_thread = get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        agent, seconds = self._agent, time.perf_counter() - self._started
        agent.committing_thread = 0
        if isinstance(error, AgentBusy):
            return
        statistics, again, agent.error = agent.statistics, agent.error is not None, error
        if error is not None:
            opened = agent.tracker is not None and agent.tracker.record_failure(error)
            invalid = isinstance(error, InvalidError | UnsupportedError)
            statistics.add(failed=1, retried=again, opened=opened, invalid=invalid)
        elif again:
            statistics.add(retried=1)
        if statistics.counter("done") > self._done:
            statistics.add_duration(SAVE, seconds)


def _is_concurrent_change(error: BaseException) -> bool:
    """Whether another thread changed something while it was read."""
    cause: Any = error.__context__ if isinstance(error, InvalidError) else error
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError | NotImplementedError)


# Blocks -------------------------------------------------------------------------------------------------------------


@contextmanager
def suspend_autosave(agent: TrackedAgent) -> Iterator[None]:
    """Save nothing of an agent in the background during this block."""
    with agent.lock:
        agent.open_blocks += 1
    try:
        yield
    finally:
        with agent.lock:
            agent.open_blocks -= 1
        if not agent.open_blocks and agent.tracker is not None:
            agent.tracker.end_blocks()


class ChangeBlock:
    """A block of changes that belong together: see `agent.change_block`."""

    def __init__(self, agent: TrackedAgent) -> None:
        self._agent = agent

    def __enter__(self) -> None:
        agent, tracker = self._agent, self._agent.tracker
        agent.lock.acquire()
        if tracker is not None and tracker.overdue and tracker.sync and not agent.open_blocks:
            agent.lock.release()
            tracker.wait_for_capture()
            agent.lock.acquire()
        agent.open_blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        agent, tracker = self._agent, self._agent.tracker
        agent.open_blocks -= 1
        agent.lock.release()
        if tracker is None:
            return
        if error is None:
            agent.mark_changed()
        else:
            tracker.add_changes(1)  # not saved before the error is raised: that must not wait
        if not agent.open_blocks:
            tracker.end_blocks()

    async def __aenter__(self) -> None:
        tracker, task = self._agent.tracker, asyncio.current_task()
        if tracker is not None:
            if tracker.overdue and not tracker.sync and task not in tracker.block_tasks:
                await tracker.await_capture()
            tracker.block_tasks.append(task)
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        tracker, task = self._agent.tracker, asyncio.current_task()
        if tracker is not None and task in tracker.block_tasks:
            tracker.block_tasks.remove(task)
        self.__exit__(kind, error, at)
        if error is None:
            await arun(self._agent.write_through())


class AutosaveWorker:
    """Saves the agents of one store in the background."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.statistics: Metrics = Metrics()
        """Statistics of all agents of the store."""
        self.creations: dict[Hashable, Any] = {}
        """New agents of which it is uncertain whether they were saved, by the request."""
        self._breakers: dict[tuple[int, float, float], CircuitBreaker] = {}
        self._closed = False
        self.reinit_locks()
        reinit_after_fork(self)
        self._at_exit = _exit_callback(weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, atexit.unregister, self._at_exit).atexit = False

    @staticmethod
    def of(engine: Engine) -> AutosaveWorker:
        """Return the worker of a store, creating it on first use."""
        worker = _worker(engine)
        if worker is None:
            with _create_lock:
                worker = _worker(engine)
                if worker is None:
                    engine.workers.append(worker := AutosaveWorker())
                    engine.context.metrics.add_collector(worker.samples)
        return worker

    def reinit_locks(self) -> None:
        """Reset after a fork: agents that came from the parent are the parent's to save, until the child changes
        them."""
        agents = list(getattr(self, "_agents", ()))
        self._lock = threading.Lock()
        self._agents: weakref.WeakSet[TrackedAgent] = weakref.WeakSet(agents)
        self._thread_queue = SaveQueue(self.clock)
        self._loop_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SaveQueue] = weakref.WeakKeyDictionary()
        for breaker in self._breakers.values():
            breaker.reinit_locks()
        for agent in agents:
            agent.reinit_locks()

    def breaker(self, settings: Autosave) -> CircuitBreaker:
        """Return the breaker that all agents with the same settings for it share."""
        key = (settings.failures, settings.rest, settings.max_rest)
        with self._lock:
            if key not in self._breakers:
                rest, longest = (int(seconds * 1e9) for seconds in key[1:])
                self._breakers[key] = CircuitBreaker(lambda: int(self.clock() * 1e9), settings.failures, rest, longest)
            return self._breakers[key]

    def register(self, agent: TrackedAgent) -> None:
        """Add a live agent of the store."""
        with self._lock:
            self._agents.add(agent)

    def unregister(self, agent: TrackedAgent) -> None:
        """Remove an agent that another persister saves."""
        with self._lock:
            self._agents.discard(agent)

    # Scheduling -----------------------------------------------------------------------------------------------

    def put(self, tracker: DirtyTracker, at: float) -> None:
        """Check an agent at that time."""
        queue = self._queue(tracker)
        if queue is not None and at < inf:
            queue.put(tracker, at)

    def hurry(self, tracker: DirtyTracker) -> None:
        """Check an agent now."""
        queue = self._queue(tracker)
        if queue is not None:
            queue.hurry(tracker)

    def end_save(self, tracker: DirtyTracker) -> None:
        """Note that a save of an agent ended, and schedule the next one."""
        queue = self._queue(tracker)
        if queue is not None:
            queue.end_save(tracker)
            if not tracker.is_saving:
                self.put(tracker, tracker.due())

    def retry_all(self) -> None:
        """Retry the saves that wait for the store: it works again."""
        for queue in self._queues():
            queue.retry()

    def _queues(self) -> list[SaveQueue]:
        with self._lock:
            return [self._thread_queue, *self._loop_queues.values()]

    def _queue(self, tracker: DirtyTracker) -> SaveQueue | None:
        """Return the queue of the thread, or of the event loop that is running; None if neither applies."""
        if self._closed:
            return None
        if tracker.sync:
            return self._thread_queue
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return tracker.queue
        with self._lock:
            queue = self._loop_queues.get(loop)
            if queue is None:
                queue = self._loop_queues[loop] = SaveQueue(self.clock, loop)
        if tracker.queue is not queue:
            tracker.queue, tracker.next_check, tracker.is_saving = queue, inf, False
        return queue

    # The store ------------------------------------------------------------------------------------------------

    def agents(self) -> list[TrackedAgent]:
        """Return the live agents."""
        with self._lock:
            return list(self._agents)

    def metrics(self, actor: str = "") -> StoreMetrics:
        """Return the metrics of all agents, or of one identity's."""
        live = [each for each in self.agents() if actor in ("", each.line.handle.guard.actor)]
        statistics = Metrics.sum(each.statistics for each in live) if actor else self.statistics
        counts, durations = read_saves(statistics)
        agents = {each.line.id: metrics_of(each) for each in live}
        unsaved = sum(each.unsaved for each in agents.values())
        counts.changes += unsaved
        states = {breaker.state for breaker in self._breakers.values()}
        worst: BreakerState = "open" if "open" in states else "trying" if "trying" in states else "closed"
        oldest = max((each.oldest for each in agents.values()), default=0.0)
        return StoreMetrics(counts, durations.buckets(), agents, unsaved, oldest, worst, durations)

    def samples(self) -> Iterator[Sample]:
        """Return the metrics of all agents, for the registry of the store."""
        return self.metrics().samples()

    async def flush(self, agents: Sequence[TrackedAgent]) -> None:
        """Save the unsaved changes of agents. Stops at the first agent for which the store is unavailable."""
        for number, agent in enumerate(agents):
            try:
                await agent.save(if_changed=True)
            except (TransientError, UnavailableError) as error:
                _log_unsaved(agents[number:], str(error))
                return
            except Exception as error:  # noqa: BLE001 - the others are still to be saved
                _log.error("agent %r could not be saved: %s", agent.line.id, error)

    async def close(self) -> None:
        """Save the agents that run, and report what is unsaved of others. Nothing is saved after that."""
        if not self._closed:
            agents = self.agents()
            await self.flush([each for each in agents if each.needs_save])
            _log_unsaved(
                [each for each in agents if not each.needs_save],
                "they do not run, or are no longer saved automatically",
            )
            self._closed = True
            for queue in self._queues():
                queue.close()

    def flush_at_exit(self) -> None:
        """Save the agents of a `Store` when the program ends, if the store is available."""
        if self._closed:
            return
        agents = [each for each in self.agents() if each.needs_save]
        _log_unsaved([each for each in agents if not each.sync], "the AsyncStore was not closed")
        agents = [each for each in agents if each.sync]
        if any(each.tracker is not None and each.tracker.breaker.until for each in agents):
            _log_unsaved(agents, "saving is suspended because saves failed")
        else:
            run(self.flush(agents))


def _worker(engine: Engine) -> AutosaveWorker | None:
    return next((each for each in engine.workers if isinstance(each, AutosaveWorker)), None)


def _log_unsaved(agents: Sequence[TrackedAgent], reason: str) -> None:
    lost = sorted(each.line.id for each in agents if each.has_changes())
    if lost:
        names = ", ".join(lost[:20]) + (f" and {len(lost) - 20} more" if len(lost) > 20 else "")
        _log.error("changes to agents could not be saved: %s: %s", names, reason)


def _exit_callback(worker: weakref.ref[AutosaveWorker]) -> Callable[[], None]:
    def flush() -> None:
        live = worker()
        if live is not None:
            live.flush_at_exit()

    return flush


def metrics_of(agent: TrackedAgent) -> AgentMetrics:
    """Return the metrics of one agent."""
    counts, durations = read_saves(agent.statistics)
    buckets = durations.buckets()
    tracker, error = agent.tracker, agent.error
    text = "" if error is None else error_text(error)
    if tracker is None:
        return AgentMetrics(agent.line.id, agent.version, counts, buckets, 0, 0.0, "closed", False, text)
    counts.changes += tracker.unsaved
    state = (tracker.unsaved, tracker.oldest, tracker.breaker.state, tracker.halt_error is None)
    return AgentMetrics(agent.line.id, agent.version, counts, buckets, *state, text)


class SaveQueue:
    """The agents that one event loop saves, by when they are due.

    The loop is the program's, or one of its own in a thread of its own. The thread is started when it is first needed,
    and ends when nothing is left to check. It does not keep a program from ending, and keeps only those agents alive
    that have unsaved changes.
    """

    def __init__(self, clock: Callable[[], float], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Use the program's event loop, or without one start a thread with a loop."""
        self._clock = clock
        self._has_thread = loop is None
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = _none if loop is None else weakref.ref(loop)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._numbers = count()
        self._heap: list[tuple[float, int, weakref.ref[DirtyTracker]]] = []
        self._urgent: list[DirtyTracker] = []
        self._unsaved: set[DirtyTracker] = set()
        self._ready: deque[DirtyTracker] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_time = inf
        """When the loop checks next, at the latest."""
        self._closed = False

    @property
    def ended(self) -> bool:
        """Whether the program's event loop is closed."""
        loop = self._loop()
        return not self._has_thread and (loop is None or loop.is_closed())

    # From any thread ------------------------------------------------------------------------------------------

    def put(self, tracker: DirtyTracker, at: float) -> None:
        """Check an agent at that time."""
        with self._lock:
            self._keep_alive(tracker)
            if at < tracker.next_check and not self._closed:
                tracker.next_check = at
                heappush(self._heap, (at, next(self._numbers), weakref.ref(tracker)))
                self._wake(at)

    def hurry(self, *trackers: DirtyTracker) -> None:
        """Check agents now."""
        with self._lock:
            if self._closed:
                return
            for tracker in trackers:
                self._keep_alive(tracker)
                self._urgent.append(tracker)
            self._wake(0.0)

    def retry(self) -> None:
        """Retry all saves that wait for the store."""
        with self._lock:
            trackers = list(self._unsaved)
        for tracker in trackers:
            tracker.retry_now()
        self.hurry(*trackers)

    def end_save(self, tracker: DirtyTracker) -> None:
        """Note that a save of an agent ended."""
        with self._lock:
            if tracker.halt_error is not None or not tracker.unsaved:
                self._unsaved.discard(tracker)

    def close(self) -> None:
        """Save nothing more."""
        with self._lock:
            self._closed = True
            self._heap.clear()
            self._urgent.clear()
            self._unsaved.clear()
            self._ready.clear()
            thread = self._thread
            self._wake_time = inf
            if self._loop() is not None:
                self._wake(0.0)
        if thread is not None:
            thread.join(_JOIN_TIMEOUT)

    def _keep_alive(self, tracker: DirtyTracker) -> None:
        if tracker.unsaved and tracker.halt_error is None and not self._closed:
            self._unsaved.add(tracker)

    def _wake(self, at: float) -> None:
        """Have the loop check at that time. The caller has the lock."""
        if at >= self._wake_time:
            return
        loop = self._loop()
        if loop is None and self._has_thread:
            self._thread = LoopThread("holdfast-autosave")
            loop = self._thread.loop
            self._loop = _always(loop)
        self._wake_time = at
        if loop is not None:
            try:
                # In a context of its own: a save belongs to none of the callers whose changes are in it.
                loop.call_soon_threadsafe(self._check, context=Context())
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # The loop ended, and the agents with it.

    # In the loop ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Begin the saves that are due, and schedule the next check."""
        now, loop = self._clock(), asyncio.get_running_loop()
        with self._lock:
            if loop is not self._loop():
                return  # this loop is ending, and another one was started
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._wake_time = inf  # whatever is added from now on asks for another check
            due, self._urgent = self._urgent, []
            while self._heap and self._heap[0][0] <= now:
                at, _, reference = heappop(self._heap)
                tracker = reference()
                if tracker is not None and tracker.next_check == at:
                    tracker.next_check = inf
                    due.append(tracker)
        for tracker in due:
            self._consider(tracker, now)
        self._begin_saves()
        with self._lock:
            if self._heap and self._heap[0][0] < self._wake_time:
                self._wake_time = self._heap[0][0]
                self._timer = loop.call_later(max(0.0, self._wake_time - now), self._check, context=Context())
            self._stop_if_idle()

    def _consider(self, tracker: DirtyTracker, now: float) -> None:
        at = tracker.due()
        if tracker.is_saving or at == inf:
            return  # it is scheduled again once it is saved, or changes
        if at > now:
            self.put(tracker, at)
        elif tracker.agent.open_blocks:
            tracker.due_when_idle = True
            tracker.set_overdue(True)
            if not tracker.agent.open_blocks:
                self.put(tracker, now)  # the block ended just now
        else:
            tracker.is_saving = True
            self._ready.append(tracker)

    def _begin_saves(self) -> None:
        """Begin as many saves as may run at a time, or postpone them if the loop is about to end."""
        if not self._ready:
            return
        loop = asyncio.get_running_loop()
        if not self._has_thread and _is_ending(loop):
            self._postpone_all()
        for _ in range(min(len(self._ready), _MAX_SAVES - len(self._tasks))):
            task = loop.create_task(self._save())
            self._tasks.add(task)
            task.add_done_callback(self._end_task)

    async def _save(self) -> None:
        """Save the agents that are ready, one after the other."""
        while self._ready:
            tracker = self._ready.popleft()
            soon = 0.0
            if not tracker.breaker.allows():
                tracker.is_saving = False
                tracker.set_overdue(False)
                pause = min(tracker.settings.rest, 1.0) * random.uniform(0.5, 1)  # noqa: S311 - not all at once
                self.put(tracker, max(tracker.breaker.until / 1e9, self._clock() + pause))
                continue
            is_trial = bool(tracker.breaker.until)
            try:
                await arun(tracker.agent.save("autosave", if_changed=True, background=True))
                tracker.set_overdue(False)
            except AgentBusy:
                soon = self._clock() + _BUSY_PAUSE
                tracker.set_overdue(True)
            except asyncio.CancelledError:
                self._postpone(tracker)
                raise
            except Exception as error:  # noqa: BLE001 - it is recorded, counted, and tried again
                _log.debug("agent %r could not be saved: %s", tracker.agent.line.id, error)
                tracker.set_overdue(False)
            finally:
                tracker.is_saving = False
                if is_trial:  # otherwise the trial, if there is one, is another agent's
                    tracker.breaker.cancel_trial()
            at = max(tracker.due(), soon)
            if at < inf:
                self.put(tracker, at)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._postpone_all()
        self._begin_saves()  # whatever came when this one had just ended, and all others were at work
        with self._lock:
            self._stop_if_idle()

    def _postpone_all(self) -> None:
        while self._ready:
            self._postpone(self._ready.popleft())

    def _postpone(self, tracker: DirtyTracker) -> None:
        """Try again later, in case the loop goes on: usually it is ending, and nothing is begun in it any more."""
        tracker.is_saving = False
        self.put(tracker, self._clock() + max(_CANCEL_PAUSE, tracker.settings.interval))

    def _stop_if_idle(self) -> None:
        """End the thread if nothing is left. The caller has the lock."""
        if self._has_thread and not (self._heap or self._urgent or self._ready or self._tasks):
            loop = self._loop()
            self._loop, self._thread, self._wake_time = _none, None, inf
            if loop is not None:
                loop.stop()


def _is_ending(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether an event loop is about to be closed: a task that began now would be left over.

    `asyncio.run` cancels all tasks and lets them end, and then runs two of its own.
    """
    tasks = asyncio.all_tasks(loop)
    return bool(tasks) and all(task.cancelling() or _coroutine_name(task) in _LAST_TASKS for task in tasks)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__name__", type(coroutine).__name__)


def _none() -> None:
    return None


def _always(loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    return lambda: loop
