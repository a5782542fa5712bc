"""The type of jobs that compares a store with its last heads, and exports new ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.backends.interface import BlockingCall
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.errors import ConfigError, InvalidError
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, Setting, declare
from holdfast.maintenance.verify.heads import export_heads, load_heads
from holdfast.maintenance.verify.verifier import verify

_KEPT = 30
_LISTED = 5


def _check(settings: Mapping[str, Any]) -> None:
    if not settings.get("keep", _KEPT) > 0:
        raise InvalidError("the setting keep is a number of files, 1 or more", where=f"keep {settings['keep']}")


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return sorted(folder.glob("heads-*.json"), key=lambda path: path.stem)
    except OSError as error:
        raise ConfigError(f"the folder for heads cannot be used: {error.strerror}", where=str(folder)) from error


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
    _check,
)
