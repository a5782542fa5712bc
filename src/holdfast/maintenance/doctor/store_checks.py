"""Checks of an open store. They only read."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import QUARANTINE, REFS, STEPS, WORDS
from holdfast.engine.projection.projector import LATE_SECONDS
from holdfast.engine.row_format import Line, LineSummary
from holdfast.engine.text_index.indexer import ON
from holdfast.engine.types import to_datetime
from holdfast.errors import HoldfastError
from holdfast.maintenance.doctor.result import CheckResult, note, ok, problem, warning
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.execution import LIFE
from holdfast.maintenance.jobs.job import Job, scan_jobs
from holdfast.security.handle import StoreHandle

SAMPLE = 200
"""The number of threads that are checked."""

LATEST = 100
"""The number of checkpoints of each thread that are checked."""

QUICK = 1 << 30
"""The size in bytes up to which a store runs its own check."""

_MINUTE, _HOUR = 60 * 10**9, 3600 * 10**9
_DRILL_AGE = 31 * 24 * _HOUR
_BACKUP_AGE = 7 * 86400 * 10**9
"""After how many nanoseconds a backup is old."""
_LOOK_SECONDS = 5.0
"""How long credentials are looked for."""
_MANY = 1000
_LIST = 5


async def checks(store: StoreHandle, *, full: bool = False) -> list[CheckResult]:
    """Run all checks. An error of a check is its finding."""
    try:
        sample = await store.engine.lines.list_threads(store.tenant, "", "", SAMPLE)
    except HoldfastError as error:
        return [_failed("store-opens", error), *await _run("store-check", own_check(store, full))]
    found = [*await _run("store-opens", server(store)), clock(store, sample)]
    for code, check in (
        ("store-check", own_check(store, full)),
        ("readable-rows", readable_rows(store, sample)),
        ("text-index", text_index(store, sample)),
        ("jobs", jobs(store)),
        ("leases", leases(store, sample)),
        ("quarantine", quarantine(store)),
        ("copies", copies(store)),
        ("backup-last", last_backup(store)),
        ("backup-drill", backup_drills(store)),
        ("backup-size", backup_sizes(store)),
        ("credentials", credentials(store, full)),
    ):
        found += await _run(code, check)
    return found


async def _run(code: str, check: Coroutine[Any, Any, list[CheckResult]]) -> list[CheckResult]:
    try:
        return await check
    except HoldfastError as error:
        return [_failed(code, error)]


def _failed(code: str, error: HoldfastError) -> CheckResult:
    where = f" (at {error.where})" if error.where else ""
    return problem(code, f"{error.what}{where} [{error.code}]", error.hint or f"See `holdfast explain {error.code}`")


async def server(store: StoreHandle) -> list[CheckResult]:
    """Report the status of the backend."""
    backend = store.engine.context.backend
    status = {name: value for name, value in (await backend.status()).items() if name in ("server", "version")}
    details = "".join(f", {name} {value}" for name, value in status.items())
    shared = "" if backend.capabilities.shared else ", for one process at a time"
    durability = "durable" if backend.capabilities.durable else "not durable: a crash may lose the last checkpoints"
    return [ok("store-opens", f"{backend.url}: {await backend.size():,} bytes{details}{shared}, {durability}")]


def clock(store: StoreHandle, sample: Sequence[LineSummary]) -> CheckResult:
    """Compare the clock of this machine with the newest checkpoints."""
    now = store.engine.context.clock()
    newest = max((each.updated for each in sample), default=0)
    if newest > now + _MINUTE:
        return warning(
            "clock",
            f"the clock says {to_datetime(now):%Y-%m-%d %H:%M:%S} UTC, and a checkpoint is of "
            f"{to_datetime(newest):%Y-%m-%d %H:%M:%S}",
            "Set the clock, here or where that checkpoint was saved; use NTP on both. Until then new checkpoints of "
            "the thread get the time of that one",
        )
    return ok("clock", f"{to_datetime(now):%Y-%m-%d %H:%M:%S} UTC, and no checkpoint is newer")


async def own_check(store: StoreHandle, full: bool) -> list[CheckResult]:
    """Run the store's own check."""
    backend = store.engine.context.backend
    if not full and await backend.size() > QUICK:
        remedy = "Run `holdfast doctor --full`, or `holdfast verify`"
        return [note("store-check", "skipped: the store is large", remedy)]
    problems = await backend.check()
    if not problems:
        return [ok("store-check", "the store's own check finds nothing wrong")]
    remedy = "Keep a copy of the store. `holdfast verify` lists the affected threads, `holdfast repair` repairs them"
    found = [problem("store-check", each, remedy) for each in problems[:_LIST]]
    more = len(problems) - _LIST
    return [*found, problem("store-check", f"{more} more findings", remedy)] if more > 0 else found


