"""The type of jobs that replays recorded runs.

What is imported is named by whoever runs the jobs, not by the job: who may store a job may not choose code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.types import JobResult, JobType, known_only
from holdfast.store.replays import run, run_open

_LISTED = 5
"""The number of threads that a summary lists."""


def replay_job(graph: str) -> JobType:
    """Return a type of jobs that replays recorded threads with a graph, named as `module:name`:
    `JobTypes.add(replay_job("app.agent:graph"))`, or `holdfast jobs work --graph app.agent:graph`."""

    def check(settings: Mapping[str, Any]) -> None:
        known_only(settings, thread=str, prefix=str)
        if len(settings) > 1:
            raise InvalidError("a job replays one thread, or those that are not finished", hint="Give thread or prefix")

    def work(job: Any) -> JobResult:
        thread = job.settings.get("thread")
        found = [run(job.store, graph, thread=thread)] if thread else run_open(job.store, graph, **job.settings)
        count, differing = 0, list[str]()
        for report in found:
            count += 1
            differing += [] if report.matches else [report.thread]
            job.progress(count, None, report.thread)
        summary = f"{count} threads replayed, {len(differing)} differ"
        if differing:
            summary += f": {', '.join(differing[:_LISTED])}"
        return JobResult(summary, not differing)

    settings = {
        "thread": "the name of a thread, if not all that are not finished",
        "prefix": "only threads whose names start with it",
    }
    return JobType("replay", "replay recorded threads, and compare them with the recording", work, check, settings)
