"""Reading and changing trees of nodes, without I/O.

A computation that needs nodes is a generator: it yields their ids and is sent the stored nodes, in as few rounds as it
can. The caller decides where nodes come from, and whether to wait for them. `Workspace` has the loaded nodes and the
new ones, so that nothing is read twice and nothing is stored that existed before.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

from holdfast.codec.msgpack import MAX_DEPTH
from holdfast.engine.model.line_salt import NO_SALT
from holdfast.engine.model.nodes import (
    FANOUT,
    ChildRef,
    IndexNode,
    LeafNode,
    Node,
    NodeId,
    SegmentNode,
    decode_node,
    encode_node,
)
from holdfast.errors import CorruptError, TooDeepError, TooLargeError

MAX_TOTAL = 1 << 24
"""The largest number of items and entries of a state."""

_MAX_LEVELS = 4 * MAX_DEPTH
"""The largest number of levels: dicts nest at most that deep, and each has a few levels of nodes."""

T = TypeVar("T")
Rounds: TypeAlias = Generator[list[NodeId], Mapping[NodeId, bytes], T]
"""A computation that asks for nodes, round by round, and ends with a T."""


class MissingNode(CorruptError):
    """A node is not in the store; it may have been when its id was read."""


class Workspace:
    """The nodes in memory: loaded ones, and new ones that are not stored yet.

    `created` are new nodes by id, `objects` new large values by pointer. Those that are stored have ids under the salt
    of their line; where nothing is stored, any salt does.
    """

    def __init__(self, salt: bytes = NO_SALT, created: MutableMapping[NodeId, bytes] | None = None) -> None:
        self.salt = salt
        self._nodes: dict[NodeId, Node] = {}
        self.created: MutableMapping[NodeId, bytes] = {} if created is None else created
        self.objects: dict[bytes, bytes] = {}

    @property
    def ids(self) -> Collection[NodeId]:
        """Return the ids of the nodes in memory."""
        return self._nodes.keys()

    def fetch(self, ids: Iterable[NodeId]) -> Rounds[None]:
        """Load these nodes."""
        missing = [id for id in dict.fromkeys(ids) if id not in self._nodes]
        if missing:
            stored = yield missing
            for id in missing:
                data = stored.get(id)
                if data is None:
                    raise MissingNode("a node is missing", where=id.hex(), hint="Repair it from a mirror or a backup")
                self._nodes[id] = decode_node(id, data)

    def segment(self, child: ChildRef) -> SegmentNode:
        """Return a segment that is loaded."""
        node = self._nodes[child.id]
        if not isinstance(node, SegmentNode) or len(node.values) != child.size:
            raise _wrong(child)
        return node

    def leaf(self, child: ChildRef) -> LeafNode:
        """Return a leaf that is loaded."""
        node = self._nodes[child.id]
        if not isinstance(node, LeafNode) or len(node.entries) != child.size:
            raise _wrong(child)
        return node

    def children(self, child: ChildRef) -> tuple[ChildRef, ...]:
        """Return the nodes below an index that is loaded. `CorruptError` if they do not match the index."""
        node = self._nodes[child.id]
        if not isinstance(node, IndexNode) or any(below.height != child.height - 1 for below in node.children):
            raise _wrong(child)
        if sum(below.size for below in node.children) != child.size:
            raise _wrong(child)
        return node.children

    def add(self, node: Node) -> NodeId:
        """Create a node."""
        id, data = encode_node(node, self.salt)
        if id not in self._nodes:
            self._nodes[id] = node
            self.created[id] = data
        return id

    def load_all(self, tops: Iterable[ChildRef]) -> Rounds[None]:
        """Load everything below these nodes, one round per level."""
        level = list(tops)
        total = 0
        for _ in range(_MAX_LEVELS):
            # A node may be in a tree many times: its total is counted before it is expanded.
            total += sum(child.size for child in level if not child.height)
            if not level:
                return
            if len(level) > MAX_TOTAL or total > MAX_TOTAL or any(child.size > MAX_TOTAL for child in level):
                raise TooLargeError(f"a state in nodes holds more than {MAX_TOTAL} items")
            yield from self.fetch(child.id for child in level)
            below: list[ChildRef] = []
            for child in level:
                if child.height:
                    below += self.children(child)
                elif isinstance(node := self._nodes[child.id], LeafNode):
                    roots = (entry.slot for entry in node.entries if not isinstance(entry.slot, bytes))
                    below += (root.child for root in roots if root.child is not None)
            level = below
        raise TooDeepError(f"a state in nodes is more than {_MAX_LEVELS} levels deep")

    def load_indexes(self, top: ChildRef) -> Rounds[list[ChildRef]]:
        """Return the segments or leaves below a node, in order, and load everything above them but not themselves."""
        level = [top]
        while level[0].height:
            yield from self.fetch(child.id for child in level)
            level = [below for child in level for below in self.children(child)]
        return level

    def bottom(self, top: ChildRef | None) -> list[ChildRef]:
        """Return the segments or leaves below a node, in order; all must be loaded."""
        level = [] if top is None else [top]
        while level and level[0].height:
            level = [below for child in level for below in self.children(child)]
        return level

    def index(self, children: Sequence[ChildRef]) -> ChildRef | None:
        """Return one node over these, which may be of different heights: with as many levels of indexes as needed."""
        row = list(children)
        while len(row) > 1:
            height = min(child.height for child in row)
            raised: list[ChildRef] = []
            group: list[ChildRef] = []
            for child in row:
                if child.height == height:
                    group.append(child)
                    continue
                raised += self.raised(group)
                group = []
                raised.append(child)
            row = raised + self.raised(group, filled=True)
        return row[0] if row else None

    def raised(self, group: Sequence[ChildRef], *, filled: bool = False) -> list[ChildRef]:
        """Return indexes over nodes of one height. At the end of a tree they are filled: that is where it grows."""
        raised = []
        for part in chunks(group, FANOUT, filled=filled):
            size = sum(child.size for child in part)
            raised.append(ChildRef(self.add(IndexNode(tuple(part))), part[0].height + 1, size, b"", part[-1].last))
        return raised


def _wrong(child: ChildRef) -> CorruptError:
    return CorruptError(
        "a node is not of the kind that its parent says", where=child.id.hex(), hint="Verify the line, and repair it"
    )


def chunks(row: Sequence[T], limit: int, *, filled: bool = False) -> list[Sequence[T]]:
    """Return the row in parts none over the limit: of about the same length, or all but the last filled."""
    if filled:
        return [row[start : start + limit] for start in range(0, len(row), limit)]
    count = -(-len(row) // limit)
    bounds = [len(row) * i // count for i in range(count + 1)] if count else []
    return [row[start:end] for start, end in pairwise(bounds)]
