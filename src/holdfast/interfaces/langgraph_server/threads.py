"""Threads as LangGraph's clients see them: those of the store, with metadata of their own.

What a client gives to a thread as a whole is the state of a line in the thread's family, as those of subgraphs are: so
it is copied, backed up, encrypted, erased and deleted with the thread, and whoever may read the one may read the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, cast
from uuid import uuid4

import msgspec

from holdfast._structs import convert
from holdfast.agents.runs.parts import RunReader
from holdfast.agents.runs.record import QUEUED, RUNNING, Run
from holdfast.engine.model.scopes import MARK as STATE
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.types import Checkpoint
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.langgraph.client_runs import interrupt_json, to_command, to_json
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.interfaces.langgraph_server.assistants import (
    Limit,
    Object,
    Offset,
    Order,
    has_entries,
    page_of,
    remove_assistant,
)
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.shapes import state_json
from holdfast.maintenance.jobs.builtin import DELETE_STALE

THREADS = RouteTable()

RECORD = "client:record"
"""The namespace of what clients give to a thread as a whole. No subgraph has it: its part after the colon is an id."""

CRON_THREADS = "langgraph-cron-"
"""The start of the names of the threads that have the records of crons, and are none for clients."""

TEMPORARY = "temporary-"
"""The start of the names of threads of runs without one: they are deleted when the run is over."""

_CLIENT = "client"
"""The entry of a checkpoint's metadata that has a thread's."""

_FEW = 200
"""Up to so many threads are sorted by their last change; more are looked for in that order."""

_STATUSES = {"running": "busy", "waiting": "interrupted", "unfinished": "interrupted", "failed": "error"}
Status = Literal["idle", "busy", "interrupted", "error"]


def record_of(call: ClientCall, thread: str) -> Checkpoint[Any] | None:
    """Return what clients gave to a thread, or None."""
    try:
        return call.store.thread(thread_name(_checked(thread), RECORD)).get()
    except NotFoundError:
        return None


def _checked(thread: str) -> str:
    if split_name(thread)[1] or thread.startswith(STATE):
        raise NotFoundError("there is no such thread", where=f"thread {thread!r}"[:100])
    return thread


def describe_thread(call: ClientCall, thread: str, *, values: bool = True) -> Object:
    """Return a thread. `NotFoundError` if there is none that the caller may read."""
    record, handle = record_of(call, thread), call.store.thread(thread)
    try:
        info = handle.info()
    except NotFoundError:
        info = None
    if record is None and info is None:
        raise NotFoundError("there is no such thread", where=f"thread {thread!r}"[:100])
    given: Mapping[str, Any] = {} if record is None else record.state
    begun, changed = list[datetime](), list[datetime]()
    if info is not None:
        begun, changed = [info.created], [info.updated]
    if record is not None:
        begun.append(datetime.fromisoformat(given["created_at"]))
        changed.append(record.time)
    found: Object = {
        "thread_id": thread,
        "created_at": min(begun).isoformat(),
        "updated_at": max(changed).isoformat(),
        "state_updated_at": changed[0].isoformat(),
        "metadata": given.get("metadata", {}),
        "config": given.get("config", {}),
        "context": given.get("context", {}),
        "status": "idle",
        "values": None,
        "interrupts": {},
        "error": None,
    }
    if info is not None and any(each.state in (QUEUED, RUNNING) for each in runs_on(call, thread)):
        found["status"] = "busy"
    if info is not None and info.latest is not None:
        status = handle.status()
        if found["status"] != "busy":
            found["status"] = _STATUSES.get(status.status, "idle")
        found["error"] = f"{status.error}: {status.message}" if status.error else None
        if values:
            graph = graph_of(call, thread, given)
            try:
                snapshot = graph.get_state({"configurable": {"thread_id": thread}})
            except Exception as error:  # noqa: BLE001 - told: the graph refuses an input that waits to be applied
                stored = handle.get().state
                found["values"] = {name: stored[name] for name in graph.stream_channels_list if name in stored}
                found["error"] = found["error"] or f"{type(error).__name__}: {error}"
                return found
            found["values"] = snapshot.values
            asked = {task.id: [interrupt_json(each) for each in task.interrupts] for task in snapshot.tasks}
            found["interrupts"] = {id: each for id, each in asked.items() if each}
    return found


@contextmanager
def of_graph(thread: str) -> Iterator[None]:
    """Turn errors that the code of a graph raises, or LangGraph about what a client sent, into errors of the caller."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        what = f"the graph cannot do that with the state of the thread: {type(error).__name__}: {str(error)[:300]}"
        raise InvalidError(what, where=f"thread {thread!r}"[:100]) from error


