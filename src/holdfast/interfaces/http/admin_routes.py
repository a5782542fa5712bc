"""Operations of the API on the store as a whole: its status, the doctor, pruning, schemas, erasure, backups."""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple, replace

from holdfast.engine.types import StoreStatus
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import open_thread
from holdfast.maintenance.backup.checker import RepositoryReport
from holdfast.maintenance.backup.drill import DrillReport
from holdfast.maintenance.backup.repository_repairer import BackupRepairReport
from holdfast.maintenance.erasure.eraser import ErasureReport
from holdfast.maintenance.pruner import PruneReport
from holdfast.store.backup_records import BackupInfo
from holdfast.store.backups import Backups
from holdfast.store.store import Store

ADMIN = RouteTable()


# The store and its threads ----------------------------------------------------------------------------------------


@ADMIN.get("")
def get_service(call: Call) -> models.ServiceInfoModel:
    """Describe the server, the store that it serves, and who asks."""
    return call.info()


@ADMIN.get("/status")
def get_status(call: Call, *, exact: bool = False) -> StoreStatus:
    """Return the status of the store: its size, its threads, agents and scopes, and how its backend is."""
    return replace(call.owned.status(exact=exact), url=call.info().store)


@ADMIN.post("/prunes", status=200)
def prune(
    call: Call,
    *,
    threads: list[str],
    keep_last: int | None = None,
    keep_within: str | None = None,
    dry_run: bool = True,
) -> PruneReport:
    """Remove old checkpoints of some threads, or, with `dry_run`, say what would be removed."""
    rules = {"keep_last": keep_last, "keep_within": keep_within}
    given = {name: value for name, value in rules.items() if value is not None}
    if not given or not threads:
        raise InvalidError("pruning needs threads, and a rule: keep_last or keep_within")
    return call.owned.maintenance.prune(threads, dry_run=dry_run, **given)  # type: ignore[arg-type]


@ADMIN.delete("/threads/{thread}")
def delete_thread(call: Call, thread: str, *, confirm: str) -> models.DoneModel:
    """Delete a thread with everything that belongs to it; `confirm` repeats its name."""
    if confirm != thread:
        raise InvalidError("a thread is deleted only if confirm repeats its name")
    return models.DoneModel(ids=[thread] if open_thread(call, thread).delete() else [])


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


# Erasure -------------------------------------------------------------------------------------------------


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
        first, last = (None, None) if span is None else astuple(span)
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
