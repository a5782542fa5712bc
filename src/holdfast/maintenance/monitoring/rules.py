"""The built-in rules of alerts: each looks at the metrics of a store, and says what is wrong, if anything is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.metrics import Sample
from holdfast.errors import InvalidError
from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot
from holdfast.security.sensitive.markers import TO_PROTECT, TO_REDACT
from holdfast.time_parser import parse_seconds

Severity: TypeAlias = Literal["warning", "critical"]

DEFAULTS: Mapping[str, Any] = {
    "storage_budget": 0,
    "repository_budget": 0,
    "lag": "5m",
    "backup_age": "2d",
    "drill_age": "30d",
    "pending": "1m",
    "window": "15m",
}
"""The settings, and what they are unless given. A limit of 0 switches its rule off."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The limits of the rules, in bytes and seconds."""

    storage_budget: int
    repository_budget: int
    lag: float
    backup_age: float
    drill_age: float
    pending: float
    """How long something has to be wrong before an alert fires."""
    window: float
    """How long ago a failure may be for its alert to stay."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AlertSettings:
        """Check settings as they are given for a job. Raises `InvalidError`."""
        for name in settings:
            if name not in DEFAULTS:
                raise InvalidError(f"alerts have no setting {name!r}", hint=f"There are {', '.join(DEFAULTS)}")
        given = {**DEFAULTS, **settings}
        budgets = {name: given.pop(name) for name in ("storage_budget", "repository_budget")}
        for name, budget in budgets.items():
            if type(budget) is not int or budget < 0:
                raise InvalidError(f"the setting {name} must be a number of bytes", where=repr(budget)[:80])
        seconds = {name: parse_seconds(value, name) for name, value in given.items()}
        return cls(budgets["storage_budget"], budgets["repository_budget"], **seconds)


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a rule: the metrics, the limits, and the counters that grew within the window."""

    metrics: MetricsSnapshot
    settings: AlertSettings
    grown: Mapping[str, float]
    """By how much counters grew, by the name of their rule."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule of alerts."""

    name: str
    about: str
    severity: Severity
    check: Callable[[Situation], str]
    """Returns what is wrong; empty if nothing is."""
    counters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The counters whose growth the rule looks at: families, and labels that a counter has to have."""
    immediate: bool = False
    """Whether it fires at once: what happened does not go away by waiting."""

    def total(self, samples: tuple[Sample, ...]) -> float:
        """Return the sum of its counters."""
        total = 0.0
        for each in samples:
            for family, labels in self.counters:
                if each.family == family and set(labels) <= set(each.labels):
                    total += 0 if isinstance(each.value, Distribution) else each.value
        return total


def _storage(now: Situation) -> str:
    size, budget = now.metrics.value("storage_bytes"), now.settings.storage_budget
    found = [f"the store has {size:,.0f} bytes, over its budget of {budget:,}"] if budget and size > budget else []
    for name in sorted(each.labels[0] for each in now.metrics.samples if each.family == "repository_bytes"):
        size = now.metrics.value("repository_bytes", repository=name)
        limit = now.settings.repository_budget or now.metrics.value("repository_limit_bytes", repository=name)
        if limit and size > limit:
            found.append(f"the repository {name} of its backups has {size:,.0f} bytes, over its budget of {limit:,.0f}")
    return "; ".join(found)


def _lag(now: Situation) -> str:
    lag, limit = now.metrics.value("replication_lag_seconds"), now.settings.lag
    if now.metrics.value("replication_degraded"):
        return "the mirror works without its copy"
    return f"the copy is {lag:,.0f} s behind" if limit and lag > limit else ""


def _backup(now: Situation) -> str:
    age, limit = now.metrics.value("backup_age_seconds"), now.settings.backup_age
    if not limit or not now.metrics.has("backup_age_seconds"):
        return ""  # a store that was never backed up may not need to be
    return f"the last backup is {age / 3600:,.1f} h old" if age > limit else ""


def _drill(now: Situation) -> str:
    failed = [each.labels[0] for each in now.metrics.samples if each.family == "drill_ok" and not each.value]
    if failed:
        return f"the last drill of the repository {failed[0]} failed: its backup may not be usable"
    ages = [float(each.value) for each in now.metrics.samples if each.family == "drill_age_seconds"]  # type: ignore[arg-type]
    limit = now.settings.drill_age
    return f"the last drill was {max(ages) / 86400:,.1f} days ago" if limit and ages and max(ages) > limit else ""


def _breaker(now: Situation) -> str:
    open_ = sorted(each.labels[0] for each in now.metrics.samples if each.family == "breaker_open" and each.value)
    off = sorted({each.labels[0] for each in now.metrics.samples if each.family == "hook_off" and each.value})
    found = [f"saves of {', '.join(open_)} are suspended"] if open_ else []
    found += [f"the hook {off[0]} is off"] if off else []
    return "; ".join(found)


def _undelivered(now: Situation) -> str:
    counts = {each.labels[0]: each.value for each in now.metrics.samples if each.family == "hook_undelivered"}
    found = ", ".join(f"{count:,.0f} of {hook}" for hook, count in sorted(counts.items()) if count)
    return f"calls of durable hooks were given up: {found}" if found else ""


def _grown(name: str, what: str) -> Callable[[Situation], str]:
    def check(now: Situation) -> str:
        grown = now.grown.get(name, 0)
        return f"{grown:,.0f} {what}" if grown else ""

    return check


def _jobs(now: Situation) -> str:
    failing = sorted(each.labels[0] for each in now.metrics.samples if each.family == "job_failures" and each.value)
    return f"the last run of the job {failing[0]} failed, or had findings" if failing else ""


def _credentials(now: Situation) -> str:
    count = now.metrics.value("credentials_found")
    what = f"{count:.0f} places have" if count > 1 else "1 place has"
    return f"{what} credentials in clear. For new saves: {TO_PROTECT}. For stored ones: {TO_REDACT}" if count else ""


def _up(now: Situation) -> str:
    return "" if now.metrics.value("up") else "the store does not answer"


_FAILED = ("failed",)

RULES: tuple[AlertRule, ...] = (
    AlertRule("store-down", "The store does not answer.", "critical", _up),
    AlertRule(
        "storage-budget", "The store, or a repository of its backups, is larger than its budget.", "warning", _storage
    ),
    AlertRule(
        "recovery-failing",
        "Restores or recoveries failed.",
        "critical",
        _grown("recovery-failing", "restores or recoveries failed"),
        (("recoveries_total", _FAILED), ("restores_total", _FAILED)),
        immediate=True,
    ),
    AlertRule(
        "validation-failures",
        "Values did not fit their schemas.",
        "warning",
        _grown("validation-failures", "values were refused"),
        (("validation_failures_total", ()),),
        immediate=True,
    ),
    AlertRule(
        "hook-bypassed",
        "Changes were made without a before-hook that could have refused them.",
        "warning",
        _grown("hook-bypassed", "changes were made without a before-hook, which failed, was late or off"),
        (("hook_bypassed_total", ()),),
        immediate=True,
    ),
    AlertRule(
        "hook-undelivered",
        "Calls of durable hooks were given up, and wait to be retried or discarded.",
        "critical",
        _undelivered,
        immediate=True,
    ),
    AlertRule("breaker-open", "Saves are suspended, or a hook is off, after many failures.", "critical", _breaker),
    AlertRule("replication-lag", "The copy of a mirror or write-behind store is behind.", "warning", _lag),
    AlertRule("backup-age", "The last backup is too old.", "critical", _backup),
    AlertRule("drill", "The last drill failed, or is too old.", "critical", _drill),
    AlertRule("credentials", "Credentials are stored in clear.", "warning", _credentials, immediate=True),
    AlertRule(
        "run-failed",
        "Runs failed.",
        "warning",
        _grown("run-failed", "runs failed: holdfast runs list --state failed"),
        (("runs_total", _FAILED),),
        immediate=True,
    ),
    AlertRule(
        "worker-died",
        "Workers died, or hung, while they had runs.",
        "warning",
        _grown("worker-died", "runs were taken over from workers that died: holdfast runs list"),
        (("runs_total", ("recovered",)),),
        immediate=True,
    ),
    AlertRule("job-failing", "A job fails.", "warning", _jobs),
)
"""All rules."""
