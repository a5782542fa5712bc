"""Laws: any chain of operations up, then down, gives the original; and again up what it gave before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import pydantic
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import pack_state, unpack_state
from holdfast.errors import InvalidError
from holdfast.schemas import (
    Migration,
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

KINDS = {"add", "remove", "rename", "move", "convert", "split", "merge", "nest", "unnest", "each", "custom"}
NAMES = st.sampled_from("abcde")
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.binary(max_size=4)
KEYS = NAMES | st.integers(0, 2) | st.none() | st.tuples(st.integers(0, 2))


@dataclass
class Record:
    a: Any
    b: Any = None
    c: Any = 0


class Model(pydantic.BaseModel):
    a: Any
    b: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any


INSTANCES = (
    st.builds(Record, SCALARS, SCALARS, SCALARS) | st.builds(Model, a=SCALARS) | st.builds(Pair, SCALARS, SCALARS)
)
ITEMS = st.dictionaries(NAMES, SCALARS, max_size=4) | st.dictionaries(KEYS, SCALARS, max_size=4) | INSTANCES
VALUES = (
    SCALARS
    | INSTANCES
    | st.builds(Record, ITEMS)
    | st.lists(ITEMS, max_size=3).map(tuple)
    | st.dictionaries(KEYS, ITEMS, max_size=3)
    | st.tuples(st.integers(), st.text(max_size=3))
    | st.lists(SCALARS, max_size=3)
    | st.lists(ITEMS, max_size=3)
    | ITEMS
    | st.dictionaries(NAMES, ITEMS, max_size=3)
)
RECORDS = st.fixed_dictionaries({"a": SCALARS}, optional=dict.fromkeys("bcde", SCALARS))
STATES = st.dictionaries(NAMES, VALUES, max_size=4) | st.fixed_dictionaries(
    {"a": SCALARS, "b": VALUES}, optional={"c": RECORDS, "d": st.lists(RECORDS, min_size=1, max_size=3), "e": VALUES}
)
PATHS = NAMES | st.builds(lambda one, other: f"{one}.{other}", NAMES, NAMES)
PAIRS = st.lists(NAMES, min_size=2, max_size=2, unique=True)


def wrap(value: Any) -> Any:
    return [value]


def unwrap(value: Any) -> Any:
    """Undo `wrap`. A field that was moved out of an instance is there again with its default, once the class has seen
    the state: that was not wrapped."""
    return value[0] if isinstance(value, list) else value


def together(one: Any, other: Any) -> Any:
    return [one, other]


def reverse(state: dict[str, Any]) -> dict[str, Any]:
    return {f"x{name}": value for name, value in state.items()}


def reverse_back(state: dict[str, Any]) -> dict[str, Any]:
    return {name[1:]: value for name, value in state.items()}


SIMPLE: st.SearchStrategy[Operation] = st.one_of(
    st.builds(lambda path, default: add(path, default=default), PATHS, VALUES),
    st.builds(remove, PATHS),
    st.builds(rename, PATHS, st.sampled_from("fghij")),
    st.builds(lambda path: convert(path, wrap, unwrap), PATHS),
    st.builds(lambda path: convert(path, wrap, keep=True), PATHS),
    st.builds(lambda path: convert(path, {0: "zero", True: "yes", None: 5, "": 1.5}), PATHS),
    st.builds(lambda into, names: nest(into, names), PATHS, st.lists(NAMES, min_size=1, max_size=3, unique=True)),
    st.builds(lambda path, names: unnest(path, names), PATHS, st.lists(NAMES, min_size=1, max_size=3, unique=True)),
)
ALL: st.SearchStrategy[Any] = st.one_of(
    SIMPLE,
    st.builds(lambda one, other: (move, one, other), PATHS, PATHS),
    st.builds(lambda path, names: (split, path, names, lambda value: [value, value], lambda one, _: one), PATHS, PAIRS),
    st.builds(lambda path, names: (merge, names, path, together, list), PATHS, PAIRS),
    st.builds(lambda path, operations: each(path, *operations), PATHS, st.lists(SIMPLE, min_size=1, max_size=3)),
    st.just(custom(reverse, reverse_back)),
)
generated: Counter[str] = Counter()
met: Counter[str] = Counter()
effective: Counter[str] = Counter()


def field_names(value: Any) -> list[str]:
    """The names of the fields of a dict, or of an instance of a class."""
    if isinstance(value, dict):
        return sorted(key for key in value if isinstance(key, str))
    return [each for each in "abc" if not isinstance(value, type(None)) and hasattr(value, each)]


def kinds_of(value: Any) -> set[str]:
    """The kinds of values in a value that operations treat apart."""
    found = {type(value).__name__} if isinstance(value, Record | Model | Pair | tuple) else set[str]()
    if isinstance(value, dict):
        found |= {f"key {type(key).__name__}" for key in value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return found.union(*map(kinds_of, parts))


def draw_operation(draw: Any, state: dict[str, Any]) -> Operation:
    """An operation that probably has something to do in this state."""
    names = sorted(state) or ["a"]
    inner = {name: found for name in names if (found := field_names(state.get(name)))}
    dicts = sorted(inner)
    lists = [name for name in names if isinstance(state.get(name), list | tuple)]
    one = draw(st.sampled_from(names))
    new = draw(st.sampled_from([name for name in "abcdefghijk" if name not in state]))
    pair = draw(st.lists(st.sampled_from([*names, "a", "b"]), min_size=2, max_size=2, unique=True))
    inside = draw(st.sampled_from(dicts)) if dicts else one
    keys = inner.get(inside, ["a"])
    kind = draw(st.sampled_from(sorted(KINDS)))
    match kind:
        case "add":
            return add(new, default=draw(VALUES))
        case "remove":
            return remove(one)
        case "rename":
            return rename(one, new)
        case "move":
            return move(f"{inside}.{draw(st.sampled_from(keys or ['a']))}", new)
        case "convert":
            return convert(one, wrap, unwrap)
        case "split":
            return split(one, (new, "z"), lambda value: [value, value], lambda value, _: value)
        case "merge":
            return merge(pair, new, together, list)
        case "nest":
            return nest(new, pair)
        case "unnest":
            return unnest(inside, keys or ["a"])
        case "each":
            item = draw(st.sampled_from([rename("a", "z"), remove("a"), convert("", wrap, unwrap)]))
            return each(draw(st.sampled_from(lists)) if lists else inside, item, *draw(st.lists(SIMPLE, max_size=1)))
        case _:
            return custom(reverse, reverse_back)


@st.composite
def chains(draw: Any, most: int = 6) -> tuple[dict[str, Any], list[Operation]]:
    """A state, and operations that can be applied to it one after the other: others fail, and change nothing."""
    state = draw(STATES)
    met.update(kinds_of(state))
    current, operations = state, list[Operation]()
    for _ in range(draw(st.integers(1, most))):
        try:
            recipe = draw(ALL) if draw(st.integers(0, 3)) == 0 else draw_operation(draw, current)
            operation = recipe if isinstance(recipe, Operation) else recipe[0](*recipe[1:])
            up = Migration("x", "1", "2", operation).upgrade(pack_state(default_codec, current)).state
        except InvalidError:
            continue
        result = unpack_state(default_codec, up)
        generated[operation.kind] += 1
        effective[operation.kind] += result != current
        current = result
        operations.append(operation)
    return state, operations


@settings(max_examples=150)
@given(chains())
def check_law(chain: tuple[dict[str, Any], list[Operation]]) -> None:
    state, operations = chain
    migration = Migration("x", "1", "2", *operations)
    up = migration.upgrade(pack_state(default_codec, state))
    state_stored, aside_stored = (
        pack_state(default_codec, unpack_state(default_codec, part)) for part in (up.state, up.aside)
    )
    down = migration.downgrade(state_stored, aside_stored)
    assert unpack_state(default_codec, down.state) == state
    again = migration.upgrade(down.state, down.aside)
    assert unpack_state(default_codec, again.state) == unpack_state(default_codec, up.state)
    assert unpack_state(default_codec, migration.downgrade(again.state, again.aside).state) == state


@settings(max_examples=50)
@given(chains(8))
def check_versions(chain: tuple[dict[str, Any], list[Operation]]) -> None:
    """The same over a version for each operation."""
    state, operations = chain
    migrations = [Migration("x", f"{number}", f"{number + 1}", each) for number, each in enumerate(operations, 1)]
    if not migrations:
        return
    schemas, newest = SchemaSet(*migrations), f"{len(operations) + 1}"
    up = schemas.migrate_aside("x", state, {}, "1", newest)
    assert schemas.migrate_aside("x", up.state, up.aside, newest, "1").state == state


def test_up_and_down_again_gives_the_original() -> None:
    generated.clear()
    effective.clear()
    met.clear()
    check_law()
    check_versions()
    assert generated.keys() == KINDS, "every kind of operation was generated"
    assert met.keys() >= {"Record", "Model", "Pair", "tuple", "key int", "key NoneType", "key tuple"}
    assert {kind for kind, count in effective.items() if count} == KINDS, "and each changed a state"
