"""Diagrams of machines: readable with any names, and complete."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.runtime.two_phase import LIFECYCLE
from holdfast.agents.storage.transition_log import TransitionCounts, TransitionKey, dot, mermaid


class Drawn(NamedTuple):
    """What a picture shows: states and edges by their labels, the first state, the final ones and the current one."""

    states: list[str]
    edges: list[tuple[str, str, str]]
    initial: str
    final: list[str]
    current: str


def read_mermaid(text: str) -> Drawn:
    """Read a picture. Everything has to be of a form that Mermaid takes."""
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "stateDiagram-v2"
    names: dict[str, str] = {}
    found = Drawn([], [], "", [], "")
    for line in lines:
        if state := re.fullmatch(r'    state "([^"\n]*)" as (s\d+)', line):
            names[state[2]] = unescaped(state[1])
            found.states.append(names[state[2]])
        elif begin := re.fullmatch(r"    \[\*\] --> (s\d+)", line):
            found = found._replace(initial=names[begin[1]])
        elif end := re.fullmatch(r"    (s\d+) --> \[\*\]", line):
            found.final.append(names[end[1]])
        elif edge := re.fullmatch(r"    (s\d+) --> (s\d+)(?:: ([^:;\"]*(?:#\d+;[^:;\"]*)*))?", line):
            found.edges.append((names[edge[1]], names[edge[2]], unescaped(edge[3] or "")))
        elif current := re.fullmatch(r"    class (s\d+) current", line):
            found = found._replace(current=names[current[1]])
        else:
            assert line.startswith("    classDef current "), line
    return found


def unescaped(text: str) -> str:
    rest = re.sub(r"#\d+;", "", text)
    assert not set(rest) & set('#;:"`{}[]<>%\n\r'), text
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), text)


STRING = r'"([^"]*)"'


def read_dot(text: str) -> Drawn:
    """Read a picture for Graphviz."""
    first, *lines, last, rest = text.split("\n")
    assert (first, last, rest) == ("digraph machine {", "}", "")
    names: dict[str, str] = {}
    found = Drawn([], [], "", [], "")
    for line in lines:
        if state := re.fullmatch(rf"    (s\d+) \[label={STRING}(, peripheries=2)?(, penwidth=3.*)?\];", line):
            names[state[1]] = plain(state[2])
            found.states.append(names[state[1]])
            found.final.extend([names[state[1]]] if state[3] else [])
            found = found._replace(current=names[state[1]] if state[4] else found.current)
        elif begin := re.fullmatch(r"    begin -> (s\d+);", line):
            found = found._replace(initial=names[begin[1]])
        elif edge := re.fullmatch(rf"    (s\d+) -> (s\d+)(?: \[label={STRING}\])?;", line):
            found.edges.append((names[edge[1]], names[edge[2]], plain(edge[3] or "")))
        else:
            assert re.fullmatch(r"    (rankdir=LR|node \[[a-z=, ]+\]|begin \[[a-z=, ]+\]);", line), line
    return found


def plain(text: str) -> str:
    assert not set(re.sub(r"&#\d+;", "", text)) & set('&"\\\n\r'), text
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), text)


READERS = {"mermaid": (mermaid, read_mermaid), "dot": (dot, read_dot)}
HOW = pytest.mark.parametrize("how", sorted(READERS))


def reviewing() -> Machine:
    machine = Machine("draft", "review", "done", final=["done"])
    machine.add("submit", "draft", "review")
    machine.add("approve", "review", "done")
    machine.add("reset", "*", "draft")
    return machine


@HOW
def test_what_is_declared(how: str) -> None:
    draw, read = READERS[how]
    assert read(draw(reviewing())) == Drawn(
        ["draft", "review", "done"],
        [
            ("draft", "review", "submit"),
            ("review", "done", "approve"),
            *((of, "draft", "reset") for of in ("draft", "review")),
        ],
        "draft",
        ["done"],
        "",
    )


@HOW
def test_with_counts_and_the_state_of_an_agent(how: str) -> None:
    draw, read = READERS[how]
    counted = TransitionCounts(
        Counter({TransitionKey("draft", "submit", "review"): 3, TransitionKey("review", "rollback", "draft"): 1}),
        Counter({TransitionKey("draft", "submit", "review"): 2, TransitionKey("review", "approve", "done"): 1}),
        Counter({"review": 3, "draft": 1}),
    )
    shown = read(draw(reviewing(), counted, "review"))
    assert shown.states == ["draft (1)", "review (3)", "done"]
    assert shown.current == "review (3)"
    assert shown.edges == [
        ("draft (1)", "review (3)", "submit (3×, 2 failed)"),
        ("review (3)", "done", "approve (1 failed)"),
        ("draft (1)", "draft (1)", "reset"),
        ("review (3)", "draft (1)", "reset"),
        ("review (3)", "draft (1)", "rollback (1×)"),
    ]


@HOW
def test_of_what_was_recorded_alone(how: str) -> None:
    draw, read = READERS[how]
    counted = TransitionCounts(Counter({TransitionKey("a", "go", "b"): 2}), Counter(), Counter({"b": 2}))
    shown = read(draw(None, counted, "c"))
    assert shown == Drawn(["a", "b (2)", "c"], [("a", "b (2)", "go (2×)")], "", [], "c")
    assert read(draw(None)).states == []


@HOW
def test_the_life_of_every_agent(how: str) -> None:
    draw, read = READERS[how]
    shown = read(draw(LIFECYCLE, None, "running"))
    assert ("running", "pausing", "pause") in shown.edges
    assert shown.edges.count(("starting", "running", "")) == 1
    assert ("paused", "failed", "fail") in shown.edges
    assert shown.current == "running"


@HOW
@given(names=st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True), times=st.integers(0, 3))
def test_any_names_give_a_picture_that_can_be_read(how: str, names: list[str], times: int) -> None:
    draw, read = READERS[how]
    states = [name for name in names if name != "*"]
    if len(states) < 2:
        return
    machine = Machine(*states)
    for source, target in pairwise(states):
        machine.add(names[-1], source, target)
    way = TransitionKey(states[0], names[-1], states[1])
    shown = read(
        draw(machine, TransitionCounts(Counter({way: times}), Counter(), Counter({states[1]: times})), states[0])
    )
    more = f" ({times})" if times else ""
    assert shown.states == [states[0], states[1] + more, *states[2:]]
    assert (shown.initial, shown.current) == (states[0], states[0])
    assert shown.edges[0] == (states[0], states[1] + more, names[-1] + (f" ({times}×)" if times else ""))
    assert len(shown.edges) == len(states) - 1
