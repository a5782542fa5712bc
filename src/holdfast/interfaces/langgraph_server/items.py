"""The store of items as LangGraph's clients use it: that of the graphs, as the caller may see it."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.store.base import Item

from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.http.routes import Route, RouteTable, input_type
from holdfast.interfaces.langgraph_server.assistants import Limit, Object, Offset
from holdfast.interfaces.langgraph_server.routes import ClientCall

ITEMS = RouteTable()


def _item_json(item: Item) -> Object:
    found: Object = {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.isoformat(),
        "updated_at": item.updated_at.isoformat(),
    }
    score = getattr(item, "score", None)
    return found if score is None else {**found, "score": score}


@ITEMS.put("/store/items")
def put_item(
    call: ClientCall,
    *,
    namespace: list[str],
    key: str,
    value: Object,
    index: Literal[False] | list[str] | None = None,
    ttl: float | None = None,
) -> Any:
    """Store an item."""
    call.graphs.items(call.store).put(tuple(namespace), key, value, index, ttl=ttl)
    return {}


@ITEMS.get("/store/items")
def get_item(call: ClientCall, *, key: str, namespace: str = "", refresh_ttl: bool | None = None) -> Any:
    """Return an item."""
    place = tuple(namespace.split(".")) if namespace else ()
    found = call.graphs.items(call.store).get(place, key, refresh_ttl=refresh_ttl)
    if found is None:
        raise NotFoundError("there is no such item", where=f"{namespace}: {key}"[:100])
    return _item_json(found)


def delete_item(call: ClientCall, *, namespace: list[str] | None = None, key: str) -> Any:
    """Delete an item."""
    call.graphs.items(call.store).delete(tuple(namespace or ()), key)
    return {}


_BODY = input_type("delete_item", "Request", [("key", str), ("namespace", list[str] | None, None)])
_NONE = input_type("delete_item", "Params", [])
ITEMS.routes.append(
    Route("DELETE", "/store/items", "delete_item", "Delete an item.", delete_item, _NONE, _BODY, Any, 200, True)
)


@ITEMS.post("/store/items/search", status=200, reads=True)
def search_items(
    call: ClientCall,
    *,
    namespace_prefix: list[str] | None = None,
    filter: Object | None = None,  # noqa: A002 - the client's name
    limit: Limit = 10,
    offset: Offset = 0,
    query: str | None = None,
    refresh_ttl: bool | None = None,
) -> Any:
    """Find items by their fields, or by meaning."""
    items = call.graphs.items(call.store)
    if query and items.index_config is None:
        raise UnsupportedError(
            "no index says what items mean", where="query", hint="Compile a graph with HoldfastStore(store, index=…)"
        )
    found = items.search(
        tuple(namespace_prefix or ()), query=query, filter=filter, limit=limit, offset=offset, refresh_ttl=refresh_ttl
    )
    return {"items": [_item_json(each) for each in found]}


@ITEMS.post("/store/namespaces", status=200, reads=True)
def list_namespaces(
    call: ClientCall,
    *,
    prefix: list[str] | None = None,
    suffix: list[str] | None = None,
    max_depth: int | None = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Any:
    """List namespaces."""
    if max_depth is not None and max_depth < 1:
        raise InvalidError("max_depth is at least 1")
    found = call.graphs.items(call.store).list_namespaces(
        prefix=tuple(prefix or ()) or None,
        suffix=tuple(suffix or ()) or None,
        max_depth=max_depth,
        limit=limit,
        offset=offset,
    )
    return {"namespaces": [list(each) for each in found]}
