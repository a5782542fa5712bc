"""The storage format is frozen: what earlier releases wrote is read, and today's writers write the same.

`tests/golden/v2.json` holds, for each kind of record, its bytes in hexadecimal. A new kind is added by running this
module, `python -m tests.test_golden`, which never changes what is there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import pathlib
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from re import IGNORECASE
from re import compile as pattern
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send
from msgspec.msgpack import decode, encode

from holdfast.backends.interface import Row
from holdfast.backends.tables import STEPS, encode_key
from holdfast.codec import Codec
from holdfast.codec.compression import Compression, dictionary_bytes
from holdfast.codec.envelope import RecordContext, expose, protect, unwrap, wrap
from holdfast.codec.msgpack import inner, split_ext, top
from holdfast.codec.registry import Registry
from holdfast.codec.tags import Tag
from holdfast.engine.model.large_pointers import LargePointer, parse_pointer
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
    Set,
    decode_operation,
    encode_operation,
)
from holdfast.engine.model.operators import Rule
from holdfast.engine.model.steps import (
    PendingWriteRow,
    Step,
    StepHeader,
    StepParent,
    decode_line_salt,
    decode_writes,
)
from holdfast.engine.sealed_rows import SealedRowCodec
from holdfast.errors import NotFoundError
from holdfast.security.encryption.cipher import Cipher
from holdfast.security.encryption.key_rows import KeyRow
from tests.codec import app
from tests.codec.values import identical
from tests.support.cases import case

GOLDEN = pathlib.Path(__file__).parent / "golden" / "v2.json"

registry = Registry()
registry.register(app.Temperature, lambda t: t.kelvin, app.Temperature, name="temperature")
codec = Codec(registry)


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": -129,
    "uint64": 2**64 - 1,
    "big int": 2**64,
    "float": -0.0,
    "text": "h\u00e9",
    "surrogate": "\ud800",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"x"),
    "list": [1, [2.5, None]],
    "list of three, None first": [None, 1, {}],
    "dict": {"b": 1, "a": {}},
    "dict of scalars": {1: "a", None: "b", b"c": 2.0},
    "dict of tuples": {(1, 2): "a"},
    "tuple": (1, (2,)),
    "set": {"b", "a", 1},
    "frozenset": frozenset({3, 1}),
    "complex": 1 - 2j,
    "range": range(1, 9, 2),
    "decimal": Decimal("1.00"),
    "fraction": Fraction(1, 3),
    "uuid": uuid.UUID(int=5),
    "datetime": dt.datetime(2026, 11, 15, 1, 2, 3, 4),
    "datetime with zone": dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "date": dt.date(2026, 11, 15),
    "time": dt.time(1, 2, tzinfo=dt.UTC),
    "timedelta": dt.timedelta(-1, 2, 3),
    "timezone": dt.timezone(dt.timedelta(hours=1), "CET"),
    "zoneinfo": ZoneInfo("UTC"),
    "path": pathlib.PurePosixPath("a/b"),
    "regex": pattern("a+", IGNORECASE),
    "deque": deque([1], 3),
    "defaultdict": defaultdict(list, {"a": [1]}),
    "ordereddict": OrderedDict(b=1, a=2),
    "counter": Counter("aab"),
    "ipaddress": ip_address("::1"),
    "dataclass": app.Plan("goal", [1]),
    "attrs": app.Defined(1, [2]),
    "pydantic": app.Model(name="n"),
    "pydantic with extra": app.Extra.model_validate({"x": 1}),
    "namedtuple": app.Pair(1, "r"),
    "enum": app.Colour.GREEN,
    "flag": app.Access.READ | app.Access.RUN,
    "exception": app.AgentError("failed", code=3),
    "error of the library": NotFoundError("no thread 'a'", where="t/a", hint="Name another"),
    "reference": dict,
    "registered": app.Temperature(3.5),
    "human message": HumanMessage("hi", id="1"),
    "ai message": AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}]),
    "tool message": ToolMessage("t", tool_call_id="c", artifact=(1,)),
    "message in a list": [HumanMessage("hi")],
    "document": Document("d", metadata={"page": 1}),
    "send": Send("node", {"a": 1}),
    "command": Command(goto="n", update={"x": 1}),
    "interrupt": Interrupt("why", id="i"),
    "ndarray": np.arange(6, dtype="<i4").reshape(2, 3),
    "numpy scalar": np.float32(1.5),
    "numpy dtype": np.dtype("<f8"),
    "timestamp": pd.Timestamp("2026-11-15", tz="UTC").as_unit("ns"),
    "pandas timedelta": pd.Timedelta(5, "s").as_unit("ns"),
    "nat": pd.NaT,
    "na": pd.NA,
    "series": pd.Series([1, 2], name="s"),
    "dataframe": pd.DataFrame({"a": [1.5], "b": [2]}),
    "index": pd.Index([1, 2]),
    "extension array": pd.array([1, None], dtype="Int64"),
    "period": pd.Period("2026-11", freq="M"),
    "interval": pd.Interval(0, 1),
}

if app.HAS_V1:
    VALUES["pydantic v1"] = app.OldModel(a=1)

SALT = b"s" * 16
CHILD = ChildRef(b"i" * 20, 0, 1, b"d" * 20, b"\x01a")
HERE = WrittenBy(0, 7)
CONTEXT = RecordContext("steps", ("acme", "thread", 0, 7), ("id", b"hash"))
EDIT = EditMap(
    (b"\xa1r",),
    (
        (b"\xa1a", Set(b"\x01")),
        (b"\xa1l", EditList((KeepRun(0, 2), (b"\x03",), ChangeItem(4, Set(b"\x05"))))),
        (b"\xa1t", EditText((KeepRun(0, 9), b"more"))),
    ),
    (b"\xa1a",),
)
OPERATORS = EditMap(
    (),
    (
        (b"\xa1n", Combine(Rule.INCREMENT, b"\x02")),
        (b"\xa1l", Combine(Rule.APPEND, b"\x92\x01\xa1x")),
        (b"\xa1s", Combine(Rule.ADD_TO_SET, codec.pack({1, 2}))),
        (b"\xa1m", Combine(Rule.MAX, b"\x07")),
    ),
)
STEP = Step(StepHeader("id", (StepParent(0, 3, b"p" * 32),), 5, "2026-11-15", "save", "1.2.0", b"\x81\xa1k\x01"), EDIT)
SCHEMAS = Step(
    StepHeader("id", kind="change", schema="chat@2", salt=b"own salt of step", key_schemas=((b"\xa1a", "plan@3"),)),
    EDIT,
)
WRITES = (PendingWriteRow("path", "task", 0, "channel", b"\x01", "plan@3"),)


class FixedCipher(Cipher):
    """A cipher that draws no random bytes: what it seals is the same each time."""

    _random = staticmethod(lambda size: bytes(range(size)))


SEALED_COLUMNS = ("id", 0, 3, b"h" * 32, 5, "save", '{"k": 1}', 1, 300, -1)
SEALED = Row(("acme", "thread", 0, 3), SEALED_COLUMNS, wrap(b"content", schema="plan@3"))
DATA_KEY, WRAPPING_KEY = FixedCipher(b"d" * 32), FixedCipher(b"w" * 32)
KEY_ROW = KeyRow("acme", "thread", "data", 0, DATA_KEY.key_id, WRAPPING_KEY.key_id.hex(), "active", 5, b"")
KEY_ROW = KEY_ROW._replace(wrapped=WRAPPING_KEY.seal(b"d" * 32, KEY_ROW.associated()))
MERGE = Step(StepHeader("merge", (StepParent(0, 3, b"p" * 32), StepParent(2, 0, b"q" * 32)), 7, "", "merge"), EDIT)
SEGMENT = SegmentNode.of((ListItem(b"\x01", HERE), ListItem(b"\x02", WrittenBy(1, 2))))
LEAF = LeafNode(
    (
        MapEntry(b"\xa1a", 0, b"\x01", HERE),
        MapEntry(b"\xa1b", 1, ListRoot(CHILD), HERE),
        MapEntry(b"\xa1c", 2, MapRoot(None, 4), HERE),
    )
)
INDEX = IndexNode((CHILD, CHILD))

RECORDS: dict[str, bytes] = {
    **{f"value: {name}": codec.pack(value) for name, value in VALUES.items()},
    "key": encode_key(("acme", "thread\0", 1, b"\2")),
    "operation": encode_operation(EDIT),
    "operation: operators": encode_operation(OPERATORS),
    "step": STEP.encode(),
    "commit hash": STEP.commit(SALT),
    "step: merge": MERGE.encode(),
    "commit hash: merge": MERGE.commit(SALT),
    "step: schemas, writes, salt of the line": SCHEMAS.encode(WRITES, SALT),
    "commit hash: schemas": SCHEMAS.commit(SALT),
    "node: segment": encode_node(SEGMENT, SALT)[1],
    "node: leaf": encode_node(LEAF, SALT)[1],
    "node: index": encode_node(INDEX, SALT)[1],
    "root": encode_root(MapRoot(CHILD, 3)),
    "root: heavy step": encode_root(MapRoot(CHILD, 3), Step(STEP.header).encode()),
    "pointer": LargePointer(100_000, SALT, b"d" * 32).encode(),
    "envelope": protect(wrap(b"content", schema="1.2.0", compression=Compression.NONE), CONTEXT),
    "envelope: empty": protect(b"", CONTEXT),
    "sealed": SealedRowCodec(DATA_KEY).encode(STEPS, SEALED).body,
    "sealed: columns": encode(SealedRowCodec(DATA_KEY).encode(STEPS, SEALED).columns),
    "key of a line": KEY_ROW.stored().body,
    "dictionary 1": hashlib.sha256(dictionary_bytes()).digest(),
}


def golden() -> dict[str, bytes]:
    return {name: bytes.fromhex(data) for name, data in json.loads(GOLDEN.read_text()).items()}


def test_every_record_kind_is_frozen() -> None:
    missing = set() if app.HAS_V1 else {"value: pydantic v1"}
    assert golden().keys() - missing == RECORDS.keys(), "run `python -m tests.test_golden` to freeze a new kind"
    tags = {split[0] for name, data in golden().items() if name.startswith("value") and (split := split_ext(data))}
    assert {Tag(tag).name for tag in tags | {Tag.SHAPED}} == set(Tag.__members__)


def test_todays_writers_write_the_same(subtests: pytest.Subtests) -> None:
    for name in RECORDS:
        with case(subtests, name):
            assert RECORDS[name].hex() == golden()[name].hex()


def test_what_was_written_is_read(subtests: pytest.Subtests) -> None:
    for name in VALUES:
        with case(subtests, name):
            data = golden()[f"value: {name}"]
            back = codec.unpack(data)
            assert top(inner(data)) == data
            if isinstance(
                VALUES[name], np.ndarray | pd.Series | pd.DataFrame | pd.Index | pd.api.extensions.ExtensionArray
            ):
                assert type(back) is type(VALUES[name])
                assert repr(back) == repr(VALUES[name])
            elif VALUES[name] is pd.NaT or VALUES[name] is pd.NA:
                assert back is VALUES[name]
            else:
                assert identical(back, VALUES[name])


def test_records_of_the_model_are_read() -> None:
    frozen = golden()
    assert decode_operation(frozen["operation"]) == EDIT
    for name, step in (("", STEP), (": merge", MERGE)):
        found = Step.decode(frozen[f"step{name}"], step.header.id, step.header.schema)
        assert found == step
        assert found.commit(SALT) == frozen[f"commit hash{name}"]
    for name, node in (("segment", SEGMENT), ("leaf", LEAF), ("index", INDEX)):
        assert decode_node(encode_node(node, SALT)[0], frozen[f"node: {name}"]) == node
    assert decode_root(frozen["root"]) == (MapRoot(CHILD, 3), b"")
    root, heavy = decode_root(frozen["root: heavy step"])
    assert (root, Step.decode(heavy, "id", "1.2.0").header) == (MapRoot(CHILD, 3), STEP.header)
    assert parse_pointer(frozen["pointer"]) == LargePointer(100_000, SALT, b"d" * 32)
    stored = frozen["step: schemas, writes, salt of the line"]
    assert Step.decode(stored, "id", "chat@2") == SCHEMAS
    assert SCHEMAS.commit(SALT) == frozen["commit hash: schemas"]
    assert (decode_writes(stored), decode_line_salt(stored)) == (list(WRITES), SALT)
    rows = SealedRowCodec(Cipher(b"d" * 32))
    columns = tuple(decode(frozen["sealed: columns"]))
    assert rows.decode(STEPS, Row(SEALED.key, columns, frozen["sealed"])) == SEALED
    key = KeyRow.of(Row(KEY_ROW.key, KEY_ROW.columns, frozen["key of a line"]))
    assert Cipher(b"w" * 32).unseal(key.wrapped, key.associated()) == b"d" * 32
    assert expose(frozen["envelope: empty"], CONTEXT) == b""
    opened = unwrap(expose(frozen["envelope"], CONTEXT))
    assert (opened.content, opened.schema) == (b"content", "1.2.0")


if __name__ == "__main__":  # pragma: no cover
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    fresh = {name: data.hex() for name, data in RECORDS.items() if name not in known}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(known | fresh, indent=1) + "\n")
    print(f"froze {len(fresh)} new kinds: {', '.join(fresh) or 'none'}")