async def readable_rows(store: StoreHandle, sample: Sequence[LineSummary]) -> list[CheckResult]:
    """Check whether the readable rows include the latest checkpoints."""
    projector = store.engine.projector
    if not projector.on:
        return []
    incomplete = [each.line for each in sample if not await projector.is_complete(each.line)]
    behind = [line.name for line in incomplete if not 0 < (await projector.lag(*line))[1] < LATE_SECONDS]
    if behind:
        return [
            warning(
                "readable-rows",
                f"{len(behind)} of {len(sample)} threads have readable rows that are out of date, {behind[0]!r} is one",
                "Rebuild them: `store.maintenance.project()`, or a project job",
            )
        ]
    return [ok("readable-rows", f"up to date for the {len(sample)} threads that were checked")]


async def text_index(store: StoreHandle, sample: Sequence[LineSummary]) -> list[CheckResult]:
    """Check whether there is a text index, and whether it has every checkpoint."""
    backend = store.engine.context.backend
    state = await store.engine.indexer.state(store.tenant)
    if not state:
        return [
            note(
                "text-index",
                "there is none: searching for text reads every checkpoint",
                "Build it: store.maintenance.build_index()",
            )
        ]
    if state != ON:
        return [
            warning(
                "text-index",
                "it was not built completely, and is not used",
                "Resume it: store.maintenance.build_index()",
            )
        ]
    for each in sample:
        (steps,) = await backend.read([Scan(STEPS, tuple(each.line), reverse=True, limit=LATEST, bodies=False)])
        keys = [row.key for row in steps if row.columns[0]]
        (words,) = await backend.read([Get(WORDS, keys)])
        if len(words) < len(keys):
            return [
                warning(
                    "text-index",
                    f"it lacks checkpoints, for example of {each.line.name!r}: a search may miss some",
                    "Complete it: store.maintenance.build_index(), or an index job",
                )
            ]
    return [ok("text-index", f"complete for the latest checkpoints of the {len(sample)} threads that were checked")]


async def jobs(store: StoreHandle) -> list[CheckResult]:
    """Check whether scheduled jobs run."""
    backend, now, known = store.engine.context.stored, store.engine.context.clock(), JobTypes()
    (rows,) = await backend.read([scan_jobs(store.tenant)])
    found = []
    for row in rows:
        try:
            job = Job.of(row, store.engine.context.rows)
        except HoldfastError as error:
            name = str(row.key[2])
            remedy = f"Remove it and add it again: holdfast jobs remove {name}"
            found.append(problem("jobs-damaged", f"the job {name} cannot be read: {error.what}", remedy))
            continue
        if job.kind not in known:
            found.append(
                note(
                    "jobs-unknown",
                    f"the job {job.name} has the type {job.kind}, which is not known here",
                    "Run it where the package that provides the type is installed",
                )
            )
        if job.failures and job.last is not None:
            message = job.last.error or job.last.summary
            found.append(
                warning(
                    "jobs-failing",
                    f"the job {job.name} failed {job.failures} times in a row: {message}",
                    f"See `holdfast jobs log {job.name}`"
                    + (f", `holdfast explain {job.last.code}`" * bool(job.last.code)),
                )
            )
        elif not job.paused and 0 < job.due_ns < now - _HOUR:
            found.append(
                warning(
                    "jobs-overdue",
                    f"the job {job.name} was due at {to_datetime(job.due_ns):%Y-%m-%d %H:%M} UTC",
                    "No runner seems to be running: start `holdfast jobs work`, or a Runner in your program",
                )
            )
    return found or [ok("jobs", f"{len(rows)} jobs, all OK" if rows else "no jobs")]


