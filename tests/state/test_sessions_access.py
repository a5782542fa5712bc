"""Who may do what with sessions and artifacts, and what hooks are called for them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple

from holdfast.errors import DeniedError, NotFoundError, VetoError
from holdfast.hooks import HookContext
from holdfast.state.artifacts.api import ArtifactSource
from holdfast.store.store import Store
from tests.maintenance.kit import HOUR, Clock, timed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return timed(clock)


def denied(store: Store) -> list[tuple[str, str]]:
    """Who was denied what scope."""
    return [(row.actor, row.scope) for row in store.audit.query(kind="denied", limit=1000)]


def test_an_identity_manages_the_sessions_below_its_own_path(store: Store) -> None:
    alice = store.as_identity(user="alice")
    session = alice.sessions.start("s1", user="alice", on_end="archive")
    assert session.by == "user:alice"
    alice.sessions.touch("s1")
    alice.sessions.update("s1", {"k": 1})
    store.as_identity(user="alice", session="s1").state(user="alice", session="s1")["k"] = 1
    with pytest.raises(DeniedError):
        dict(session.state)  # her sessions are identities of their own: what is in them is theirs
    session.end()
    alice.sessions.resume("s1")
    assert [each.id for each in alice.sessions.list()] == ["s1"]
    alice.sessions.delete("s1")
    assert store.sessions.list() == []


def every_try(acting: Any, id: str) -> list[Any]:
    """All that can be tried with somebody else's session."""
    return [
        lambda: acting.sessions.get(id),
        lambda: acting.sessions.resume(id),
        lambda: acting.sessions.touch(id),
        lambda: acting.sessions.update(id, {"k": 2}),
        lambda: acting.sessions.end(id),
        lambda: acting.sessions.archived(id),
        lambda: acting.sessions.delete(id),
    ]


@pytest.mark.parametrize("who", ["user:bob", "agent:a", "user:ali", "user:alice/agent:a", "session:s1"])
def test_others_get_nothing_of_a_session_and_each_try_is_noted(store: Store, who: str) -> None:
    store.sessions.start("s1", user="alice", on_end="archive", metadata={"secret": 1}).state["k"] = 1
    store.sessions.start("s2", user="alice", on_end="archive").end()
    other = store.as_identity(who)
    tries = [*every_try(other, "s1"), *every_try(other, "s2"), *every_try(other, "none")]
    tries += [lambda: other.sessions.start("s3", user="alice"), lambda: other.sessions.collect()]
    for attempt in tries:
        with pytest.raises(DeniedError):
            attempt()
    assert other.sessions.list() == other.sessions.list(user="alice") == []
    assert len([each for each in denied(store) if each[0] == who]) == len(tries)
    assert store.state(user="alice", session="s1")["k"] == 1
    assert [each.status for each in store.sessions.list()] == ["active", "archived"]


def test_who_lives_in_a_session_sees_and_touches_it_and_no_more(store: Store) -> None:
    store.sessions.start("s1", user="alice")
    store.sessions.start("s2", user="alice")
    inside = store.as_identity(user="alice", session="s1", agent="writer")
    assert inside.sessions.get("s1").id == "s1"
    inside.sessions.touch("s1")
    assert [each.id for each in inside.sessions.list()] == ["s1"]
    for attempt in (
        lambda: inside.sessions.end("s1"),
        lambda: inside.sessions.update("s1", {}),
        lambda: inside.sessions.delete("s1"),
        lambda: inside.sessions.get("s2"),
        lambda: inside.state(user="alice", session="s2").get("k"),
    ):
        with pytest.raises(DeniedError):
            attempt()
    store.sessions.end("s1")
    with pytest.raises(DeniedError) as refused:
        inside.state(user="alice", session="s1", agent="writer")["k"] = 1
    assert refused.value.code == "session-ended"


def test_read_only_and_granted(store: Store) -> None:
    reader = store.as_identity(user="alice", mode="read-only")
    store.sessions.start("s1", user="alice")
    assert reader.sessions.get("s1").user == "alice"
    with pytest.raises(DeniedError):
        reader.sessions.start("s2", user="alice")
    with pytest.raises(DeniedError):
        reader.sessions.end("s1")
    helper = store.as_identity(agent="helper")
    grant = store.access.grant("agent:helper", ["read", "write"], "user:alice/session:s1")
    helper.sessions.update("s1", {"by": "helper"})
    store.access.revoke(grant)
    with pytest.raises(DeniedError):
        helper.sessions.get("s1")
    with pytest.raises(NotFoundError):
        store.sessions.get("s9")


