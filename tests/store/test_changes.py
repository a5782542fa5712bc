"""`store.changes()` names what changed since a token, and nothing that the caller may not see."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import change_log
from holdfast.errors import InvalidError
from holdfast.store.store import Store
from holdfast.store.thread_access import StoreChanges


@holdfast.agents.persistent(name="helper")
@dataclass
class Helper:
    """An agent."""

    count: int = 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def named(changes: StoreChanges) -> tuple[set[str], set[str], set[str]]:
    assert changes.complete
    return set(changes.threads), set(changes.agents), {str(scope) for scope in changes.scopes}


def test_threads_scopes_and_agents_are_named_as_the_api_has_them(file: Path) -> None:
    with holdfast.open(file) as store:
        store.thread("before").put({"n": 0})
        first = store.changes()
        assert named(first) == (set(), set(), set())
        store.thread("chat").put({"n": 1})
        store.state(user="alice").set("name", "Alice")
        store.agents.create(Helper, "helper")
        found = store.changes(first.token)
        assert found.threads == ["chat"]
        assert "helper" in found.agents
        assert "user:alice" in {str(scope) for scope in found.scopes}
        assert named(store.changes(found.token)) == (set(), set(), set())


@pytest.mark.parametrize(
    "change",
    [
        lambda thread: thread.update({"n": 2}),
        lambda thread: thread.tag("v1"),
        lambda thread: thread.pin(),
        lambda thread: thread.fork("other"),
        lambda thread: thread.delete(),
    ],
    ids=["update", "tag", "pin", "fork", "delete"],
)
def test_every_change_of_a_thread_names_it(file: Path, change: object) -> None:
    with holdfast.open(file) as store:
        store.thread("chat").put({"n": 1})
        store.thread("other").put({"n": 1})
        token = store.changes().token
        store.thread("chat").get()
        assert store.changes(token).threads == []
        change(store.thread("chat"))  # type: ignore[operator]
        assert store.changes(token).threads == ["chat"]


def test_names_are_those_of_the_list(store: Store) -> None:
    token = store.changes().token
    names = ["a␟b", "ü/\t", "x" * 300]
    for name in names:
        store.thread(name).put({"n": 1})
    assert sorted(store.changes(token).threads) == sorted(each.thread for each in store.threads()) == sorted(names)


def test_another_process_or_handle_is_seen(file: Path) -> None:
    with holdfast.open(file) as reader, holdfast.open(file) as writer:
        token = reader.changes().token
        writer.thread("chat").put({"n": 1})
        found = reader.changes(token)
        assert found.threads == ["chat"]
    with holdfast.open(file) as again:
        assert again.changes(token).threads == ["chat"]
        assert again.changes(found.token).threads == []


def test_asyncio(file: Path) -> None:
    async def main() -> list[str]:
        async with await holdfast.aopen(file) as store:
            token = (await store.changes()).token
            await store.thread("chat").put({"n": 1})
            return (await store.changes(token)).threads

    assert asyncio.run(main()) == ["chat"]


def test_a_tenant_sees_its_own_changes(file: Path) -> None:
    with holdfast.open(file, tenant="a") as one, holdfast.open(file, tenant="b") as other:
        token = one.changes().token
        other.thread("secret").put({"n": 1})
        assert named(one.changes(token)) == (set(), set(), set())
        one.thread("chat").put({"n": 1})
        assert one.changes(token).threads == ["chat"]
        assert "secret" in other.changes(token).threads, "the control: it was recorded"


def test_an_identity_sees_what_it_may_read(store: Store) -> None:
    alice, bob = store.as_identity(user="alice"), store.as_identity(user="bob")
    token = store.changes().token
    alice.thread("hers").put({"n": 1})
    alice.state(user="alice").set("key", 1)
    bob.thread("his").put({"n": 1})
    assert alice.changes(token).threads == ["hers"]
    assert bob.changes(token).threads == ["his"]
    assert "user:alice" in {str(scope) for scope in alice.changes(token).scopes}
    assert "user:alice" not in {str(scope) for scope in bob.changes(token).scopes}
    assert set(store.changes(token).threads) == {"hers", "his"}


@pytest.mark.parametrize("token", ["", "x", "sqlite.", "postgresql.1.2", 7, b"sqlite.1"])
def test_a_token_of_something_else_is_refused(file: Path, token: object) -> None:
    with holdfast.open(file) as store, pytest.raises(InvalidError, match="token"):
        store.changes(token)  # type: ignore[arg-type]


# What a SQLite file remembers


def test_a_file_that_was_replaced_by_an_older_copy_is_noticed(file: Path) -> None:
    copy = file.with_name("copy.db")
    with holdfast.open(file) as store:
        store.thread("chat").put({"n": 1})
        at_copy = store.changes().token
    shutil.copy(file, copy)
    with holdfast.open(file) as store:
        store.thread("lost").put({"n": 2})
        later = store.changes().token
    shutil.copy(copy, file)
    with holdfast.open(file) as store:
        assert store.changes(at_copy).complete, "the copy knows this token"
        assert not store.changes(later).complete
        for number in range(50):
            store.thread("chat").put({"n": number})
        assert store.changes(at_copy).threads == ["chat"]
        assert not store.changes(later).complete, "as many changes later, it is still not of this file"


def test_a_file_remembers_the_last_changes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MAX_LINES", 20)
    monkeypatch.setattr(change_log, "_TRIM_EVERY", 8)
    with holdfast.open(file) as store:
        tokens = [store.changes().token]
        for number in range(60):
            store.thread(f"chat-{number}").put({"n": number})
            tokens.append(store.changes().token)
        for since, token in enumerate(tokens):
            found = store.changes(token)
            if since < 25:
                assert not found.complete
            elif since >= 40:
                assert set(found.threads) == {f"chat-{number}" for number in range(since, 60)}
                assert found.complete


def test_a_line_that_changes_often_takes_little_space(file: Path) -> None:
    with holdfast.open(file) as store:
        for number in range(200):
            store.thread("chat").put({"n": number})
    connection = apsw.Connection(str(file))
    assert connection.execute("SELECT count(*) FROM changes WHERE line = 'chat'").get <= change_log._DELETE_AT_ONCE + 1
    connection.close()


def test_tidying_removes_the_names_of_deleted_threads(file: Path) -> None:
    with holdfast.open(file) as store:
        store.thread("stays").put({"n": 1})
        old = store.changes().token
        store.thread("private").put({"n": 1})
        store.thread("private").delete()
        token = store.changes().token
        assert "private" in store.changes(old).threads
        store.maintenance.compact()
        assert not store.changes(old).complete
        assert store.changes(token).complete
        store.thread("stays").put({"n": 2})
        assert store.changes(token).threads == ["stays"]
    connection = apsw.Connection(str(file))
    assert connection.execute("SELECT count(*) FROM changes WHERE line = 'private'").get == 0
    assert connection.execute("SELECT count(*) FROM changes WHERE line = 'stays'").get > 0
    connection.close()


def test_a_failed_transaction_forgets_no_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a transaction replaced are deleted only if it was committed."""
    monkeypatch.setattr(change_log, "_DELETE_AT_ONCE", 1)
    with holdfast.open(file) as store:
        token = store.changes().token
        store.thread("chat").put({"n": 1})
        real, failures = change_log.ChangeLog.record, []

        def fail(self: change_log.ChangeLog, *args: object) -> None:
            real(self, *args)  # type: ignore[arg-type]
            failures.append(1)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(change_log.ChangeLog, "record", fail)
            with pytest.raises(KeyboardInterrupt):
                store.thread("chat").put({"n": 2})
        assert failures
        store.thread("other").put({"n": 1})  # with the number that the failed one had
        store.thread("chat").put({"n": 3})
        assert set(store.changes(token).threads) == {"chat", "other"}
