"""The jobs that archive the audit and the history of hooks: old records go to a file in a folder, a new one each
time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.backends.interface import BlockingCall
from holdfast.engine.namespaces import parse_kinds
from holdfast.errors import ConfigError
from holdfast.maintenance.hook_archive import archive_hooks, check_rules
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, Setting, declare
from holdfast.security.audit.archive import ARCHIVED_KINDS, AuditArchive, archive
from holdfast.time_parser import parse_nanoseconds


async def _file(job: JobContextBase, kind: str) -> Path:
    """Return a new file in the folder of the job."""
    folder = Path(job.settings["folder"])
    try:
        await BlockingCall(lambda: folder.mkdir(parents=True, exist_ok=True))
    except OSError as error:
        raise ConfigError(f"the folder cannot be used: {error.strerror}", where=str(folder)) from error
    return folder / f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"


def _result(done: AuditArchive) -> JobResult:
    if not done.steps:
        return JobResult("there is nothing of that age")
    return JobResult(f"{done.rows} records are in segment {done.segment}, {Path(done.path).name}")


async def _archive(job: JobContextBase) -> JobResult:
    handle, path = job.store._handle, await _file(job, "audit")
    kinds = parse_kinds(job.settings["kinds"]) if "kinds" in job.settings else ARCHIVED_KINDS
    before = handle.now() - parse_nanoseconds(job.settings["older_than"], "age")
    return _result(await archive(handle.engine, handle.tenant, path, before, kinds))


_RULES = {
    "keep_within": Setting(str, "the age up to which records stay, such as 30d"),
    "keep_last": Setting(int, "how many of the last records stay, at least"),
    "max_bytes": Setting(int, "the size that the records may have"),
}


async def _archive_hooks(job: JobContextBase) -> JobResult:
    handle, path = job.store._handle, await _file(job, "hooks")
    rules: dict[str, Any] = {name: job.settings.get(name) for name in _RULES}
    return _result(await archive_hooks(handle.engine, handle.tenant, path, **rules))


_FOLDER = Setting(str, "the directory for the files", required=True)

ARCHIVE_JOB = declare(
    "archive-audit",
    "move old records of the audit and of hooks to files, which still verify",
    _archive,
    {
        "folder": _FOLDER,
        "older_than": Setting(
            str, "the least age of records, such as 90d", required=True, parse=partial(parse_nanoseconds, what="age")
        ),
        "kinds": Setting(list, "a list of kinds of lines, if not all but agent", parse=parse_kinds),
    },
)

ARCHIVE_HOOKS_JOB = declare(
    "archive-hooks",
    "move old records of after-hooks and vetoes to files, which still verify",
    _archive_hooks,
    {"folder": _FOLDER, **_RULES},
    lambda settings: check_rules({name: settings.get(name) for name in _RULES}),
)
