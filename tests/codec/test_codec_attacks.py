"""Forged bytes and hostile classes: nothing runs, nothing is imported, nothing grows without bound."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import gc
import importlib.util
import ipaddress
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time
import types
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec
import ormsgpack
import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from msgspec.msgpack import encode

from holdfast import _hints  # noqa: F401 - else the first class that is read would load it
from holdfast.codec import Codec, OpaqueValue, msgpack
from holdfast.codec.compression import Compression, compress, decompress
from holdfast.codec.envelope import RecordContext, expose, protect, unwrap, wrap
from holdfast.codec.packer import MAX_VALUES
from holdfast.codec.tags import Tag
from holdfast.errors import CorruptError, HoldfastError, TooDeepError, TooLargeError, UnsupportedError
from tests.codec import gadgets
from tests.codec.gadgets import RAN
from tests.support.cases import case
from tests.support.nightly import by_day, mostly_nightly

codec = Codec()
ROOT = Path(__file__).parents[2]
HERE = gadgets.__name__
NONE = encode(None)


# Forging ------------------------------------------------------------------------------------------------------


def array_of(*parts: bytes) -> bytes:
    return msgpack.join_array(parts)


def map_of(**parts: bytes) -> bytes:
    return msgpack.join_map([(encode(name), part) for name, part in parts.items()])


def forge(tag: int, *parts: bytes) -> bytes:
    """A typed value whose payload is a list of these packed parts."""
    return msgpack.ext(tag, array_of(*parts))


def big(value: int) -> bytes:
    return msgpack.ext(Tag.INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def imported() -> tuple[int, str]:
    """How many modules are loaded, and which is the newest: comparing all of them takes much longer than reading."""
    return len(sys.modules), next(reversed(sys.modules))


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Collect gadgets that other tests left in reference cycles: `__del__` would run in the middle of a read."""
    gc.collect()


def read(data: bytes) -> Any:
    """What the bytes hold, or the typed error; fails if anything of the gadgets ran or was imported."""
    before = imported()
    RAN.clear()
    value: Any
    try:
        value = codec.unpack(data)
    except HoldfastError as error:
        value = error
    ran = list(RAN)
    assert ran == []
    assert imported() == before
    if type(value) is OpaqueValue:
        assert codec.pack(value) == msgpack.top(msgpack.inner(data))
        assert codec.pack([value]) == b"\x91" + msgpack.inner(data)
        assert RAN == []
    return value


def stays_shut(data: bytes) -> None:
    value = read(data)
    assert type(value) is OpaqueValue or isinstance(value, CorruptError)
    del value
    assert RAN == []


FIELDS = (
    b"\x80",
    map_of(x=b"\x01"),
    map_of(x=b"\x01", y=b"\x02"),
    map_of(y=b"\x01"),
    map_of(__class__=encode("x"), __dict__=b"\x80"),
    map_of(__init__=NONE, __post_init__=NONE, __reduce__=NONE, model_post_init=NONE),
    map_of(x=encode("not an int"), __setattr__=b"\x80"),
    map_of(args=array_of(b"\x01", b"\x02"), attributes=map_of(x=b"\x01", __class__=b"\x01", __traceback__=b"\x01")),
    map_of(args=array_of(encode("m")), attributes=b"\x80", native=map_of(name=encode("n")), suppress=encode(True)),
    map_of(args=b"\x90", attributes=b"\x80", native=map_of(__class__=b"\x01", with_traceback=b"\x01")),
    map_of(
        args=b"\x90",
        attributes=b"\x80",
        cause=forge(Tag.EXCEPTION, encode("builtins:ValueError"), map_of(args=b"\x90", attributes=b"\x80")),
    ),
)


def naming(ref: str) -> Iterator[bytes]:
    """Everything that bytes can say about a class, under every tag that names one."""
    name = encode(ref)
    for tag in (Tag.DATACLASS, Tag.ATTRS, Tag.NAMEDTUPLE, Tag.EXCEPTION, Tag.REGISTERED):
        yield from (forge(tag, name, fields) for fields in FIELDS)
    for tag in (Tag.PYDANTIC, Tag.PYDANTIC_V1):
        for fields in FIELDS:
            yield forge(tag, name, fields, b"\x01", NONE, NONE)
            yield forge(tag, name, fields, b"\xff", map_of(extra=b"\x01"), map_of(_private=b"\x01", __class__=NONE))
            yield forge(tag, name, fields, b"\x01", NONE, NONE, array_of(encode("stranger")))
    yield from (forge(Tag.ENUM, name, encode(member)) for member in ("A", "_missing_", "__class__", "mro", ""))
    yield from (forge(Tag.FLAG, name, encode(value)) for value in (0, 3, 64, -1))
    yield msgpack.ext(Tag.REFERENCE, name)


# Classes ------------------------------------------------------------------------------------------------------


def test_active_classes_are_never_revived(subtests: pytest.Subtests) -> None:
    for ref in gadgets.NEVER_NAMES:
        with case(subtests, ref):
            for data in naming(ref):
                stays_shut(data)


def test_nothing_of_a_data_class_runs(subtests: pytest.Subtests) -> None:
    for ref in gadgets.QUIET_NAMES:
        with case(subtests, ref):
            for data in naming(ref):
                read(data)


NOT_REVIVABLE: list[Any] = [
    *(lambda: gadgets.Calls(), lambda: gadgets.Deletes(), lambda: gadgets.GetsMissing(), lambda: gadgets.GetsAll()),
    *(lambda: gadgets.CallableModel(), lambda: gadgets.CallableTuple(1), lambda: gadgets.CallableEnum.A),
    *(
        lambda: gadgets.DeletedError(),
        lambda: gadgets.CallableAttrs(),
        lambda: gadgets.Plain(),
        lambda: gadgets.AList(),
    ),
    *(
        lambda: gadgets.Search(),
        lambda: gadgets.Handler(),
        lambda: gadgets.DataHandler(),
        lambda: gadgets.TrustsALiar(),
    ),
    *(
        lambda: gadgets.Renamed(),
        lambda: gadgets.Alias(),
        lambda: gadgets.make_local()(),
        lambda: gadgets.FieldIsProperty(1),
    ),
    *(lambda: gadgets.Calls, lambda: gadgets.trip, lambda: len, lambda: sys, lambda: [].append, lambda: iter([])),
]


