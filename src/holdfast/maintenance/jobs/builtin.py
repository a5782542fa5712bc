"""The kinds of jobs that come with this package: the upkeep of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.time_parsing import parse_age
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType, known_only
from holdfast.maintenance.orphans import sweep
from holdfast.maintenance.pruner import ThreadPruneReport, ThreadSelection, prune
from holdfast.maintenance.retention import Retention
from holdfast.maintenance.verify.verifier import VerifyReport, verify
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.records import ArtifactRecords as Artifacts
from holdfast.state.expiry import lapse
from holdfast.state.sessions.api import SessionsOperations

_PAGE = 100
_NAMED = 5
"""How many of what was found are named."""
_STALE = 7 * 86400 * 10**9
"""A verification that was begun longer ago is not gone on with: it says too little of what it looked at."""


async def _tidy(job: JobContextBase) -> str:
    backend = job.store._handle.engine.context.backend
    before = await backend.size()
    await backend.tidy()
    return f"{max(0, before - await backend.size())} bytes given back"


async def _compact(job: JobContextBase) -> JobResult:
    done, skipped = 0, 0
    damaged: list[str] = []
    async for thread in _threads(job.store._handle, job.settings.get("prefix", "")):
        try:
            await job.store._handle.engine.rewriter.rewrite(job.store._handle.thread_line(thread))
            done += 1
        except (ConflictError, NotFoundError):
            skipped += 1  # another is at it, or it was deleted
        except CorruptError:
            damaged.append(thread)
        job.progress(done + skipped + len(damaged), None, thread)
    await job.store._handle.engine.context.backend.tidy()
    said = f"{done} threads compacted" + (f", {skipped} skipped: busy or gone" if skipped else "")
    if damaged:
        said += f"; {len(damaged)} damaged threads were left as they are: {', '.join(damaged[:_NAMED])}"
    return JobResult(said, ok=not damaged)


async def _threads(store: StoreHandle, prefix: str = "") -> AsyncIterator[str]:
    """The names of all threads, page by page."""
    after = ""
    while True:
        page = await store.engine.lines.list_threads(store.tenant, prefix, after, _PAGE)
        for summary in page:
            yield summary.line.name
        if len(page) < _PAGE:
            return
        after = page[-1].line.name


async def _project(job: JobContextBase) -> str:
    def told(thread: str, count: int) -> None:
        job.progress(count, None, thread)

    handle = job.store._handle
    made = await handle.engine.projector.build_all(handle.tenant, "", job.settings.get("again", False), told)
    return f"readable rows of {made} threads made"


class _Verified(msgspec.Struct):
    """How far a verification of the whole store is, and what was found up to there."""

    level: str
    began: int
    after: str = ""
    threads: int = 0
    steps: int = 0
    bytes: int = 0
    found: int = 0
    kinds: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    sound: bool = True

    def with_(self, report: VerifyReport, after: str) -> _Verified:
        """With what a report adds."""
        return _Verified(
            self.level,
            self.began,
            after,
            self.threads + report.lines,
            self.steps + report.steps,
            self.bytes + report.bytes,
            self.found + report.found,
            tuple(sorted({*self.kinds, *(each.code.value for each in report.findings)})[:_NAMED]),
            (*self.damaged, *report.damaged)[:_NAMED],
            self.sound and report.sound,
        )


async def _verify(job: JobContextBase) -> JobResult:
    level = VerifyLevel(job.settings.get("level", VerifyLevel.HASHES.value))
    threads = job.settings.get("threads")
    engine, tenant = job.store._handle.engine, job.store._handle.tenant
    before = _Verified(level.value, engine.context.clock())
    if threads is None and job.mark:
        kept = msgspec.json.decode(job.mark, type=_Verified)
        if kept.level == level.value and abs(before.began - kept.began) < _STALE:
            before = kept
    report = VerifyReport(engine.context.backend.url, tenant, level.value)

    def told(done: int, total: int | None, what: str) -> None:
        if threads is None:
            job.keep(msgspec.json.encode(before.with_(report, what)).decode())
        job.progress(before.threads + done, None if total is None else before.threads + total, what)

    await verify(engine, tenant, threads, level=level, progress=told, after=before.after, report=report)
    all_ = before.with_(report, "")
    said = f"{all_.threads} lines, {all_.steps} steps, {all_.bytes} bytes verified"
    if before.threads:
        said += f", the first {before.threads} lines by a run that was broken off"
    if all_.found:
        said += f"; {all_.found} findings ({', '.join(all_.kinds)})"
    if not all_.sound:
        said += f"; damaged: {', '.join(all_.damaged) or 'the store itself'}"
    return JobResult(said, ok=all_.sound)


def _check_verify(settings: Mapping[str, Any]) -> None:
    known_only(settings, level=str, threads=list)
    levels = [each.value for each in VerifyLevel]
    if settings.get("level", levels[0]) not in levels:
        raise InvalidError(f"level cannot be {settings['level']!r}", hint=f"It is one of {', '.join(levels)}")
    _check_threads(settings)


def _check_threads(settings: Mapping[str, Any]) -> None:
    threads = settings.get("threads")
    if threads is not None and not (isinstance(threads, list) and all(isinstance(each, str) for each in threads)):
        raise InvalidError("the setting threads is a list of names", where=repr(threads)[:80])


async def _index(job: JobContextBase) -> str:
    made = await job.store._handle.engine.indexer.build(job.store._handle.tenant, job.progress)
    return f"{made.steps} checkpoints of {made.threads} threads indexed"


_SELECTION = ("threads", "prefix", "where")
_POLICY = tuple(each.name for each in fields(Retention))


def _prune_settings(settings: Mapping[str, Any]) -> tuple[Retention, ThreadSelection]:
    policy = {name: value for name, value in settings.items() if name not in _SELECTION}
    unknown = sorted(policy.keys() - set(_POLICY))
    if unknown:
        known = ", ".join([*_POLICY, *_SELECTION])
        raise InvalidError(f"this kind of job has no setting {unknown[0]!r}", hint=f"There are {known}")
    zone = policy.get("zone")
    if zone is not None:
        try:
            policy["zone"] = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise InvalidError(f"no time zone has the name {zone!r}", hint="Write one such as Europe/Berlin") from None
    _check_threads(settings)
    return Retention(**policy), ThreadSelection.of(
        settings.get("threads"), settings.get("prefix", ""), settings.get("where")
    )


def _check_prune(settings: Mapping[str, Any]) -> None:
    _prune_settings(settings)


async def _prune(job: JobContextBase) -> JobResult:
    policy, selection = _prune_settings(job.settings)
    damaged: list[str] = []
    busy = 0

    def told(thread: ThreadPruneReport) -> None:
        nonlocal busy
        if thread.code == CorruptError.code:
            damaged.append(thread.thread)
        elif thread.problem:
            busy += 1

    engine = job.store._handle.engine
    done = await prune(engine, job.store._handle.tenant, policy, selection, progress=job.progress, each=told)
    await engine.context.backend.tidy()
    said = f"{done.dropped} checkpoints removed, {done.kept} kept, {done.bytes} bytes given back"
    if busy:
        said += f"; {busy} threads were held or busy"
    if damaged:
        said += f"; {len(damaged)} damaged threads were left as they are: {', '.join(damaged[:_NAMED])}"
    return JobResult(said, ok=not damaged)


async def _orphans(job: JobContextBase) -> JobResult:
    grace = job.settings.get("grace", "1d")
    handle = job.store._handle
    swept = await sweep(handle.engine, handle.tenant, grace=grace, dry_run=False, progress=job.progress)
    said = f"{swept.rows} rows that belong to nothing removed, {swept.bytes} bytes"
    if swept.problems:
        said += f"; {len(swept.problems)} threads could not be looked at: {', '.join(sorted(swept.problems)[:5])}"
    return JobResult(said, ok=not swept.problems)


def _check_orphans(settings: Mapping[str, Any]) -> None:
    known_only(settings, grace=str)
    parse_age(settings.get("grace", "1d"))


async def _expire(job: JobContextBase) -> JobResult:
    lapsed = await lapse(job.store._handle, job.progress)
    ended = forgotten = held = 0
    while True:
        done = await SessionsOperations.collect(SessionsOperations(job.store._handle), _PAGE)
        ended, forgotten, held = ended + done.ended, forgotten + done.forgotten, held + done.held
        job.progress(ended + forgotten, None, "sessions")
        if sum(done) < _PAGE:
            break
    left = await Artifacts(job.store._handle).sweep(int(_age(job.settings).total_seconds() * 1e9))
    said = (
        f"{lapsed.keys} expired keys of {lapsed.scopes} scopes removed, {ended} sessions ended, {forgotten} forgotten"
    )
    if held:
        said += f"; {held} are held, or a hook objects to their end"
    if left:
        said += f"; content that {left} artifacts would have had removed"
    return JobResult(said)


def _age(settings: Mapping[str, Any]) -> timedelta:
    return parse_age(settings.get("grace", "1d"))


def _check_expire(settings: Mapping[str, Any]) -> None:
    known_only(settings, grace=str)
    _age(settings)


def _check_project(settings: Mapping[str, Any]) -> None:
    known_only(settings, again=bool)


def _check_compact(settings: Mapping[str, Any]) -> None:
    known_only(settings, prefix=str)


_ALL = (
    JobType("tidy", "give room that deletions freed back to the system", _tidy),
    JobType(
        "prune",
        "remove old checkpoints by a policy",
        _prune,
        _check_prune,
        {
            "keep_last": "how many of the last ones stay; keep_hourly, keep_daily, keep_weekly and so on thin them out",
            "keep_within": "an age such as 30d: those younger stay",
            "max_bytes": "what is left is to take no more than this",
            "prefix": "only threads whose names start so; or threads, a list of names; or where, a query",
        },
    ),
    JobType(
        "verify",
        "check that everything is as it was written",
        _verify,
        _check_verify,
        {
            "level": "how deeply: structure, hashes (the default) or decode",
            "threads": "a list of names, if not all",
        },
    ),
    JobType("index", "make the index of words where it is missing, and keep it from then on", _index),
    JobType(
        "orphans",
        "remove rows that belong to nothing, as processes leave that died",
        _orphans,
        _check_orphans,
        {"grace": "how long something must have been there: 1d"},
    ),
    JobType(
        "expire",
        "remove expired keys of all scopes, end sessions whose time is up",
        _expire,
        _check_expire,
        {"grace": "how long nothing was added to content that was to be an artifact's and is not: 1d"},
    ),
    JobType(
        "compact",
        "fold threads anew, so that they take less room and read faster",
        _compact,
        _check_compact,
        {"prefix": "only threads whose names start so"},
    ),
    JobType(
        "project",
        "make the readable rows of threads that lack them",
        _project,
        _check_project,
        {"again": "true: make all of them anew"},
    ),
)

KINDS: Mapping[str, JobType] = {kind.name: kind for kind in _ALL}
"""By name."""
