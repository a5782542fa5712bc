"""Sessions of other frameworks' databases: imported, compared, resumed, and named when they are opened by mistake."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import ConfigError, ConflictError, InvalidError, NotFoundError
from holdfast.interfaces import peer_sessions
from holdfast.interfaces.peer_sessions import ADK, OPENAI, SessionImport, estimate_sessions, find_kind, import_sessions
from tests.interfaces.cli import kit
from tests.servers.places import place


def items(count: int) -> list[Any]:
    return [{"role": "user", "content": f"{number} ü", "n": [1.5, None]} for number in range(count)]


def openai_database(path: Path, sessions: dict[str, list[Any]]) -> Path:
    """A database that the SDK itself wrote."""
    from agents import SQLiteSession

    async def fill() -> None:
        for id, added in sessions.items():
            session = SQLiteSession(id, path)
            await session.add_items(added)
            session.close()

    asyncio.run(fill())
    return path


ADK_TABLES = """
CREATE TABLE app_states (app_name TEXT PRIMARY KEY, state TEXT NOT NULL, update_time REAL NOT NULL);
CREATE TABLE user_states (app_name TEXT, user_id TEXT, state TEXT, update_time REAL, PRIMARY KEY (app_name, user_id));
CREATE TABLE sessions (app_name TEXT, user_id TEXT, id TEXT, state TEXT, create_time REAL, update_time REAL);
CREATE TABLE events (id TEXT, app_name TEXT, user_id TEXT, session_id TEXT, timestamp REAL, event_data TEXT);
"""


def adk_database(path: Path, events: int) -> Path:
    """A database as ADK's services write it; `tests/frameworks` imports ones that they wrote themselves."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(ADK_TABLES)
        connection.execute("INSERT INTO app_states VALUES ('app', '{\"limit\": 3}', 0)")
        connection.execute("INSERT INTO user_states VALUES ('app', 'alice', '{\"plan\": \"pro\"}', 0)")
        state = json.dumps({"first": 1, "n": events - 1})
        connection.execute("INSERT INTO sessions VALUES ('app', 'alice', 's/1', ?, 0, 0)", [state])
        connection.execute("INSERT INTO sessions VALUES ('app', 'bob', 's2', '{}', 0, 0)")
        for number in range(events):
            delta = {"n": number, "user:plan": "pro"}
            event = {
                "id": f"e{number}",
                "timestamp": 100.0 + number,
                "author": "user",
                "actions": {"state_delta": delta},
            }
            row = [event["id"], 100.0 + number, json.dumps(event)]
            connection.execute("INSERT INTO events VALUES (?, 'app', 'alice', 's/1', ?, ?)", row)
        connection.commit()
    return path


def test_sessions_of_openai_are_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sessions, "_PAGE", 7)
    sessions = {"chat": items(30), "other": items(2)}
    path = openai_database(tmp_path / "peer.db", sessions)
    seen: list[tuple[int, int, str]] = []
    with holdfast.open(tmp_path / "a.db") as store:
        report = import_sessions(store, OPENAI, str(path), progress=lambda *each: seen.append(each))
        assert report == SessionImport(threads=2, messages=32, skipped=0)
        assert {name: store.thread(name).get().state["messages"] for name in sessions} == sessions
        assert store.thread("chat").get().metadata["framework"] == "openai-agents"
        assert seen[-1] == (32, 32, "other")
        assert import_sessions(store, OPENAI, f"sqlite:///{path}") == SessionImport(threads=2, messages=0, skipped=32)
        steps = len(store.thread("chat").log())

        from holdfast.openai_agents import HoldfastSession

        assert asyncio.run(HoldfastSession("chat", store).get_items(limit=1)) == sessions["chat"][-1:]
        openai_database(path, {"chat": items(3)})
        assert import_sessions(store, OPENAI, str(path), ["chat"]) == SessionImport(threads=1, messages=3, skipped=30)
        assert len(store.thread("chat").log()) == steps + 1
        store.thread("chat").append("messages", "more")
        with pytest.raises(ConflictError, match="another history"):
            import_sessions(store, OPENAI, str(path))
        with pytest.raises(NotFoundError, match="no such session"):
            import_sessions(store, OPENAI, str(path), ["nonsense"])
    openai_database(tmp_path / "again.db", sessions)
    with holdfast.open(tmp_path / "b.db") as store:
        store.thread("chat").append("messages", *items(4))  # as after an import that was killed
        report = import_sessions(store, OPENAI, str(tmp_path / "again.db"))
        assert report == SessionImport(threads=2, messages=28, skipped=4)


