"""Nodes: the folded form of a state.

A long tail of operations is folded into nodes. The items of a list lie in *segments* of about 64, each item with its
origin, the step that wrote it; the entries of a dict lie in *leaves*, ordered by key. Above them are small *indexes*,
so that any part of a state is a short path away and a change rewrites only that path. A node is the unit of storage, of
lookup and of compression.

A node's id is a digest of its content, and an index contains its children's ids: the id of a state's root node
identifies the whole state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta
from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.codec import msgpack
from holdfast.engine.model.line_salt import digest
from holdfast.errors import CorruptError

NodeId: TypeAlias = bytes

FANOUT = 64
"""The largest number of items, entries or children of a node."""

NODE_BYTES = 128 << 10
"""The largest number of bytes of a segment or leaf, unless a single item has more."""

_ID_SIZE = 20


class WrittenBy(NamedTuple):
    """The step that wrote a value."""

    branch: int
    seq: int


class ChildRef(NamedTuple):
    """A node as its parent refers to it.

    `size` counts the items or entries below it, `height` the levels (a segment or leaf has 0). `digest`, of a segment,
    covers its items but not their origins: a writer that has a new packed state sees from it which segments need not be
    read. `last`, of a dict's node, is the greatest key below it.
    """

    id: NodeId
    height: int
    size: int
    digest: bytes
    last: bytes = b""


class ListItem(NamedTuple):
    """An item of a list and the step that wrote it."""

    value: bytes
    origin: WrittenBy


class ListRoot(NamedTuple):
    """A list in folded form. An empty one has no node."""

    child: ChildRef | None


class MapRoot(NamedTuple):
    """A dict in folded form. `ranks` is how many ranks in the order were ever assigned."""

    child: ChildRef | None
    ranks: int


Slot: TypeAlias = bytes | ListRoot | MapRoot
"""The value of a dict's entry: a packed value, or a list or dict in nodes of its own."""


class MapEntry(NamedTuple):
    """An entry of a dict: packed key, rank in the dict's order, value, and the step that wrote it."""

    key: bytes
    rank: int
    slot: Slot
    origin: WrittenBy


class SegmentNode(NamedTuple):
    """Items of a list: their values, and the branches and numbers of the steps that wrote them, alternately.

    In columns, since most readers need the values alone.
    """

    values: list[bytes]
    numbers: list[int]

    @classmethod
    def of(cls, items: Sequence[ListItem]) -> SegmentNode:
        """Return the segment with these items."""
        return cls([item.value for item in items], _origins(items))

    @property
    def items(self) -> list[ListItem]:
        """Return each value with its origin."""
        origins = map(WrittenBy, self.numbers[::2], self.numbers[1::2])
        return list(map(ListItem, self.values, origins))


class LeafNode(NamedTuple):
    """Entries of a dict, by `sort_key`."""

    entries: tuple[MapEntry, ...]


class IndexNode(NamedTuple):
    """Nodes of one height below."""

    children: tuple[ChildRef, ...]


Node: TypeAlias = SegmentNode | LeafNode | IndexNode


def sort_key(key: bytes) -> bytes:
    """Return the sort key of a packed key: strings sort by their text, after all other keys."""
    start = msgpack.TEXT_STARTS.get(key[:1])
    return b"\x00" + key if start is None else b"\x01" + key[start:]


# Stored form --------------------------------------------------------------------------------------------------

_WITH_STEP = 4
"""How many parts the root of a state has together with its step."""

_SEGMENT, _LEAF, _INDEX = range(3)
_VALUE, _LIST, _MAP = range(3)

_SEGMENT_MARK, LEAF_MARK, INDEX_MARK = b"\x93\x00", b"\x95\x01", b"\x92\x02"
"""The start of stored nodes: the number of parts, of which the first is the kind."""

_Number: TypeAlias = Annotated[int, Meta(ge=0)]
_Child: TypeAlias = tuple[bytes, _Number, _Number, bytes, bytes]

# The types of all parts of nodes are fixed, and cannot nest. No bounded number is in a union with a tuple: with such a
# union, msgspec 0.22 lets the garbage collector crash.
_SEGMENT_FORM = packed_form(tuple[int, list[bytes], list[_Number]])
_StoredSlot: TypeAlias = list[int | bytes | tuple[bytes, int, int, bytes, bytes] | None]
_LEAF_FORM = packed_form(tuple[int, list[bytes], list[_Number], list[_StoredSlot], list[_Number]])
SLOT_FORM = packed_form(_StoredSlot)
_INDEX_FORM = packed_form(tuple[int, list[_Child]])


