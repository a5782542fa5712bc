"""Metrics of saves: of one agent, and of all agents of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.breaker import BreakerState
from holdfast.backends.runtime.metrics import Metrics, Sample
from holdfast.engine.events import Event

SAVE = "save"
"""The timing of saves that appended a step."""


@dataclass(slots=True)
class SaveCounts:
    """Counters of saves. They only grow."""

    done: int = 0
    """Saves that appended a step: by the program, by changes of status and state, and automatic ones."""
    unchanged: int = 0
    """Saves that found nothing to save."""
    failed: int = 0
    """Saves that ended with an error."""
    retried: int = 0
    """Saves that followed a failed one, whatever their own outcome."""
    coalesced: int = 0
    """Changes that were saved together with another one, and needed no save of their own."""
    changes: int = 0
    """All changes."""
    invalid: int = 0
    """Times that an agent's state could not be captured, usually because its own validation refused it."""
    opened: int = 0
    """Times that this agent's failures opened the breaker."""
    transitions: int = 0
    """Transitions that succeeded."""
    failed_transitions: int = 0
    """Transitions whose action failed, or that were refused."""
    refused: int = 0
    """Transitions that a validator, a guard or a hook refused, or that are not declared."""
    recoveries: int = 0
    """Times that something was found incomplete or damaged, and was resolved."""
    seconds: float = 0.0
    """The total time of the saves that appended a step."""
    worst: float = 0.0
    """The longest of them."""

    @property
    def attempted(self) -> int:
        """All saves that ended."""
        return self.done + self.unchanged + self.failed

    @property
    def success_rate(self) -> float:
        """The share that succeeded of the saves that had something to save; 1.0 before the first one."""
        ended = self.done + self.failed
        return self.done / ended if ended else 1.0


class AgentMetrics(msgspec.Struct, frozen=True):
    """The saves of one agent, at one moment."""

    id: str
    version: int
    counts: SaveCounts
    buckets: Mapping[float, int]
    """The number of saves by their longest duration in seconds; cumulative, as in Prometheus."""
    unsaved: int
    """The number of unsaved changes."""
    oldest: float
    """The age in seconds of the oldest unsaved change; 0.0 if there is none."""
    breaker: BreakerState
    is_autosaved: bool
    """Whether the agent is saved automatically: not if that was not requested, or after an error that only the program
    can resolve."""
    error: str
    """The error of the last failed save, if none succeeded since."""

    @property
    def success_rate(self) -> float:
        """See `SaveCounts.success_rate`."""
        return self.counts.success_rate


class StoreMetrics(msgspec.Struct, frozen=True):
    """The saves of all agents that the program has, or had, of a store."""

    counts: SaveCounts
    buckets: Mapping[float, int]
    agents: Mapping[str, AgentMetrics]
    """The live agents, by id."""
    unsaved: int
    oldest: float
    breaker: BreakerState
    """The worst state of all breakers: agents with other settings for it have a breaker of their own."""
    durations: Distribution
    """The durations of saves that appended a step."""

    @property
    def success_rate(self) -> float:
        """See `SaveCounts.success_rate`."""
        return self.counts.success_rate

    def samples(self) -> Iterator[Sample]:
        """Return the metrics for the registry of the store. Agents have no labels: there may be too many of them."""
        counts = self.counts
        for outcome in ("done", "unchanged", "failed"):
            yield Sample("agent_saves_total", (outcome,), getattr(counts, outcome))
        yield Sample("transitions_total", ("ok",), counts.transitions)
        yield Sample("transitions_total", ("failed",), counts.failed_transitions)
        for name in ("retried", "coalesced", "changes"):
            yield Sample(f"agent_{name}_total", (), getattr(counts, name))
        yield Sample("agent_breaker_opened_total", (), counts.opened)
        yield Sample("validation_failures_total", ("agent",), counts.invalid)
        yield Sample("validation_failures_total", ("transition",), counts.refused)
        yield Sample("agent_save_seconds", (), self.durations)
        yield Sample("agents_live", (), len(self.agents))
        yield Sample("agent_unsaved_changes", (), self.unsaved)
        yield Sample("agent_oldest_unsaved_seconds", (), self.oldest)
        yield Sample("breaker_open", ("agents",), int(self.breaker != "closed"))


def count_step(metrics: Metrics, events: Iterable[Event]) -> None:
    """Count a saved step and its events."""
    counts = Counter({"done": 1})
    for event in events:
        if event.kind == "transition":
            counts["transitions" if event.outcome == "ok" else "failed_transitions"] += 1
        elif event.kind == "recovery":
            counts["recoveries"] += 1
    metrics.add(**counts)


def read_saves(metrics: Metrics) -> tuple[SaveCounts, Distribution]:
    """Return the counters of saves, and the durations of those that appended a step."""
    counters, durations = metrics.read()
    saves = durations.get(SAVE, Distribution())
    return SaveCounts(**counters, seconds=saves.total, worst=saves.worst), saves
