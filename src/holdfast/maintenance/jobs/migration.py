"""A migration of all states as a job. The module of the schemas is that of the runner's own `holdfast.toml`: a job,
which is data of the store, never names code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, known_only, one_of
from holdfast.maintenance.migration.bulk import BulkMigration, OnError
from holdfast.maintenance.migration.heads import BranchPolicy
from holdfast.maintenance.migration.plan import MigrationTarget, make_plan
from holdfast.schemas.settings import find_settings
from holdfast.schemas.version import Version, require_name

_LISTED = 5
"""The number of threads that a summary lists."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of a job. Raises `InvalidError`."""
    known_only(settings, schema=str, to=str, threads=str, branches=str, on_error=str, down=bool, backup=str)
    if "schema" in settings:
        require_name(settings["schema"])
    if "to" in settings:
        Version.parse(settings["to"])
    for name, kind in (("branches", BranchPolicy), ("on_error", OnError)):
        if name in settings:
            one_of(name, get_args(kind))(settings[name])
    if settings.get("down") and "to" not in settings:
        raise InvalidError("a downgrade needs the version to downgrade to", hint="Give the setting to")


async def migrate_states(job: JobContextBase) -> JobResult:
    """Migrate all states to the newest version of the project's schemas, or to the one that the settings name."""
    settings, handle = job.settings, job.store._handle
    project = find_settings()
    declared = project.load().extended(project.read_lock().schemas)
    target = await MigrationTarget.of(
        handle.engine, handle.tenant, declared, settings.get("schema"), settings.get("to")
    )
    selection: dict[str, Any] = {"branches": settings.get("branches", "all"), "threads": settings.get("threads")}
    run = BulkMigration(target, **selection, on_error=settings.get("on_error", "stop"), progress=job.progress)
    is_down = settings.get("down", False)
    run.check_direction(down=is_down)
    if settings.get("on_error") != "skip":
        plan = await make_plan(target, **selection, samples=0, progress=job.progress)
        plan.require(accept_edited=is_down)
    if settings.get("backup"):
        await _back_up(job, settings["backup"])
    report = await run.run(down=is_down)
    summary = f"{report.migrated} states of {report.name} migrated to {report.target}, {report.skipped} had it"
    if report.deferred:
        summary += (
            f"; {len(report.deferred)} threads are in the middle of a step: {', '.join(report.deferred[:_LISTED])}"
        )
    if report.still_written:
        summary += f"; programs still write {', '.join(report.still_written)}"
    if report.unfit_total:
        threads = ", ".join(each.thread for each in report.unfit[:_LISTED])
        summary += f"; {report.unfit_total} states do not fit: {threads}"
    return JobResult(summary, ok=not report.unfit_total)


async def _back_up(job: JobContextBase, repository: str) -> None:
    from holdfast.maintenance.backup.creator import BackupCreator
    from holdfast.maintenance.backup.pruner import MIGRATION
    from holdfast.maintenance.backup.repository import open_repository

    handle = job.store._handle
    async with open_repository(repository, {}, create=True) as opened:
        tenant = handle.tenant or None
        await BackupCreator(handle.engine, opened, tenant, job.progress, handle.tenant).create(MIGRATION)
