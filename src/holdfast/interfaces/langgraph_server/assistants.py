"""Assistants: one of each graph that is served, and further configurations of them, with their versions.

Those that were made or changed are values of a scope: they have a history, are backed up, and a caller needs the right
to write there to change one. Whoever may use the server reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec

from holdfast._structs import convert
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.langgraph_server.graphs import assistant_id as id_of_graph
from holdfast.interfaces.langgraph_server.routes import ClientCall, Reply

ASSISTANTS = RouteTable()

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Order = Literal["asc", "desc"]
Object = dict[str, Any]

_SCOPE = "langgraph-assistants"
_VERSIONED = ("graph_id", "config", "context", "metadata", "name", "description")


class _Version(msgspec.Struct, kw_only=True):
    """A version of an assistant."""

    graph_id: str
    version: int
    created_at: str
    config: Object = {}
    context: Object = {}
    metadata: Object = {}
    name: str = ""
    description: str | None = None


class _Stored(msgspec.Struct, kw_only=True):
    """An assistant with its versions, the first one first."""

    assistant_id: str
    created_at: str
    updated_at: str
    latest: int
    versions: list[_Version]

    def current(self) -> Object:
        """Return the version that is used, as clients see it."""
        return self.as_of(self.latest) | {"created_at": self.created_at, "updated_at": self.updated_at}

    def as_of(self, number: int) -> Object:
        """Return a version. `NotFoundError` if there is none of the number."""
        for each in self.versions:
            if each.version == number:
                return {"assistant_id": self.assistant_id, **msgspec.to_builtins(each)}
        raise NotFoundError("the assistant has no such version", where=f"version {number}")


@lru_cache(1)
def _started() -> str:
    return datetime.now(UTC).isoformat()


def _of_graph(graph: str) -> _Stored:
    first = _Version(graph_id=graph, version=1, created_at=_started(), name=graph, metadata={"created_by": "system"})
    id, now = id_of_graph(graph), _started()
    return _Stored(assistant_id=id, created_at=now, updated_at=now, latest=1, versions=[first])


def _all(call: ClientCall) -> dict[str, _Stored]:
    """Return all assistants by their ids."""
    own = {each.assistant_id: each for each in map(_of_graph, call.graphs.names)}
    kept = {id: convert(each, _Stored) for id, each in call.service.store.state(custom=_SCOPE).items()}
    return {id: each for id, each in {**own, **kept}.items() if each.current()["graph_id"] in call.graphs}


def find_assistant(call: ClientCall, id: str) -> Object:
    """Return an assistant by its id, or by the name of its graph. `NotFoundError` if there is none."""
    return _find(call, id).current()


def _find(call: ClientCall, id: str) -> _Stored:
    id = id_of_graph(id) if id in call.graphs else id
    for each in map(_of_graph, call.graphs.names):
        if each.assistant_id == id:
            kept = call.service.store.state(custom=_SCOPE).get(id)
            return each if kept is None else convert(kept, _Stored)
    found = _all(call).get(id)
    if found is None:
        names = ", ".join(call.graphs.names)
        raise NotFoundError("there is no such assistant", where=repr(id)[:80], hint=f"Graphs are served as {names}")
    return found


def _change(call: ClientCall, id: str, function: Any) -> Object:
    """Change an assistant, or make it from that of its graph, unless others change it meanwhile."""
    before = msgspec.to_builtins(_find(call, id))

    def changed(value: Any) -> Any:
        return msgspec.to_builtins(function(convert(before if value is None else value, _Stored)))

    made = call.store.state(custom=_SCOPE).change(before["assistant_id"], changed, None)
    return convert(made, _Stored).current()


@ASSISTANTS.post("/assistants", status=200)
def create_assistant(
    call: ClientCall,
    *,
    graph_id: str,
    assistant_id: str | None = None,
    config: Object | None = None,
    context: Object | None = None,
    metadata: Object | None = None,
    if_exists: Literal["raise", "do_nothing"] = "raise",
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a further assistant of a graph."""
    call.graphs.of(graph_id, call.store)
    id, now = assistant_id or str(uuid4()), datetime.now(UTC).isoformat()
    if id in _all(call):
        if if_exists == "do_nothing":
            return find_assistant(call, id)
        raise ConflictError("there is an assistant of this id", where=repr(id)[:80], hint="if_exists='do_nothing'")
    first = _Version(
        graph_id=graph_id,
        version=1,
        created_at=now,
        config=config or {},
        context=context or {},
        metadata=metadata or {},
        name=name or "Untitled",
        description=description,
    )
    made = _Stored(assistant_id=id, created_at=now, updated_at=now, latest=1, versions=[first])
    call.store.state(custom=_SCOPE).set(id, msgspec.to_builtins(made), expected=0)
    return made.current()


