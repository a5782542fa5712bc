"""The kit for users' own migrations: what it generates fits, and what is wrong with a migration is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings

from holdfast.errors import InvalidError, UnsupportedError
from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, custom, each, remove, rename
from holdfast.testing import MigrationSuite
from holdfast.testing.migrations import (
    check_golden,
    check_round_trip,
    describe_difference,
    example_state,
    migration_edges,
    seconds_per_state,
    values_of,
    write_golden,
)
from tests.schemas.test_schema import SOURCES
from tests.support.cases import case


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required.split()}


STRING, INTEGER = {"type": "string"}, {"type": "integer", "minimum": 0}
ITEMS = {"type": "array", "items": record("x", x=INTEGER)}
NEW_ITEMS = {"type": "array", "items": record("y", y=INTEGER)}
ONE = Schema("chat", "1", record("name count items", name=STRING, count=INTEGER, old=STRING, items=ITEMS))
TWO = Schema("chat", "2", record("title count items", title=STRING, count=STRING, items=NEW_ITEMS))
GOOD = Migration(
    "chat",
    "1",
    "2",
    rename("name", "title"),
    convert("count", str, int),
    remove("old"),
    each("items", rename("x", "y")),
)
GOOD_SET = SchemaSet(ONE, TWO, Schema("chat", "2.1", record("title", title=STRING)), GOOD)


class TestGood(MigrationSuite):
    schemas: ClassVar[SchemaSet] = GOOD_SET
    examples: ClassVar[int] = 20


def test_values_fit_their_schema(subtests: pytest.Subtests) -> None:
    for name, source in SOURCES.items():
        with case(subtests, name):
            check_values(Schema(name, "1", source))


def check_values(schema: Schema) -> None:
    @settings(max_examples=20)
    @given(values_of(schema))
    def law(value: Any) -> None:
        assert schema.check(value) == []

    law()


def test_limits_are_kept() -> None:
    kinds = [
        {"type": "integer", "exclusiveMinimum": 3, "maximum": 9, "multipleOf": 2},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]+$"},
        {"type": "array", "items": STRING, "minItems": 5, "uniqueItems": True},
        {"type": "object", "minProperties": 1},
        {"type": "array", "prefixItems": [STRING, INTEGER]},
    ]
    check_values(Schema("x", "1", record(" ".join("abcdefg"), **dict(zip("abcdefg", kinds, strict=True)))))


def test_an_example_is_whole_and_the_same_each_time() -> None:
    assert example_state(ONE) == example_state(ONE)
    assert example_state(ONE).keys() == {"name", "count", "old", "items"}
    with pytest.raises(UnsupportedError):
        example_state(Schema("x", "1", record("x", x={"$ref": "holdfast:other@1"})))


BAD: list[tuple[Migration, type[Exception], str]] = [
    (
        Migration("chat", "1", "2", rename("name", "title"), convert("count", str, lambda value: 0), remove("old"),
                  each("items", rename("x", "y"))),
        AssertionError,
        "does not give the original: count was int 5, and is int 0$",
    ),
    (Migration("chat", "1", "2", rename("name", "title")), InvalidError, "does not fit"),
    (Migration("chat", "1", "2", custom(lambda state: state["nothing"], dict)), InvalidError, "KeyError"),
]  # fmt: skip


def test_what_is_wrong_with_a_migration_is_found(subtests: pytest.Subtests) -> None:
    for migration, kind, what in BAD:
        schemas = SchemaSet(ONE, TWO, migration)
        (edge,) = migration_edges(schemas)
        with case(subtests, what), pytest.raises(kind, match=what):
            check_round_trip(schemas, edge, {"name": "x", "count": 5, "old": "y", "items": [{"x": 1}]})


DIFFERENCES = [
    ({"a": [{"x": 1}]}, {"a": [{"x": 10**5000}]}, "a[0].x was int 1, and is int of 16610 bits"),
    ({"a": "x" * 10**6}, {"a": b"y" * 10**6}, f"a was str '{'x' * 38}…, and is bytes b'{'y' * 37}…"),
    ({"a": [1]}, {"a": []}, "a was list of 1, and is list of 0"),
    ({"a": 1}, {}, "a is missing, which was int 1"),
    ({}, {"a": {"b": 1}}, "a is dict of 1, and was missing"),
]


def test_a_counterexample_is_named_and_short() -> None:
    assert [describe_difference(before, after) for before, after, _ in DIFFERENCES] == [each[2] for each in DIFFERENCES]


calls: list[int] = []


def test_a_migration_that_is_not_pure_is_found() -> None:
    def count_calls(value: Any) -> Any:
        calls.append(1)
        return len(calls)

    schemas = SchemaSet(
        Schema("x", "1", record("a", a=INTEGER)),
        Schema("x", "2", record("a", a=INTEGER)),
        Migration("x", "1", "2", convert("a", count_calls, lambda value: value, lossy=True)),
    )
    (edge,) = migration_edges(schemas)
    with pytest.raises(AssertionError, match="not pure"):
        check_round_trip(schemas, edge, {"a": 1})


def test_a_migration_between_unknown_versions_is_reported() -> None:
    class Suite(MigrationSuite):
        schemas: ClassVar[SchemaSet] = SchemaSet(TWO, GOOD)

    with pytest.raises(AssertionError, match="declare the schemas"):
        Suite().test_every_migration_is_on_a_path()


def test_golden_states(tmp_path: Path) -> None:
    path = tmp_path / "states.json"
    assert write_golden(GOOD_SET, path) == check_golden(GOOD_SET, path) == 3

    class Suite(MigrationSuite):
        schemas: ClassVar[SchemaSet] = GOOD_SET
        golden: ClassVar[Path] = path

    Suite().test_golden_states()
    changed = SchemaSet(ONE, TWO, Migration("chat", "1", "2", *GOOD.operations, add("more", default=1)))
    with pytest.raises(AssertionError, match="gives another state"):
        check_golden(changed, path)
    path.write_text("{}")
    with pytest.raises(InvalidError):
        check_golden(GOOD_SET, path)


def test_the_time_of_a_state_is_measured() -> None:
    edge = next(migration_edges(GOOD_SET))
    assert 0 < seconds_per_state(GOOD_SET, edge, 5) < 1

    class Suite(MigrationSuite):
        schemas: ClassVar[SchemaSet] = GOOD_SET
        states_per_second: ClassVar[float] = 1e9

    with pytest.raises(AssertionError, match="takes"):
        Suite().test_time()
