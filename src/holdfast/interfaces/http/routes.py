"""The table of routes. Each is a function with typed parameters, body and result; the server and the OpenAPI document
are made from the table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints
from urllib.parse import unquote

import msgspec

from holdfast.errors import InvalidError
from holdfast.interfaces.http.inputs import Input

F = TypeVar("F", bound=Callable[..., Any])
I = TypeVar("I", bound=Input)  # noqa: E741 - the type of an input

API = "/api/v1"
_NAMED = re.compile(r"\{(\w+)\}")


class Route(NamedTuple):
    """An operation of the API. `run` gets the call, the parameters, and the body if there is one."""

    method: str
    path: str
    """Below `API`, with the names of parameters in braces."""
    name: str
    summary: str
    run: Callable[..., Any]
    params: type[Input]
    body: type[Input] | None
    result: Any
    status: int
    media: str
    writes: bool
    """Whether it changes the store."""

    @property
    def path_names(self) -> list[str]:
        """The parameters that are parts of the path."""
        return _NAMED.findall(self.path)


class RouteTable:
    """Collects routes: `@table.get("/threads/{thread}")` before a function adds one."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, *, media: str = "application/json") -> Callable[[F], F]:
        """Add a route that reads."""
        return self._add("GET", path, 200, media)

    def post(self, path: str, *, status: int = 201, reads: bool = False) -> Callable[[F], F]:
        """Add a route that changes something; or that `reads`, and whose parameters do not fit into an address."""
        return self._add("POST", path, status, reads=reads)

    def put(self, path: str) -> Callable[[F], F]:
        """Add a route that sets something."""
        return self._add("PUT", path, 200)

    def delete(self, path: str) -> Callable[[F], F]:
        """Add a route that removes something."""
        return self._add("DELETE", path, 200)

    def _add(
        self, method: str, path: str, status: int, media: str = "application/json", *, reads: bool = False
    ) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            hints = get_type_hints(function)
            names = list(inspect.signature(function).parameters)
            summary = (function.__doc__ or "").strip().split("\n")[0]
            body = hints[names[2]] if len(names) > 2 else None
            self.routes.append(
                Route(
                    method,
                    path,
                    function.__name__,
                    summary,
                    function,
                    hints[names[1]],
                    body,
                    hints["return"],
                    status,
                    media,
                    method != "GET" and not reads,
                )
            )
            return function

        return decorate


def decode_params(kind: type[I], path: Mapping[str, str], query: Mapping[str, str]) -> I:
    """Decode the parameters of a request from its path, whose parts are quoted, and its query."""
    given = {name: unquote(part) for name, part in path.items()}
    clash = given.keys() & query.keys()
    if clash:
        raise InvalidError(f"{min(clash)} is in the path, and not in the query")
    try:
        return msgspec.convert({**query, **given}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidError(f"a parameter is wrong: {_plain(error)}", hint="See /api/v1/openapi.json") from None


def decode_body(kind: type[I], body: bytes) -> I:
    """Decode the body of a request."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidError(f"the body is wrong: {_plain(error)}", hint="See /api/v1/openapi.json") from None
    except UnicodeDecodeError:
        raise InvalidError("the body is no UTF-8") from None
    except RecursionError:
        raise InvalidError("the body is nested too deeply") from None


def _plain(error: Exception) -> str:
    return str(error).replace(" - at `$.", " at `").replace("`$[...]`", "its items")
