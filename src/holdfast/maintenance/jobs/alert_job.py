"""The type of job that evaluates alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType


async def _evaluate(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.jobs.job_metrics import read_job_metrics
    from holdfast.maintenance.monitoring.alerts import AlertTable
    from holdfast.maintenance.monitoring.rules import AlertSettings

    done = await AlertTable(job.store._handle).evaluate(AlertSettings.of(job.settings), read_job_metrics)
    firing = [each.rule for each in done.alerts if each.state == "firing"]
    summary = f"firing: {', '.join(firing)}" if firing else "no alert"
    if done.sent:
        summary += f"; {done.sent} notifications sent"
    if done.unsent:
        summary += f"; {done.unsent} to be sent again"
    return JobResult(summary)


def _check(settings: Mapping[str, Any]) -> None:
    from holdfast.maintenance.monitoring.rules import AlertSettings

    AlertSettings.of(settings)


ALERT_JOB = JobType(
    "alerts",
    "look for what needs attention, and notify",
    _evaluate,
    _check,
    {
        "storage_budget": "how many bytes the store may have; 0 for any number",
        "repository_budget": "how many bytes a repository of backups may have; 0 for the max_bytes of the job backup",
        "lag": "how far the copy of a mirror may be behind: 5m",
        "backup_age": "how old the last backup may be: 2d; drill_age, the last drill: 30d",
        "pending": "how long something has to be wrong before an alert fires: 1m",
        "window": "how long alerts about single failures stay: 15m",
    },
)