def encode_node(node: Node, salt: bytes) -> tuple[NodeId, bytes]:
    """Return a node's id in a line with this salt, and its stored form."""
    if isinstance(node, SegmentNode):
        columns: list[Any] = [_SEGMENT, *node]
    elif isinstance(node, LeafNode):
        slots = [_slot(entry.slot) for entry in node.entries]
        ranks = [entry.rank for entry in node.entries]
        columns = [_LEAF, [entry.key for entry in node.entries], ranks, slots, _origins(node.entries)]
    else:
        columns = [_INDEX, [list(child) for child in node.children]]
    data = encode(columns)
    return node_id(data, salt), data


def decode_node(id: NodeId, data: bytes) -> Node:
    """Decode a node from its stored form. Whether it is the right one, `check_node` tells."""
    reader = ByteReader(data, "a node", id)
    if data.startswith(_SEGMENT_MARK):
        _, values, numbers = reader.packed(_SEGMENT_FORM)
        if len(numbers) != 2 * len(values):
            raise reader.error("has items without an origin")
        return SegmentNode(values, numbers)
    if data.startswith(LEAF_MARK):
        _, keys, ranks, slots, numbers = reader.packed(_LEAF_FORM)
        if not 2 * len(keys) == 2 * len(ranks) == 2 * len(slots) == len(numbers):
            raise reader.error("has entries without all of their parts")
        origins = map(WrittenBy, numbers[::2], numbers[1::2])
        return LeafNode(tuple(map(MapEntry, keys, ranks, [parse_slot(slot, reader) for slot in slots], origins)))
    if data.startswith(INDEX_MARK):
        return IndexNode(tuple(ChildRef(*child) for child in reader.packed(_INDEX_FORM)[1]))
    raise reader.error("is of an unknown kind")


def node_id(data: bytes, salt: bytes) -> NodeId:
    """Return the id of a node in a line with this salt."""
    return digest(salt, data)[:_ID_SIZE]


def check_node(id: NodeId, data: bytes, salt: bytes) -> None:
    """Raise `CorruptError` if a node does not match its id."""
    if node_id(data, salt) != id:
        raise CorruptError(
            "a node is not the one its id names", where=id.hex(), hint="Repair it from a mirror or a backup"
        )


def encode_root(root: MapRoot, step: bytes = b"") -> bytes:
    """Return the stored form of a state's root; with that of its step without the changes, if that is given."""
    return encode([*_slot(root), step] if step else _slot(root))


def decode_root(data: bytes) -> tuple[MapRoot, bytes]:
    """Decode a state's root from its stored form, and return what it has of the step."""
    reader = ByteReader(data, "the root of a state")
    parts = reader.packed(SLOT_FORM)
    step = parts.pop() if len(parts) == _WITH_STEP else b""
    root = parse_slot(parts, reader)
    if not isinstance(root, MapRoot) or not isinstance(step, bytes):
        raise reader.error("is not a dict")
    return root, step


def _slot(slot: Slot) -> list[Any]:
    if isinstance(slot, bytes):
        return [_VALUE, slot]
    if isinstance(slot, ListRoot):
        return [_LIST, slot.child and list(slot.child)]
    return [_MAP, slot.child and list(slot.child), slot.ranks]


def parse_slot(parts: _StoredSlot, reader: ByteReader) -> Slot:
    """Parse the value of an entry from its stored form. The reader is for the error."""
    match parts:  # the kinds are those of `_slot`
        case [0, bytes() as value]:
            return value
        case [1, None | tuple() as child]:
            return ListRoot(_child(child, reader))
        case [2, None | tuple() as child, int() as ranks] if ranks >= 0:
            return MapRoot(_child(child, reader), ranks)
    raise reader.error("has a value of an unknown kind")


def _child(parts: tuple[bytes, int, int, bytes, bytes] | None, reader: ByteReader) -> ChildRef | None:
    if parts is None:
        return None
    child = ChildRef(*parts)
    if child.height < 0 or child.size < 0:
        raise reader.error("has a child with a negative size")
    return child


def _origins(rows: Sequence[ListItem] | Sequence[MapEntry]) -> list[int]:
    return [number for row in rows for number in row.origin]


def digest_items(values: Sequence[bytes]) -> bytes:
    """Return a digest of a segment's items, without their origins."""
    return hashlib.sha256(b"".join(hashlib.sha256(value).digest() for value in values)).digest()[:_ID_SIZE]
