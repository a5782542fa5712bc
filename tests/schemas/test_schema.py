"""Schemas from every kind of source, their canonical form and hash, and validation."""

from __future__ import annotations

import enum
import json
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph.message import add_messages

from holdfast.errors import InvalidError, UnsupportedError
from holdfast.schemas import Schema, SchemaSet
from holdfast.schemas.schema import SchemaReference
from holdfast.schemas.version import Version
from tests.support.cases import case

GOLDEN = Path(__file__).parents[1] / "golden" / "schemas-v1.json"


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class StepDict(TypedDict):
    title: str
    done: NotRequired[bool]


@dataclass
class StepData:
    title: str
    done: bool = False


@attrs.define
class StepAttrs:
    title: str
    done: bool = False


class StepStruct(msgspec.Struct):
    title: str
    done: bool = False


class StepModel(pydantic.BaseModel):
    title: str = pydantic.Field(description="what to do")
    done: bool = False


STEPS = (StepDict, StepData, StepAttrs, StepStruct, StepModel)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    count: Annotated[int, operator.add]
    plan: StepDict | None
    level: Level
    mode: Literal["fast", "slow"]
    seen: set[str]
    pair: tuple[int, str]
    scores: dict[str, float]
    at: datetime
    anything: NotRequired[Any]


class Partial(TypedDict, total=False):
    name: Required[str]
    age: Annotated[int, pydantic.Field(ge=0, le=150)]


class Tree(pydantic.BaseModel):
    value: Annotated[int, pydantic.Field(ge=0)] = 3
    children: list[Tree] = []


@dataclass
class Endless:
    inner: Endless


@dataclass
class Linked:
    value: int
    next: Linked | None = None


@dataclass
class Ping:
    pong: Pong | None


@dataclass
class Pong:
    ping: Ping | None


@dataclass
class Defaults:
    names: list[str] = field(default_factory=list)
    limit: int = 5


class Closed(pydantic.BaseModel, extra="forbid"):
    name: str


SOURCES: dict[str, Any] = {
    "chat": Chat,
    "partial": Partial,
    "tree": Tree,
    "linked": Linked,
    "ping": Ping,
    "defaults": Defaults,
    "closed": Closed,
    "step": StepModel,
    "numbers": list[int],
    "json": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "title": "Name"},
            "tags": {"type": "array", "items": {"enum": ["b", "a"]}},
            "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
    },
}


def form(name: str) -> Any:
    schema = Schema(name, "1.0.0", SOURCES[name])
    return {"hash": schema.hash, "canonical": schema.canonical}


def test_the_canonical_form_is_that_of_the_golden_file(subtests: pytest.Subtests) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden.keys() == SOURCES.keys()
    for name in SOURCES:
        with case(subtests, name):
            assert form(name) == golden[name]


def test_the_same_form_has_the_same_hash_whatever_declares_it() -> None:
    assert len({Schema("step", "1", source).hash for source in STEPS}) == 1
    assert Schema("step", "1", StepModel.model_json_schema()).hash == Schema("step", "1", StepModel).hash
    assert Schema("tree", "1", Tree.model_json_schema()).hash == Schema("tree", "1", Tree).hash
    assert Schema("step", "1", Defaults).hash != Schema("step", "1", StepModel).hash


def test_titles_descriptions_defaults_and_order_do_not_count() -> None:
    one = {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "integer", "default": 1}}}
    other = {
        "title": "Other",
        "type": "object",
        "properties": {
            "b": {"type": "integer", "default": 2, "description": "more"},
            "a": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
    }
    assert Schema("x", "1", one).hash == Schema("x", "1", other).hash
    del other["properties"]["a"]  # type: ignore[attr-defined]
    assert Schema("x", "1", one).hash != Schema("x", "1", other).hash


def test_a_definition_is_read_back() -> None:
    for name, source in SOURCES.items():
        schema = Schema(name, "1", source)
        again = Schema.from_definition(name, "1.0.0", json.loads(json.dumps(schema.definition)))
        assert again == schema
        assert Schema.from_definition(name, "1.0.0", schema.canonical).hash == schema.hash


def test_recursion_without_end_is_refused() -> None:
    with pytest.raises(InvalidError) as caught:
        Schema("endless", "1", Endless)
    assert caught.value.code == "schema-recursion"
    with pytest.raises(InvalidError) as caught:
        Schema("bare", "1", {"anyOf": [{"$ref": "#"}, {"type": "null"}]})
    assert caught.value.code == "schema-recursion"
    assert Schema("linked", "1", Linked).check({"value": 1, "next": Linked(2, Linked(3))}) == []
    (problem,) = Schema("linked", "1", Linked).check({"value": 1, "next": {"value": 1, "next": {"value": "x"}}})
    assert problem.path == "next.next.value"


UNSUPPORTED: list[Any] = [
    type[int],
    {"not": {"type": "string"}},
    {"type": "object", "if": {}},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "https://example.org/x.json"},
    {"$ref": "#/$defs/a", "required": ["x"], "$defs": {"a": {"type": "object"}}},
    {"anyOf": [{"type": "object"}], "required": ["x"]},
    {"allOf": [{"type": "object"}], "properties": {"x": {"type": "string"}}},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
    {"properties": {"x": {}}, "propertyNames": {"maxLength": 2}},
    {"required": ["x"], "additionalProperties": {"type": "string"}},
    {"type": "string", "contains": {}},
]


