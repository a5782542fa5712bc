"""The OpenAPI 3.1 document of the API, made from the table of routes, its models, and the catalogue of operations.

Bodies of responses and their schemas, made from the records of the library: the names, types and docstrings of their
fields. A field that a record gets is in the bodies and in the OpenAPI document, without another line.

Mappings of users' values are sent as plain JSON, and a single value too, or null if it is large.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from holdfast import __version__
from holdfast._views import fields_of, is_record, is_text, plain
from holdfast.engine.integrity.findings import Finding
from holdfast.engine.pages import Page
from holdfast.interfaces.http.forwards import first_sentence
from holdfast.interfaces.http.models import HealthModel, Model, Problem, StoreChangesModel
from holdfast.interfaces.http.problems import MEDIA_TYPE
from holdfast.interfaces.http.routes import API, FileContent, Route
from holdfast.interfaces.http.values import small_json
from holdfast.store.catalogue import CataloguedOperation, catalogue
from holdfast.store.replay.report import ReplayReport

_REF = "#/components/schemas/{name}"
_DESCRIPTION = (
    "Reads and changes a Holdfast store. Errors are problem details with the codes of the command line. Changes take "
    "If-Match, with the id of the checkpoint that the caller has read as HEAD, and Idempotency-Key."
)


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document."""
    types: list[Any] = [body_type(route.result) for route in routes if route.result is not FileContent]
    types += [route.body for route in routes if route.body is not None]
    types += [body_type(kind) for kind in (Problem, StoreChangesModel, HealthModel)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    add_descriptions(components)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        described = _operation(route, by_type)
        if "{operation}" in route.path:
            paths |= _called_operations(route, described)
        else:
            paths.setdefault(API + route.path, {})[route.method.lower()] = described
    paths[f"{API}/events"] = {"get": _events()}
    paths["/metrics"] = {"get": _metrics()}
    paths["/health/live"] = {"get": _health("check_live", "Say that the server answers.")}
    paths["/health/ready"] = {"get": _health("check_ready", "Say whether the store answers, too.")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": _DESCRIPTION},
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "holdfast"},
            },
            "responses": {
                "Problem": {
                    "description": "An error",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
                }
            },
        },
    }


def _operation(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": ["change" if route.writes else "read"],
        "parameters": [*_parameters(route), *_headers(route)],
        "responses": {**_successes(route, by_type), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[route.body]}},
        }
    return operation


