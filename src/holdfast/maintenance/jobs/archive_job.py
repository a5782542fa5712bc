"""The job that archives the audit: old records go to a file in a folder, a new one each time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.backends.interface import BlockingCall
from holdfast.engine.namespaces import parse_kinds
from holdfast.errors import ConfigError, InvalidError
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType, known_only
from holdfast.security.audit.archive import ARCHIVED_KINDS, archive
from holdfast.time_parser import parse_nanoseconds


def _check(settings: Mapping[str, Any]) -> None:
    known_only(settings, folder=str, older_than=str, kinds=list)
    for name in ("folder", "older_than"):
        if not settings.get(name):
            raise InvalidError(f"a job that archives the audit needs the setting {name}")
    parse_nanoseconds(settings["older_than"], "age")
    if "kinds" in settings:
        parse_kinds(settings["kinds"])


async def _archive(job: JobContextBase) -> JobResult:
    handle, folder = job.store._handle, Path(job.settings["folder"])
    try:
        await BlockingCall(lambda: folder.mkdir(parents=True, exist_ok=True))
    except OSError as error:
        raise ConfigError(f"the folder cannot be used: {error.strerror}", where=str(folder)) from error
    kinds = parse_kinds(job.settings["kinds"]) if "kinds" in job.settings else ARCHIVED_KINDS
    before = handle.now() - parse_nanoseconds(job.settings["older_than"], "age")
    path = folder / f"audit-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
    done = await archive(handle.engine, handle.tenant, path, before, kinds)
    if not done.steps:
        return JobResult("there is nothing of that age")
    return JobResult(f"{done.rows} records are in segment {done.segment}, {path.name}")


ARCHIVE_JOB = JobType(
    "archive-audit",
    "move old records of the audit and of hooks to files, which still verify",
    _archive,
    _check,
    {
        "folder": "the directory for the files",
        "older_than": "the least age of records, such as 90d",
        "kinds": "a list of kinds of lines, if not all but agent",
    },
)
