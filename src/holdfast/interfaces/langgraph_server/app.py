"""The application: the operations that LangGraph's clients call, beside the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import __version__
from holdfast.interfaces.http.app import Server
from holdfast.interfaces.langgraph_server.assistants import ASSISTANTS
from holdfast.interfaces.langgraph_server.crons import CRONS
from holdfast.interfaces.langgraph_server.graphs import ServedGraphs
from holdfast.interfaces.langgraph_server.items import ITEMS
from holdfast.interfaces.langgraph_server.routes import client_routes
from holdfast.interfaces.langgraph_server.runs import RUNS
from holdfast.interfaces.langgraph_server.thread_streams import THREAD_STREAMS, socket_route
from holdfast.interfaces.langgraph_server.threads import THREADS

TABLES = (ASSISTANTS, THREADS, RUNS, THREAD_STREAMS, CRONS, ITEMS)
"""All operations."""


def graph_routes(server: Server, graphs: Mapping[str, Any]) -> list[BaseRoute]:
    """Return the routes for LangGraph's clients of a server."""

    async def ok(request: Request) -> Response:  # noqa: ARG001
        return Response(b'{"ok":true}', media_type="application/json", headers={"cache-control": "no-store"})

    async def info(request: Request) -> Response:  # noqa: ARG001
        flags = {"assistants": True, "crons": True, "langsmith": False, "strict_resume": True}
        body = msgspec.json.encode({"version": __version__, "flags": flags})
        return Response(body, media_type="application/json")

    served = ServedGraphs(graphs)
    return [
        *(Route("/ok", ok), Route("/info", info)),
        *client_routes(server, served, TABLES),
        socket_route(server, served),
    ]
