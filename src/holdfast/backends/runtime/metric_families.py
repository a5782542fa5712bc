"""The families of metrics: all that is measured, with units and labels. The documentation lists them from here."""

from __future__ import annotations

from typing import Literal

from holdfast._named_tuple import NamedTuple
from holdfast.backends.distribution import BATCHES, BYTES, SECONDS


class Family(NamedTuple):
    """Metrics of one name, which differ in their labels."""

    name: str
    """As in Prometheus, without the prefix `holdfast_`."""
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


OPERATION_SECONDS = "operation_seconds"
BACKEND_SECONDS, BACKEND_BYTES = "backend_seconds", "backend_bytes"
GROUP_BATCHES = "commit_group_batches"
READABLE_BEHIND, READABLE_LAG = "readable_rows_behind", "readable_rows_lag_seconds"
CONFLICTS = "conflicts_total"
RESTORES, RECOVERIES, VALIDATION_FAILURES = "restores_total", "recoveries_total", "validation_failures_total"

ATTEMPTS = {
    "thread.restore": (RESTORES, "thread"),
    "state.rollback": (RESTORES, "state"),
    "agent.rollback": (RESTORES, "agent state"),
    "agents.rollback": (RESTORES, "agent state"),
    "backup.restore": (RESTORES, "backup"),
    "agents.resolve": (RECOVERIES, "by hand"),
    "maintenance.repair": (RECOVERIES, "repair"),
}
"""Operations that count as an attempt to restore something, or to recover it: the family, and the kind."""

_ALL = (
    Family(
        OPERATION_SECONDS,
        "histogram",
        "The duration of operations of the API. `error` is the code of the error that ended it, or empty.",
        ("operation", "error"),
        SECONDS,
    ),
    Family(BACKEND_SECONDS, "histogram", "The duration of reads and writes of rows.", ("request",), SECONDS),
    Family(BACKEND_BYTES, "histogram", "The size of the bodies of rows in a read or a write.", ("request",), BYTES),
    Family(GROUP_BATCHES, "histogram", "How many batches were committed together.", (), BATCHES),
    Family(CONFLICTS, "counter", "Changes that were repeated because another writer was first.", ("action",)),
    Family("cache_hits_total", "counter", "Reads that the cache of the process answered."),
    Family("cache_misses_total", "counter", "Reads that it did not answer."),
    Family("cache_bytes", "gauge", "The size of the cache of the process."),
    Family("cache_limit_bytes", "gauge", "Its limit."),
    Family(READABLE_BEHIND, "gauge", "Checkpoints of this process whose readable rows are not written yet."),
    Family(READABLE_LAG, "gauge", "How long ago the first of them was saved."),
    Family(RESTORES, "counter", "Restores of threads, agents and backups, by outcome.", ("kind", "outcome")),
    Family(RECOVERIES, "counter", "Recoveries from crashes, damage and the like, by outcome.", ("kind", "outcome")),
    Family(VALIDATION_FAILURES, "counter", "Values that were refused, by what refused them.", ("kind",)),
    Family("hook_calls_total", "counter", "Calls of hooks.", ("hook", "phase")),
    Family("hook_seconds_total", "counter", "The time that hooks took.", ("hook", "phase")),
    Family("hook_worst_seconds", "gauge", "The longest call of a hook.", ("hook", "phase")),
    Family("hook_failures_total", "counter", "Calls of hooks that failed.", ("hook", "phase")),
    Family("hook_vetoes_total", "counter", "Changes that hooks refused.", ("hook", "phase")),
    Family("hook_skipped_total", "counter", "Calls that were skipped, since the hook is off.", ("hook", "phase")),
    Family("hook_dropped_total", "counter", "Calls that were dropped, since too many waited.", ("hook", "phase")),
    Family(
        "hook_bypassed_total",
        "counter",
        "Changes that were made without a before-hook that could have refused them: it failed, was late or off.",
        ("hook", "outcome"),
    ),
    Family("hook_off", "gauge", "Whether a hook is off, since it failed again and again.", ("hook", "phase")),
    Family("hook_undelivered", "gauge", "Calls of durable hooks that were given up, and are kept.", ("hook",)),
    Family("hooks_waiting", "gauge", "Calls of after-hooks that wait."),
    Family("transitions_total", "counter", "Transitions of agents, by outcome.", ("outcome",)),
    Family("agent_saves_total", "counter", "Saves of agents, by outcome.", ("outcome",)),
    Family("agent_save_seconds", "histogram", "The duration of saves that appended a step.", (), SECONDS),
    Family("agent_retried_total", "counter", "Saves that followed a failed one."),
    Family("agent_coalesced_total", "counter", "Changes that were saved together with another one."),
    Family("agent_changes_total", "counter", "All changes of agents."),
    Family("agent_breaker_opened_total", "counter", "Times that the breaker of saves opened."),
    Family("agents_live", "gauge", "Live agents of the process."),
    Family("agent_unsaved_changes", "gauge", "Unsaved changes of agents."),
    Family("agent_oldest_unsaved_seconds", "gauge", "The age of the oldest unsaved change."),
    Family("breaker_open", "gauge", "Whether a breaker is open: of saves of agents, or of a retry: store.", ("of",)),
    Family("runs_total", "counter", "Runs in this process, by what became of them.", ("graph", "event")),
    Family("job_runs_total", "counter", "Runs of jobs in this process, by outcome.", ("type", "outcome")),
    Family("job_failures", "gauge", "Failed runs of a job in a row.", ("job", "type")),
    Family("job_overdue_seconds", "gauge", "How long a job is overdue.", ("job", "type")),
    Family("job_last_success_timestamp_seconds", "gauge", "When a job last succeeded.", ("job", "type")),
    Family("credentials_found", "gauge", "Places where credentials are stored in clear, at most 100."),
    Family("replication_lag_seconds", "gauge", "How far the copy of a mirror or write-behind store is behind."),
    Family("replication_lag_batches", "gauge", "How many batches it lacks."),
    Family("replication_lag_bytes", "gauge", "How many bytes it lacks."),
    Family("replication_degraded", "gauge", "Whether a mirror works without its copy."),
    Family("healed_rows_total", "counter", "Damaged rows that were read from the copy and repaired.", ("outcome",)),
    Family("backup_last_timestamp_seconds", "gauge", "When the store was last backed up."),
    Family("backup_age_seconds", "gauge", "How long ago that was."),
    Family("drill_last_timestamp_seconds", "gauge", "When a backup was last restored in a drill.", ("repository",)),
    Family("drill_age_seconds", "gauge", "How long ago that was.", ("repository",)),
    Family("drill_ok", "gauge", "Whether the last drill succeeded.", ("repository",)),
    Family("storage_bytes", "gauge", "The size of the store."),
    Family(
        "usage_day_tokens",
        "gauge",
        "Tokens of messages that were saved in the last 24 hours: input, cached (of the input), output.",
        ("model", "kind"),
    ),
    Family("usage_day_cost", "gauge", "What they cost, by the prices of the settings file.", ("model",)),
    Family("usage_day_complete", "gauge", "Whether these are all; 0 if there were too many checkpoints to read."),
    Family("repository_bytes", "gauge", "The size of a repository of backups when it was last known.", ("repository",)),
    Family("repository_limit_bytes", "gauge", "The storage limit of a repository; 0 if it has none.", ("repository",)),
    Family("alert_state", "gauge", "The state of an alert: 0 is fine, 1 pending, 2 firing.", ("rule",)),
    Family("up", "gauge", "Whether the store answers."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
"""All families by name."""