def graph_of(call: ClientCall, thread: str, given: Mapping[str, Any] | None = None) -> Any:
    """Return the graph that was last run on a thread; the only one that is served, if none was."""
    if given is None:
        record = record_of(call, thread)
        given = {} if record is None else record.state
    name = given.get("metadata", {}).get("graph_id")
    if name is None:
        name = next((each.graph for each in runs_on(call, thread) if each.graph in call.graphs), None)
    if name is None and len(call.graphs.names) != 1:
        raise InvalidError(
            "no graph was run on the thread by a client, so nothing says how its state is read",
            where=f"thread {thread!r}"[:100],
            hint="Give it the name of one: threads.update(thread_id, metadata={'graph_id': …})",
        )
    return call.graphs.of(call.graphs.names[0] if name is None else str(name), call.store)


def require(call: ClientCall, thread: str) -> None:
    """Raise `NotFoundError` if there is no thread that the caller may read."""
    if record_of(call, thread) is None:
        try:
            call.store.thread(thread).info()
        except NotFoundError:
            raise NotFoundError("there is no such thread", where=f"thread {thread!r}"[:100]) from None


def runs_on(call: ClientCall, thread: str) -> list[Run]:
    """Return the runs of a thread, which the caller may read, the latest first."""
    return RunReader(call.service.store).runs_of(thread)


def create_record(call: ClientCall, thread: str, metadata: Object, **fields: Any) -> bool:
    """Make a thread. Returns False if there is one, to which the caller has rights."""
    handle = call.store.thread(_checked(thread))
    with suppress(NotFoundError):
        handle.info()
        return False
    state = {"metadata": metadata, "created_at": datetime.now(UTC).isoformat(), **fields}
    try:
        _put_first(call, thread, state)
    except ConflictError:
        return False
    RunReader(call.service.store).ensure_thread(thread)
    return True


def _put_first(call: ClientCall, thread: str, state: Object) -> None:
    """Store the first state of a record. Its metadata is also that of the checkpoint, by which the thread is found."""
    line = call.store.thread(thread_name(thread, RECORD))
    line.put(state, parent="", on_conflict="raise", kind="client", metadata={_CLIENT: state["metadata"]})


def note(call: ClientCall, thread: str, metadata: Object, **fields: Any) -> None:
    """Add entries to the metadata of a thread, and set other fields."""
    record = record_of(call, thread)
    if record is None:
        begun = call.store.thread(thread).info().created.isoformat()
        with suppress(ConflictError):
            state = {"metadata": metadata, "created_at": begun, **fields}
            _put_first(call, thread, state)
            return
    changes: dict[Any, Any] = {("metadata", key): value for key, value in metadata.items()}
    known = {} if record is None else record.state["metadata"]
    line = call.store.thread(thread_name(thread, RECORD))
    # All of it each time: the thread is still found by it when earlier checkpoints are pruned.
    line.update(changes | fields, kind="client", metadata={_CLIENT: {**known, **metadata}})


@THREADS.post("/threads", status=200)
def create_thread(
    call: ClientCall,
    *,
    thread_id: str | None = None,
    metadata: Object | None = None,
    if_exists: Literal["raise", "do_nothing"] = "raise",
    supersteps: list[Object] | None = None,
    ttl: Object | None = None,
) -> Any:
    """Make a thread, and perhaps give it the states of some steps."""
    thread, span = thread_id or str(uuid4()), _parse_ttl(ttl)
    if not create_record(call, thread, metadata or {}):
        if if_exists == "raise":
            raise ConflictError("there is a thread of this id", where=repr(thread)[:80], hint="if_exists='do_nothing'")
        return describe_thread(call, thread)
    _expire(call, thread, span)
    if supersteps:
        from langgraph.types import StateUpdate

        steps = [
            [
                StateUpdate(cast(Any, to_command(each["command"]) if each.get("command") else each.get("values")), node)
                for each in step.get("updates", ())
                if (node := each.get("as_node"))
            ]
            for step in supersteps
        ]
        graph = graph_of(call, thread)
        with of_graph(thread):
            graph.bulk_update_state({"configurable": {"thread_id": thread}}, steps)
    return describe_thread(call, thread)


class _Ttl(msgspec.Struct, forbid_unknown_fields=True):
    """How many minutes after its last change a thread is deleted."""

    ttl: Annotated[float, msgspec.Meta(gt=0)]
    strategy: str = "delete"


