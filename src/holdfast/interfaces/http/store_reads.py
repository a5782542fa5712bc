"""Operations of the API that read the rest of a store: scopes, sessions, artifacts, agents, jobs, the audit."""

from __future__ import annotations

from holdfast.interfaces.cli.json_output import plain
from holdfast.interfaces.http import inputs, models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import fields_of
from holdfast.interfaces.http.values import small_json
from holdfast.jobs import Job, JobRun
from holdfast.store import Alert

STORE = RouteTable()


@STORE.get("")
def get_service(call: Call, params: inputs.NoParams) -> models.ServiceInfoModel:  # noqa: ARG001
    """Describe the server, the store that it serves, and who asks."""
    return call.info()


@STORE.get("/stats")
def get_stats(call: Call, params: inputs.StatsParams) -> models.StatsModel:
    """Count: the size of the store, and its threads, agents and scopes."""
    return models.StatsModel(
        **fields_of(models.StatsModel, call.owned.stats(exact=params.exact), url=call.info().store)
    )


@STORE.get("/scopes")
def list_scopes(call: Call, params: inputs.ScopesParams) -> models.PageModel[models.ScopeModel]:
    """List the scopes that have state, or had some."""
    page = call.store.scopes(params.prefix, pattern=params.pattern, limit=params.limit, cursor=params.cursor)
    items = [models.ScopeModel(**fields_of(models.ScopeModel, each, scope=str(each.scope))) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/scopes/{scope}/items")
def list_items(call: Call, params: inputs.ScopeItemsParams) -> models.PageModel[models.StateItemModel]:
    """List the keys of a scope with their values. The global scope is named `global`."""
    scope = "" if params.scope == "global" else params.scope
    page = call.store.state(scope).list_items(params.prefix, limit=params.limit, cursor=params.cursor)
    items = [
        models.StateItemModel(**fields_of(models.StateItemModel, each, value=small_json(each.value))) for each in page
    ]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/scopes/{scope}/keys/{key}/history")
def get_key_history(call: Call, params: inputs.KeyHistoryParams) -> models.PageModel[models.KeyChangeModel]:
    """List the changes of a key of a scope, the latest first."""
    scope = "" if params.scope == "global" else params.scope
    page = call.store.state(scope).history(params.key, limit=params.limit, cursor=params.cursor)
    items = [models.KeyChangeModel(**fields_of(models.KeyChangeModel, each)) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/sessions")
def list_sessions(call: Call, params: inputs.PageParams) -> models.PageModel[models.SessionModel]:
    """List sessions in the order of their ids."""
    page = call.store.sessions.list(limit=params.limit, cursor=params.cursor)
    items = [models.SessionModel(**fields_of(models.SessionModel, each, scope=str(each.scope))) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/artifacts")
def list_artifacts(call: Call, params: inputs.ArtifactsParams) -> models.PageModel[models.ArtifactModel]:
    """List artifacts in the order of their ids."""
    page = call.store.artifacts.list(
        type=params.type, producer=params.producer, limit=params.limit, cursor=params.cursor
    )
    items = [models.ArtifactModel(**fields_of(models.ArtifactModel, each)) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/agents")
def list_agents(call: Call, params: inputs.AgentsParams) -> models.PageModel[models.AgentModel]:
    """List agents in the order of their ids."""
    page = call.store.agents.list(
        prefix=params.prefix, status=params.status, state=params.state, limit=params.limit, cursor=params.cursor
    )
    items = [models.AgentModel(**fields_of(models.AgentModel, each)) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/agents/{id}/transitions")
def list_transitions(call: Call, params: inputs.AgentParams) -> models.PageModel[models.TransitionModel]:
    """List the transitions of an agent, the latest first."""
    page = call.store.agents.transitions(params.id, limit=params.limit, cursor=params.cursor)
    items = [models.TransitionModel(**fields_of(models.TransitionModel, each)) for each in page]
    return models.PageModel(items=items, next=page.next)


@STORE.get("/jobs")
def list_jobs(call: Call, params: inputs.NoParams) -> models.JobListModel:  # noqa: ARG001
    """List the jobs of the store with their last runs."""
    return models.JobListModel(items=[to_job(each) for each in call.owned.jobs.list()])


def to_job(job: Job) -> models.JobModel:
    """Return a job as a response."""
    return models.JobModel(**fields_of(models.JobModel, job, runs=[to_run(each) for each in job.runs]))


def to_run(run: JobRun) -> models.JobRunModel:
    """Return a run of a job as a response."""
    return models.JobRunModel(
        started=run.started, ended=run.ended, outcome=run.outcome, message=run.error or run.summary
    )


@STORE.get("/doctor")
def run_doctor(call: Call, params: inputs.DoctorParams) -> models.DoctorModel:
    """Check the store, and say how to fix what is wrong."""
    checks = call.owned.maintenance.doctor(full=params.full)
    items = [
        models.CheckModel(code=each.code, level=each.level.value, found=each.found, remedy=each.remedy)
        for each in checks
    ]
    return models.DoctorModel(ok=all(each.ok for each in checks), items=items)


@STORE.get("/alerts")
def list_alerts(call: Call, params: inputs.NoParams) -> models.AlertListModel:  # noqa: ARG001
    """List the alerts of all rules with their states."""
    return models.AlertListModel(items=[_alert(each) for each in call.owned.alerts.list()])


@STORE.put("/alerts/{rule}/silence")
def silence_alert(call: Call, params: inputs.AlertParams, body: inputs.SilenceRequest) -> models.AlertModel:
    """Send nothing about a rule for a time."""
    return _alert(call.owned.alerts.silence(params.rule, body.duration))


def _alert(alert: Alert) -> models.AlertModel:
    return models.AlertModel(**fields_of(models.AlertModel, alert))


@STORE.get("/verify")
def verify(call: Call, params: inputs.VerifyParams) -> models.VerifyReportModel:
    """Check that a thread, or everything, is as it was written: so many lines at a time."""
    report = call.owned.maintenance.verify(
        params.thread, level=params.level, after=params.after, limit=max(1, min(params.limit, 10_000))
    )
    findings = [
        models.FindingModel(code=each.code.value, message=each.message, thread=each.thread, checkpoint=each.checkpoint)
        for each in report.findings
    ]
    return models.VerifyReportModel(**fields_of(models.VerifyReportModel, report, findings=findings))


@STORE.get("/audit")
def query_audit(call: Call, params: inputs.AuditParams) -> models.PageModel[models.AuditRecordModel]:
    """List the records of the audit, the latest first."""
    page = call.owned.audit.query(
        actor=params.actor,
        scope=params.scope,
        thread=params.thread,
        kind=params.kind,
        action=params.action,
        outcome=params.outcome,
        since=params.since,
        until=params.until,
        limit=params.limit,
        cursor=params.cursor,
    )
    items = [
        models.AuditRecordModel(**fields_of(models.AuditRecordModel, each, detail=plain(dict(each.detail))))
        for each in page
    ]
    return models.PageModel(items=items, next=page.next)
