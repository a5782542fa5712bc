"""Metrics of the jobs of a store."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backends.runtime.metrics import Sample
from holdfast.errors import HoldfastError
from holdfast.maintenance.jobs.job import Job, scan_jobs
from holdfast.security.handle import StoreHandle


async def read_job_metrics(handle: StoreHandle) -> list[Sample]:
    """Return the metrics of all jobs that can be read."""
    context = handle.engine.context
    (rows,) = await context.stored.read([scan_jobs(handle.tenant)])
    samples: list[Sample] = []
    for row in rows:
        try:
            samples += _samples(Job.of(row, context.rows), context.clock())
        except HoldfastError:  # a damaged one does not hide the others
            continue
    return samples


def _samples(job: Job, now: int) -> Iterator[Sample]:
    labels = job.name, job.kind
    yield Sample("job_failures", labels, job.failures)
    overdue = max(0, now - job.due_ns) if job.due_ns and not job.paused else 0
    yield Sample("job_overdue_seconds", labels, round(overdue / 1e9, 3))
    succeeded = [run.ended_ns for run in job.runs if run.ok]
    if succeeded:
        yield Sample("job_last_success_timestamp_seconds", labels, max(succeeded) / 1e9)
