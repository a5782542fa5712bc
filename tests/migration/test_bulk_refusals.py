"""Migrations of all states that are refused or fail: what the store is left with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import ConflictError, HoldfastError, InvalidError
from holdfast.maintenance.migration import bulk
from holdfast.maintenance.migration.plan import MigrationTarget
from holdfast.maintenance.migration.shared_run import SharedRun
from holdfast.schemas import Migration, Schema, SchemaSet, convert, rename


class Count1(TypedDict):
    """The first version."""

    n: int


class Count2(TypedDict):
    """The channel is renamed."""

    m: int


COUNT_1, COUNT_2 = Schema("count", "1.0.0", Count1), Schema("count", "2.0.0", Count2)
ONE = SchemaSet(COUNT_1)


def same(value: int) -> int:
    return value


def no_thirteen(value: int) -> int:
    if value == 13:
        raise ValueError("this one fails")
    return value


def versions(up: Any = same, down: Any = same) -> SchemaSet:
    to_2 = Migration("count", "1.0.0", "2.0.0", rename("n", "m"), convert("m", up, down))
    return SchemaSet(COUNT_1, COUNT_2, to_2)


TWO = versions()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with holdfast.open(tmp_path / "a.db") as first, holdfast.open(tmp_path / "a.db") as second:
        yield first, second


def test_a_run_that_is_refused_leaves_the_registry(stores: tuple[Store, Store]) -> None:
    new, old = stores
    old.schemas.attach(ONE, threads="*")
    old.thread("t").put({"n": 1})
    seen: list[str] = []

    def interfere(*progress: object) -> None:
        del progress
        before = old.schemas.registered().tip
        with pytest.raises(ConflictError) as refused:
            old.schemas.down(TWO, to="1.0.0")
        assert old.schemas.registered().tip == before
        seen.append(refused.value.code)

    assert new.schemas.up(TWO, progress=interfere).complete
    assert seen == ["under-way"]
    new.schemas.attach(TWO, threads="*")
    new.thread("t").put({"m": 2})


def test_a_run_that_was_presumed_dead_does_not_end_the_other(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = stores
    old.schemas.attach(ONE, threads="*")
    old.thread("t").put({"n": 1})
    old.schemas.detach(threads="*")
    seen: list[int] = []

    def interfere(*progress: object) -> None:
        del progress
        if not seen:
            seen.append(0)
            monkeypatch.setattr(bulk, "LIFE", 0.0)
            end = SharedRun.end

            async def stay(self: Any) -> None:  # the downgrade is still under way
                del self

            monkeypatch.setattr(SharedRun, "end", stay)
            seen[0] = old.schemas.down(TWO, to="1.0.0").migrated
            monkeypatch.setattr(SharedRun, "end", end)

    with pytest.raises(ConflictError) as refused:
        new.schemas.up(TWO, progress=interfere)
    assert (seen, refused.value.code) == ([1], "under-way")
    assert old.thread("t").get().state == {"n": 1}


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_run_that_was_presumed_dead_before_it_began(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What it registers would replace what another run registered meanwhile."""
    new, other = stores
    other.schemas.attach(ONE, threads="*")
    other.thread("t").put({"n": 1})
    other.schemas.detach(threads="*")
    other.schemas.up(TWO)
    join, struck = SharedRun.join, list[str]()

    async def sleep(self: Any) -> bool:
        begins = await join(self)
        if not struck:
            struck.append(way)
            monkeypatch.setattr(bulk, "LIFE", 0.0)
            move = bulk.BulkMigration(await MigrationTarget.of(other._engine, other.tenant, TWO, None, targets[way]))
            await move.run(down=way == "down")
            monkeypatch.setattr(bulk, "LIFE", 30.0)
        return begins

    targets = {"up": "2.0.0", "down": "1.0.0"}
    monkeypatch.setattr(SharedRun, "join", sleep)
    assert new.schemas.up(TWO).complete
    assert struck == [way]
    record = new.schemas.registered().records["count"]
    assert (record.current, record.is_pinned) == (COUNT_2.version, False)
    assert new.schemas.status(TWO)[0].states == {"2.0.0": 1}


