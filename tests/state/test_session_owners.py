"""Sessions that an identity owns: it manages them and uses their state, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast.access import Policy
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on
from tests.support.interference import Interference, InterferingBackend


def test_who_starts_a_session_owns_it(store: Store) -> None:
    researcher = store.as_identity(agent="researcher")
    session = researcher.sessions.start(on_end="archive", metadata={"k": 1})
    assert (session.owner, session.by, session.user) == ("agent:researcher", "agent:researcher", None)
    assert len(session.id) == 32
    session.state["n"] = 1
    researcher.state(session=session.id, agent="helper")["m"] = 2
    session.touch()
    assert researcher.sessions.update(session.id, {"l": 2}).metadata == {"k": 1, "l": 2}
    assert [each.id for each in researcher.sessions.list()] == [session.id]
    assert [each.id for each in store.sessions.list(owner="agent:researcher")] == [session.id]
    assert [each.id for each in store.sessions.list(owner="agent:other")] == []
    session.end("done")
    assert researcher.sessions.archived(session.id) == {"n": 1}
    assert dict(researcher.sessions.resume(session.id).state) == {"n": 1}
    researcher.sessions.delete(session.id)
    with pytest.raises(NotFoundError):
        store.sessions.get(session.id)
    with pytest.raises(DeniedError, match="was revoked"):
        researcher.state(session=session.id).get("n")
    assert store.audit.verify().ok


def test_nobody_else_has_anything_of_it(store: Store) -> None:
    owner, intruder = store.as_identity(agent="owner"), store.as_identity(agent="intruder")
    session = owner.sessions.start(on_end="archive")
    session.state["n"] = 1
    id = session.id
    tries: list[Callable[[Any], object]] = [
        lambda act: act.sessions.get(id),
        lambda act: act.sessions.touch(id),
        lambda act: act.sessions.update(id, {"a": 1}),
        lambda act: act.sessions.end(id),
        lambda act: act.sessions.resume(id),
        lambda act: act.sessions.archived(id),
        lambda act: act.sessions.delete(id),
        lambda act: act.state(session=id).get("n"),
        lambda act: act.state(session=id).set("n", 2),
    ]
    for attempt in tries:
        with pytest.raises(DeniedError):
            attempt(intruder)
    assert list(intruder.sessions.list()) == []
    assert session.state["n"] == 1  # the owner is not denied
    assert owner.sessions.get(id).status == "active"


def test_an_identity_cannot_choose_the_id_or_the_user(store: Store) -> None:
    waiting = store.as_identity(agent="waiting")
    denied: list[dict[str, str]] = [{"id": "order-18"}, {"user": "bob"}]
    for arguments in denied:
        with pytest.raises(DeniedError):
            waiting.sessions.start(**arguments)  # type: ignore[arg-type]
    for arguments in [{**denied[0], "owner": "agent:waiting"}, {**denied[1], "owner": "agent:waiting"}]:
        with pytest.raises(InvalidError, match="random id"):
            waiting.sessions.start(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="random id"):
        waiting.sessions.start(owner="agent:other")
    store.access.grant("agent:waiting", "write", session="order-18")
    assert waiting.sessions.start("order-18").owner is None  # a grant of the scope is no more than that
    with pytest.raises(DeniedError):
        waiting.state(session="order-18", agent="clerk").get("n")


def test_one_that_is_started_for_an_identity(store: Store) -> None:
    store.sessions.start("night", owner="agent:researcher", user="alice")
    researcher = store.as_identity(agent="researcher")
    researcher.sessions.get("night").state["n"] = 1
    with pytest.raises(ConflictError):
        store.sessions.start("night", owner="agent:other")
    with pytest.raises(DeniedError):
        store.as_identity(agent="other").state(user="alice", session="night").get("n")
    assert store.as_identity(user="alice").sessions.get("night").owner == "agent:researcher"
    for wrong in ("group:all", "nonsense", ""):
        with pytest.raises(InvalidError):
            store.sessions.start(owner=wrong)


def test_a_list_has_nothing_of_sessions_whose_grant_has_ended(store: Store) -> None:
    owner = store.as_identity(agent="owner")
    first, second = owner.sessions.start(), owner.sessions.start()
    assert {each.id for each in owner.sessions.list()} == {first.id, second.id}
    (given,) = (each for each in store.access.grants("agent:owner") if first.id in each.scope)
    store.access.revoke(given)
    store.sessions.update(first.id, {"secret": 1})
    for listed in (owner.sessions.list(), owner.sessions.list(owner="agent:owner", status="active")):
        assert [each.id for each in listed] == [second.id]
    blind = store.as_identity(agent="owner", mode="custom", policy=Policy().allow("read", "agent:owner"))
    assert not blind.sessions.list()
    store.access.grant("agent:owner", "read", first.scope)
    assert {each.id for each in owner.sessions.list()} == {first.id, second.id}


def test_no_session_is_deleted_after_the_right_to_it_has_ended(clock: Clock) -> None:
    """At every call to the store, also if the deletion begins again since the session changed."""
    stayed = calls = 0

    def delete(changed_at: int, revoked_at: int) -> bool:
        nonlocal stayed, calls
        backend = InterferingBackend()
        with store_on(backend, clock) as store:
            owner = store.as_identity(agent="owner")
            id = owner.sessions.start().id
            (given,) = store.access.grants("agent:owner", f"session:{id}")
            calls, existed = 0, list[bool]()

            def exists() -> bool:
                with suppress(NotFoundError):
                    return store.sessions.get(id).id == id
                return False

            def act() -> None:
                nonlocal calls
                if calls == changed_at and exists():
                    store.sessions.update(id, {"n": 1})
                if calls == revoked_at:
                    store.access.revoke(given)
                    existed.append(exists())
                calls += 1

            interference = Interference(act, "any", times=None)
            with backend.armed(interference), suppress(DeniedError):
                owner.sessions.delete(id)
            interference.check()
            assert not existed or exists() is existed[0], "it was deleted after the right had ended"
            stayed += existed == [True]
            return bool(existed)

    assert not delete(-1, -1)
    last = calls - 1  # the call that stores the deletion, before which the session changes
    revoked = next(moment for moment in range(last, 100) if not delete(last, moment))
    assert stayed > 2
    assert revoked - last > 4


def test_rights_that_end(store: Store, clock: Clock) -> None:
    researcher = store.as_identity(agent="researcher")
    session = researcher.sessions.start(retention=60)
    store.access.cut_off("agent:researcher")
    with pytest.raises(DeniedError):
        session.state.get("n")
    with pytest.raises(DeniedError):
        researcher.sessions.delete(session.id)
    other = researcher.sessions.start(retention=60)
    other.end()
    clock.now += 61 * 10**9
    assert store.sessions.collect().forgotten == 1
    assert store.access.grants() == []
    store.access.freeze("agent:researcher")
    with pytest.raises(DeniedError, match="frozen"):
        researcher.sessions.start()
    reader = store.as_identity(agent="reader", mode="read-only")
    with pytest.raises(DeniedError):
        reader.sessions.start()
