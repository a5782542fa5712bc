"""Values pass from Python to scripts and back without loss, or with a clear error."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import HoldfastError
from holdfast.scripts import Sandbox
from tests.support.cases import case

ZONE = dt.timezone(dt.timedelta(hours=2))


@dataclass
class Point:
    """A class of an application."""

    x: int
    y: float


VALUES: list[Any] = [
    *(None, True, False, "", 'é😀\n"\\\x00\x7f\u2028', b"", b"\x00\xff\x80"),
    *(0, -1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**63 - 1, -(2**63), 2**63, 2**64, 10**40, -(10**40)),
    *(1.5, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf),
    *([], {}, [[]], [{}], {"a": []}, {"a": {}}, {"a": None}, [None], [None, None], {"": ""}),
    *({"$x": 1}, {"$int": "1"}, {"$script": ["absent"]}, {"__proto__": {"x": 1}}, {"constructor": 1}),
    *((), (1, (2,)), {1, 2}, frozenset({"a"}), {1: 2, "a": 3}, {1: "a", 2: "b"}, {(1, 2): 3}, {True: 1}, {None: 0}),
    *(dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
    *(dt.datetime(2026, 1, 2, tzinfo=ZONE), dt.datetime(1, 1, 1), dt.date(2026, 1, 1), dt.time(1, 2, 3)),
    *(dt.timedelta(days=1, microseconds=3), Decimal("1.10"), UUID(int=5), complex(1, 2), Point(1, 2.0)),
    *({"z": 1, "a": 2, "m": {"y": 1, "b": 2}}, [1.0, 2, (3.0,)], {"a": 1.0, "b": {"c": [2.0]}}),
]
"""Values that a script reads and writes unchanged, in a dict with others."""

RETURN = {
    "lua": "local s = store:state('agent:v') local v = s:get('k') s:set('r', v) return v",
    "javascript": "const s = store.state('agent:v'); const v = await s.get('k'); await s.set('r', v); return v",
}


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal in everything: types, order, signs of zero."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return all(map(same, a, b)) and len(a) == len(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture(scope="module")
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.fixture(scope="module", params=["lua", "javascript"])
def sandbox(request: pytest.FixtureRequest, store: holdfast.Store) -> Iterator[Sandbox]:
    with Sandbox(request.param, store, timeout=60) as sandbox:
        yield sandbox


def test_values_are_unchanged(store: holdfast.Store, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    state = store.state("agent:v")
    for value in VALUES:
        with case(subtests, repr(value)):
            state["k"] = {"value": value}
            assert same(sandbox.run(RETURN[sandbox.language]), {"value": value})
            assert same(state["r"], {"value": value})


def test_numbers_on_their_own(store: holdfast.Store) -> None:
    # JavaScript has one type of numbers: on its own, a float without a fraction is a whole number.
    for language, expected in (("lua", float), ("javascript", int)):
        store.state("agent:v")["k"] = 1.0
        with Sandbox(language, store) as sandbox:  # type: ignore[arg-type]
            assert type(sandbox.run(RETURN[language])) is expected
    with Sandbox("javascript", store) as sandbox:
        assert type(sandbox.run("return holdfast.float(1)")) is float


def test_numbers_of_thousands_of_digits(store: holdfast.Store, sandbox: Sandbox) -> None:
    state = store.state("agent:v")
    for value in (1 << 1024, -(1 << 1024), 1 << 20_000, -(1 << 20_000)):
        state["k"] = [value]
        assert (sandbox.run(RETURN[sandbox.language]) == [value]) is True
        assert (state["r"] == [value]) is True


def test_nan(store: holdfast.Store, sandbox: Sandbox) -> None:
    store.state("agent:v")["k"] = math.nan
    assert math.isnan(sandbox.run(RETURN[sandbox.language]))


def test_a_float_stays_one_when_it_is_changed(store: holdfast.Store) -> None:
    state = store.state("agent:v")
    state["k"] = {"score": 1.0, "count": 1}
    with Sandbox("javascript", store) as sandbox:
        sandbox.run(
            "const s = store.state('agent:v'); const v = await s.get('k');"
            "v.score += 1; v.count += 1; await s.set('k', v); await s.set('copy', {...v, more: true})"
        )
    assert same(state["k"], {"score": 2.0, "count": 2})
    assert same(state["copy"], {"score": 2.0, "count": 2, "more": True})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=PLAIN)
def test_any_value_is_unchanged(value: Any, store: holdfast.Store, sandbox: Sandbox) -> None:
    try:
        store.state("agent:v")["k"] = {"value": value}
    except HoldfastError:  # half of a surrogate pair, which only Python has
        return
    result = sandbox.run(RETURN[sandbox.language])
    assert same(result, {"value": value})


ERRORS: list[tuple[str, str, str, str]] = [
    # what, Lua, JavaScript, code
    (
        "a cycle",
        "local t = {} t.t = t; store:thread('x'):put(t)",
        "const t = {}; t.t = t; await store.thread('x').put(t)",
        "circular",
    ),
    ("a shared part", "local t = {} return {t, t}", "const t = {}; return [t, t]", ""),
    (
        "too deep",
        "local t = {} for i = 1, 60 do t = {t} end store:thread('x'):put({t = t})",
        "let t = {}; for (let i = 0; i < 60; i++) t = {t}; await store.thread('x').put(t)",
        "too-deep",
    ),
    (
        "far too deep",
        "local t = {} for i = 1, 1e5 do t = {t} end store:thread('x'):put({t = t})",
        "let t = {}; for (let i = 0; i < 1e5; i++) t = {t}; await store.thread('x').put(t)",
        "too-deep",
    ),
    (
        "a function",
        "store:thread('x'):put({a = {b = print}})",
        "await store.thread('x').put({a: {b: print}})",
        "unsupported",
    ),
    (
        "an object of the API",
        "store:thread('x'):put({a = {store}})",
        "await store.thread('x').put({a: [store]})",
        "unsupported",
    ),
    (
        "a record",
        "store:thread('y'):put({}) store:thread('x'):put({a = store:thread('y'):get()})",
        "await store.thread('y').put({}); await store.thread('x').put({a: await store.thread('y').get()})",
        "unsupported",
    ),
    (
        "what is no text",
        "store:thread('x'):put({a = '\\255'})",
        "await store.thread('x').put({a: Symbol('s')})",
        "unsupported",
    ),
    (
        "a hole",
        "store:thread('x'):put({a = {1, nil, 3}})",
        "await store.thread('x').put({a: [1, undefined, 3]})",
        "unsupported",
    ),
    (
        "mixed keys",
        "store:thread('x'):put({a = {1, b = 2}})",
        "await store.thread('x').put(new (class A {})())",
        "unsupported",
    ),
    (
        "a bad mark",
        "store:thread('x'):put({a = {['$int'] = 'x'}})",
        "await store.thread('x').put({a: {$int: 'x'}})",
        "",
    ),
    (
        "a forged value",
        "store:thread('x'):put({a = holdfast.opaque('decimal', '5')})",
        "await store.thread('x').put({a: holdfast.opaque('decimal', 5)})",
        "invalid",
    ),
]


def test_what_cannot_be_converted_is_an_error(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for what, lua, javascript, code in ERRORS:
        with case(subtests, what):
            try:
                sandbox.run(lua if sandbox.language == "lua" else javascript)
                raised = ""
            except HoldfastError as error:
                raised = error.code
            assert raised.startswith(code)
            assert bool(raised) is bool(code)


def test_null_is_not_absent(store: holdfast.Store, sandbox: Sandbox) -> None:
    state = store.state("agent:v")
    state["null"] = None
    lua = (
        "local s = store:state('agent:v') return {s:get('null') == holdfast.null, s:get('none') == holdfast.null, "
        "s:get('null', 1) == holdfast.null, s:get('none', 1), s:has('null'), s:get('none', nil) == holdfast.null}"
    )
    javascript = (
        "const s = store.state('agent:v'); return [(await s.get('null')) === null, (await s.get('none')) === null, "
        "(await s.get('null', 1)) === null, await s.get('none', 1), await s.has('null'), "
        "(await s.get('none', undefined)) === null]"
    )
    assert sandbox.run(lua if sandbox.language == "lua" else javascript) == [True, True, True, 1, True, True]


def test_dates(store: holdfast.Store) -> None:
    store.state("agent:v")["k"] = moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    with Sandbox("javascript", store) as sandbox:
        text = "const d = await store.state('agent:v').get('k');"
        assert sandbox.run(f"{text} return [d instanceof Date, d.getFullYear(), d.text]") == [
            *(True, 2026, "2026-01-02T03:04:05.678901+00:00")
        ]
        later = sandbox.run(f"{text} d.setUTCHours(4); return d")
        assert later == moment.replace(hour=4, microsecond=678000)
        assert sandbox.run("return new Date(0)") == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        with pytest.raises(HoldfastError) as refused:
            sandbox.run("return new Date(NaN)")
        assert refused.value.code == "unsupported"
    with Sandbox("lua", store) as sandbox:
        text = "local d = store:state('agent:v'):get('k')"
        assert sandbox.run(f"{text} return {{d.text, d.timestamp, d == holdfast.datetime(d.text)}}") == [
            *("2026-01-02T03:04:05.678901+00:00", moment.timestamp(), True)
        ]
        assert sandbox.run("return holdfast.datetime('2026-01-02T03:04:05')") == dt.datetime(2026, 1, 2, 3, 4, 5)
