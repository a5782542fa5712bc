"""Lines and bends beside a log: drawn as git draws them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.interfaces.cli.log import GraphDrawing

Step = tuple[str, Sequence[str]]


def drawn(steps: Iterable[Step], widest: int = 0) -> list[str]:
    graph = GraphDrawing(lambda sign, _: sign, widest)
    lines = []
    for name, parents in steps:
        before, beside, after = graph.step(name, parents)
        lines += [*before, f"{beside}{name}", *after]
    return [line.rstrip() for line in lines]


def test_a_branch_that_leaves() -> None:
    assert drawn([("c", "b"), ("y", "x"), ("x", "a"), ("b", "a"), ("a", "")]) == [
        "* c",
        "| * y",
        "| * x",
        "* | b",
        "|/",
        "* a",
    ]


def test_a_merge() -> None:
    assert drawn([("m", "bx"), ("b", "a"), ("x", "a"), ("a", "")]) == [
        "* m",
        "|\\",
        "* | b",
        "| * x",
        "|/",
        "* a",
    ]


def test_a_lane_far_to_the_right_comes_back() -> None:
    steps = [("p", "a"), ("q", "b"), ("r", "c"), ("s", "a"), ("a", ""), ("b", ""), ("c", "")]
    assert drawn(steps) == [
        "* p",
        "| * q",
        "| | * r",
        "| | | * s",
        "| |_|/",
        "|/| |",
        "* | | a",
        " / /",
        "* | b",
        " /",
        "* c",
    ]


def test_a_merge_moves_those_on_its_right() -> None:
    assert drawn([("m", "bx"), ("z", "a"), ("b", "ca"), ("c", "a"), ("x", "a"), ("a", "")]) == [
        "* m",
        "|\\",
        "| | * z",
        "* | | b",
        "|\\ \\ \\",
        "* | | | c",
        "| | * | x",
        "| | |/",
        "| |/",
        "|/",
        "* a",
    ]


def test_steps_that_are_not_shown_are_passed_by() -> None:
    graph = GraphDrawing(lambda sign, _: sign)
    assert graph.step("c", "b")[1] == "* "
    graph.replace("b", "a")
    assert graph.step("a", "")[:2] == ([], "* ")
    graph.step("x", "w")
    graph.replace("w", "")
    assert graph.beside() == ""


def test_what_is_too_wide_is_cut() -> None:
    lines = drawn([(str(number), "r") for number in range(30)], widest=12)
    assert lines[0] == "* 0"
    assert lines[-1] == "| | | | | ~ 29"


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Steps with up to two parents, every step before those that it follows."""
    count = draw(st.integers(1, 25))
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    steps: list[Step] = []
    for number in range(count):
        later = range(number + 1, count)
        parents = chance.sample(later, min(len(later), chance.choice([0, 1, 1, 1, 2])))
        steps.append((str(number), [str(parent) for parent in parents]))
    return steps


@given(histories())
def test_every_step_has_its_star_and_every_lane_its_step(steps: list[Step]) -> None:
    graph = GraphDrawing(lambda sign, _: sign)
    for name, parents in steps:
        before, beside, after = graph.step(name, parents)
        assert beside.count("*") == 1
        assert all(set(line) <= set("|/\\_ ") for line in [*before, *after])
    assert graph.beside() == "", "all lanes have come to their end"
