"""Policies, roles, groups, and parents that read their children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.model.scopes import Scope
from holdfast.errors import CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.security.access.policy import Policy, Rule, load_policy
from holdfast.security.access.registry import AccessRegistry
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on


@pytest.fixture
def store() -> Iterator[Store]:
    with store_on(MemoryBackend(), Clock()) as opened:
        for name in ("a", "b"):
            opened.state(agent=name).batch({"plan": name, "secret/key": 1})
        yield opened


def test_the_first_rule_that_fits_decides() -> None:
    policy = (
        Policy()
        .deny(["read", "write"], "agent:*", keys="secret/**")
        .allow("read", "agent:*")
        .allow("write", "agent:me")
    )
    me, other = Scope.of(agent="me"), Scope.of(agent="other")
    assert policy.verdict("read", other, ["plan"]) is True
    assert policy.verdict("write", me, ["plan"]) is True
    assert policy.verdict("write", other, ["plan"]) is None
    assert policy.verdict("read", me, ["secret/key"]) is False
    assert policy.verdict("read", me, ["plan", "secret/key"]) is False
    assert policy.verdict("read", Scope.of(user="me"), ["plan"]) is None
    # Some keys of the scope are denied, so it is not to be had as a whole.
    assert policy.verdict("read", me, []) is False
    some = Policy().allow("read", "agent:*", keys="plan/*")
    assert some.verdict("read", me, []) is None
    assert some.verdict("read", me, ["plan/x"]) is True
    assert some.verdict("read", me, ["plan/x", "plan"]) is None


def test_patterns_are_in_the_normal_form_of_names() -> None:
    policy = Policy().allow("read", "agent:caf\u0065\u0301")
    assert policy.verdict("read", Scope.of(agent="caf\u00e9"), []) is True


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from(["read", "write", ["read", "write"]]), st.text("ab*", min_size=1, max_size=3)
        )
    )
)
def test_a_policy_decides_as_its_rules_read(rules: list[tuple[bool, Any, str]]) -> None:
    policy = Policy()
    for allows, right, name in rules:
        add = policy.allow if allows else policy.deny
        policy = add(right, f"agent:{name}")
    assert Policy.of(policy.to_list()) == policy
    for name in ("a", "b", "ab", "aba"):
        fits = (allows for allows, right, pattern in rules if right != "write" and fnmatchcase(name, pattern))
        assert policy.verdict("read", Scope.of(agent=name), ["k"]) == next(fits, None)


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [5],
        [{"effect": "maybe", "right": "read"}],
        [{"effect": "allow", "right": "own"}],
        [{"effect": "allow", "right": "read", "scope": 5}],
        [{"effect": "allow", "right": "read", "more": 1}],
        [{"effect": "allow", "right": "read", "keys": ""}],
    ],
    ids=str,
)
def test_what_is_no_policy_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidError):
        Policy.of(wrong)
    with pytest.raises(CorruptError):
        load_policy(wrong)


def test_a_policy_does_not_grow_without_end() -> None:
    with pytest.raises(InvalidError):
        Policy((Rule(True, "read"),) * 1000).allow("read")


def test_in_custom_the_policy_decides_on_everything(store: Store) -> None:
    policy = Policy().deny(["read", "write"], keys="secret/**").allow("read", "agent:*").allow("write", "agent:a")
    acting = store.as_identity(agent="a", mode="custom", policy=policy)
    store.access.grant("agent:a", ["read", "write"], "agent:b")  # of no use here
    acting.state(agent="a")["plan"] = 5
    assert acting.state(agent="b")["plan"] == "b"
    for use in (
        lambda: acting.state(agent="b").set("plan", 1),
        lambda: acting.state(agent="a").get("secret/key"),
        lambda: list(acting.state(agent="a")),
        lambda: acting.grant("agent:b"),
    ):
        with pytest.raises(DeniedError):
            use()


def test_a_role_by_name_is_what_the_store_says_now(store: Store) -> None:
    acting = store.as_identity(agent="x", mode="custom", policy="reader")
    state = acting.state(agent="a")
    with pytest.raises(DeniedError, match="no role 'reader'"):
        state.get("plan")
    store.access.define_role("reader", Policy().allow("read", "agent:*"))
    assert state["plan"] == "a"
    store.access.define_role("reader", Policy().allow("read", "agent:b"))
    with pytest.raises(DeniedError, match="no rule"):
        state.get("plan")
    store.access.define_role("reader", Policy().deny("read"))
    with pytest.raises(DeniedError, match="a rule of the policy denies"):
        state.get("plan")


def test_roles_give_and_take_in_the_mode_strict(store: Store) -> None:
    acting = store.as_identity(agent="x")
    state = acting.state(agent="a")
    store.access.define_role("reader", Policy().allow("read", "agent:*"))
    store.access.define_role("blind", Policy().deny(["read", "write"], "agent:a"))
    store.access.assign("reader", "agent:x")
    assert state["plan"] == "a"
    with pytest.raises(DeniedError):
        state["plan"] = 1
    store.access.join("outcasts", "agent:x")
    store.access.assign("blind", "group:outcasts")
    with pytest.raises(DeniedError, match="a role denies it"):
        state.get("plan")
    assert store.access.assignments() == {"agent:x": ["reader"], "group:outcasts": ["blind"]}
    store.access.unassign("blind", "group:outcasts")
    assert state["plan"] == "a"
    assert set(store.access.roles()) == {"reader", "blind"}
    store.access.drop_role("reader")
    with pytest.raises(DeniedError):
        state.get("plan")
    acting.state(agent="x")["own"] = 1  # a role does not take away what is one's own
    missing: Callable[[], object]
    for missing in (
        lambda: store.access.drop_role("reader"),
        lambda: store.access.assign("reader", "agent:x"),
        lambda: store.access.unassign("blind", "agent:x"),
        lambda: store.access.leave("outcasts", "agent:y"),
        lambda: store.access.forbid_children("agent:x"),
    ):
        with pytest.raises(NotFoundError):
            missing()
    with pytest.raises(InvalidError):
        store.access.define_role("x", "allow all")  # type: ignore[arg-type]


def test_keys_may_be_allowed_by_different_rights(store: Store) -> None:
    store.access.define_role("planner", Policy().allow(["read", "write"], "agent:a", keys="plan"))
    store.access.assign("planner", "agent:x")
    store.access.grant("agent:x", "write", "agent:a", keys="notes")
    state = store.as_identity(agent="x").state(agent="a")
    state.batch({"plan": 1, "notes": 2})
    with pytest.raises(DeniedError):
        state.batch({"plan": 1, "notes": 2, "other": 3})
    assert store.state(agent="a")["notes"] == 2
    assert "other" not in store.state(agent="a")


def test_a_group_has_what_is_granted_to_it_while_one_is_in_it(store: Store) -> None:
    state = store.as_identity(agent="x").state(agent="a")
    store.access.grant("group:a/b", "read", "agent:a")
    store.access.join("a/b", "agent:x", "agent:y")
    assert store.access.groups() == {"a/b": ["agent:x", "agent:y"]}
    assert state["plan"] == "a"
    store.access.leave("a/b", "agent:x")
    with pytest.raises(DeniedError):
        state.get("plan")
    with pytest.raises(DeniedError):  # being named like a group is not being in it
        store.as_identity(custom="group:a/b").state(agent="a").get("plan")
    store.access.grant("group:everyone", "read", "agent:a")
    assert state["plan"] == "a"
    wrong: Callable[[], object]
    for wrong in (lambda: store.access.join("everyone", "agent:x"), lambda: store.access.join("g")):
        with pytest.raises(InvalidError):
            wrong()
    with pytest.raises(InvalidError):
        store.access.join("g", "group:a/b")


def test_a_parent_reads_its_children_when_it_is_authorised(store: Store) -> None:
    store.state(user="u", agent="x")["k"] = 1
    parent = store.as_identity(user="u")
    state = parent.state(user="u", agent="x")
    with pytest.raises(DeniedError):
        state.get("k")
    store.access.allow_children("user:u")
    assert store.access.parents() == ["user:u"]
    assert state["k"] == 1
    assert list(state) == ["k"]
    for use in (
        lambda: state.set("k", 2),
        lambda: store.as_identity(user="u", children=None).state(user="u", agent="x").get("k"),
        lambda: parent.state(user="v", agent="x").get("k"),
        lambda: store.as_identity(user="u", agent="x").state(user="u").get("k"),
    ):
        with pytest.raises(DeniedError):
            use()
    store.access.forbid_children("user:u")
    with pytest.raises(DeniedError):
        state.get("k")


def test_who_is_cut_off_has_nothing_left_but_its_own(store: Store) -> None:
    acting = store.as_identity(user="u")
    store.access.grant("user:u", ["read", "write"], "agent:a")
    store.access.define_role("reader", Policy().allow("read", "agent:*"))
    store.access.assign("reader", "user:u")
    store.access.join("g", "user:u")
    store.access.grant("group:g", "read", "agent:b")
    store.access.allow_children("user:u")
    store.state(user="u", agent="x")["k"] = 1
    assert acting.state(agent="b")["plan"] == "b"
    assert store.access.cut_off("user:u") == 4
    for scope in ("agent:a", "agent:b", "user:u/agent:x"):
        with pytest.raises(DeniedError):
            acting.state(scope).get("plan")
    acting.state(user="u")["own"] = 1
    assert store.access.cut_off("user:u") == 0
    assert store.access.groups() == {}


def test_one_can_ask_what_somebody_may(store: Store) -> None:
    may = store.access.may
    assert may("agent:a", "write", "agent:a")
    assert not may("agent:a", "read", "agent:b")
    store.access.grant("agent:a", "read", "agent:b", keys="plan")
    assert may("agent:a", "read", "agent:b", "plan")
    assert not may("agent:a", "read", agent="b")
    assert not may("agent:a", "write", agent="b", key="plan")
    assert store.audit.query(kind="denied") == []
    with pytest.raises(InvalidError):
        may("agent:a", "own", "agent:b")  # type: ignore[arg-type]


def test_rights_for_asyncio() -> None:
    async def use() -> None:
        async with holdfast.aopen("memory://") as store:
            await store.state(agent="a").set("plan", 1)
            acting = store.as_identity(agent="b")
            with pytest.raises(DeniedError):
                await acting.state(agent="a").get("plan")
            given = await store.as_identity(agent="a").grant("agent:b", until="1h")
            assert await acting.state(agent="a").get("plan") == 1
            await store.access.revoke(given)
            with pytest.raises(DeniedError):
                await acting.state(agent="a").get("plan")
            with pytest.raises(InvalidError):
                acting.state(agent="../x")
            rows = await store.audit.query(actor="agent:b")
            assert sorted(row.outcome for row in rows) == ["denied", "denied", "invalid", "ok"]
            assert (await store.audit.verify()).ok

    asyncio.run(use())


def test_what_is_damaged_gives_nothing(store: Store) -> None:
    from holdfast.backends.runtime.drivers import run
    from holdfast.engine.system_line import LineChange

    access = AccessRegistry(store._engine, "")

    async def spoil(_: Any) -> LineChange:
        return LineChange(access._line.pack({"held/agent:x/1": {"id": "1"}}))

    run(access._line.change("spoil", spoil))
    with pytest.raises(CorruptError):
        store.as_identity(agent="x").state(agent="a").get("plan")
