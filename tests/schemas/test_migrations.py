"""Operations and migrations: what they do, how they are undone, and what they refuse."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import attrs
import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import pack_state, unpack_state
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError, TooLargeError, UnsupportedError
from holdfast.schemas import (
    Migration,
    Schema,
    SchemaSet,
    add,
    convert,
    custom,
    each,
    merge,
    move,
    nest,
    remove,
    rename,
    split,
    unnest,
)
from holdfast.schemas.operations import Operation
from tests.support.cases import case

LONG = {f"key {number}": "x" * 40 for number in range(60)}


@dataclass
class Plan:
    goal: str
    steps: int = 0


class Model(pydantic.BaseModel):
    a: int = 0
    b: int = 0
    c: int = 0


class Pair(NamedTuple):
    a: int
    b: int


@attrs.define
class Point:
    x: int


def halves(text: str) -> list[str]:
    return [text[:1], text[1:]]


OPERATIONS: list[tuple[Operation, dict[str, Any], dict[str, Any]]] = [
    (add("a", default=[1]), {"b": 2}, {"b": 2, "a": [1]}),
    (add("a", factory=list), {"b": 2}, {"b": 2, "a": []}),
    (add("a", default=1), {"a": 5}, {"a": 5}),
    (add("p.a", default=1), {"p": {}}, {"p": {"a": 1}}),
    (add("p.a", default=1), {}, {}),
    (add("p.a", default=1), {"p": None}, {"p": None}),
    (remove("a"), {"a": 1, "b": 2}, {"b": 2}),
    (remove("a"), {"b": 2}, {"b": 2}),
    (remove("p.a"), {"p": {"a": LONG, "b": 1}}, {"p": {"b": 1}}),
    (rename("a", "b"), {"a": [1, "x"], "c": 3}, {"b": [1, "x"], "c": 3}),
    (rename("a", "b"), {"c": 3}, {"c": 3}),
    (rename("a", "b"), {"b": 3}, {"b": 3}),
    (rename("p.a", "b"), {"p": {**LONG, "a": 1}}, {"p": {**LONG, "b": 1}}),
    (move("p.a", "a"), {"p": {"a": 1, "b": 2}}, {"p": {"b": 2}, "a": 1}),
    (move("p.a", "a"), {"p": {"a": 1}}, {"p": {}, "a": 1}),
    (move("a", "p.q.a"), {"a": 1}, {"p": {"q": {"a": 1}}}),
    (move("a", "p.q.a"), {"a": 1, "p": {}}, {"p": {"q": {"a": 1}}}),
    (move("a", "p.q.a"), {"b": 1}, {"b": 1}),
    (convert("a", int, str), {"a": "5"}, {"a": 5}),
    (convert("a", len, keep=True), {"a": "five"}, {"a": 4}),
    (convert("a", {"open": "todo", "closed": "done"}), {"a": "open"}, {"a": "todo"}),
    (convert("a", {"open": "todo"}), {"a": "late"}, {"a": "late"}),
    (split("a", ("x", "y"), separator=" "), {"a": "b c d"}, {"x": "b", "y": "c d"}),
    (split("a", ("x", "y"), separator=" "), {"a": "b"}, {"x": "b"}),
    (split("p.a", ("x", "y"), halves, lambda x, y: x + y), {"p": {"a": "bcd"}}, {"p": {"x": "b", "y": "cd"}}),
    (merge(("x", "y"), "a", lambda x, y: x + y, halves), {"x": "b", "y": "cd"}, {"a": "bcd"}),
    (merge(("x", "y"), "a", lambda x, y: x + y, halves), {"x": "b"}, {}),
    (nest("p", ("a", "b")), {"a": 1, "b": 2, "c": 3}, {"p": {"a": 1, "b": 2}, "c": 3}),
    (nest("p", ("a", "b")), {"c": 3}, {"p": {}, "c": 3}),
    (nest("p", ("a",)), {"a": 1, "p": {"x": 1}}, {"p": {"a": 1, "x": 1}}),
    (nest("a", ("a", "b")), {"a": 1, "b": 2}, {"a": {"a": 1, "b": 2}}),
    (unnest("p", ("a", "b")), {"p": {"a": 1, "b": 2}}, {"a": 1, "b": 2}),
    (unnest("p", ("a",)), {"p": {"a": 1, "b": 2}}, {"a": 1}),
    (unnest("p", ("a",)), {"c": 1}, {"c": 1}),
    (unnest("p", ("p", "q")), {"p": {"p": 1, "q": 2}}, {"p": 1, "q": 2}),
    (each("a", rename("x", "y")), {"a": [{"x": 1}, {"x": 2}]}, {"a": [{"y": 1}, {"y": 2}]}),
    (each("a", remove("x"), add("y", default=0)), {"a": [{"x": 1}, {"x": 2}]}, {"a": [{"y": 0}, {"y": 0}]}),
    (each("a", convert("", str, int)), {"a": [1, 2]}, {"a": ["1", "2"]}),
    (each("a", each("b", rename("x", "y"))), {"a": [{"b": [{"x": 1}]}]}, {"a": [{"b": [{"y": 1}]}]}),
    (each("a", rename("x", "y")), {"a": {"k": {"x": 1}}}, {"a": {"k": {"y": 1}}}),
    (each("a", rename("x", "y")), {"a": None}, {"a": None}),
    (
        custom(lambda state: {"total": state["a"] + 1}, lambda state: {"a": state["total"] - 1}),
        {"a": 1},
        {"total": 2},
    ),
    (convert("a", {1: "one", 0: "none"}), {"a": True}, {"a": True}),
    (convert("a", {1: "one", 0: "none"}), {"a": 0.0}, {"a": 0.0}),
    (convert("a", {1: "one", 0: "none"}), {"a": [1]}, {"a": [1]}),
    (convert("a", {"yes": True, "no": False}), {"a": 1}, {"a": 1}),
    (split("a", ("x", "y"), separator=" "), {"a": None}, {}),
    (rename("p.a", "b"), {"p": {"a": 1, None: 2, (1, 2): [3]}}, {"p": {"b": 1, None: 2, (1, 2): [3]}}),
    (remove("p.a"), {"p": OrderedDict(b=2, a=1)}, {"p": OrderedDict(b=2)}),
    (add("p.a", default=1), {"p": defaultdict(list, b=2)}, {"p": defaultdict(list, b=2, a=1)}),
    (unnest("p", ("a",)), {"p": {"a": 1, (1, 2): 3}}, {"a": 1}),
    (each("a", rename("x", "y")), {"a": ({"x": 1}, {"x": 2})}, {"a": ({"y": 1}, {"y": 2})}),
    (each("a", remove("x")), {"a": deque([{"x": 1}, {"x": 2}], 2)}, {"a": deque([{}, {}], 2)}),
    (each("a", remove("x")), {"a": {1: {"x": 1}, (2,): {"x": 2}}}, {"a": {1: {}, (2,): {}}}),
    (unnest("p", ("goal", "steps")), {"p": Plan("x", 2)}, {"goal": "x", "steps": 2}),
    (unnest("p", ("steps",)), {"p": Plan("x", 2)}, {"steps": 2}),
    (unnest("m", ("b",)), {"m": Model(a=1, b=2)}, {"b": 2}),
    (remove("p.steps"), {"p": Plan("x", 2)}, {"p": Plan("x")}),  # the class still has the field, and a default
    (move("p.steps", "count"), {"p": Plan("x", 2)}, {"p": Plan("x"), "count": 2}),
    (convert("p", {1: Pair(1, 2)}), {"p": 1}, {"p": Pair(1, 2)}),
    (unnest("p", ("a",)), {"p": Pair(1, 2)}, {"a": 1}),
    (convert("p.goal", str.upper, str.lower), {"p": Plan("x", 2)}, {"p": Plan("X", 2)}),
    (convert("p.x", lambda x: x + 1, lambda x: x - 1), {"p": Point(1)}, {"p": Point(2)}),
    (
        each("m", convert("content", str.upper, str.lower)),
        {"m": [HumanMessage("hi", id="1"), AIMessage("ho")]},
        {"m": [HumanMessage("HI", id="1"), AIMessage("HO")]},
    ),
]


def both_ways(operation: Operation, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state after an upgrade, and after a downgrade from there. Nothing stays aside."""
    migration = Migration("x", "1", "2", operation)
    packed = pack_state(default_codec, state)
    before = dict(packed)
    up = migration.upgrade(packed)
    assert packed == before
    stored = pack_state(default_codec, unpack_state(default_codec, up.aside))  # as it is read from a store
    loaded = pack_state(default_codec, unpack_state(default_codec, up.state))
    down = migration.downgrade(loaded, stored)
    assert down.aside == {}
    again = migration.upgrade(down.state, down.aside)
    assert unpack_state(default_codec, again.state) == unpack_state(default_codec, up.state)
    return unpack_state(default_codec, up.state), unpack_state(default_codec, down.state)


