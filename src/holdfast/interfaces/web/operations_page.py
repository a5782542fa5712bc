"""The data of the pages for operators: schemas, backups, jobs, the audit and verification."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.action_plan import ActionField, ActionForm
from holdfast.interfaces.web.operation_form import Given, OperationForm, fill_form
from holdfast.interfaces.web.page_renderer import segment
from holdfast.interfaces.web.record_list import list_values
from holdfast.maintenance.jobs.job import FORMS, parse_schedule
from holdfast.schemas.documentation import describe_fields
from holdfast.store.backups import Backups
from holdfast.store.store import Store

_SHOWN = 200
_LEFT = ("same", "newer", "left out", "kept", "erased", "damaged")
"""What a restore does with lines that it leaves as they are."""

LEVELS = ("structure", "hashes", "decode")
AUDIT_KINDS = (
    *("change", "thread", "read", "denied", "access", "hook", "session", "artifact", "agent", "lifecycle"),
    *("transition", "transfer", "recovery"),
)

# Schemas ----------------------------------------------------------------------------------------------------------


class SchemaVersion(NamedTuple):
    """A version of a schema."""

    version: str
    reference: str
    hash: str
    current: bool
    retired: bool
    states: int | None


class SchemaCard(NamedTuple):
    """A schema in the registry of a store."""

    name: str
    pinned: bool
    patterns: tuple[str, ...]
    places: tuple[str, ...]
    versions: list[SchemaVersion]
    migrations: list[str]


def schema_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of schemas shows; with `count`, also how many latest states have each version."""
    store = call.owned
    registered = store.schemas.registered()
    counts: dict[str, dict[str, int]] = {}
    if params.get("count") == "1":
        counts = {each.name: each.states for each in store.schemas.status()}
    cards = []
    for name in sorted({each.name for each in registered.schemas}):
        record = registered.records.get(name)
        current = "" if record is None else str(record.current)
        versions = [
            SchemaVersion(
                str(each.version),
                each.schema_reference,
                each.hash,
                str(each.version) == current,
                each.schema_reference in registered.retired,
                counts[name].get(str(each.version), 0) if name in counts else None,
            )
            for each in registered.schemas
            if each.name == name
        ]
        cards.append(
            SchemaCard(
                name,
                record is not None and record.is_pinned,
                () if record is None else record.patterns,
                () if record is None else record.places,
                versions,
                [text for text in registered.fingerprints if text.split(" ")[0] == name or text.startswith(name)],
            )
        )
    return {"schemas": cards, "counted": bool(counts)}


def schema_values(call: Call, reference: str) -> dict[str, Any]:
    """Return what the page of a version of a schema shows: its fields, and what changed since the one before."""
    registered = call.owned.schemas.registered()
    found = registered.form(reference)
    if found is None:
        raise NotFoundError(f"the store has no schema {reference}", hint="List the schemas")
    older = [each for each in registered.schemas if each.name == found.name and each.version < found.version]
    compared = older[-1].compare(found) if older else None
    return {
        "schema": found,
        "fields": describe_fields(found),
        "before": older[-1] if older else None,
        "compared": compared,
    }


# Backups ----------------------------------------------------------------------------------------------------------


class Repository(NamedTuple):
    """A repository of backups that the store's jobs name."""

    name: str
    """The job that names it."""
    label: str
    target: str
    keys: str | None


def public_address(target: str) -> str:
    """Return the address of a repository without what may be secret: names, passwords and options."""
    scheme, colon, rest = target.partition("://")
    if not colon:
        return target
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def repositories(store: Store) -> Iterator[Repository]:
    """Yield the repositories that jobs of the store, or the environment of the server, name. There are no others: who
    looks at pages cannot make the server open an address."""
    seen = set()
    for job in store.jobs.list():
        target = job.settings.get("repository")
        if isinstance(target, str) and target not in seen:
            seen.add(target)
            keys = job.settings.get("keys")
            yield Repository(job.name, public_address(target), target, keys if isinstance(keys, str) else None)
    target = os.environ.get("HOLDFAST_BACKUPS", "")
    if target and target not in seen:
        yield Repository("environment", public_address(target), target, None)


def _open_repository(store: Store, found: Repository) -> Backups[Store]:
    return store.backups(found.target, keys=found.keys)