def test_what_a_schema_cannot_describe_is_refused(subtests: pytest.Subtests) -> None:
    for source in UNSUPPORTED:
        with case(subtests, str(source)), pytest.raises(UnsupportedError) as caught:
            Schema("x", "1", source)
        assert caught.value.code == "schema-unsupported"


INVALID: list[Any] = [
    {"type": "nonsense"},
    {"$ref": "#/$defs/none"},
    {"anyOf": []},
    {"type": "string", "pattern": "("},
    {"properties": {"x": {"type": "array", "items": {"type": "string", "pattern": "["}}}},
    {"properties": {"__aside__": {"type": "string"}}},
    {"required": "x"},
    {"type": []},
    {"type": "string", "enum": [1]},
    StepData("x"),
]


NUMBER_OR_TEXT = {"type": ["integer", "string"], "minimum": 5, "maxLength": 2}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog"]}}, "required": ["kind"]}
JSON_VALUES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "object", "required": ["x"]}, [{"x": 1}, {"x": None, "y": 1}], [{}, {"y": 1}]),
    ({"required": ["x"]}, [{"x": 1}], [{}]),
    ({"minimum": 5}, [5, 5.5, "text", None, True, [1], {"a": 1}], [4, 4.9]),
    ({"exclusiveMaximum": 5, "maxLength": 2}, [4, "ab", None], [5, "abc"]),
    ({"pattern": "^x"}, ["xy", 3, None], ["y"]),
    ({"pattern": "^x$"}, ["x"], ["x\n", "xy"]),
    ({"pattern": r"^(a$|[]$]\$)"}, ["a", "$$", "]$b"], ["a\n", "a$", "]a"]),
    ({"pattern": "(?m)^x$"}, ["x\ny"], ["xy"]),
    ({"minItems": 1}, [[1], "", {}], [[]]),
    ({"minProperties": 1}, [{"a": 1}, [], ""], [{}]),
    (NUMBER_OR_TEXT, [5, "ab"], [4, "abc", None, 5.5]),
    ({"type": "string", "format": "date-time", "maxLength": 3}, ["abc", datetime(2026, 1, 1)], ["abcd"]),
    ({"type": "integer", "enum": [1, 2, "a"], "maximum": 1}, [1], [2, "a"]),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"additionalProperties": False}, [{}], [{"a": 1}]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, ["a", 1, None], [1.5, []]),
    ({"oneOf": [CAT, DOG]}, [{"kind": "cat", "lives": 9}, {"kind": "dog"}], [{"kind": "cat", "lives": "9"}, {}]),
    ({"type": "object", "anyOf": [CAT, DOG]}, [{"kind": "dog"}], [{"kind": "cow"}]),
]


def test_no_keyword_of_json_schema_is_ignored(subtests: pytest.Subtests) -> None:
    for source, right, wrong in JSON_VALUES:
        schema = Schema("x", "1", source)
        for value in right:
            with case(subtests, str(source), f"{value!r} fits"):
                assert schema.check(value) == []
        for value in wrong:
            with case(subtests, str(source), f"{value!r} does not fit"):
                assert schema.check(value) != []


def test_a_sequence_is_a_list_or_a_tuple() -> None:
    schema = Schema("x", "1", Sequence[int])
    assert [schema.check(value) for value in ([1], (1, 2), [], ())] == [[], [], [], []]
    for wrong, path in (([1, "x"], "[1]"), ((1, "x"), "[1]"), ("text", ""), ({1}, ""), (None, "")):
        assert schema.check(wrong)[0].path == path
    assert Schema("x", "1", list[int]).check((1,)) != []


def test_a_value_nested_too_deep_is_a_problem() -> None:
    value: dict[str, Any] = {"value": 1}
    for _ in range(5000):
        value = {"value": 1, "next": value}
    (problem,) = Schema("linked", "1", Linked).check(value)
    assert "nested too deep" in problem.reason