def test_a_downgrade_that_cannot_be_made_writes_nothing(stores: tuple[Store, Store]) -> None:
    new, _ = stores
    three = SchemaSet(*TWO, *TWO.migrations(), Schema("count", "0.9.0", Count1))
    two = versions(down=no_thirteen)
    new.schemas.attach(two, threads="*")
    for number in (1, 13, 20):
        new.thread(f"t{number:02}").put({"m": number})
    before = new.schemas.registered().tip
    with pytest.raises(ConflictError) as refused:
        new.schemas.down(two, to="1.0.0")
    assert (refused.value.code, "t13" in refused.value.where) == ("migration-unfit", True)
    assert new.schemas.registered().tip == before
    assert new.thread("t01").get().schema == "count@2.0.0"
    new.thread("t01").put({"m": 2})
    assert new.schemas.down(two, to="1.0.0", on_error="skip").migrated == 2
    with pytest.raises(InvalidError, match="older version"):
        new.schemas.down(two, to="2.0.0")
    with pytest.raises(InvalidError, match="newer version"):
        new.schemas.up(three, to="0.9.0")
    assert new.schemas.registered().records["count"].current == COUNT_1.version


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_state_without_a_way_back_is_restored_if_it_was_not_changed(
    stores: tuple[Store, Store], has_branches: bool
) -> None:
    new, old = stores
    to_2 = Migration("count", "1.0.0", "2.0.0", rename("n", "m"), convert("m", same, lossy=True))
    two = SchemaSet(COUNT_1, COUNT_2, to_2)
    old.schemas.attach(ONE, threads="*")
    old.thread("t").put({"n": 1})
    if has_branches:
        old.thread("t").fork("side", changes={"n": 2})
    new.schemas.up(two)
    assert new.schemas.down(two, to="1.0.0").complete
    assert old.thread("t").get().state == {"n": 1}
    new.schemas.up(two)
    new.schemas.attach(two, threads="*")
    new.thread("t").put({"m": 2})
    with pytest.raises(HoldfastError):
        new.schemas.down(two, to="1.0.0")
    new.thread("t").put({"m": 3})


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_corrected_migration_is_applied_anew(stores: tuple[Store, Store], has_branches: bool) -> None:
    new, old = stores
    wrong, right = versions(lambda value: value + 1000, lambda value: value - 1000), versions(lambda value: value * 2)
    old.schemas.attach(ONE, threads="*")
    old.thread("t").put({"n": 1})
    if has_branches:
        old.thread("t").fork("side", changes={"n": 2})
    old.schemas.detach(threads="*")
    new.schemas.up(wrong)
    assert new.thread("t").get().state["m"] == 1001
    new.schemas.down(wrong, to="1.0.0")
    new.schemas.up(right, accept_edited=True)
    assert new.thread("t").get().state["m"] == 2


def test_a_version_with_another_form_is_said_before_the_run(stores: tuple[Store, Store]) -> None:
    old, new = stores
    old.schemas.attach(TWO, threads="t*")
    old.thread("t1").put({"m": 1})
    other = Schema("count", "2.0.0", Count1)
    schemas = SchemaSet(COUNT_1, other, Migration("count", "1.0.0", "2.0.0", convert("n", same, same)))
    assert [each.changed for each in new.schemas.status(TWO)] == [[]]
    assert [each.changed for each in new.schemas.status(schemas)] == [["count@2.0.0"]]
    for operation in (new.schemas.plan, new.schemas.up):
        with pytest.raises(ConflictError) as caught:
            operation(schemas)
        assert caught.value.code == "schema-changed"
    for samples in (-1, True, 1.5):
        with pytest.raises(InvalidError, match="samples"):
            new.schemas.plan(TWO, samples=samples)  # type: ignore[arg-type]


def test_an_upgrade_to_the_version_that_states_were_downgraded_to_leaves_it_so(stores: tuple[Store, Store]) -> None:
    old, new = stores
    schemas = versions(down=no_thirteen)
    new.schemas.attach(schemas, threads="t*")
    for number in (1, 13):
        new.thread(f"t{number}").put({"m": number})
    assert new.schemas.down(schemas, to="1.0.0", on_error="skip").unfit_total == 1
    before = new.schemas.registered().records
    assert new.schemas.up(schemas, to="1.0.0", on_error="skip").unfit_total == 1
    assert new.schemas.registered().records == before
    assert old.schemas.attach(ONE, threads="t*") == "count@1.0.0"
    new.schemas.up(schemas)
    assert not new.schemas.registered().records["count"].is_pinned
