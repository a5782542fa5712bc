"""Schemas of scopes, whole or by key: upgraded on read, stored so at the next step, and checked in each batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import pack_name
from holdfast.engine.model.steps import StepHeader
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, UnsupportedError
from holdfast.schemas import Migration, Schema, SchemaSet, convert, each, rename
from holdfast.schemas.attached_version import SchemaWarning
from tests.migration.documents import NEW_PLAN, OLD_PLAN, PLAN_1, PLAN_2, PLAN_21, PLANS, USERS, Plan1
from tests.support.counting import CountingBackend


def header(store: Store, scope: str) -> StepHeader:
    engine, line = store._engine, Line("", f"␞{scope}")
    point = run(engine.lines.latest_step(line))
    assert point is not None
    return run(engine.step_info.head(line, point)).header


# A key -------------------------------------------------------------------------------------------------------------


def test_an_old_value_is_upgraded_on_read_and_stored_so_when_it_is_written(opened: Callable[[], Store]) -> None:
    old = opened()
    assert old.schemas.attach(PLAN_1, **PLANS) == "plan@1.0.0"
    state = old.state(user="a")
    first = state.set("plans/1", OLD_PLAN)
    state["other"] = 5  # no plan
    store = opened()
    store.schemas.attach(PLAN_2, **PLANS)
    new = store.state(user="a")
    assert new["plans/1"] == NEW_PLAN
    assert new.item("plans/1").version == first
    assert dict(new) == {"plans/1": NEW_PLAN, "other": 5}
    assert new.item("plans/1", migrate=False).value == OLD_PLAN
    assert new.at(first, migrate=False) == {"plans/1": OLD_PLAN}
    new.patch("plans/1", {"done": 1})
    assert new["plans/1"] == {**NEW_PLAN, "done": 1}
    assert new.item("plans/1", migrate=False).value == {**NEW_PLAN, "done": 1}
    assert new.get_at("plans/1", first, migrate=False) == OLD_PLAN, "history keeps the original"
    assert new.get_at("plans/1", first) == NEW_PLAN
    assert header(store, "user:a").key_schemas == ((pack_name("plans/1"), "plan@2.0.0"),)
    assert sorted(new) == ["other", "plans/1"]
    new.rollback(first, "plans/1")
    assert new.item("plans/1", migrate=False).value == NEW_PLAN, "a value that is restored is upgraded, too"
    assert store.maintenance.verify().ok


def test_every_way_to_write_an_old_value_upgrades_it(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, **PLANS)
    ways: dict[str, Callable[[Any], Any]] = {
        "set": lambda state: state.set("plans/1", {**NEW_PLAN, "done": 3}),
        "patch": lambda state: state.patch("plans/1", {"done": 3}),
        "change": lambda state: state.change("plans/1", lambda plan: {**plan, "done": 3}),
        "batch": lambda state: state.batch({"plans/1": {**NEW_PLAN, "done": 3}}),
    }
    for way in ways:
        old.state(user=way)["plans/1"] = OLD_PLAN
    old.state(user="transaction")["plans/1"] = OLD_PLAN
    store.schemas.attach(PLAN_2, **PLANS)
    for way, write in ways.items():
        write(store.state(user=way))
    with store.transaction() as together:
        plan = together.state(user="transaction").get("plans/1")
        together.state(user="transaction")["plans/1"] = {**plan, "done": 3}
    for user in (*ways, "transaction"):
        assert store.state(user=user).item("plans/1", migrate=False).value == {**NEW_PLAN, "done": 3}, user
    store.state(user="set").copy_to(store.state(user="copy"))
    assert store.state(user="copy").item("plans/1", migrate=False).value == {**NEW_PLAN, "done": 3}


def test_a_writer_of_an_older_version_is_refused_in_the_batch_of_its_next_write(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, **PLANS)
    old.state(user="a")["plans/1"] = OLD_PLAN
    store.schemas.attach(PLAN_2, **PLANS)
    state = old.state(user="a")
    writes: list[Callable[[], object]] = [
        lambda: state.set("plans/2", OLD_PLAN),
        lambda: state.patch("plans/1", {"goal": "y"}),
        lambda: state.batch({"plans/1": OLD_PLAN}),
    ]
    for write in writes:
        with pytest.raises(ConflictError) as refused:
            write()
        assert refused.value.code == "schema-outdated"
    old.state(user="a")["other"] = 5  # the control: it has no schema
    assert store.state(user="a").item("plans/1", migrate=False).value == OLD_PLAN
    store.state(user="a").patch("plans/1", {"done": 1})
    with pytest.raises(ConflictError, match="is incompatible with this program"):
        old.state(user="a").get("plans/1")


def test_an_older_writer_that_gets_along_keeps_what_it_does_not_know(opened: Callable[[], Store]) -> None:
    older, newer = opened(), opened()
    older.schemas.attach(PLAN_2, **PLANS)
    older.state(user="a")["plans/1"] = NEW_PLAN
    newer.schemas.attach(PLAN_21, **PLANS)
    newer.state(user="a").patch("plans/1", {"owner": "ada"})
    older.state(user="a")["plans/1"] = {**NEW_PLAN, "done": 1}
    older.state(user="a").patch("plans/1", {"done": 2})
    assert newer.state(user="a")["plans/1"] == {**NEW_PLAN, "done": 2, "owner": "ada"}
    assert header(newer, "user:a").key_schemas == ((pack_name("plans/1"), "plan@2.1.0"),)


def test_a_program_without_schemas_keeps_the_version_of_a_value(opened: Callable[[], Store]) -> None:
    old, plain, store = opened(), opened(), opened()
    old.schemas.attach(PLAN_1, **PLANS)
    old.state(user="a")["plans/1"] = OLD_PLAN
    plain.state(user="a").patch("plans/1", {"goal": "y"})
    plain.state(user="a").copy_to(plain.state(user="b"))
    plain.state(user="b").move_to(plain.state(user="c"))
    store.schemas.attach(PLAN_2, **PLANS)
    for user in ("a", "c"):
        assert store.state(user=user)["plans/1"] == {**NEW_PLAN, "aim": "y"}
    plain.state(user="a").delete("plans/1")
    assert store._engine.value_schemas is not None
    plain.state(user="a")["plans/1"] = OLD_PLAN
    assert header(store, "user:a").key_schemas == (), "the mark of a deleted key is gone with it"
    assert store.state(user="a")["plans/1"] == NEW_PLAN


def test_a_program_without_schemas_is_refused_on_top_of_a_newer_value(opened: Callable[[], Store]) -> None:
    plain, store = opened(), opened()
    plain.state(user="a")["plans/1"] = OLD_PLAN
    store.schemas.attach(PLAN_2, **PLANS)
    plain.state(user="a")["plans/1"] = {**OLD_PLAN, "goal": "y"}  # nobody has upgraded it
    new = store.state(user="a")
    new.patch("plans/1", {"aim": "z"})
    state = plain.state(user="a")
    writes: list[Callable[[], object]] = [
        lambda: state.set("plans/1", OLD_PLAN),
        lambda: state.patch("plans/1", {"goal": "x"}),
        lambda: state.batch({"plans/1": OLD_PLAN, "other": 1}),
    ]
    for write in writes:
        with pytest.raises(ConflictError) as refused:
            write()
        assert (refused.value.code, refused.value.where) == ("schema-missing", "key 'plans/1' of user:a")
    assert "other" not in state
    assert new["plans/1"] == {**NEW_PLAN, "aim": "z"}
    state.expire("plans/1", 1000)  # what has no shape
    state.copy_to(plain.state(user="b"))
    assert store.state(user="b")["plans/1"] == {**NEW_PLAN, "aim": "z"}
    state.delete("plans/1")
    state["plans/1"] = OLD_PLAN
    assert new["plans/1"] == NEW_PLAN


def test_what_is_written_is_validated(opened: Callable[[], Store]) -> None:
    store = opened()
    store.schemas.attach(PLAN_1, **PLANS)
    state = store.state(user="a")
    with pytest.raises(InvalidError) as refused:
        state["plans/1"] = {**OLD_PLAN, "goal": 5}
    assert (refused.value.code, refused.value.where) == ("schema-mismatch", "goal of key 'plans/1' of user:a")
    assert "plans/1" not in state
    state["plans/1"] = OLD_PLAN
    with pytest.raises(InvalidError):
        state.patch("plans/1", {"goal": None})
    with pytest.raises(InvalidError):
        state.patch("plans/1", {}, remove=["goal"])
    state.append("words", "x")  # no plan
    store.schemas.attach(PLAN_1, **PLANS, validate="warn")
    with pytest.warns(SchemaWarning, match="goal"):
        state["plans/1"] = {**OLD_PLAN, "goal": 5}
    store.schemas.attach(PLAN_1, **PLANS, validate="off")
    state["plans/1"] = {**OLD_PLAN, "goal": 6}


def test_a_value_that_cannot_be_migrated_can_be_deleted(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, **PLANS)
    old.state(user="a").batch({"plans/1": OLD_PLAN, "plans/2": OLD_PLAN})
    failing = Migration("plan", "1.0.0", "2.0.0", *PLAN_2.migrations()[0].operations, convert("aim", _fail, _fail))
    store.schemas.attach(SchemaSet(PLAN_1, PLAN_2.get("plan@2.0.0"), failing), **PLANS)
    state = store.state(user="a")
    for call in (lambda: state.get("plans/1"), lambda: state.set("plans/1", NEW_PLAN)):
        with pytest.raises(InvalidError) as failed:
            call()
        assert (failed.value.code, "key 'plans/1' of user:a" in failed.value.where) == ("migration-failed", True)
    assert state.item("plans/1", migrate=False).value == OLD_PLAN
    del state["plans/2"]
    assert state.delete("plans/1")
    assert list(state) == []


def _fail(value: str) -> str:
    raise LookupError(value)


def test_values_that_are_no_dicts(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    numbers = Schema("counter", "1", int)
    old.schemas.attach(numbers, scopes="user:*", key="count")
    state = old.state(user="a")
    state.increment("count", 5)
    with pytest.raises(InvalidError):
        state["count"] = "five"
    texts = SchemaSet(
        numbers, Schema("counter", "2", list[int]), Migration("counter", "1", "2", convert("", _listed, _single))
    )
    store.schemas.attach(texts, scopes="user:*", key="count")
    new = store.state(user="a")
    assert new["count"] == [5]
    new.append("count", 6)
    assert new.item("count", migrate=False).value == [5, 6]
    messages = SchemaSet(
        Schema("talk", "1", list[dict[str, str]]),
        Schema("talk", "2", list[dict[str, str]]),
        Migration("talk", "1", "2", each("", rename("text", "content"))),
    )
    new["talk"] = [{"text": "hi"}]
    store.schemas.attach(messages, scopes="user:*", key="talk")
    assert new["talk"] == [{"content": "hi"}]


def _listed(value: int) -> list[int]:
    return [value]


def _single(value: list[int]) -> int:
    return value[0]


# A whole scope -----------------------------------------------------------------------------------------------------


def test_a_scope_is_upgraded_as_a_whole(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, **USERS)
    state = old.state(user="a")
    for key, value in OLD_PLAN.items():
        state[key] = value
    state.set("goal", "x", ttl=3600)
    steps = state.item("steps").version
    store.schemas.attach(PLAN_2, **USERS)
    new = store.state(user="a")
    assert dict(new) == NEW_PLAN
    assert new.item("aim").expires is not None, "a renamed key expires when it would have"
    assert new.item("steps").version == steps, "a key that is left alone keeps its version"
    assert {each.key: each.value for each in new.list_items(migrate=False)} == OLD_PLAN
    new.set("steps", ["a", "b"], expected=steps)
    assert dict(new) == {**NEW_PLAN, "steps": ["a", "b"]}
    assert header(store, "user:a").schema == "plan@2.0.0"
    assert {each.key: each.value for each in new.list_items(migrate=False)} == {**NEW_PLAN, "steps": ["a", "b"]}
    assert new.at(steps, migrate=False) == {"goal": "x", "steps": ["a"]}, "history keeps the original"
    assert len(new) == 3
    assert store.maintenance.verify().ok
    with pytest.raises(ConflictError, match="is incompatible with this program"):
        state["goal"] = "y"


def test_operators_and_hooks_see_the_upgraded_scope(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, **USERS)
    old.state(user="a").batch(OLD_PLAN)
    store.schemas.attach(PLAN_2, **USERS)
    seen: list[Any] = []
    store.hooks.before("state.patch")(lambda call: seen.append(call.old))
    new = store.state(user="a")
    assert new.increment("done") == 1
    assert new.append("steps", "b") == 2
    assert seen == [0, ["a"]]
    new.clear()
    assert (len(new), header(store, "user:a").schema) == (0, "plan@2.0.0")


def test_keys_of_a_scope_are_validated_one_by_one(opened: Callable[[], Store]) -> None:
    store = opened()
    store.schemas.attach(PLAN_1, **USERS)
    state = store.state(user="a")
    state["steps"] = ["a"]  # the goal is required, and comes later
    writes: list[Callable[[], object]] = [
        lambda: state.set("goal", 5),
        lambda: state.append("steps", 6),
        lambda: state.batch({"goal": []}),
    ]
    for write in writes:
        with pytest.raises(InvalidError) as refused:
            write()
        assert refused.value.code == "schema-mismatch"
    assert dict(state) == {"steps": ["a"]}
    store.state(agent="b")["goal"] = 5  # the control: another scope


def test_a_program_without_schemas_keeps_the_version_of_a_scope(opened: Callable[[], Store]) -> None:
    old, plain, store = opened(), opened(), opened()
    old.schemas.attach(PLAN_1, **USERS)
    old.state(user="a").batch(OLD_PLAN)
    plain.state(user="a")["goal"] = "y"
    assert header(plain, "user:a").schema == "plan@1.0.0"
    store.schemas.attach(PLAN_2, **USERS)
    store.state(user="a")["done"] = 4
    with pytest.raises(ConflictError) as refused:
        plain.state(user="a")["done"] = 5
    assert (refused.value.code, refused.value.where) == ("schema-missing", "scope 'user:a'")
    plain.state(user="a").delete("goal")  # a key that nobody has
    assert header(plain, "user:a").schema == "plan@2.0.0"
    with pytest.raises(UnsupportedError) as mixed:
        plain.state(user="a").rollback(1)
    assert mixed.value.code == "schema-mixed"
    store.state(user="a").rollback(1)
    assert dict(store.state(user="a")) == NEW_PLAN
    again = opened()  # an older writer does not bring the old form back
    with pytest.raises(ConflictError):
        again.schemas.attach(PLAN_1, **USERS)


def test_a_program_without_schemas_copies_a_scope_with_its_version(opened: Callable[[], Store]) -> None:
    plain, store = opened(), opened()
    plain.state(user="old").batch(OLD_PLAN)
    plain.state(user="a").batch(OLD_PLAN)
    store.schemas.attach(PLAN_2, **USERS)
    store.state(user="a")["done"] = 4
    now = dict(store.state(user="a"))
    for _ in range(2):
        plain.state(user="a").copy_to(plain.state(user="b"), on_conflict="overwrite")
        assert header(plain, "user:b").schema == "plan@2.0.0"
    for source, target in (("a", "old"), ("old", "a")):
        with pytest.raises((UnsupportedError, ConflictError)) as mixed:
            plain.state(user=source).copy_to(plain.state(user=target), on_conflict="overwrite")
        assert mixed.value.code == ("schema-mixed" if source == "a" else "schema-missing")
    plain.state(user="b").move_to(plain.state(user="c"))
    assert dict(store.state(user="c")) == now
    plain.state(user="old").copy_to(plain.state(user="d"))
    assert dict(store.state(user="d")) == NEW_PLAN == dict(store.state(user="old"))


def test_a_session_that_is_archived_and_restored_keeps_its_versions(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(PLAN_1, scopes="session:*", key="plan")
    session = old.sessions.start("s", on_end="archive")
    session.state["plan"] = OLD_PLAN
    session.end()
    store.schemas.attach(PLAN_2, scopes="session:*", key="plan")
    restored = store.sessions.resume("s")
    assert restored.state["plan"] == NEW_PLAN
    assert restored.state.item("plan", migrate=False).value == OLD_PLAN


# Wrong use and costs -----------------------------------------------------------------------------------------------


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for wrong in ({"key": "plan"}, {"threads": "a", "scopes": "user:*"}, {"scopes": ""}):
            with pytest.raises(InvalidError):
                store.schemas.attach(PLAN_1, **wrong)  # type: ignore[arg-type]
        store.state(user="a")["plans/1"] = OLD_PLAN
        store.schemas.attach(Schema("other", "1", Plan1), **PLANS)
        store.state(user="a")["plans/1"] = OLD_PLAN
        store.schemas.attach(PLAN_1, **PLANS)
        with pytest.raises(ConflictError) as other:
            store.state(user="a").get("plans/1")
        assert other.value.code == "schema-changed"


@pytest.mark.parametrize("where", [USERS, PLANS])
def test_a_read_with_nothing_pending_costs_nothing(where: dict[str, Any]) -> None:
    backend = CountingBackend(MemoryBackend())
    store = Store(Engine(EngineContext(backend)), "")
    store.schemas.attach(PLAN_2, **where)
    state = store.state(user="a")
    key = "plans/1" if "key" in where else "done"
    state[key] = NEW_PLAN if "key" in where else 3

    def counts() -> tuple[int, int]:
        entered = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal entered
            if event == "call" and "/holdfast/schemas/" in frame.f_code.co_filename:
                entered += 1

        store._engine.context.cache.clear()
        backend.reset()
        sys.setprofile(profile)
        try:
            state.get(key)
        finally:
            sys.setprofile(None)
        return backend.reads, entered

    counts()
    attached = counts()
    assert attached[1] == 0
    store.schemas.detach(**where)
    assert counts() == attached, "as many calls of the store as without a schema"
    store.schemas.attach(SchemaSet(PLAN_21), **where)
    assert counts()[1] > 0, "the control: there is something to upgrade"


@pytest.mark.parametrize("where", [USERS, PLANS])
def test_a_write_with_a_schema_asks_the_store_no_more(where: dict[str, Any]) -> None:
    calls = []
    for attached in (False, True):
        backend = CountingBackend(MemoryBackend())
        store = Store(Engine(EngineContext(backend)), "")
        if attached:
            store.schemas.attach(PLAN_2, **where)
        state = store.state(user="a")
        key = "plans/1" if "key" in where else "done"
        state[key] = NEW_PLAN if "key" in where else 0
        backend.reset()
        for number in range(40):
            state[key] = {**NEW_PLAN, "done": number} if "key" in where else number
        calls.append((backend.reads, backend.applies))
    assert calls[0] == calls[1]