_EXPIRY = "client-ttl"
"""The job that deletes threads whose time is over, unless there is one already."""


def _parse_ttl(given: Object | None) -> timedelta | None:
    """Return a time to live. `UnsupportedError` if something else than a deletion is asked for."""
    if given is None:
        return None
    try:
        ttl = convert(given, _Ttl)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the ttl is wrong: {error}"[:200], hint="{'ttl': minutes}") from None
    if ttl.strategy != "delete":
        raise UnsupportedError(
            "a thread whose time is over is deleted, and not pruned",
            where=f"strategy={ttl.strategy}"[:80],
            hint="On the server: store.jobs.add(name, 'prune', schedule=…, settings={'keep_last': 1})",
        )
    return timedelta(minutes=ttl.ttl)


def _expire(call: ClientCall, thread: str, ttl: timedelta | None) -> None:
    """Set how long after its last change a thread is deleted, and see to it that something does so."""
    if ttl is None:
        return
    call.store.thread(thread).expire(ttl)
    jobs = call.service.store.jobs
    if not any(each.kind == DELETE_STALE and not each.settings.get("where") for each in jobs.list()):
        with suppress(ConflictError):
            jobs.add(_EXPIRY, DELETE_STALE, schedule="every 1m")


def _ttl_json(call: ClientCall, thread: str) -> Object | None:
    handle = call.store.thread(thread)
    expires = handle.expires()
    if expires is None:
        return None
    found = describe_thread(call, thread, values=False)
    minutes = (expires - datetime.fromisoformat(found["updated_at"])).total_seconds() / 60
    return {"strategy": "delete", "ttl_minutes": round(minutes, 3), "expires_at": expires.isoformat()}


@THREADS.get("/threads/{thread_id}")
def get_thread(call: ClientCall, thread_id: str, *, include: str | None = None) -> Any:
    """Return a thread; what it may `include` is its time to live, `ttl`."""
    wanted = {each for each in (include or "").split(",") if each}
    if wanted - {"ttl"}:
        raise UnsupportedError("a thread has no further fields than ttl", where=f"include={include}"[:80])
    found = describe_thread(call, thread_id)
    return {**found, "ttl": _ttl_json(call, thread_id)} if wanted else found


def update_thread(
    call: ClientCall, thread_id: str, *, metadata: Object | None = None, ttl: Object | None = None
) -> Any:
    """Add entries to the metadata of a thread."""
    span = _parse_ttl(ttl)
    require(call, thread_id)
    _expire(call, thread_id, span)
    note(call, thread_id, metadata or {})
    return describe_thread(call, thread_id)


THREADS.patch("/threads/{thread_id}")(update_thread)


@THREADS.delete("/threads/{thread_id}")
def delete_thread(call: ClientCall, thread_id: str) -> Any:
    """Delete a thread with all that belongs to it."""
    require(call, thread_id)
    call.store.thread(thread_id).delete()
    return {}


@THREADS.post("/threads/{thread_id}/copy", status=200)
def copy_thread(call: ClientCall, thread_id: str) -> Any:
    """Copy a thread with its history."""
    require(call, thread_id)
    new = str(uuid4())
    HoldfastSaver(call.store).copy_thread(thread_id, new)
    return describe_thread(call, new)


def _found(
    call: ClientCall,
    metadata: Object | None,
    values: Object | None,
    ids: Sequence[str] | None,
    status: str | None,
    *,
    with_values: bool = True,
) -> Iterator[Object]:
    """Yield the threads that match, the last updated first."""
    needs_values = with_values or bool(values)
    for name in ids if ids is not None else _candidates(call, metadata):
        record = record_of(call, name) if metadata else None
        if metadata and not has_entries({} if record is None else record.state.get("metadata", {}), metadata):
            continue
        try:
            try:
                found = describe_thread(call, name, values=needs_values)
            except InvalidError:  # its state is of no graph that is served
                found = describe_thread(call, name, values=False)
        except (NotFoundError, CorruptError):
            continue  # it was deleted meanwhile; or is left to `verify`
        if status in (None, found["status"]) and has_entries(found["values"] or {}, values):
            yield found


def _candidates(call: ClientCall, metadata: Object | None) -> Iterable[str]:
    """Return the names of all threads that may have some metadata, the last updated first: if an entry is of few, those
    that ever had it."""
    for key, value in (metadata or {}).items():
        text = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str | int) or not key.isidentifier() or not 0 < len(text) - 2 * (text[0] == '"') < 100:
            continue
        found = call.store.threads(where=f"meta.{_CLIENT}.{key}={text}", limit=_FEW, scan_limit=4 * _FEW)
        if found.next is None:
            roots = {split_name(each.thread)[0] for each in found}
            return sorted(filter(_is_listed, roots), key=lambda name: (_updated(call, name), name), reverse=True)
    return _names(call)