def test_values_that_could_not_be_revived_are_not_written(subtests: pytest.Subtests) -> None:
    for number, make in enumerate(NOT_REVIVABLE):
        value = make()
        with case(subtests, number, type(value).__name__), pytest.raises(UnsupportedError, match=r"plan\.steps\[1\]"):
            codec.pack({"plan": {"steps": [0, value]}})


OPERANDS = {"operand": map_of(x=NONE), "impostor": map_of(x=NONE)}
PAYLOADS: dict[Tag, tuple[bytes, ...]] = {
    Tag.TUPLE: (NONE,),
    Tag.RANGE: (b"\x01", b"\x02", b"\x03"),
    Tag.FRACTION: (b"\x01", b"\x02"),
    Tag.DATETIME: (encode("2020-01-01T00:00:00"), NONE, b"\x00"),
    Tag.TIME: (encode("00:00:00"), NONE, b"\x00"),
    Tag.TIMEDELTA: (b"\x00", b"\x00", b"\x00"),
    Tag.TIMEZONE: (forge(Tag.TIMEDELTA, b"\x00", b"\x00", b"\x00"), encode("name")),
    Tag.PATH: (encode("pure posix"), encode("a/b")),
    Tag.REGEX: (encode("a"), b"\x00"),
    Tag.DEQUE: (NONE, b"\x90"),
    Tag.DEFAULTDICT: (NONE, b"\x80"),
    Tag.IPADDRESS: (b"\x00", encode("127.0.0.1")),
    Tag.DATACLASS: (encode(f"{HERE}:Quiet"), map_of(x=b"\x01")),
    Tag.ATTRS: (encode(f"{HERE}:Converted"), map_of(x=b"\x01")),
    Tag.PYDANTIC: (encode(f"{HERE}:OpenModel"), map_of(x=b"\x01"), b"\x01", NONE, NONE, array_of(encode("s"))),
    Tag.PYDANTIC_V1: (encode(f"{HERE}:OldModel"), map_of(x=b"\x01"), b"\x01", NONE, NONE, array_of(encode("s"))),
    Tag.NAMEDTUPLE: (encode(f"{HERE}:Pair"), map_of(x=b"\x01", y=b"\x02")),
    Tag.ENUM: (encode(f"{HERE}:Color"), encode("A")),
    Tag.FLAG: (encode(f"{HERE}:PlainBits"), b"\x03"),
    Tag.EXCEPTION: (encode("builtins:ValueError"), map_of(args=b"\x90", attributes=b"\x80")),
    Tag.REGISTERED: (encode("nothing"), NONE),
    Tag.SHAPED: (NONE, b"\x01", b"\x80"),
}


def operand(name: str) -> bytes:
    return forge(Tag.DATACLASS, encode(f"{HERE}:{name}"), map_of(x=NONE))


def test_an_object_of_the_wrong_type_is_not_used(subtests: pytest.Subtests) -> None:
    for name in ["Operand", "Impostor"]:
        for tag in list(PAYLOADS):
            with case(subtests, tag.name, name):
                parts = PAYLOADS[tag]
                read(msgpack.ext(tag, operand(name)))
                for i in range(len(parts)):
                    read(forge(tag, *parts[:i], operand(name), *parts[i + 1 :]))
                    read(forge(tag, *parts[:i], array_of(operand(name)), *parts[i + 1 :]))
                read(forge(tag, *parts, operand(name)))


def test_an_object_of_the_wrong_type_in_an_exception_is_not_used(subtests: pytest.Subtests) -> None:
    for name in ["Operand", "Impostor"]:
        for part in ["args", "attributes", "native", "cause", "context", "suppress"]:
            for cls in ["ValueError", "ImportError", "OSError", "ExceptionGroup", "UnicodeDecodeError"]:
                with case(subtests, name, part, cls):
                    fields = {"args": b"\x90", "attributes": b"\x80", part: operand(name)}
                    read(forge(Tag.EXCEPTION, encode(f"builtins:{cls}"), map_of(**fields)))


def test_an_object_as_a_whole_payload_is_not_used(subtests: pytest.Subtests) -> None:
    for tag in [tag for tag in Tag if tag < Tag.NDARRAY]:
        with case(subtests, tag.name):
            read(msgpack.ext(tag, operand("Operand")))
            read(msgpack.ext(tag, array_of(array_of(operand("Operand")))))


def test_an_object_as_the_fields_of_a_message_is_not_used() -> None:
    assert HumanMessage("loaded").content == "loaded"
    for number in (b"\x01", b"\x02", b"\x0f", b"\x11", b"\x14"):
        read(array_of(NONE, number, operand("Operand")))
        read(msgpack.ext(Tag.SHAPED, array_of(NONE, number, operand("Operand"))))
    read(array_of(NONE, operand("Operand"), b"\x80"))


def test_of_a_key_only_hash_and_equality_run() -> None:
    """A dict or a set needs the hash of its keys; that is all an object gets to run, and its failure is an error."""
    for data in (msgpack.ext(Tag.SET, array_of(operand("Operand"))), b"\x81" + operand("Operand") + b"\x01"):
        RAN.clear()
        codec.unpack(data)
        assert set(RAN) <= {"__hash__", "__eq__"}
    bad = operand("BadKey")
    for tag in (Tag.SET, Tag.FROZENSET):
        with pytest.raises(CorruptError):
            codec.unpack(msgpack.ext(tag, array_of(bad)))
    with pytest.raises(CorruptError):
        codec.unpack(b"\x81" + bad + b"\x01")


FORGED_FIELDS: list[Any] = [OPERANDS["operand"], b"\x80", map_of(content=b"\x01"), b"\x90", b"\x01", NONE]


def test_forged_shapes(subtests: pytest.Subtests) -> None:
    for fields in FORGED_FIELDS:
        for number in [*range(22), 255, -1]:
            with case(subtests, fields, number):
                data = array_of(NONE, encode(number), fields)
                read(data)
                read(msgpack.ext(Tag.SHAPED, data))


FORGED_SHAPES: list[Any] = [
    array_of(b"\x01", b"\x63", b"\x80"),
    b"\xdc\x00\x03" + NONE + b"\x63\x80",
    array_of(NONE, b"\x63"),
    array_of(NONE, b"\x63", b"\x80", b"\x80"),
    array_of(NONE, b"\x90", b"\x80"),
    b"\x01",
    b"",
    b"\xc1\xc1" + bytes(40),
]


