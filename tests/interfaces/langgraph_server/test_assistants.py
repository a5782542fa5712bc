"""Assistants of a served store: one of each graph, and further ones with their versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest
from langgraph_sdk import schema
from langgraph_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
)

from tests.interfaces.langgraph_server.kit import GRAPHS, Clients


def assistant(value: Any) -> Any:
    """The assistant, whose fields are those that the client's type says."""
    fields: dict[str, Any] = dict.fromkeys(schema.Assistant.__annotations__, Any)
    fields |= {"created_at": datetime, "updated_at": datetime, "version": int, "name": str, "assistant_id": str}
    msgspec.convert(value, msgspec.defstruct("Assistant", list(fields.items())))
    return value


def test_every_graph_has_an_assistant(clients: Clients) -> None:
    assistants = clients.owner.assistants
    system = assistants.search(metadata={"created_by": "system"}, sort_by="graph_id", sort_order="asc")
    assert [assistant(each)["graph_id"] for each in system] == sorted(GRAPHS)
    by_name = assistants.get("support")
    assert by_name == assistants.get(by_name["assistant_id"])
    with pytest.raises(BadRequestError):
        assistants.delete("support")
    with pytest.raises(NotFoundError):
        assistants.get("none")


def test_an_assistant_has_versions(clients: Clients) -> None:
    assistants = clients.owner.assistants
    made = assistant(
        assistants.create(
            "support", config={"tags": ["a"]}, context={"tone": "kindly"}, metadata={"team": "kelp"}, name="Kind"
        )
    )
    id = made["assistant_id"]
    changed = assistants.update(id, context={"tone": "gruffly"}, metadata={"n": 1}, name="Gruff", description="d")
    assert (changed["version"], changed["metadata"], changed["config"]) == (
        2,
        {"team": "kelp", "n": 1},
        {"tags": ["a"]},
    )
    versions = assistants.get_versions(id)
    assert [(each["version"], each["context"]) for each in versions] == [
        (2, {"tone": "gruffly"}),
        (1, {"tone": "kindly"}),
    ]
    for each in versions:
        assistant({**each, "updated_at": each["created_at"]})
    assert assistants.set_latest(id, 1)["context"] == {"tone": "kindly"} == assistants.get(id)["context"]
    assert assistants.update(id, name="Third")["version"] == 3
    assert assistants.get(id)["context"] == {"tone": "kindly"}
    with pytest.raises(NotFoundError):
        assistants.set_latest(id, 9)
    assert [each["assistant_id"] for each in assistants.search(metadata={"team": "kelp"}, name="thi")] == [id]
    assert assistants.count(graph_id="support", name="third") == 1
    with pytest.raises(ConflictError):
        assistants.create("support", assistant_id=id)
    assert assistants.create("support", assistant_id=id, if_exists="do_nothing")["version"] == 3
    assistants.delete(id)
    with pytest.raises(NotFoundError):
        assistants.get(id)
    with pytest.raises(NotFoundError):
        assistants.create("none")


def test_that_of_a_graph_is_configured(clients: Clients) -> None:
    assistants = clients.owner.assistants
    assert assistants.update("nested", context={"tone": "x"})["version"] == 2
    assert assistants.get("nested")["context"] == {"tone": "x"}
    assert assistants.set_latest("nested", 1)["context"] == {}


def test_pages_of_assistants(clients: Clients) -> None:
    assistants = clients.owner.assistants
    ids = [assistants.create("support", metadata={"suite": "pages"})["assistant_id"] for _ in range(3)]
    page = assistants.search(metadata={"suite": "pages"}, limit=2, response_format="object")
    rest = assistants.search(
        metadata={"suite": "pages"}, limit=2, offset=int(page["next"] or 0), response_format="object"
    )
    assert [each["assistant_id"] for each in [*page["assistants"], *rest["assistants"]]] == ids[::-1]
    assert rest["next"] is None
    chosen: list[Any] = assistants.search(metadata={"suite": "pages"}, select=["version"], limit=1)
    assert chosen == [{"version": 1}]


def test_graphs_and_schemas(clients: Clients) -> None:
    assistants = clients.owner.assistants
    graph: Any = assistants.get_graph("approval")
    assert {each["id"] for each in graph["nodes"]} >= {"plan", "ask", "reply"}
    assert graph["edges"]
    schemas = assistants.get_schemas("support")
    msgspec.convert(schemas, schema.GraphSchema)
    assert '"messages"' in json.dumps(schemas["input_schema"])
    assert '"tone"' in json.dumps(schemas["context_schema"])
    assert set(assistants.get_subgraphs("nested")) == {"inner"} == set(assistants.get_subgraphs("nested", "inner"))
    assert len(assistants.get_graph("nested", xray=True)["nodes"]) > len(assistants.get_graph("nested")["nodes"])


def test_identities_read_assistants_and_need_a_right_to_make_them(clients: Clients) -> None:
    ada = clients.of("user:ada").assistants
    assert ada.get("support")["graph_id"] == "support"
    calls: list[Callable[[], Any]] = [lambda: ada.create("support"), lambda: ada.update("support", name="mine")]
    for call in calls:
        with pytest.raises(PermissionDeniedError):
            call()
    clients.store.access.grant("user:ada", ["read", "write", "delete"], custom="langgraph-assistants")
    ada.delete(ada.create("support", name="hers")["assistant_id"])


def test_threads_of_others_stay_when_an_assistant_is_deleted(clients: Clients) -> None:
    ada, ben = clients.of("user:ada"), clients.of("user:ben")
    clients.store.access.grant("user:ada", ["read", "write", "delete"], custom="langgraph-assistants")
    id = ada.assistants.create("support")["assistant_id"]
    hers, other, his = (each.threads.create()["thread_id"] for each in (ada, ada, ben))
    ada.runs.wait(hers, id, input={"log": []})
    ada.runs.wait(other, "support", input={"log": []})
    ben.runs.wait(his, id, input={"log": []})
    ada.assistants.delete(id, delete_threads=True)
    for client, thread, is_there in ((ada, hers, False), (ada, other, True), (ben, his, True)):
        assert bool(client.threads.search(ids=[thread])) is is_there
