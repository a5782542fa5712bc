"""The services of Google ADK: sessions, artifacts and memory."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError, InvalidError
from holdfast.google_adk import HoldfastArtifactService, HoldfastMemoryService, HoldfastSessionService
from holdfast.testing import ConversationSuite
from tests.frameworks.guides import run_example, run_guide

ALICE: dict[str, Any] = {"app_name": "app", "user_id": "alice"}


def said(text: str, **state: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(author="user", content=content, actions=EventActions(state_delta=state))


def texts(session: Session | None) -> list[str]:
    events: list[Any] = [] if session is None else list(session.events)
    return [each.content.parts[0].text for each in events]


class TestSessions(ConversationSuite):
    """A session of ADK has a name of its own among threads, and one that starts a session has to say so."""

    framework = "google-adk"

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        async def add() -> None:
            service = HoldfastSessionService(store)
            names: dict[str, Any] = {"app_name": "app", "user_id": "u", "session_id": name}
            with suppress(AlreadyExistsError):
                await service.create_session(**names)
            for text in texts:
                while True:
                    session = await service.get_session(**names)
                    assert session is not None
                    with suppress(StaleSessionError):
                        await service.append_event(session, said(text))
                        break

        asyncio.run(add())

    def read(self, store: Any, name: str) -> list[str]:
        service = HoldfastSessionService(store)
        return texts(asyncio.run(service.get_session(app_name="app", user_id="u", session_id=name)))

    def clear(self, store: Any, name: str) -> None:
        thread = store.thread(f"adk/app/u/{name}")
        if self.read(store, name):
            thread.update({"messages": []})

    def test_messages_are_read_in_order_by_another_process(self, tmp_path: Path) -> None:
        with holdfast.open(tmp_path / "a.db") as store:
            self.add(store, "chat", ["one", "two"])
            self.add(store, "other", ["else"])
        with holdfast.open(tmp_path / "a.db") as store:
            assert self.read(store, "chat") == ["one", "two"]
            assert {info.thread for info in store.threads()} == {"adk/app/u/chat", "adk/app/u/other"}

    def test_what_was_cleared_is_in_the_history(self, tmp_path: Path) -> None:
        with holdfast.open(tmp_path / "a.db") as store:
            self.add(store, "chat", ["one"])
            before = store.thread("adk/app/u/chat").get().id
            self.clear(store, "chat")
            assert self.read(store, "chat") == []
            store.thread("adk/app/u/chat").restore(before)
            assert self.read(store, "chat") == ["one"]

    def test_conversations_of_an_identity_are_its_own(self, tmp_path: Path) -> None:
        with holdfast.open(tmp_path / "a.db") as store:
            store.access.grant("user:alice", ["read", "write"], custom="adk/app")
            mine = HoldfastSessionService(store.as_identity(user="alice"))
            session = asyncio.run(mine.create_session(**ALICE, session_id="s", state={"user:a": 1, "app:b": 2}))
            asyncio.run(mine.append_event(session, said("secret", **{"user:c": 3})))
            bob = HoldfastSessionService(store.as_identity(user="bob"))
            assert asyncio.run(bob.get_session(**ALICE, session_id="s")) is None
            with pytest.raises(DeniedError):
                asyncio.run(bob.append_event(session, said("two")))
            with pytest.raises(DeniedError):
                asyncio.run(bob.get_user_state(**ALICE))
            assert asyncio.run(mine.get_user_state(**ALICE)) == {"a": 1, "c": 3}


def test_the_guide_and_the_example_run(tmp_path: Path) -> None:
    run_guide("google-adk.md", tmp_path)
    assert run_example("adk_notes") == [
        "noted, version 0",
        "noted, version 1",
        "state of ada: {'notes': 2}",
        "steps: ['event', 'event', 'event', 'event', 'create']",
        "found: Kelp holds fast.",
    ]


async def use_sessions(service: Any) -> list[Any]:
    """Use a service of sessions; return all that it answers."""
    names = {**ALICE, "session_id": "s1"}
    answers: list[Any] = [await service.get_session(**names)]
    session = await service.create_session(**names, state={"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4})
    answers.append(dict(session.state))
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**names)
    for number in range(5):
        event = said(f"{number}", **{"a": number, "user:b": number, "app:c": number, "temp:d": number})
        event.timestamp = 1000.0 + number
        await service.append_event(session, event)
    answers.append((dict(session.state), texts(session), session.last_update_time))
    partial = said("partial")
    partial.partial = True
    await service.append_event(session, partial)
    await service.create_session(
        app_name="app", user_id="bob", session_id="s1", state={"e": datetime(2026, 1, 1, tzinfo=UTC)}
    )
    await service.create_session(app_name="other", user_id="alice", session_id="a/b c")
    for config in (
        None,
        GetSessionConfig(num_recent_events=2),
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(after_timestamp=1003.0),
        GetSessionConfig(after_timestamp=1001.0, num_recent_events=3),
    ):
        found = await service.get_session(**names, config=config)
        answers.append((texts(found), found.state, found.last_update_time))
    for user in ("alice", "bob", "nobody", None):
        listed = (await service.list_sessions(app_name="app", user_id=user)).sessions
        answers.append([(each.user_id, each.id, each.state, each.events) for each in listed])
    answers.append([each.id for each in (await service.list_sessions(app_name="other")).sessions])
    answers.append(await service.get_user_state(**ALICE))
    await service.delete_session(**names)
    await service.delete_session(**names)
    answers.append(await service.get_session(**names))
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("late"))
    again = await service.create_session(**names)
    answers.append((again.state, again.events))
    answers.append(len((await service.create_session(**ALICE)).id))
    return answers


async def use_artifacts(service: Any) -> list[Any]:
    """Use a service of artifacts; return all that it answers."""
    names = {**ALICE, "session_id": "s1", "filename": "a.txt"}
    answers: list[Any] = [await service.load_artifact(**names), await service.list_versions(**names)]
    answers.append(await service.save_artifact(**names, artifact=types.Part(text="one")))
    blob = types.Part.from_bytes(data=b"\0\xff" * 50_000, mime_type="image/png")
    answers.append(await service.save_artifact(**names, artifact=blob, custom_metadata={"k": 1}))
    user = {**ALICE, "filename": "user:b/c.txt"}
    answers.append(await service.save_artifact(**user, artifact={"text": "shared"}))
    answers += [await service.load_artifact(**names, version=version) for version in (None, 0, 1, 2)]
    answers.append(await service.load_artifact(**user, session_id="s2"))
    answers += [await service.list_artifact_keys(**ALICE, session_id=id) for id in ("s1", "s2", None)]
    versions = await service.list_artifact_versions(**names)
    answers.append([(each.version, each.mime_type, each.custom_metadata) for each in versions])
    one = await service.get_artifact_version(**names, version=0)
    answers.append((one.version, one.mime_type, await service.get_artifact_version(**names, version=7)))
    with pytest.raises(InputValidationError):
        await service.save_artifact(**ALICE, filename="x", artifact=types.Part(text="no session"))
    with pytest.raises(InputValidationError):
        await service.save_artifact(**names, artifact=types.Part())
    await service.delete_artifact(**names)
    await service.delete_artifact(**names)
    answers += [await service.load_artifact(**names), await service.list_versions(**names)]
    return answers


async def use_memory(service: Any) -> list[Any]:
    """Use a memory; return all that it answers."""
    session = Session(
        id="s1", app_name="app", user_id="alice", events=[said("kelp holds fast"), said("私はPythonを使う")]
    )
    await service.add_session_to_memory(session)
    await service.add_session_to_memory(session)
    more = [said("urchins eat kelp fast"), Event(author="user")]
    await service.add_events_to_memory(**ALICE, events=more, session_id="s2")

    async def found(query: str, user: str = "alice") -> list[Any]:
        memories = (await service.search_memory(app_name="app", user_id=user, query=query)).memories
        return [(each.content.parts[0].text, each.author) for each in memories]

    return [
        await found("kelp fast holds"),
        await found("python"),
        await found("nothing"),
        await found("kelp", "bob"),
    ]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("use", "ours", "theirs"),
    [
        (use_sessions, HoldfastSessionService, InMemorySessionService),
        (use_artifacts, HoldfastArtifactService, InMemoryArtifactService),
        (use_memory, HoldfastMemoryService, InMemoryMemoryService),
    ],
)
def test_services_answer_as_those_of_adk_in_memory(
    tmp_path: Path, use: Callable[[Any], Any], ours: Any, theirs: Any, is_async: bool
) -> None:
    async def main() -> Any:
        if is_async:
            async with holdfast.aopen(tmp_path / "a.db") as store:
                return await use(ours(store))
        with holdfast.open(tmp_path / "a.db") as store:
            return await use(ours(store))

    assert asyncio.run(main()) == asyncio.run(use(theirs()))
    with pytest.raises(InvalidError, match="open store"):
        ours("a.db")


def test_a_session_that_was_continued_elsewhere_is_stale(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            service = HoldfastSessionService(store)
            session = await service.create_session(**ALICE, session_id="s")
            other = await service.get_session(**ALICE, session_id="s")
            assert other is not None
            await service.append_event(session, said("one"))
            with pytest.raises(StaleSessionError):
                await service.append_event(other, said("two"))
            made = Session(id="s", app_name="app", user_id="alice")  # by hand, without a mark
            with pytest.raises(StaleSessionError):
                await service.append_event(made, said("three"))
            made = Session(id="s", app_name="app", user_id="alice", events=list(session.events), last_update_time=1e12)
            await service.append_event(made, said("four"))
            await store.maintenance.prune(keep_last=1)
            with pytest.raises(StaleSessionError):
                await service.append_event(session, said("five"))
            assert texts(await service.get_session(**ALICE, session_id="s")) == ["one", "four"]
            log = await store.thread("adk/app/alice/s").log()
            assert len(log) == 1

    asyncio.run(main())


def test_references_to_artifacts_stay_with_their_user(tmp_path: Path) -> None:
    async def main(service: Any) -> None:
        from google.adk.artifacts import artifact_util

        await service.save_artifact(**ALICE, filename="user:a", artifact=types.Part(text="one"))

        def reference(user: str) -> types.Part:
            uri = artifact_util.get_artifact_uri("app", user, "user:a", 0)
            return types.Part(file_data=types.FileData(file_uri=uri, mime_type="text/plain"))

        await service.save_artifact(**ALICE, filename="user:b", artifact=reference("alice"))
        loaded = await service.load_artifact(**ALICE, filename="user:b")
        assert loaded.text == "one"
        with pytest.raises(InputValidationError):
            await service.save_artifact(app_name="app", user_id="bob", filename="user:c", artifact=reference("alice"))

    with holdfast.open(tmp_path / "a.db") as store:
        asyncio.run(main(HoldfastArtifactService(store)))
    asyncio.run(main(InMemoryArtifactService()))


def test_memories_that_were_deleted_do_not_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            service = HoldfastMemoryService(store)
            session = Session(id="s1", app_name="app", user_id="alice", events=[said("kelp")])
            await service.add_session_to_memory(session)
            content = types.Content(parts=[types.Part(text="kelp by hand")])
            await service.add_memory(**ALICE, memories=[MemoryEntry(content=content)], custom_metadata={"k": 1})
            found = (await service.search_memory(**ALICE, query="kelp")).memories
            by_metadata = {next(iter(each.custom_metadata)): each.id for each in found}
            assert sorted(by_metadata) == ["k", "session"]
            await service.delete_memory(**ALICE, memory_id=by_metadata["session"])
            await service.add_session_to_memory(session)
            assert len((await service.search_memory(**ALICE, query="kelp")).memories) == 1

    asyncio.run(main())


def test_crossings(tmp_path: Path) -> None:
    """Encryption, another store, copies, erasure and branches."""
    encryption = Encryption(LocalKeys(b"k" * 32))
    with (
        holdfast.open(f"file://{tmp_path}/files", encryption=encryption) as store,
        holdfast.open("memory://") as other,
    ):

        async def fill() -> None:
            sessions, artifacts = HoldfastSessionService(store), HoldfastArtifactService(store)
            for user in ("alice", "bob"):
                session = await sessions.create_session(
                    app_name="app", user_id=user, session_id="s", state={"user:x": user}
                )
                await sessions.append_event(session, said("the kelp is loose"))
                names: dict[str, Any] = {"app_name": "app", "user_id": user}
                await artifacts.save_artifact(**names, filename="user:a", artifact=types.Part(text="photo"))
                await HoldfastMemoryService(store).add_session_to_memory(session)

        asyncio.run(fill())
        assert b"kelp" not in b"".join(path.read_bytes() for path in (tmp_path / "files").rglob("*") if path.is_file())
        store.maintenance.copy_to(other)
        assert texts(asyncio.run(HoldfastSessionService(other).get_session(**ALICE, session_id="s"))) == [
            "the kelp is loose"
        ]
        thread = store.thread("adk/app/alice/s")
        thread.fork("aside", at="HEAD~1")
        thread.switch("aside")
        assert texts(asyncio.run(HoldfastSessionService(store).get_session(**ALICE, session_id="s"))) == []

        store.erasure.erase("alice")
        for user, left in (("alice", 0), ("bob", 1)):
            names = {"app_name": "app", "user_id": user}
            listed = asyncio.run(HoldfastSessionService(store).list_sessions(**names)).sessions
            keys = asyncio.run(HoldfastArtifactService(store).list_artifact_keys(**names))
            found = asyncio.run(HoldfastMemoryService(store).search_memory(**names, query="kelp")).memories
            state = asyncio.run(HoldfastSessionService(store).get_user_state(**names))
            assert (len(listed), len(keys), len(found), len(state)) == (left, left, left, left)


SERVICES = ("sqlite", "sqlite without SQLAlchemy", "postgresql")


def place_of(service: str, folder: Path) -> tuple[Any, str]:
    """A service of ADK's own with a database, and where that is."""
    from google.adk.sessions.database_session_service import DatabaseSessionService
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    if service == "postgresql":
        server = os.environ.get("HOLDFAST_TEST_POSTGRES_URL")
        if server is None:
            pytest.skip("make adapters starts PostgreSQL")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS adk")
            connection.execute("CREATE DATABASE adk")
        url = urlsplit(server)._replace(path="/adk")
        return DatabaseSessionService(url._replace(scheme="postgresql+asyncpg").geturl()), url.geturl()
    path = str(folder / "adk.db")
    if service == "sqlite":
        return DatabaseSessionService(f"sqlite+aiosqlite:///{path}"), path
    return SqliteSessionService(path), path