def test_a_forged_shape_is_not_another_value_once_saved_again(subtests: pytest.Subtests) -> None:
    for payload in FORGED_SHAPES:
        with case(subtests, payload):
            data = array_of(msgpack.ext(Tag.SHAPED, payload))
            try:
                value = codec.unpack(data)
            except CorruptError:
                continue
            assert codec.pack(value) == data
            (alone,) = codec.unpack_items(codec.pack_items(value))
            assert alone == value[0]
            assert type(alone) is type(value[0])


def test_fields_of_a_message_are_a_plain_dict(subtests: pytest.Subtests) -> None:
    for mapping in [collections.OrderedDict, collections.Counter]:
        with case(subtests, mapping):
            fields = msgpack.inner(codec.pack(mapping(HumanMessage("x").__dict__)))
            value = read(array_of(NONE, b"\x01", fields))
            assert isinstance(value, OpaqueValue | CorruptError)


FORGED_MODELS: list[tuple[Any, ...]] = [
    (b"\x91\x01", NONE, ()),
    (NONE, b"\x91\x01", ()),
    (b"\x81\x01\x02", NONE, ()),
    (NONE, b"\x81\x01\x02", ()),
    (NONE, NONE, (array_of(b"\x01", encode("q")),)),
    (NONE, NONE, (encode("q"), encode("r"))),
    (NONE, NONE, (b"\x81\x01\x02",)),
    (encode("text"), encode("text"), ()),
]


def test_a_forged_model_can_be_used_and_saved(subtests: pytest.Subtests) -> None:
    for extra, private, strangers in FORGED_MODELS:
        with case(subtests, extra, private, strangers):
            for name in ("OpenModel", "ModelWithFactory"):
                parts = (map_of(x=b"\x01"), b"\x01", extra, private, *strangers)
                try:
                    value = codec.unpack(forge(Tag.PYDANTIC, encode(f"{HERE}:{name}"), *parts))
                except CorruptError:
                    continue
                codec.pack(value)
                repr(value)
                assert value == value
                if not isinstance(value, OpaqueValue):
                    value.model_copy()
                    assert all(type(name) is str for name in value.model_fields_set)


def test_an_unknown_type_stays_as_it_is(subtests: pytest.Subtests) -> None:
    for tag in sorted({*range(128), -2, -128} - set(Tag)):
        with case(subtests, tag):
            for payload in (b"", b"\x01", b"\x91" * 100, b"\xc1"):
                data = msgpack.ext(tag & 0xFF, payload)
                value = read(data)
                assert isinstance(value, OpaqueValue | CorruptError)
                read(msgpack.ext(Tag.SET, array_of(data)))


FORGED_PAYLOADS: list[Any] = [b"\x91" * 100, array_of(NONE, b"\x90", b"\x80"), b"\xdd\xff\xff\xff\xff", b"\xc1", b""]


def test_an_opaque_value_always_has_a_repr(subtests: pytest.Subtests) -> None:
    for payload in FORGED_PAYLOADS:
        with case(subtests, payload):
            for tag in (1, 32, 48, 127):
                assert repr(OpaqueValue(tag, payload)).startswith("<OpaqueValue")
                hostile = OpaqueValue(32, array_of(encode("\x1b[2Jm:\n" + "x" * 10_000), b"\x80"))
                assert repr(hostile).isprintable()
                assert len(repr(hostile)) < 1000


# Modules ------------------------------------------------------------------------------------------------------


@pytest.fixture
def module() -> Iterator[Callable[[str, Any], str]]:
    """Puts things into `sys.modules` for the time of a test."""
    names: list[str] = []

    def add(name: str, thing: Any) -> str:
        names.append(name)
        sys.modules[name] = thing
        return name

    yield add
    for name in names:
        del sys.modules[name]


def test_hooks_of_modules_do_not_run(module: Callable[[str, Any], str]) -> None:
    names = [
        module("gadget_lazy", gadgets.pep_562_module("gadget_lazy")),
        module("gadget_watched", gadgets.WatchedModule("gadget_watched")),
        module("gadget_property", gadgets.PropertyModule("gadget_property")),
        module("gadget_none", None),
        module("gadget_object", gadgets.NotAModule()),
        module("gadget_class", gadgets.Quiet),
        module("gadget_dict", {"Quiet": gadgets.Quiet}),
    ]
    for name in names:
        for qualname in ("Quiet", "__dict__", "__class__", "Quiet.Nested", "load"):
            for data in naming(f"{name}:{qualname}"):
                stays_shut(data)


def test_a_lazy_module_is_not_loaded(tmp_path: Path, module: Callable[[str, Any], str]) -> None:
    source = tmp_path / "gadget_lazily.py"
    source.write_text("from tests.codec.gadgets import *\nRAN.append('imported')\n")
    spec = importlib.util.spec_from_file_location("gadget_lazily", source)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    module("gadget_lazily", lazy)
    spec.loader.exec_module(lazy)
    for data in naming("gadget_lazily:Quiet"):
        stays_shut(data)
    assert type(lazy) is not types.ModuleType


def test_a_class_under_another_name_is_not_found(module: Callable[[str, Any], str]) -> None:
    other = types.ModuleType("gadget_other")
    vars(other).update(vars(gadgets))
    module("gadget_other", other)
    for name in ("Quiet", "Model", "Pair", "Color", "InitError"):
        for data in naming(f"gadget_other:{name}"):
            stays_shut(data)


LC = [
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {}},
    {"lc": 1, "type": "constructor", "id": ["tests", "codec", "gadgets", "Plain"], "kwargs": {}},
    {"lc": 1, "type": "secret", "id": ["PATH"]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "method": [None, "system"], "args": ["true"]},
    {"lc": 1, "type": "not_implemented", "id": ["os"], "repr": "os"},
    {"__type__": "dataclass", "__class__": "os:system", "py/object": "os.system", "$ref": "#"},
]


def test_dictionaries_of_other_serializers_are_data(subtests: pytest.Subtests) -> None:
    for value in LC:
        with case(subtests, value):
            for whole in (value, [value], {"messages": [HumanMessage("x", additional_kwargs=value)]}, (value,)):
                before = set(sys.modules)
                RAN.clear()
                again = codec.unpack(codec.pack(whole))
                assert again == whole
                assert RAN == []
                assert set(sys.modules) == before