async def leases(store: StoreHandle, sample: Sequence[LineSummary]) -> list[CheckResult]:
    """Find leases that were left by processes that died."""
    context = store.engine.context
    lines = [Line(store.tenant, ""), *(each.line for each in sample)]
    rows: list[Row] = []
    for found in await context.backend.read([Scan(REFS, (*line, "lease")) for line in lines]):
        rows += found
    now = context.clock()
    left = [row for row in rows if abs(now - int(row.columns[1])) > LIFE * 1e9]
    if left:
        named = ((str(row.key[3]), str(row.key[1])) for row in left)
        names = ", ".join(sorted({f"{what} of {line!r}" if line else what for what, line in named})[:5])
        return [
            note(
                "leases",
                f"{len(left)} left by processes that died or were cut off: {names}",
                "Nothing to do: the next process takes them over. Their operations can be started again",
            )
        ]
    return [ok("leases", f"{len(rows)} held, none abandoned")]


async def quarantine(store: StoreHandle) -> list[CheckResult]:
    """Check whether repairs quarantined rows."""
    scan = Scan(QUARANTINE, (store.tenant,), limit=_MANY, bodies=False)
    (rows,) = await store.engine.context.backend.read([scan])
    if not rows:
        return [ok("quarantine", "empty")]
    threads = sorted({str(row.key[1]) for row in rows})
    more = "" if len(rows) < _MANY else " or more"
    return [
        warning(
            "quarantine",
            f"{len(rows)}{more} damaged rows are quarantined, of {', '.join(map(repr, threads[:5]))}",
            "`holdfast repair --from URL` restores what a copy of the store has",
        )
    ]


async def copies(store: StoreHandle) -> list[CheckResult]:
    """Check how far the copy of a write-behind or mirrored store is behind."""
    status = await store.engine.context.backend.status()
    found = []
    for name, value in status.items():
        prefix, _, what = name.rpartition("lag_")
        if what == "batches":
            seconds = status.get(f"{prefix}lag_seconds", 0)
            trouble = status.get(f"{prefix}trouble", "")
            lag = f"{value} batches, {status.get(f'{prefix}lag_bytes', 0)} bytes, {seconds} s behind"
            if trouble:
                remedy = "Check whether the store of the copy is reachable. The journal keeps the writes until it is"
                found.append(warning("copies", f"{lag}: {trouble}", remedy))
            elif isinstance(seconds, int | float) and seconds > 60:
                remedy = "It catches up while a program has the store open; if it does not, check the store of the copy"
                found.append(warning("copies", lag, remedy))
            else:
                found.append(ok("copies", lag if value else "the copy is up to date"))
        if name.endswith("unhealed") and value:
            remedy = "Run `holdfast verify`, and `holdfast repair --from` another copy"
            found.append(problem("copies", f"{value} damaged rows could not be repaired from the copy", remedy))
    return found


async def last_backup(store: StoreHandle) -> list[CheckResult]:
    """Report when the last backup was made, in each repository that the store knows of."""
    from holdfast.maintenance.backup.store_record import find_record_loss, last_backups

    found = []
    for record, time in await last_backups(store.engine, store.tenant):
        text = f"backup {record.store[:8]}.{record.number}, {to_datetime(time):%Y-%m-%d %H:%M} UTC, in {record.where}"
        lost = await find_record_loss(record)
        if lost:
            remedy = "Check the repository: `holdfast backup verify`. If it is gone, create backups elsewhere"
            found.append(problem("backup-last", f"{text}: {lost}", remedy))
        elif store.engine.context.clock() - time > _BACKUP_AGE:
            remedy = "Run `holdfast backup create`, or `holdfast backup schedule` and `holdfast jobs work`"
            found.append(warning("backup-last", text, remedy))
        else:
            found.append(ok("backup-last", text))
    return found


