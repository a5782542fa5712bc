"""Tests of an application's own migrations: three lines in pytest.

::

    from holdfast.testing import MigrationSuite
    from app.schemas import schemas

    class TestMigrations(MigrationSuite):
        schemas = schemas
"""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from holdfast.codec import default_codec
from holdfast.codec.value_text import shorten
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.validator import compile_pattern
from holdfast.schemas.version_graph import MigrationStep

_SHOWN: Final = 40
"""The characters of a value that a message shows."""


class MigrationEdge(NamedTuple):
    """A path between two versions of a schema, whose states can be generated."""

    name: str
    source: Schema
    target: Schema
    steps: tuple[MigrationStep, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.source.version} -> {self.target.version}"


def migration_edges(schemas: SchemaSet) -> Iterator[MigrationEdge]:
    """Iterate over every way up between two versions whose schemas are known."""
    for name in schemas.names():
        known = {each.version: each for each in schemas if each.name == name}
        for source in known.values():
            for target in known.values():
                if source.version < target.version:
                    steps = schemas.path(name, source.version, target.version)
                    yield MigrationEdge(name, source, target, steps)


def check_round_trip(schemas: SchemaSet, edge: MigrationEdge, state: dict[str, Any]) -> None:
    """Migrate a state up twice, and down again. Raises `AssertionError` if it is not what it was.

    The second time shows that the migration is pure: it gives the same. A lossy path is only checked to lead down to a
    state that fits, and one without a way down only up.
    """
    up = schemas.migrate_aside(edge.name, state, {}, edge.source.version, edge.target.version)
    again = schemas.migrate_aside(edge.name, state, {}, edge.source.version, edge.target.version)
    assert up == again, f"{edge} is not pure: two runs differ"  # noqa: S101
    try:
        back_steps = schemas.path(edge.name, edge.target.version, edge.source.version)
    except NotFoundError:
        return
    back = schemas.migrate_aside(edge.name, up.state, up.aside, edge.target.version, edge.source.version)
    if not any(step.lossy for step in (*edge.steps, *back_steps)):
        what = f"{edge}, up and down again, does not give the original"
        assert back.state == state, f"{what}: {describe_difference(state, back.state)}"  # noqa: S101


def describe_difference(before: Any, after: Any, path: str = "") -> str:
    """Describe the first place where two values differ. Values are shown as far as they are short."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            place = f"{path}.{key}" if path else str(key)
            if key not in after:
                return f"{place} is missing, which was {_short(before[key])}"
            if key not in before:
                return f"{place} is {_short(after[key])}, and was missing"
            if before[key] != after[key]:
                return describe_difference(before[key], after[key], place)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                return describe_difference(old, new, f"{path}[{position}]")
    return f"{path or 'the state'} was {_short(before)}, and is {_short(after)}"


def _short(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, int) and value.bit_length() > 128:  # no such number is written out, which may be refused
        return f"{kind} of {value.bit_length()} bits"
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return f"{kind} of {len(value)}"
    text = repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
    return f"{kind} {shorten(text, _SHOWN)}"


def check_round_trips(schemas: SchemaSet, edge: MigrationEdge, examples: int = 50) -> None:
    """Generate states of a version, and check each as `check_round_trip` does."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(values_of(edge.source, schemas))
    def law(state: Any) -> None:
        check_round_trip(schemas, edge, state)

    law()


def check_golden(schemas: SchemaSet, path: Path) -> int:
    """Check the states of a golden file, and return how many there are. Raises `AssertionError` if one migrates to
    something else than it says.

    The file is JSON, a list of `{"name", "source", "target", "before", "after"}`, with states as `codec.to_json`
    writes them.
    """
    cases = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(cases, list):
        raise InvalidError("a golden file must be a list of cases", where=str(path))
    for number, case in enumerate(cases):
        before, after = (default_codec.from_json(case[key]) for key in ("before", "after"))
        result = schemas.migrate(case["name"], before, case["source"], case["target"])
        where = f"{path.name}, case {number}: {case['name']} {case['source']} -> {case['target']}"
        assert result == after, f"{where} gives another state"  # noqa: S101
    return len(cases)


