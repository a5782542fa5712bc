"""Versions are retired only if no latest state has them, and are in use again when a state of one comes back."""

from __future__ import annotations

from io import BytesIO
from threading import Thread
from time import sleep
from typing import TypedDict

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, NotFoundError, UnsupportedError
from holdfast.maintenance.migration import bulk
from holdfast.maintenance.migration.bulk import MigrationReport
from holdfast.schemas import Migration, Schema, SchemaSet, add, remove, rename
from tests.engine.lines import store_on
from tests.migration.documents import FIRST_FIELDS, GREETER_2, OLD_PLAN, PLANS, saved
from tests.migration.documents import PLAN_1 as PLANS_1
from tests.migration.documents import PLAN_2 as PLANS_2


class Plan1(TypedDict):
    """The first version."""

    n: int


class Plan2(TypedDict):
    """One channel more, which an older program need not know."""

    n: int
    k: int


class Plan3(TypedDict):
    """A channel is renamed, and one removed."""

    x: int


PLAN_1, PLAN_2 = Schema("plan", "1.0.0", Plan1), Schema("plan", "2.0.0", Plan2)
FIRST = SchemaSet(PLAN_1)
SECOND = SchemaSet(PLAN_1, PLAN_2, Migration("plan", "1.0.0", "2.0.0", add("k", default=0)))


@pytest.fixture
def stores() -> tuple[Store, Store]:
    backend = MemoryBackend()
    return store_on(backend), store_on(backend)


@pytest.mark.parametrize("times", [1, 100])
def test_an_older_program_that_stores_states_behind_the_run(stores: tuple[Store, Store], times: int) -> None:
    new, old = stores
    old.schemas.attach(FIRST, threads="*")
    old.thread("t").put({"n": 1})
    stored: list[str] = []

    def interfere(*progress: object) -> None:
        del progress
        if len(stored) < times:
            stored.append(f"a{len(stored)}")
            old.thread(stored[-1]).put({"n": 5})

    report = new.schemas.up(SECOND, progress=interfere)
    assert stored
    found, retired = new.schemas.status(SECOND)[0].states, set(new.schemas.registered().retired)
    if times == 1:
        assert (found, retired, report.complete) == ({"2.0.0": 2}, {"plan@1.0.0"}, True)
        old.thread("later").put({"n": 6})
        assert not new.schemas.registered().retired
    else:
        assert found["1.0.0"] == 1, "the last one came behind every pass"
        assert (retired, report.complete, report.still_written) == (set(), False, ["1.0.0"])


THIRD = SchemaSet(
    PLAN_2,
    Schema("plan", "3.0.0", Plan3),
    Migration("plan", "2.0.0", "3.0.0", rename("n", "x"), remove("k")),
)
"""A release that cannot read the first version any more."""


@pytest.mark.parametrize("attached", [None, SECOND], ids=["tool", "program"])
@pytest.mark.parametrize("has_reference", [True, False])
@pytest.mark.parametrize("way", ["fork", "fork with changes", "restore"])
def test_an_old_state_that_comes_back(
    stores: tuple[Store, Store], attached: SchemaSet | None, has_reference: bool, way: str
) -> None:
    store, newest = stores
    if has_reference:
        store.schemas.attach(FIRST, threads="*")
    first = store.thread("t").put({"n": 1})
    store.schemas.attach(FIRST, threads="*")
    store.schemas.detach(threads="*")
    store.schemas.up(SECOND)
    assert store.schemas.registered().retired == {"plan@1.0.0"}
    if attached is not None:
        store.schemas.attach(attached, threads="*")
    thread = store.thread("t")
    if way == "restore":
        thread.restore(first.id)
    else:
        thread.fork("old", at=first.id, changes={"n": 2} if way == "fork with changes" else None)
    at = "HEAD" if way == "restore" else "old"
    read = thread.get(at=at, migrate=False)
    is_upgraded = attached is not None and way != "fork"
    assert (read.state.get("k"), "plan@1.0.0" in store.schemas.registered().retired) == (
        (0, True) if is_upgraded else (None, False)
    )
    if is_upgraded:
        newest.schemas.attach(THIRD, threads="*")
        assert newest.thread("t").get(at=at).state.keys() == {"x"}
    else:
        with pytest.raises(NotFoundError) as missing:
            newest.schemas.attach(THIRD, threads="*")
        assert missing.value.code == "migration-missing"
        store.schemas.detach(threads="*")
        assert store.schemas.up(SECOND).migrated == 1
        newest.schemas.attach(THIRD, threads="*")
        assert newest.thread("t").get(at=at).state.keys() == {"x"}


