"""The table of routes. Each is a function whose parameters are those of a request, and whose result is the body of the
response. The server and the OpenAPI document are made from the table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_type_hints
from urllib.parse import unquote

import msgspec

from holdfast._structs import convert, decode_json
from holdfast.errors import InvalidError

F = TypeVar("F", bound=Callable[..., Any])
I = TypeVar("I", bound="Input")  # noqa: E741 - the type of an input

API = "/api/v1"
_NAMED = re.compile(r"\{(\w+)\}")

Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
"""How many items a page has at most."""


class Input(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a request, or its body. A name that is not known is an error, and not ignored."""


class FileContent(NamedTuple):
    """A result that is sent as a file, or a range of its bytes."""

    data: bytes
    media: str


def names_in(path: str) -> list[str]:
    """Return the names of the parameters in a path."""
    return _NAMED.findall(path)


class Route(NamedTuple):
    """An operation of the API. `run` gets the call, and the parameters and the fields of the body by name."""

    method: str
    path: str
    """Below `API`, with the names of parameters in braces."""
    name: str
    summary: str
    run: Callable[..., Any]
    params: type[Input]
    """Parts of the path, and, for a route without a body, of the query."""
    body: type[Input] | None
    result: Any
    status: int
    writes: bool
    """Whether it changes the store."""

    @property
    def path_names(self) -> list[str]:
        """The parameters that are parts of the path."""
        return names_in(self.path)


class RouteTable:
    """Collects routes: `@table.get("/threads/{thread}")` before a function adds one.

    A parameter that the path does not name is in the query of a GET or DELETE, and in the body otherwise.
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str) -> Callable[[F], F]:
        """Add a route that reads."""
        return self._add("GET", path, 200)

    def post(self, path: str, *, status: int = 201, reads: bool = False) -> Callable[[F], F]:
        """Add a route that changes something; or that `reads`, and whose parameters do not fit into an address."""
        return self._add("POST", path, status, reads=reads)

    def put(self, path: str) -> Callable[[F], F]:
        """Add a route that sets something."""
        return self._add("PUT", path, 200)

    def patch(self, path: str) -> Callable[[F], F]:
        """Add a route that changes a part of something."""
        return self._add("PATCH", path, 200)

    def delete(self, path: str) -> Callable[[F], F]:
        """Add a route that removes something."""
        return self._add("DELETE", path, 200)

    def _add(self, method: str, path: str, status: int, *, reads: bool = False) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            hints = get_type_hints(function, include_extras=True)
            fields = [
                (each.name, hints[each.name], *(() if each.default is each.empty else (each.default,)))
                for each in list(inspect.signature(function).parameters.values())[1:]
            ]
            has_body = method in ("POST", "PUT", "PATCH")
            in_body = [each for each in fields if has_body and each[0] not in names_in(path)]
            name, summary = function.__name__, (function.__doc__ or "").strip().split("\n")[0]
            self.routes.append(
                Route(
                    method,
                    path,
                    name,
                    summary,
                    function,
                    input_type(name, "Params", [each for each in fields if each not in in_body]),
                    input_type(name, "Request", in_body) if in_body else None,
                    hints["return"],
                    status,
                    method != "GET" and not reads,
                )
            )
            return function

        return decorate


def input_type(operation: str, suffix: str, fields: Sequence[tuple[Any, ...]]) -> type[Input]:
    """Return the type of some parameters of an operation: names, types and perhaps defaults."""
    name = "".join(map(str.capitalize, operation.split("_"))) + suffix
    made: Any = msgspec.defstruct(name, fields, bases=(Input,), kw_only=True, forbid_unknown_fields=True)
    return cast(type[Input], made)


def decode_params(kind: type[I], path: Mapping[str, str], query: Mapping[str, str]) -> I:
    """Decode the parameters of a request from its path, whose parts are quoted, and its query."""
    given = {name: unquote(part) for name, part in path.items()}
    clash = given.keys() & query.keys()
    if clash:
        raise InvalidError(f"{min(clash)} belongs in the path, not in the query")
    try:
        return convert({**query, **given}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidError(f"a parameter is wrong: {_plain(error)}", hint="See /api/v1/openapi.json") from None


def decode_body(kind: type[I], body: bytes) -> I:
    """Decode the body of a request."""
    try:
        return decode_json(body or b"{}", kind)
    except msgspec.MsgspecError as error:
        raise InvalidError(f"the body is wrong: {_plain(error)}", hint="See /api/v1/openapi.json") from None
    except UnicodeDecodeError:
        raise InvalidError("the body is not UTF-8") from None
    except RecursionError:
        raise InvalidError("the body is nested too deeply") from None


def _plain(error: Exception) -> str:
    return str(error).replace(" - at `$.", " at `").replace("`$[...]`", "its items")