def backup_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of backups shows: those of one repository, the drills, and what a restore would change."""
    store = call.owned
    known = list(repositories(store))
    chosen = next((each for each in known if each.name == params.get("of")), known[0] if known else None)
    details = store.status().details
    values: dict[str, Any] = {
        "repositories": known,
        "chosen": chosen,
        "items": [],
        "covered": None,
        "problem": None,
        "last_backup": _moment(details.get("last_backup")),
        "last_drill": _moment(details.get("last_drill")),
        "drill_ok": str(details.get("last_drill", "")).endswith("OK"),
        "jobs": [each for each in call.owned.jobs.list() if each.kind in ("backup", "follow", "drill")],
        "backup": None,
        "restored": None,
        "lines": [],
    }
    if chosen is None:
        return values
    try:
        backups = _open_repository(store, chosen)
        items = list(backups.list())[-_SHOWN:][::-1]
        values |= {"items": items, "covered": backups.covered()}
        wanted = params.get("backup", "")
        if wanted:
            values |= _restore_values(backups, wanted, in_place=params.get("in_place") == "1")
    except HoldfastError as error:
        values["problem"] = to_problem(error)
    return values


def _moment(text: object) -> datetime | None:
    """Return the time that the status of a store names; None if there is none."""
    return datetime.fromisoformat(str(text).partition(",")[0]) if text else None


def _restore_values(backups: Backups[Store], wanted: str, *, in_place: bool) -> dict[str, Any]:
    """Return what a restore of a backup into this store would change. Nothing is changed."""
    backup, lines = backups.show(wanted)
    values: dict[str, Any] = {"backup": backup, "lines": list(lines)[:_SHOWN], "in_place": in_place}
    try:
        report = backups.restore(wanted, in_place=in_place, dry_run=True)
    except ConflictError as error:
        if in_place:
            return {**values, "refused": to_problem(error)}
        # Something has gone on since, as is usual: only a restore in place is possible, which keeps that.
        return {**_restore_values(backups, wanted, in_place=True), "gone_on": error.what}
    except HoldfastError as error:
        return {**values, "refused": to_problem(error)}
    actions: dict[str, int] = {}
    for line in report.lines:
        actions[line.action] = actions.get(line.action, 0) + 1
    changed = sorted(report.lines, key=lambda line: (line.action in _LEFT, line.kind, line.name))
    return {**values, "restored": report, "actions": actions, "changed": changed[:_SHOWN]}


# Jobs, audit, verification ----------------------------------------------------------------------------------------


def job_values(call: Call, name: str | None = None) -> dict[str, Any]:
    """Return what the page of jobs shows: all jobs, or the runs of one; and the alerts."""
    jobs = call.owned.jobs.list()
    if name is None:
        alerts = [each for each in call.owned.alerts.list() if each.state != "ok"]
        return {"jobs": jobs, "alerts": alerts, "job": None}
    job = next((each for each in jobs if each.name == name), None)
    if job is None:
        raise NotFoundError(f"there is no job {name}", hint="List the jobs")
    settings = call.owned.jobs.get(name).settings
    shown = {key: public_address(str(value)) if key == "repository" else value for key, value in settings.items()}
    return {
        "job": job,
        "settings": long_text(shown, 4000)[0] if shown else "",
        "jobs": jobs,
        "alerts": [],
        "changeable": call.service.may_write(call.caller),
    }


def schedule_values(call: Call, name: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form shows by which the schedule of a job is changed; and do it, if it was sent to be done."""
    job = call.owned.jobs.get(name)

    def arguments(given: Given) -> tuple[list[Any], dict[str, Any]]:
        if given["schedule"]:
            parse_schedule(given["schedule"])
        kept = {"settings": dict(job.settings)} if job.settings else {}
        paused = {"paused": True} if job.paused else {}
        return [name, job.kind], {"schedule": given["schedule"], **kept, **paused, "replace": True}

    chosen = OperationForm(
        f"Schedule {name}",
        "jobs.add",
        "Save",
        f"/jobs/{segment(name)}",
        [ActionField("schedule", "When it runs, empty for on demand", job.schedule, hint="every 6h, or 0 3 * * *")],
        "",
        arguments,
        lambda given: [f"It runs {given['schedule'] or 'only when somebody runs it'}.", f"A schedule is {FORMS}."],
        lambda given: [
            *("jobs", "add", name, job.kind, "--replace"),
            *(("--schedule", given["schedule"]) if given["schedule"] else ()),
        ],
    )
    filled = fill_form(call, chosen, form)
    return {"form": chosen, "filled": filled, "plan": filled.plan, "secret": "", "report": None}


def change_job(call: Call, name: str, change: str) -> None:
    """Pause, resume or run a job. The error of a run is on the page of the job."""
    call.require_write()
    jobs = call.owned.jobs
    if change == "pause":
        jobs.pause(name)
    elif change == "resume":
        jobs.resume(name)
    elif change == "run":
        started = max((each.started_ns for each in jobs.get(name).runs), default=0)
        try:
            jobs.run(name)
        except HoldfastError:
            if max((each.started_ns for each in jobs.get(name).runs), default=0) == started:
                raise
    else:
        raise NotFoundError("a job can only be paused, resumed or run")


AUDIT_FIELDS = ("actor", "thread", "scope", "key", "kind", "action", "outcome", "since")


def audit_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the audit shows."""
    return {**list_values(call.owned.audit.query, params, AUDIT_FIELDS), "kinds": AUDIT_KINDS}


def verify_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of verification shows: how to verify; and with `level`, the result."""
    level, thread, after = (params.get(name, "").strip() for name in ("level", "thread", "after"))
    store = call.owned
    values: dict[str, Any] = {"level": level or "hashes", "thread": thread, "levels": LEVELS, "problem": None}
    values |= {
        "report": None,
        "jobs": [job for job in call.owned.jobs.list() if job.kind == "verify"],
    }
    values["quarantined"] = len(store.maintenance.quarantine())
    if level not in LEVELS:
        return values
    try:
        found = call.owned.maintenance.verify(thread or None, level=level, after=after, limit=1000)
    except (InvalidError, NotFoundError) as error:
        return {**values, "problem": to_problem(error)}
    return {**values, "report": found}
