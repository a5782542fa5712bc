"""Metrics of saves: of one agent, and of all agents of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.backends.runtime.breaker import BreakerState
from holdfast.backends.runtime.metrics import Metrics, Timing
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
    """Transitions whose action failed."""
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


@dataclass(frozen=True, slots=True)
class AgentMetrics:
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


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """The saves of all agents that the program has, or had, of a store."""

    counts: SaveCounts
    buckets: Mapping[float, int]
    agents: Mapping[str, AgentMetrics]
    """The live agents, by id."""
    unsaved: int
    oldest: float
    breaker: BreakerState
    """The worst state of all breakers: agents with other settings for it have a breaker of their own."""

    @property
    def success_rate(self) -> float:
        """See `SaveCounts.success_rate`."""
        return self.counts.success_rate

    def to_prometheus(self) -> str:
        """Return the metrics as text for Prometheus. Agents have no labels: there may be too many of them."""
        lines: list[str] = []

        def emit(name: str, kind: str, text: str, *values: tuple[str, float]) -> None:
            lines.extend((f"# HELP holdfast_agent_{name} {text}", f"# TYPE holdfast_agent_{name} {kind}"))
            lines.extend(f"holdfast_agent_{name}{suffix} {value!r}" for suffix, value in values)

        counts = self.counts
        outcomes = [(f'{{outcome="{each}"}}', getattr(counts, each)) for each in ("done", "unchanged", "failed")]
        emit("saves_total", "counter", "Saves, by their outcome.", *outcomes)
        for name, text in _COUNTERS.items():
            emit(f"{name}_total", "counter", text, ("", getattr(counts, name)))
        several = [(f'_bucket{{le="{_bound(bound)}"}}', count) for bound, count in self.buckets.items()]
        totals = [("_sum", counts.seconds), ("_count", self.buckets[float("inf")])]
        emit("save_seconds", "histogram", "The duration of saves that appended a step.", *several, *totals)
        emit("live", "gauge", "Live agents of the program.", ("", len(self.agents)))
        emit("unsaved_changes", "gauge", "Unsaved changes.", ("", self.unsaved))
        emit("oldest_unsaved_seconds", "gauge", "The age of the oldest unsaved change.", ("", self.oldest))
        is_open = 0 if self.breaker == "closed" else 1
        emit("breaker_open", "gauge", "Whether saves are suspended, because the store failed.", ("", is_open))
        return "\n".join(lines) + "\n"


_COUNTERS = {
    "retried": "Saves that followed a failed one.",
    "coalesced": "Changes that were saved together with another one.",
    "changes": "All changes.",
    "invalid": "Times that the state of an agent could not be captured.",
    "opened": "Times that the breaker opened.",
    "transitions": "Transitions that succeeded.",
    "failed_transitions": "Transitions whose action failed.",
    "recoveries": "Times that something incomplete or damaged was found and resolved.",
}


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"


def count_step(metrics: Metrics, events: Iterable[Event]) -> None:
    """Count a saved step and its events."""
    counts = Counter({"done": 1})
    for event in events:
        if event.kind == "transition":
            counts["transitions" if event.outcome == "ok" else "failed_transitions"] += 1
        elif event.kind == "recovery":
            counts["recoveries"] += 1
    metrics.add(**counts)


def read_saves(metrics: Metrics) -> tuple[SaveCounts, dict[float, int]]:
    """Return the counters of saves, and the buckets of their durations."""
    counters, timings = metrics.read()
    timing = timings.get(SAVE, Timing())
    return SaveCounts(**counters, seconds=timing.seconds, worst=timing.worst), timing.buckets()
