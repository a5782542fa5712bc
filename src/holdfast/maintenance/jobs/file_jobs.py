"""The types of jobs that write files: they archive the audit and the history of hooks, or compare a store with its last
heads and export new ones. Each time, a new file is written to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.backends.interface import BlockingCall
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.namespaces import parse_kinds
from holdfast.errors import ConfigError, InvalidError
from holdfast.maintenance.backup_status import unseen_since
from holdfast.maintenance.hook_archive import archive_hooks, check_rules
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, Setting, declare
from holdfast.maintenance.verify.heads import export_heads, load_heads
from holdfast.maintenance.verify.verifier import verify
from holdfast.security.audit.export import ARCHIVED_KINDS, AuditArchive, archive
from holdfast.time_parser import parse_nanoseconds


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder cannot be used: {error.strerror}", where=str(folder)) from error


async def _file(job: JobContextBase, kind: str) -> Path:
    """Return a new file in the folder of the job."""
    folder = Path(job.settings["folder"])
    await BlockingCall(lambda: _create(folder))
    return folder / f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"


def _result(done: AuditArchive) -> JobResult:
    if not done.steps:
        return JobResult("there is nothing of that age")
    return JobResult(f"{done.rows} records are in segment {done.segment}, {Path(done.path).name}")


async def _archive(job: JobContextBase) -> JobResult:
    handle, path = job.store._handle, await _file(job, "audit")
    kinds = parse_kinds(job.settings["kinds"]) if "kinds" in job.settings else ARCHIVED_KINDS
    before = handle.now() - parse_nanoseconds(job.settings["older_than"], "age")
    unseen = await unseen_since(handle.engine, handle.tenant)
    return _result(await archive(handle.engine, handle.tenant, path, before, kinds, unseen=unseen))


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


# Heads ------------------------------------------------------------------------------------------------------------

_KEPT = 30
_LISTED = 5


def _check_keep(settings: Mapping[str, Any]) -> None:
    if not settings.get("keep", _KEPT) > 0:
        raise InvalidError("the setting keep must be a number of files of at least 1", where=f"keep {settings['keep']}")


async def _heads(job: JobContextBase) -> JobResult:
    """Compare with the newest heads in the folder. If that is fine, write new ones; if not, nothing: until somebody
    has looked at it, every run fails."""
    handle, folder = job.store._handle, Path(job.settings["folder"])
    files: list[Path] = await BlockingCall(lambda: _files(folder))
    if files:
        heads = await load_heads(handle.engine, handle.tenant, files[-1])
        report = await verify(
            handle.engine, handle.tenant, level=VerifyLevel.STRUCTURE, heads=heads, progress=job.progress
        )
        if not report.ok:
            found = "; ".join(f"{each.thread}: {each.message}" for each in report.findings[:_LISTED])
            return JobResult(f"the store is not what {files[-1].name} says: {found}", ok=False)
    new = await export_heads(handle.engine, handle.tenant)
    # Names are in order, also if a clock is set back: then the last one has a longer name.
    name = f"heads-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.json"
    if files and name <= files[-1].name:
        name = f"{files[-1].stem}1.json"
    kept = job.settings.get("keep", _KEPT)
    await BlockingCall(lambda: _write(new.save, folder / name, [*files, folder / name][:-kept]))
    compared = f"compared with {files[-1].name}; " if files else ""
    return JobResult(f"{compared}heads of {len(new.threads)} threads and other lines are in {name}")


def _files(folder: Path) -> list[Path]:
    _create(folder)
    return sorted(folder.glob("heads-*.json"), key=lambda path: path.stem)


def _write(save: Any, path: Path, old: list[Path]) -> None:
    try:
        save(path)
        for each in old:
            each.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"heads cannot be written: {error.strerror}", where=str(path)) from error


HEADS_JOB = declare(
    "heads",
    "compare the store with its last exported heads, and export new ones",
    _heads,
    {
        "folder": Setting(str, "the directory for the files, on another disk or computer", required=True),
        "keep": Setting(int, f"how many files are kept: {_KEPT}"),
    },
    _check_keep,
)
