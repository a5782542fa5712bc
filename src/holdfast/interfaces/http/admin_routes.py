"""Operations of the API for the store's owner: jobs, schemas, keys, erasure, backups."""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.store_reads import to_job, to_run
from holdfast.interfaces.http.thread_reads import fields_of
from holdfast.security import Certificate
from holdfast.store import BackupInfo, Backups, Store

ADMIN = RouteTable()


# Jobs -------------------------------------------------------------------------------------------------------------


@ADMIN.get("/jobs/{name}")
def get_job(call: Call, params: inputs.NameParams) -> models.JobModel:
    """Describe a job, with its last runs."""
    return to_job(call.owned.jobs.get(params.name))


@ADMIN.post("/jobs/{name}/runs")
def run_job(call: Call, params: inputs.NameParams) -> models.JobRunModel:
    """Run a job now, and wait for its end."""
    return to_run(call.owned.jobs.run(params.name))


@ADMIN.put("/jobs/{name}/pause")
def pause_job(call: Call, params: inputs.NameParams) -> models.JobModel:
    """Pause a job."""
    return to_job(call.owned.jobs.pause(params.name))


@ADMIN.delete("/jobs/{name}/pause")
def resume_job(call: Call, params: inputs.NameParams) -> models.JobModel:
    """Let a paused job run again."""
    return to_job(call.owned.jobs.resume(params.name))


# Schemas and migrations -------------------------------------------------------------------------------------------


@ADMIN.get("/schemas")
def list_schemas(call: Call, params: inputs.NoParams) -> admin_models.SchemaListModel:  # noqa: ARG001
    """List the schemas of the store, with the states of each version, and the migrations that were applied."""
    schemas = call.owned.schemas
    registered = schemas.registered()
    items = [
        admin_models.SchemaModel(
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
    return admin_models.SchemaListModel(items=items, migrations=sorted(registered.fingerprints))


# Keys and erasure -------------------------------------------------------------------------------------------------


@ADMIN.get("/keys")
def list_keys(call: Call, params: inputs.NoParams) -> admin_models.KeyListModel:  # noqa: ARG001
    """List the keys of an encrypted store, without the keys themselves."""
    return admin_models.KeyListModel(items=[_key(each) for each in call.owned.keys.list()])


@ADMIN.post("/keys/rotations")
def rotate_keys(call: Call, params: inputs.NoParams) -> admin_models.KeyModel:  # noqa: ARG001
    """Start to use a new key; what is stored is encrypted with it by the job `reencrypt`."""
    call.require_confirmation()
    return _key(call.owned.keys.rotate())


def _key(info: Any) -> admin_models.KeyModel:
    return admin_models.KeyModel(**fields_of(admin_models.KeyModel, info))


@ADMIN.get("/erasures")
def list_erasures(call: Call, params: inputs.NoParams) -> admin_models.CertificateListModel:  # noqa: ARG001
    """List the certificates of all erasures, the oldest first."""
    return admin_models.CertificateListModel(items=[_certificate(each) for each in call.owned.erasure.certificates()])


@ADMIN.post("/erasures", status=200)
def erase(call: Call, params: inputs.NoParams, body: inputs.ErasureRequest) -> admin_models.ErasureReportModel:  # noqa: ARG001
    """Erase everything of one person, or, with `dry_run`, say what would be erased."""
    if not body.dry_run and body.confirm != body.subject:
        raise InvalidError("a person's data is erased only if confirm repeats the name")
    if not body.dry_run:
        call.require_confirmation()
    done = call.owned.erasure.erase(body.subject, dry_run=body.dry_run)
    certificate = None if done.certificate is None else _certificate(done.certificate)
    lists = {"names": list(done.names), "held": list(done.held)}
    return admin_models.ErasureReportModel(
        **fields_of(admin_models.ErasureReportModel, done, certificate=certificate, **lists)
    )


def _certificate(certificate: Certificate) -> admin_models.CertificateModel:
    lists = {"retained": list(certificate.retained), "unreachable": list(certificate.unreachable)}
    return admin_models.CertificateModel(**fields_of(admin_models.CertificateModel, certificate, **lists))


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
def list_backups(call: Call, params: inputs.NoParams) -> admin_models.RepositoryListModel:  # noqa: ARG001
    """List the backups in the repositories that jobs of the store use."""
    items = []
    for repository, jobs in _repositories(call.owned).items():
        problem, found, span = "", [], None
        try:
            backups = call.owned.backups(repository, keys=jobs[0][1].get("keys"))
            found, span = [_backup(each) for each in backups.list()], backups.covered()
        except HoldfastError as error:
            problem = error.what
        names = [job for job, _ in jobs]
        first, last = (None, None) if span is None else span
        items.append(
            admin_models.RepositoryModel(
                name=names[0], jobs=names, items=found, covered_from=first, covered_until=last, problem=problem
            )
        )
    return admin_models.RepositoryListModel(items=items)


def _backup(backup: BackupInfo) -> admin_models.BackupModel:
    return admin_models.BackupModel(**fields_of(admin_models.BackupModel, backup, damaged=list(backup.damaged)))


@ADMIN.post("/backups/{name}")
def create_backup(call: Call, params: inputs.NameParams, body: inputs.BackupRequest) -> admin_models.BackupModel:
    """Make a backup in the repository of a job."""
    return _backup(_backups(call, params.name).create(reason=body.reason))


@ADMIN.get("/backups/{name}/verification")
def verify_backups(call: Call, params: inputs.RepositoryParams) -> admin_models.RepositoryReportModel:
    """Check that all objects of a repository are as they were written."""
    report = _backups(call, params.name).verify(level=params.level)
    findings = [
        admin_models.BackupFindingModel(**fields_of(admin_models.BackupFindingModel, each)) for each in report.findings
    ]
    return admin_models.RepositoryReportModel(
        **fields_of(admin_models.RepositoryReportModel, report, findings=findings)
    )


@ADMIN.post("/backups/{name}/drills")
def run_drill(call: Call, params: inputs.NameParams) -> admin_models.DrillModel:
    """Restore the newest backup aside, and a moment before it, and verify them."""
    report = _backups(call, params.name).drill()
    return admin_models.DrillModel(**fields_of(admin_models.DrillModel, report, findings=list(report.findings)))


@ADMIN.post("/backups/{name}/repairs")
def repair_backups(call: Call, params: inputs.NameParams) -> admin_models.BackupRepairModel:
    """Repair a repository: rebuild what is damaged, drop what is lost, and list it."""
    report = _backups(call, params.name).repair()
    lost = [admin_models.LostDataModel(**fields_of(admin_models.LostDataModel, each)) for each in report.lost]
    return admin_models.BackupRepairModel(
        **fields_of(admin_models.BackupRepairModel, report, rebuilt=list(report.rebuilt), lost=lost)
    )