def test_operations_and_their_inverses(subtests: pytest.Subtests) -> None:
    for operation, old, new in OPERATIONS:
        with case(subtests, str(operation), str(old)[:60]):
            assert both_ways(operation, old) == (new, old)
    assert len({operation.kind for operation, _, _ in OPERATIONS}) == 11


def test_a_rename_keeps_the_order() -> None:
    migration = Migration("x", "1", "2", rename("b", "z"))
    up = migration.upgrade(pack_state(default_codec, {"a": 1, "b": 2, "c": 3}))
    assert list(unpack_state(default_codec, up.state)) == ["a", "z", "c"]


def test_what_is_not_touched_is_not_decoded() -> None:
    broken = {b"\xa1a": b"\x01", b"\xa1b": b"\xc1 cannot be decoded"}
    migration = Migration("x", "1", "2", rename("a", "c"), add("d", default=1), remove("c"))
    up = migration.upgrade(broken)
    assert up.state[b"\xa1b"] is broken[b"\xa1b"]
    assert migration.downgrade(up.state, up.aside).state == broken


def test_which_fields_of_a_model_were_set_is_kept() -> None:
    packed = pack_state(default_codec, {"m": Model(a=1, c=3)})
    up = Migration("x", "1", "2", remove("m.b")).upgrade(packed).state
    assert unpack_state(default_codec, up)["m"].model_fields_set == {"a", "c"}