def test_a_state_of_a_version_that_was_downgraded_does_not_come_back(stores: tuple[Store, Store]) -> None:
    store, old = stores
    store.schemas.attach(SECOND, threads="*")
    second = store.thread("t").put({"n": 1, "k": 2})
    store.schemas.down(SECOND, to="1.0.0")
    store.schemas.detach(threads="*")
    thread = store.thread("t")
    for bring_back in (lambda: thread.fork("new", at=second.id), lambda: thread.restore(second.id)):
        with pytest.raises(UnsupportedError) as refused:
            bring_back()
        assert refused.value.code == "schema-newer"
    old.schemas.attach(FIRST, threads="*")
    old.thread("t").put({"n": 3})


def test_an_agent_that_is_rolled_back(stores: tuple[Store, Store]) -> None:
    store, old = stores
    saved(old, id="a")
    store.schemas.up(GREETER_2)
    assert store.schemas.registered().retired == {"greeter@1.0.0"}
    store.agents.rollback("a", 1)
    assert store.agents.load("a").fields == FIRST_FIELDS
    assert not store.schemas.registered().retired
    assert store.schemas.up(GREETER_2).migrated == 1
    assert store.schemas.registered().retired == {"greeter@1.0.0"}


@pytest.mark.parametrize("has_reference", [True, False])
@pytest.mark.parametrize("way", ["put", "update", "transaction", "new thread"])
def test_a_program_without_a_schema_writes_no_state_of_a_retired_version(
    stores: tuple[Store, Store], has_reference: bool, way: str
) -> None:
    store, plain = stores
    if has_reference:
        store.schemas.attach(FIRST, threads="t*")
    first = store.thread("t").put({"n": 1})
    store.schemas.attach(FIRST, threads="t*")
    store.schemas.detach(threads="t*")

    def write(thread: str) -> None:
        parent = None if way == "new thread" else first.id
        if way == "update":
            plain.thread(thread).update({"n": 2}, parent=parent)
        elif way == "transaction":
            plain.transaction(lambda together: together.update(thread, {"n": 2}, parent=parent))
        else:
            plain.thread(thread).put({"n": 2}, parent=parent)

    write("t-1" if way == "new thread" else "t")  # the version is in use: control, and the registry is read once
    store.schemas.up(SECOND)
    assert store.schemas.registered().retired == {"plan@1.0.0"}
    with pytest.raises(ConflictError) as refused:
        write("t-2" if way == "new thread" else "t")
    assert refused.value.code == "schema-missing"
    plain.thread("other").put({"n": 1})
    store.schemas.down(SECOND, to="1.0.0")
    write("t-3" if way == "new thread" else "t")


@pytest.mark.parametrize("way", ["import", "copy"])
def test_states_without_a_version_that_come_in(stores: tuple[Store, Store], way: str) -> None:
    store, newest = stores
    store.schemas.attach(FIRST, threads="t*")
    store.thread("t").put({"n": 1})
    store.schemas.detach(threads="t*")
    store.schemas.up(SECOND)
    with store_on(MemoryBackend()) as elsewhere:
        for name, is_retired in (("other", True), ("t9", False)):
            elsewhere.thread(name).put({"n": 5})
            if way == "copy":
                elsewhere.maintenance.copy_to(store)
            else:
                file = BytesIO()
                elsewhere.maintenance.export(file, threads=[name])
                file.seek(0)
                store.maintenance.import_(file)
            assert ("plan@1.0.0" in store.schemas.registered().retired) == is_retired
    newest.schemas.attach(SECOND, threads="t*")
    assert newest.thread("t9").get().state == {"n": 5, "k": 0}


def test_a_key_that_is_rolled_back(stores: tuple[Store, Store]) -> None:
    store, old = stores
    old.schemas.attach(PLANS_1, **PLANS)
    old.state(user="a")["plans/1"] = OLD_PLAN
    store.schemas.up(PLANS_2)
    assert store.schemas.registered().retired == {"plan@1.0.0"}
    assert store.state(user="a").rollback(1) == 1
    assert not store.schemas.registered().retired
    assert store.schemas.up(PLANS_2).migrated == 1


def test_a_state_that_one_of_two_processes_skipped(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 1)
    one, other = stores
    one.schemas.attach(FIRST, threads="*", validate="off")
    for number in range(4):
        one.thread(f"t{number}").put({"n": "unfit"} if number == 0 else {"n": number})
    one.schemas.detach(threads="*")
    reports: list[MigrationReport] = []
    joined = Thread(target=lambda: reports.append(other.schemas.up(SECOND, on_error="skip")))

    def share(done: int, total: int | None, name: str) -> None:
        if name == "t1" and not joined.is_alive():
            joined.start()
            while "plan@2.0.0" not in one.thread("t3").get().schema:  # the other does what is left
                sleep(0.001)

    first = one.schemas.up(SECOND, on_error="skip", progress=share)
    joined.join(60)
    assert [each.migrated for each in (first, *reports)] == [1, 2]
    assert [each.complete for each in (first, *reports)] == [False, False]
    assert not one.schemas.registered().retired
