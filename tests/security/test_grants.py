"""Grants: what they give, to whom, for how long; and what is never given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.memory import MemoryBackend
from holdfast.engine.model.scopes import Scope, ScopePart
from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.security.access.identity import Identity
from holdfast.security.access.policy import RETENTION
from holdfast.state.access_api import AccessOperations
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from tests.state.kit import SECOND, Clock, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with store_on(MemoryBackend(), clock) as opened:
        opened.state(agent="a").batch({"plan": 1, "plan/day": 2, "secret": 3})
        yield opened


def writer(store: Store) -> IdentityView:
    return store.as_identity(agent="b")


# What is one's own ------------------------------------------------------------------------------------------------


def test_an_identity_owns_its_scope_and_what_is_below_of_some_kinds() -> None:
    alice = Identity.of(user="alice")
    assert str(alice) == "user:alice"
    assert Identity.parse("user:alice") == alice
    for text in ("user:alice", "user:alice/step:s", "user:alice/tool:t/custom:c", "user:alice/hook:h"):
        assert alice.owns(Scope.parse(text))
        assert not alice.is_parent_of(Scope.parse(text))
    for text in ("user:alice/agent:x", "user:alice/session:s", "user:alice/agent:x/step:s", "user:alice/workflow:w"):
        assert not alice.owns(Scope.parse(text))
        assert alice.is_parent_of(Scope.parse(text))
    for text in ("user:alic", "user:alice2", "global", "agent:alice", "custom:c"):
        assert not alice.owns(Scope.parse(text))
        assert not alice.is_parent_of(Scope.parse(text))


@pytest.mark.parametrize("wrong", [{}, {"agent": ""}, {"agent": None}, {"planet": "x"}], ids=str)
def test_nobody_in_particular_is_no_identity(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        store.as_identity(**wrong)


def test_how_one_acts_is_said_rightly(store: Store) -> None:
    wrong: dict[str, Any]
    for wrong in (
        {"mode": "lax"},
        {"children": "write"},
        {"read_window": -1},
        {"read_window": "5"},
        {"policy": "reader"},
        {"mode": "custom"},
        {"mode": "custom", "policy": 5},
    ):
        with pytest.raises(InvalidError):
            store.as_identity(agent="a", **wrong)
    with pytest.raises(InvalidError):
        store.as_identity("agent:a", agent="a")
    with pytest.raises(InvalidError):
        store.as_identity("group:editors")
    acting = store.as_identity("agent:a", mode="read-only")
    assert (str(acting.identity), acting.mode, repr(acting)) == (
        "agent:a",
        "read-only",
        "<IdentityView agent:a, read-only>",
    )


def test_in_read_only_nothing_is_written(store: Store) -> None:
    acting = store.as_identity(agent="a", mode="read-only")
    assert acting.state(agent="a")["plan"] == 1
    for write in (
        lambda: acting.state(agent="a").set("plan", 2),
        lambda: acting.state(agent="a").clear(),
        lambda: acting.grant("agent:b"),
        lambda: acting.revoke("x"),
    ):
        with pytest.raises(DeniedError):
            write()
    assert store.state(agent="a")["plan"] == 1


# What is granted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", ["read", "write", ["read", "write"]])
def test_a_grant_gives_what_it_says_and_no_more(store: Store, right: Any) -> None:
    store.access.grant("agent:b", right, "agent:a")
    state = writer(store).state(agent="a")
    if right in ("read", ["read", "write"]):
        assert dict(state.items()) == {"plan": 1, "plan/day": 2, "secret": 3}
    else:
        for read in (lambda: state["plan"], lambda: list(state), state.history, lambda: state.at(1)):
            with pytest.raises(DeniedError):
                read()
        # What is computed of a value, or merged with it, tells what it was.
        with pytest.raises(DeniedError):
            state.change("plan", lambda value: value)
        with pytest.raises(DeniedError):
            state.set("plan", 5, expected=0, on_conflict=lambda now, _: now)
    if right in ("write", ["read", "write"]):
        state["plan"] = 7
        state.expire("plan", 60)
        assert store.state(agent="a")["plan"] == 7
        state.clear()
    else:
        for write in (lambda: state.set("plan", 2), state.clear, lambda: state.rollback(0), lambda: state.pop("plan")):
            with pytest.raises(DeniedError):
                write()
    with pytest.raises(DeniedError):
        writer(store).state(agent="a", step="s").get("plan")


def test_a_grant_of_keys_is_of_those_only_and_of_no_other_listing(store: Store) -> None:
    store.access.grant("agent:b", ["read", "write"], agent="a", keys="plan/**")
    state = writer(store).state(agent="a")
    state["plan/day"] = 5
    assert state["plan/day"] == 5
    tries: list[Any] = [
        lambda: state["plan"],
        lambda: state["secret"],
        lambda: state.batch({"plan/day": 1, "secret": 2}),
        lambda: list(state),
        lambda: state.list_keys("plan"),
        lambda: len(state),
        state.history,
        state.clear,
        lambda: state.at(1),
        lambda: state.copy_to(writer(store).state(agent="b")),
        lambda: writer(store).state(agent="b").copy_to(state),
    ]
    writer(store).state(agent="b")["secret"] = 1
    for each in tries:
        with pytest.raises(DeniedError):
            each()
    assert "plan/day" in state.list_keys("plan/")
    assert [past.version for past in state.history("plan/day")] == [2, 1]
    assert store.state(agent="a")["secret"] == 3


def test_a_grant_reaches_below_where_it_says_so(store: Store) -> None:
    for scope in ("user:u", "user:u/step:s", "user:u/agent:x"):
        store.state(scope)["k"] = scope
    reader = writer(store)
    owner = store.as_identity(user="u")
    given = owner.grant("agent:b", below=True)
    assert given.below == "own"
    assert reader.state("user:u/step:s")["k"] == "user:u/step:s"
    with pytest.raises(DeniedError):  # it is a child's, and not the owner's to give
        reader.state("user:u/agent:x").get("k")
    owner.revoke(given)
    store.access.grant("agent:b", "read", "user:u", below=True)
    assert reader.state("user:u/agent:x")["k"] == "user:u/agent:x"
    store.access.grant("agent:c", "read", "global", below=True)
    assert store.as_identity(agent="c").state("user:u/agent:x")["k"] == "user:u/agent:x"


def test_a_grant_ends_in_time_and_says_so(store: Store, clock: Clock) -> None:
    hour = datetime.fromtimestamp(clock.now / SECOND, UTC) + timedelta(hours=1)
    for until in (hour, timedelta(hours=1), 3600, 3600.0, "1h"):
        given = store.access.grant("agent:b", "read", "agent:a", until=until)
        assert given.until is not None
        assert abs(given.until - hour) < timedelta(milliseconds=1)
        assert given.live
        store.access.revoke(given)
    store.access.grant("agent:b", ["read", "write"], "agent:a", until="1h")
    state = writer(store).state(agent="a")
    clock.sleep(3599)
    state["plan"] = 2
    clock.sleep(2)
    for use in (lambda: state["plan"], lambda: state.set("plan", 3)):
        with pytest.raises(DeniedError, match="expired at 2023-11-14T23:13:20") as caught:
            use()
        assert caught.value.code == "grant-expired"
    assert store.access.grants("agent:b") == []
    assert len(store.access.grants("agent:b", dead=True)) == 6
    with pytest.raises(InvalidError):
        store.access.grant("agent:b", until=hour - timedelta(days=1), agent="a")
    clock.sleep(RETENTION / SECOND + 10)
    store.access.grant("agent:b", "read", "agent:a")  # forgets what died long ago
    assert len(store.access.grants("agent:b", dead=True)) == 1


def test_a_revoked_grant_is_gone_at_once_for_open_handles(store: Store) -> None:
    state = writer(store).state(agent="a")
    given = store.access.grant("agent:b", ["read", "write"], "agent:a")
    watch = state.watch()
    watch.start()
    assert state["plan"] == 1
    assert store.access.revoke(given.id).revoked is not None
    for use in (lambda: state["plan"], lambda: state.set("plan", 3), watch.poll):
        with pytest.raises(DeniedError, match=f"grant {given.id} was revoked") as caught:
            use()
        assert caught.value.code == "grant-revoked"
    again = store.access.revoke(given)  # it keeps the time at which it was first
    assert not again.live
    for wrong in ("", "nothing", "a/b"):
        with pytest.raises(NotFoundError):
            store.access.revoke(wrong)
    with pytest.raises(InvalidError):
        store.access.revoke(5)  # type: ignore[arg-type]


def test_a_write_under_a_grant_that_is_revoked_meanwhile_is_not_made() -> None:
    backend = InterferingBackend()
    store, clock = store_on(backend, Clock()), Clock()
    others = store_on(backend, clock)
    store.state(agent="a")["plan"] = 1
    given = store.access.grant("agent:b", ["read", "write"], "agent:a")
    state = writer(store).state(agent="a")
    state["plan"] = 2
    with pytest.raises(DeniedError, match="revoked"), backend.interfere(lambda: others.access.revoke(given)):
        state["plan"] = 3
    assert store.state(agent="a")["plan"] == 2
    # What has nothing to do with it only has the write tried again.
    store.access.grant("agent:b", "write", "agent:a")
    with backend.interfere(lambda: others.access.grant("agent:c", "read", "agent:d")):
        state["plan"] = 4
    assert store.state(agent="a")["plan"] == 4


def test_a_function_does_not_see_what_was_written_after_the_grant_was_revoked(store: Store) -> None:
    given = store.access.grant("agent:b", ["read", "write"], "agent:a")
    seen: list[Any] = []

    def change(value: Any) -> Any:
        seen.append(value)
        if len(seen) == 1:
            store.access.revoke(given)
            store.state(agent="a")["plan"] = "secret"
        return value

    with pytest.raises(DeniedError):
        writer(store).state(agent="a").change("plan", change)
    assert seen == [1]


def test_what_was_read_while_the_grant_was_revoked_is_not_handed_out(store: Store) -> None:
    given = store.access.grant("agent:b", "read", "agent:a")
    acting = writer(store)
    reads = acting._guard._rights

    async def late(tip: Any) -> Any:
        found = await reads(tip)
        acting._guard._rights = reads  # type: ignore[method-assign]
        await AccessOperations.revoke(store.access, given)
        return found

    acting._guard._rights = late  # type: ignore[method-assign]
    with pytest.raises(DeniedError, match="revoked"):
        acting.state(agent="a").get("plan")


# Who gives --------------------------------------------------------------------------------------------------------


def test_only_owners_give_and_nothing_is_passed_on(store: Store) -> None:
    owner, grantee = store.as_identity(agent="a"), writer(store)
    given = owner.grant("agent:b", ["read", "write"], keys="plan*", until="1h")
    assert (given.by, given.to, given.scope) == ("agent:a", "agent:b", "agent:a")
    widen: Callable[[], object]
    for widen in (
        lambda: grantee.grant("agent:c", "read", "agent:a"),
        lambda: grantee.grant("agent:b", ["read", "write"], "agent:a"),
        lambda: grantee.grant("group:everyone", "read", agent="a"),
        lambda: grantee.grant("agent:b", "read", agent="a", keys="plan"),
        lambda: owner.grant("agent:a", ["read", "write"], "agent:b"),
        lambda: owner.grant("agent:a", ["read", "write"], "global"),
        lambda: owner.grant("agent:a", ["read", "write"], "agent:a/session:s"),
    ):
        with pytest.raises(DeniedError, match="not its own"):
            widen()
    with pytest.raises(NotFoundError):  # to the grantee there is no such grant, though it is told of it
        grantee.revoke(given)
    assert [each.id for each in grantee.granted()] == [given.id]
    assert grantee.grants() == []
    by_owner = store.access.grant("agent:c", "read", "agent:a")
    assert [each.id for each in owner.grants()] == [given.id, by_owner.id]
    owner.revoke(by_owner)
    assert [each.revoked_by for each in owner.grants(dead=True)] == ["", "agent:a"]
    assert [each.id for each in store.access.grants(scope="agent:a")] == [given.id]
    assert store.access.grants(scope="agent:b") == []


def test_a_grant_that_was_forged_or_altered_gives_nothing(store: Store) -> None:
    given = store.access.grant("agent:b", "read", "agent:a", keys="plan")
    wider = replace(given, keys="", right="read,write", to="agent:c", until=None)
    for name in ("b", "c"):
        with pytest.raises((DeniedError, NotFoundError)):
            store.as_identity(agent=name).revoke(wider)
        with pytest.raises(DeniedError):
            store.as_identity(agent=name).state(agent="a")["secret"] = 1


class _Liar(Scope):
    """Says that it is somebody's, and is another's."""

    @property
    def line(self) -> str:
        return "␞agent:a"

    def __str__(self) -> str:
        return "agent:a"


class _Kind(str):
    """Equals everything."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("agent")


