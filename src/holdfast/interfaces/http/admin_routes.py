"""Operations of the API for the store's owner: jobs, schemas, keys, erasure, backups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.erasure import Certificate
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.jobs import Job, JobRun
from holdfast.maintenance import BackupRepairReport, DrillReport, ErasureReport, KeyInfo, RepositoryReport
from holdfast.store import BackupInfo, Backups, Store

ADMIN = RouteTable()


# Jobs -------------------------------------------------------------------------------------------------------------


@ADMIN.get("/jobs/{name}")
def get_job(call: Call, name: str) -> Job:
    """Describe a job, with its last runs."""
    return call.owned.jobs.get(name)


@ADMIN.post("/jobs/{name}/runs")
def run_job(call: Call, name: str) -> JobRun:
    """Run a job now, and wait for its end."""
    return call.owned.jobs.run(name)


@ADMIN.put("/jobs/{name}/pause")
def pause_job(call: Call, name: str) -> Job:
    """Pause a job."""
    return call.owned.jobs.pause(name)


@ADMIN.delete("/jobs/{name}/pause")
def resume_job(call: Call, name: str) -> Job:
    """Let a paused job run again."""
    return call.owned.jobs.resume(name)


# Schemas and migrations -------------------------------------------------------------------------------------------


@ADMIN.get("/schemas")
def list_schemas(call: Call) -> models.SchemaListModel:
    """List the schemas of the store, with the states of each version, and the migrations that were applied."""
    schemas = call.owned.schemas
    registered = schemas.registered()
    items = [
        models.SchemaModel(
            name=each.name,
            current=each.current,
            pinned=each.pinned,
            states=each.states,
            versions=[str(schema.version) for schema in registered.schemas if schema.name == each.name],
            threads=list(registered.records[each.name].patterns) if each.name in registered.records else [],
            places=list(registered.records[each.name].places) if each.name in registered.records else [],
        )
        for each in schemas.status()
    ]
    return models.SchemaListModel(items=items, migrations=sorted(registered.fingerprints))


# Keys and erasure -------------------------------------------------------------------------------------------------


@ADMIN.get("/keys")
def list_keys(call: Call) -> list[KeyInfo]:
    """List the keys of an encrypted store, without the keys themselves."""
    return call.owned.keys.list()


@ADMIN.post("/keys/rotations")
def rotate_keys(call: Call) -> KeyInfo:
    """Start to use a new key; what is stored is encrypted with it by the job `reencrypt`."""
    call.require_confirmation()
    return call.owned.keys.rotate()


@ADMIN.get("/erasures")
def list_erasures(call: Call) -> Sequence[Certificate]:
    """List the certificates of all erasures, the oldest first."""
    return call.owned.erasure.certificates()


@ADMIN.post("/erasures", status=200)
def erase(call: Call, *, subject: str, dry_run: bool = True, confirm: str = "") -> ErasureReport:
    """Erase everything of one person, or, with `dry_run`, say what would be erased."""
    if not dry_run and confirm != subject:
        raise InvalidError("a person's data is erased only if confirm repeats the name")
    if not dry_run:
        call.require_confirmation()
    return call.owned.erasure.erase(subject, dry_run=dry_run)


# Backups and drills -----------------------------------------------------------------------------------------------


def _repositories(store: Store) -> dict[str, list[tuple[str, Any]]]:
    """Return the repositories that jobs of the store use, each with the names and settings of these jobs. A caller
    cannot name any other: the server would open it."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for job in store.jobs.list():
        repository = job.settings.get("repository")
        if isinstance(repository, str):
            found.setdefault(repository, []).append((job.name, job.settings))
    return found


def _backups(call: Call, name: str) -> Backups[Store]:
    store = call.owned
    for repository, jobs in _repositories(store).items():
        for job, settings in jobs:
            if job == name:
                return store.backups(repository, keys=settings.get("keys"))
    raise NotFoundError(f"no job {name[:80]!r} uses a repository", hint="See the list of backups")


@ADMIN.get("/backups")
def list_backups(call: Call) -> list[models.RepositoryModel]:
    """List the backups in the repositories that jobs of the store use."""
    items = []
    for repository, jobs in _repositories(call.owned).items():
        problem, found, span = "", list[BackupInfo](), None
        try:
            backups = call.owned.backups(repository, keys=jobs[0][1].get("keys"))
            found, span = list(backups.list()), backups.covered()
        except HoldfastError as error:
            problem = error.what
        names = [job for job, _ in jobs]
        first, last = (None, None) if span is None else span
        items.append(
            models.RepositoryModel(
                name=names[0], jobs=names, items=found, covered_from=first, covered_until=last, problem=problem
            )
        )
    return items


@ADMIN.post("/backups/{name}")
def create_backup(call: Call, name: str, *, reason: str = "") -> BackupInfo:
    """Make a backup in the repository of a job."""
    return _backups(call, name).create(reason=reason)


@ADMIN.get("/backups/{name}/verification")
def verify_backups(call: Call, name: str, *, level: str | None = None) -> RepositoryReport:
    """Check that all objects of a repository are as they were written."""
    return _backups(call, name).verify(level=level)


@ADMIN.post("/backups/{name}/drills")
def run_drill(call: Call, name: str) -> DrillReport:
    """Restore the newest backup aside, and a moment before it, and verify them."""
    return _backups(call, name).drill()


@ADMIN.post("/backups/{name}/repairs")
def repair_backups(call: Call, name: str) -> BackupRepairReport:
    """Repair a repository: rebuild what is damaged, drop what is lost, and list it."""
    return _backups(call, name).repair()
