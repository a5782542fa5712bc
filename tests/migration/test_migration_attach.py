"""Schemas that are attached to threads: states are upgraded when they are read, and writers are checked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas import Migration, Schema, SchemaSet, convert, rename
from holdfast.schemas.attached_version import SchemaWarning
from tests.migration.versions import CHAT_1, CHAT_2, ONE, THREE, TWO, TWO_ONE, Chat1, first, second
from tests.support.counting import CountingBackend


@pytest.fixture
def old(url: str) -> Any:
    """A program with the first version, which has saved a state."""
    with holdfast.open(url) as store:
        store.schemas.attach(ONE, threads="chat-*")
        store.thread("chat-1").put(first())
        yield store


def test_an_old_state_is_upgraded_on_read_and_stored_so_at_the_next_step(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        assert store.schemas.attach(TWO, threads="chat-*") == "chat@2.0.0"
        thread = store.thread("chat-1")
        read = thread.get()
        assert (read.state, read.schema) == (second(), "chat@2.0.0")
        stored = thread.get(migrate=False)
        assert (stored.state, stored.schema) == (first(), "chat@1.0.0")
        thread.update({"plan": ["go"]})
        assert thread.get().state == second() | {"plan": ["go"]}
        kept = thread.get(migrate=False).state
        assert kept.pop("__aside__")
        assert kept == second() | {"plan": ["go"]}
        assert thread.get(at="HEAD~1", migrate=False).state == first(), "history keeps the original"
        assert thread.get(at="HEAD~1").state == second()
        assert [each.schema for each in thread.log()] == ["chat@2.0.0", "chat@1.0.0"]
        assert store.maintenance.verify().ok
    del old


def test_a_part_of_an_old_state_is_changed(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        store.thread("chat-1").update({"messages[0]": "hi"})
        assert store.thread("chat-1").get().state == second() | {"messages": ["hi", "m0"]}
    del old


def test_an_older_writer_meets_a_newer_version_that_gets_along_in_a_write(url: str) -> None:
    with holdfast.open(url) as older, holdfast.open(url) as newer:
        older.schemas.attach(TWO)
        older.thread("chat-1").put(second())
        newer.schemas.attach(TWO_ONE)
        newer.thread("chat-1").update({"mood": "good"})
        older.thread("chat-1").put(second(1))  # without having read it
        assert newer.thread("chat-1").get().state == second(1) | {"mood": "good"}


def test_a_whole_state_that_is_put_keeps_what_was_put_aside(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        thread = store.thread("chat-1")
        for count in ("1", "2"):
            thread.put(thread.get().state | {"count": count})
        assert "__aside__" in thread.get(migrate=False).state
        assert "__aside__" not in thread.get().state
    with holdfast.open(url) as store:  # nothing is cached
        store.schemas.attach(TWO)
        store.thread("chat-1").put(second() | {"count": "3"})
        assert "__aside__" in store.thread("chat-1").get(migrate=False).state
        store.schemas.down(TWO, to="1.0.0")
        assert store.thread("chat-1").get(migrate=False).state == first() | {"count": 3}
    del old


def test_a_program_without_schemas_keeps_what_was_put_aside(url: str) -> None:
    with holdfast.open(url) as plain, holdfast.open(url) as store:
        plain.thread("chat-1").put(first())
        store.schemas.attach(TWO, threads="chat-*")
        store.thread("chat-1").update({"plan": ["go"]})
        store.schemas.down(TWO, to="1.0.0")
        plain.thread("chat-1").put(first() | {"count": 9})
        store.schemas.up(TWO)
        assert store.thread("chat-1").get().state == second() | {"count": "9", "plan": ["go"]}


def test_what_was_put_aside_is_not_for_others_to_write(url: str, old: Store) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as plain:
        for program in (store, plain):
            with pytest.raises(InvalidError, match="reserved"):
                program.thread("chat-9").put(first() | {"__aside__": {}})
        store.schemas.attach(TWO)
        thread = store.thread("chat-1")
        thread.update({"plan": ["go"]})
        stored = thread.get(migrate=False).state
        kept = stored["__aside__"]
        writes: list[Callable[[], object]] = [
            lambda: thread.put(second() | {"__aside__": {}}),
            lambda: thread.update({"__aside__": 5}),
            lambda: thread.update({("__aside__", "scratch"): 5}),
            lambda: thread.update({}, remove=["__aside__"]),
            lambda: thread.fork("side", changes={"__aside__": 5}),
        ]
        for write in writes:
            with pytest.raises(InvalidError, match="reserved"):
                write()
        thread.put(stored | {"count": "5"})  # as it was read
        assert thread.get(migrate=False).state == stored | {"count": "5"}
        assert thread.get(migrate=False).state["__aside__"] == kept
        with pytest.raises(InvalidError, match="reserved"), store.transaction() as together:
            together.put("chat-1", second() | {"__aside__": {}})
    del old


def test_a_writer_of_an_older_version_is_refused_at_its_next_step(url: str, old: Store) -> None:
    old.thread("chat-1").put(first(1))  # the control: it may write
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        with pytest.raises(ConflictError) as refused:
            old.thread("chat-1").put(first(2))
        assert refused.value.code == "schema-outdated"
        assert "count: int became str" in refused.value.what
        with pytest.raises(ConflictError):
            old.thread("chat-1").update({"count": 5})
        with pytest.raises(ConflictError):
            old.thread("chat-9").put(first())
        assert store.thread("chat-1").get(migrate=False).state == first(1), "nothing was written"
        store.thread("chat-1").put(second(3))
        with pytest.raises(ConflictError, match="is incompatible with this program"):
            old.thread("chat-1").get()
    with holdfast.open(url) as again, pytest.raises(ConflictError, match="is incompatible with this program"):
        again.schemas.attach(ONE)


def test_an_older_writer_that_gets_along_keeps_what_it_does_not_know(url: str) -> None:
    with holdfast.open(url) as older, holdfast.open(url) as newer:
        older.schemas.attach(TWO)
        older.thread("chat-1").put(second())
        newer.schemas.attach(TWO_ONE)
        newer.thread("chat-1").update({"mood": "good"})
        assert older.thread("chat-1").get().state == second() | {"mood": "good"}
        older.thread("chat-1").put(second(1))
        assert newer.thread("chat-1").get().state == second(1) | {"mood": "good"}
        older.thread("chat-1").update({"count": "7"})
        found = newer.thread("chat-1").get(migrate=False)
        assert (found.state["mood"], found.schema) == ("good", "chat@2.1.0")
        older.thread("chat-2").put(second())
        assert newer.thread("chat-2").get(migrate=False).schema == "chat@2.0.0"


def test_a_program_without_schemas_keeps_the_version_of_the_state(url: str, old: Store) -> None:
    with holdfast.open(url) as plain:
        plain.thread("chat-1").update({"count": 8})
        assert plain.thread("chat-1").get().schema == "chat@1.0.0"
        plain.thread("chat-1").fork("other")
        plain.thread("chat-1").restore(at="#0")
        assert plain.thread("chat-1").get().schema == "chat@1.0.0"
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        assert store.thread("chat-1").get().state == second()
        store.thread("chat-1").update({"plan": ["x"]})
        store.thread("chat-1").restore(at="#0")
        restored = store.thread("chat-1").get(migrate=False)
        assert restored.schema == "chat@2.0.0", "a state that is restored is upgraded, too"
        assert store.thread("chat-1").get().state == second()
    del old


def test_a_program_without_schemas_is_refused_on_top_of_a_newer_version(url: str) -> None:
    with holdfast.open(url) as plain, holdfast.open(url) as store:
        plain.thread("chat-1").put(first())
        plain.thread("chat-2").put(first())
        store.schemas.attach(TWO, threads="chat-*")
        store.thread("chat-1").update({"plan": ["go"]})
        upgraded = second() | {"plan": ["go"]}
        thread = plain.thread("chat-1")
        writes: list[Callable[[], object]] = [
            lambda: plain.thread("chat-1").put(first()),
            lambda: plain.thread("chat-1").update({"count": 5}),
            lambda: plain.thread("chat-1").update({}, remove=["count"]),
            lambda: thread.fork("side", changes={"count": 5}),
        ]
        for write in writes:
            with pytest.raises(ConflictError) as refused:
                write()
            assert (refused.value.code, "chat-1" in refused.value.where) == ("schema-missing", True)
            assert "chat@2.0.0" in refused.value.what
            assert "holdfast migrate down chat --to 1.0.0" in refused.value.hint
        assert store.thread("chat-1").get().state == upgraded
        plain.thread("chat-2").put(first(2))  # nobody has upgraded it
        assert store.thread("chat-2").get().state == second(2)
        # What has a version, or changes nothing, keeps it.
        thread.fork("side")
        thread.switch("side")
        thread.restore(at="#0")
        assert store.thread("chat-1").get().state == second()
        assert plain.thread("chat-1").get().schema == "chat@1.0.0", (
            "the version of states from before there was a schema"
        )
        thread.update({"count": 6})
        assert store.thread("chat-1").get().state == second() | {"count": "6"}
        store.schemas.up(TWO)
        thread.restore(at="#1")
        assert store.thread("chat-1").get().state == upgraded


def test_a_state_from_before_there_was_a_schema_is_restored_in_todays_version(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("chat-1").put(first())
        store.schemas.attach(TWO, threads="chat-*")
        store.thread("chat-1").put(second(3))
        store.thread("chat-1").restore(at="#0")
        assert store.thread("chat-1").get().state == second()
        assert store.thread("chat-1").get(migrate=False).schema == "chat@2.0.0"


def test_a_writer_that_was_refused_goes_on_after_a_downgrade(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        store.schemas.up(TWO)
        with pytest.raises(ConflictError):
            old.thread("chat-1").put(first())
        store.schemas.down(TWO, to="1.0.0")
    old.thread("chat-1").put(first() | {"count": 7})
    assert old.thread("chat-1").get().state == first() | {"count": 7}


def test_a_downgrade_that_left_out_some_states_lets_the_older_release_attach(url: str) -> None:
    def down(text: str) -> int:
        return 1 // int(text) * int(text)

    class Old(TypedDict):
        count: int

    class New(TypedDict):
        count: str

    old, new = Schema("n", "1", Old), Schema("n", "2", New)
    schemas = SchemaSet(old, new, Migration("n", "1", "2", convert("count", str, down)))
    with holdfast.open(url) as store, holdfast.open(url) as older:
        store.schemas.attach(schemas, threads="*")
        store.thread("fits").put({"count": "1"})
        store.thread("unfit").put({"count": "0"})
        with pytest.raises(ConflictError):
            older.schemas.attach(old, threads="*")
        assert store.schemas.down(schemas, to="1", on_error="skip").unfit_total == 1
        older.schemas.attach(old, threads="*")
        older.thread("fits").update({"count": 5})
        assert older.thread("fits").get().state == {"count": 5}
        uses: list[Callable[[], object]] = [
            lambda: older.thread("unfit").put({"count": 5}),
            lambda: older.thread("unfit").get(),
        ]
        for refused in uses:
            with pytest.raises(UnsupportedError) as error:
                refused()
            assert error.value.code == "schema-newer"


def test_an_unversioned_state_has_a_version_that_is_known(url: str) -> None:
    with holdfast.open(url) as store, pytest.raises(HoldfastError) as error:
        store.schemas.attach(ONE, threads="chat-*", unversioned="9.9.9")
    assert error.value.code == "schema-newer"


def test_a_corrected_migration_is_not_read_from_the_cache() -> None:
    with holdfast.open("memory://") as store:
        store.schemas.attach(Schema("n", "1.0.0", {"type": "object"}), threads="*")
        store.thread("t").put({"n": 1})
        for number, expected in (
            (convert("n", lambda n: n + 1, lossy=True), 2),
            (convert("n", lambda n: n + 2, lossy=True), 3),
        ):
            store.schemas.attach(
                SchemaSet(
                    Schema("n", "1.0.0", {"type": "object"}),
                    Schema("n", "2.0.0", {"type": "object", "properties": {"n": {"type": "integer"}}}),
                    Migration("n", "1.0.0", "2.0.0", number),
                ),
                threads="*",
            )
            assert store.thread("t").get().state == {"n": expected}


def test_states_from_before_there_was_a_schema(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("chat-1").put(first())
        store.thread("chat-2").put(first())
        store.schemas.attach(TWO, threads="chat-*")
        assert store.thread("chat-1").get().state == second()
        store.thread("chat-1").put(second(4))
        assert store.thread("chat-1").get(migrate=False).schema == "chat@2.0.0"
        store.schemas.detach(threads="chat-*")
        store.schemas.attach(TWO, unversioned="1.0.0")
        assert store.thread("chat-2").get().state == second()


def test_the_version_of_states_without_one_stays(url: str) -> None:
    """It is that of the whole schema, and of the past: another one is refused, wherever it is attached."""
    with holdfast.open(url) as store, holdfast.open(url) as other:
        store.thread("chat-1").put(first())
        store.schemas.attach(ONE, threads="chat-*")
        places: list[dict[str, Any]] = [{"threads": "chat-*"}, {"threads": "new-*"}, {"scopes": "user:*"}]
        for place in places:
            with pytest.raises(ConflictError) as refused:
                other.schemas.attach(TWO, unversioned="2.0.0", **place)
            assert (refused.value.code, "Leave unversioned= out" in (refused.value.hint or "")) == (
                "schema-changed",
                True,
            )
        assert str(store.schemas.registered().records["chat"].current) == "1.0.0", "nothing was registered"
        other.schemas.attach(TWO, unversioned="1.0.0", threads="chat-*")
        assert other.thread("chat-1").get().state == second()

    with holdfast.open("memory://") as store:
        store.schemas.attach(TWO, unversioned="2.0.0", threads="chat-*")
        store.schemas.attach(TWO, threads="chat-*")
        assert str(store.schemas.registered().records["chat"].unversioned) == "2.0.0", "what is left out stays"


def test_a_schema_of_all_threads_takes_no_other_state_for_its_own(url: str) -> None:
    """Without a pattern and a version for them, states from before there was a schema are left as they are."""
    with holdfast.open(url) as store:
        other = {"count": "not a chat"}
        store.thread("other").put(other)
        store.thread("chat-1").put(first())
        store.schemas.attach(TWO)
        for name, state in (("other", other), ("chat-1", first())):
            found = store.thread(name).get()
            assert (found.state, found.schema) == (state, "")
            assert dict(store.thread(name).get(lazy=True).state) == state
        with pytest.raises(InvalidError) as refused:
            store.thread("other").update({"count": "5"})
        assert refused.value.code == "schema-mismatch", "what is saved has the schema, as a whole"
        assert (store.schemas.plan(TWO).states, store.schemas.up(TWO).migrated) == ({}, 0)
        assert store.thread("other").get(migrate=False).state == other
        store.thread("other").put(second(1))
        assert store.thread("other").get().schema == "chat@2.0.0"
        assert store.schemas.up(TWO, threads="chat-*").migrated == 1, "named, they are taken for the oldest version"
        assert store.thread("chat-1").get().state == second()


def test_a_lazy_state_is_upgraded_too(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        lazy = store.thread("chat-1").get(lazy=True)
        assert (type(lazy.state).__name__, lazy.schema) == ("LazyState", "chat@2.0.0")
        assert lazy.state["messages"] == ["hello", "m0"]
        assert lazy.state.slice("messages", 1) == ["m0"]
        assert dict(lazy.state) == second()
        store.thread("chat-1").update({"plan": ["go"]})
        lazy = store.thread("chat-1").get(lazy=True)
        assert dict(lazy.state) == second() | {"plan": ["go"]}
        assert ("__aside__" in lazy.state, lazy.state.has("__aside__")) == (False, False)
        with pytest.raises(KeyError):
            lazy.state["__aside__"]
        assert "__aside__" in store.thread("chat-1").get(lazy=True, migrate=False).state, "the control: it is stored"
    del old


def test_what_is_saved_is_validated(url: str) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(ONE)
        with pytest.raises(InvalidError) as refused:
            store.thread("chat-1").put(first() | {"count": "1"})
        assert refused.value.code == "schema-mismatch"
        assert "count" in refused.value.where
        with pytest.raises(NotFoundError):
            store.thread("chat-1").get()
        store.thread("chat-1").put(first())
        store.thread("chat-1").put(first() | {"msgs": ["x"] * 50})
        with pytest.raises(InvalidError) as refused:
            store.thread("chat-1").put(first() | {"msgs": ["x"] * 50 + ["y", 5]})
        assert refused.value.where.startswith("msgs[51] of"), "its number in the whole list"
        store.thread("chat-1").put(first())
        for path, value in (("count", "1"), ("msgs[0]", 5)):
            with pytest.raises(InvalidError):
                store.thread("chat-1").update({path: value})
        with pytest.raises(InvalidError, match="required"):
            store.thread("chat-1").update({}, remove=["count"])
        with pytest.raises(InvalidError):
            store.thread("chat-1").put(first() | {"msgs": ["hello", "m0", 5]})
        store.thread("chat-1").put(first() | {"msgs": ["hello", "m0", "more"]})
        with pytest.raises(InvalidError), store.transaction() as together:
            together.put("chat-1", first() | {"name": None})
        store.schemas.attach(ONE, validate="warn")
        with pytest.warns(SchemaWarning, match="count"):
            store.thread("chat-1").put(first() | {"count": "1"})
        store.schemas.attach(ONE, validate="off")
        store.thread("chat-1").put(first() | {"count": "2"})


def test_only_what_changed_is_validated(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat-1").put(first() | {"msgs": [1]})
        store.schemas.attach(ONE, unversioned="1.0.0")
        store.thread("chat-1").update({"count": 5})
        store.thread("chat-1").put(store.thread("chat-1").get().state | {"count": 6})
        with pytest.raises(InvalidError):
            store.thread("chat-1").put(store.thread("chat-1").get().state | {"msgs": [1, 2]})


def test_a_missing_migration_is_printed_ready_to_paste(url: str, old: Store) -> None:
    with holdfast.open(url) as store, pytest.raises(NotFoundError) as missing:
        store.schemas.attach(SchemaSet(CHAT_2))
    assert missing.value.code == "migration-missing"
    assert 'add("plan", default=[])' in (missing.value.hint or "")
    del old


def test_a_version_whose_form_changed_is_refused(url: str, old: Store) -> None:
    class Other(TypedDict):
        msgs: list[int]

    with holdfast.open(url) as store, pytest.raises(ConflictError) as changed:
        store.schemas.attach(Schema("chat", "1.0.0", Other))
    assert changed.value.code == "schema-changed"
    assert old.schemas.registered().schemas.get("chat@1.0.0").hash == CHAT_1.hash


def test_an_edited_migration_that_was_applied_is_reported(
    url: str, old: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        assert not caplog.records
    edited = Migration("chat", "1.0.0", "2.0.0", *TWO.migrations()[0].operations[:-1], rename("scratch", "notes"))
    with holdfast.open(url) as store:
        store.schemas.attach(SchemaSet(CHAT_1, CHAT_2, edited))
        assert "was edited after it was applied" in caplog.text
        plan = store.schemas.plan(SchemaSet(CHAT_1, CHAT_2, edited))
        assert plan.edited == ["chat 1.0.0 -> 2.0.0"]
        with pytest.raises(ConflictError) as refused:
            store.schemas.up(SchemaSet(CHAT_1, CHAT_2, edited))
        assert refused.value.code == "migration-edited"
    del old


def test_a_migration_that_gives_the_wrong_shape_writes_nothing(url: str, old: Store) -> None:
    wrong = Migration("chat", "1.0.0", "2.0.0", *TWO.migrations()[0].operations[2:], rename("msgs", "messages"))
    with holdfast.open(url) as store:
        store.schemas.attach(SchemaSet(CHAT_1, CHAT_2, wrong))
        with pytest.raises(InvalidError) as bad:
            store.thread("chat-1").get()
        assert (bad.value.code, "chat-1" in bad.value.where, "count" in bad.value.where) == (
            "migration-shape",
            True,
            True,
        )
        with pytest.raises(InvalidError):
            store.thread("chat-1").update({"plan": ["x"]})
        assert len(store.thread("chat-1").log()) == 1
    del old


def test_two_paths_over_two_versions(url: str, old: Store) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(THREE)
        expected = second()
        del expected["count"]
        assert store.thread("chat-1").get().state == expected
    del old


def test_merging_branches_of_different_versions_is_refused(url: str, old: Store) -> None:
    old.thread("chat-1").fork("side", changes={"count": 3})
    with holdfast.open(url) as store:
        store.schemas.attach(TWO)
        store.thread("chat-1").put(second(9))
        with pytest.raises(UnsupportedError, match="versions"):
            store.thread("chat-1").merge("side")
        store.thread("chat-1").put(store.thread("chat-1").get(at="side").state, branch="side")
        store.thread("chat-1").merge("side", strategy="theirs")
        assert store.thread("chat-1").get().schema == "chat@2.0.0"


def test_a_merge_and_a_switch_need_a_version_that_may_be_written(url: str) -> None:
    with holdfast.open(url) as outdated, holdfast.open(url) as store:
        outdated.schemas.attach(ONE, threads="chat-*")
        outdated.thread("chat-1").put(first())
        thread = outdated.thread("chat-1")
        thread.fork("side", changes={"count": 3})
        thread.switch("side")
        thread.switch("main")
        store.schemas.attach(TWO, threads="chat-*")
        steps = [each.id for each in store.thread("chat-1").log()]
        for change in (thread.merge, thread.switch):
            with pytest.raises(ConflictError) as refused:
                change("side")
            assert refused.value.code == "schema-outdated"
        assert [each.id for each in store.thread("chat-1").log()] == steps, "nothing was written"


def test_what_a_merge_writes_is_validated(url: str) -> None:
    with holdfast.open(url) as store:
        store.schemas.attach(ONE, threads="chat-*")
        store.thread("chat-1").put(first())
        thread = store.thread("chat-1")
        thread.fork("side", changes={"count": 3})
        store.thread("chat-1").update({"count": 4})
        with pytest.raises(InvalidError) as refused:
            thread.merge("side", resolve=lambda _: "three")
        assert refused.value.code == "schema-mismatch"
        thread.merge("side", resolve=lambda _: 7)
        assert thread.get().state["count"] == 7


# Costs ---------------------------------------------------------------------------------------------------------------


def counted(backend: CountingBackend) -> Store:
    return Store(Engine(EngineContext(backend)), "")


def test_a_read_with_nothing_pending_costs_nothing() -> None:
    backend = CountingBackend(MemoryBackend())
    store = counted(backend)
    store.schemas.attach(TWO)
    store.thread("chat-1").put(second())
    thread = store.thread("chat-1")

    def schema_calls() -> tuple[int, int]:
        entered = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal entered
            if event == "call" and "/holdfast/schemas/" in frame.f_code.co_filename:
                entered += 1

        backend.reset()
        sys.setprofile(profile)
        try:
            thread.get()
        finally:
            sys.setprofile(None)
        return backend.reads, entered

    plain = schema_calls()
    assert plain[1] == 0
    store.schemas.detach()
    assert schema_calls() == plain, "as many calls of the store as without a schema"
    store.schemas.attach(THREE)
    assert schema_calls()[1] > 0, "the control: there is something to upgrade"


def test_a_step_with_a_schema_asks_the_store_no_more() -> None:
    calls = []
    for attached in (False, True):
        backend = CountingBackend(MemoryBackend())
        store = counted(backend)
        if attached:
            store.schemas.attach(TWO)
        thread = store.thread("chat-1")
        thread.put(second())
        backend.reset()
        for number in range(40):
            thread.put(second(number))
        calls.append((backend.reads, backend.applies))
    assert calls[0] == calls[1]


def test_a_step_without_a_schema_reads_the_registry_once() -> None:
    calls = []
    for labelled in (False, True):
        backend = CountingBackend(MemoryBackend())
        store = counted(backend)
        if labelled:
            store.schemas.attach(ONE)
        store.thread("chat-1").put(first())
        store.schemas.detach()
        thread = store.thread("chat-1")
        if labelled:
            backend.reset()
            thread.put(first(1))
            assert backend.reads > 0, "the control: it was read"
        thread.put(first(2))
        backend.reset()
        for number in range(40):
            thread.put(first(number))
        calls.append((backend.reads, backend.applies))
        assert store.thread("chat-1").get().schema == ("chat@1.0.0" if labelled else "")
    assert calls[0] == calls[1]


def test_attaching_again_takes_less_than_a_millisecond(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.schemas.attach(TWO)
        times = []
        for _ in range(20):
            start = time.perf_counter()
            store.schemas.attach(TWO)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.001


def test_attaching_again_asks_the_store_nothing() -> None:
    backend = CountingBackend(MemoryBackend())
    store = counted(backend)
    store.schemas.attach(TWO)
    backend.reset()
    store.schemas.attach(TWO)
    assert (backend.reads, backend.applies) == (0, 0)
    store.schemas.attach(TWO, validate="off")
    assert backend.reads > 0, "the control: another declaration is checked"


def test_a_function_is_called_once_for_each_stored_state(tmp_path: Path) -> None:
    calls = 0

    def up(value: int) -> str:
        nonlocal calls
        calls += 1
        return str(value)

    class New(TypedDict):
        count: str

    class Old(TypedDict):
        count: int

    schemas = SchemaSet(
        Schema("n", "1", Old), Schema("n", "2", New), Migration("n", "1", "2", convert("count", up, int))
    )
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("a").put({"count": 1})
        store.schemas.attach(schemas, threads="a")
        for _ in range(3):
            assert store.thread("a").get().state == {"count": "1"}
    assert calls == 1


def test_wrong_declarations_are_refused(tmp_path: Path) -> None:
    unknown = Schema("a", "1.0.0", {"type": "object", "properties": {"x": {"$ref": "holdfast:b@1.0.0"}}})
    known = Schema("b", "1.0.0", {"type": "object", "properties": {"x": {"$ref": "holdfast:c@1.0.0"}}})
    wrong_nodes: list[Any] = [["x"], {"x": 5}, {"x": "z", "y": "z"}]
    for nodes in wrong_nodes:
        with pytest.raises(InvalidError, match="node"):
            Migration("a", "1.0.0", "2.0.0", nodes=nodes)
    with holdfast.open(tmp_path / "a.db") as store:
        for schemas in (unknown, SchemaSet(unknown, known)):
            for use in (store.schemas.attach, store.schemas.up, store.schemas.plan):
                with pytest.raises(NotFoundError) as missing:
                    use(schemas, "a")
                assert missing.value.code == "schema-version-unknown"
        for pattern in ("planet:*", "user", "user:*/planet:*"):
            with pytest.raises(InvalidError, match="no scope has a part"):
                store.schemas.attach(ONE, scopes=pattern)
        with pytest.raises(InvalidError, match="SchemaSet"):
            store.schemas.up(Chat1)  # type: ignore[arg-type]
        assert store.schemas.registered().tip is None, "nothing was written"
        assert store.schemas.up(CHAT_1).complete
        for pattern in ("*", "user:*/agent:*", "us?r:a", "global"):
            store.schemas.attach(ONE, scopes=pattern)
