"""The types of jobs that make backups and prove them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType, known_only


def _repository(settings: Mapping[str, Any]) -> str:
    known_only(settings, repository=str)
    if not settings.get("repository"):
        raise InvalidError("the setting repository names the repository of backups", hint="Such as s3://bucket/backups")
    return str(settings["repository"])


def _check(settings: Mapping[str, Any]) -> None:
    _repository(settings)


async def _backup(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.creator import BackupCreator
    from holdfast.maintenance.backup.repository import open_repository

    handle = job.store._handle
    async with open_repository(_repository(job.settings), {}, create=True) as repository:
        tenant = handle.tenant or None
        made = await BackupCreator(handle.engine, repository, tenant, job.progress, handle.tenant).create("schedule")
    manifest = made.manifest
    summary = f"backup {made.id} of {manifest.lines} lines, {manifest.added} bytes added"
    if manifest.damaged:
        summary += f"; damaged: {', '.join(each.name for each in manifest.damaged[:5])}"
    return JobResult(summary, ok=not manifest.damaged)


async def _drill(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.drill import run_drill
    from holdfast.maintenance.backup.repository import open_repository
    from holdfast.maintenance.backup.store_record import store_id

    handle = job.store._handle
    async with open_repository(_repository(job.settings), {}) as repository:
        backup = await repository.find("latest", await store_id(handle.engine, handle.tenant))
        report = await run_drill(handle.engine, repository, backup, handle.tenant, job.progress)
    summary = f"backup {report.backup}: {report.lines} lines, {report.steps} steps restored and verified"
    if report.findings:
        summary += f"; {len(report.findings)} findings: {report.findings[0]}"
    return JobResult(summary, ok=report.ok)


_SETTINGS = {"repository": "the repository: a directory, or s3://bucket/prefix"}

BACKUP_JOBS = (
    JobType("backup", "make a backup of what has changed", _backup, _check, _SETTINGS),
    JobType("drill", "restore the newest backup aside, and verify it", _drill, _check, _SETTINGS),
)
