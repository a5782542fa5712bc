"""Random and mutated bytes into every decoder: a value, or a typed error, and nothing else.

Here are the targets of the codec and of the model; `test_fuzz_formats` has those of the other formats, and finds the
readers of stored bytes that no target reaches. The examples are the same each day, and new ones each night.
"""

import collections
import contextlib
import datetime as dt
import decimal
import fractions
import hashlib
import inspect
import os
import re
import time
import uuid
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from msgspec.msgpack import encode

from holdfast.codec import Codec, OpaqueValue, json_codec, msgpack, plain_json
from holdfast.codec.compression import Compression, compress, decompress
from holdfast.codec.envelope import RecordContext, expose, protect, unwrap, wrap
from holdfast.codec.tags import Tag
from holdfast.engine.model import node_lookup
from holdfast.engine.model.large_pointers import LargePointer, parse_pointer
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
    decode_node,
    decode_root,
    encode_node,
    encode_root,
)
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    Operation,
    Set,
    apply,
    decode_operation,
    encode_operation,
)
from holdfast.engine.model.operators import Rule
from holdfast.engine.model.packed_state import Packed, flatten
from holdfast.engine.model.steps import Step, StepHeader, StepParent, decode_edit, decode_writes, without_recordings
from holdfast.engine.model.workspace import Rounds
from holdfast.engine.text_index.extract import ChannelsAroundEdit, texts
from holdfast.errors import CorruptError, HoldfastError
from holdfast.security.sensitive.packed_values import replace_texts, texts_of
from tests.codec import gadgets
from tests.support.nightly import by_day

SECONDS = float(os.environ.get("HOLDFAST_FUZZ_SECONDS", "600"))

codec = Codec(max_bytes=1 << 20)
CONTEXT = RecordContext("steps", ("tenant", "line", 0, 7), ("id", b"hash"))

VALUES: list[Any] = [
    *(None, True, -1, 1.5, "text", b"bytes", [1, [2, {"a": None}]], {"k": [1, 2], 3: {}}, (1, (2,)), {1, "a"}),
    *(frozenset([1]), {(1,): 2}, 1 << 70, "\ud800", bytearray(b"x"), 1j, range(3), decimal.Decimal("1.5")),
    *(uuid.UUID(int=5), dt.datetime(2020, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1), "x")), dt.date(2020, 1, 2)),
    *(dt.time(1, 2, fold=1), dt.timedelta(1), PurePosixPath("a/b"), re.compile("a+", re.I), fractions.Fraction(1, 3)),
    *(collections.deque([1], 3), collections.defaultdict(list, a=[1]), collections.OrderedDict(a=1)),
    *(collections.Counter("aab"), gadgets.Quiet(1), gadgets.OpenModel(x=1, other=2), gadgets.Pair(1)),  # type: ignore[call-arg]
    *(gadgets.PlainBits.A | gadgets.PlainBits.B, gadgets.Color.A, ValueError("a", 1), OSError(2, "x", "f")),
    *(HumanMessage("x", id="1"), AIMessage("y", tool_calls=[{"name": "t", "args": {}, "id": "1"}]), [None, 1, {}]),
    *(
        ToolMessage("z", tool_call_id="1", artifact=(1, 2)),
        OpaqueValue(99, b"abc"),
        [HumanMessage("in a list")],
        list,
        [b""],
        float("nan"),
        np.array([1.5, 2.5]),
    ),
]
DOCUMENTS = [codec.pack(value) for value in VALUES]

ORIGIN = WrittenBy(0, 1)
CHILD = ChildRef(b"i" * 20, 0, 1, b"d" * 20, b"last")
NODES = [
    encode_node(node, NO_SALT)[1]
    for node in (
        SegmentNode.of((ListItem(b"\x01", ORIGIN), ListItem(b"\xa1x", ORIGIN))),
        LeafNode((MapEntry(b"\xa1k", 0, b"\x01", ORIGIN), MapEntry(b"\xa1l", 1, ListRoot(CHILD), ORIGIN))),
        LeafNode((MapEntry(b"\xa1m", 2, MapRoot(CHILD, 3), ORIGIN),)),
        IndexNode((CHILD, CHILD)),
    )
]
ROOTS = [encode_root(MapRoot(None, 0)), encode_root(MapRoot(CHILD, 7)), encode_root(MapRoot(CHILD, 7), b"step")]
OPERATIONS = [
    encode_operation(operation)
    for operation in (
        Set(b"\x01"),
        EditList((KeepRun(0, 1), (b"\x01", b"\xa1x"), ChangeItem(1, Set(b"\x02")))),
        EditList((ChangeItem(0, EditText((KeepRun(0, 1), b"y"))),)),
        EditMap((b"\xa1a",), ((b"\xa1b", Set(b"\x90")), (b"\xa1c", EditList(((b"\x01",),)))), (b"\xa1b",)),
        EditText((KeepRun(0, 2), b"new", KeepRun(1, 1))),
        Combine(Rule.INCREMENT, b"\x05"),
        Combine(Rule.APPEND, b"\x92\x01\x02"),
        Combine(Rule.ADD_TO_SET, codec.pack({1, "x"})),
        Combine(Rule.MAX, b"\xa1x"),
    )
]
PARENT = StepParent(0, 1, b"h" * 32)
STEPS = [
    Step(StepHeader("id", (PARENT,), 5, "stamp"), EditMap((), ((b"\xa1a", Set(b"\x01")),))).encode(),
    Step(StepHeader("")).encode(),
]
RECORDS = [
    *(protect(wrap(b"content" * 50, compression=how, schema="3"), CONTEXT) for how in (*Compression, None)),
    protect(wrap(b""), CONTEXT),
    protect(b"", CONTEXT),
]
BODIES = [compress(b"content" * 50, how)[1] for how in Compression]
POINTERS = [LargePointer(5, b"s" * 16, b"d" * 32).encode()]