def _called_operations(route: Route, described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the paths of the operations of the Python API that a route calls, each with its own description."""
    paths = {}
    for each in catalogue():
        is_dry = each.has_dry_run and not route.writes
        if each.declaration.not_remote or (each.declaration.changes is not route.writes and not is_dry):
            continue
        paths[API + route.path.format(part=each.part.name, operation=each.name)] = {
            route.method.lower(): {
                **described,
                "operationId": f"{each.part.name}.{each.name}{'.dry_run' if is_dry else ''}",
                "summary": first_sentence(each.function),
                "description": _call_description(each),
                "parameters": _headers(route),
            }
        }
    return paths


def _call_description(operation: CataloguedOperation) -> str:
    taken = list(inspect.signature(operation.function).parameters.values())[1:]
    signature = inspect.Signature([each.replace(annotation=each.empty) for each in taken])
    needs = " and ".join(f"`{each}`" for each in operation.rights)
    who = "Only for the store's owner." if operation.owner_only else f"An identity needs {needs}." if needs else ""
    dry = "Below `/reads`, only with `dry_run`." if operation.has_dry_run else ""
    confirmed = "A browser must confirm it." if operation.declaration.confirm else ""
    sentences = (f"`{operation.name}{signature}` of the Python API.", who, dry, confirmed)
    return " ".join(filter(None, sentences))


def _successes(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    if route.result is FileContent:
        body = {"description": route.summary, "content": {"*/*": {"schema": {"type": "string"}}}}
        return {"200": body, "206": body, "416": {"description": "There is no such range"}}
    success = {
        "description": route.summary,
        "headers": {"ETag": {"schema": {"type": "string"}}},
        "content": {"application/json": {"schema": by_type[body_type(route.result)]}},
    }
    current = {} if route.writes else {"304": {"description": "What the caller has is current"}}
    return {str(route.status): success, **current}


def _parameters(route: Route) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([route.params], ref_template=_REF)
    schema = components[route.params.__name__]
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "path" if name in route.path_names else "query",
            "required": name in required,
            "schema": each,
        }
        for name, each in schema["properties"].items()
    ]


def _headers(route: Route) -> list[dict[str, Any]]:
    names = ("If-Match", "Idempotency-Key") if route.writes else ("If-None-Match",)
    names = ("Range",) if route.result is FileContent else names
    return [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in names]


def _events() -> dict[str, Any]:
    summary = "Follow the changes of the store, as server-sent events."
    return {
        "operationId": "follow_events",
        "summary": summary,
        "tags": ["read"],
        "parameters": [
            {"name": "since", "in": "query", "required": False, "schema": {"type": "string"}},
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}},
        ],
        "responses": {
            "200": {
                "description": "Events named `changes`, whose data are of the type StoreChangesModel, and whose ids "
                "are tokens to resume with.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }


def _metrics() -> dict[str, Any]:
    summary = "Read the metrics of the store, as text for Prometheus."
    body = {"description": summary, "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "operationId": "get_metrics",
        "summary": summary,
        "tags": ["monitoring"],
        "responses": {"200": body, "default": {"$ref": "#/components/responses/Problem"}},
    }


def _health(name: str, summary: str) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": _REF.format(name="HealthModel")}}}
    responses = {"200": {"description": "It is", "content": body}, "503": {"description": "It is not", "content": body}}
    return {"operationId": name, "summary": summary, "tags": ["monitoring"], "security": [], "responses": responses}


_WHOLE: Mapping[type, tuple[str, ...]] = {ReplayReport: ("state",), Finding: ("key",)}
"""Values that are sent as plain JSON, also if they are large: there is no other way to read them."""

_LISTS = (list, Sequence)

_RECORDS: dict[str, type] = {}
"""The records that have schemas, by name."""


class _Shape(NamedTuple):
    """A type of the library as it is sent: the type of the JSON, and how a value becomes that; None if it is that."""

    type: Any
    convert: Callable[[Any], Any] | None = None


def encode_body(result: Any, kind: Any) -> bytes:
    """Encode what an operation returns, of the type that it declares: a record, or a list or a page of records."""
    convert = _result_shape(kind).convert
    return msgspec.json.encode(result if convert is None else convert(result))


def body_type(kind: Any) -> Any:
    """Return the type of the body for the type that an operation returns."""
    return _result_shape(kind).type


def add_descriptions(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Add the docstrings of the fields of records to their schemas, by name."""
    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            if name in _RECORDS and (text := _description(_RECORDS[name], field)):
                described["description"] = text


@cache
def _result_shape(kind: Any) -> _Shape:
    """Return how a result is sent. A list is an object with `items`, and a page has `next`, too."""
    if get_origin(kind) not in (*_LISTS, Page):
        return _shape(kind, own=False)
    (item,) = get_args(kind)
    items = _shape(list[item], own=False)  # type: ignore[valid-type]
    to_items = items.convert or list
    if get_origin(kind) in _LISTS:
        made = _struct(f"{item.__name__}List", "A list.", [("items", items.type)])
        return _Shape(made, lambda found: {"items": to_items(found)})
    description = "A page of a list. `next` is the cursor of the page that follows; null on the last one."
    made = _struct(f"{item.__name__}Page", description, [("items", items.type), ("next", str | None)])
    return _Shape(made, lambda found: {"items": to_items(found), "next": found.next})


def _struct(name: str, description: str, names: Sequence[tuple[str, Any]]) -> Any:
    return msgspec.defstruct(name, names, namespace={"__doc__": description}, kw_only=True)


@cache
def _record_shape(kind: type) -> _Shape:
    found = _fields(kind)
    made = _struct(kind.__name__, inspect.getdoc(kind) or "", [(name, shape.type) for name, shape in found.items()])
    _RECORDS[kind.__name__] = kind
    converters = [(name, shape.convert) for name, shape in found.items()]
    if issubclass(kind, Model) and not any(convert for _, convert in converters):
        return _Shape(made)

    def convert(record: Any) -> dict[str, Any]:
        return {
            name: getattr(record, name) if convert is None else convert(getattr(record, name))
            for name, convert in converters
        }

    return _Shape(made, convert)


def _fields(kind: type) -> dict[str, _Shape]:
    """Return the fields of a record that are sent."""
    own = issubclass(kind, Model)
    found = {each.name: _shape(each.type, own=own) for each in fields_of(kind) if each.sent}
    whole = {name: _Shape(Any, plain) for name in _WHOLE.get(kind, ())}
    return found | whole


@cache
def _shape(hint: Any, *, own: bool) -> _Shape:
    """Return how a type is sent. In a model of `own`, values and mappings are plain JSON already."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return _Shape(Any, None if own else small_json)
    if is_text(hint):
        return _Shape(str, str)
    if is_record(origin or hint):  # a checkpoint names the type of its state
        return _record_shape(origin or hint)
    if origin in (Union, UnionType):
        shapes = [_shape(each, own=own) for each in arguments]
        convert = next((each.convert for each in shapes if each.convert is not None), None)
        return _Shape(Union[tuple(each.type for each in shapes)], None if convert is None else _optional(convert))  # noqa: UP007
    if origin in (Mapping, dict):
        value = _shape(arguments[1], own=True).type
        return _Shape(dict[str, value], None if own else _plain_mapping)  # type: ignore[valid-type]
    if origin in _LISTS or (origin is tuple and arguments[-1] is Ellipsis):
        item = _shape(arguments[0], own=own)
        return _Shape(list[item.type], None if item.convert is None else _each(item.convert))  # type: ignore[name-defined]
    return _Shape(hint)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [convert(each) for each in values]


def _plain_mapping(value: Mapping[str, Any]) -> Any:
    return plain(dict(value))


def _description(kind: type, name: str) -> str:
    if isinstance(found := getattr(kind, name, None), property):
        return inspect.getdoc(found) or ""
    texts = (_descriptions(each.__module__).get((each.__name__, name)) for each in kind.__mro__)
    return next(filter(None, texts), "")


@cache
def _descriptions(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of the fields of a module's classes; none where there is no source."""
    if not module.startswith("holdfast."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        (each.name, field.target.id): inspect.cleandoc(text.value.value)
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for field, text in pairwise(each.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
