"""Statistics of recorded executions: which hooks are slow, which fail, and which are called most often."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from holdfast._fields import Hidden, Seconds
from holdfast.engine.engine import Engine
from holdfast.hooks.context import to_datetime
from holdfast.hooks.execution_log import FAILURES, ExecutionFilter, scan_executions


class HookStatistics(NamedTuple):
    """Statistics of the recorded executions of a hook. Durations are in seconds."""

    hook: str
    calls: int
    """Those that ran; the others were `skipped`."""
    failures: int
    vetoes: int
    changed: int
    skipped: int
    total: Hidden[float]
    average: Seconds
    worst: Seconds
    first: Hidden[datetime]
    last: datetime

    @property
    def failure_rate(self) -> float:
        """The part of calls that failed, from 0 to 1."""
        return self.failures / self.calls if self.calls else 0.0


class HookStatisticsList(list[HookStatistics]):
    """The statistics of hooks, by name."""

    def slowest(self, count: int = 10) -> list[HookStatistics]:
        """Return those that take longest on average."""
        return sorted(self, key=lambda each: (-each.average, each.hook))[:count]

    def failing(self, count: int = 10) -> list[HookStatistics]:
        """Return those that fail, those with the greatest part of failures first."""
        failed = [each for each in self if each.failures]
        return sorted(failed, key=lambda each: (-each.failure_rate, -each.failures, each.hook))[:count]

    def most_called(self, count: int = 10) -> list[HookStatistics]:
        """Return those that are called most often."""
        return sorted(self, key=lambda each: (-each.calls, each.hook))[:count]


@dataclass(slots=True)
class _Sums:
    """The sums of one hook."""

    outcomes: dict[str, int] = field(default_factory=dict)
    total: int = 0
    worst: int = 0
    first: int = 2**63
    last: int = 0

    def statistics(self, hook: str) -> HookStatistics:
        skipped = self.outcomes.get("skipped", 0)
        calls = sum(self.outcomes.values()) - skipped
        return HookStatistics(
            hook,
            calls,
            sum(count for outcome, count in self.outcomes.items() if outcome in FAILURES),
            self.outcomes.get("veto", 0),
            self.outcomes.get("changed", 0),
            skipped,
            self.total / 1e9,
            self.total / calls / 1e9 if calls else 0.0,
            self.worst / 1e9,
            to_datetime(self.first),
            to_datetime(self.last),
        )


async def summarize_executions(engine: Engine, tenant: str, filter_: ExecutionFilter) -> HookStatisticsList:
    """Sum up recorded executions by hook. Their details are not read."""
    sums: dict[str, _Sums] = {}
    async for rows in scan_executions(engine, tenant, filter_, bodies=False):
        for row in rows:
            time, _, _, action, _, outcome, _, _, duration = row.columns
            each = sums.setdefault(str(action), _Sums())
            each.outcomes[str(outcome)] = each.outcomes.get(str(outcome), 0) + 1
            each.total += int(duration)
            each.worst = max(each.worst, int(duration))
            each.first, each.last = min(each.first, int(time)), max(each.last, int(time))
    return HookStatisticsList(each.statistics(hook) for hook, each in sorted(sums.items()))