def write_golden(schemas: SchemaSet, path: Path) -> int:
    """Write a golden file with one state for each way between versions, and return how many there are."""
    cases = []
    for edge in migration_edges(schemas):
        state = example_state(edge.source, schemas)
        after = schemas.migrate(edge.name, state, edge.source.version, edge.target.version)
        cases.append(
            {
                "name": edge.name,
                "source": str(edge.source.version),
                "target": str(edge.target.version),
                "before": default_codec.to_json(state),
                "after": default_codec.to_json(after),
            }
        )
    path.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(cases)


def example_state(schema: Schema, schemas: SchemaSet | None = None) -> Any:
    """Return one state that fits a schema: the same each time, with all of its fields if one is easily found."""
    fields = len(schema.canonical.get("fields", ()))
    options = settings(derandomize=True, database=None, max_examples=100, phases=[Phase.generate], deadline=None)
    values = values_of(schema, schemas)
    try:
        return find(values, lambda state: not isinstance(state, dict) or len(state) >= fields, settings=options)
    except NoSuchExample:
        return find(values, lambda _: True, settings=options)


def seconds_per_state(schemas: SchemaSet, edge: MigrationEdge, count: int = 1000) -> float:
    """Return how long it takes to migrate a state, on average of `count` runs."""
    state = example_state(edge.source, schemas)
    start = time.perf_counter()
    for _ in range(count):
        schemas.migrate(edge.name, state, edge.source.version, edge.target.version)
    return (time.perf_counter() - start) / count


class MigrationSuite:
    """Tests of a `SchemaSet`, for pytest: derive a class whose name starts with `Test`, and set `schemas`."""

    schemas: ClassVar[SchemaSet]
    golden: ClassVar[str | Path | None] = None
    """A file of `write_golden`, whose states must migrate as they did."""
    examples: ClassVar[int] = 50
    """How many states are generated for each way between versions."""
    states_per_second: ClassVar[float] = 500
    """How fast each way must be, at least."""

    def test_round_trips(self) -> None:
        """Generated states of every version go up and down again, to what they were."""
        for edge in migration_edges(self.schemas):
            check_round_trips(self.schemas, edge, self.examples)

    def test_every_migration_is_on_a_path(self) -> None:
        """Every migration is part of a way between versions whose schemas are known, and so was tested."""
        used = {str(step.migration) for edge in migration_edges(self.schemas) for step in edge.steps}
        untested = [str(each) for each in self.schemas.migrations() if str(each) not in used]
        assert untested == [], "declare the schemas of their versions, or read them from the lock file"  # noqa: S101

    def test_golden_states(self) -> None:
        """The states of the golden file migrate as they did."""
        if self.golden is not None:
            assert check_golden(self.schemas, Path(self.golden)) > 0  # noqa: S101

    def test_time(self) -> None:
        """Each way between versions is fast enough."""
        for edge in migration_edges(self.schemas):
            best = min(seconds_per_state(self.schemas, edge, 50) for _ in range(3))
            assert best < 1 / self.states_per_second, f"{edge} takes {best * 1000:.2f} ms"  # noqa: S101


# Values that fit a schema, generated by hypothesis -------------------------------------------------------------------


Strategy = st.SearchStrategy[Any]

_ANY: Strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
_SCALARS: dict[str, Callable[[], Strategy]] = {
    "any": lambda: _ANY,
    "null": st.none,
    "bool": st.booleans,
    "bytes": lambda: st.binary(max_size=20),
    "complex": lambda: st.complex_numbers(allow_nan=False),
    "decimal": lambda: st.decimals(allow_nan=False),
    "uuid": st.uuids,
    "path": lambda: st.sampled_from([pathlib.PurePosixPath("a"), pathlib.PurePosixPath("/tmp/b")]),  # noqa: S108
    "datetime": st.datetimes,
    "date": st.dates,
    "time": st.times,
    "timedelta": lambda: st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000)),
}
_MOST = 4
"""How many items a list has at most, unless the schema asks for more."""


