"""A limit of time for functions of migrations: one that does not return is stopped.

A thread looks from time to time whether a call has taken too long, and raises an exception in the thread that makes
it. So a call costs no more than two entries in a dict, and no signal handler or trace function of the application is
replaced. What runs outside of Python's interpreter, such as a regular expression that backtracks for hours, is only
stopped when it returns.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Final

from holdfast.backends.runtime.fork_safety import reinit_after_fork

MAX_SECONDS: Final = 1.0
"""How long a migration of one state may take."""

_LOOK_SECONDS = 0.1
"""How often the thread looks, while there are calls."""

_IDLE_LOOKS = 50
"""After how many looks without a call the thread waits for the next one."""


class OverTime(BaseException):
    """Raised in a function that takes too long. Not an `Exception`, which a function might handle and go on."""


class TimeLimit:
    """Watches calls, one in each thread, and ends those that take too long."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self._over: set[int] = set()
        """The threads in which an exception was raised."""
        self._is_needed = threading.Event()
        self._watcher: threading.Thread | None = None
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace locks and thread in a forked child."""
        self._lock = threading.Lock()
        self._is_needed, self._watcher = threading.Event(), None
        self._started.clear()

    def begin(self) -> int:
        """Begin a call in this thread; `OverTime` is raised in it if it is not ended in time. Returns the thread; 0 if
        there is no limit: in a call in another one, and in a debugger."""
        thread = threading.get_ident()
        if thread in self._started or _is_debugged():
            return 0
        self._started[thread] = time.monotonic()
        if not self._is_needed.is_set():
            self._watch()
        return thread

    def end(self, thread: int) -> None:
        """End a call. An exception that comes too late is dropped, or raised here; then call this again."""
        if thread:
            with self._lock:
                self._started.pop(thread, None)
                if thread in self._over:
                    _drop_pending()
                    self._over.discard(thread)

    def _watch(self) -> None:
        with self._lock:
            self._is_needed.set()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._look, name="holdfast migration limit", daemon=True)
                self._watcher.start()

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOK_SECONDS)
            limit = time.monotonic() - MAX_SECONDS
            for thread, started in list(self._started.items()):
                if started < limit:
                    with self._lock:
                        if self._started.get(thread) == started:
                            self._started[thread] = time.monotonic()  # a function may handle it, and go on
                            self._over.add(thread)
                            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), _OVER_TIME)
            idle = 0 if self._started else idle + 1
            if idle > _IDLE_LOOKS:
                idle = 0
                self._is_needed.clear()
                if not self._started:  # a call that began meanwhile may have seen that it is needed still
                    self._is_needed.wait()


_OVER_TIME: Final = ctypes.py_object(OverTime)


def _drop_pending() -> None:
    """Raise an exception that is pending in this thread, and drop it: the interpreter raises it when it jumps back.

    To take it back instead, by `PyThreadState_SetAsyncExc` with no exception, leaves Python 3.11 in a state in which
    the next function that is traced never starts."""
    try:
        for _ in range(2):
            pass
    except OverTime:
        pass


def _is_debugged() -> bool:
    trace = sys.gettrace()
    return trace is not None and not type(trace).__module__.startswith("coverage")


TIME_LIMIT: Final = TimeLimit()
"""The limit for functions of migrations."""
