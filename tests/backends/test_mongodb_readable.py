"""The collections for people in MongoDB: plain fields, and indexes that the queries of the guide use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import READABLE, TABLES
from tests.servers import mongodb

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "readable.md"

Documents = Database[dict[str, Any]]


@pytest.fixture(scope="module")
def documents() -> Iterator[Documents]:
    """Threads of several tenants, as anybody sees them."""
    url = mongodb()
    for tenant in ("", "other"):
        with holdfast.open(url, tenant=tenant) as store:
            for number in range(1, 31):
                messages = [{"role": "user", "content": f"message {n}"} for n in range(5)]
                plan = {"todo": [], "done": ["look it up"] if number == 1 else []}
                state = {"messages": messages, "plan": plan, "other": number}
                store.thread(f"chat-{number}").put(state, metadata={"tokens": number, "model": "small"})
                store.thread(f"chat-{number}").put({**state, "other": -number})
    with MongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()
        client.drop_database(client.get_default_database().name)


def guide_commands() -> list[dict[str, Any]]:
    """The queries of the guide, as commands."""
    (block,) = re.findall(r"```javascript\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    text = re.sub(r"//.*", "", block)
    text = re.sub(r"([{,]\s*)([\w$]+):", r'\1"\2":', text)
    commands: list[dict[str, Any]] = []
    for call in filter(None, map(str.strip, text.split("db."))):
        found = re.fullmatch(r"(\w+)\.(find|aggregate)\((.*?)\)(?:\.sort\((.*)\))?", call, re.DOTALL)
        assert found is not None, call
        collection, kind, what, order = found.groups()
        if kind == "find":
            commands.append({"find": collection, "filter": json.loads(what), "sort": json.loads(order or "{}")})
        else:
            commands.append({"aggregate": collection, "pipeline": json.loads(what), "cursor": {}})
    return commands


def run_command(documents: Documents, command: dict[str, Any]) -> list[dict[str, Any]]:
    return list(documents.command(command)["cursor"]["firstBatch"])


def stages(plan: Any) -> Iterator[str]:
    """The stages of a plan, however deep."""
    if isinstance(plan, dict):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for each in plan.values():
            yield from stages(each)
    elif isinstance(plan, list):
        for each in plan:
            yield from stages(each)


def winning_stages(documents: Documents, command: dict[str, Any]) -> tuple[set[str], dict[str, Any]]:
    explained = documents.command("explain", command, verbosity="executionStats")
    if "stages" in explained:
        explained = explained["stages"][0]["$cursor"]
    return set(stages(explained["queryPlanner"]["winningPlan"])), explained["executionStats"]


def test_the_guide_shows_queries() -> None:
    assert {next(iter(each.values())) for each in guide_commands()} >= {"conversations", "state_values", "metadata"}


@pytest.mark.parametrize("command", guide_commands(), ids=lambda command: "-".join(map(str, command.values()))[:60])
def test_the_queries_of_the_guide_use_the_indexes(documents: Documents, command: dict[str, Any]) -> None:
    assert run_command(documents, command)
    used, numbers = winning_stages(documents, command)
    assert "IXSCAN" in used
    assert not used & {"COLLSCAN", "SORT"}
    # Of another thread, or another tenant, nothing is read.
    assert numbers["totalDocsExamined"] <= 30
    assert numbers["totalKeysExamined"] <= 31


def test_without_an_index_the_whole_collection_is_read(documents: Documents) -> None:
    """Or the test above could not fail."""
    used, numbers = winning_stages(
        documents, {"find": "conversations", "filter": {"role": "user"}, "sort": {"name": 1}}
    )
    assert used >= {"COLLSCAN", "SORT"}
    assert numbers["totalDocsExamined"] == 2 * 30 * 5


def test_every_column_is_a_field(documents: Documents) -> None:
    for table in READABLE:
        document = documents[table.name].find_one({"tenant": "", "thread": "chat-1"})
        assert document is not None, table.name
        assert document.keys() == {"_id", *table.all_columns}
        assert document["_id"] == {name: document[name] for name in table.key}
    for table in set(TABLES) - {*READABLE}:  # these are Holdfast's own
        for document in documents[table.name].find().limit(1):
            assert "tenant" not in document


def test_messages_are_in_order(documents: Documents) -> None:
    found = documents.conversations.find({"tenant": "", "thread": "chat-7"}).sort("position")
    assert [each["content"] for each in found] == [f"message {n}" for n in range(5)]


@pytest.mark.nightly
def test_a_row_that_was_moved_by_hand_is_found_and_put_right(documents: Documents) -> None:
    host, port = documents.client.address or ("", 0)
    url = f"mongodb://{host}:{port}/{documents.name}?directConnection=true"
    one = {"tenant": "other", "thread": "chat-3", "channel": "plan"}
    documents.state_values.update_one(one, {"$set": {"thread": "chat-4"}})
    with holdfast.open(url, tenant="other") as store:
        backend = store._engine.context.backend
        assert run(backend.check()) == [
            "state_values: 1 documents have other values in the fields of their key than in _id"
        ]
        assert documents.state_values.delete_many({"$expr": {"$ne": ["$thread", "$_id.thread"]}}).deleted_count == 1
        assert store.maintenance.project(again=True)
        assert run(backend.check()) == []
    assert documents.state_values.count_documents(one) == 1