@pytest.mark.parametrize("kind", SERVICES)
def test_databases_of_adk_are_imported(tmp_path: Path, kind: str) -> None:
    """Those that its own services wrote; what ours answers of them is what they answer."""
    from holdfast.interfaces.peer_sessions import ADK, estimate_sessions, find_kind, import_sessions

    async def write() -> tuple[list[Any], str]:
        theirs, place = place_of(kind, tmp_path)
        session = await theirs.create_session(
            **ALICE, session_id="s", state={"first": 1, "user:plan": "pro", "app:n": 1}
        )
        await theirs.create_session(app_name="app", user_id="bob")
        for number in range(3):
            await theirs.append_event(session, said(f"{number} ü", **{"n": number, "app:n": number}))
        found = await read(theirs)
        if close := getattr(theirs, "close", None):
            await close()
        return found, place

    async def read(service: Any) -> list[Any]:
        session = await service.get_session(**ALICE, session_id="s")
        return [session.state, [event.model_dump() for event in session.events], await service.get_user_state(**ALICE)]

    theirs, place = asyncio.run(write())
    assert find_kind(place) == ADK
    found = estimate_sessions(ADK, place)
    assert (found.threads, found.messages) == (2, 3)
    assert found.before > found.after // 100 > 0
    with holdfast.open(tmp_path / "a.db") as store:
        assert import_sessions(store, ADK, place).messages == 3
        assert import_sessions(store, ADK, place).skipped == 3
        assert asyncio.run(read(HoldfastSessionService(store))) == theirs


@pytest.mark.parametrize("kind", ["memory", "postgresql"])
def test_sessions_are_in_a_store_on_a_server(kind: str, tmp_path: Path) -> None:
    """Our own service on the server that ADK's would be on."""
    url = "memory://"
    if kind == "postgresql":
        url = place_of(kind, tmp_path)[1]
    with holdfast.open(url) as store:
        assert asyncio.run(use_sessions(HoldfastSessionService(store))) == asyncio.run(
            use_sessions(InMemorySessionService())
        )


def test_credentials_are_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy replaces is read back as a message all the same."""
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(b"k" * 32).decode())
    secret = "ghp_" + "x7Kq2mWv9" * 4
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect()

        async def talk() -> str:
            service = HoldfastSessionService(store)
            session = await service.create_session(**ALICE, session_id="s")
            await service.append_event(session, said(f"my token is {secret}", token=secret))
            again = await service.get_session(**ALICE, session_id="s")
            assert again is not None
            assert again.state["token"].startswith("[token:")
            return texts(again)[0]

        read = asyncio.run(talk())
        assert read.startswith("my token is [token:github-token:")
        assert secret not in str(store.thread("adk/app/alice/s").get().state)
