"""Folding at any point changes no state and no commit hash, and costs what changed."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.model import large_pointers, list_tree, map_tree
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.fold import fold, read
from holdfast.engine.model.line_salt import NO_SALT
from holdfast.engine.model.nodes import (
    ChildRef,
    IndexNode,
    LeafNode,
    ListItem,
    ListRoot,
    MapEntry,
    MapRoot,
    SegmentNode,
    WrittenBy,
    check_node,
    decode_node,
    decode_root,
    encode_node,
    encode_root,
    sort_key,
)
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, EditText, KeepRun, Operation, Set, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, flatten, pack_state
from holdfast.engine.model.steps import Step, StepHeader, StepParent
from holdfast.engine.model.tree_diff import diff_folded
from holdfast.engine.model.workspace import Workspace
from holdfast.errors import CorruptError, TooDeepError, TooLargeError
from tests.engine.model.histories import codec, drive, edited_state, histories, states
from tests.support.cases import case
from tests.support.nightly import examples, mostly_nightly


class Line:
    """A line in memory: nodes, large values, and steps that are not folded yet."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, bytes] = {}
        self.objects: dict[bytes, bytes] = {}
        self.root = EMPTY
        self.tail: list[tuple[WrittenBy, EditMap]] = []
        self.seq = 0

    def append(self, edit: EditMap) -> None:
        self.tail.append((WrittenBy(0, self.seq), edit))
        self.seq += 1

    def fold(self) -> Workspace:
        ws = Workspace()
        self.asked: list[int] = []
        self.root = drive(fold(ws, self.root, self.tail, self.objects.__getitem__), self.nodes, self.asked)
        self.tail = []
        self.nodes |= ws.created
        self.objects |= ws.objects
        return ws

    def whole(self, packed: Packed) -> Packed:
        """The same with what pointers stand for put in."""
        if isinstance(packed, bytes):
            return self.objects.get(packed, packed)
        if isinstance(packed, list):
            return [self.objects.get(item, item) for item in packed]
        return {key: self.whole(value) for key, value in packed.items()}

    def state(self) -> bytes:
        packed: PackedMap = drive(read(Workspace(), self.root), self.nodes)
        for _, edit in self.tail:
            packed = apply_map(edit, packed, self.objects.__getitem__)
        return flatten(self.whole(packed))


@given(histories(), st.sets(st.integers(0, 6)))
@settings(max_examples=examples(60))
def test_folding_at_any_point_changes_no_state(history: list[dict[str, Any]], folds: set[int]) -> None:
    line = Line()
    before: PackedMap = {}
    commits: list[bytes] = []
    for i, state in enumerate(history):
        after = pack_state(codec, state)
        edit = diff_maps(before, after)
        line.append(edit)
        parents = (StepParent(0, i - 1, commits[-1]),) if commits else ()
        commits.append(Step(StepHeader(str(i), parents), edit).commit(NO_SALT))
        if i in folds:
            line.fold()
        assert line.state() == codec.pack(state)
        before = after
    line.fold()
    assert line.state() == codec.pack(history[-1])
    assert decode_root(encode_root(line.root)) == (line.root, b"")


