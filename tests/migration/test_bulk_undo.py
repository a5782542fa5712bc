"""Migrations of all states that are rolled back: only what they wrote, and what they registered."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import HoldfastError, InvalidError
from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, rename
from tests.engine.lines import store_on
from tests.migration.documents import FIRST_FIELDS, GREETER_2, OLD_PLAN, PLAN_1, PLAN_2, PLANS, TO_PLAN_2, USERS, saved
from tests.migration.test_bulk_refusals import COUNT_1, COUNT_2, ONE, TWO, no_thirteen, versions


class Count3(TypedDict):
    """One channel more."""

    m: int
    k: int


COUNT_3 = Schema("count", "3.0.0", Count3)


@pytest.fixture
def stores() -> tuple[Store, Store]:
    backend = MemoryBackend()
    return store_on(backend), store_on(backend)


def kinds(store: Store, thread: str) -> list[tuple[str, str]]:
    return [(each.kind, each.schema) for each in store.thread(thread).log()][::-1]


def test_states_that_had_the_version_before_are_left(stores: tuple[Store, Store]) -> None:
    new, old = stores
    old.schemas.attach(ONE, threads="*")
    for number in (1, 2, 13):
        old.thread(f"t{number:02}").put({"n": number})
    old.thread("t01").fork("side", changes={"n": 5})
    failing = versions(up=no_thirteen)
    new.schemas.attach(failing, threads="*")
    new.thread("native").put({"m": 7})
    before = new.schemas.registered()
    with pytest.raises(InvalidError, match="raised ValueError in"):
        new.schemas.up(failing, on_error="rollback", check_first=False)
    assert kinds(new, "native") == [("save", "count@2.0.0")]
    assert kinds(new, "t13") == [("save", "count@1.0.0")]
    restored = [("save", "count@1.0.0"), ("migrate", "count@2.0.0"), ("migrate", "count@1.0.0")]
    assert kinds(new, "t02") == restored
    assert new.thread("t01").get(at="side", migrate=False).state == {"n": 5}
    after = new.schemas.registered()
    assert (after.records, after.retired, after.closing) == (before.records, before.retired, before.closing)
    new.thread("native").put({"m": 8})
    assert new.maintenance.verify().ok


def test_a_version_that_nobody_uses_is_not_registered_as_used(stores: tuple[Store, Store]) -> None:
    new, old = stores
    old.schemas.attach(ONE, threads="*")
    for number in (1, 13):
        old.thread(f"t{number:02}").put({"n": number})
    with pytest.raises(InvalidError, match="raised ValueError in"):
        new.schemas.up(versions(up=no_thirteen), on_error="rollback", check_first=False)
    old.thread("t01").put({"n": 4})
    assert new.schemas.registered().records["count"].current == COUNT_1.version
    assert new.schemas.up(TWO).migrated == 2, "the corrected migration was never applied"


def test_states_of_two_versions(stores: tuple[Store, Store]) -> None:
    new, old = stores

    three = SchemaSet(
        COUNT_1,
        COUNT_2,
        COUNT_3,
        Migration("count", "1.0.0", "2.0.0", rename("n", "m")),
        Migration("count", "2.0.0", "3.0.0", add("k", default=0), convert("m", no_thirteen, no_thirteen)),
    )
    old.schemas.attach(ONE, threads="a*")
    old.thread("a").put({"n": 1})
    new.schemas.attach(versions(), threads="b*")
    for number in (2, 13):
        new.thread(f"b{number:02}").put({"m": number})
    with pytest.raises(InvalidError, match="raised ValueError in"):
        new.schemas.up(three, on_error="rollback", check_first=False)
    assert [new.thread(each).get(migrate=False).schema for each in ("a", "b02", "b13")] == [
        "count@1.0.0",
        "count@2.0.0",
        "count@2.0.0",
    ]
    new.thread("b02").put({"m": 3})


def test_a_downgrade(stores: tuple[Store, Store]) -> None:
    new, _ = stores
    failing = versions(down=no_thirteen)
    new.schemas.attach(failing, threads="*")
    for number in (1, 13):
        new.thread(f"t{number:02}").put({"m": number})
    with pytest.raises(HoldfastError, match="raised ValueError in"):
        new.schemas.down(failing, to="1.0.0", on_error="rollback", check_first=False)
    assert [schema for _, schema in kinds(new, "t01")] == ["count@2.0.0", "count@1.0.0", "count@2.0.0"]
    record = new.schemas.registered().records["count"]
    assert (record.current, record.is_pinned) == (COUNT_2.version, False)
    new.thread("t01").put({"m": 3})


def test_what_was_changed_meanwhile_is_left(stores: tuple[Store, Store]) -> None:
    new, old = stores
    old.schemas.attach(ONE, threads="*")
    old.thread("s").put({"n": 1})
    for number in range(1, 5):
        old.thread(f"t{number}").put({"n": number})
        old.thread(f"t{number}").fork("side")  # so that they are migrated after the short ones
    old.thread("t4").update({"n": 13})
    old.schemas.detach(threads="*")
    failing = versions(up=no_thirteen)
    seen: list[str] = []

    def interfere(*progress: object) -> None:
        if not seen:
            seen.append(str(progress[2]))
            old.schemas.attach(versions(), threads="*")
            old.thread("s").put({"m": 50})

    with pytest.raises(InvalidError, match="raised ValueError in"):
        new.schemas.up(failing, on_error="rollback", check_first=False, progress=interfere)
    assert seen == ["s"]
    assert new.thread("s").get().state == {"m": 50}
    assert new.thread("t1").get(at="side").state == {"n": 1}
    assert "count@2.0.0" not in new.schemas.registered().retired
    old.thread("s").put({"m": 51})


@pytest.mark.parametrize("where", [USERS, PLANS], ids=["whole scopes", "keys"])
def test_states_that_are_not_in_threads(stores: tuple[Store, Store], where: dict[str, Any]) -> None:
    new, old = stores

    def fail(value: list[str]) -> list[str]:
        if value == ["fails"]:
            raise ValueError("this one fails")
        return value

    failing = SchemaSet(
        *PLAN_2, Migration("plan", "1.0.0", "2.0.0", *TO_PLAN_2.operations, convert("steps", fail, fail))
    )
    old.schemas.attach(PLAN_1, **where)
    plans = {"a": OLD_PLAN, "b": OLD_PLAN, "c": OLD_PLAN | {"steps": ["fails"]}}
    for user, plan in plans.items():
        old.state(user=user).batch({"plans/1": plan} if where is PLANS else plan)
    before = [old.state(user=user).list_items(migrate=False) for user in plans]
    with pytest.raises(InvalidError, match="raised ValueError in"):
        new.schemas.up(failing, on_error="rollback", check_first=False)
    after = [new.state(user=user).list_items(migrate=False) for user in plans]
    assert [[each.value for each in every] for every in after] == [[each.value for each in every] for every in before]
    assert new.schemas.status(failing)[0].states == {"1.0.0": 3}
    assert new.schemas.registered().retired == {"plan@2.0.0"}
    old.state(user="a").batch({"plans/1": OLD_PLAN} if where is PLANS else {"goal": "y"})


def test_agents(stores: tuple[Store, Store]) -> None:
    new, old = stores
    for id in ("a", "b"):
        saved(old, id=id)

    def fail(value: float) -> float:
        raise ValueError("this one fails")

    calls: list[float] = []

    def fail_later(value: float) -> float:
        calls.append(value)
        return value if len(calls) == 1 else fail(value)

    (to_2,) = GREETER_2.migrations("greeter")
    failing = SchemaSet(
        *GREETER_2, Migration("greeter", "1.0.0", "2.0.0", *to_2.operations, convert("count", fail_later, fail))
    )
    with pytest.raises(HoldfastError, match="raised ValueError in"):
        new.schemas.up(failing, on_error="rollback", check_first=False)
    assert len(calls) == 2
    assert [new.agents.load(id).fields for id in ("a", "b")] == [FIRST_FIELDS] * 2
    assert new.agents.load("a").version == 3
    assert new.schemas.up(GREETER_2).migrated == 2