def test_sessions_of_adk_are_threads_with_their_state(tmp_path: Path) -> None:
    path = adk_database(tmp_path / "adk.db", 5)
    with holdfast.open(tmp_path / "a.db") as store:
        assert import_sessions(store, ADK, str(path)) == SessionImport(threads=2, messages=5, skipped=0)
        thread = store.thread("adk/app/alice/s%2F1")
        state = thread.get().state
        assert [event["id"] for event in state["messages"]] == ["e0", "e1", "e2", "e3", "e4"]
        assert (state["state"], state["updated"]) == ({"first": 1, "n": 4}, 104.0)
        numbers = [thread.get(entry).state["state"].get("n") for entry in thread.log()]
        assert numbers == [4, 4, 3, 2, 1, 0, None]
        assert store.thread("adk/app/bob/s2").get().state["messages"] == []
        assert dict(store.state(custom="adk/app")) == {"limit": 3}
        assert dict(store.state(user="alice", custom="adk/app")) == {"plan": "pro"}
        store.state(custom="adk/app")["limit"] = 4
        assert import_sessions(store, ADK, str(path)) == SessionImport(threads=2, messages=0, skipped=5)
        assert store.state(custom="adk/app")["limit"] == 4
        store.erasure.erase("alice")
        assert [info.thread for info in store.threads()] == ["adk/app/bob/s2"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(ADK_TABLES.replace("event_data", "actions"))
    (tmp_path / "text.db").write_text("no database at all, but long enough to be one" * 100)
    with holdfast.open("memory://") as store:
        with pytest.raises(InvalidError, match="pickled form"):
            import_sessions(store, ADK, str(old))
        for kind in (OPENAI, ADK):
            with pytest.raises(InvalidError, match="not a database with sessions"):
                import_sessions(store, kind, str(tmp_path / "text.db"))
            with pytest.raises(NotFoundError):
                import_sessions(store, kind, str(tmp_path / "missing.db"))
        assert store.threads() == []


@pytest.mark.parametrize("kind", [OPENAI, ADK])
def test_the_command_imports_and_a_mistake_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "peer.db"
    if kind == OPENAI:
        openai_database(path, {"chat": items(3)})
    else:
        adk_database(path, 3)
    with pytest.raises(ConfigError) as raised:
        holdfast.open(path)
    assert f"holdfast import --from {kind} {path}" in str(raised.value.hint)
    done = kit.run("--store", str(tmp_path / "a.db"), "import", "--from", kind, str(path))
    assert done.code == 0, done.err
    assert "Imported 3 messages of " in done.out
    assert json.loads(
        kit.run("--store", str(tmp_path / "a.db"), "--json", "import", "--from", kind, str(path)).out
    ) == {
        "threads": 1 if kind == OPENAI else 2,
        "messages": 0,
        "skipped": 3,
    }
    refused = kit.run("--store", str(tmp_path / "a.db"), "import", "--from", kind, "--allow", "x:Y", str(path))
    assert refused.code == 2
    before, wal = path.read_bytes(), path.with_name("peer.db-wal")
    size = len(before) + (wal.stat().st_size if wal.exists() else 0)
    found = kit.run("estimate", str(path))
    assert found.out.startswith(f"3 messages of {1 if kind == OPENAI else '2'} thread"), found.err
    (record,) = kit.run("--json", "estimate", str(path)).records
    assert (record["messages"], record["before"]) == (3, size)
    assert record["after"] > 0
    assert path.read_bytes() == before
    assert kit.run("estimate", "--allow", "x:Y", str(path)).code == 2


def test_sessions_on_postgresql_are_estimated(tmp_path: Path) -> None:
    url = place("postgres", tmp_path)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE agent_sessions (session_id text)")
        connection.execute("CREATE TABLE agent_messages (id serial, session_id text, message_data text)")
        connection.execute("INSERT INTO agent_sessions VALUES ('chat')")
        connection.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', '{\"n\": 1}')")
    assert find_kind(url) == OPENAI
    found = estimate_sessions(OPENAI, url)
    assert (found.threads, found.messages) == (1, 1)
    assert found.before > 8000


KILLED = """
import os, sys
import holdfast
from holdfast.interfaces import peer_sessions

peer_sessions._PAGE = 2
path, peer, kind, dies = sys.argv[1:]
def progress(done, total, thread):
    if done >= int(dies):
        os._exit(9)
with holdfast.open(path) as store:
    peer_sessions.import_sessions(store, kind, peer, progress=progress)
"""


@pytest.mark.parametrize("kind", [OPENAI, ADK])
@pytest.mark.parametrize("dies", [2, 4])
def test_an_import_that_was_killed_goes_on_to_the_same_result(tmp_path: Path, kind: str, dies: int) -> None:
    peer = tmp_path / "peer.db"
    if kind == OPENAI:
        openai_database(peer, {"a": items(3), "b": items(4)})
    else:
        adk_database(peer, 7)
    arguments = [str(tmp_path / "a.db"), str(peer), kind, str(dies)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True)
    assert killed.returncode == 9, killed.stderr
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "whole.db") as whole:
        report = import_sessions(store, kind, str(peer))
        assert report.skipped >= dies
        assert report.messages + report.skipped == 7
        import_sessions(whole, kind, str(peer))
        names = [info.thread for info in whole.threads()]
        assert [info.thread for info in store.threads()] == names
        for name in names:
            assert store.thread(name).get().state == whole.thread(name).get().state
        assert store.maintenance.verify().ok