async def backup_drills(store: StoreHandle) -> list[CheckResult]:
    """Report when backups were last proven to work."""
    from holdfast.maintenance.backup.drill import last_drills

    found = []
    for drill in await last_drills(store.engine, store.tenant):
        age = store.engine.context.clock() - drill.time
        when = f"{to_datetime(drill.time):%Y-%m-%d %H:%M} UTC"
        text = f"backup {drill.backup}, {when}, {drill.seconds:.1f} s: {drill.summary}"
        if not drill.ok:
            remedy = "Run `holdfast backup verify`, and make a new backup, in another repository if need be"
            found.append(problem("backup-drill", text, remedy))
        elif age > _DRILL_AGE:
            found.append(warning("backup-drill", text, "Run `holdfast backup drill`, or add a job of that kind"))
        else:
            found.append(ok("backup-drill", text))
    return found


async def backup_sizes(store: StoreHandle) -> list[CheckResult]:
    """Report how large repositories of backups are that have a storage limit."""
    from holdfast.maintenance.backup.store_record import repository_sizes

    found = []
    for size in await repository_sizes(store.engine, store.tenant):
        text = f"{size.bytes:,} bytes in {size.where}, and the limit is {size.limit:,}"
        if size.is_over:
            remedy = "Run `holdfast backup prune`, with fewer backups to keep, or raise max_bytes of the job"
            found.append(warning("backup-size", text, remedy))
        elif size.limit:
            found.append(ok("backup-size", text))
    return found


async def credentials(store: StoreHandle, full: bool) -> list[CheckResult]:
    """Report where credentials are stored in clear."""
    from holdfast.security.sensitive.credential_check import look

    found = await look(store.engine, store.tenant, None if full else _LOOK_SECONDS)
    if found.findings:
        protect, redact = found.remedies
        remedy = f"Protect what is saved from now on: {protect}. Replace what is stored: {redact}. Issue new ones"
        return [warning("credentials", found.describe(_LIST), remedy)]
    if not found.complete:
        remedy = "Run `holdfast doctor --full`, or `holdfast jobs work`, which looks for them in the background"
        return [note("credentials", "none found so far: not all that is stored was searched", remedy)]
    return [ok("credentials", "none found in what is stored")]


def sqlite_settings(path: Path) -> list[CheckResult]:
    """Check how a SQLite file was created."""
    import apsw

    from holdfast.backends.sqlite.database_file import FileOptions, connect, read_only_options

    name = str(path.resolve())
    try:
        connection = connect(
            read_only_options(FileOptions(name, name, "full", 1.0, None, exclusive=False, read_only=True))
        )
    except apsw.Error as error:
        return [problem("sqlite-vacuum", f"{path} cannot be opened: {error}", "See what `store-permissions` says")]
    try:
        pages, vacuum = connection.pragma("page_size"), connection.pragma("auto_vacuum")
        free, count = connection.pragma("freelist_count"), connection.pragma("page_count")
    except apsw.Error as error:
        return [problem("sqlite-vacuum", f"{path} cannot be read: {error}", "See what `store-check` says")]
    finally:
        connection.close()
    layout = f"pages of {pages} bytes, {free} of {count} free"
    if vacuum != 2:
        return [
            warning(
                "sqlite-vacuum",
                f"{layout}; free space is not returned to the disk",
                "Copy the store into a new file: holdfast copy",
            )
        ]
    if free > 1000 and free > count // 4:
        return [note("sqlite-vacuum", layout, "Return the space: a tidy job, or `holdfast prune`")]
    return [ok("sqlite-vacuum", layout)]
