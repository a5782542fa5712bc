"""Bodies and schemas are made from the records of the library, and say no more than they should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_type_hints

import jsonschema_rs
from msgspec.structs import astuple

import holdfast
from holdfast import Page
from holdfast.agents.steps.records import StepRecord
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import ThreadInfo
from holdfast.interfaces.http.openapi import encode_body, openapi_document
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.maintenance.jobs.job import Job
from tests.interfaces.http.kit import DOCUMENT, ServedStore

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class Palette(NamedTuple):
    """A record inside another one."""

    colour: str
    scope: Scope
    """Whose it is."""


def test_a_field_that_a_record_gets_is_in_the_answer_and_in_the_document() -> None:
    info = ThreadInfo("chat", NOW, NOW, 1, 1, 10, None, "thread")
    added: list[tuple[str, Any]] = [("palettes", tuple[Palette, ...]), ("notes", Mapping[str, Any]), ("value", Any)]
    make: Any = NamedTuple  # not known before it is made: a type checker would read the calls
    page: Any = Page
    wider = make("ThreadInfo", [*get_type_hints(ThreadInfo).items(), *added])
    table = RouteTable()

    def list_threads(call: Call) -> Any:
        raise NotImplementedError

    list_threads.__annotations__["return"] = page[wider]
    list_threads.__annotations__["call"] = Call
    table.get("/threads")(list_threads)
    document = openapi_document(table.routes)
    schemas = document["components"]["schemas"]
    assert {name for name, _ in added} <= set(schemas["ThreadInfo"]["properties"])
    assert set(ThreadInfo.__struct_fields__) <= set(schemas["ThreadInfo"]["required"])

    made = wider(*astuple(info), (Palette("red", Scope.of(agent="a")),), {"when": NOW, "pair": (1, 2)}, b"bytes")
    (sent,) = json.loads(encode_body(Page([made], "more"), page[wider]))["items"]
    assert sent["palettes"] == [{"colour": "red", "scope": "agent:a"}]
    assert sent["notes"] == {"when": "2026-11-01T00:00:00Z", "pair": [1, 2]}
    assert sent["updated"] == "2026-11-01T00:00:00Z"
    schema = {"$ref": "#/components/schemas/ThreadInfo", "components": {"schemas": schemas}}
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(sent)


def test_every_route_that_returns_records_has_their_fields_and_what_they_mean() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["ThreadInfo"]["properties"]) == {*ThreadInfo.__struct_fields__, "name"}
    assert schemas["Job"]["properties"]["failures"]["description"] == "The number of failed runs in a row."
    assert schemas["Job"]["properties"]["due"]["description"] == "When it runs next."
    for name, schema in schemas.items():
        assert "properties" in schema or "enum" in schema, name
        assert schema.get("description") or name.endswith("Request"), name


def test_what_is_the_servers_is_not_sent(writable: ServedStore) -> None:
    store = writable.store
    store.jobs.add("back", "backup", settings={"repository": "file:///secret-place"})
    job = writable.get("/jobs/back")
    assert job.json["kind"] == "backup"
    assert "secret" not in job.text
    assert store.jobs.get("back").settings["repository"] == "file:///secret-place"
    secret = {"token", "digest", "settings", "secret", "password", "credentials"}
    assert secret & {each for kind in (Job, StepRecord) for each in kind.__struct_fields__} == {"digest", "settings"}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert not secret & set(schema.get("properties", ())), name
    checkpoint = DOCUMENT["components"]["schemas"]["Checkpoint"]["properties"]
    assert set(checkpoint) == {*holdfast.Checkpoint.__struct_fields__} - {"state"}


def test_a_large_value_is_null_and_a_small_one_is_not(writable: ServedStore) -> None:
    state = writable.store.state(agent="a")
    state["small"], state["large"] = ["x"], ["x"] * 100_000
    assert writable.get("/scopes/agent%3Aa/keys/small").json["value"] == ["x"]
    large = writable.get("/scopes/agent%3Aa/keys/large").json
    assert (large["key"], large["value"]) == ("large", None)
