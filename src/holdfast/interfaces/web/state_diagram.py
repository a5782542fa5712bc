"""The machine of an agent as a drawing: states in columns by their distance from the first, transitions as arrows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.transition_log import TransitionCounts, TransitionKey
from holdfast.codec.value_text import shorten

_CHARACTER = 7
_HEIGHT = 40
_ROW = 92
_GAP = 132
_MARGIN = 24
_LONGEST = 28


class StateBox(NamedTuple):
    """A state: where it is drawn, and how often it was entered."""

    name: str
    x: int
    y: int
    width: int
    height: int
    entered: int
    current: bool


class TransitionArrow(NamedTuple):
    """The transitions from one state to another: an arrow with their names."""

    path: str
    x: int
    y: int
    labels: list[str]
    failed: bool
    title: str


class StateDiagram(NamedTuple):
    """A drawing of a machine."""

    width: int
    height: int
    boxes: list[StateBox]
    arrows: list[TransitionArrow]


def draw_machine(counts: TransitionCounts, current: str = "", machine: Machine | None = None) -> StateDiagram:
    """Draw the transitions that are declared, and those that were recorded. One that is not declared, and led nowhere,
    has no arrow."""
    declared = [] if machine is None else [TransitionKey(e.source, e.trigger, e.target) for e in machine.expand()]
    pairs: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for key in dict.fromkeys([*declared, *counts.successes, *counts.failures]):
        if key.target:
            found = (key.trigger, counts.successes[key], counts.failures[key])
            pairs.setdefault((key.source, key.target), []).append(found)
    states = [] if machine is None else [machine.initial, *machine.states]
    drawn = [state for pair in pairs for state in pair]
    names = list(dict.fromkeys([*states, *drawn, *([current] if current else [])]))
    columns = _columns(names, list(pairs))
    boxes = _place(columns, counts, current)
    lowest = max((box.y + box.height for box in boxes.values()), default=0)
    arrows, below = [], lowest + 28
    for (source, target), taken in pairs.items():
        labels = [_label(*each) for each in taken]
        failed = all(not successes and failures for _, successes, failures in taken)
        path, x, y, turns_back = _arrow(boxes[source], boxes[target], below)
        below += 14 + 14 * len(labels) if turns_back else 0
        title = f"{source} → {target}: {', '.join(labels)}"
        arrows.append(TransitionArrow(path, x, y, [shorten(each, _LONGEST) for each in labels], failed, title))
    width = max((box.x + box.width for box in boxes.values()), default=0) + _MARGIN
    top = min((arrow.y - 14 * len(arrow.labels) for arrow in arrows), default=0)
    height = max(lowest, below if below > lowest + 28 else lowest) + _MARGIN
    if top < 0:  # what is drawn above the first row
        height += -top
    return StateDiagram(width, height, list(boxes.values()), arrows)


def _columns(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the states by their distance from the first one."""
    after: dict[str, list[str]] = {}
    for source, target in pairs:
        after.setdefault(source, []).append(target)
    entered = {target for source, target in pairs if source != target}
    starts = [name for name in names if name not in entered] or list(names[:1])
    distance: dict[str, int] = {}
    for start in [*starts, *names]:  # then what cannot be reached from there
        if start in distance:
            continue
        distance[start] = 0
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            for target in after.get(state, ()):
                if target not in distance:
                    distance[target] = distance[state] + 1
                    waiting.append(target)
    columns: list[list[str]] = [[] for _ in range(max(distance.values(), default=-1) + 1)]
    for name in names:
        columns[distance[name]].append(name)
    return columns


def _place(columns: Sequence[Sequence[str]], counts: TransitionCounts, current: str) -> dict[str, StateBox]:
    boxes: dict[str, StateBox] = {}
    x = _MARGIN
    most = max((len(column) for column in columns), default=1)
    for column in columns:
        width = max(72, max(_CHARACTER * len(shorten(name, _LONGEST)) for name in column) + 32)
        top = _MARGIN + 24 + (most - len(column)) * _ROW // 2
        for row, name in enumerate(column):
            boxes[name] = StateBox(
                name, x, top + row * _ROW, width, _HEIGHT, counts.entries.get(name, 0), name == current
            )
        x += width + _GAP
    return boxes


def _arrow(source: StateBox, target: StateBox, below: int) -> tuple[str, int, int, bool]:
    """Return an arrow as a path of SVG, the middle of its label, and whether it turns back below all states."""
    if source.name == target.name:
        x, y = source.x + source.width // 2, source.y
        return f"M{x - 16} {y}C{x - 28} {y - 34} {x + 28} {y - 34} {x + 16} {y - 2}", x, y - 32, False
    if source.x == target.x:
        x, down = source.x + source.width // 2, source.y < target.y
        shift = 18 if down else -18
        start, end = (source.y + source.height, target.y - 2) if down else (source.y, target.y + target.height + 2)
        return f"M{x + shift} {start}V{end}", x + shift + 40, (start + end) // 2, False
    if source.x < target.x:
        y, end = source.y + source.height // 2, target.y + target.height // 2
        left, right = source.x + source.width, target.x - 2
        middle = (left + right) // 2
        lift = 0 if right - left <= _GAP else 30
        path = f"M{left} {y}C{middle} {y - lift} {middle} {end - lift} {right} {end}"
        return path, middle, (y + end) // 2 - 6 - lift, False
    start, end = source.x + source.width // 2, target.x + target.width // 2
    path = f"M{start} {source.y + source.height}V{below}H{end}V{target.y + target.height + 2}"
    return path, (start + end) // 2, below - 4, True


def _label(trigger: str, successes: int, failures: int) -> str:
    times = [f"{successes}×"] if successes else []
    times += [f"{failures} failed"] if failures else []
    return f"{trigger} {', '.join(times)}" if times else trigger