@given(states.flatmap(lambda state: st.tuples(st.just(state), st.lists(edited_state(state), max_size=3))))
def test_forks_share_what_they_share(fork: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    base = Line()
    base.append(diff_maps({}, pack_state(codec, fork[0])))
    base.fold()
    for state in fork[1]:
        branch = Line()
        branch.nodes, branch.objects, branch.root = base.nodes, base.objects, base.root
        branch.append(diff_maps(pack_state(codec, fork[0]), pack_state(codec, state)))
        branch.fold()
        assert branch.state() == codec.pack(state)
    assert base.state() == codec.pack(fork[0])


MESSAGES = codec.pack("messages")


def message(n: int) -> bytes:
    return codec.pack(f"message {n} " + "x" * 300)


def appended(line: Line, count: int) -> None:
    """Append messages one step at a time, folding every 32 steps."""
    for _ in range(count):
        n = line.seq
        edit: Operation = EditList((KeepRun(0, n), (message(n),))) if n else Set(flatten([message(0)]))
        line.append(EditMap((), ((MESSAGES, edit),)))
        if line.seq % 32 == 0:
            line.fold()


def messages_root(line: Line) -> ListRoot:
    found = drive(map_tree.lookup(Workspace(), line.root, [MESSAGES]), line.nodes)
    slot = found[MESSAGES].slot
    assert isinstance(slot, ListRoot)
    return slot


def test_the_cost_of_appending_does_not_grow() -> None:
    line = Line()
    rounds: list[list[int]] = []
    written = [0]
    for _ in range(200):
        appended(line, 32)
        rounds.append(line.asked)
        written.append(sum(map(len, line.nodes.values())))
    payload = sum(len(message(n)) for n in range(32))
    assert max(after - before for before, after in pairwise(written)) < 3 * payload
    assert written[-1] < 2 * 200 * payload
    assert max(map(sum, rounds)) <= 5
    root = messages_root(line)
    assert list_tree.size(root) == 6400
    assert root.child is not None
    assert root.child.height == 2


def test_every_item_knows_the_step_that_wrote_it() -> None:
    line = Line()
    appended(line, 320)
    line.append(
        EditMap((), ((MESSAGES, EditList((KeepRun(0, 100), ChangeItem(100, Set(message(7))), KeepRun(101, 219)))),))
    )
    line.append(EditMap((), ((MESSAGES, EditList((KeepRun(5, 315), KeepRun(0, 5)))),)))
    line.fold()
    ws = Workspace()
    root = messages_root(line)
    found = drive(list_tree.slice_items(ws, root, 90, 100), line.nodes)
    origins = [item.origin.seq for item in found]
    assert origins == [95, 96, 97, 98, 99, 320, 101, 102, 103, 104]
    assert drive(list_tree.slice_items(Workspace(), root, 0, 320), line.nodes)[-5:] == [
        ListItem(message(n), WrittenBy(0, n)) for n in range(5)
    ]
    with pytest.raises(CorruptError, match="are out of range: the list has 320"):
        drive(list_tree.slice_items(Workspace(), root, 0, 321), line.nodes)


def test_a_small_part_is_read_in_a_few_nodes() -> None:
    line = Line()
    appended(line, 32 * 200)
    asked: list[int] = []
    drive(list_tree.slice_items(Workspace(), messages_root(line), 3000, 3010), line.nodes, asked)
    assert sum(asked) <= 4


@given(histories(), st.data())
def test_a_folded_state_is_compared_with_a_packed_one(history: list[dict[str, Any]], data: st.DataObject) -> None:
    line = Line()
    line.append(diff_maps({}, pack_state(codec, history[0])))
    line.fold()
    before = drive(read(Workspace(), line.root), line.nodes)
    for state in history:
        after = pack_state(codec, state)
        edit = drive(diff_folded(Workspace(), line.root, after), line.nodes)
        assert flatten(apply_map(edit, before)) == codec.pack(state)
        assert (edit == EditMap()) == (codec.pack(state) == codec.pack(history[0]))


def test_a_cold_writer_reads_only_what_differs() -> None:
    line = Line()
    appended(line, 32 * 200)
    items = [message(n) for n in range(6400)]

    def asked(new: list[bytes]) -> tuple[Operation, int]:
        counts: list[int] = []
        edit = drive(diff_folded(Workspace(), line.root, {MESSAGES: new}), line.nodes, counts)
        return edit.put[0][1], sum(counts)

    edit, count = asked([*items, b"\x01"])
    assert edit == EditList((KeepRun(0, 6400), (b"\x01",)))
    assert count <= 6  # the state's leaf and the indexes of the list
    edit, count = asked([*items[:3000], b"\x01", *items[3000:]])
    assert edit == EditList((KeepRun(0, 3000), (b"\x01",), KeepRun(3000, 3400)))
    assert count <= 8
    edit, _ = asked([*items[:3000], b"\x01", *items[3001:]])
    assert edit == EditList((KeepRun(0, 3000), (b"\x01",), KeepRun(3001, 3399)))
    assert asked([b"\x02"])[0] == EditList(((b"\x02",),))


def test_folded_values_of_another_kind_now() -> None:
    line = Line()
    long = {str(i): "x" * 50 for i in range(100)}
    line.append(diff_maps({}, pack_state(codec, {"memory": long, "messages": [message(i) for i in range(99)]})))
    line.fold()
    for now in (
        {"memory": 1, "messages": 2},
        {"memory": [1], "messages": {}},
        {"memory": {**long, "1": 0}, "messages": []},
    ):
        edit = drive(diff_folded(Workspace(), line.root, pack_state(codec, now)), line.nodes)
        line.append(edit)
        assert line.state() == codec.pack(now)
        line.tail.clear()


@pytest.mark.parametrize(
    ("size", "seed"), mostly_nightly([(0, 1), (200, 2), (3000, 3), (20_000, 4)], daily=[(0, 1), (3000, 3)])
)
def test_many_random_edits_keep_trees_in_shape(size: int, seed: int) -> None:
    chance = random.Random(seed)
    line = Line()
    items = [codec.pack(i) for i in range(size)]
    line.append(EditMap((), ((MESSAGES, Set(flatten(list(items)))),)))
    for step in range(25):
        at = chance.randrange(len(items) + 1)
        end = min(len(items), at + chance.choice([0, 0, 1, 5, 200, 6000]))
        new = tuple(codec.pack((step, i)) for i in range(chance.choice([0, 1, 3, 90, 5000])))
        back = chance.randrange(end + 1)  # a run that was there is used once more
        parts = (KeepRun(0, at), new, KeepRun(end, len(items) - end), KeepRun(back, end - back))
        line.append(EditMap((), ((MESSAGES, EditList(tuple(part for part in parts if part))),)))
        items = [*items[:at], *new, *items[end:], *items[back:end]][:30_000]
        line.append(EditMap((), ((MESSAGES, EditList((KeepRun(0, len(items)),))),)))
        line.fold()
        assert list_tree.size(messages_root(line)) == len(items)
    root = messages_root(line)
    packed = drive(read(Workspace(), line.root), line.nodes)
    assert packed[MESSAGES] == items
    assert root.child is not None
    assert root.child.height <= 3


def test_loose_items_join_their_neighbours() -> None:
    line = Line()
    line.append(EditMap((), ((MESSAGES, Set(flatten([message(i) for i in range(40)]))),)))
    line.fold()
    for n in range(40, 60):
        line.append(EditMap((), ((MESSAGES, EditList(((message(n),), KeepRun(0, n)))),)))
        line.fold()
    ws = Workspace()
    root = messages_root(line)
    drive(ws.load_all([root.child] if root.child else []), line.nodes)
    assert len(ws.bottom(root.child)) == 1


def test_a_segment_is_not_too_heavy() -> None:
    line = Line()
    heavy = [codec.pack(str(i) * 30_000) for i in range(30)]
    line.append(EditMap((), ((MESSAGES, Set(flatten(list(heavy)))),)))
    line.fold()
    assert max(len(data) for data in line.nodes.values()) < 160_000
    assert drive(read(Workspace(), line.root), line.nodes)[MESSAGES] == heavy


MEMORY = codec.pack("memory")


def test_a_large_dict() -> None:
    line = Line()
    entries = {codec.pack(f"key {i:05}"): codec.pack(i) for i in range(20_000)}
    line.append(EditMap((), ((MEMORY, Set(flatten(dict(entries)))),)))
    line.fold()
    key = codec.pack("key 12345")
    line.append(EditMap((), ((MEMORY, EditMap((), ((key, Set(b"\xc0")),))),)))
    ws = line.fold()
    assert sum(map(len, ws.created.values())) < 10_000
    assert sum(line.asked) <= 5
    removed = tuple(entries)[:19_990]
    line.append(EditMap((), ((MEMORY, EditMap(removed)),)))
    line.fold()
    packed = drive(read(Workspace(), line.root), line.nodes)
    assert isinstance(packed[MEMORY], dict)
    assert list(packed[MEMORY]) == list(entries)[19_990:]
    line.append(EditMap((), ((MEMORY, EditMap(tuple(entries)[19_990:])),)))
    line.fold()
    assert drive(read(Workspace(), line.root), line.nodes)[MEMORY] == {}


def test_large_values_lie_aside() -> None:
    line = Line()
    text = "0123456789" * 20_000
    big = codec.pack(text)
    line.append(EditMap((), ((MEMORY, Set(big)), (MESSAGES, Set(flatten([big, b"\x01"]))))))
    line.fold()
    assert list(line.objects.values()) == [big]
    packed = drive(read(Workspace(), line.root), line.nodes)
    assert packed[MEMORY] == large_pointers.pointer_to(big, NO_SALT).encode()
    line.append(EditMap((), ((MEMORY, EditText((KeepRun(0, 200_000), b"more"))),)))
    change = ChangeItem(0, EditText((KeepRun(0, 10),)))
    line.append(EditMap((), ((MESSAGES, EditList((change, KeepRun(1, 1)))),)))
    line.fold()
    assert line.state() == codec.pack({"memory": text + "more", "messages": ["0123456789", 1]})
    assert max(len(data) for data in line.nodes.values()) < 1000


MISFITS: list[Any] = [
    EditMap((b"\xa1x",)),
    EditMap((), (), (b"\xa1x",)),
    EditMap((), ((b"\xa1x", EditList(())),)),
    EditMap((), ((MESSAGES, EditMap()),)),
    EditMap((), ((MESSAGES, EditText(())),)),
    EditMap((), ((MESSAGES, EditList((KeepRun(0, 99),))),)),
    EditMap((), ((MEMORY, EditList(())),)),
]


def test_steps_that_do_not_fit(subtests: pytest.Subtests) -> None:
    for edit in MISFITS:
        with case(subtests, edit):
            line = Line()
            appended(line, 32)
            line.append(EditMap((), ((MEMORY, Set(b"\x01")),)))
            line.append(edit)
            with pytest.raises(CorruptError):
                line.fold()


def child_of(node: SegmentNode | LeafNode | IndexNode, height: int, size: int) -> tuple[ChildRef, dict[bytes, bytes]]:
    id, data = encode_node(node, NO_SALT)
    return ChildRef(id, height, size, b"d", b"\x01z"), {id: data}


HERE = WrittenBy(0, 0)


def test_nodes_of_the_wrong_kind() -> None:
    segment, nodes = child_of(SegmentNode.of((ListItem(b"\x01", HERE),)), 0, 1)
    with pytest.raises(CorruptError, match="not of the kind"):
        drive(read(Workspace(), MapRoot(segment, 1)), nodes)
    with pytest.raises(CorruptError, match="not of the kind"):
        drive(read(Workspace(), MapRoot(segment._replace(height=1), 1)), nodes)
    leaf, nodes = child_of(LeafNode((MapEntry(b"\xa1a", 0, b"\x01", HERE),)), 0, 1)
    ws = Workspace()
    drive(ws.load_all([leaf]), nodes)
    with pytest.raises(CorruptError, match="not of the kind"):
        list_tree.items(ws, ListRoot(leaf))
    tall, more = child_of(IndexNode((leaf._replace(height=3),)), 1, 1)
    with pytest.raises(CorruptError, match="not of the kind"):
        drive(read(Workspace(), MapRoot(tall, 1)), nodes | more)


def test_forged_trees_do_not_grow_without_bound() -> None:
    child, nodes = child_of(SegmentNode.of(tuple(ListItem(b"\x01", HERE) for _ in range(64))), 0, 64)
    for height in range(1, 5):
        child, more = child_of(IndexNode((child,) * 64), height, 64 * child.size)
        nodes |= more
    leaf, more = child_of(LeafNode((MapEntry(b"\xa1l", 0, ListRoot(child), HERE),)), 0, 1)
    with pytest.raises(TooLargeError, match="holds more than"):
        drive(read(Workspace(), MapRoot(leaf, 1)), nodes | more)
    lying, more = child_of(IndexNode((leaf, leaf)), 1, 3)
    with pytest.raises(CorruptError, match="not of the kind"):
        drive(read(Workspace(), MapRoot(lying, 1)), nodes | more)
    slot = MapRoot(None, 0)
    nodes = {}
    for _ in range(300):
        leaf, more = child_of(LeafNode((MapEntry(b"\xa1d", 0, slot, HERE),)), 0, 1)
        nodes |= more
        slot = MapRoot(leaf, 1)
    with pytest.raises(TooDeepError, match="levels deep"):
        drive(read(Workspace(), slot), nodes)


def test_nodes_that_are_missing_or_altered() -> None:
    leaf, nodes = child_of(LeafNode((MapEntry(b"\xa1a", 0, b"\x01", HERE),)), 0, 1)
    with pytest.raises(CorruptError, match="a node is missing"):
        drive(read(Workspace(), MapRoot(leaf, 1)), {})
    ((id, data),) = nodes.items()
    check_node(id, data, NO_SALT)
    with pytest.raises(CorruptError, match="not the one its id names"):
        check_node(id, data + b"\x00", NO_SALT)
    with pytest.raises(CorruptError, match="a node is malformed"):
        drive(read(Workspace(), MapRoot(leaf, 1)), {id: data + b"\x00"})


def test_stored_forms() -> None:
    child = ChildRef(b"i" * 20, 0, 1, b"d" * 20, b"\x01a")
    for node in (
        SegmentNode.of((ListItem(b"\x01", HERE), ListItem(b"\x02", WrittenBy(3, 4)))),
        LeafNode(
            (
                MapEntry(b"\xa1a", 0, b"\x01", HERE),
                MapEntry(b"\xa1b", 2, ListRoot(child), HERE),
                MapEntry(b"\xa1c", 3, ListRoot(None), HERE),
            )
        ),
        LeafNode((MapEntry(b"\xa1a", 0, MapRoot(child, 5), HERE), MapEntry(b"\xa1b", 1, MapRoot(None, 0), HERE))),
        IndexNode((child, child)),
    ):
        assert decode_node(*encode_node(node, NO_SALT)) == node


NO_NODES: list[Any] = [
    None, [], [9], [0], [0, [1], [0, 0]], [0, [b""], [-1, 0]], [1, [b""], [0], [[7]], [0, 0]],
    [1, [b""], [0], [[1, [1]]], [0, 0]], [2, [[b"", 0, 0, b"", "x"]]], [2, [[b"", True, 0, b"", b""]]], "\ud800",
]  # fmt: skip


def test_what_is_no_node(subtests: pytest.Subtests) -> None:
    for value in NO_NODES:
        with case(subtests, value):
            data = codec.pack(value)
            with pytest.raises(CorruptError):
                decode_node(hashlib.sha256(data).digest()[:20], data)
            with pytest.raises(CorruptError):
                decode_root(data)


def test_a_root_is_a_dict() -> None:
    with pytest.raises(CorruptError, match="the root of a state"):
        decode_root(codec.pack([0, b"\x01"]))


def test_keys_sort_by_text() -> None:
    names = ["", "a", "aa", "b", "z" * 300, "é"]
    assert sorted(map(codec.pack, reversed(names)), key=sort_key) == list(map(codec.pack, names))
    assert sort_key(codec.pack(5)) < sort_key(codec.pack(""))