@pytest.mark.parametrize(
    "scope",
    [
        _Liar((ScopePart("agent", "b"),)),
        Scope((ScopePart("agent", _Kind("a")),)),
        Scope((("agent", "a"),)),  # type: ignore[arg-type]
        Scope([ScopePart("agent", "a")]),  # type: ignore[arg-type]
        5,
    ],
    ids=["liar", "equal to all", "plain tuples", "list", "number"],
)
def test_what_only_looks_like_a_scope_is_none(store: Store, scope: Scope) -> None:
    acting = writer(store)
    with pytest.raises(InvalidError):
        acting.state(scope)
    state = acting.state(agent="b")
    state["plan"] = 8
    state.scope = scope
    with pytest.raises((InvalidError, DeniedError, TypeError, AttributeError)):
        state["plan"] = 9
    with pytest.raises((InvalidError, DeniedError, TypeError, AttributeError)):
        acting.state(agent="b").copy_to(state, on_conflict="overwrite")
    assert store.state(agent="a")["plan"] == 1


WRONG: list[dict[str, Any]] = [
    {"to": 5},
    {"to": "group:"},
    {"to": "nobody"},
    {"to": "global"},
    {"to": "agent:b", "right": "own"},
    {"to": "agent:b", "keys": "*" * 600},
    {"to": "agent:b", "keys": 5},
    {"to": "agent:b", "until": -5},
    {"to": "agent:b", "until": "soon"},
]


def test_what_is_no_grant_is_refused(store: Store, subtests: pytest.Subtests) -> None:
    for wrong in WRONG:
        with subtests.test(wrong=wrong):
            with pytest.raises(InvalidError):
                store.access.grant(scope="agent:a", **wrong)
            assert store.access.grants(dead=True) == []
