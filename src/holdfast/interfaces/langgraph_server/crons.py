"""Crons: runs by the clock that a client asked for.

A cron is a job of the store, whose runner submits a run each time that it is due, as the client would. What the client
asked for is the record of a thread of its own, which is the caller's: so a cron is owned, shared, encrypted, backed up
and erased as threads are. The job has its schedule, and leads to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4, uuid5

import msgspec

from holdfast._structs import convert
from holdfast.agents.runs.parts import RunReader
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.http.routes import Input, Route, RouteTable, input_type, names_in
from holdfast.interfaces.http.service import Caller, Service, ServiceOptions
from holdfast.interfaces.langgraph_server.assistants import (
    Limit,
    Object,
    Offset,
    Order,
    find_assistant,
    has_entries,
    page_of,
)
from holdfast.interfaces.langgraph_server.graphs import ServedGraphs
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.runs import Nodes, RunRequest, new_thread, parse_modes, refuse, submit
from holdfast.interfaces.langgraph_server.threads import CRON_THREADS, require
from holdfast.maintenance.jobs.builtin import CLIENT_RUN
from holdfast.maintenance.jobs.job import Job, parse_schedule
from holdfast.maintenance.jobs.types import JobContextBase, JobResult

CRONS = RouteTable()

_RECORD = "client:cron"
"""The namespace of the record."""

_FIELDS = 5
_MAX_CRONS = 1000
"""How many crons a caller may have."""

SortedBy = Literal["cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"]

_OF_RUNS = frozenset(RunRequest.__struct_fields__)


class _Cron(msgspec.Struct, kw_only=True):
    """A cron as it is stored."""

    assistant_id: str
    graph_id: str
    """For runners that serve no graphs."""
    schedule: str
    created_at: str
    payload: Object
    """The request for each run."""
    thread_id: str | None = None
    timezone: str | None = None
    end_time: str | None = None
    on_run_completed: Literal["delete", "keep"] | None = None
    metadata: Object = {}

    @property
    def end(self) -> datetime | None:
        """Until when it runs."""
        if self.end_time is None:
            return None
        end = datetime.fromisoformat(self.end_time)
        return end if end.tzinfo is not None else end.replace(tzinfo=UTC)

    @property
    def job_schedule(self) -> str:
        """The schedule of its job. `InvalidError` if it is none of cron."""
        fields = self.schedule.split()
        if len(fields) != _FIELDS or not (fields[0][0].isdigit() or fields[0][0] == "*"):
            raise InvalidError("a schedule has the five fields of cron", where=repr(self.schedule)[:80])
        return str(parse_schedule(" ".join([*fields, *([self.timezone] if self.timezone else [])])))


class _CronFields(Input, kw_only=True):
    """What a client says of the runs of a cron, when it makes or changes it."""

    timezone: str | None = None
    on_run_completed: Literal["delete", "keep"] | None = None
    input: Any = None
    config: Object | None = None
    context: Object | None = None
    metadata: Object | None = None
    interrupt_before: Nodes = None
    interrupt_after: Nodes = None
    webhook: str | None = None
    stream_mode: str | list[str] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    durability: Literal["sync", "async", "exit"] | None = None


class _CronRequest(_CronFields, kw_only=True):
    """What a client sends to have a graph run by the clock."""

    schedule: str
    assistant_id: str
    end_time: str | None = None
    enabled: bool = True
    checkpoint_during: bool | None = None
    multitask_strategy: Literal["reject", "interrupt", "rollback", "enqueue"] | None = None


def _payload(given: Mapping[str, Any]) -> Object:
    return {name: value for name, value in given.items() if name in _OF_RUNS and value is not None}


def _checked(call: ClientCall, cron: _Cron) -> RunRequest:
    """Return the request for a run. An error says what is wrong with it, before it is due."""
    request = convert(cron.payload, RunRequest)
    refuse(call, request)
    parse_modes(request.stream_mode)
    try:
        cron.end  # noqa: B018 - it is parsed
    except ValueError:
        raise InvalidError("end_time is no time in ISO's format", where=repr(cron.end_time)[:80]) from None
    return request


# Stored -----------------------------------------------------------------------------------------------------------


def _line(call: ClientCall, id: str) -> Any:
    return call.store.thread(thread_name(f"{CRON_THREADS}{_uuid(id)}", _RECORD))


def _uuid(id: str) -> str:
    try:
        return str(UUID(id))
    except ValueError:
        raise _missing(id) from None


def _missing(id: str) -> NotFoundError:
    return NotFoundError("there is no such cron", where=repr(id)[:80])


def _find(call: ClientCall, id: str) -> tuple[_Cron, datetime]:
    """Return a cron, and when it was changed. `NotFoundError` if there is none that the caller may read."""
    try:
        found = _line(call, id).get()
    except NotFoundError:
        raise _missing(id) from None
    return convert(found.state, _Cron), found.time


def _describe(id: str, cron: _Cron, changed: datetime, job: Job | None) -> Object:
    due = None if job is None else job.due
    return {
        "cron_id": id,
        "assistant_id": cron.assistant_id,
        "thread_id": cron.thread_id,
        "on_run_completed": cron.on_run_completed,
        "end_time": None if cron.end is None else cron.end.isoformat(),
        "schedule": cron.schedule,
        "timezone": cron.timezone,
        "created_at": cron.created_at,
        "updated_at": changed.isoformat(),
        "payload": cron.payload,
        "user_id": None if job is None else job.settings["identity"] or None,
        "next_run_date": None if due is None or (cron.end is not None and due > cron.end) else due.isoformat(),
        "metadata": cron.metadata,
        "enabled": job is not None and not job.paused,
        "now": datetime.now(UTC).isoformat(),
    }


def _job(call: ClientCall, id: str) -> Job | None:
    with suppress(NotFoundError):
        return call.service.store.jobs.get(f"{CRON_THREADS}{id}")
    return None


def _schedule(call: ClientCall, id: str, cron: _Cron, before: Job | None, *, enabled: bool) -> Job:
    """Store the job of a cron, which submits runs for whoever made it."""
    identity = call.caller.identity if before is None else before.settings["identity"]
    name, settings, paused = f"{CRON_THREADS}{id}", {"identity": identity}, not enabled
    jobs = call.service.store.jobs
    return jobs.add(name, CLIENT_RUN, schedule=cron.job_schedule, settings=settings, paused=paused, replace=True)


def _remove(call: ClientCall, id: str) -> None:
    call.store.thread(f"{CRON_THREADS}{id}").delete()
    call.service.store.jobs.remove(f"{CRON_THREADS}{id}")


def _ids(call: ClientCall) -> Iterator[str]:
    """Yield the ids of crons that the caller may read."""
    cursor = None
    while True:
        page = call.store.threads(prefix=CRON_THREADS, limit=200, cursor=cursor)
        for each in page:
            root, namespace = split_name(each.thread)
            if namespace == _RECORD:
                yield root.removeprefix(CRON_THREADS)
        if (cursor := page.next) is None:
            return


# Operations -------------------------------------------------------------------------------------------------------


def _add(path: str, function: Any) -> None:
    params = input_type(function.__name__, "Params", [(name, str) for name in names_in(path)])
    CRONS.routes.append(
        Route("POST", path, function.__name__, function.__doc__, function, params, _CronRequest, Any, 200, True)
    )


def create_cron(call: ClientCall, thread_id: str | None = None, **given: Any) -> Any:
    """Have a graph run by the clock."""
    request = _CronRequest(**given)
    if thread_id is not None:
        if request.on_run_completed is not None:
            raise InvalidError("the thread of a cron stays: on_run_completed is for crons without a thread")
        require(call, thread_id)
    assistant = find_assistant(call, request.assistant_id)
    cron = _Cron(
        assistant_id=assistant["assistant_id"],
        graph_id=assistant["graph_id"],
        schedule=request.schedule,
        created_at=datetime.now(UTC).isoformat(),
        payload={**_payload(given), "assistant_id": assistant["assistant_id"]},
        thread_id=thread_id,
        timezone=request.timezone,
        end_time=request.end_time,
        on_run_completed=None if thread_id is not None else request.on_run_completed or "delete",
        metadata=request.metadata or {},
    )
    _checked(call, cron)
    cron.job_schedule  # noqa: B018 - it is checked
    if sum(1 for _ in _ids(call)) >= _MAX_CRONS:
        raise InvalidError(f"there are {_MAX_CRONS:,} crons already", hint="Delete some")
    id = str(uuid4())
    _line(call, id).put(msgspec.to_builtins(cron), parent="", on_conflict="raise", kind="client")
    RunReader(call.service.store).ensure_thread(f"{CRON_THREADS}{id}")
    job = _schedule(call, id, cron, None, enabled=request.enabled)
    return _describe(id, *_find(call, id), job)


_add("/runs/crons", create_cron)
_add("/threads/{thread_id}/runs/crons", create_cron)


class _CronUpdate(_CronFields, kw_only=True):
    """What a client changes of a cron. Only an `end_time` of null says something: there is none any more."""

    schedule: str | None = None
    end_time: str | msgspec.UnsetType | None = msgspec.UNSET
    enabled: bool | None = None


def update_cron(call: ClientCall, cron_id: str, **given: Any) -> Any:
    """Change what a cron does, or when."""
    before, _ = _find(call, cron_id)
    id, job = _uuid(cron_id), _job(call, cron_id)
    if before.thread_id is not None and given["on_run_completed"] is not None:
        raise InvalidError("the thread of a cron stays: on_run_completed is for crons without a thread")
    own = ("schedule", "timezone", "on_run_completed", "metadata")
    fields = {name: given[name] for name in own if given[name] is not None}
    if given["end_time"] is not msgspec.UNSET:
        fields["end_time"] = given["end_time"]
    cron = msgspec.structs.replace(before, payload={**before.payload, **_payload(given)}, **fields)
    _checked(call, cron)
    cron.job_schedule  # noqa: B018 - it is checked
    _line(call, id).put(msgspec.to_builtins(cron), kind="client")
    enabled = (job is not None and not job.paused) if given["enabled"] is None else given["enabled"]
    if job is None or job.schedule != cron.job_schedule or job.paused == enabled:
        job = _schedule(call, id, cron, job, enabled=enabled)
    return _describe(id, *_find(call, id), job)


CRONS.routes.append(
    Route(
        "PATCH",
        "/runs/crons/{cron_id}",
        "update_cron",
        "Change what a cron does, or when.",
        update_cron,
        input_type("update_cron", "Params", [("cron_id", str)]),
        _CronUpdate,
        Any,
        200,
        True,
    )
)


@CRONS.delete("/runs/crons/{cron_id}")
def delete_cron(call: ClientCall, cron_id: str) -> Any:
    """Delete a cron. Runs that it submitted stay."""
    _find(call, cron_id)
    _remove(call, _uuid(cron_id))
    return {}


def _matching(
    call: ClientCall, assistant: str | None, thread: str | None, enabled: bool | None, metadata: Object | None
) -> Iterator[Object]:
    wanted = None if assistant is None else find_assistant(call, assistant)["assistant_id"]
    jobs = {each.name: each for each in call.service.store.jobs.list() if each.kind == CLIENT_RUN}
    for id in _ids(call):
        try:
            cron, changed = _find(call, id)
        except NotFoundError:
            continue  # it was deleted meanwhile
        found = _describe(id, cron, changed, jobs.get(f"{CRON_THREADS}{id}"))
        if (
            wanted in (None, cron.assistant_id)
            and thread in (None, cron.thread_id)
            and enabled in (None, found["enabled"])
            and has_entries(cron.metadata, metadata)
        ):
            yield found


@CRONS.post("/runs/crons/search", status=200, reads=True)
def search_crons(
    call: ClientCall,
    *,
    assistant_id: str | None = None,
    thread_id: str | None = None,
    enabled: bool | None = None,
    metadata: Object | None = None,
    limit: Limit = 10,
    offset: Offset = 0,
    sort_by: SortedBy = "created_at",
    sort_order: Order = "desc",
    select: list[str] | None = None,
) -> Any:
    """List crons."""
    found = list(_matching(call, assistant_id, thread_id, enabled, metadata))
    found.sort(key=lambda each: (each[sort_by] or "", each["cron_id"]), reverse=sort_order == "desc")
    return page_of(found, limit, offset, select)


@CRONS.post("/runs/crons/count", status=200, reads=True)
def count_crons(
    call: ClientCall, *, assistant_id: str | None = None, thread_id: str | None = None, metadata: Object | None = None
) -> Any:
    """Count them likewise."""
    return sum(1 for _ in _matching(call, assistant_id, thread_id, None, metadata))


# When it is due ---------------------------------------------------------------------------------------------------


def run_cron(job: JobContextBase) -> JobResult:
    """Submit a run of a cron: what a job of the type `client-run` does. A runner that is killed submits none twice."""
    store: Any = job.store
    id, now = job.name.removeprefix(CRON_THREADS), time.time_ns()
    # Its webhook was checked when the client named it, and is again when it is called.
    service = Service(store, ServiceOptions(write=True, private_webhooks=True))
    caller = Caller(job.settings.get("identity", ""))
    try:
        cron, _ = _find(ClientCall(service, caller, ServedGraphs({})), id)
    except NotFoundError:  # it was deleted, or erased with the data of whoever made it
        store.jobs.remove(job.name)
        return JobResult("there is no such cron any more: the job is removed")
    if cron.end is not None and cron.end.timestamp() * 1e9 <= (job.due_ns or now):
        store.jobs.pause(job.name)
        return JobResult("the end of the cron has come: the job is paused")
    call = ClientCall(service, caller, ServedGraphs({}, cron.graph_id))
    is_due = 0 < job.due_ns <= now
    moment = job.due_ns if is_due else now
    thread = cron.thread_id or new_thread(str(uuid5(UUID(id), str(moment))), cron.on_run_completed)
    request = convert(cron.payload, RunRequest)
    if cron.thread_id is None:
        request.if_not_exists = "create"
    else:
        try:
            require(call, thread)
        except NotFoundError:
            _remove(call, id)
            return JobResult("its thread was deleted: the cron is, too")
    try:
        run = submit(call, thread, request, streams=request.stream_mode is not None, key=f"{job.name} {moment}")
    except ConflictError as error:
        if error.code != "under-way":
            raise
        return JobResult("no run: the thread is busy, and the cron rejects to wait")
    return JobResult(f"run {run.id}")