def test_invalid_sources_are_refused(subtests: pytest.Subtests) -> None:
    for source in INVALID:
        with case(subtests, str(source)), pytest.raises(InvalidError):
            Schema("x", "1", source)


def test_versions_sort_as_semantic_versions() -> None:
    texts = ["1.0.0-alpha", "1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-beta", "1.0.0", "1.2.0", "1.10.0", "2.0.0"]
    assert [str(each) for each in sorted(map(Version.parse, reversed(texts)))] == texts
    assert Version.parse("1.2") == Version.parse("1.2.0")
    for wrong in ("", "v1", "1.2.3.4", "01", "1.-1", 1, None):
        with pytest.raises(InvalidError):
            Version.parse(wrong)


def chat() -> dict[str, Any]:
    return {
        "messages": [HumanMessage("hi")],
        "count": 1,
        "plan": {"title": "x"},
        "level": Level.LOW,
        "mode": "fast",
        "seen": {"a"},
        "pair": (1, "x"),
        "scores": {"a": 1.5, "b": 2},
        "at": datetime(2026, 1, 1),
    }


WRONG: list[tuple[str, Any, str]] = [
    ("messages", [1], "messages[0]"),
    ("count", "1", "count"),
    ("count", True, "count"),
    ("plan", {"done": True}, "plan.title"),
    ("plan", {"title": "x", "done": 1}, "plan.done"),
    ("level", "medium", "level"),
    ("mode", "medium", "mode"),
    ("seen", {1}, "seen[0]"),
    ("pair", (1,), "pair"),
    ("pair", ("x", 1), "pair[0]"),
    ("scores", {1: 1.0}, "scores[1]"),
    ("at", "2026-01-01", "at"),
]


def test_values_are_validated(subtests: pytest.Subtests) -> None:
    schema = Schema("chat", "1", Chat)
    assert schema.check(chat()) == []
    schema.require(chat())
    for name, value, path in WRONG:
        with case(subtests, name, str(value)):
            state = {**chat(), name: value}
            assert schema.check(state)[0].path == path
            assert schema.check(state, {name})[0].path == path
            assert schema.check(state, {"anything"}) == []
            with pytest.raises(InvalidError) as caught:
                schema.require(state)
            assert caught.value.code == "schema-mismatch"
    missing = chat()
    del missing["count"]
    assert [each.path for each in schema.check(missing)] == ["count"]
    assert schema.check({**chat(), "more": 1}) == []


def test_instances_are_validated_by_their_fields() -> None:
    for source, value in ((StepData, StepData("x")), (StepAttrs, StepAttrs("x")), (StepModel, StepModel(title="x"))):
        schema = Schema("steps", "1", list[source])  # type: ignore[valid-type]
        assert schema.check([value, {"title": "y"}]) == []
        assert schema.check([{"title": "y", "more": 1}])[0].path == "[0].more"
    assert Schema("steps", "1", list[StepData]).check([StepData(5)])[0].path == "[0].title"  # type: ignore[arg-type]


def test_a_secret_is_not_quoted() -> None:
    problems = Schema("chat", "1", Chat).check({**chat(), "count": "hunter2", "mode": "hunter2", "level": "hunter2"})
    assert len(problems) == 3
    assert "hunter2" not in str(problems)


def test_schemas_refer_to_schemas() -> None:
    step = Schema("step", "1", StepDict)

    class Holder(TypedDict):
        step: Annotated[StepDict, SchemaReference("step@1")]
        steps: list[Annotated[StepDict, SchemaReference("step@1.0.0")]]

    Holder.__annotations__ = {
        "step": Annotated[StepDict, step],
        "steps": list[Annotated[StepDict, SchemaReference("step@1.0.0")]],
    }
    holder = Schema("holder", "1", Holder)
    assert holder.references == {"step@1.0.0"}
    assert Schema("holder", "1", {"$ref": "holdfast:step@1"}).references == {"step@1.0.0"}
    schemas = SchemaSet(step, holder)
    assert schemas.check("holder", {"step": {"title": "x"}, "steps": []}) == []
    (problem,) = schemas.check("holder", {"step": {"title": 1}, "steps": []})
    assert problem.path == "step.title"


def test_a_check_takes_less_than_a_millisecond() -> None:
    schema = Schema("chat", "1", Chat)
    state = {**chat(), "messages": [HumanMessage(str(number)) for number in range(100)]}
    schema.check(state)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        schema.check(state)
        schema.check(state, {"count"})
        times.append(time.perf_counter() - start)
    assert min(times) < 0.001


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: form(name) for name in SOURCES}, indent=1, sort_keys=True) + "\n")
