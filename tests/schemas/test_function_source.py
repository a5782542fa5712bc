"""The source of functions in one form: what changes a fingerprint, and what does not. The golden hashes hold for every
release of Python."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.schemas.functions import function_source
from tests.support.cases import case

FACTOR = 5
FORMS = {"a": 1}


def multiply_by(number: int) -> Callable[[int], int]:
    return lambda value: value * number


def helper(value: int) -> int:
    """Add."""
    return value + FACTOR  # a comment


def formatted(value: Any, *, width: int = 3) -> Any:
    match value:
        case {"a": [1, *rest], **more} if rest:
            return rest, more
        case str() as text:
            return f"{text!r:>{width}} {'xy'} {value=}{FORMS['a']}tail"
        case _:
            return {**value, "z": value[1:2, ...], **{key: helper(each) for key, each in value.items()}}


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, value: int) -> int:
        return value + self.number


# fmt: off
FUNCTIONS: list[tuple[str, Callable[..., Any]]] = [
    ("identity", lambda value: value), ("constant", lambda value: 1), ("none", lambda value: None),
    ("default", lambda value, by=2: value * by), ("another default", lambda value, by=3: value * by),
    ("computed default", lambda value, by=FACTOR: value * by),
    ("closure", multiply_by(2)), ("another closure", multiply_by(3)),
    ("partial", functools.partial(pow, 2)), ("another partial", functools.partial(pow, 3)),
    ("keywords", functools.partial(int, base=2)), ("other keywords", functools.partial(int, base=8)),
    ("f-string", lambda value: f"{value}!"), ("another f-string", lambda value: f"{value!r:>{value}}!"),
    ("helper", helper), ("calls helper", lambda value: helper(value)), ("formatted", formatted),
    ("instance", Adder(1)), ("another instance", Adder(2)),
    ("method", {"a": 1}.get), ("another method", {"a": 2}.get),
    ("itemgetter", operator.itemgetter("a")), ("another itemgetter", operator.itemgetter("b")),
    ("nested", lambda value: lambda: value), ("class", int), ("descriptor", str.upper), ("builtin", len),
    ("list", lambda value: [each + 1 for each in value]), ("two lines", lambda value: (value,
        1)),
]
# fmt: on

GOLDEN = {
    "identity": "358115d2",
    "constant": "b84b00eb",
    "none": "7cdb35d5",
    "default": "2a02c7f2",
    "another default": "79dd0236",
    "computed default": "9a8cc57d",
    "closure": "67fefe2f",
    "another closure": "a7f0a07e",
    "partial": "f318de32",
    "another partial": "68aa9a13",
    "keywords": "4becc2e1",
    "other keywords": "c55462f2",
    "f-string": "42039bed",
    "another f-string": "3f534b13",
    "helper": "d1dbaf7e",
    "calls helper": "afdd1506",
    "formatted": "a93d875a",
    "instance": "f38ac6ac",
    "another instance": "2089bc26",
    "method": "314c6540",
    "another method": "cc808598",
    "itemgetter": "c66cf07b",
    "another itemgetter": "9106e9a2",
    "nested": "e9b89aea",
    "class": "4e662a1a",
    "descriptor": "cdb400a6",
    "builtin": "e1780306",
    "list": "8f315173",
    "two lines": "64954977",
}


def digest(function: Callable[..., Any]) -> str:
    return hashlib.sha256(function_source(function).encode()).hexdigest()[:8]


def test_functions_have_the_sources_of_the_golden_hashes(subtests: pytest.Subtests) -> None:
    for name, function in FUNCTIONS:
        with case(subtests, name):
            assert digest(function) == GOLDEN[name], function_source(function)


def test_whatever_changes_the_result_changes_the_source() -> None:
    assert len({function_source(function) for _, function in FUNCTIONS}) == len(FUNCTIONS)


def test_constants_of_the_module_and_functions_it_calls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_source(dict(FUNCTIONS)["calls helper"])
    monkeypatch.setattr(f"{__name__}.FACTOR", 6)
    assert function_source(dict(FUNCTIONS)["calls helper"]) != before


def test_layout_annotations_and_docstrings_do_not_count() -> None:
    # fmt: off
    def renamed(value):  # type: ignore[no-untyped-def]
        return (value
            + FACTOR)
    # fmt: on

    assert function_source(renamed) == function_source(helper)


def test_a_function_that_calls_itself_has_a_source() -> None:
    def count(value: int) -> int:
        return value and count(value - 1)

    assert "recursion" in function_source(count)
