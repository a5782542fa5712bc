"""Pictures of a machine, with how often each transition was taken, and the state that an agent is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.transition_log import TransitionCounts, TransitionKey, counts


def mermaid(machine: Machine | None, counted: TransitionCounts | None = None, current: str = "") -> str:
    """A state diagram for Mermaid. Without a machine, it shows what was recorded."""
    drawing = _drawing(machine, counted, current)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_mermaid(label)}" as {id}' for id, label in drawing.labels()]
    lines += [f"    [*] --> {drawing.id(drawing.initial)}"] if drawing.initial else []
    for edge in drawing.edges:
        label = f": {_mermaid(edge.label)}" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} --> {drawing.id(edge.target)}{label}")
    lines += [f"    {drawing.id(state)} --> [*]" for state in drawing.final]
    if drawing.current:
        lines += ["    classDef current font-weight:bold,stroke-width:3px", f"    class {drawing.current} current"]
    return "\n".join(lines) + "\n"


def dot(machine: Machine | None, counted: TransitionCounts | None = None, current: str = "") -> str:
    """A graph for Graphviz. Without a machine, it shows what was recorded."""
    drawing = _drawing(machine, counted, current)
    lines = ["digraph machine {", "    rankdir=LR;", "    node [shape=box, style=rounded];"]
    for (id, label), state in zip(drawing.labels(), drawing.states, strict=True):
        more = ", peripheries=2" if state in drawing.final else ""
        more += ", penwidth=3, fontname=bold" if id == drawing.current else ""
        lines.append(f"    {id} [label={_dot(label)}{more}];")
    if drawing.initial:
        lines += ["    begin [shape=point, label=begin];", f"    begin -> {drawing.id(drawing.initial)};"]
    for edge in drawing.edges:
        label = f" [label={_dot(edge.label)}]" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} -> {drawing.id(edge.target)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


class _Edge(NamedTuple):
    source: str
    target: str
    label: str


class _Drawing:
    def __init__(self, states: list[str], initial: str, final: list[str], edges: list[_Edge], current: str) -> None:
        self.states = states
        self.initial = initial
        self.final = final
        self.edges = edges
        self._ids = {state: f"s{number}" for number, state in enumerate(states)}
        self._entered: dict[str, int] = {}
        self.current = self._ids.get(current, "")

    def id(self, state: str) -> str:
        return self._ids[state]

    def entered(self, counted: TransitionCounts) -> None:
        """Have the states say how often they were entered."""
        self._entered = counted.entered

    def labels(self) -> list[tuple[str, str]]:
        """The states by their ids in the picture, whatever their names are."""
        times = self._entered
        return [(id, f"{name} ({times[name]})" if times.get(name) else name) for name, id in self._ids.items()]


def _drawing(machine: Machine | None, counted: TransitionCounts | None, current: str) -> _Drawing:
    found = counts(()) if counted is None else counted
    ways = dict.fromkeys(() if machine is None else _declared(machine))
    recorded = [*found.taken, *found.failed]
    named = [state for way in recorded for state in (way.source, way.target)]
    states = list(
        dict.fromkeys([*(() if machine is None else machine.states), *named, *([current] if current else [])])
    )
    edges: list[_Edge] = []
    for way, via in {**ways, **{(way, ""): None for way in recorded if way not in {each for each, _ in ways}}}:
        label = _counted(way, found)
        edges += (
            [_Edge(way.source, via, label), _Edge(via, way.target, "")]
            if via
            else [_Edge(way.source, way.target, label)]
        )
    final = [] if machine is None else [state for state in machine.states if state in machine.final]
    drawing = _Drawing(states, "" if machine is None else machine.initial, final, list(dict.fromkeys(edges)), current)
    drawing.entered(found)
    return drawing


def _declared(machine: Machine) -> Iterator[tuple[TransitionKey, str]]:
    for way in machine.expanded():
        yield TransitionKey(way.source, way.trigger, way.target), way.via


def _counted(way: TransitionKey, found: TransitionCounts) -> str:
    times = [f"{found.taken[way]}×"] if found.taken[way] else []
    times += [f"{found.failed[way]} failed"] if found.failed[way] else []
    return f"{way.trigger} ({', '.join(times)})" if times else way.trigger


def _mermaid(text: str) -> str:
    """Every sign that could mean something there is given by its number."""
    return "".join(each if each.isalnum() or each in " _-.,()×" else f"#{ord(each)};" for each in text)


def _dot(text: str) -> str:
    """The same: Graphviz takes the signs of labels by their numbers, as HTML does."""
    return (
        '"' + "".join(each if each.isprintable() and each not in '&"\\' else f"&#{ord(each)};" for each in text) + '"'
    )
