"""Causality: what led to an event, and what an event led to.

A change has the id of the step that caused it. So an event is found by the id of its step, and its effects by that id
as their cause.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import msgspec

from holdfast.engine.ids import time_of
from holdfast.history.query import Field, Query, either
from holdfast.store.timeline.event import TimelineEvent
from holdfast.store.timeline.rows import TimeInterval

_NEAR = (2 * 10**9, 3600 * 10**9)
"""How far from the time in its id the events of a step are looked for, in nanoseconds; then they may be anywhere."""

_AT_ONCE = 100
"""How many causes are looked for at a time."""

_MAX_EVENTS = 10_000
"""How many events of one step are read."""

MAX_DEPTH = 100

FindEvents: TypeAlias = Callable[[Query, TimeInterval], AsyncIterator[Sequence[TimelineEvent]]]
"""Yields the events that match a query, the oldest first, a page at a time."""


class CausalNode(msgspec.Struct, frozen=True):
    """A step in a tree of causes or effects: its events, the oldest first, and the steps that it leads to in the tree:
    those that caused it, or those that it caused. A cause without events was removed, or may not be read."""

    id: str
    events: tuple[TimelineEvent, ...]
    links: tuple[CausalNode, ...] = ()
    more: bool = False
    """Whether links are left out, because there are too many steps."""

    def walk(self, depth: int = 0) -> Iterator[tuple[int, CausalNode]]:
        """Iterate over the tree, each node before those that it leads to, with the depth of each."""
        yield depth, self
        for link in self.links:
            yield from link.walk(depth + 1)


async def find_causes(find: FindEvents, id: str, limit: int) -> CausalNode:
    """Return what led to a step, back to the first cause."""
    steps: dict[str, list[TimelineEvent]] = {}
    waiting = [id]
    while waiting and len(steps) < max(limit, 1):
        each = waiting.pop()
        if each in steps:
            continue
        steps[each] = await find_step(find, each)
        waiting += dict.fromkeys(event.cause for event in steps[each] if event.cause)
    causes = {each: dict.fromkeys(event.cause for event in events if event.cause) for each, events in steps.items()}
    return _tree(id, steps, causes)


async def find_effects(find: FindEvents, id: str, limit: int) -> CausalNode:
    """Return what a step led to."""
    steps: dict[str, list[TimelineEvent]] = {id: await find_step(find, id)}
    effects: dict[str, dict[str, None]] = {}
    cut: set[str] = set()
    level = [id] if steps[id] else []
    while level:
        further: list[str] = []
        for start in range(0, len(level), _AT_ONCE):
            causes, is_full = level[start : start + _AT_ONCE], False
            async for events in find(_one_of("cause", causes), _since(id)):
                if is_full:
                    cut.update(causes)
                    break
                for event in events:
                    if event.id not in steps:
                        if len(steps) >= limit:
                            cut.add(event.cause)
                            continue
                        steps[event.id] = []
                        further.append(event.id)
                    steps[event.id].append(event)
                    effects.setdefault(event.cause, {})[event.id] = None
                is_full = len(steps) >= limit
        level = further
    return _tree(id, steps, effects, cut)


async def find_step(find: FindEvents, id: str) -> list[TimelineEvent]:
    """Return the events of a step."""
    query, time = Field("id", "=", id), time_of(id)
    near = [TimeInterval(max(time - distance, 0), time + distance) for distance in _NEAR if time]
    found: list[TimelineEvent] = []
    for interval in (*near, TimeInterval()):
        async for events in find(query, interval):
            found += events
            if len(found) >= _MAX_EVENTS:
                break
        if found:
            break
    return found


def _since(id: str) -> TimeInterval:
    """Return when the effects of a step can have happened: clocks may differ a little."""
    time = time_of(id)
    return TimeInterval(max(time - _NEAR[1], 0)) if time else TimeInterval()


def _one_of(name: str, values: Sequence[str]) -> Query:
    return either([Field(name, "=", value) for value in values])


def _tree(
    id: str,
    steps: Mapping[str, Sequence[TimelineEvent]],
    links: Mapping[str, Iterable[str]],
    cut: Set[str] = frozenset(),
) -> CausalNode:
    """Build a tree. What is in it more than once, or in a circle, leads on only at the first place. Links of those that
    are `cut` were left out."""
    shown: set[str] = set()

    def build(id: str, depth: int) -> CausalNode:
        shown.add(id)
        after = [link for link in links.get(id, ()) if link not in shown]
        known = [link for link in after if link in steps] if depth < MAX_DEPTH else []
        shown.update(known)
        below = tuple(build(link, depth + 1) for link in known)
        return CausalNode(id, tuple(steps.get(id, ())), below, len(known) < len(after) or id in cut)

    return build(id, 0)
