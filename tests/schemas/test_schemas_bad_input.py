"""Definitions and JSON Schemas from anywhere: they are read, or refused with an error of Holdfast."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import AgentState
from langgraph.graph import MessagesState

from holdfast.errors import HoldfastError
from holdfast.schemas import Schema

KINDS = ["any", "int", "str", "literal", "enum", "list", "tuple", "map", "union", "record", "instance", "schema"]
KINDS += ["recursive", "self", "object", "array", "string", "integer", "nonsense"]
KEYS = ["type", "values", "items", "keys", "of", "open", "fields", "required", "class", "ref", "levels", "minimum"]
KEYS += ["properties", "enum", "const", "anyOf", "$ref", "$defs", "prefixItems", "pattern", "format", "maxLength"]
LEAVES = st.sampled_from(["#", "#/$defs/a", "plan@1", "(", 0, 1, -1, 1.5, None, True, float("nan"), ""])


def combine(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    typed = st.builds(lambda kind, rest: {**rest, "type": kind}, st.sampled_from(KINDS), objects)
    return st.lists(inner, max_size=3) | objects | typed


JSON: st.SearchStrategy[Any] = st.recursive(LEAVES | st.sampled_from(KINDS), combine, max_leaves=12)


def use(schema: Schema) -> None:
    assert len(schema.hash) == 64
    assert schema.compare(schema).changes == ()
    values: list[Any] = [None, {}, [], "x", 1, {"a": [1]}]
    for value in values:
        schema.check(value)
        schema.check(value, ["a"])


@given(JSON)
def test_any_definition_is_read_or_refused(document: Any) -> None:
    with contextlib.suppress(HoldfastError):
        use(Schema.from_definition("x", "1", document))


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
def test_any_json_schema_is_read_or_refused(document: Any) -> None:
    with contextlib.suppress(HoldfastError):
        use(Schema("x", "1", document))


def test_state_classes_of_frameworks_work_as_they_are() -> None:
    messages = Schema("messages", "1", MessagesState)
    assert messages.canonical["fields"]["messages"]["type"] == {"type": "list", "items": {"type": "message"}}
    agent = Schema("agent", "1", AgentState)
    assert agent.canonical["fields"]["messages"]["required"]
