"""Optimistic changes: what is stored is read, and changed if nobody else has changed it meanwhile; else both again."""

from __future__ import annotations

from time import monotonic

from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.runtime.metric_families import CONFLICTS
from holdfast.backends.runtime.metrics import MetricsRegistry
from holdfast.engine.rng import rng
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError

PATIENCE = 30.0
"""For how many seconds a change is repeated."""

_LEAST = 5
"""How often it is tried at least, however long that takes."""

_QUICK, _LONGEST_PAUSE = 2, 0.05
"""How often it is repeated without a pause, and for how many seconds it pauses at most."""


class ConcurrentChange(Exception):
    """Another writer changed what is being read, copied or changed."""


class Attempts:
    """The attempts at one change. Each time that it has to be repeated, another writer was first.

    `action` is what is done, as in "merging a branch"; `where` names the thing that is changed; `code` is that of the
    error. Repetitions are counted by action in the metrics.
    """

    __slots__ = ("_action", "_code", "_metrics", "_started", "_where", "count")

    def __init__(
        self, action: str, where: str | Line = "", metrics: MetricsRegistry | None = None, *, code: str = ""
    ) -> None:
        self._action, self._where, self._metrics, self._code = action, where, metrics, code
        self._started = 0.0
        self.count: int = 0

    async def begin(self) -> int:
        """Begin an attempt, and return how many there were before it. `ConflictError` after too long a time."""
        earlier = self.count
        self.count = earlier + 1
        if not earlier:
            return 0
        if self._metrics is not None:
            self._metrics.count(CONFLICTS, self._action)
        if earlier == 1:
            self._started = monotonic()
        elif earlier >= _LEAST and monotonic() - self._started > PATIENCE:
            raise ConflictError(
                f"gave up {self._action} after {earlier:,} concurrent writes",
                where=self._where if isinstance(self._where, str) else f"thread {self._where}",
                hint="Try again, with fewer writers at a time",
                code=self._code,
            )
        if earlier > _QUICK:
            await Pause(rng.random() * min(_LONGEST_PAUSE, 0.001 * earlier))
        return earlier