def test_a_named_tuple_is_restored_with_its_fields_in_order() -> None:
    migration = Migration("x", "1", "2", remove("p.a"))
    up = migration.upgrade(pack_state(default_codec, {"p": Pair(1, 2)}))
    down = migration.downgrade(up.state, up.aside).state
    assert unpack_state(default_codec, down) == {"p": Pair(1, 2)}


def test_a_class_that_is_gone_is_converted_by_its_fields() -> None:
    packed = pack_state(default_codec, {"p": Plan("x", 2)})
    up = Migration("x", "1", "2", rename("p.goal", "aim")).upgrade(packed).state
    assert unpack_state(default_codec, up)["p"].fields == {"aim": "x", "steps": 2}


def test_values_changed_since_are_kept_where_they_can_be() -> None:
    migration = Migration("x", "1", "2", add("a", default=0), remove("b"), each("items", remove("z")))
    up = migration.upgrade(pack_state(default_codec, {"b": 1, "items": [{"n": 1, "z": 8}, {"n": 2, "z": 9}]}))
    state = unpack_state(default_codec, up.state)
    state["a"] = 5
    state["items"] = [{"n": 0}, *state["items"][1:]]
    down = migration.downgrade(pack_state(default_codec, state), up.aside)
    assert unpack_state(default_codec, down.state) == {"b": 1, "items": [{"n": 0, "z": 8}, {"n": 2, "z": 9}]}
    again = migration.upgrade(down.state, down.aside)
    assert unpack_state(default_codec, again.state) == {"a": 5, "items": [{"n": 0}, {"n": 2}]}


