"""The types of jobs that come with this package, and the registry of all types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import astuple

from holdfast._lazy import load
from holdfast._structs import decode_json
from holdfast.agents.steps.retention import prune_agents
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.line_walk import walk_lines
from holdfast.engine.namespaces import ALL_KINDS, select_lines
from holdfast.engine.types import Progress
from holdfast.errors import ConfigError, ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.jobs.backup_jobs import BACKUP_JOBS
from holdfast.maintenance.jobs.file_jobs import ARCHIVE_HOOKS_JOB, ARCHIVE_JOB, HEADS_JOB
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
from holdfast.maintenance.orphans import sweep
from holdfast.maintenance.pruner import ThreadPruneReport, ThreadSelection, prune
from holdfast.maintenance.retention import Retention
from holdfast.maintenance.stale_lines import StaleRule, delete_stale
from holdfast.maintenance.verify.verifier import VerifyReport, verify
from holdfast.state.artifacts.records import ArtifactRecords as Artifacts
from holdfast.state.scopes import delete_expired
from holdfast.state.sessions.api import SessionsOperations
from holdfast.time_parser import parse_nanoseconds

# Credentials job ------------------------------------------------------------------------------------------------------
#
# The type of the job that notices credentials in what is stored. Runners add this job to every store.

CREDENTIALS = "credentials"
SCHEDULE = "every 5m"


async def _check_credentials(job: JobContextBase) -> JobResult:
    from holdfast.security.sensitive.credential_check import CredentialCheck

    check = await CredentialCheck.open(job.store._handle.engine, job.store._handle.tenant)

    async def report(done: int, what: str) -> None:
        if done % _STORED_AFTER == 0:
            await check.store()
        job.progress(done, None, what)

    await check.run(report)
    await check.store()
    # Without names: runs stay when what they found is erased.
    count = len(check.progress.places)
    places = "1 place" if count == 1 else f"{count} places"
    return JobResult(f"credentials in clear at {places}: holdfast doctor" if count else "no credentials found")


_STORED_AFTER = 50
"""After how many lines it is stored how far the check got."""

CREDENTIALS_JOB = declare(
    CREDENTIALS, "look for credentials in what was saved since the last time", _check_credentials, reaches_out=False
)


# Erasure jobs ---------------------------------------------------------------------------------------------------------
#
# The type of jobs that erase the data of one person: `store.erasure.erase` creates them, and removes them when they
# are done.

ERASE = "erase"


def _check_erasure(settings: Mapping[str, Any]) -> None:
    from holdfast.engine.subject_names import check_subject
    from holdfast.errors import InvalidError

    known_only(settings, subject=str, id=str, started=int, metadata_keys=list)
    if "id" not in settings or "started" not in settings:
        raise InvalidError(
            "an erasure is started by erase, and this job resumes it",
            hint="store.erasure.erase(…), or holdfast erase --subject",
        )
    check_subject(settings.get("subject"))


async def _erase(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.erasure.eraser import Eraser

    settings = job.settings
    eraser = Eraser(
        job.store._handle,
        settings["subject"],
        metadata_keys=settings["metadata_keys"],
        progress=job.progress,
    )
    certificate = await eraser.erase(settings["id"], settings["started"])
    count = sum(certificate.erased.values())
    return JobResult(f"{count} threads, scopes, records and the like erased; certificate {certificate.id}")


ERASURE_JOBS = (
    JobType(
        ERASE,
        "erase the data of one person: continues what `holdfast erase` began",
        _erase,
        _check_erasure,
        {"subject": "the name of the person; id, started and metadata_keys are those of the erasure"},
    ),
)


async def _evaluate_alerts(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.jobs.job import read_job_metrics
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


def _check_alerts(settings: Mapping[str, Any]) -> None:
    from holdfast.maintenance.monitoring.rules import AlertSettings

    AlertSettings.of(settings)


ALERT_JOB = JobType(
    "alerts",
    "look for what needs attention, and notify",
    _evaluate_alerts,
    _check_alerts,
    {
        "storage_budget": "how many bytes the store may have; 0 for any number",
        "repository_budget": "how many bytes a repository of backups may have; 0 for the max_bytes of the job backup",
        "lag": "how far the copy of a mirror may be behind: 5m",
        "backup_age": "how old the last backup may be: 2d; drill_age, the last drill: 30d",
        "pending": "how long something has to be wrong before an alert fires: 1m",
        "window": "how long alerts about single failures stay: 15m",
    },
)


_PAGE = 100
_LISTED = 5
"""The number of findings that a summary lists."""
_STALE = 7 * 86400 * 10**9
"""A verification that started longer ago is not resumed: its results are too old."""


async def _tidy(job: JobContextBase) -> str:
    backend = job.store._handle.engine.context.backend
    before = await backend.size()
    await backend.tidy()
    return f"{max(0, before - await backend.size())} bytes freed"


async def _compact(job: JobContextBase) -> JobResult:
    done, skipped = 0, 0
    damaged: list[str] = []
    handle, prefix = job.store._handle, job.settings.get("prefix", "")
    handle.engine.context.rows.check_prefix(prefix)
    async for line in walk_lines(
        handle.engine.context.backend,
        handle.tenant,
        frozenset({"thread"}),
        prefix=prefix,
        after=job.mark,
        progress=_keep_place(job),
    ):
        try:
            await handle.engine.rewriter.rewrite(line)
            done += 1
        except (ConflictError, NotFoundError):
            skipped += 1  # another is at it, or it was deleted
        except CorruptError:
            damaged.append(line.name)
    await job.store._handle.engine.context.backend.tidy()
    summary = f"{done} threads compacted" + (f", {skipped} skipped: busy or gone" if skipped else "")
    if damaged:
        summary += f"; {len(damaged)} damaged threads were skipped: {', '.join(damaged[:_LISTED])}"
    return JobResult(summary, ok=not damaged)


def _keep_place(job: JobContextBase) -> Progress:
    """Return the progress of a walk through the lines of a store, whose place is the mark of the job."""

    def report(done: int, total: int | None, what: str) -> None:
        job.keep(what)
        job.progress(done, total, what)

    return report


async def _prune_steps(job: JobContextBase) -> str:
    handle = job.store._handle
    before = handle.now() - parse_nanoseconds(job.settings["older_than"], "older_than")
    done = await prune_agents(handle, before, dry_run=False)
    counts = f"{done.steps} steps, {done.waits} sleeps and waits, {done.signals} signals and {done.timers} timers"
    return f"{counts} of {done.agents} agents deleted"


async def _delete_stale(job: JobContextBase) -> JobResult:
    report = await delete_stale(job.store._handle, _stale_rule(job.settings), progress=job.progress)
    counts = Counter(each.kind for each in report.deleted)
    summary = f"{counts['thread']} threads, {counts['agent']} agents and {counts['session']} sessions deleted"
    damaged = [each.name for each in report.skipped if each.code == CorruptError.code]
    if len(report.skipped) > len(damaged):
        summary += f"; {len(report.skipped) - len(damaged)} are held, pinned or at work"
    if damaged:
        summary += f"; {len(damaged)} damaged ones were skipped: {', '.join(damaged[:_LISTED])}"
    return JobResult(summary, ok=not damaged)


def _stale_rule(settings: Mapping[str, Any]) -> StaleRule:
    return StaleRule.of(settings.get("where"), settings.get("prefix", ""), settings.get("kinds"))


async def _project(job: JobContextBase) -> str:
    progress, handle = _keep_place(job), job.store._handle

    def report(thread: str, count: int) -> None:
        progress(count, None, thread)

    count = await handle.engine.projector.build_all(handle.tenant, job.mark, job.settings.get("again", False), report)
    return f"readable rows of {count} threads built"


class _VerifyProgress(msgspec.Struct):
    """The progress of a verification of the whole store, and its findings so far."""

    level: str
    began: int
    after: str = ""
    lines: int = 0
    steps: int = 0
    bytes: int = 0
    found: int = 0
    kinds: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    sound: bool = True

    def plus(self, report: VerifyReport, after: str) -> _VerifyProgress:
        """Return the progress with that of a report added."""
        return _VerifyProgress(
            self.level,
            self.began,
            after,
            self.lines + report.lines,
            self.steps + report.steps,
            self.bytes + report.bytes,
            self.found + report.found,
            tuple(sorted({*self.kinds, *(each.code.value for each in report.findings)})[:_LISTED]),
            (*self.damaged, *report.damaged)[:_LISTED],
            self.sound and report.ok,
        )


async def _verify(job: JobContextBase) -> JobResult:
    level = VerifyLevel(job.settings.get("level", VerifyLevel.HASHES.value))
    threads, kinds = select_lines(job.settings.get("threads"), job.settings.get("kinds"), ALL_KINDS)
    engine, tenant = job.store._handle.engine, job.store._handle.tenant
    before = _VerifyProgress(level.value, engine.context.clock())
    if threads is None and job.mark:
        stored = decode_json(job.mark, _VerifyProgress)
        if stored.level == level.value and abs(before.began - stored.began) < _STALE:
            before = stored
    report = VerifyReport(engine.context.backend.url, tenant, level.value)

    def report_progress(done: int, total: int | None, what: str) -> None:
        if threads is None:
            job.keep(msgspec.json.encode(before.plus(report, what)).decode())
        job.progress(before.lines + done, None if total is None else before.lines + total, what)

    await verify(
        engine,
        tenant,
        threads,
        level=level,
        progress=report_progress,
        after=before.after,
        report=report,
        kinds=kinds,
    )
    total = before.plus(report, "")
    summary = f"{total.lines} lines, {total.steps} steps, {total.bytes} bytes verified"
    if before.lines:
        summary += f", the first {before.lines} lines by a run that was interrupted"
    if total.found:
        summary += f"; {total.found} findings ({', '.join(total.kinds)})"
    if not total.sound:
        summary += f"; damaged: {', '.join(total.damaged) or 'the store itself'}"
    return JobResult(summary, ok=total.sound)


def _check_threads(settings: Mapping[str, Any]) -> None:
    threads = settings.get("threads")
    if threads is not None and not (isinstance(threads, list) and all(isinstance(each, str) for each in threads)):
        raise InvalidError("the setting threads must be a list of names", where=repr(threads)[:80])
    select_lines(threads, settings.get("kinds"), ALL_KINDS)


async def _index(job: JobContextBase) -> str:
    report = await job.store._handle.engine.indexer.build(job.store._handle.tenant, job.progress)
    return f"{report.steps} checkpoints of {report.threads} threads indexed"


async def _reencrypt(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.keys.reencryption import Reencryption  # it needs an extra

    handle = job.store._handle

    done = await Reencryption(handle.engine, handle.tenant, _keep_place(job)).run(job.mark)
    return JobResult(f"{done.rows} rows of {done.lines} threads and other lines encrypted anew")


_SELECTION = ("threads", "prefix", "where", "kinds")


def _prune_settings(settings: Mapping[str, Any]) -> tuple[Retention, ThreadSelection]:
    policy = select_settings(settings, Retention, _SELECTION)
    zone = policy.get("zone")
    if zone is not None:
        try:
            policy["zone"] = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise InvalidError(f"no time zone has the name {zone!r}", hint="Write one such as Europe/Berlin") from None
    _check_threads(settings)
    return Retention(**policy), ThreadSelection.of(
        settings.get("threads"), settings.get("prefix", ""), settings.get("where"), settings.get("kinds")
    )


class _PruneProgress(msgspec.Struct):
    """How far a prune of many threads got, and what it removed so far."""

    after: str = ""
    dropped: int = 0
    kept: int = 0
    bytes: int = 0
    busy: int = 0
    damaged: int = 0
    listed: tuple[str, ...] = ()

    def add(self, thread: ThreadPruneReport) -> None:
        """Add the report of a thread."""
        self.dropped += thread.dropped
        self.kept += thread.kept
        self.bytes += thread.bytes
        if thread.code == CorruptError.code:
            self.damaged += 1
            self.listed = (*self.listed, thread.thread)[:_LISTED]
        elif thread.problem:
            self.busy += 1


async def _prune(job: JobContextBase) -> JobResult:
    policy, selection = _prune_settings(job.settings)
    in_parts = selection.names is None and not policy.is_sized
    done = decode_json(job.mark, _PruneProgress) if in_parts and job.mark else _PruneProgress()
    resumes = bool(done.after)

    def keep_place(thread: str) -> None:
        done.after = thread
        job.keep(msgspec.json.encode(done).decode())

    engine = job.store._handle.engine
    await prune(
        engine,
        job.store._handle.tenant,
        policy,
        selection,
        progress=job.progress,
        each=done.add,
        after=done.after,
        passed=keep_place if in_parts else None,
    )
    await engine.context.backend.tidy()
    summary = f"{done.dropped} checkpoints removed, {done.kept} kept, {done.bytes} bytes freed"
    if resumes:
        summary += ", in part by a run that was interrupted"
    if done.busy:
        summary += f"; {done.busy} threads were held or busy"
    if done.damaged:
        summary += f"; {done.damaged} damaged threads were skipped: {', '.join(done.listed)}"
    return JobResult(summary, ok=not done.damaged)


async def _orphans(job: JobContextBase) -> JobResult:
    grace = job.settings.get("grace", "1d")
    handle = job.store._handle
    progress = _keep_place(job)
    report = await sweep(handle.engine, handle.tenant, grace=grace, dry_run=False, progress=progress, after=job.mark)
    summary = f"{report.rows} orphan rows removed, {report.bytes} bytes"
    if report.problems:
        summary += f"; {len(report.problems)} threads could not be checked: {', '.join(sorted(report.problems)[:5])}"
    return JobResult(summary, ok=not report.problems)


async def _expire(job: JobContextBase) -> JobResult:
    expired = await delete_expired(job.store._handle, job.progress)
    ended = forgotten = held = 0
    while True:
        done = await SessionsOperations.collect(SessionsOperations(job.store._handle), _PAGE)
        ended, forgotten, held = ended + done.ended, forgotten + done.forgotten, held + done.held
        job.progress(ended + forgotten, None, "sessions")
        if sum(astuple(done)) < _PAGE:
            break
    abandoned = await Artifacts(job.store._handle).sweep(_parse_grace(job.settings.get("grace", "1d")))
    summary = (
        f"{expired.keys} expired keys of {expired.scopes} scopes removed, {ended} sessions ended, {forgotten} forgotten"
    )
    if held:
        summary += f"; {held} are held, or a hook objects to their end"
    if abandoned:
        summary += f"; content of {abandoned} unfinished artifacts removed"
    return JobResult(summary)


_parse_grace = partial(parse_nanoseconds, what="grace")


async def _migrate(job: JobContextBase) -> JobResult:
    from holdfast.maintenance.jobs.migration import migrate_states  # most runners do not need schemas

    return await migrate_states(job)


def _check_migrate(settings: Mapping[str, Any]) -> None:
    from holdfast.maintenance.jobs.migration import check_settings

    check_settings(settings)


def _check_submit(settings: Mapping[str, Any]) -> None:
    if not (settings.get("graph") or settings.get("agent")):
        raise InvalidError("a job of the type submit needs the setting graph or agent", hint="Name what does the run")


async def _submit(job: JobContextBase) -> str:
    from holdfast.agents.runs.api import RunOperations, Runs  # most runners submit none

    given = job.settings
    # A runner that is killed submits none twice. One that is run by hand before its time is another one.
    is_due = 0 < job.due_ns <= job.store._handle.now()
    key = f"job {job.name} {job.due_ns}" if is_due else None
    run = await RunOperations.submit(
        Runs(job.store._handle),
        given.get("thread"),
        given.get("input"),
        graph=given.get("graph"),
        agent=given.get("agent"),
        idempotency_key=key,
        on_busy=given.get("on_busy", "queue"),
    )
    return f"run {run.id}"


DELETE_STALE = "delete-stale"

CLIENT_RUN = "client-run"
"""The type of the jobs that LangGraph's clients make as crons."""