@ASSISTANTS.get("/assistants/{assistant_id}")
def get_assistant(call: ClientCall, assistant_id: str) -> Any:
    """Return an assistant."""
    return find_assistant(call, assistant_id)


def update_assistant(
    call: ClientCall,
    assistant_id: str,
    *,
    graph_id: str | None = None,
    config: Object | None = None,
    context: Object | None = None,
    metadata: Object | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a new version of an assistant, which is used from then on."""
    if graph_id is not None:
        call.graphs.of(graph_id, call.store)
    given = {"graph_id": graph_id, "config": config, "context": context, "name": name, "description": description}

    def changed(stored: _Stored) -> _Stored:
        last, now = stored.versions[-1], datetime.now(UTC).isoformat()
        used = convert(stored.as_of(stored.latest), _Version)
        new = msgspec.structs.replace(
            used,
            **{field: value for field, value in given.items() if value is not None},
            metadata={**used.metadata, **(metadata or {})},
            version=last.version + 1,
            created_at=now,
        )
        return msgspec.structs.replace(stored, versions=[*stored.versions, new], latest=new.version, updated_at=now)

    return _change(call, assistant_id, changed)


ASSISTANTS.patch("/assistants/{assistant_id}")(update_assistant)


@ASSISTANTS.post("/assistants/{assistant_id}/latest", status=200)
def set_latest(call: ClientCall, assistant_id: str, *, version: int) -> Any:
    """Use a version of an assistant from now on."""

    def changed(stored: _Stored) -> _Stored:
        stored.as_of(version)
        return msgspec.structs.replace(stored, latest=version, updated_at=datetime.now(UTC).isoformat())

    return _change(call, assistant_id, changed)


def remove_assistant(call: ClientCall, id: str) -> str:
    """Remove an assistant that was made by `create_assistant`, and return its id."""
    id = _find(call, id).assistant_id
    if id in map(id_of_graph, call.graphs.names):
        raise InvalidError(
            "this assistant is that of a graph, which is served", where=id, hint="Serve the store without the graph"
        )
    call.store.state(custom=_SCOPE).delete(id)
    return id


def _matching(call: ClientCall, metadata: Object | None, graph_id: str | None, name: str | None) -> list[Object]:
    return [
        each
        for each in (stored.current() for stored in _all(call).values())
        if has_entries(each["metadata"], metadata)
        and graph_id in (None, each["graph_id"])
        and (name or "").lower() in each["name"].lower()
    ]


def has_entries(whole: Object, wanted: Object | None) -> bool:
    """Return whether a mapping has some entries, those of nested ones among more."""
    return all(
        has_entries(whole[key], value)
        if isinstance(value, dict) and isinstance(whole.get(key), dict)
        else key in whole and whole[key] == value
        for key, value in (wanted or {}).items()
    )


def page_of(found: Sequence[Object], limit: int, offset: int, select: Sequence[str] | None) -> Reply:
    """Return a page of what was found, and in a header where the next one begins."""
    page = [
        {field: value for field, value in each.items() if not select or field in select}
        for each in found[offset : offset + limit]
    ]
    more = len(found) > offset + limit
    return Reply(page, {"x-pagination-next": str(offset + limit)} if more else {})


@ASSISTANTS.post("/assistants/search", status=200, reads=True)
def search_assistants(
    call: ClientCall,
    *,
    metadata: Object | None = None,
    graph_id: str | None = None,
    name: str | None = None,
    limit: Limit = 10,
    offset: Offset = 0,
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] = "created_at",
    sort_order: Order = "desc",
    select: list[str] | None = None,
) -> Any:
    """List the assistants of a graph, or those with some metadata."""
    found = _matching(call, metadata, graph_id, name)
    found.sort(key=lambda each: (each[sort_by], each["assistant_id"]), reverse=sort_order == "desc")
    return page_of(found, limit, offset, select)


@ASSISTANTS.post("/assistants/count", status=200, reads=True)
def count_assistants(
    call: ClientCall, *, metadata: Object | None = None, graph_id: str | None = None, name: str | None = None
) -> Any:
    """Count them likewise."""
    return len(_matching(call, metadata, graph_id, name))


@ASSISTANTS.post("/assistants/{assistant_id}/versions", status=200, reads=True)
def list_versions(
    call: ClientCall, assistant_id: str, *, metadata: Object | None = None, limit: Limit = 10, offset: Offset = 0
) -> Any:
    """List the versions of an assistant, the last one first."""
    stored = _find(call, assistant_id)
    found = [stored.as_of(each.version) for each in reversed(stored.versions) if has_entries(each.metadata, metadata)]
    return page_of(found, limit, offset, None)


@ASSISTANTS.get("/assistants/{assistant_id}/graph")
def get_graph(call: ClientCall, assistant_id: str, *, xray: bool | int = False) -> Any:
    """Return the nodes and edges of a graph; with those of subgraphs, as `xray` says."""
    return call.graphs.of(find_assistant(call, assistant_id)["graph_id"], call.store).get_graph(xray=xray).to_json()


@ASSISTANTS.get("/assistants/{assistant_id}/schemas")
def get_schemas(call: ClientCall, assistant_id: str) -> Any:
    """Return the JSON schemas of a graph."""
    name = find_assistant(call, assistant_id)["graph_id"]
    return {"graph_id": name, **_schemas(call.graphs.of(name, call.store))}


def _schemas(graph: Any) -> Object:
    def schema(make: Any) -> Any:
        try:
            return make()
        except Exception:  # noqa: BLE001 - pydantic raises many; the client's type says null
            return None

    return {
        "input_schema": schema(graph.get_input_jsonschema),
        "output_schema": schema(graph.get_output_jsonschema),
        "state_schema": schema(graph.get_output_jsonschema),
        "config_schema": None,
        "context_schema": schema(graph.get_context_jsonschema),
    }


@ASSISTANTS.get("/assistants/{assistant_id}/subgraphs")
def list_subgraphs(call: ClientCall, assistant_id: str, *, recurse: bool = False) -> Any:
    """Return the schemas of the subgraphs of a graph, by their namespaces."""
    return _subgraphs(call, assistant_id, None, recurse)


@ASSISTANTS.get("/assistants/{assistant_id}/subgraphs/{namespace}")
def get_subgraph(call: ClientCall, assistant_id: str, namespace: str, *, recurse: bool = False) -> Any:
    """Return the schemas of one."""
    return _subgraphs(call, assistant_id, namespace, recurse)


def _subgraphs(call: ClientCall, id: str, namespace: str | None, recurse: bool) -> Object:
    graph = call.graphs.of(find_assistant(call, id)["graph_id"], call.store)
    found = graph.get_subgraphs(namespace=namespace, recurse=recurse)
    return {name: {"graph_id": str(getattr(each, "name", name)), **_schemas(each)} for name, each in found}