A, B, B_NOW, C = {"n": 1, "z": 8}, {"n": 2, "z": 9}, {"n": 2}, {"n": 3}
KEPT: list[tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([A, B], [B_NOW], [B]),
    ([A, B], [{"n": 0}, B_NOW, C], [{"n": 0, "z": 8}, B, C]),
    ([A, C], [C, {"n": 1}], [C, A]),
    ([{"id": "a", **A}], [{"id": "b"}, {"id": "a", "n": 5}], [{"id": "b"}, {"id": "a", "n": 5, "z": 8}]),
    ([{"id": "a", **A}, {"id": "b", **B}], [{"id": "a"}, {"id": "c"}], [{"id": "a", "z": 8}, {"id": "c"}]),
    ([{"id": "a", **A}, C, {"id": "b", **B}], [{"id": "d"}, C, {"id": "c"}], [{"id": "d"}, C, {"id": "c"}]),
]
UNKNOWN: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([A, B], [{"n": 5}]),
    ([A, B], [{"n": 5}, {"n": 6}]),
    ([C, A, B], [B_NOW, C, {"n": 5}]),
    ([A, {"id": "b", **B}], [{"id": "c"}, {"n": 5}]),
]


def test_a_changed_item_keeps_its_values(subtests: pytest.Subtests) -> None:
    for old, new, expected in KEPT:
        with case(subtests, str(old), str(new)):
            migration = Migration("x", "1", "2", each("items", remove("z")))
            aside = migration.upgrade(pack_state(default_codec, {"items": old})).aside
            down = migration.downgrade(pack_state(default_codec, {"items": new}), aside)
            assert unpack_state(default_codec, down.state) == {"items": expected}


def test_values_of_items_are_not_dropped_where_it_is_unknown_whose_they_are(subtests: pytest.Subtests) -> None:
    migration = Migration("x", "1", "2", each("items", remove("z")))
    lossy = Migration("x", "1", "2", each("items", remove("z", lossy=True)))
    for old, new in UNKNOWN:
        with case(subtests, str(old), str(new)):
            aside = migration.upgrade(pack_state(default_codec, {"items": old})).aside
            with pytest.raises(InvalidError, match="unknown to which") as caught:
                migration.downgrade(pack_state(default_codec, {"items": new}), aside)
            assert caught.value.code == "migration-failed"
            down = lossy.downgrade(pack_state(default_codec, {"items": new}), aside)
            assert not any(each.get("z") == 8 for each in unpack_state(default_codec, down.state)["items"])


def test_which_fields_of_a_model_were_set_is_kept_by_unnest() -> None:
    migration = Migration("x", "1", "2", unnest("m", ("a", "b")))
    up = migration.upgrade(pack_state(default_codec, {"m": Model(a=1)}))
    down = migration.downgrade(up.state, up.aside).state
    assert unpack_state(default_codec, down)["m"].model_fields_set == {"a"}
    assert down == pack_state(default_codec, {"m": Model(a=1)})


FAILURES: list[tuple[Operation, dict[str, Any], str]] = [
    (rename("a", "b"), {"a": 1, "b": 2}, "there is a field 'b' already"),
    (move("a", "p.a"), {"a": 1, "p": 5}, "has no fields"),
    (convert("a", int, str), {"a": "x"}, "raised ValueError"),
    (convert("a", {"x": "y"}), {"a": "y"}, "gives to another"),
    (split("a", ("x", "y"), separator=" "), {"a": 5}, "a value of type int"),
    (each("a", rename("x", "y")), {"a": {1, 2}}, "not a list"),
    (split("a", ("x", "y"), list, lambda x, y: x), {"a": "abc"}, "at most 2 values"),
    (nest("p", ("a",)), {"p": 5, "a": 1}, "is not a dict"),
    (unnest("p", ("a",)), {"p": 5}, "is not a dict"),
    (unnest("p", ("a",)), {"p": {"a": 1}, "a": 2}, "there is a field 'a' already"),
    (each("a", rename("x", "y")), {"a": 5}, "not a list"),
    (each("a", rename("x", "y")), {"a": [{"x": 1}, 5]}, "has no fields"),
    (each("m", rename("content", "text")), {"m": [HumanMessage("x")]}, "belongs to LangChain"),
    (custom(lambda state: 5, lambda state: state), {}, "must return the state as a dict"),  # type: ignore[arg-type,return-value]
    (add("a", factory=lambda: object()), {}, "object"),
]