def _run_cron(job: JobContextBase) -> JobResult:
    done: JobResult = load("holdfast.interfaces.langgraph_server.crons", "run_cron")(job)
    return done


_ALL = (
    declare(
        CLIENT_RUN,
        "submit a run that a client of LangGraph asked for by the clock",
        _run_cron,
        {"identity": Setting(str, "for whom: whose cron it is; empty for the store's owner")},
    ),
    declare(
        "submit",
        "submit a run, which a worker does",
        _submit,
        {
            "graph": Setting(str, "the graph or workflow, by its name; needed, if there is no agent"),
            "agent": Setting(str, "the agent that works, in place of a graph"),
            "thread": Setting(str, "the thread that it works on; without one, each run has its own"),
            "input": Setting(dict, "the input of the graph, or the arguments of the workflow"),
            "on_busy": Setting(str, "what happens if the thread has a run: queue, pass, refuse, replace or branch"),
        },
        _check_submit,
        reaches_out=False,
    ),
    declare("tidy", "return space that deletions freed to the system", _tidy, reaches_out=False),
    JobType(
        "prune",
        "remove old checkpoints by a policy",
        _prune,
        _prune_settings,
        {
            "keep_last": "how many of the last ones stay; keep_hourly, keep_daily, keep_weekly and so on thin them out",
            "keep_within": "an age such as 30d: those younger stay",
            "keep_recordings_within": "an age such as 30d: recorded calls that are older go, or keep_recordings_last",
            "max_bytes": "the size limit of what stays",
            "prefix": "only threads whose names start with it; or threads, a list of names; or where, a query",
            "kinds": "a list of kinds of lines, such as scope and agent, to prune in place of threads",
        },
        reaches_out=False,
    ),
    declare(
        "prune-steps",
        "delete durable steps, timers and signals of agents that ended long ago",
        _prune_steps,
        {
            "older_than": Setting(
                str,
                "how long ago they ended, such as 90d",
                required=True,
                parse=partial(parse_nanoseconds, what="older_than"),
            )
        },
    ),
    declare(
        DELETE_STALE,
        "delete whole threads, agents and sessions that have not changed for long",
        _delete_stale,
        {
            "where": Setting(str, "a query, such as updated<90d; without one, threads go whose TTL is over"),
            "prefix": Setting(str, "only those whose names start with it"),
            "kinds": Setting(list, "a list of kinds, of thread, agent and session, in place of threads"),
        },
        _stale_rule,
        reaches_out=False,
    ),
    declare(
        "verify",
        "check that everything is what was written",
        _verify,
        {
            "level": Setting(
                str,
                "how deeply: structure, hashes (the default) or decode",
                parse=one_of("level", [each.value for each in VerifyLevel]),
            ),
            "threads": Setting(list, "a list of names, if not all"),
            "kinds": Setting(list, "a list of kinds of lines, such as scope and agent, if not all"),
        },
        _check_threads,
        reaches_out=False,
    ),
    declare("index", "build the text index, and maintain it from then on", _index, reaches_out=False),
    declare(
        "orphans",
        "remove orphan rows, left by processes that died",
        _orphans,
        {"grace": Setting(str, "the age of orphans that are removed: 1d", parse=_parse_grace)},
        reaches_out=False,
    ),
    declare(
        "expire",
        "remove expired keys of all scopes, end sessions whose time is up",
        _expire,
        {"grace": Setting(str, "the age of unfinished content of artifacts that is removed: 1d", parse=_parse_grace)},
        reaches_out=False,
    ),
    declare(
        "compact",
        "rewrite threads, so that they take less space and read faster",
        _compact,
        {"prefix": Setting(str, "only threads whose names start with it")},
        reaches_out=False,
    ),
    ARCHIVE_JOB,
    ARCHIVE_HOOKS_JOB,
    HEADS_JOB,
    declare(
        "reencrypt", "encrypt everything with the newest keys, after they were rotated", _reencrypt, reaches_out=False
    ),
    declare(
        "project",
        "build the readable rows of threads that lack them",
        _project,
        {"again": Setting(bool, "true: rebuild all of them")},
        reaches_out=False,
    ),
    JobType(
        "migrate",
        "migrate all states to the newest version of their schema",
        _migrate,
        _check_migrate,
        {
            "schema": "the name, if the project has several; they are in the module that its holdfast.toml names",
            "to": "the version, in place of the newest; with down, true, an older one",
            "threads": "a pattern of names, if not all; branches: all, named or newest",
            "on_error": "what to do if a state does not fit: stop, skip or rollback",
            "backup": "a repository, to make a backup in first",
        },
    ),
    *BACKUP_JOBS,
    *ERASURE_JOBS,
    ALERT_JOB,
    CREDENTIALS_JOB,
)