def test_reading_imports_nothing() -> None:
    """Every tag, in a process that has loaded nothing but the codec."""
    code = """
        import fractions, sys, zoneinfo  # these are imported with the first value of a type of theirs
        from holdfast.codec import Codec, msgpack
        from msgspec.msgpack import encode
        codec = Codec()
        refs = ["langchain_core.messages.human:HumanMessage", "antigravity:fly", "pandas:DataFrame"]
        refs += ["tests.codec.gadgets:Quiet", "pydantic:BaseModel"]
        datas = [msgpack.ext(tag, msgpack.join_array([encode(ref), b"\\x80"])) for tag in range(128) for ref in refs]
        datas += [msgpack.join_array([b"\\xc0", encode(n), b"\\x80"]) for n in range(30)]
        # A zone that the system does not have makes Python look into its own package of zones, and only there.
        datas += [msgpack.ext(17, key) for key in (b"Europe/Berlin", b"../x", b"UTC", b"a.b")]
        before = set(sys.modules)
        for data in datas:
            try:
                codec.unpack(data)
            except ValueError:
                pass
        print(sorted(set(sys.modules) - before))
    """
    assert run(code) == "[]"


# Resources ----------------------------------------------------------------------------------------------------


def run(code: str, *, seconds: float = 300, megabytes: int = 0) -> str:
    """What a program in a process of its own prints. Fails if it crashes, hangs, or needs more memory."""
    limit = ""
    if megabytes and sys.platform == "linux":
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes << 20},) * 2)\n"
    try:
        done = subprocess.run(
            [sys.executable, "-c", limit + textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"hangs after {(error.stdout or b'')[-200:]!r}")
    assert done.returncode == 0, f"exit {done.returncode} after {done.stdout[-200:]!r}: {done.stderr[-500:]}"
    return done.stdout.strip()


def run_cases(code: str, *, megabytes: int = 0) -> dict[str, str]:
    """Run several cases in one process, each of which starts with `begin(name)`; their outcomes by name."""
    lines = run(PRELUDE + code, megabytes=megabytes).splitlines()
    return {name: outcome.strip() for name, _, outcome in (line.partition(": ") for line in lines if line)}


PRELUDE = """
import sys, threading, time
from holdfast.codec import Codec, msgpack
from holdfast.errors import HoldfastError
from msgspec.msgpack import encode
codec = Codec()
def begin(*name):
    print("\\n", end="")
    print(*name, end=": ", flush=True)
def attempt(data):
    start = time.process_time()
    try:
        codec.unpack(data)
    except HoldfastError as error:
        print(type(error).__name__, end=" ")
    else:
        print("read", end=" ")
    if time.process_time() - start > 3:
        print("SLOW", time.process_time() - start, end=" ")
"""

DEEP = """
shapes = {
    "lists": b"\\x91" * 2047 + b"\\xc0",
    "maps": b"\\x81\\x00" * 1023 + b"\\xc0",
    "keys": b"\\x81" * 1000 + b"\\x01" * 1001,
    "long": b"\\x91" * 100_000 + b"\\xc0",
    "wide": b"\\xdd\\x00\\x00\\x00\\x02\\x00" * 300 + b"\\xc0",
}
exts = b"\\xc0"
for i in range(600):
    exts = msgpack.ext(1 if i % 2 else 20, b"\\x91" + exts)
shapes["exts"] = exts
mixed = b"\\xc0"
for i in range(32):
    mixed = msgpack.ext(1, b"\\x91" * 64 + mixed)
shapes["mixed"] = mixed
packed = b"\\x91" * 1900 + b"\\xc0"
for i in range(31):
    packed = msgpack.ext(1, b"\\x91" * 64 + packed)
shapes["both"] = packed
"""


# Every call of Python's takes stack too: in smaller threads only what the decoder does alone is promised.
STACKS = [
    (kilobytes, recursion, shape)
    for shape in ("lists", "maps", "keys", "long", "wide", "exts", "mixed", "both")
    for recursion in (1000, 100_000)
    for kilobytes in (512, 256, 128)
    if kilobytes == 512 or recursion == 1000 or shape not in ("exts", "mixed", "both")
]


def test_nesting_does_not_fill_the_stack(subtests: pytest.Subtests) -> None:
    # Small stacks first: a thread may be given the stack of one that has ended, if that is large enough.
    code = f"""
    for kilobytes, recursion, shape in {sorted(STACKS)}:
        begin(kilobytes, recursion, shape)
        sys.setrecursionlimit(recursion)
        threading.stack_size(kilobytes * 1024)
        thread = threading.Thread(target=attempt, args=(shapes[shape],))
        thread.start()
        thread.join()
    """
    outcomes = run_cases(DEEP + textwrap.dedent(code))
    assert len(outcomes) == len(STACKS)
    for name, outcome in outcomes.items():
        with case(subtests, name):
            assert outcome in ("TooDeepError", "CorruptError", "read")


def test_claimed_lengths_take_no_memory() -> None:
    code = """
    for first in range(256):
        for width in (1, 2, 4):
            for claim in (0xFF, 0x7F):
                attempt(bytes([first]) + bytes([claim]) * width)
                attempt(b"\\x93\\xc0" + bytes([first]) + bytes([claim]) * width)
                attempt((bytes([first]) + bytes([claim]) * width) * 60)
    """
    assert "SLOW" not in run(PRELUDE + textwrap.dedent(code), megabytes=400)


def test_claimed_lengths_inside_typed_values_take_no_memory() -> None:
    code = """
    for tag in range(64):
        for header in (b"\\xdd", b"\\xdf", b"\\xc6", b"\\xdb", b"\\xc9"):
            attempt(msgpack.ext(tag, header + b"\\xff" * 4))
            attempt(msgpack.ext(tag, b"\\x92\\xa3a:b" + header + b"\\x0f" * 4))
    """
    assert "SLOW" not in run(PRELUDE + textwrap.dedent(code), megabytes=400)


HANGS = {
    "fraction": "msgpack.ext(25, msgpack.join_array([big(random.getrandbits(8_000_000) | 1) for _ in range(2)]))",
    "range": "msgpack.ext(9, msgpack.join_array([b'\\0', big(random.getrandbits(8_000_000)), "
    "big(random.getrandbits(4_000_000))]))",
    "timedelta": "msgpack.ext(15, msgpack.join_array([big(random.getrandbits(8_000_000)) for _ in range(3)]))",
    "decimal": "msgpack.ext(10, b'9' * 4_000_000)",
    "decimal exponent": "msgpack.ext(10, b'1E' + b'9' * 4_000_000)",
    "int": "big(random.getrandbits(80_000_000))",
    "flag": "msgpack.ext(38, msgpack.join_array([encode('re:RegexFlag'), big(random.getrandbits(8_000_000))]))",
    "flag negative": "msgpack.ext(38, msgpack.join_array([encode('re:RegexFlag'), "
    "big(-random.getrandbits(8_000_000))]))",
    "classes in a regex": "msgpack.ext(19, msgpack.join_array([encode('[\\u0100-\\U0010ffff]' * 2000), b'\\x02']))",
    "alternatives": "msgpack.ext(19, msgpack.join_array([encode('a|' * 1_000_000), b'\\0']))",
    "groups": "msgpack.ext(19, msgpack.join_array([encode('(' * 100_000), b'\\0']))",
    "nested repeats": "msgpack.ext(19, msgpack.join_array([encode('(?:' * 60 + 'a' + '){2,9}' * 60), b'\\0']))",
    "colliding ints": "msgpack.ext(2, msgpack.join_array([big(k * ((1 << 61) - 1)) "
    "for k in range(1 << 20, (1 << 20) + 40_000)]))",
    "colliding uuids": "msgpack.ext(4, msgpack.join_array([p for k in range(20_000) for p in "
    "(msgpack.ext(11, (k * ((1 << 61) - 1)).to_bytes(16, 'big')), b'\\0')]))",
    "mask": "msgpack.ext(34, msgpack.join_array([encode('tests.codec.gadgets:OpenModel'), b'\\x81\\xa1x\\0', "
    "big(random.getrandbits(8_000_000)), encode({f'k{i}': 0 for i in range(50_000)}), b'\\xc0']))",
    "zone": "msgpack.ext(17, b'A' * 1_000_000)",
    "address": "msgpack.ext(24, msgpack.join_array([b'\\5', encode('1:' * 500_000)]))",
    "network": "msgpack.ext(24, msgpack.join_array([b'\\2', encode('0.0.0.0/' + '9' * 500_000)]))",
    "datetime": "msgpack.ext(12, msgpack.join_array([encode('2' * 1_000_000)]))",
    "path": "msgpack.ext(18, msgpack.join_array([encode('pure windows'), encode('/' * 2_000_000)]))",
    "class name": "msgpack.ext(32, msgpack.join_array([encode('a:' + '.' * 2_000_000), b'\\x80']))",
    "many messages": "msgpack.join_array([b'\\xd7\\x30\\x93\\xc0\\x01\\x80\\0\\0\\0\\0'] * 100_000)",
    "many classes": "msgpack.join_array([msgpack.ext(32, msgpack.join_array("
    "[encode('builtins:object'), b'\\x80']))] * 20_000)",
    "many refused": "msgpack.join_array([msgpack.ext(32, msgpack.join_array("
    "[encode('tests.codec.gadgets:Calls'), b'\\x80']))] * 20_000)",
    "big set": "msgpack.ext(2, encode(list(range(1_000_000))))",
    "big dict": "encode({str(i): i for i in range(500_000)})",
    "many small ints": "b'\\xdd' + (3_000_000).to_bytes(4, 'big') + b'\\x90' * 100 + b'\\1' * 2_999_900",
}  # fmt: skip


@pytest.mark.nightly
def test_no_value_takes_long_to_read(subtests: pytest.Subtests) -> None:
    code = """
    import random, re, tests.codec.gadgets
    import langchain_core.messages
    random.seed(1)
    def big(value):
        return msgpack.ext(5, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    """
    attempts = [f"begin({name!r})\nattempt({data})\n" for name, data in HANGS.items()]
    outcomes = run_cases(textwrap.dedent(code) + "".join(attempts))
    for name in HANGS:
        with case(subtests, name):
            assert "SLOW" not in outcomes[name]


# What to read, and how many megabytes of memory that may take.
GROWS = {
    "empty dicts": ("b'\\xdd' + (400_000).to_bytes(4, 'big') + b'\\x80' * 400_000", 32),
    "empty lists": ("b'\\xdd' + (400_000).to_bytes(4, 'big') + b'\\x90' * 400_000", 32),
    "empty sets": ("b'\\xdd' + (100_000).to_bytes(4, 'big') + msgpack.ext(2, b'\\x90') * 100_000", 32),
    "inert values": ("b'\\xdd' + (100_000).to_bytes(4, 'big') + b'\\xd4\\x7f\\0' * 100_000", 12),
    "typed values in each other": ("nested()", 80),
    "flags": ("msgpack.ext(38, msgpack.join_array([encode('__main__:Bits'), huge]))", 32),
    "any flags": ("msgpack.ext(38, msgpack.join_array([encode('re:RegexFlag'), huge]))", 32),
}


@pytest.mark.nightly
def test_no_value_takes_much_more_memory_than_its_bytes(subtests: pytest.Subtests) -> None:
    """At most some 80 bytes a value, and a few copies of every byte."""
    code = """
    import enum, re, tracemalloc
    class Bits(enum.Flag):
        A = 1
        B = 2
    huge = msgpack.ext(5, b"\\0" + b"\\xff" * 4_000_000)
    def nested():
        data = b"\\xc6" + (10 << 20).to_bytes(4, "big") + bytes(10 << 20)
        for _ in range(msgpack.MAX_NESTING - 1):
            data = msgpack.ext(1, b"\\x91" + data)
        return data
    def measure(name, data):
        begin(name)
        tracemalloc.start()
        attempt(data)
        print("peak", tracemalloc.get_traced_memory()[1] >> 20, end=" ")
        tracemalloc.stop()
    """
    calls = [f"measure({name!r}, {data})\n" for name, (data, _) in GROWS.items()]
    outcomes = run_cases(textwrap.dedent(code) + "".join(calls))
    for name, (_, megabytes) in GROWS.items():
        with case(subtests, name):
            assert int(outcomes[name].rpartition("peak")[2]) < megabytes


def test_reading_flags_leaves_nothing_behind() -> None:
    """A flag that takes any number keeps every one it was ever asked for."""
    before = len(re.RegexFlag._value2member_map_)
    data = array_of(*(forge(Tag.FLAG, encode("re:RegexFlag"), encode(1 << 20 | i << 9)) for i in range(2000)))
    read(data)
    assert len(re.RegexFlag._value2member_map_) - before < 100


def test_a_decompression_bomb_makes_no_more_than_it_claims(subtests: pytest.Subtests) -> None:
    zeros = bytes(by_day(80, 20) << 20)
    bombs = {
        **{method: compress(zeros, method)[1] for method in (Compression.ZSTD, Compression.ZSTD_DICTIONARY_1)},
        Compression.GZIP: zlib.compress(zeros, wbits=31),
    }
    for size in [0, 1, 1000, 1 << 20, 16 << 20]:
        for how, bomb in bombs.items():
            with case(subtests, how.name, size):
                start = time.process_time()
                with pytest.raises(CorruptError):
                    decompress(how, bomb, size, 128 << 20)
                with pytest.raises(TooLargeError):
                    decompress(how, bomb, 200 << 20, 128 << 20)
                assert time.process_time() - start < 5


def test_a_window_over_the_limit_is_refused() -> None:
    # A frame header that asks for a window of 2 GB: descriptor 0, window byte 0xA8 (exponent 21), one empty last block.
    for window in range(0, 256, 8):
        frame = b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"\x01\x00\x00"
        try:
            assert decompress(Compression.ZSTD, frame, 0, 1 << 20) == b""
        except CorruptError:
            assert window >> 3 > 16
    code = """
    from holdfast.codec.compression import decompress
    for window in range(256):
        try:
            decompress(1, b"\\x28\\xb5\\x2f\\xfd\\x00" + bytes([window]) + b"\\x02\\x00\\x10\\x00", 10, 1 << 20)
        except HoldfastError:
            pass
    """
    run(PRELUDE + textwrap.dedent(code), megabytes=600)


def test_an_envelope_with_forged_header(subtests: pytest.Subtests) -> None:
    for position in range(12):
        with case(subtests, position):
            context = RecordContext("steps", ("t", "l", 0, 7))
            record = protect(wrap(b"content" * 100, schema="7"), context)
            for byte in range(256):
                forged = record[:position] + bytes([byte]) + record[position + 1 :]
                if forged == record:
                    continue
                with pytest.raises(HoldfastError):
                    unwrap(expose(forged, context))


NO_ZONES: list[Any] = [b"../../etc/passwd", b"/etc/passwd", b"A\0B", b".", b"", b"\xff", b"a/../b", b"C:\\x"]


def test_a_time_zone_is_no_path(subtests: pytest.Subtests) -> None:
    for key in NO_ZONES:
        with case(subtests, key):
            assert isinstance(read(msgpack.ext(Tag.ZONEINFO, key)), CorruptError)


def test_time_zone_offsets(subtests: pytest.Subtests) -> None:
    for seconds in [86_400, -86_400, 10**9, 86_399.5, 10**30]:
        with case(subtests, seconds):
            packed = encode(seconds) if abs(seconds) < 1 << 60 else big(int(seconds))
            offset = forge(Tag.TIMEDELTA, b"\x00", packed, b"\x00")
            assert isinstance(read(forge(Tag.TIMEZONE, offset)), CorruptError)


def test_a_regex_with_flags_that_act() -> None:
    for flags in (128, -1, 1 << 40, 1):
        assert isinstance(read(forge(Tag.REGEX, encode("a"), encode(flags))), CorruptError)


# Exactness ----------------------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> None:
    """Equal, and of the same types and order all the way down."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert len(one) == len(other)
        for (a, b), (c, d) in zip(one.items(), other.items(), strict=True):
            same(a, c)
            same(b, d)
    elif isinstance(one, list | tuple | collections.deque):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, float):
        assert msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)
    elif isinstance(one, set | frozenset):
        assert codec.pack(one) == codec.pack(other)  # a NaN is not equal to itself
    elif isinstance(one, BaseException):
        same(one.args, other.args)
        same(vars(one), vars(other))
    elif hasattr(one, "__dict__") and not isinstance(one, enum.Enum | type):
        same(vars(one), vars(other))
    else:
        assert one == other


def exact(value: Any) -> Any:
    """Comes back the same, in every way of packing; or is refused. Returns what came back, or None."""
    try:
        packed = codec.pack(value)
    except HoldfastError as error:
        with pytest.raises(type(error)):
            codec.pack_items([value])
        return None
    assert codec.pack(value) == packed
    assert codec.pack_items([value]) == [packed]
    assert codec.pack_items([value, 1, HumanMessage("x")])[0] == packed
    assert codec.pack([value]) == msgpack.top(b"\x91" + msgpack.inner(packed))
    again = codec.unpack(packed)
    same(value, again)
    assert codec.pack(again) == packed
    same(value, codec.unpack_items([packed])[0])
    return again


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Flow(float):
    pass


class Raw(bytes):
    pass


class Row(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


class Couple(tuple[int, int]):
    __slots__ = ()


class Word(enum.StrEnum):
    A = "a"


class Count(enum.IntEnum):
    ONE = 1


class Struct(msgspec.Struct):
    x: int


STRANGERS: list[Any] = [
    *(Text("a"), Number(1), Flow(1.0), Raw(b"a"), Row([1]), Table(a=1), Couple((1, 2)), Word.A, Count.ONE, Struct(1)),
    *(msgspec.msgpack.Ext(1, b"\x90"), ormsgpack.Ext(1, b"\x90"), memoryview(b"a"), array.array("i", [1]), object()),
    *(True, 1, 1.0, 0.0, -0.0, float("nan"), None, b"", "", 2**64, -(2**63) - 1, 2**64 - 1, "\ud800", 1 << 100_000),
    *(
        types.SimpleNamespace(a=1),
        types.MappingProxyType({"a": 1}),
        NotImplemented,
        ...,
        range(2**70),
        slice(1),
        iter([]),
    ),
]


def test_a_value_is_unchanged_or_refused_at_every_position(subtests: pytest.Subtests) -> None:
    for value in STRANGERS:
        with case(subtests, value):
            places: list[Callable[[Any], Any]] = [
                *(
                    lambda v: v,
                    lambda v: [v],
                    lambda v: [None, v, {}],
                    lambda v: {"a": v},
                    lambda v: (v,),
                    lambda v: [1] * 40 + [v],
                ),
                *(
                    lambda v: {v: 1},
                    lambda v: {v},
                    lambda v: {"a": {v: [v]}},
                    lambda v: collections.deque([v]),
                    lambda v: [None, v],
                ),
                *(
                    lambda v: HumanMessage("x", additional_kwargs={"a": v}),
                    lambda v: ToolMessage("x", tool_call_id="1", artifact=v),
                ),
                *(lambda v: [None, 1, v], lambda v: [None, v, v], lambda v: {"a": v} | {f"k{i}": i for i in range(40)}),
                *(lambda v: collections.OrderedDict(a=v), lambda v: gadgets.Quiet(v), lambda v: ValueError(v)),
            ]
            for place in places:
                try:
                    whole = place(value)
                except TypeError:
                    continue  # cannot be hashed
                exact(whole)


def test_nesting_that_is_saved_can_be_read() -> None:
    wraps: list[Callable[[Any], Any]] = [
        *(
            lambda v: [v],
            lambda v: {"a": v},
            lambda v: (v,),
            lambda v: {(1,): v},
            lambda v: {2**70: v},
            lambda v: [(v,)],
        ),
        *(
            lambda v: frozenset([v]),
            lambda v: gadgets.Quiet(v),
            lambda v: HumanMessage("x", additional_kwargs={"a": v}),
        ),
        *(lambda v: collections.OrderedDict(a=v), lambda v: ValueError(v), lambda v: [{"a": [{1: v}]}]),
    ]
    ways: list[Callable[[Any], bytes]] = [codec.pack, lambda v: codec.pack_items([v])[0]]
    for around in wraps:
        value: Any = "x" * 3000
        refused = 0
        while refused < 3 * len(ways):  # what is deeper than that is refused as well
            value = around(value)
            for way in ways:
                try:
                    data = way(value)
                except TooDeepError:
                    refused += 1
                    continue
                codec.unpack(data)


def test_deep_values_of_every_mixture() -> None:
    """Whatever the mixture of lists and typed values: read back, or refused with a typed error."""
    for lists in (1, 10, 30, 64):
        value: Any = 1
        for _ in range(32):
            for _ in range(lists):
                value = [value]
            value = (value,)
            try:
                data = codec.pack(value)
            except TooDeepError:
                break
            codec.unpack(data)


SMALL = Codec(max_bytes=100_000)


SIZED: list[Any] = [
    *(
        lambda n: "x" * n,
        lambda n: "€" * n,
        lambda n: "\ud800" * n,
        lambda n: b"x" * n,
        bytearray,
        lambda n: 1 << 8 * n,
    ),
    *(
        lambda n: [1 << 800] * (n // 100),
        lambda n: decimal.Decimal("1" * n),
        lambda n: {"€" * n: 1},
        lambda n: ("€" * n,),
    ),
    *(
        lambda n: [1.5] * (n // 9),
        lambda n: re.compile("é" * min(n, 20_000)),
        lambda n: [2**60] * (n // 9),
        lambda n: [uuid.UUID(int=1)] * (n // 18),
    ),
    *(
        lambda n: HumanMessage("€" * n),
        lambda n: [complex(1)] * (n // 18),
        lambda n: [b""] * (n // 2),
        lambda n: {1: "€" * n},
    ),
]


def test_values_small_enough_to_save_can_be_read(subtests: pytest.Subtests) -> None:
    for make in SIZED:
        for size in [20_000, 40_000, 60_000, 95_000, 99_000, 120_000]:
            value = make(size)
            with case(subtests, size, value):
                for pack in (SMALL.pack, lambda v: SMALL.pack_items([v])[0]):
                    try:
                        data = pack(value)
                    except TooLargeError:
                        continue
                    SMALL.unpack(data)


class SlottedError(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__("m")
        self.code = code


@attrs.define
class AttrsError(Exception):
    code: int


class TwoLayouts(ValueError, OSError):
    pass


class NeedsFive(UnicodeDecodeError):
    def __init__(self, only: str) -> None:
        self.only = only


def exceptions() -> list[BaseException]:
    found: list[BaseException] = [SlottedError(5), AttrsError(5), TwoLayouts("x"), NeedsFive("x")]
    try:
        gadgets.OpenModel.model_validate({"x": "no"})
    except pydantic.ValidationError as error:
        found.append(error)
    exit_ = SystemExit(1)
    exit_.code = 5
    broken = OSError("x")
    broken.errno = 5
    stop = StopIteration(1)
    stop.value = 2
    found += [
        exit_,
        broken,
        stop,
        KeyError("a"),
        OSError(2, "x", "f"),
        OSError(2, "x", "f", None, "g"),
        UnsupportedError("x"),
    ]
    found += [
        ImportError("x", name="n", path="p"),
        ExceptionGroup("g", [ValueError(1), KeyError("k")]),
        SyntaxError("s"),
    ]
    return found


def test_exceptions_come_back_whole_or_are_refused(subtests: pytest.Subtests) -> None:
    names = ("code", "errno", "strerror", "filename", "filename2", "value", "name", "path", "msg", "only")
    for error in exceptions():
        with case(subtests, error):
            again = exact(error)
            if again is not None:
                for name in names:
                    assert getattr(error, name, None) == getattr(again, name, None)
                if isinstance(error, pydantic.ValidationError):
                    assert error.errors() == again.errors()


class HiddenSlot:
    __slots__ = ("hidden",)
    hidden: int


@dataclasses.dataclass
class OnSlots(HiddenSlot):
    x: int = 0


class SlotModel(pydantic.BaseModel):
    __slots__ = ("hidden",)
    x: int = 0


@dataclasses.dataclass
class Address(ipaddress.IPv4Address):
    x: int = 0


@dataclasses.dataclass
class Day(dt.date):
    x: int = 0


@pydantic.dataclasses.dataclass
class PydanticData:
    x: int = 0


@dataclasses.dataclass
class Factory:
    x: int = 0

    def __call__(self) -> int:
        return 0


@dataclasses.dataclass
class UnhashableFactory:
    x: int = dataclasses.field(default_factory=Factory())


class TupleWithMore(NamedTuple):
    x: int


def test_content_outside_the_fields_is_not_lost() -> None:
    on_slots = OnSlots(1)
    on_slots.hidden = 5
    model = SlotModel(x=1)
    object.__setattr__(model, "hidden", 5)
    for value in (on_slots, model):
        again = exact(value)
        assert again is None or again.hidden == 5
    address = Address.__new__(Address)
    address.__dict__["x"] = 1
    address._ip = 5  # type: ignore[attr-defined]
    again = exact(address)
    assert again is None or again._ip == 5
    day = Day.__new__(Day, 2020, 1, 2)
    day.x = 1
    exact(day)


def test_attributes_outside_the_fields_are_not_lost() -> None:
    model = gadgets.Quiet(1)
    model.__dict__["stray"] = 1
    validated = gadgets.OpenModel(x=1)
    validated.__dict__["stray"] = 1
    message = HumanMessage("x")
    message.__dict__["stray"] = 1
    counter = collections.Counter("aab")
    counter.stray = 1  # type: ignore[attr-defined]
    ordered = collections.OrderedDict(a=1)
    ordered.stray = 1  # type: ignore[attr-defined]
    for value in (model, validated, message, counter, ordered):
        again = exact(value)
        assert again is None or vars(again) == vars(value)


def test_messages_with_missing_and_other_fields() -> None:
    swapped = HumanMessage("x")
    del swapped.__dict__["name"]
    swapped.__dict__["stray"] = 1
    missing = AIMessage("x")
    del missing.__dict__["tool_calls"]
    reordered = HumanMessage("x", id="1")
    reordered.__dict__["content"] = reordered.__dict__.pop("content")
    extra = HumanMessage("x", something="else")
    tuples = HumanMessage("x", additional_kwargs={"a": (1, (2,))})
    codec.pack_items([HumanMessage("a warm start")])
    for pack in (codec.pack, lambda value: codec.pack_items([value])):
        with pytest.raises(UnsupportedError, match="'stray'"):
            pack(swapped)
        with pytest.raises(UnsupportedError, match="no value for its field 'tool_calls'"):
            pack(missing)
    for value in (reordered, extra, tuples):
        codec.pack_items([HumanMessage("a warm start")])
        exact(value)


open_model: Callable[..., gadgets.OpenModel] = gadgets.OpenModel


def test_assigned_fields_are_stored() -> None:
    for value in (
        gadgets.OpenModel(),
        gadgets.OpenModel(x=1),
        open_model(y=2),
        open_model(z=1, y=2),
    ):
        assert exact(value).model_fields_set == value.model_fields_set
    moved = gadgets.ModelWithDefault.model_construct(y=3, x=[])
    moved.__dict__["y"] = moved.__dict__.pop("y")
    moved.__pydantic_fields_set__.discard("x")
    assert exact(moved).model_fields_set == moved.model_fields_set


def test_classes_that_look_like_several_kinds() -> None:
    values: list[Any] = [PydanticData(1), UnhashableFactory(1), TupleWithMore(1), uuid.uuid1(), gadgets.IntBox(x=1)]
    for value in values:
        again = exact(value)
        if isinstance(again, uuid.UUID):
            assert again.is_safe == value.is_safe


def test_flags_of_a_regex_are_stored() -> None:
    for flags in (0, re.I, re.A, re.X | re.S, re.L, re.M):
        exact(re.compile(b"a", flags) if flags == re.L else re.compile("a", flags))


def test_settings_of_the_process_do_not_change_the_bytes() -> None:
    value = [decimal.Decimal("1E+10"), decimal.Decimal("NaN"), decimal.Decimal("-0E-7")]
    packed = codec.pack(value)
    with decimal.localcontext() as context:
        context.capitals = 0
        context.prec = 1
        assert codec.pack(value) == packed
        same(codec.unpack(packed)[0], value[0])


def test_a_failure_to_save_is_always_a_typed_error() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError

        __hash__ = object.__hash__

    values: list[Any] = [
        *({10**5000: object()}, {Unprintable(): 1}, {Unprintable()}, [Unprintable()], {"a": {(10**5000,): object()}}),
        *({Unprintable}, [10**5000, object()], {"x": ValueError(object())}, gadgets.Quiet(object())),  # type: ignore[arg-type]
        {"a": ({1: object()},)},
    ]
    for tag in (-1, 300):
        with pytest.raises(HoldfastError):
            OpaqueValue(tag, b"")
    for value in values:
        with pytest.raises(HoldfastError):
            codec.pack(value)
        with pytest.raises(HoldfastError):
            codec.pack_items([value])


@pytest.mark.parametrize("most", mostly_nightly([1 << 16, 1 << 20, MAX_VALUES], daily=[1 << 16]))
def test_a_value_that_holds_itself_many_times_is_refused_in_time(most: int) -> None:
    code = f"""
    import dataclasses
    from holdfast.codec import packer
    @dataclasses.dataclass
    class Data:
        x: object
    packer.MAX_VALUES = {most}
    def doubled(make, times, value):
        for _ in range(times):
            value = make(value)
        return value
    values = [
        doubled(lambda v: [v, v], 60, [1]),
        doubled(lambda v: (v, v), 30, (1,)),
        doubled(lambda v: {{"a": v, "b": v}}, 60, {{"a": 1}}),
        doubled(lambda v: Data([v, v]), 30, 1),
        doubled(lambda v: {{(1,): v, 2: v}}, 30, 1),
        [[0] * ({most} // 160)] * 30_000,
        [[0.5] * ({most} // 160)] * 100,
        ["x" * 1_000_000] * 10_000,
    ]
    start = time.process_time()
    for number in range({most}):
        number + 1
    limit = max(10, 10 * (time.process_time() - start))  # a slow machine counts slowly, too
    for i, value in enumerate(values):
        for pack in (codec.pack, lambda v: codec.pack_items([v])):
            start = time.process_time()
            try:
                pack(value)
            except HoldfastError:
                pass
            if time.process_time() - start > limit:
                print("SLOW", i, time.process_time() - start, limit)
    """
    assert "SLOW" not in run(PRELUDE + textwrap.dedent(code), seconds=600, megabytes=3000)


def test_values_that_another_thread_changes(subtests: pytest.Subtests) -> None:
    """Some moment's value, or a typed error; never another type, never a crash."""
    for kind in ("list", "dict", "set", "ordered", "message", "data"):
        with case(subtests, kind):
            pack_while_another_thread_changes(kind)


def pack_while_another_thread_changes(kind: str) -> None:
    stop = threading.Event()
    items: Any = {
        "list": [],
        "dict": {},
        "set": set(),
        "ordered": collections.OrderedDict(),
        "message": HumanMessage("x", additional_kwargs={"k": []}),
        "data": gadgets.Quiet([]),  # type: ignore[arg-type]
    }[kind]
    inside: Any = items.additional_kwargs["k"] if kind == "message" else items.x if kind == "data" else items

    def change() -> None:
        draw = random.Random(1)
        while not stop.is_set():
            key = draw.randrange(50)
            if isinstance(inside, dict):
                inside[f"k{key}"] = (key, key)
                inside.pop(f"k{draw.randrange(50)}", None)
            elif isinstance(inside, set):
                inside.add((key, key))
                inside.discard((key - 1, key - 1))
            else:
                inside.append((key, key))
                inside.append(key)
                if len(inside) > 40:
                    inside.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            try:
                packed = [codec.pack(items), *codec.pack_items([items, items])]
            except HoldfastError:
                continue
            for data in packed:
                value = codec.unpack(data)
                value = value.additional_kwargs["k"] if kind == "message" else value.x if kind == "data" else value
                for item in value.values() if isinstance(value, dict) else value:
                    assert type(item) in (tuple, int)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
