"""Diagrams of a machine, with the counts of its transitions and the current state of an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.transition_log import TransitionCounts, TransitionKey, count_transitions


def mermaid(machine: Machine | None, counts: TransitionCounts | None = None, current: str = "") -> str:
    """Draw a state diagram for Mermaid. Without a machine, it shows the recorded transitions."""
    drawing = _build_drawing(machine, counts, current)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_escape_mermaid(label)}" as {id}' for id, label in drawing.labels()]
    lines += [f"    [*] --> {drawing.id(drawing.initial)}"] if drawing.initial else []
    for edge in drawing.edges:
        label = f": {_escape_mermaid(edge.label)}" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} --> {drawing.id(edge.target)}{label}")
    lines += [f"    {drawing.id(state)} --> [*]" for state in drawing.final]
    if drawing.current:
        lines += ["    classDef current font-weight:bold,stroke-width:3px", f"    class {drawing.current} current"]
    return "\n".join(lines) + "\n"


def dot(machine: Machine | None, counts: TransitionCounts | None = None, current: str = "") -> str:
    """Draw a graph for Graphviz. Without a machine, it shows the recorded transitions."""
    drawing = _build_drawing(machine, counts, current)
    lines = ["digraph machine {", "    rankdir=LR;", "    node [shape=box, style=rounded];"]
    for (id, label), state in zip(drawing.labels(), drawing.states, strict=True):
        style = ", peripheries=2" if state in drawing.final else ""
        style += ", penwidth=3, fontname=bold" if id == drawing.current else ""
        lines.append(f"    {id} [label={_quote_dot(label)}{style}];")
    if drawing.initial:
        lines += ["    begin [shape=point, label=begin];", f"    begin -> {drawing.id(drawing.initial)};"]
    for edge in drawing.edges:
        label = f" [label={_quote_dot(edge.label)}]" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} -> {drawing.id(edge.target)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


class _Edge(NamedTuple):
    source: str
    target: str
    label: str


class _Drawing:
    def __init__(
        self, states: list[str], initial: str, final: list[str], edges: list[_Edge], current: str, entered: Counter[str]
    ) -> None:
        self.states = states
        self.initial = initial
        self.final = final
        self.edges = edges
        self._ids = {state: f"s{number}" for number, state in enumerate(states)}
        self._entered = entered
        self.current = self._ids.get(current, "")

    def id(self, state: str) -> str:
        return self._ids[state]

    def labels(self) -> list[tuple[str, str]]:
        """Return the ids of the states in the diagram, with their names and how often they were entered."""
        times = self._entered
        return [(id, f"{name} ({times[name]})" if times.get(name) else name) for name, id in self._ids.items()]


def _build_drawing(machine: Machine | None, counts: TransitionCounts | None, current: str) -> _Drawing:
    recorded = count_transitions(()) if counts is None else counts
    declared = {} if machine is None else dict.fromkeys(_declared_transitions(machine))
    # One that is not declared was refused, and led nowhere.
    recorded_keys = [key for key in (*recorded.successes, *recorded.failures) if key.target]
    names = [state for key in recorded_keys for state in (key.source, key.target)]
    states = [*(() if machine is None else machine.states), *names, *([current] if current else [])]
    declared_keys = {key for key, _ in declared}
    edges: list[_Edge] = []
    for key, via in {**declared, **{(key, ""): None for key in recorded_keys if key not in declared_keys}}:
        label = _edge_label(key, recorded)
        edges += (
            [_Edge(key.source, via, label), _Edge(via, key.target, "")]
            if via
            else [_Edge(key.source, key.target, label)]
        )
    return _Drawing(
        list(dict.fromkeys(states)),
        "" if machine is None else machine.initial,
        [] if machine is None else [state for state in machine.states if state in machine.final],
        list(dict.fromkeys(edges)),
        current,
        recorded.entries,
    )


def _declared_transitions(machine: Machine) -> Iterator[tuple[TransitionKey, str]]:
    for each in machine.expand():
        yield TransitionKey(each.source, each.trigger, each.target), each.via


def _edge_label(key: TransitionKey, recorded: TransitionCounts) -> str:
    times = [f"{recorded.successes[key]}×"] if recorded.successes[key] else []
    times += [f"{recorded.failures[key]} failed"] if recorded.failures[key] else []
    return f"{key.trigger} ({', '.join(times)})" if times else key.trigger


def _escape_mermaid(text: str) -> str:
    """Replace every character that could have a meaning in Mermaid by its number."""
    return "".join(each if each.isalnum() or each in " _-.,()×" else f"#{ord(each)};" for each in text)


def _quote_dot(text: str) -> str:
    """Quote a label for Graphviz, which accepts characters by their numbers, as HTML does."""
    return (
        '"' + "".join(each if each.isprintable() and each not in '&"\\' else f"&#{ord(each)};" for each in text) + '"'
    )