KINDS: Mapping[str, JobType] = {kind.name: kind for kind in _ALL}
"""The types of this package by name."""


GROUP = "holdfast.jobs"
"""The entry point group of job types."""


class JobTypes:
    """The types of jobs that a program knows: those of this package, plug-ins, and its own."""

    def __init__(self, *only: str) -> None:
        """All types, or only those with some names."""
        self._own: dict[str, JobType] = {}
        self._only = only

    def add(self, kind: JobType) -> None:
        """Add a type."""
        if kind.name in self.names():
            raise InvalidError(f"there is a kind of jobs {kind.name!r} already")
        self._own[kind.name] = kind

    def names(self) -> list[str]:
        """Return the names of all types."""
        from importlib.metadata import entry_points  # slow to import

        return sorted({*KINDS, *self._own, *entry_points(group=GROUP).names})

    def __contains__(self, name: object) -> bool:
        if self._only:
            return name in self._only
        return name in self._own or name in KINDS or name in self.names()

    def reaches_out(self, name: object) -> bool:
        """Return whether jobs of a type may name repositories, files or addresses, which the program that runs them
        opens: a script, or the client of a served store, cannot add them."""
        kind = KINDS.get(str(name))
        return name in self if kind is None else kind.reaches_out

    def get(self, name: str) -> JobType:
        """Return a type by its name."""
        found = self._own.get(name) or KINDS.get(name)
        if found is not None:
            return found
        from importlib.metadata import entry_points

        for entry in entry_points(group=GROUP, name=name):
            loaded = entry.load()
            if not isinstance(loaded, JobType) or loaded.name != name:
                raise ConfigError(f"the plug-in {entry.value} is not a job type with the name {name!r}")
            return loaded
        near = get_close_matches(str(name), self.names(), 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise InvalidError(f"there is no kind of jobs {name!r}", hint=f"{hint}There are {', '.join(self.names())}")
