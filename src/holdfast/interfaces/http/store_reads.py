"""Operations of the API that read the rest of a store: scopes, sessions, artifacts, agents, jobs, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.agents import AgentInfo, Status, TransitionRecord
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.jobs import Job
from holdfast.maintenance import VerifyReport
from holdfast.security import AuditRecord
from holdfast.state import Artifact, HistoryEntry, ScopeInfo, StateItem
from holdfast.store import Alert, Page, StoreStats

STORE = RouteTable()


@STORE.get("")
def get_service(call: Call) -> models.ServiceInfoModel:
    """Describe the server, the store that it serves, and who asks."""
    return call.info()


@STORE.get("/stats")
def get_stats(call: Call, *, exact: bool = False) -> StoreStats:
    """Count: the size of the store, and its threads, agents and scopes."""
    return call.owned.stats(exact=exact)._replace(url=call.info().store)


@STORE.get("/scopes")
def list_scopes(
    call: Call, *, prefix: str = "", pattern: str = "", limit: Limit = 100, cursor: str | None = None
) -> Page[ScopeInfo]:
    """List the scopes that have state, or had some."""
    return call.store.scopes(prefix, pattern=pattern, limit=limit, cursor=cursor)


@STORE.get("/scopes/{scope}/items")
def list_items(
    call: Call, scope: str, *, prefix: str = "", limit: Limit = 100, cursor: str | None = None
) -> Page[StateItem]:
    """List the keys of a scope with their values. The global scope is named `global`."""
    return call.state(scope).list_items(prefix, limit=limit, cursor=cursor)


@STORE.get("/scopes/{scope}/keys/{key}/history")
def get_key_history(
    call: Call, scope: str, key: str, *, limit: Limit = 100, cursor: str | None = None
) -> Page[HistoryEntry]:
    """List the changes of a key of a scope, the latest first."""
    return call.state(scope).history(key, limit=limit, cursor=cursor)


@STORE.get("/artifacts")
def list_artifacts(
    call: Call,
    *,
    type: str | None = None,
    producer: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Page[Artifact]:
    """List artifacts in the order of their ids."""
    return call.store.artifacts.list(type=type, producer=producer, limit=limit, cursor=cursor)


@STORE.get("/agents")
def list_agents(
    call: Call,
    *,
    prefix: str = "",
    status: Status | None = None,
    state: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Page[AgentInfo]:
    """List agents in the order of their ids."""
    return call.store.agents.list(prefix=prefix, status=status, state=state, limit=limit, cursor=cursor)


@STORE.get("/agents/{id}/transitions")
def list_transitions(call: Call, id: str, *, limit: Limit = 100, cursor: str | None = None) -> Page[TransitionRecord]:
    """List the transitions of an agent, the latest first."""
    return call.store.agents.transitions(id, limit=limit, cursor=cursor)


@STORE.get("/jobs")
def list_jobs(call: Call) -> list[Job]:
    """List the jobs of the store with their last runs."""
    return call.owned.jobs.list()


@STORE.get("/doctor")
def run_doctor(call: Call, *, full: bool = False) -> models.DoctorModel:
    """Check the store, and say how to fix what is wrong."""
    checks = list(call.owned.maintenance.doctor(full=full))
    return models.DoctorModel(ok=all(each.ok for each in checks), items=checks)


@STORE.get("/alerts")
def list_alerts(call: Call) -> Sequence[Alert]:
    """List the alerts of all rules with their states."""
    return call.owned.alerts.list()


@STORE.put("/alerts/{rule}/silence")
def silence_alert(call: Call, rule: str, *, duration: str) -> Alert:
    """Send nothing about a rule for a time, such as `2h`; `0` to send again."""
    return call.owned.alerts.silence(rule, duration)


@STORE.get("/verify")
def verify(
    call: Call,
    *,
    thread: str | None = None,
    level: Literal["structure", "hashes", "decode"] = "hashes",
    after: str = "",
    limit: int = 1000,
) -> VerifyReport:
    """Check that a thread, or everything, is as it was written: so many lines at a time."""
    return call.owned.maintenance.verify(thread, level=level, after=after, limit=max(1, min(limit, 10_000)))


@STORE.get("/audit")
def query_audit(
    call: Call,
    *,
    actor: str | None = None,
    scope: str | None = None,
    thread: str | None = None,
    kind: str = "",
    action: str = "",
    outcome: str = "",
    since: str | None = None,
    until: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Page[AuditRecord]:
    """List the records of the audit, the latest first."""
    return call.owned.audit.query(
        actor=actor,
        scope=scope,
        thread=thread,
        kind=kind,
        action=action,
        outcome=outcome,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )
