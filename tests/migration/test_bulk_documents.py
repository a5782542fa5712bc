"""Migration of all states that are not in threads: scopes, keys, agents, metadata of artifacts and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Store
from holdfast.errors import ConflictError, HoldfastError
from holdfast.schemas import Migration, SchemaSet
from tests.migration.documents import (
    FIRST_FIELDS,
    GREETER_2,
    IMAGE_1,
    IMAGE_2,
    NEW_PLAN,
    OLD_PLAN,
    PLAN_1,
    PLAN_2,
    PLANS,
    SECOND_FIELDS,
    TO_PLAN_2,
    USERS,
    release,
    saved,
)


def stored(store: Store, user: str) -> dict[str, Any]:
    return {each.key: each.value for each in store.state(user=user).list_items(migrate=False)}


@pytest.mark.parametrize("where", [USERS, PLANS], ids=["whole scopes", "keys"])
def test_scopes_are_migrated_up_and_down(opened: Callable[[], Store], where: dict[str, Any]) -> None:
    old = opened()
    old.state(user="before")["plans/1"] = OLD_PLAN  # from before there was a schema
    old.state(user="before").batch(OLD_PLAN)
    old.schemas.attach(PLAN_1, **where)
    for user in ("a", "b"):
        state = old.state(user=user)
        state.batch({"plans/1": OLD_PLAN, "plans/2": OLD_PLAN} if where is PLANS else OLD_PLAN)
        state.set("steps", ["s"], ttl=3600)
    old.state(agent="other").batch(OLD_PLAN)  # no plan
    before = {user: stored(old, user) for user in ("before", "a", "b")}
    store = opened()
    plan = store.schemas.plan(PLAN_2)
    expected = 5 if where is PLANS else 3
    assert (plan.ok, plan.states, plan.pending) == (True, {"1.0.0": expected}, expected)
    assert "goal" in str(plan.samples[0].before)
    assert "aim" in str(plan.samples[0].after)
    assert {user: stored(store, user) for user in before} == before, "nothing was written"
    report = store.schemas.up(PLAN_2)
    assert (report.migrated, report.skipped, report.complete) == (expected, 0, True)
    found = stored(store, "a")
    assert (found["plans/1"] if where is PLANS else {key: found[key] for key in ("aim", "done")}) == (
        NEW_PLAN if where is PLANS else {"aim": "x", "done": 0}
    )
    assert store.state(user="a").item("steps").expires is not None
    assert store.state(user="a").history()[0].action == "migrate"
    (status,) = store.schemas.status(PLAN_2)
    assert (status.states, status.pending) == ({"2.0.0": expected}, 0)
    assert store.schemas.up(PLAN_2).migrated == 0, "what has the version is left alone"
    with pytest.raises(ConflictError):
        old.state(user="a").batch({"plans/1": OLD_PLAN} if where is PLANS else {"goal": "y"})
    new = opened()
    new.schemas.attach(PLAN_2, **where)
    assert new.state(user="b")["plans/1" if where is PLANS else "aim"] == (NEW_PLAN if where is PLANS else "x")
    new.state(user="b")["plans/1" if where is PLANS else "done"] = {**NEW_PLAN, "done": 3} if where is PLANS else 3
    down = store.schemas.down(PLAN_2, to="1.0.0")
    assert (down.migrated, down.restored) == (expected, expected - (2 if where is PLANS else 1))
    assert stored(store, "a") == before["a"], "a scope that was not changed is exactly what it was"
    back = stored(store, "b")
    assert (back["plans/1"] if where is PLANS else {key: back[key] for key in OLD_PLAN if key != "steps"}) == (
        OLD_PLAN if where is PLANS else {"goal": "x", "draft": "d"}
    ), "what was removed was kept aside"
    with pytest.raises(ConflictError) as downgraded:
        new.state(user="b")["plans/2" if where is PLANS else "done"] = NEW_PLAN if where is PLANS else 1
    assert downgraded.value.code == "schema-downgraded"
    store.schemas.up(PLAN_2)
    kept = new.state(user="b")["plans/1" if where is PLANS else "done"]
    assert kept == ({**NEW_PLAN, "done": 3} if where is PLANS else 3), (
        "and so does what the older version does not know"
    )
    assert stored(store, "other") == {}
    assert store.maintenance.verify().ok
    assert store.audit.verify().ok


def test_agents_artifacts_and_sessions_are_migrated(opened: Callable[[], Store]) -> None:
    old = opened()
    for id in ("a", "b"):
        saved(old, id=id)
    old.schemas.attach(IMAGE_1, artifacts="image")
    old.schemas.attach(IMAGE_1, sessions="**")
    old.artifacts.register(b"1", id="i", type="image", metadata={"w": 5})
    old.sessions.start("s", metadata={"w": 6})
    store = opened()
    report = store.schemas.up(GREETER_2)
    assert report.migrated == 2
    record = store.agents.load("a")
    assert (record.fields, record.schema, record.version) == (SECOND_FIELDS, "greeter@2.0.0", 2)
    assert [each.status for each in store.agents.list()] == ["created", "created"], "lists show them as before"
    agent = opened().agents.restore("a", release(GREETER_2, SECOND_FIELDS))
    agent.save()
    down = store.schemas.down(GREETER_2, to="1.0.0")
    assert (down.migrated, down.restored) == (2, 1)
    assert [store.agents.load(id).fields for id in ("a", "b")] == [FIRST_FIELDS, FIRST_FIELDS]
    assert store.schemas.up(IMAGE_2).migrated == 2
    assert store.artifacts.get("i").metadata == {"width": 5, "alt": ""}
    assert store.artifacts.read("i") == b"1"
    assert store.sessions.get("s").metadata == {"width": 6, "alt": ""}
    assert store.schemas.down(IMAGE_2, to="1.0.0").migrated == 2
    assert store.artifacts.get("i").metadata == {"w": 5}
    assert [each.id for each in store.artifacts.list(type="image")] == ["i"]
    assert store.maintenance.verify().ok


def test_a_state_that_fails_is_named(opened: Callable[[], Store]) -> None:
    old = opened()
    old.schemas.attach(PLAN_1, **PLANS, validate="off")
    for user, goal in (("a", "x"), ("b", 5), ("c", "z")):
        old.state(user=user)["plans/1"] = {**OLD_PLAN, "goal": goal}
    store = opened()
    plan = store.schemas.plan(PLAN_2)
    (unfit,) = plan.unfit
    assert (unfit.kind, unfit.thread, unfit.code) == ("key", "plans/1 of user:b", "schema-mismatch")
    assert "goal" in unfit.path
    with pytest.raises(HoldfastError, match="cannot be migrated"):
        store.schemas.up(PLAN_2)
    with pytest.raises(HoldfastError) as failed:
        store.schemas.up(PLAN_2, check_first=False)
    assert "user:b" in failed.value.where
    report = store.schemas.up(PLAN_2, on_error="skip")
    assert (report.migrated, report.unfit_total) == (1, 1), "the first was migrated before the failure"
    values = [stored(store, user)["plans/1"] for user in "abc"]
    assert ["aim" in each for each in values] == [True, False, True]
    with pytest.raises(HoldfastError):
        store.schemas.down(
            SchemaSet(PLAN_1, *PLAN_2, Migration("plan", "1.0.0", "2.0.0", *TO_PLAN_2.operations)), to="0.1.0"
        )