def values_of(schema: Schema, schemas: SchemaSet | None = None) -> Strategy:
    """Return a strategy for values that fit a schema. Fields that are not required are sometimes missing.

    Instances of classes are generated as dicts, and messages as LangChain's.
    """
    return _Values(schemas).strategy(schema.canonical, ())


class _Values:
    def __init__(self, schemas: SchemaSet | None) -> None:
        self._schemas = schemas

    def strategy(self, node: dict[str, Any], around: tuple[Strategy, ...]) -> Strategy:
        """Return the strategy of a node. `around` are the recursive ones outside of it."""

        def inner(each: dict[str, Any]) -> Strategy:
            return self.strategy(each, around)

        kind = node["type"]
        match kind:
            case "int" | "float" | "str":
                return _limited(kind, node)
            case "literal" | "enum":
                return st.sampled_from(node["values"])
            case "list" | "set" | "frozenset":
                return _collection(kind, node, inner(node["items"]))
            case "tuple":
                items = node["items"]
                if isinstance(items, list):
                    return st.tuples(*map(inner, items))
                return _collection("list", node, inner(items)).map(tuple)
            case "map":
                most = node.get("maxProperties", _MOST)
                return st.dictionaries(
                    inner(node["keys"]), inner(node["values"]), min_size=node.get("minProperties", 0), max_size=most
                )
            case "union":
                return st.one_of(*map(inner, node["of"]))
            case "record":
                fields = {name: inner(field["type"]) for name, field in node["fields"].items()}
                required = {name: each for name, each in fields.items() if node["fields"][name]["required"]}
                optional = {name: each for name, each in fields.items() if name not in required}
                return st.fixed_dictionaries(required, optional=optional)
            case "message":
                return _messages()
            case "recursive":
                deferred: list[Strategy] = []
                outer = st.deferred(lambda: deferred[0])
                deferred.append(self.strategy(node["of"], (*around, outer)))
                return outer
            case "self":
                levels: int = node["levels"]
                return around[-1 - levels]
            case "schema" if self._schemas is not None:
                return self.strategy(self._schemas.get(node["ref"]).canonical, ())
            case _ if kind in _SCALARS:
                return _SCALARS[kind]()
        raise UnsupportedError(
            f"values of {node.get('class') or node.get('ref') or kind} cannot be generated",
            hint="Write examples by hand, and give them to check_round_trip",
        )


def _limited(kind: str, node: dict[str, Any]) -> Strategy:
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if kind == "str":
        if "pattern" in node:
            return st.from_regex(compile_pattern(node["pattern"]))
        return st.text(min_size=node.get("minLength", 0), max_size=node.get("maxLength", 20))
    if kind == "int":
        low = above + 1 if above is not None else low
        high = below - 1 if below is not None else high
        step = node.get("multipleOf")
        if step is not None:
            return st.integers(None if low is None else -(-low // step), None if high is None else high // step).map(
                lambda number: number * step
            )
        return st.integers(low, high) if (low, high) != (None, None) else st.integers(-(2**63), 2**63 - 1)
    return st.floats(
        above if low is None else low,
        below if high is None else high,
        exclude_min=above is not None and low is None,
        exclude_max=below is not None and high is None,
        allow_nan=False,
    )


def _collection(kind: str, node: dict[str, Any], items: Strategy) -> Strategy:
    least = node.get("minItems", 0)
    most = node.get("maxItems", max(_MOST, least))
    if kind == "list":
        return st.lists(items, min_size=least, max_size=most, unique_by=repr if node.get("uniqueItems") else None)
    make = st.sets if kind == "set" else st.frozensets
    return make(items, min_size=least, max_size=most)


def _messages() -> Strategy:
    from langchain_core.messages import AIMessage, HumanMessage

    return st.builds(HumanMessage, st.text(max_size=20)) | st.builds(AIMessage, st.text(max_size=20))