INTERESTING = [
    *(bytes([byte]) for byte in (0x00, 0x01, 0x7F, 0x80, 0x81, 0x90, 0x91, 0x93, 0x9F, 0xA0, 0xC0, 0xC1, 0xD4, 0xFF)),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\x00\x00\x00\x00", b"\xc7\x00\x30", b"\xc7\x00\x01"),
    *(b"\x93\xc0", b"\xc1\xc1", b"\xd4\xff\x00", b"\x91" * 70, b"\x81\x00" * 70, b"\x91" * 1500),
    *(encode("builtins:ValueError"), encode(2**64 - 1), encode(-1)),
]


def mutate(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Documents with bytes flipped, cut out, put in, and parts of others spliced in."""
    place = st.floats(0, 1)
    insert = st.one_of(st.binary(max_size=8), st.sampled_from(INTERESTING), st.sampled_from(seeds))
    change = st.tuples(st.sampled_from(["flip", "cut", "insert", "splice", "repeat"]), place, place, insert)

    def changed(data: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
        for kind, one, other, new in changes:
            at, to = int(one * len(data)), int(other * len(data))
            if kind == "flip" and data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ 1 << int(other * 7)]) + data[at + 1 :]
            elif kind == "cut":
                data = data[: min(at, to)] + data[max(at, to) :]
            elif kind == "insert":
                data = data[:at] + new + data[at:]
            elif kind == "splice":
                data = data[:at] + new[int(other * len(new)) :]
            elif kind == "repeat" and len(data) < 10_000:
                data = data[:at] + data[min(at, to) : max(at, to)] * 3 + data[at:]
        return data

    return st.builds(changed, st.sampled_from(seeds), st.lists(change, max_size=4)) | st.binary(max_size=200)


def mutate_typed(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """The same, and well-formed typed values with any payload, in each other."""
    tags = st.integers(0, 63)

    def grow(inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        lists = st.lists(inside, max_size=5)
        return st.one_of(
            st.builds(msgpack.ext, tags, inside),
            st.builds(lambda tag, parts: msgpack.ext(tag, msgpack.join_array(parts)), tags, lists),
            lists.map(msgpack.join_array),
            st.lists(st.tuples(inside, inside), max_size=3).map(msgpack.join_map),
            st.builds(
                lambda tag, name, parts: msgpack.ext(tag, msgpack.join_array([name, *parts])),
                st.integers(32, 48),
                NAMES,
                lists,
            ),
        )

    leaves = st.one_of(st.sampled_from([msgpack.inner(seed) for seed in seeds]), st.sampled_from(INTERESTING), NAMES)
    return mutate(seeds) | st.recursive(leaves, grow, max_leaves=12)


NAMES = st.sampled_from(
    [
        *(encode(name) for name in gadgets.QUIET_NAMES + gadgets.NEVER_NAMES),
        *(encode(f"builtins:{name}") for name in ("ValueError", "OSError", "ImportError", "ExceptionGroup", "list")),
        *(encode(name) for name in ("langchain_core.messages.human:HumanMessage", "re:RegexFlag")),
        *(encode(name) for name in ("x", "args", "attributes", "A")),
    ]
)


# What is called with the bytes --------------------------------------------------------------------------------


def fuzz_codec(data: bytes) -> None:
    value = codec.unpack(data)
    packed = codec.pack(value)
    again = codec.unpack(packed)
    assert type(again) is type(value)
    assert codec.pack(again) == packed
    repr(value)


def fuzz_items(data: bytes) -> None:
    value = codec.unpack(msgpack.join_array([data, data]))
    packed = codec.pack_items(value)
    assert codec.pack_items(codec.unpack_items(packed)) == packed


def fuzz_envelope(data: bytes) -> None:
    unwrap(expose(data, CONTEXT), max_bytes=1 << 20)


def fuzz_envelope_with_checksum(data: bytes) -> None:
    """A forger computes the checksum anew."""
    record = expose(protect(data[:-16], CONTEXT), CONTEXT)
    unwrap(record, max_bytes=1 << 20)


def fuzz_compression(data: bytes) -> None:
    for how in (0, 1, 2, 3):
        for size in (0, len(data), 350, 1 << 20):
            try:
                assert len(decompress(how, data, size, 1 << 20)) == size
            except HoldfastError:
                continue


def fuzz_operation(data: bytes) -> None:
    operation = decode_operation(data)
    assert decode_operation(encode_operation(operation)) == operation
    values: list[Packed | None] = [None, b"", b"\xc1", *DOCUMENTS, [b"\xa5hello", b"\x90", b""]]
    values.append({b"\xa1a": b"\x01", b"\xa1c": [b"\x02"]})
    for packed in values:
        try:
            flatten(apply(operation, packed))
        except HoldfastError:
            continue


def fuzz_operation_on_forged_value(data: bytes) -> None:
    for stored in OPERATIONS:
        values: list[Packed] = [data, [data, data], {b"\xa1a": data, b"\xa1c": data}]
        for packed in values:
            try:
                flatten(apply(decode_operation(stored), packed))
            except HoldfastError:
                continue


def fuzz_step(data: bytes) -> None:
    for read in (decode_edit, decode_writes, without_recordings):
        read(data)
    step = Step.decode(data, "id")
    assert Step.decode(step.encode(), "id") == step


def fuzz_node(data: bytes) -> None:
    node = decode_node(hashlib.sha256(data).digest()[:20], data)
    id, stored = encode_node(node, NO_SALT)
    assert decode_node(id, stored) == node


def fuzz_node_lookup(data: bytes) -> None:
    for height in (0, 1):
        root = MapRoot(CHILD._replace(height=height), 1)
        rounds: list[Rounds[Any]] = [node_lookup.find(root, b"\xa1k", {}), node_lookup.count(root, b"")]
        for each in (*rounds, node_lookup.entries(root, b"", bool)):
            with contextlib.suppress(HoldfastError, StopIteration):
                ids = next(each)
                while True:
                    ids = each.send(dict.fromkeys(ids, data))


def fuzz_root(data: bytes) -> None:
    root = decode_root(data)
    assert decode_root(encode_root(*root)) == root


def fuzz_pointer(data: bytes) -> None:
    assert parse_pointer(data).encode() == data


def fuzz_packed_functions(data: bytes) -> None:
    """Every public function of the module of packed values that takes bytes."""
    for function in packed_functions():
        _, *others = inspect.signature(function).parameters.values()
        required = [each for each in others if each.default is each.empty]
        assert {each.annotation for each in required} <= {"int"}, f"give {function.__name__} what it needs"
        for number in (0, 1, len(data), len(data) + 1) if required else (0,):
            with contextlib.suppress(HoldfastError):
                function(data, *[number] * len(required))


def packed_functions() -> list[Callable[..., Any]]:
    functions = [each for name, each in vars(msgpack).items() if inspect.isfunction(each) and not name.startswith("_")]
    own = [each for each in functions if each.__module__ == msgpack.__name__]
    return [each for each in own if next(iter(inspect.get_annotations(each).values())) == "bytes"]


def fuzz_opaque(data: bytes) -> None:
    for tag in range(64):
        value = OpaqueValue(tag, data)
        repr(value.fields)
        repr(value)


def fuzz_json_forms(data: bytes) -> None:
    plain_json.to_plain(data)
    tree = json_codec.to_json(data)
    assert json_codec.to_json(json_codec.from_json(tree)) == tree


def fuzz_texts(data: bytes) -> None:
    """A forged value in each place of an edit that is indexed, and searched for what must not be stored."""
    role: dict[bytes, Packed] = {b"\xa4role": data}
    name = b"\xa1a"
    inside = EditMap((), ((b"\xa4type", Set(data)), (b"\xa1t", EditText((KeepRun(0, 1), b"y")))))
    edits: list[tuple[Operation, Packed]] = [
        (Set(data), data),
        (inside, {**role, b"\xa1t": data}),
        (EditMap((), ((data, inside),)), {data: role}),
        (EditList((ChangeItem(0, inside), (data,))), [data, data]),
    ]
    for operation, now in edits:
        for before in (None, data):
            around = ChannelsAroundEdit({} if before is None else {name: before}, {name: now})
            with contextlib.suppress(HoldfastError):
                list(texts(EditMap((), ((name, operation),)), around, lambda _: data))
    texts_of(data)
    for in_bytes in (False, True):
        replace_texts(data, (), "", lambda _path, _name, text: text, in_bytes=in_bytes)


class Target(NamedTuple):
    """A reader of bytes, and what it can read: it returns or raises an error of Holdfast, whatever the bytes are."""

    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    forge: Callable[[list[bytes]], st.SearchStrategy[bytes]] = mutate

    def attack(self) -> Callable[[], None]:
        """Return the test with forged bytes."""

        @given(self.forge(self.seeds()))
        def one(data: bytes) -> None:
            start = time.process_time()
            with contextlib.suppress(HoldfastError):
                self.read(data)
            assert time.process_time() - start < 5, f"{len(data)} bytes took too long"

        return one


TARGETS = {
    "codec": Target(fuzz_codec, lambda: DOCUMENTS, mutate_typed),
    "items": Target(fuzz_items, lambda: DOCUMENTS, mutate_typed),
    "packed values": Target(fuzz_packed_functions, lambda: DOCUMENTS, mutate_typed),
    "value of an unknown class": Target(fuzz_opaque, lambda: DOCUMENTS, mutate_typed),
    "JSON forms": Target(fuzz_json_forms, lambda: DOCUMENTS, mutate_typed),
    "texts of a value": Target(fuzz_texts, lambda: DOCUMENTS, mutate_typed),
    "envelope": Target(fuzz_envelope, lambda: RECORDS),
    "envelope with its checksum": Target(fuzz_envelope_with_checksum, lambda: RECORDS),
    "compression": Target(fuzz_compression, lambda: BODIES),
    "operation": Target(fuzz_operation, lambda: OPERATIONS),
    "operation on a forged value": Target(fuzz_operation_on_forged_value, lambda: DOCUMENTS, mutate_typed),
    "step": Target(fuzz_step, lambda: STEPS),
    "node": Target(fuzz_node, lambda: NODES),
    "lookup in a node": Target(fuzz_node_lookup, lambda: NODES),
    "root": Target(fuzz_root, lambda: ROOTS),
    "pointer": Target(fuzz_pointer, lambda: POINTERS),
}

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
BY_DAY = settings(QUICK, derandomize=True, database=None)
EVERYDAY = by_day(100, 25)
"""How many inputs of a format the ordinary run tries."""
BY_NIGHT = settings(QUICK, derandomize=False)


@pytest.mark.parametrize(("profile", "same"), [("everyday", True), ("nightly", False), ("torture", False)])
def test_the_night_draws_new_examples_also_where_ci_is_set(profile: str, same: bool) -> None:
    assert settings.get_profile(profile).derandomize is same


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_give_a_value_or_a_typed_error(name: str) -> None:
    settings(BY_DAY, max_examples=EVERYDAY)(TARGETS[name].attack())()


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_new_bytes_give_a_value_or_a_typed_error(name: str) -> None:
    settings(BY_NIGHT, max_examples=1000)(TARGETS[name].attack())()


@pytest.mark.torture
@pytest.mark.parametrize("name", TARGETS)
def test_bytes_give_a_value_or_a_typed_error_for_long(name: str) -> None:
    end = time.monotonic() + SECONDS / len(TARGETS)
    while time.monotonic() < end:
        settings(BY_NIGHT, max_examples=1000, database=None)(TARGETS[name].attack())()


CUT_OFF = (b"", *(bytes([first]) + rest for first in range(256) for rest in (b"", b"\0", b"\xff", b"\0\0\0\1")))
"""Every first byte of a value, with nothing after it, or too little."""


def test_packed_bytes_that_are_cut_off_are_corrupt() -> None:
    for data in CUT_OFF:
        with contextlib.suppress(HoldfastError):
            fuzz_packed_functions(data)
    for data in (b"\xc7", b"\xc8\0", b"\xc9\0\0", b"\xd4"):
        with pytest.raises(CorruptError, match="end in the middle"):
            msgpack.split_ext(data)
    for data in (b"", b"\xc0", b"\x90"):
        with pytest.raises(CorruptError, match="neither a string nor bytes"):
            msgpack.content(data)
    assert not any(
        test(b"") for test in (msgpack.is_array, msgpack.is_map, msgpack.is_str, msgpack.is_bin, msgpack.is_ext)
    )
    assert msgpack.last_bin(b"\xc6\0", 0) is None
    assert msgpack.top(b"") == b""


def test_a_text_that_is_none_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="a packed text has bytes that are not text"):
        replace_texts(msgpack.ext(Tag.STR, b"\x80"), (), "", lambda _path, _name, text: text)
