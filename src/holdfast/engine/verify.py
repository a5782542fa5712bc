"""Verifying a line: every hash recomputed, and everything there that a state is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.backends.port import Backend, Row, Scan
from holdfast.backends.spaces import FOLDS, NODES, OBJECTS, STEPS, Key, Space
from holdfast.engine.records import (
    Line,
    Point,
    is_sound,
    object_keys,
    open_fold,
    open_node,
    open_step,
    where,
)
from holdfast.errors import Corrupt, HoldfastError
from holdfast.model.large import pointers
from holdfast.model.nodes import Child, Leaf, NodeId, Segment, Slot, decode_node
from holdfast.model.objects import is_pointer, parse_pointer
from holdfast.model.steps import Step

T = TypeVar("T")

_PAGE = 256
_PAGE_BYTES = 4 << 20
"""How many rows are read at a time, and about how many bytes of bodies."""

_FEW = 8
"""How many rows are read at first: nobody knows how large they are."""


@dataclass
class Verified:
    """What was looked at, and in words what is wrong with it."""

    steps: int = 0
    nodes: int = 0
    objects: int = 0
    problems: list[str] = field(default_factory=list)


async def verify(backend: Backend, line: Line, max_bytes: int) -> Verified:
    """Read all that is stored of a line, of which nothing is written meanwhile, and see whether it is sound.

    Every step must have the hash that its content gives, follow the step that it says it does, and have a state: steps
    back to a folded one, and every node and large value that the state needs.
    """
    checking = _Checking(line, max_bytes)
    async for row in rows(backend, STEPS, line):
        checking.step(row)
    async for row in rows(backend, FOLDS, line):
        checking.fold(row)
    async for row in rows(backend, NODES, line):
        checking.node(row)
    async for row in rows(backend, OBJECTS, line):
        checking.object(row)
    return checking.end()


async def rows(backend: Backend, space: Space, line: Line, *, bodies: bool = True) -> AsyncIterator[Row]:
    """The rows of a line in a space, read in pages."""
    page = _FEW if bodies else _PAGE
    start: Key = ()
    while True:
        limit = page + bool(start)
        (found,) = await backend.read([Scan(space, tuple(line), start=start, limit=limit, bodies=bodies)])
        for row in found[1:] if start else found:  # a page starts with the row that the one before it ended with
            yield row
        if len(found) < limit:
            return
        start = found[-1].key[2:]
        if bodies:
            size = sum(len(row.body) for row in found)
            page = min(2 * page, _PAGE) if size < _PAGE_BYTES // 2 else max(1, page * _PAGE_BYTES // (2 * size))


class _Checking:
    """How far the verification of a line has come."""

    def __init__(self, line: Line, max_bytes: int) -> None:
        self.found = Verified()
        self._line = line
        self._max_bytes = max_bytes
        self._points: dict[Key, Point] = {}
        self._steps: dict[Key, tuple[Key | None, bytes]] = {}
        """The parent of each step, and the hash that the parent must have."""
        self._folds: dict[Key, tuple[int, Child | None]] = {}
        self._nodes: dict[tuple[int, NodeId], list[Child]] = {}
        self._pointers: set[bytes] = set()
        self._objects: set[Key] = set()

    def _try(self, what: str, check: Callable[[], T]) -> T | None:
        try:
            return check()
        except HoldfastError as error:
            self.found.problems.append(f"{what}: {error.what}")
            return None

    def step(self, row: Row) -> None:
        point = Point.of(row)
        self._points[row.key[2:]] = point
        if point.pruned:
            return
        self.found.steps += 1
        step: Step | None = self._try(where(self._line, point), lambda: open_step(self._line, row, self._max_bytes))
        if step is not None:
            parents = step.header.parents
            self._steps[row.key[2:]] = (parents[0][:2], parents[0].commit) if parents else (None, b"")
            self._pointers.update(pointers(step.edit))

    def fold(self, row: Row) -> None:
        point = self._points.get(row.key[2:])
        if point is None or point.pruned:
            self.found.problems.append(f"a folded state belongs to no checkpoint: {row.key[2:]}")
            return
        root = self._try(
            f"the folded state of {where(self._line, point)}", lambda: open_fold(self._line, row, point.hash)
        )
        if root is not None:
            self._folds[row.key[2:]] = (int(row.columns[0]), root.child)

    def node(self, row: Row) -> None:
        self.found.nodes += 1
        node = self._try(f"node {row.key[3]!r}", lambda: decode_node(*open_node(self._line, row)))
        if node is None:
            return
        below: list[Child] = []
        values: Sequence[Slot] = ()
        if isinstance(node, Segment):
            values = node.values
        elif isinstance(node, Leaf):
            values = [entry.slot for entry in node.entries]
        else:
            below = list(node.children)
        for value in values:
            if not isinstance(value, bytes):
                below += [] if value.child is None else [value.child]
            elif is_pointer(value):
                self._pointers.add(value)
        self._nodes[int(row.key[2]), bytes(row.key[3])] = below  # type: ignore[arg-type]

    def object(self, row: Row) -> None:
        self.found.objects += 1
        if is_sound(OBJECTS, row):
            self._objects.add(row.key)
        else:
            self.found.problems.append(f"a piece of a large value is damaged: {row.key[2:]}")

    def end(self) -> Verified:
        for place, (parent, commit) in self._steps.items():
            self._check_place(place, parent, commit)
        seen: set[tuple[int, NodeId]] = set()
        for form, top in self._folds.values():
            todo = [] if top is None else [top]
            while todo:
                id = (form, todo.pop().id)
                if id in seen:
                    continue
                seen.add(id)
                if id not in self._nodes:
                    self.found.problems.append(f"node {id[1].hex()} is missing")
                todo += self._nodes.get(id, ())
        for pointer in self._pointers:
            missing = set(object_keys(self._line, parse_pointer(pointer))) - self._objects
            if missing:
                self.found.problems.append(f"{len(missing)} pieces of large value {pointer.hex()} are missing")
        return self.found

    def _check_place(self, place: Key, parent: Key | None, commit: bytes) -> None:
        point = self._points[place]
        before = None if parent is None else self._points.get(parent)
        if parent is not None and (before is None or before.hash != commit):
            self.found.problems.append(f"{where(self._line, point)} does not follow its parent")
        if not point.tail:
            sound = place in self._folds
        elif parent is None:
            sound = point.tail == 1
        else:
            sound = before is not None and not before.pruned and before.tail == point.tail - 1
        if not sound:
            self.found.problems.append(f"the state of {where(self._line, point)} can not be put together")


def raise_problems(line: Line, found: Verified, at: str) -> None:
    """`Corrupt`, if something is wrong."""
    if found.problems:
        more = f", and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
        raise Corrupt(
            f"the thread is not sound: {found.problems[0]}{more}",
            where=f"thread {line} in {at}",
            hint="Repair it from a mirror or a backup",
        )
