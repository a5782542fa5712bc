"""A watch: counts the changes of one agent that is saved by itself, and knows when it is due.

Who saves it then is in `holdfast.agents.runtime.autosave`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from threading import Event, Lock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConflictError, InvalidError, TransientError, UnavailableError, UnsupportedError
from holdfast.hooks.breaker import HookBreaker

if TYPE_CHECKING:
    from holdfast.agents.definition.autosave import Autosave
    from holdfast.agents.runtime.autosave import AutosaveWorker
    from holdfast.agents.runtime.data import CapturedState
    from holdfast.agents.runtime.persister import AgentPersister
    from holdfast.agents.runtime.save_queue import SaveQueue


_PATIENCE = 5
"""How often in a row a state that changes while it is taken is tried again soon; then it has failed."""


_ROOM = 0.05
"""For so many seconds at most a block that changes an agent waits, before it begins, for a save that is due."""


_RESTING = ("paused", "stopped", "failed")
"""An agent of these statuses is looked at only if it says that it changed."""


class AgentBusy(Exception):
    """An agent is in the middle of something: its state is not to be taken in the background now."""


class DirtyTracker:
    """Counts what changed of one agent, and knows when it is due to be saved."""

    def __init__(self, keeper: AgentPersister, settings: Autosave, saver: AutosaveWorker, *, sync: bool) -> None:
        self.keeper = keeper
        self.settings = settings
        self.sync = sync
        """Whether it is an agent of a `Store`."""
        self.breaker: HookBreaker = saver.breaker(settings)
        self.counted = 0
        """Changes so far."""
        self.halted: Exception | None = None
        """Why it is no longer saved by itself."""
        self.waiting = False
        """It was due while the agent was in the middle of something."""
        self.queued = math.inf
        """When the lane looks at it next."""
        self.saving = False
        """It is being saved in the background."""
        self.lane: SaveQueue | None = None
        """The one of the event loop that it was in last."""
        self.wanted = False
        """It is due, and could not be saved because the agent was in the middle of something."""
        self._room = Event()
        self.inside: list[asyncio.Task[Any] | None] = []
        """The tasks that are in blocks that change it."""
        self._saver = saver
        # Where the program waits for each change to be saved, there is nothing to hurry for in the background.
        self._most = 1 if settings.write_through and not sync else settings.changes
        self.waits = settings.write_through and sync
        """Whether who changes it waits until that is saved."""
        self._saved = 0
        self._since = math.inf
        """When the oldest change was made that is not saved."""
        self._next = 0.0
        """When the oldest change was made since the state was taken last; infinite if none was."""
        self._looked = saver.clock()
        self._failures = 0
        self._torn = 0
        self._tried: Exception | None = None
        self._again = 0.0
        self._inherited = False
        """It is the agent of the process that this one was forked from, and nothing was changed here."""
        self._lock = Lock()

    # Changes --------------------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Changes that were counted and are not saved."""
        return self.counted - self._saved

    @property
    def oldest(self) -> float:
        """How many seconds ago the oldest of them was counted; 0.0 if there is none."""
        return 0.0 if self._since == math.inf else max(0.0, self._saver.clock() - self._since)

    def changed(self, count: int) -> None:
        """So many changes were made."""
        with self._lock:
            before = self.counted - self._saved
            self.counted += count
            self._inherited = False
            if not before or self._next == math.inf:
                now = self._saver.clock()
                self._since, self._next = min(self._since, now), min(self._next, now)
        if before < self._most <= before + count and not self._failures:
            self._saver.hurry(self)
        elif not before or not (self.sync or (self.lane is not None and not self.lane.ended)):
            self._saver.put(self, self._since + self.settings.interval)

    def due(self) -> float:
        """When it is to be saved, by the clock of the store; infinite if it need not be."""
        if self.halted is not None:
            return math.inf
        with self._lock:
            if self._failures:
                at = self._again if self.unsaved or self.is_running else math.inf
            elif self.unsaved >= self._most:
                at = 0.0
            elif self.unsaved:
                at = self._since + self.settings.interval
            elif self.is_running:
                at = self._looked + self.settings.interval
            else:
                at = math.inf
            return max(at, self._again) if self._torn else at

    @property
    def is_running(self) -> bool:
        """Whether it is looked at now and then: it is there in the store, and not at rest."""
        at_work = self.keeper.point is not None and self.keeper.data.status not in _RESTING
        return at_work and not self._inherited

    @property
    def resolves(self) -> bool:
        """Whether somebody else saved the agent, which is to be resolved where the agent runs."""
        if type(self.halted) is not ConflictError or not self.sync or self._tried is self.halted:
            return False
        self._tried = self.halted
        return self.keeper.settings.on_conflict != "refuse"

    @property
    def wants(self) -> bool:
        """Whether there is, or may be, something to save."""
        return self.halted is None and (self.unsaved > 0 or self.is_running)

    # Saves ----------------------------------------------------------------------------------------------------

    def taken(self) -> int:
        """The state is taken now: how many changes are in it."""
        with self._lock:
            self._next = math.inf
            return self.counted

    def saved(self, mark: int) -> int:
        """So many changes of all that were counted are saved. Returns how many of them were not before."""
        with self._lock:
            now, new = self._saver.clock(), max(0, mark - self._saved)
            self._saved += new
            self._since = (now if self._next == math.inf else self._next) if self.unsaved else math.inf
            self._looked, self._failures, self._torn, self.halted = now, 0, 0, None
        if new:
            self.keeper.figures.add(changes=new)
        self._saver.settled(self)
        return new

    def take(self) -> CapturedState:
        """The agent's state, taken in the background: raises `AgentBusy` rather than to wait for the agent."""
        keeper = self.keeper
        if not keeper.lock.acquire(blocking=False):
            raise AgentBusy
        try:
            if keeper.held:
                raise AgentBusy
            taken = keeper.take()
            self.want(False)
            return taken
        except Exception as error:
            if self._is_torn(error):
                raise AgentBusy from error
            raise
        finally:
            keeper.lock.release()

    def made(self, mark: int) -> None:
        """A step was made, in which there are so many changes of all."""
        new = self.saved(mark)
        if new > 1:
            self.keeper.figures.add(coalesced=new - 1)
        if self.breaker.succeeded():
            self._saver.back()

    def failed(self, error: BaseException) -> bool:
        """A save failed. Returns whether that opened the breaker."""
        settings, opened = self.settings, False
        with self._lock:
            if isinstance(error, ConflictError) or (isinstance(error, UnavailableError) and error.code == "closed"):
                self.halted = error
            pause = min(settings.pause * 2**self._failures, settings.longest_pause)
            self._failures = min(self._failures + 1, 60)
            self._torn = 0
            self._again = self._saver.clock() + pause * random.uniform(0.5, 1)  # noqa: S311 - not all at once
        if isinstance(error, TransientError | UnavailableError):
            closed = not self.breaker.until
            opened = self.breaker.failed() and closed
        self._saver.settled(self)
        return opened

    def _is_torn(self, error: Exception) -> bool:
        """Whether the state changed while it was taken, and is to be taken again soon."""
        if self._torn >= _PATIENCE or not _changed_meanwhile(error):
            return False
        with self._lock:
            self._torn += 1
            self._again = self._saver.clock() + 0.002 * 2**self._torn
        return True

    def retry(self) -> None:
        """The store is back: there is nothing to wait for."""
        self._again = 0.0

    def want(self, wanted: bool) -> None:
        """Who begins to change the agent is to wait for a save that is due; or not any more."""
        self.wanted = wanted
        if wanted:
            self._room.clear()
        else:
            self._room.set()

    def make_room(self) -> None:
        """Wait until the state is taken, but not for long. Else an agent that is changed by one block after the other
        would never be saved."""
        self._room.wait(_ROOM)
        self.wanted = False  # once for each time that it is tried

    async def amake_room(self) -> None:
        """The same, on the event loop that it is taken on."""
        end = time.monotonic() + _ROOM
        while self.wanted and time.monotonic() < end:
            await asyncio.sleep(0.001)
        self.wanted = False

    def freed(self) -> None:
        """The agent is no longer in the middle of something."""
        if self.waiting:
            self.waiting = False
            self._saver.hurry(self)

    def loaded(self) -> None:
        """The agent was given another state, which is saved."""
        self.saved(self.taken())

    def renew_locks(self) -> None:
        """For a forked child: what is unsaved is the parent's to save, until something more is changed here."""
        self._lock = Lock()
        self.lane, self.queued, self.waiting, self.saving = None, math.inf, False, False
        self.wanted, self._room, self.inside = False, Event(), []
        self._saved, self._since, self._inherited = self.counted, math.inf, True


class SaveTimer:
    """One save of an agent, counted as it ends."""

    __slots__ = ("_done", "_keeper", "_started")

    def __init__(self, keeper: AgentPersister) -> None:
        self._keeper = keeper

    def __enter__(self) -> None:
        self._done = self._keeper.figures.counts.done
        self._started = time.perf_counter()
        self._keeper.committer = get_ident()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        keeper, seconds = self._keeper, time.perf_counter() - self._started
        keeper.committer = 0
        if isinstance(error, AgentBusy):
            return
        figures, again, keeper.error = keeper.figures, keeper.error is not None, error
        if error is not None:
            opened = keeper.watch is not None and keeper.watch.failed(error)
            invalid = isinstance(error, InvalidError | UnsupportedError)
            figures.add(failed=1, retried=again, opened=opened, invalid=invalid)
        elif again:
            figures.add(retried=1)
        if figures.counts.done > self._done:
            figures.took(seconds)


def _changed_meanwhile(error: BaseException) -> bool:
    """Whether something was changed by another thread while it was read."""
    cause: Any = error.__context__ if isinstance(error, InvalidError) else error
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError | NotImplementedError)
