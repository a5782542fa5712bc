"""A plain model of a store and its backups: what was there at every moment, and what the backups together know of it.

It keeps every state that there ever was, and computes nothing as the package does: checkpoints are numbers here, with
the ids that the store gave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Life:
    """A line from its creation to its deletion; another one of the same name has another number."""

    number: int
    heads: dict[str, int] = field(default_factory=dict)
    """The last checkpoint of each branch."""
    current: str = "main"
    tags: dict[str, int] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)
    own: dict[str, list[int]] = field(default_factory=dict)
    """The checkpoints that were saved to each branch, also those that were pruned."""
    content: set[int] = field(default_factory=set)
    """The checkpoints that the store has."""
    rewrites: int = 0
    """How often checkpoints were removed."""


@dataclass
class World:
    """A store at a moment."""

    lines: dict[str, Life] = field(default_factory=dict)
    gone: dict[int, set[int]] = field(default_factory=dict)
    """The checkpoints of lives that were deleted: with a branch, or with all of the line. Not those pruned."""


@dataclass
class Expected:
    """What a restore has of a line."""

    life: Life
    at_least: set[int]
    at_most: set[int]


class Model:
    """A history of a store, and of its backups."""

    def __init__(self) -> None:
        self.world = World()
        self.moments: list[tuple[int, World]] = []
        self.backups: list[tuple[int, str, World]] = []
        self.values: dict[int, Any] = {}
        self.ids: dict[int, str | None] = {}
        self.times: dict[int, int] = {}
        self.parents: dict[int, int | None] = {}
        self.erased: set[int] = set()
        self.erasures: dict[str, int] = {}
        """When a line of a name was last erased, and with it the audit of all before it."""
        self.lives = 0

    # What happens ---------------------------------------------------------------------------------------------------

    def note(self, time: int) -> None:
        """Remember the store as it is at a time."""
        self.moments.append((time, deepcopy(self.world)))

    def back_up(self, time: int, id: str) -> None:
        self.backups.append((time, id, deepcopy(self.world)))

    def life(self, name: str) -> Life:
        if name not in self.world.lines:
            self.lives += 1
            self.world.lines[name] = Life(self.lives)
        return self.world.lines[name]

    def add(self, name: str, branch: str, value: Any, id: str | None, time: int) -> int:
        life, number = self.life(name), len(self.values)
        self.values[number], self.ids[number], self.times[number] = value, id, time
        self.parents[number] = life.heads.get(branch)
        life.heads[branch] = number
        life.own.setdefault(branch, []).append(number)
        life.content.add(number)
        return number

    def remove(self, name: str) -> None:
        life = self.world.lines.pop(name)
        self.world.gone.setdefault(life.number, set()).update(life.content, *life.own.values())

    def arrive(self, name: str, life: Life) -> None:
        """A life that was deleted comes back, as it was at some time. What had been pruned then may return."""
        self.world.lines[name] = deepcopy(life)
        self.world.gone.get(life.number, set()).difference_update(life.content, *life.own.values())

    def remove_branch(self, name: str, branch: str, ids: Iterable[str]) -> None:
        life = self.world.lines[name]
        removed = {each for each in life.content if self.ids[each] in set(ids)}
        life.content -= removed
        life.rewrites += 1
        del life.heads[branch]
        life.tags = {tag: each for tag, each in life.tags.items() if each not in removed}
        self.world.gone.setdefault(life.number, set()).update(removed, life.own.pop(branch, ()))

    def prune(self, name: str, left: Iterable[str]) -> None:
        """All is pruned but what is left."""
        life, ids = self.world.lines[name], set(left)
        kept = {each for each in life.content if self.ids[each] is None or self.ids[each] in ids}
        life.rewrites += kept != life.content
        life.content = kept

    # What is known --------------------------------------------------------------------------------------------------

    def covered(self) -> Iterator[tuple[int, World]]:
        """The moments between the first backup that is left and the last."""
        for time, world in self.moments:
            if self.backups and self.backups[0][0] <= time <= self.backups[-1][0]:
                yield time, world

    def at(self, time: int) -> World:
        return [world for when, world in self.moments if when <= time][-1]

    def expect(self, name: str, time: int) -> tuple[Expected | None, bool]:
        """What a restore of a line to a time has, and whether that is exactly what was there."""
        first = max((each for each in self.backups if each[0] <= time), key=lambda each: each[0])
        moments = [first[0], *(when for when, _ in self.moments if first[0] < when <= time)]
        for when in reversed(moments):
            world = first[2] if when == first[0] else self.at(when)
            life = world.lines.get(name)
            if life is None or life.number in self.erased:
                return None, when == moments[-1]
            known = self._known(life.number, name, time)
            if set(life.heads.values()) <= known:
                return self._expected(name, life, world, when, time), when == moments[-1] and self._named(life) <= known
        raise AssertionError("the backup before the moment has what it has")

    def _named(self, life: Life) -> set[int]:
        return {*life.tags.values(), *life.pins.values()}

    def _known(self, number: int, name: str, time: int, most: int | None = None) -> set[int]:
        """The checkpoints of a life that the last backup before a time has, or some after it, up to so many. One that
        neither of the two beside the time has came back and went again: then all backups before it count, too."""
        earlier = [world for when, _, world in self.backups if when <= time]
        after = [world for when, _, world in self.backups if when >= time]
        beside = [world.lines.get(name) for world in (*earlier[-1:], *after[:1])]
        has_it = any(each is not None and each.number == number for each in beside)
        before, after = earlier[-1:] if has_it else earlier, after[:most]
        lives = [world.lines.get(name) for world in (*before, *after)]
        return {each for life in lives if life is not None and life.number == number for each in life.content}

    def _expected(self, name: str, life: Life, world: World, when: int, time: int) -> Expected:
        gone = world.gone.get(life.number, set())
        here = [
            {each for each in self._known(life.number, name, time, most) - gone if self.times[each] <= when}
            for most in (1, None)
        ]
        return Expected(life, here[0], here[1])
