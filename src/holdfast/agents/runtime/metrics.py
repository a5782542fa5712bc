"""How the saving of agents goes, in figures: of one agent, and of all agents of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Literal, TypeAlias

from holdfast.engine.events import Event
from holdfast.hooks.builtin import BOUNDS

BreakerState: TypeAlias = Literal["closed", "open", "trying"]
"""Of the breaker of auto-save: saves go on; the store is left alone; one save is tried."""


@dataclass(slots=True)
class SaveCounts:
    """What is counted. All of it only grows."""

    done: int = 0
    """Saves that made a step: by the program, by changes of status and state, and by auto-save."""
    unchanged: int = 0
    """Those that found nothing to save."""
    failed: int = 0
    """Those that ended with an error."""
    retried: int = 0
    """Those that came after one that had failed, however they ended."""
    coalesced: int = 0
    """Changes that were saved together with another one, and so took no save of their own."""
    changes: int = 0
    """Changes that were counted."""
    invalid: int = 0
    """Times that an agent's state could not be taken: because it did not pass its own validation, as a rule."""
    opened: int = 0
    """Times that this agent's failures opened the breaker."""
    transitions: int = 0
    """Transitions that were made."""
    failed_transitions: int = 0
    """Transitions whose action failed."""
    recoveries: int = 0
    """Times that something was found incomplete or damaged, and was resolved."""
    seconds: float = 0.0
    """How long the saves that made a step took, in all."""
    worst: float = 0.0
    """The longest of them."""

    @property
    def attempted(self) -> int:
        """Saves that ended, one way or another."""
        return self.done + self.unchanged + self.failed

    @property
    def success_rate(self) -> float:
        """Of the saves that had something to save, the share that made a step; 1.0 before there was any."""
        ended = self.done + self.failed
        return self.done / ended if ended else 1.0


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The saving of one agent, as of one moment."""

    id: str
    version: int
    counts: SaveCounts
    buckets: Mapping[float, int]
    """How many saves took at most so many seconds; as in Prometheus, they add up."""
    unsaved: int
    """Changes that were counted and are not saved."""
    oldest: float
    """How many seconds ago the oldest of them was counted; 0.0 if there is none."""
    breaker: BreakerState
    autosaved: bool
    """Whether it is saved by itself: not if nobody asked for it, or after something that only the program can mend."""
    error: str
    """What the last save failed with, if none went well since."""

    @property
    def success_rate(self) -> float:
        """See `Counts.success_rate`."""
        return self.counts.success_rate


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """The saving of all agents that a program had of a store, also of those that it has no more."""

    counts: SaveCounts
    buckets: Mapping[float, int]
    agents: Mapping[str, AgentMetrics]
    """Those that there are now, by id."""
    unsaved: int
    oldest: float
    breaker: BreakerState
    """The worst that there is: agents whose settings for it differ have breakers of their own."""

    @property
    def success_rate(self) -> float:
        """See `Counts.success_rate`."""
        return self.counts.success_rate

    def exposition(self) -> str:
        """As text for Prometheus. Agents have no labels: there may be too many of them."""
        lines: list[str] = []

        def tell(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
            lines.extend((f"# HELP holdfast_agent_{name} {about}", f"# TYPE holdfast_agent_{name} {kind}"))
            lines.extend(f"holdfast_agent_{name}{suffix} {value!r}" for suffix, value in values)

        counts = self.counts
        outcomes = [(f'{{outcome="{each}"}}', getattr(counts, each)) for each in ("done", "unchanged", "failed")]
        tell("saves_total", "counter", "Saves that ended, by how they did.", *outcomes)
        for name, text in _COUNTERS.items():
            tell(f"{name}_total", "counter", text, ("", getattr(counts, name)))
        several = [(f'_bucket{{le="{_bound(bound)}"}}', count) for bound, count in self.buckets.items()]
        totals = [("_sum", counts.seconds), ("_count", self.buckets[float("inf")])]
        tell("save_seconds", "histogram", "How long saves took that made a step.", *several, *totals)
        tell("live", "gauge", "Agents that the program has.", ("", len(self.agents)))
        tell("unsaved_changes", "gauge", "Changes that are not saved yet.", ("", self.unsaved))
        tell("oldest_unsaved_seconds", "gauge", "The age of the oldest of them.", ("", self.oldest))
        is_open = 0 if self.breaker == "closed" else 1
        tell("breaker_open", "gauge", "Whether the store is left alone, because saves failed.", ("", is_open))
        return "\n".join(lines) + "\n"


_COUNTERS = {
    "retried": "Saves that came after one that failed.",
    "coalesced": "Changes that were saved together with another one.",
    "changes": "Changes that were counted.",
    "invalid": "Times that the state of an agent could not be taken.",
    "opened": "Times that the breaker of auto-save opened.",
    "transitions": "Transitions that were made.",
    "failed_transitions": "Transitions that failed.",
    "recoveries": "Times that something incomplete was found and resolved.",
}


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"


@dataclass(slots=True)
class SaveStatistics:
    """Figures that are being counted: those of an agent count towards those of its store."""

    store: SaveStatistics | None = None
    counts: SaveCounts = field(default_factory=SaveCounts)
    classes: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    lock: Lock = field(default_factory=Lock)

    def add(self, **more: int) -> None:
        """Count something, by the names of `SaveCounts`."""
        figures: SaveStatistics | None = self
        while figures is not None:
            with figures.lock:
                for name, count in more.items():
                    setattr(figures.counts, name, getattr(figures.counts, name) + count)
            figures = figures.store

    def made(self, events: Iterable[Event]) -> None:
        """A step was made, and with it rows that tell what happened."""
        more = Counter({"done": 1})
        for event in events:
            if event.kind == "transition":
                more["transitions" if event.outcome == "ok" else "failed_transitions"] += 1
            elif event.kind == "recovery":
                more["recoveries"] += 1
        self.add(**more)

    def took(self, seconds: float) -> None:
        """A save that made a step took so long."""
        figures: SaveStatistics | None = self
        while figures is not None:
            with figures.lock:
                counts = figures.counts
                counts.seconds += seconds
                counts.worst = max(counts.worst, seconds)
                figures.classes[bisect_left(BOUNDS, seconds)] += 1
            figures = figures.store

    def shown(self) -> tuple[SaveCounts, dict[float, int]]:
        """The figures as they are, and the buckets."""
        with self.lock:
            counts = SaveCounts(**{each.name: getattr(self.counts, each.name) for each in fields(SaveCounts)})
            classes = list(self.classes)
        buckets, so_far = {}, 0
        for bound, count in zip((*BOUNDS, float("inf")), classes, strict=True):
            so_far += count
            buckets[bound] = so_far
        return counts, buckets

    def renew_locks(self) -> None:
        """For a forked child."""
        self.lock = Lock()


def summed(several: Iterable[SaveStatistics]) -> SaveStatistics:
    """The figures of several agents together."""
    total = SaveStatistics()
    for figures in several:
        with figures.lock:
            for each in fields(SaveCounts):
                mine, its = getattr(total.counts, each.name), getattr(figures.counts, each.name)
                setattr(total.counts, each.name, max(mine, its) if each.name == "worst" else mine + its)
            total.classes = [mine + its for mine, its in zip(total.classes, figures.classes, strict=True)]
    return total