def test_an_artifact_is_of_who_registered_it(store: Store) -> None:
    writer, other = store.as_identity(agent="writer"), store.as_identity(agent="other")
    made = writer.artifacts.register(b"1", id="w", type="t")
    assert (made.by, made.producer) == ("agent:writer", "agent:writer")
    store.artifacts.register(b"2", id="owner", type="t")
    assert [each.id for each in writer.artifacts.list(type="t")] == ["w"]
    assert other.artifacts.list() == other.artifacts.list(type="t") == []
    for id in ("w", "owner", "none"):
        for attempt in (
            lambda id=id: other.artifacts.get(id),
            lambda id=id: other.artifacts.read(id),
            lambda id=id: other.artifacts.open(id),
            lambda id=id: other.artifacts.save(id, "nowhere"),
            lambda id=id: other.artifacts.verify(id),
            lambda id=id: other.artifacts.delete(id),
            lambda id=id: other.artifacts.changes(id),
            lambda id=id: other.artifacts.using(id).__enter__(),
        ):
            with pytest.raises(DeniedError):
                attempt()
    with pytest.raises(DeniedError):
        other.artifacts.of("agent:writer")
    with pytest.raises(DeniedError):
        store.as_identity(agent="writer", mode="read-only").artifacts.register(b"3")
    assert len(denied(store)) == 26
    with writer.artifacts.using("w"):
        writer.state(agent="writer")["k"] = 1
    with store.artifacts.using("w"):
        store.state(agent="secret")["k"] = 1
    assert [str(each.scope) for each in writer.artifacts.changes("w")] == ["agent:writer"]
    assert len(store.artifacts.changes("w")) == 2
    store.access.grant("agent:other", "read", "agent:writer", keys="artifacts/*")
    assert other.artifacts.read("w") == b"1"
    with pytest.raises(DeniedError):
        other.artifacts.delete("w")
    writer.artifacts.delete("w")
    assert [each.id for each in store.artifacts.list()] == ["owner"]


def test_an_id_that_another_has_is_refused_whatever_the_content(store: Store) -> None:
    store.as_identity(agent="a").artifacts.register(b"1", id="x")
    with pytest.raises(Exception, match="there is an artifact of this id"):
        store.as_identity(agent="b").artifacts.register(b"1", id="x")


def test_hooks_of_sessions(store: Store, clock: Clock) -> None:
    seen: list[tuple[str, str, str]] = []

    @store.hooks.before("session.*", inline=True)
    def note(call: HookContext) -> Any:
        seen.append((call.point, call.scope, call.key))
        call.note(checked=True)
        if call.value.get("bad"):
            raise VetoError("no bad sessions")
        return {**call.value, "through": call.point}

    store.sessions.start("s1", user="u", agent="a", idle=60, on_end="archive")
    assert store.sessions.get("s1").metadata == {"through": "session.start"}
    store.sessions.resume("s1")
    clock.now += HOUR
    store.sessions.collect()
    assert store.sessions.resume("s1").metadata == {"through": "session.restore"}
    store.sessions.end("s1")
    assert store.sessions.get("s1").metadata == {"through": "session.end"}
    points = ["start", "resume", "expire", "restore", "end"]
    assert seen == [(f"session.{point}", "user:u/session:s1/agent:a", "s1") for point in points]
    with pytest.raises(VetoError):
        store.sessions.start("s2", metadata={"bad": 1})
    with pytest.raises(NotFoundError):
        store.sessions.get("s2")
    rows = store.audit.query(kind="session", limit=100)
    assert {row.action for row in rows} == set(points)
    assert all(row.detail == {"checked": True} for row in rows)
    assert store.audit.verify().ok


def test_a_hook_may_object_to_the_end_of_a_session(store: Store, clock: Clock) -> None:
    @store.hooks.before("session.expire", inline=True)
    def never(call: HookContext) -> None:
        raise VetoError("not this one")

    store.sessions.start("s1", idle=60).state["k"] = 1
    clock.now += HOUR
    assert astuple(store.sessions.collect()) == (0, 0, 0, 1)
    assert store.state(session="s1")["k"] == 1


def test_hooks_of_artifacts(store: Store) -> None:
    done: list[tuple[str, Any]] = []

    @store.hooks.before("artifact.register", inline=True)
    def describe(call: HookContext) -> Any:
        if call.metadata["size"] > 3:
            raise VetoError("too large")
        call.note(size=call.metadata["size"])
        return {**call.value, "type": "checked", "metadata": {"n": 1}}

    @store.hooks.after("artifact.register", inline=True)
    def after(call: HookContext) -> None:
        done.append((call.key, call.value["type"]))

    made = store.artifacts.register(b"1", id="a", type="t", producer="p")
    assert (made.type, made.producer, made.metadata) == ("checked", "p", {"n": 1})
    assert [each.id for each in store.artifacts.list(type="checked")] == ["a"]
    with pytest.raises(VetoError):
        store.artifacts.register_many([ArtifactSource(b"2", "b"), ArtifactSource(b"long", "c")])
    assert [each.id for each in store.artifacts.list()] == ["a"]
    assert done == [("a", "checked")]
    assert store.audit.verify().ok
