"""The OpenAPI 3.1 document of the API, made from the table of routes, its models, and the catalogue of operations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.interfaces.http.bodies import add_descriptions, body_type
from holdfast.interfaces.http.forwards import first_sentence
from holdfast.interfaces.http.models import HealthModel, Problem, StoreChangesModel
from holdfast.interfaces.http.problems import MEDIA_TYPE
from holdfast.interfaces.http.routes import API, FileContent, Route
from holdfast.store.catalogue import CataloguedOperation, catalogue

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