def test_a_failure_names_migration_operation_and_path(subtests: pytest.Subtests) -> None:
    for operation, state, what in FAILURES:
        with case(subtests, str(operation), what), pytest.raises(HoldfastError, match=what) as caught:
            Migration("chat", "1", "2", add("first", default=0), operation).upgrade(pack_state(default_codec, state))
        assert caught.value.code in ("migration-failed", "migration-shape")
        assert caught.value.where.startswith(f"chat 1.0.0 -> 2.0.0, operation 2: {operation.kind}")
    assert "a[1]" in str(next(_errors(each("a", rename("x", "y")), {"a": [{"x": 1}, 5]})))


SECRET = "sk-live-123"
QUOTING: list[tuple[Operation, dict[str, Any], str]] = [
    (convert("a", int, str), {"a": SECRET}, "a"),
    (convert("p.a", int, str), {"p": {"a": SECRET}}, "p.a"),
    (each("a", convert("k", int, str)), {"a": [{"k": "1"}, {"k": SECRET}]}, "a[1]"),
    (split("a", ("b", "c"), separator="-"), {"a": [SECRET]}, "a"),
    (merge(("a", "b"), "c", lambda a, b: int(a + b), list), {"a": SECRET, "b": ""}, "a"),
]


def test_a_failure_does_not_quote_the_state_and_ends_with_the_path(subtests: pytest.Subtests) -> None:
    for operation, state, path in QUOTING:
        with case(subtests, str(operation)):
            (error,) = _errors(operation, state)
            assert SECRET not in str(error)
            assert error.where.rpartition("; ")[2] == path
    (error,) = _errors(*QUOTING[0][:2])
    assert "raised ValueError" in error.what
    assert SECRET in str(error.__cause__)


def _errors(operation: Operation, state: dict[str, Any]) -> Any:
    try:
        Migration("chat", "1", "2", operation).upgrade(pack_state(default_codec, state))
    except HoldfastError as error:
        yield error


def test_a_lossy_operation_must_be_declared_so(subtests: pytest.Subtests) -> None:
    declarations: list[Callable[..., Operation]] = [
        lambda **options: remove("a", keep=False, **options),
        lambda **options: convert("a", len, **options),
        lambda **options: convert("a", {"x": "z", "y": "z"}, **options),
        lambda **options: split("a", ("x", "y"), list, **options),
        lambda **options: merge(("x", "y"), "a", max, **options),
        lambda **options: custom(dict, **options),
    ]
    for declare in declarations:
        with case(subtests, str(declare)):
            with pytest.raises(InvalidError) as caught:
                declare()
            assert caught.value.code == "migration-lossy"
            assert Migration("x", "1", "2", declare(lossy=True)).lossy
    with pytest.raises(UnsupportedError) as refused:
        Migration("x", "1", "2", custom(dict, lossy=True)).downgrade({})
    assert refused.value.code == "migration-irreversible"


def impure(value: Any) -> Any:
    return value + time.time()


def test_functions_that_are_not_pure_are_refused(subtests: pytest.Subtests) -> None:
    for function in (impure, lambda value: input(value), lambda value: [time.time() for _ in value]):
        with case(subtests, str(function)), pytest.raises(InvalidError) as caught:
            convert("a", function, str)
        assert caught.value.code == "migration-impure"


DECLARATIONS: list[Any] = [
    lambda: rename("x", "x"),
    lambda: rename("p.x", "x"),
    lambda: convert("x", {}),
    lambda: add("a"),
    lambda: add("a", default=1, factory=list),
    lambda: add("a[0]", default=1),
    lambda: rename("a", ""),
    lambda: move("a", "a.b"),
    lambda: split("a", "xy", list, max),
    lambda: split("a", ("a", "b"), list, max),
    lambda: split("a", ("x", "y")),
    lambda: merge(("a", "b"), "a", max, list),
    lambda: nest("p", ("a", "a")),
    lambda: each("a"),
    lambda: each("a", custom(dict, dict)),
    lambda: convert("a", 5),  # type: ignore[arg-type]
    lambda: Migration("x", "1", "1.0"),
    lambda: Migration("x", "1", "2", print),  # type: ignore[arg-type]
    lambda: Migration("x@1", "1", "2"),
    lambda: SchemaSet(5),  # type: ignore[arg-type]
]


def test_wrong_declarations_are_refused(subtests: pytest.Subtests) -> None:
    for number, declare in enumerate(DECLARATIONS):
        with case(subtests, str(number)), pytest.raises(InvalidError):
            declare()


