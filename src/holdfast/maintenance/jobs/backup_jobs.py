"""The types of jobs that make backups, prove and prune them, and repair a store from them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.types import (
    JobContextBase,
    JobResult,
    JobType,
    Setting,
    declare,
    known_only,
    one_of,
    select_settings,
)
from holdfast.maintenance.retention import Retention
from holdfast.time_parser import parse_nanoseconds, parse_seconds

_FOLLOW_SECONDS = 30.0
"""How long a job follows the store before other jobs have their turn."""

_PLACE = {
    "repository": Setting(str, "the repository: a directory, or s3://bucket/prefix", required=True),
    "keys": Setting(str, "where the key of an encrypted one is: file:/etc/backup.key; else HOLDFAST_BACKUP_KEYS"),
}


@asynccontextmanager
async def _open(job: JobContextBase, *, create: bool = False) -> AsyncIterator[Any]:
    from holdfast.maintenance.backup.repository import open_repository

    async with open_repository(
        str(job.settings["repository"]), {}, create=create, keys=job.settings.get("keys")
    ) as repository:
        yield repository


# Backups ----------------------------------------------------------------------------------------------------------


async def _backup(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.creator import BackupCreator
    from holdfast.maintenance.backup.store_record import record_size

    handle = job.store._handle
    async with _open(job, create=True) as repository:
        tenant = handle.tenant or None
        made = await BackupCreator(handle.engine, repository, tenant, job.progress, handle.tenant).create("schedule")
        size = await record_size(handle.engine, handle.tenant, repository, job.settings.get("max_bytes"))
    manifest = made.manifest
    summary = f"backup {made.id} of {manifest.lines} lines, {manifest.added} bytes added"
    if manifest.damaged:
        summary += f"; damaged: {', '.join(each.name for each in manifest.damaged[:5])}"
    if size.is_over:
        summary += f"; storage limit: the repository has {size.bytes} bytes, over {size.limit}. Prune it"
    return JobResult(summary, ok=not manifest.damaged and not size.is_over)


_parse_interval = partial(parse_seconds, what="interval", positive=True)


async def _follow(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.follower import Follower, FollowStatus
    from holdfast.maintenance.jobs.job import job_settings

    handle, end = job.store._handle, time.monotonic() + job.settings.get("seconds", _FOLLOW_SECONDS)

    def report(status: FollowStatus) -> None:
        job.progress(status.backups, None, f"backup {status.last}, {status.lag:.2f} s behind")

    async with _open(job, create=True) as repository:
        follower = Follower(handle.engine, repository, handle.tenant or None, handle.tenant, job_settings)
        interval = _parse_interval(job.settings.get("interval", "0.5s"))
        status = await follower.run(interval, lambda: time.monotonic() >= end, report)
    summary = f"{status.backups} backups, at most {status.max_lag:.2f} s behind"
    summary += f"; {status.gaps} gaps caught up" if status.gaps else ""
    return JobResult(summary + (f"; {status.error}" if status.error else ""), ok=not status.error)


async def _drill(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.drill import run_drill
    from holdfast.maintenance.backup.store_record import pick_chain

    handle = job.store._handle
    async with _open(job) as repository:
        backup = await repository.find("latest", await pick_chain(handle.engine, handle.tenant, repository))
        report = await run_drill(handle.engine, repository, backup, handle.tenant, job.progress)
    summary = f"backup {report.backup}: {report.lines} lines, {report.steps} steps restored and verified"
    if report.findings:
        summary += f"; {len(report.findings)} findings: {report.findings[0]}"
    return JobResult(summary, ok=report.ok)


_parse_grace = partial(parse_nanoseconds, what="grace")


def _retention(settings: Mapping[str, Any]) -> Retention:
    from holdfast.maintenance.backup.pruner import check_policy

    return check_policy(Retention(**select_settings(settings, Retention, (*_PLACE, "grace", "max_unused"))))


def _check_prune(settings: Mapping[str, Any]) -> None:
    from holdfast.maintenance.backup.pruner import MAX_UNUSED, check_max_unused

    check_max_unused(settings.get("max_unused", MAX_UNUSED))
    known_only({name: value for name, value in settings.items() if name in _PLACE}, **dict.fromkeys(_PLACE, str))
    if not settings.get("repository"):
        raise InvalidError("a job of the type prune-backups needs the setting repository")
    _parse_grace(settings.get("grace", "1d"))
    _retention(settings)


async def _prune(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.backup.pruner import MAX_UNUSED, RepositoryPruner, holds_of_store, record_prune
    from holdfast.maintenance.backup.records import open_reason
    from holdfast.maintenance.backup.store_record import record_size

    handle = job.store._handle
    async with _open(job) as repository:
        grace = _parse_grace(job.settings.get("grace", "1d"))
        holds = await holds_of_store(handle.engine, handle.tenant)
        unused = job.settings.get("max_unused", MAX_UNUSED)
        opener = partial(open_reason, handle.engine, handle.tenant)
        pruner = RepositoryPruner(
            repository, grace=grace, now=handle.now(), holds=holds, max_unused=unused, open_reason=opener
        )
        policy = _retention(job.settings)
        report = await pruner.prune(policy, None)
        await record_prune(handle.engine, handle.tenant, repository, report)
        await record_size(handle.engine, handle.tenant, repository, policy.max_bytes)
    summary = f"{report.removed} backups removed, {report.deleted} packs deleted, {report.freed} bytes freed"
    return JobResult(summary + (f", {report.repacked} repacked" if report.repacked else ""))


# Repair -----------------------------------------------------------------------------------------------------------


def _check_sources(sources: list[Any]) -> None:
    if not all(isinstance(each, str) and each for each in sources):
        raise InvalidError("sources must be a list of URLs, or of backups as in backup:s3://bucket/backups")


async def _repair(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.repair.repairer import open_sources, repair
    from holdfast.security.audit.thread_audit import record

    handle, policy = job.store._handle, job.settings.get("policy", "report")
    engine, tenant = handle.engine, handle.tenant
    async with open_sources(engine, job.settings.get("sources", ()), tenant) as sources:
        found = await repair(engine, tenant, sources, dry_run=True, progress=job.progress)
        damaged = [each.thread for each in found.repaired]
        chosen = [each.thread for each in found.repaired if policy == "quarantine" or not each.lost]
        if found.files is not None and found.lost and policy != "quarantine":
            chosen = []  # the files are repaired as a whole
        report, done = found, policy != "report" and bool(chosen)
        if done:
            names = None if found.files is not None else chosen
            report = await repair(engine, tenant, sources, threads=names, progress=job.progress)
    left = [each for each in damaged if not done or each not in chosen]
    if damaged:
        detail = {"policy": policy, "repaired": len(damaged) - len(left), "lost": len(report.lost) if done else 0}
        await record(engine, [Line(tenant, each) for each in damaged], "repair", detail)
    if not damaged and found.ok:
        return JobResult(f"{found.lines} lines are OK")
    lost = f", {len(report.lost)} checkpoints lost" if done and report.lost else ""
    names_left = f"; not repaired: {', '.join(left[:5])}" if left else ""
    problems = f"; {report.problems[0]}" if report.problems else ""
    summary = f"{len(damaged)} damaged, {len(damaged) - len(left)} repaired{lost}{names_left}{problems}"
    return JobResult(summary, ok=not left and not report.lost and not report.problems)


BACKUP_JOBS = (
    declare(
        "backup",
        "make a backup of what has changed",
        _backup,
        _PLACE | {"max_bytes": Setting(int, "a storage limit: if the repository has more, the job has a finding")},
    ),
    declare(
        "follow",
        "make a backup whenever something has changed",
        _follow,
        _PLACE
        | {
            "interval": Setting(str, "how often to look for changes: 0.5s", parse=_parse_interval),
            "seconds": Setting(int, "how long one run follows before other jobs of this runner have their turn: 30"),
        },
    ),
    declare("drill", "restore the newest backup aside, and verify it", _drill, _PLACE),
    JobType(
        "prune-backups",
        "remove old backups",
        _prune,
        _check_prune,
        {name: setting.about for name, setting in _PLACE.items()}
        | {
            "keep_last": "and other rules, as those of prune",
            "grace": "how long unused packs stay: 1d",
            "max_unused": "packs of which a greater part is unused are repacked: 0.5",
        },
    ),
    declare(
        "repair",
        "repair what is damaged, from mirrors or backups",
        _repair,
        {
            "sources": Setting(
                list, "a list of stores or backups, such as backup:s3://bucket/backups", parse=_check_sources
            ),
            "policy": Setting(
                str,
                "report, heal (what sources have), or quarantine (also what is lost, by salvage)",
                parse=one_of("policy", ("report", "heal", "quarantine")),
            ),
        },
    ),
)