def _is_listed(thread: str) -> bool:
    """Return whether a thread is no helper of the server's own: of a cron, or of a run without a thread."""
    return not thread.startswith((CRON_THREADS, TEMPORARY))


def _updated(call: ClientCall, thread: str) -> datetime:
    """Return when a thread or its record was last changed."""
    times = []
    for each in (thread, thread_name(thread, RECORD)):
        with suppress(NotFoundError):
            times.append(call.store.thread(each).info().updated)
    return max(times, default=datetime.min.replace(tzinfo=UTC))


def _names(call: ClientCall) -> Iterator[str]:
    """Yield the names of threads, the last updated first."""
    cursor, seen = None, set[str]()
    while True:
        page = call.store.threads(order="updated", limit=200, cursor=cursor)
        for each in page:
            root, _ = split_name(each.thread)
            if root not in seen and _is_listed(root):
                seen.add(root)
                yield root
        if (cursor := page.next) is None:
            return


@THREADS.post("/threads/search", status=200, reads=True)
def search_threads(
    call: ClientCall,
    *,
    metadata: Object | None = None,
    values: Object | None = None,
    ids: list[str] | None = None,
    status: Status | None = None,
    limit: Limit = 10,
    offset: Offset = 0,
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] = "updated_at",
    sort_order: Order = "desc",
    select: list[str] | None = None,
    extract: dict[str, str] | None = None,
) -> Any:
    """List threads: those with some metadata or values, or a status."""
    paths = {alias: parse_path(path) for alias, path in (extract or {}).items()}
    if len(paths) > _MAX_PATHS:
        raise InvalidError(f"a search extracts at most {_MAX_PATHS} paths, and these are {len(paths)}")
    used = {*(select or ()), *(path[0] for path in paths.values())}
    needs_values = not select or bool({"values", "interrupts"} & used)
    every = _found(call, metadata, values, ids, status, with_values=needs_values)
    if (sort_by, sort_order) == ("updated_at", "desc") and ids is None:
        found = [each for each, _ in zip(every, range(offset + limit + 1), strict=False)]
    else:
        found = sorted(every, key=lambda each: (each[sort_by], each["thread_id"]), reverse=sort_order == "desc")
    if paths:
        found = [{**each, "extracted": {alias: _at(each, path) for alias, path in paths.items()}} for each in found]
    return page_of(found, limit, offset, None if not select else [*select, "extracted"])


_MAX_PATHS = 10
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d{1,9})\]")


def parse_path(text: str) -> list[str | int]:
    """Return the keys and places of a path such as `values.messages[-1].content`."""
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position + (text[position] == "." and position > 0))
        if found is None or (steps and found[1] and text[position] != "."):
            break
        steps.append(found[1] or int(found[2]))
        position = found.end()
    if not steps or position < len(text) or not isinstance(steps[0], str):
        raise InvalidError(f"the path {text!r} is wrong"[:200], hint="Write one such as values.messages[-1].content")
    return steps


def _at(value: Any, path: Sequence[str | int]) -> Any:
    """Return what is at a path, in a value as clients get it; None if there is nothing."""
    value = msgspec.json.decode(to_json(value.get(path[0])))
    for step in path[1:]:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


@THREADS.post("/threads/count", status=200, reads=True)
def count_threads(
    call: ClientCall, *, metadata: Object | None = None, values: Object | None = None, status: Status | None = None
) -> Any:
    """Count them likewise."""
    return sum(1 for _ in _found(call, metadata, values, None, status, with_values=False))


@THREADS.delete("/assistants/{assistant_id}")
def delete_assistant(call: ClientCall, assistant_id: str, *, delete_threads: bool = False) -> Any:
    """Delete an assistant that was made by `create_assistant`; with `delete_threads`, those that it was last run on,
    as far as the caller may delete them."""
    id = remove_assistant(call, assistant_id)
    if delete_threads:
        for each in list(_names(call)):
            record = record_of(call, each)
            if record is not None and record.state.get("metadata", {}).get("assistant_id") == id:
                with suppress(NotFoundError):  # another deleted it
                    call.store.thread(each).delete()
    return {}