def test_too_much_aside_is_refused() -> None:
    state = pack_state(default_codec, {"a": "x" * (2 << 20)})
    with pytest.raises(TooLargeError, match="aside"):
        Migration("x", "1", "2", remove("a")).upgrade(state)
    assert Migration("x", "1", "2", remove("a", keep=False, lossy=True)).upgrade(state).state == {}


def double(value: int) -> int:
    return value * 2


def fingerprint(*operations: Operation) -> str:
    return Migration("x", "1", "2", *operations).fingerprint


def test_the_fingerprint_changes_with_operations_and_their_functions() -> None:
    assert fingerprint(convert("a", double, int)) == fingerprint(convert("a", double, int))
    forms = {
        fingerprint(),
        fingerprint(add("a", default=1)),
        fingerprint(add("a", default=2)),
        fingerprint(add("a", default="1")),
        fingerprint(rename("a", "b")),
        fingerprint(rename("a", "c")),
        fingerprint(move("a", "b")),
        fingerprint(convert("a", lambda value: value + 1, int)),
        fingerprint(convert("a", lambda value: value + 2, int)),
        fingerprint(convert("a", {"x": "y"})),
        fingerprint(convert("a", double, int)),
        fingerprint(each("a", rename("a", "b"))),
        fingerprint(add("a", default=1), rename("b", "c")),
        Migration("x", "1", "2", nodes={"old": "new"}).fingerprint,
    }
    assert len(forms) == 14
    # fmt: off
    one, other = convert("a", lambda value: value+1, int), convert("b", lambda value: 5, int)
    spaced = convert("a", lambda value: value  +  1, int)  # the same, however it is written
    # fmt: on
    assert fingerprint(one) == fingerprint(spaced)
    assert fingerprint(other) not in forms


class One(TypedDict):
    a: int


class Two(TypedDict):
    b: int


class Three(TypedDict):
    b: str


def test_paths_are_found_over_the_graph() -> None:
    schemas = SchemaSet(
        Migration("x", "1", "2", rename("a", "b")),
        Migration("x", "2", "3", convert("b", str, int)),
        Migration("x", "1", "1.1", add("hot", default=1)),  # a branch of versions
        Migration("x", "1.1", "1.2", add("fix", default=1)),
    )
    assert [str(step) for step in schemas.path("x", "1")] == ["1.0.0 -> 2.0.0", "2.0.0 -> 3.0.0"]
    across = schemas.path("x", "1.2", "3")
    assert [str(step) for step in across] == [
        "1.2.0 -> 1.1.0 (down)",
        "1.1.0 -> 1.0.0 (down)",
        "1.0.0 -> 2.0.0",
        "2.0.0 -> 3.0.0",
    ]
    assert schemas.path("x", "2", "2") == ()
    assert schemas.migrate("x", {"a": 1, "hot": 1, "fix": 1}, "1.2", "3") == {"b": "1"}
    result = schemas.migrate_aside("x", {"a": 1, "hot": 7, "fix": 1}, {}, "1.2", "3")
    back = schemas.migrate_aside("x", result.state, result.aside, "3", "1.2")
    assert (back.state, back.aside) == ({"a": 1, "hot": 7, "fix": 1}, {})


def test_a_way_that_loses_nothing_is_preferred() -> None:
    schemas = SchemaSet(
        Migration("x", "1", "3", remove("a", keep=False, lossy=True)),
        Migration("x", "1", "2", add("b", default=1)),
        Migration("x", "2", "3", remove("a")),
    )
    assert len(schemas.path("x", "1", "3")) == 1
    assert len(schemas.path("x", "3", "1")) == 2


def test_compatible_versions_need_no_migration() -> None:
    more = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    schemas = SchemaSet(Schema("x", "1", One), Schema("x", "1.1", more))
    (step,) = schemas.path("x", "1", "1.1")
    assert step.migration is None
    assert schemas.migrate("x", {"a": 1}, "1", "1.1") == {"a": 1}


