"""How requests of LangGraph's clients are answered: operations from a table, with our tokens, limits and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from holdfast.errors import InvalidError
from holdfast.interfaces.http.app import Server, reporting
from holdfast.interfaces.http.routes import Route, RouteTable, decode_body, decode_params
from holdfast.interfaces.http.service import Call, Caller, Service
from holdfast.interfaces.langgraph.client_runs import to_json
from holdfast.interfaces.langgraph_server.graphs import ServedGraphs


class Reply(NamedTuple):
    """A result with headers of its own."""

    value: Any
    headers: Mapping[str, str]


class Later(NamedTuple):
    """A response that takes long: it is awaited, and holds up no thread."""

    respond: Callable[[Request], Awaitable[Response]]


class ClientCall(Call):
    """A request of a client of LangGraph: who makes it, and the graphs that are served."""

    def __init__(self, service: Service, caller: Caller, graphs: ServedGraphs, server: Server | None = None) -> None:
        super().__init__(service, caller)
        self.graphs = graphs
        self._server = server

    @property
    def server(self) -> Server:
        """The server of the request. What is done while nobody calls has none."""
        assert self._server is not None  # noqa: S101 - only streams ask
        return self._server


class _Browsable(StarletteRoute):
    """A route beside the pages of the same address: it answers programs, and leaves browsers to the pages."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            has_token = b"authorization" in headers or b"x-api-key" in headers
            if not has_token and (b"cookie" in headers or b"text/html" in headers.get(b"accept", b"")):
                return Match.NONE, {}
        return super().matches(scope)


def client_routes(server: Server, graphs: ServedGraphs, tables: Iterable[RouteTable]) -> list[BaseRoute]:
    """Return the routes of some tables."""
    by_path: dict[str, dict[str, Route]] = {}
    for table in tables:
        for route in table.routes:
            by_path.setdefault(route.path, {})[route.method] = route
    # Those whose path has fewer parameters come first: `/threads/search` is no thread.
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    return [
        _Browsable(path, reporting(_endpoint(server, graphs, by_path[path])), methods=list(by_path[path]))
        for path in paths
    ]


def _endpoint(server: Server, graphs: ServedGraphs, routes: Mapping[str, Route]) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        call = ClientCall(server.service, await server.authenticate(request), graphs, server)
        if route.writes:
            call.require_write()
            server.authenticator.check_csrf(call.caller, "")  # of a browser's cookie, which has no place here
        query = dict(request.query_params.multi_items())
        if "last_event_id" in route.params.__struct_fields__ and "last-event-id" in request.headers:
            query["last_event_id"] = request.headers["last-event-id"]
        lists = {name for name in query if len(request.query_params.getlist(name)) > 1}
        if lists - {"stream_mode", "select", "namespace"}:
            raise InvalidError("a parameter is given twice")
        given = msgspec.structs.asdict(decode_params(route.params, request.path_params, query))
        given |= {name: request.query_params.getlist(name) for name in lists}
        if route.body is not None:
            decoded: Any = decode_body(route.body, await request.body())
            given |= {"items": decoded} if isinstance(decoded, list) else msgspec.structs.asdict(decoded)
        found = await server.work(partial(_run, route, call, given))
        if isinstance(found, Later):
            return await found.respond(request)
        body, headers = found
        if route.method == "PATCH" and request.headers.get("prefer") == "return=minimal":
            return Response(status_code=204)
        return Response(body, route.status, headers, "application/json")

    return respond


def _run(route: Route, call: ClientCall, given: dict[str, Any]) -> Any:
    found = route.run(call, **given)
    if isinstance(found, Later):
        return found
    value, headers = found if isinstance(found, Reply) else (found, {})
    if value is None:
        return b"" if route.status == 204 else b"null", dict(headers)
    return to_json(value), {"cache-control": "no-store", **headers}
