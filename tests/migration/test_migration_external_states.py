"""States that come in by an import or a restore must fit the version that they say they have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.schemas import Schema, SchemaSet
from holdfast.schemas.attached_version import SchemaWarning
from tests.migration.documents import FIRST_FIELDS, OLD_PLAN, PLAN_1, PLANS, saved
from tests.migration.versions import ONE, TWO, Chat1, first, second


def exported(store: Store) -> bytes:
    file = io.BytesIO()
    store.maintenance.export(file, kinds=("thread", "scope", "agent"))
    return file.getvalue()


@pytest.fixture
def target(tmp_path: Path) -> Any:
    with holdfast.open(tmp_path / "target.db") as store:
        store.schemas.attach(ONE, threads="chat-*")
        store.schemas.attach(PLAN_1, **PLANS)
        yield store


def source(tmp_path: Path, name: str, state: Any, plan: Any) -> bytes:
    """A file of a store whose program did not check what it wrote."""
    with holdfast.open(tmp_path / name) as store:
        store.schemas.attach(ONE, threads="chat-*", validate="off")
        store.schemas.attach(PLAN_1, **PLANS, validate="off")
        store.thread("chat-1").put(state)
        store.state(user="a")["plans/1"] = plan
        return exported(store)


def test_what_fits_is_imported(tmp_path: Path, target: Store) -> None:
    file = source(tmp_path, "good.db", first(), OLD_PLAN)
    assert len(target.maintenance.import_(io.BytesIO(file), kinds=("thread", "scope")).threads) == 2
    assert target.thread("chat-1").get().state == first()
    assert target.state(user="a")["plans/1"] == OLD_PLAN


@pytest.mark.parametrize(
    ("state", "plan", "where"),
    [
        (first() | {"count": "x"}, OLD_PLAN, "thread 'chat-1'"),
        (first(), {"goal": 5, "steps": []}, "key 'plans/1' of user:a"),
    ],
    ids=["thread", "key"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, target: Store, state: Any, plan: Any, where: str) -> None:
    file = source(tmp_path, "bad.db", state, plan)
    with pytest.raises(InvalidError) as refused:
        target.maintenance.import_(io.BytesIO(file), kinds=("thread", "scope"))
    assert refused.value.code == "schema-mismatch"
    assert where in refused.value.where
    assert not target.threads()
    assert not target.scopes()
    target.schemas.attach(ONE, threads="chat-*", validate="warn")
    target.schemas.attach(PLAN_1, **PLANS, validate="warn")
    with pytest.warns(SchemaWarning, match="does not fit"):
        target.maintenance.import_(io.BytesIO(file), kinds=("thread", "scope"))
    assert target.thread("chat-1").get().state == state


def test_a_version_that_the_store_does_not_know_is_refused(tmp_path: Path, target: Store) -> None:
    with holdfast.open(tmp_path / "newer.db") as newer:
        newer.schemas.attach(SchemaSet(Schema("chat", "9.0.0", Chat1)), threads="chat-*")
        newer.schemas.attach(Schema("other", "1", Chat1), threads="other-*")
        newer.thread("other-1").put(first())
        other = exported(newer)
        newer.thread("chat-1").put(first())
        file = exported(newer)
    with pytest.raises(NotFoundError) as refused:
        target.maintenance.import_(io.BytesIO(file))
    assert refused.value.code == "schema-version-unknown"
    assert not target.threads()
    target.maintenance.import_(io.BytesIO(other))  # of a schema that the store does not know, nothing is checked
    assert target.thread("other-1").get().schema == "other@1.0.0"


def test_an_imported_state_of_a_version_that_was_gone_is_reckoned_with(tmp_path: Path) -> None:
    file = source(tmp_path, "old.db", first(), OLD_PLAN)
    with holdfast.open(tmp_path / "target.db") as store:
        store.schemas.attach(ONE, threads="chat-*")
        store.thread("chat-2").put(first())
        store.schemas.up(TWO)
        assert store.schemas.registered().retired == {"chat@1.0.0"}
        store.maintenance.import_(io.BytesIO(file), dry_run=True)
        assert store.schemas.registered().retired == {"chat@1.0.0"}
        store.maintenance.import_(io.BytesIO(file))
        assert store.schemas.registered().retired == frozenset()
    with holdfast.open(tmp_path / "target.db") as again, pytest.raises(NotFoundError):
        again.schemas.attach(SchemaSet(Schema("chat", "3.0.0", Chat1)))  # it needs a migration from 1.0.0, too


def test_agents_of_documents_and_snapshots(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saved(store)
        document = store.agents.export("a")
        assert store.agents.import_(document, id="b").fields == FIRST_FIELDS
        document["state"]["fields"]["count"] = "many"
        with pytest.raises(InvalidError) as refused:
            store.agents.import_(document, id="c")
        assert refused.value.code == "schema-mismatch"
        document["state"]["schema"] = "greeter@7.0.0"
        with pytest.raises(NotFoundError):
            store.agents.import_(document, id="c")
        assert [each.id for each in store.agents.list()] == ["a", "b"]


def test_a_restored_state_is_checked(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat-1").put(first() | {"count": "x"})
        store.thread("chat-1").put(first())
        store.schemas.attach(ONE, threads="chat-*")
        with pytest.raises(InvalidError):
            store.thread("chat-1").restore(at="#0")
        store.thread("chat-1").put(first(1))
        store.thread("chat-1").restore(at="#1")  # the control
        assert store.thread("chat-1").get().state == first()
        with pytest.raises(ConflictError):
            store.schemas.attach(Schema("chat", "1.0.0", int), threads="chat-*")


class Lone(TypedDict):
    """A version that comes in without a migration from the ones before it."""

    messages: list[str]


@pytest.mark.parametrize("threads", [None, ["chat-1"]], ids=["all", "some"])
@pytest.mark.parametrize("by_url", [False, True])
def test_a_copy_takes_its_versions_along(tmp_path: Path, threads: list[str] | None, by_url: bool) -> None:
    alone = Schema("chat", "3.0.0", Lone)
    with holdfast.open(tmp_path / "source.db") as store, holdfast.open(tmp_path / "target.db") as target:
        store.schemas.attach(ONE, threads="chat-*")
        store.schemas.attach(PLAN_1, **PLANS)
        store.thread("chat-1").put(first())
        target.schemas.attach(Schema("other", "1.0.0", Lone), threads="other")
        target.thread("other").put({"messages": []})
        for _ in range(2):  # once more changes nothing
            store.maintenance.copy_to(tmp_path / "target.db" if by_url else target, threads=threads)
        registered = target.schemas.registered()
        assert set(registered.records) == ({"chat", "other"} if threads else {"chat", "other", "plan"})
        assert registered.records["chat"].patterns == (() if threads else ("chat-*",))
        with pytest.raises(NotFoundError) as missing:
            target.schemas.attach(alone, threads="chat-*")
        assert missing.value.code == "migration-missing", "the program is told before it reads the state"
        target.schemas.attach(TWO, threads="chat-*")
        assert target.thread("chat-1").get().state == second()
        assert target.maintenance.verify().ok
        # A version that has another form there: nothing is copied.
        store.schemas.attach(Schema("other", "1.0.0", Chat1), threads="more")
        store.thread("more").put(first())
        with pytest.raises(ConflictError) as changed:
            store.maintenance.copy_to(target, threads=threads and ["more"])
        assert changed.value.code == "schema-changed"
        assert "more" not in [each.thread for each in target.threads()]


def test_a_copy_of_a_whole_store_has_the_registry_as_it_is(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "source.db") as store, holdfast.open(tmp_path / "target.db") as target:
        for schemas in (ONE, TWO):
            store.schemas.attach(schemas, threads="chat-*")
            store.maintenance.copy_to(target)
        assert target.schemas.registered().tip == store.schemas.registered().tip