def test_a_missing_migration_is_named_with_its_skeleton() -> None:
    schemas = SchemaSet(Schema("x", "1", One), Schema("x", "2", Two))
    with pytest.raises(NotFoundError) as caught:
        schemas.path("x", "1", "2")
    assert caught.value.code == "migration-missing"
    skeleton = caught.value.hint.partition("\n")[2]
    assert 'rename("a", "b")' in skeleton
    migration = eval(skeleton, {"Migration": Migration, "rename": rename})
    assert SchemaSet(*schemas, migration).migrate("x", {"a": 1}, "1", "2") == {"b": 1}


BAD_SETS: list[tuple[Any, type[HoldfastError], str]] = [
    (lambda: SchemaSet(Migration("x", "1", "2"), Migration("x", "2", "1")), InvalidError, "schema-cycle"),
    (
        lambda: SchemaSet(Migration("x", "1", "2"), Migration("x", "2", "3"), Migration("x", "3", "1")),
        InvalidError,
        "schema-cycle",
    ),
    (lambda: SchemaSet(Migration("x", "1", "2"), Migration("x", "1.0", "2")), ConflictError, "migration-duplicate"),
    (lambda: SchemaSet(Schema("x", "1", One), Schema("x", "1", Two)), ConflictError, "schema-changed"),
    (lambda: SchemaSet(Schema("x", "1", One)).path("x", "0.5"), NotFoundError, "schema-version-unknown"),
    (lambda: SchemaSet(Schema("x", "1", One)).path("y", "1"), NotFoundError, "schema-version-unknown"),
    (lambda: SchemaSet(Schema("x", "1", One)).get("x@0.9"), NotFoundError, "schema-version-unknown"),
    (lambda: SchemaSet(Schema("x", "1", One)).migrate("x", {"a": 1}, "2"), UnsupportedError, "schema-newer"),
    (lambda: SchemaSet(Schema("x", "1", One)).get("x@9"), UnsupportedError, "schema-newer"),
    (
        lambda: SchemaSet(Schema("x", "1", One), Schema("x", "2", Three), Migration("x", "1", "2", rename("a", "b")))
        .migrate("x", {"a": 1}, "1"),
        InvalidError,
        "migration-shape",
    ),
    (
        lambda: SchemaSet(Migration("x", "1", "2", custom(dict, lossy=True))).path("x", "2", "1"),
        NotFoundError,
        "migration-missing",
    ),
]  # fmt: skip


def test_bad_sets_are_refused_with_a_code(subtests: pytest.Subtests) -> None:
    for build, kind, code in BAD_SETS:
        with case(subtests, code), pytest.raises(kind) as caught:
            build()
        assert caught.value.code == code


def test_a_state_whose_channels_are_not_all_written_yet_is_migrated() -> None:
    old = {"type": "object", "properties": {"name": {"type": "string"}, "a": {"type": "integer"}}}
    new = {"type": "object", "properties": {"first": {"type": "string"}, "last": {}, "a": {"type": "string"}}}
    schemas = SchemaSet(
        Schema("x", "1", {**old, "required": ["name", "a"]}),
        Schema("x", "2", {**new, "required": ["first", "last", "a"]}),
        Migration("x", "1", "2", split("name", ("first", "last"), halves, lambda x, y: x + y), convert("a", str, int)),
    )
    assert schemas.migrate("x", {"a": 1}, "1") == {"a": "1"}
    assert schemas.check("x@2", {"a": "1"}, partial=True) == []
    assert len(schemas.check("x@2", {"a": 1}, partial=True)) == 1
    assert len(schemas.check("x@2", {"a": "1"})) == 2
    forgotten = SchemaSet(*schemas, Migration("x", "1", "2", convert("a", str, int)))
    with pytest.raises(InvalidError, match="required, and missing"):
        forgotten.migrate("x", {"a": 1, "name": "bc"}, "1")


def test_a_migration_of_a_small_state_is_fast() -> None:
    schemas = SchemaSet(
        Schema("x", "1", One), Schema("x", "2", Two), Migration("x", "1", "2", rename("a", "b"), add("c", default=[]))
    )
    packed = pack_state(default_codec, {"a": 1, "notes": ["x"] * 20, "plan": {"goal": "y"}})
    schemas.prepared_path("x", "1").migrate(packed, {}, default_codec)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(100):
            schemas.prepared_path("x", "1").migrate(packed, {}, default_codec)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 1 / 4_000
