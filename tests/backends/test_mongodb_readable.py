"""The collections for people in MongoDB: plain fields, and indexes that the queries of the guide use."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from pymongo import MongoClient
from pymongo.cursor import Cursor
from pymongo.database import Database

import holdfast
from holdfast.agents import Machine, PersistentAgent
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import HEADS, READABLE, STATE_TRANSITIONS, TABLES
from holdfast.engine.projection import follower
from holdfast.errors import VetoError
from tests.servers import mongodb, postgres

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "readable.md"

VIEWS = {"agent_states", "threads"}

Documents = Database[dict[str, Any]]


class Baker(PersistentAgent, name="mongodb-readable-baker"):
    machine = Machine("idle", "kneading")
    machine.add("knead", "idle", "kneading", guard="has_flour")

    def has_flour(self, grams: int) -> bool:
        return grams > 0


@pytest.fixture(scope="module")
def documents() -> Iterator[Documents]:
    """Threads of several tenants, as anybody sees them."""
    url = mongodb()
    for tenant in ("", "other"):
        with holdfast.open(url, tenant=tenant) as store:
            for number in range(1, 31):
                messages = [{"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(5)]
                plan = {"todo": [], "done": ["look it up"] if number == 1 else []}
                state = {"messages": messages, "plan": plan, "other": number}
                store.thread(f"chat-{number}").put(state, metadata={"tokens": number, "model": "small"})
                store.thread(f"chat-{number}").put({**state, "other": -number})
            for number in range(1, 4):
                with Baker().attach(store, f"baker-{number}") as baker:
                    baker.conversation.append({"role": "user", "content": "A loaf, please."})
                    for grams in (0, 500):
                        with suppress(VetoError):
                            baker.transition("knead", grams)
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
        found = re.fullmatch(
            r"(\w+)\.(find|aggregate)\((.*?)\)(?:\.sort\((.*?)\))?(?:\.limit\((\d+)\))?", call, re.DOTALL
        )
        assert found is not None, call
        collection, kind, what, order, most = found.groups()
        if kind == "find":
            command = {"find": collection, "filter": json.loads(what), "sort": json.loads(order or "{}")}
            commands.append({**command, "limit": int(most or 0)})
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


def winning_stages(explained: Any) -> tuple[set[str], dict[str, Any]]:
    after = set()
    if "stages" in explained:  # a view, or an aggregation
        after = {name for each in explained["stages"][1:] for name in each if name == "$sort"}
        explained = explained["stages"][0]["$cursor"]
    return {*stages(explained["queryPlanner"]["winningPlan"]), *after}, explained["executionStats"]


def explain(documents: Documents, command: dict[str, Any]) -> tuple[set[str], dict[str, Any]]:
    return winning_stages(documents.command("explain", command, verbosity="executionStats"))


def test_the_guide_shows_ten_queries_of_all_collections() -> None:
    assert len(guide_commands()) >= 10
    shown = {table.name for table in READABLE if table is not HEADS} | VIEWS
    assert {next(iter(each.values())) for each in guide_commands()} == shown


def test_the_queries_of_the_guide_in_python_use_the_indexes(documents: Documents) -> None:
    (text,) = [
        each for each in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "def queries" in each
    ]
    names: dict[str, Any] = {}
    exec(text[text.index("def queries") : text.index("class Baker")], names)
    found: dict[str, Any] = names["queries"](documents)
    in_shell = [list(documents.command(command)["cursor"]["firstBatch"]) for command in guide_commands()]
    for (name, cursor), expected in zip(found.items(), in_shell, strict=True):
        # Of aggregates and views, the shell's form is explained.
        if isinstance(cursor, Cursor) and cursor.collection.name not in VIEWS:
            used, numbers = winning_stages(cursor.clone().explain())
            assert "IXSCAN" in used, name
            assert not used & {"COLLSCAN", "SORT", "$sort"}, name
            assert numbers["totalDocsExamined"] <= 30, name
        assert sorted(map(str, cursor)) == sorted(map(str, expected)), name
        assert expected, name


@pytest.mark.parametrize("command", guide_commands(), ids=lambda command: "-".join(map(str, command.values()))[:60])
def test_the_queries_of_the_guide_use_the_indexes(documents: Documents, command: dict[str, Any]) -> None:
    assert run_command(documents, command)
    used, numbers = explain(documents, command)
    assert "IXSCAN" in used
    assert not used & {"COLLSCAN", "SORT", "$sort"}
    # Of another thread, or another tenant, nothing is read.
    assert numbers["totalDocsExamined"] <= 30
    assert numbers["totalKeysExamined"] <= 31


def test_without_an_index_the_whole_collection_is_read(documents: Documents) -> None:
    """Or the test above could not fail."""
    used, numbers = explain(
        documents, {"find": "conversation_history", "filter": {"role": "user"}, "sort": {"name": 1}}
    )
    assert used >= {"COLLSCAN", "SORT"}
    assert numbers["totalDocsExamined"] == 2 * (30 * 5 + 3)


def test_every_column_is_a_field(documents: Documents) -> None:
    for table in READABLE:
        thread = "␞agents:baker-1" if table is STATE_TRANSITIONS else "chat-1"
        document = documents[table.name].find_one({"tenant": "", "thread": thread})
        assert document is not None, table.name
        assert document.keys() == {"_id", *table.all_columns}
        assert document["_id"] == {name: document[name] for name in table.key}
    for table in set(TABLES) - {*READABLE}:  # these are Holdfast's own
        for document in documents[table.name].find().limit(1):
            assert "tenant" not in document


@pytest.mark.parametrize("project", ["sync", "follow", None])
def test_rows_are_there_with_their_checkpoint_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, project: Literal["sync", "follow"] | None
) -> None:
    monkeypatch.setattr(follower, "_SECONDS", 1_000.0)
    url = mongodb()
    saved: list[str] = []
    with MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        with holdfast.open(url, project=project) as store:
            for number in range(3):
                saved.append(store.thread("t").put({"messages": [f"{n}" for n in range(number)]}).id)
                shown = [each["checkpoint"] for each in database.heads.find()]
                marked = database.lines.find_one({"_id.line": "t"}, {"behind": 1}) or {}
                assert shown == (saved[-1:] if project == "sync" else [])
                assert len(marked.get("behind", ())) == (0 if project == "sync" else number + 1)
        assert [each["checkpoint"] for each in database.heads.find()] == saved[-1:]
        assert database.conversation_history.count_documents({}) == 2
        client.drop_database(database.name)


def test_people_find_the_same_fields_in_every_store(documents: Documents, tmp_path: Path) -> None:
    fields: dict[str, dict[str, list[str]]] = {}
    names = [*(table.name for table in READABLE), *VIEWS]
    for kind, url in (("sqlite", f"sqlite:///{tmp_path}/a.db"), ("postgresql", postgres())):
        with holdfast.open(url, project=True) as store, Baker().attach(store, "baker-1") as baker:
            baker.transition("knead", 500)
        if kind == "sqlite":
            connection: Any = sqlite3.connect(tmp_path / "a.db")
        else:
            connection = psycopg.connect(url, options="-c search_path=holdfast")
        with closing(connection):
            fields[kind] = {
                name: [column[0] for column in connection.execute(f"SELECT * FROM {name}").description]
                for name in names
            }
    assert fields["sqlite"] == fields["postgresql"]
    for name in names:
        thread = "chat-1" if name in ("threads", "metadata") else "␞agents:baker-1"
        found = documents[name].find_one({"tenant": "", "thread": thread}) or {}
        in_sql = {*fields["sqlite"][name]} - {"body"}  # which is empty
        if name == "threads":  # in MongoDB it has the columns of `heads`
            assert in_sql - found.keys() == {"branches"}
        else:
            assert found.keys() - {"_id"} == in_sql, name


def test_messages_are_in_order(documents: Documents) -> None:
    found = documents.conversation_history.find({"tenant": "", "thread": "chat-7"}).sort("number")
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