@THREADS.post("/threads/prune", status=200)
def prune_threads(
    call: ClientCall, *, thread_ids: list[str], strategy: Literal["delete", "keep_latest"] = "delete"
) -> Any:
    """Delete threads, or all of their checkpoints but the latest."""
    known = []
    for each in thread_ids:
        with suppress(NotFoundError):
            require(call, each)
            known.append(each)
    if strategy == "delete":
        return {"pruned_count": sum(call.store.thread(each).delete() for each in known)}
    HoldfastSaver(call.store).prune(known, strategy=strategy)
    return {"pruned_count": len(known)}


# States -----------------------------------------------------------------------------------------------------------


def place(thread: str, checkpoint: Object | str | None = None) -> Any:
    """Return the config that names a checkpoint of a thread, or its latest one."""
    if isinstance(checkpoint, str):
        checkpoint = {"checkpoint_id": checkpoint}
    where = {key: value for key, value in (checkpoint or {}).items() if value and key != "thread_id"}
    if unknown := where.keys() - {"checkpoint_id", "checkpoint_ns", "checkpoint_map"}:
        raise InvalidError(f"a checkpoint has no {min(unknown)}"[:100])
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **where}}


def _state(
    call: ClientCall, thread: str, checkpoint: Object | str | None, subgraphs: bool, select: list[str] | None
) -> Any:
    require(call, thread)
    graph, where = graph_of(call, thread), place(thread, checkpoint)
    with of_graph(thread):
        found = graph.get_state(where, subgraphs=subgraphs)
    if checkpoint is not None and not (found.config or {}).get("configurable", {}).get("checkpoint_id"):
        raise NotFoundError("the thread has no such checkpoint", where=f"thread {thread!r}"[:100])
    if checkpoint is not None and found.created_at is None:
        raise NotFoundError("the thread has no such checkpoint", where=f"thread {thread!r}"[:100])
    return state_json(found, thread, select)


@THREADS.get("/threads/{thread_id}/state")
def get_state(call: ClientCall, thread_id: str, *, subgraphs: bool = False, select: Any = None) -> Any:
    """Return the latest state of a thread."""
    return _state(call, thread_id, None, subgraphs, [select] if isinstance(select, str) else select)


@THREADS.get("/threads/{thread_id}/state/{checkpoint_id}")
def get_state_at(
    call: ClientCall, thread_id: str, checkpoint_id: str, *, subgraphs: bool = False, select: Any = None
) -> Any:
    """Return the state of a thread at a checkpoint."""
    return _state(call, thread_id, checkpoint_id, subgraphs, [select] if isinstance(select, str) else select)


@THREADS.post("/threads/{thread_id}/state/checkpoint", status=200, reads=True)
def get_state_of(
    call: ClientCall, thread_id: str, *, checkpoint: Object, subgraphs: bool = False, select: list[str] | None = None
) -> Any:
    """Return the state of a thread, or of a subgraph in it, at a checkpoint."""
    return _state(call, thread_id, checkpoint, subgraphs, select)


@THREADS.post("/threads/{thread_id}/state", status=200)
def update_state(
    call: ClientCall,
    thread_id: str,
    *,
    values: Any = None,
    checkpoint_id: str | None = None,
    checkpoint: Object | None = None,
    as_node: str | None = None,
) -> Any:
    """Change the state of a thread as a node would; after an earlier checkpoint, a branch begins there."""
    require(call, thread_id)
    graph, after = graph_of(call, thread_id), place(thread_id, checkpoint_id or checkpoint)
    with of_graph(thread_id):
        made = graph.update_state(after, values, as_node=as_node)
    where = made["configurable"]
    named = {"thread_id": thread_id, "checkpoint_ns": where.get("checkpoint_ns", ""), "checkpoint_map": None}
    return {"checkpoint": {**named, "checkpoint_id": where["checkpoint_id"]}, "configurable": where}


@THREADS.post("/threads/{thread_id}/history", status=200, reads=True)
def get_history(
    call: ClientCall,
    thread_id: str,
    *,
    limit: Limit = 10,
    before: Any = None,
    metadata: Object | None = None,
    checkpoint: Object | None = None,
    select: list[str] | None = None,
) -> Any:
    """List the states of a thread, the latest first."""
    require(call, thread_id)
    earlier = (
        None
        if not before
        else place(thread_id, before.get("configurable", before) if isinstance(before, dict) else before)
    )
    graph, after = graph_of(call, thread_id), place(thread_id, checkpoint)
    with of_graph(thread_id):
        found = list(graph.get_state_history(after, limit=limit, before=earlier, filter=metadata or None))
    return [state_json(each, thread_id, select) for each in found]
