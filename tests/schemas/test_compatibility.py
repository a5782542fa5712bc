"""Compatibility of two schemas, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.schemas import Schema
from holdfast.schemas.compatibility import CompatibilityLevel
from tests.support.cases import case

FULL, BACKWARD, FORWARD, BREAKING = CompatibilityLevel
STRING, NUMBER, INTEGER, NULL = ({"type": kind} for kind in ("string", "number", "integer", "null"))

AT_LEAST_0, AT_LEAST_1 = ({"type": "integer", "minimum": limit} for limit in (0, 1))


def record(required: str = "", more: bool = True, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": more}


def array(items: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


CASES: list[tuple[Any, Any, CompatibilityLevel, list[tuple[str, str]]]] = [
    (record(a=STRING), record(a=STRING), FULL, []),
    (record(a=STRING), record(a=STRING, b=STRING), FULL, [("b", "added")]),
    (record(a=STRING), record("b", a=STRING, b=STRING), FORWARD, [("b", "added")]),
    (record(more=False, a=STRING), record(more=False, a=STRING, b=STRING), BACKWARD, [("b", "added")]),
    (record(a=STRING, b=STRING), record(a=STRING), FULL, [("b", "removed")]),
    (record("b", a=STRING, b=STRING), record(a=STRING), BACKWARD, [("b", "removed")]),
    (record("b", more=False, b=STRING), record(more=False), BREAKING, [("b", "removed")]),
    (record(a=STRING), record("a", a=STRING), FORWARD, [("a", "required")]),
    (record("a", a=STRING), record(a=STRING), BACKWARD, [("a", "optional")]),
    (record(a=INTEGER), record(a=NUMBER), BACKWARD, [("a", "type")]),
    (record(a=NUMBER), record(a=INTEGER), FORWARD, [("a", "type")]),
    (record(a=STRING), record(a=INTEGER), BREAKING, [("a", "type")]),
    (record(a=STRING), record(a={"anyOf": [STRING, NULL]}), BACKWARD, [("a", "type")]),
    (record(a={"enum": ["x", "y"]}), record(a={"enum": ["x"]}), FORWARD, [("a", "type")]),
    (record(a={"enum": ["x"]}), record(a=STRING), BACKWARD, [("a", "type")]),
    (record(a={"enum": ["x"]}), record(a={"enum": ["y"]}), BREAKING, [("a", "type")]),
    (record(a=STRING), record(a=True), BACKWARD, [("a", "type")]),
    (record(a=array(STRING)), record(a=array(INTEGER)), BREAKING, [("a[]", "type")]),
    (record(a=array(STRING)), record(a=array(STRING, maxItems=3)), FORWARD, [("a", "constraint")]),
    (record(a=AT_LEAST_1), record(a=INTEGER), BACKWARD, [("a", "constraint")]),
    (record(a=AT_LEAST_1), record(a=AT_LEAST_0), BACKWARD, [("a", "constraint")]),
    (record(a={**STRING, "pattern": "x"}), record(a={**STRING, "pattern": "y"}), BREAKING, [("a", "constraint")]),
    (record(), record(more=False), FORWARD, [("", "closed")]),
    (
        record(a={"anyOf": [record("x", x=STRING), NULL]}),
        record(a={"anyOf": [record("x", x=INTEGER), NULL]}),
        BREAKING,
        [("a.x", "type")],
    ),
    (
        record(a=array(record(x=STRING)), b=STRING),
        record(a=array(record(x=STRING, y=INTEGER)), b=INTEGER),
        BREAKING,
        [("a[].y", "added"), ("b", "type")],
    ),
    (
        record(v=INTEGER, next={"anyOf": [{"$ref": "#"}, NULL]}),
        record(v=NUMBER, next={"anyOf": [{"$ref": "#"}, NULL]}),
        BACKWARD,
        [("v", "type")],
    ),
]  # fmt: skip


def test_levels_and_changes(subtests: pytest.Subtests) -> None:
    for old, new, level, changes in CASES:
        with case(subtests, str(old), str(new)):
            result = Schema("x", "1", old).compare(Schema("x", "2", new))
            assert result.level == level
            assert [(each.path, each.kind) for each in result.changes] == changes
            assert all(each.reason for each in result.changes)
            back = Schema("x", "2", new).compare(Schema("x", "1", old))
            assert (back.backward, back.forward) == (result.forward, result.backward)


def test_references_are_compared_by_what_they_refer_to() -> None:
    plans = {"plan@1.0.0": Schema("plan", "1", record(a=INTEGER)), "plan@2.0.0": Schema("plan", "2", record(a=NUMBER))}
    old = Schema("x", "1", record(plan={"$ref": "holdfast:plan@1"}))
    new = Schema("x", "2", record(plan={"$ref": "holdfast:plan@2"}))
    assert old.compare(new).level == BREAKING
    result = old.compare(new, plans.__getitem__)
    assert (result.level, result.changes[0].path) == (BACKWARD, "plan.a")


LEAVES = st.sampled_from(
    [STRING, NUMBER, INTEGER, NULL, {"enum": ["x", "y"]}, {"enum": ["x"]}, {"type": "integer", "minimum": 3}]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(array),
        st.lists(inner, min_size=1, max_size=3).map(lambda of: {"anyOf": of}),
        st.builds(
            lambda fields, required, more: record(" ".join(required & fields.keys()), more, **fields),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
            st.booleans(),
        ),
    ),
    max_leaves=6,
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, "x", "y", "z", 1, 5, 1.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def closed(schema: Any) -> Any:
    """The same schema for values without unknown fields: of those, compatibility says nothing."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return inner | ({"additionalProperties": False} if schema.get("type") == "object" else {})


@given(SCHEMAS, SCHEMAS, VALUES)
def test_what_is_called_backward_takes_every_value_of_the_older(old: Any, new: Any, value: Any) -> None:
    before, after = Schema("x", "1", old), Schema("x", "2", new)
    result = before.compare(after)
    if result.backward and not Schema("x", "1", closed(old)).check(value):
        assert after.check(value) == []
    if result.forward and not Schema("x", "2", closed(new)).check(value):
        assert before.check(value) == []


@given(SCHEMAS)
def test_a_schema_is_fully_compatible_with_itself(schema: Any) -> None:
    found = Schema("x", "1", schema).compare(Schema("x", "2", schema))
    assert (found.level, found.changes) == (FULL, ())
