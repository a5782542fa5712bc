"""Count the unsaved changes of one agent, and decide when it is due to be saved automatically.

`holdfast.agents.runtime.autosave` does the saving. The agent and the scheduler are protocols here, since both build on
this module.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, RLock, get_ident
from types import TracebackType
from typing import Any, Protocol

from holdfast.agents.definition.options import AgentOptions, Autosave
from holdfast.agents.runtime.data import AgentData, CapturedState
from holdfast.agents.runtime.metrics import SAVE
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.runtime.breaker import CircuitBreaker
from holdfast.backends.runtime.drivers import arun
from holdfast.backends.runtime.metrics import Metrics
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, InvalidError, TransientError, UnavailableError, UnsupportedError

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


class TrackerQueue(Protocol):
    """The queue of one event loop: a `SaveQueue`."""

    @property
    def ended(self) -> bool: ...
    def put(self, tracker: DirtyTracker, at: float) -> None: ...
    def hurry(self, *trackers: DirtyTracker) -> None: ...
    def end_save(self, tracker: DirtyTracker) -> None: ...


class SaveScheduler(Protocol):
    """The scheduler of all automatic saves of a store: an `AutosaveWorker`."""

    @property
    def clock(self) -> Callable[[], float]: ...
    def breaker(self, settings: Autosave) -> CircuitBreaker: ...
    def put(self, tracker: DirtyTracker, at: float) -> None: ...
    def hurry(self, tracker: DirtyTracker) -> None: ...
    def end_save(self, tracker: DirtyTracker) -> None: ...
    def retry_all(self) -> None: ...


class DirtyTracker:
    """Counts the changes of one agent, and knows when it is due to be saved."""

    def __init__(self, agent: TrackedAgent, settings: Autosave, scheduler: SaveScheduler, *, sync: bool) -> None:
        self.agent = agent
        self.settings = settings
        self.sync = sync
        """Whether the agent belongs to a `Store`."""
        self.breaker: CircuitBreaker = scheduler.breaker(settings)
        self.change_count = 0
        """All changes so far."""
        self.halt_error: Exception | None = None
        """The error that ended automatic saves."""
        self.due_when_idle = False
        """Whether the agent became due inside a block."""
        self.next_check = math.inf
        """When the queue checks the agent next."""
        self.is_saving = False
        """Whether a background save is under way."""
        self.queue: TrackerQueue | None = None
        """The queue of the event loop that used the agent last."""
        self.overdue = False
        """Whether the agent is due and could not be saved because it was inside a block."""
        self._capture_done = Event()
        self.block_tasks: list[asyncio.Task[Any] | None] = []
        """The tasks that are inside change blocks."""
        self._scheduler = scheduler
        # Where the program waits for each change to be saved, the background has no reason to hurry.
        self._threshold = 1 if settings.write_through and not sync else settings.changes
        self.saves_in_caller = settings.write_through and sync
        """Whether a caller that changes the agent waits until the change is saved."""
        self._saved_count = 0
        self._oldest_unsaved = math.inf
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
        return 0.0 if self._oldest_unsaved == math.inf else max(0.0, self._scheduler.clock() - self._oldest_unsaved)

    def add_changes(self, count: int) -> None:
        """Count changes, and schedule a save of them."""
        with self._lock:
            before = self.change_count - self._saved_count
            self.change_count += count
            self._belongs_to_parent = False
            if not before or self._oldest_uncaptured == math.inf:
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
            return math.inf
        with self._lock:
            if self._failures:
                at = self._retry_at if self.unsaved or self.is_running else math.inf
            elif self.unsaved >= self._threshold:
                at = 0.0
            elif self.unsaved:
                at = self._oldest_unsaved + self.settings.interval
            elif self.is_running:
                at = self._last_check + self.settings.interval
            else:
                at = math.inf
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
            self._oldest_uncaptured = math.inf
            return self.change_count

    def mark_saved(self, mark: int) -> int:
        """Note that the first `mark` changes are saved, and return how many of them are newly so."""
        with self._lock:
            now, new = self._scheduler.clock(), max(0, mark - self._saved_count)
            self._saved_count += new
            oldest = now if self._oldest_uncaptured == math.inf else self._oldest_uncaptured
            self._oldest_unsaved = oldest if self.unsaved else math.inf
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
        self.queue, self.next_check, self.due_when_idle, self.is_saving = None, math.inf, False, False
        self.overdue, self._capture_done, self.block_tasks = False, Event(), []
        self._saved_count, self._oldest_unsaved, self._belongs_to_parent = self.change_count, math.inf, True


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
