"""Random and mutated bytes into the formats of stores, copies and caches; and the test that no reader of stored bytes
is left out.

Whoever takes bytes apart takes or makes a `ByteReader`, or parses a packed value: mypy refuses anything else. So the
functions that do are found in the source, and the seeds of the targets must reach every one of them.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import io
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from msgspec.msgpack import encode

import holdfast
from holdfast.agents.runs import parts as run_parts
from holdfast.agents.runs.record import StoredRun, decode_place
from holdfast.agents.runs.steps import StoredStep as StepOfRun
from holdfast.agents.steps.records import RecordedStep, StoredStep
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Put, Row, Scan
from holdfast.backends.object_store import formats
from holdfast.backends.sqlite import salvage
from holdfast.backends.sqlite.salvage import PageReader
from holdfast.backends.tables import JOURNAL, LINES, STEPS
from holdfast.backends.wrappers import cache as cache_wrapper
from holdfast.backends.wrappers import journal, replica_pair, tier_mover
from holdfast.codec.envelope import seal, wrap
from holdfast.engine.row_format import open_quarantined
from holdfast.engine.sealed_rows import SealedRowCodec, _associated
from holdfast.errors import HoldfastError
from holdfast.security.audit.erasure_ledger import LedgerEntry
from holdfast.security.encryption.cipher import Cipher
from holdfast.security.encryption.key_rows import KeyRow
from holdfast.security.encryption.store_keys import StoreKeys
from holdfast.store.replay.process import _receive
from tests import test_fuzz, test_fuzz_documents
from tests.test_fuzz import BY_DAY, BY_NIGHT, EVERYDAY, SECONDS, Target

SOURCE = Path(holdfast.__file__).parent
CIPHER = Cipher(b"k" * 32)
KEY = ("", "t", 0, 0)
COLUMNS = ("1", 0, 0, b"h" * 32, 0, "", "", 0, 0, -1)
PAGE = 512

# What is called with the bytes --------------------------------------------------------------------------------


def fuzz_durable_step(data: bytes) -> None:
    """The fields of a durable step."""
    with contextlib.suppress(HoldfastError):
        RecordedStep.of("step/key", [data, "", None])


def fuzz_run(data: bytes) -> None:
    """The record of a run, of a step of one, and of a row that leads to one: as they are, and in an envelope."""
    for body in (data, wrap(data)):
        for read in (StoredRun.of, StepOfRun.of, decode_place, run_parts._parts_of):
            with contextlib.suppress(HoldfastError):
                read(Row(KEY, (), body))


def run_bodies() -> list[bytes]:
    run = StoredRun("id", "t", "graph", "queued", 1, 0, b"input", 3)
    step = StepOfRun("1 f", "f", b"digest", "done", 1, 1, b"result")
    parts = [run_parts.Part(1, "values", b"{}")]
    return [encode(each) for each in (run, step, ("t", "token"), parts)]


def fuzz_object(data: bytes) -> None:
    """An object as it is, and with these bytes as its description and the right digest."""
    header = (len(data), len(data), hashlib.sha256(data).digest())
    for kind, type in OBJECTS.items():
        for whole in (data, formats.HEADER.pack(b"HFob", kind, formats.VERSION, *header) + data):
            with contextlib.suppress(HoldfastError):
                formats.decode(kind, type, whole, "object")
            with contextlib.suppress(HoldfastError):
                formats.bodies_start(whole, "object")


def fuzz_location(data: bytes) -> None:
    formats.unpack_location(data)


def fuzz_journal(data: bytes) -> None:
    """A row as it is, and an entry of these bytes with the right checksum."""
    for body in (data, b"\x01" + zlib.crc32(data).to_bytes(4) + bytes(4) + data):
        row = Row((*journal.LINE, 1), (0,), body)
        with contextlib.suppress(HoldfastError):
            journal.batch_count(row)
        with contextlib.suppress(HoldfastError):
            list(journal.entries([row], "here"))


def fuzz_stub(data: bytes) -> None:
    for body in (data, tier_mover._STUB + data):
        with contextlib.suppress(HoldfastError):
            tier_mover.parse_stub(Row(KEY, (), body))


def fuzz_cached_answer(data: bytes) -> None:
    for whole in (data, data + zlib.crc32(data).to_bytes(4)):
        cache_wrapper._unpack(whole, b"", [Scan(LINES, ())])


def fuzz_replica(data: bytes) -> None:
    for kind in (replica_pair.ReplicaIdentity, tuple[str, int, int]):
        with contextlib.suppress(HoldfastError):
            replica_pair._decode(data, kind, "here")


def fuzz_quarantined(data: bytes) -> None:
    for body in (data, wrap(data)):
        with contextlib.suppress(HoldfastError):
            open_quarantined(Row(KEY, (), body))


def fuzz_sealed_row(data: bytes) -> None:
    """A row that whoever has the key sealed."""
    body = seal(data, _associated(STEPS, KEY, COLUMNS), CIPHER)
    SealedRowCodec(CIPHER).decode(STEPS, Row(KEY, COLUMNS, body))


def fuzz_declared_index(data: bytes) -> None:
    row = KeyRow("", "", "index", 0, b"i", "", "", 0, b"")
    store = SimpleNamespace(memory=SimpleNamespace(indexed=None), backend=SimpleNamespace(url="here"))
    StoreKeys._open_index(cast(Any, store), CIPHER, row._replace(wrapped=CIPHER.seal(data, row.associated())))


def fuzz_ledger(data: bytes) -> None:
    record = LedgerEntry(1, b"k", b"s", frozenset(), "").to_record()
    LedgerEntry.of({**record, "places": data})


def fuzz_replay_message(data: bytes) -> None:
    for whole in (data, len(data).to_bytes(8) + bytes(8) + data):
        with contextlib.suppress(HoldfastError):
            _receive(io.BytesIO(whole))


def fuzz_sqlite_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, new, copy = (Path(folder) / name for name in ("file", "new", "copy"))
        path.write_bytes(data)
        new.write_bytes(sqlite_files()[0])
        salvage._copy_with_header(path, new, copy, tables=True)
        with contextlib.suppress(HoldfastError):
            salvage._schema_pages(data, PAGE)
        pages = PageReader(str(path), PAGE)
        try:
            list(pages.records())
        finally:
            pages.close()


# Seeds ----------------------------------------------------------------------------------------------------------

OBJECTS: dict[bytes, Any] = {
    formats.ENTRY: formats.LogEntry,
    formats.FOLD: formats.FoldObject,
    formats.DECISION: formats.Decision,
    formats.LAYOUT: formats.StoreMarker,
}


def objects() -> list[bytes]:
    written = [formats.WrittenRow("steps", (0, number), ("1", b"x"), 3, 4) for number in range(100)]
    entry = formats.LogEntry(
        ("", "t"), "token", b"i", b"", "", False, False, [formats.DeletedRows("steps", (0,))], written
    )
    fold = formats.FoldObject(
        ("", "t"), "token", "next", b"i", 1.0, False, 1, [b"i"], 0, 0, [], [], [], [], [], []
    )  # fmt: skip
    return [
        formats.encode(formats.ENTRY, entry, [b"body"]),
        formats.encode(formats.FOLD, fold),
        formats.encode(formats.DECISION, formats.Decision("id", True, b"salt")),
        formats.encode(formats.LAYOUT, formats.StoreMarker(1)),
        encode(entry),
    ]


def journal_rows() -> list[bytes]:
    row = Row(KEY, COLUMNS, b"body")
    changes: list[Change] = [
        Create(STEPS, row),
        Ensure(STEPS, row),
        Put(STEPS, row),
        Delete(STEPS, KEY),
        Expect(STEPS, KEY, None),
        Expect(STEPS, KEY, COLUMNS),
    ]
    entry, _ = journal.build_entry(journal.JournalRow(0, 0), changes, 1)
    (stored,) = (each.row.body for each in entry if isinstance(each, Create) and each.space is JOURNAL)
    return [stored, stored[9:]]


@cache
def sqlite_files() -> list[bytes]:
    """Files with rows of all types, long ones, trees of several levels, and free pages; one with a map of pages."""
    found = []
    for vacuum in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            with contextlib.closing(sqlite3.connect(path)) as database:
                database.executescript(f"PRAGMA page_size={PAGE}; PRAGMA auto_vacuum={vacuum}")
                for number in range(6):
                    database.execute(f"CREATE TABLE t{number} (a, b, c, d, e, PRIMARY KEY (a, b)) WITHOUT ROWID")
                database.execute("CREATE TABLE r (a TEXT PRIMARY KEY, b, c)")
                for number in range(14):
                    values = (str(number), -(1 << 4 * number), b"x" * 40 * number, 1.5, None)
                    database.execute("INSERT INTO t0 VALUES (?, ?, ?, ?, ?)", values)
                    database.execute("INSERT INTO r VALUES (?, ?, ?)", values[:3])
                database.execute("DELETE FROM r WHERE b < -1000")
                database.commit()
            found.append(path.read_bytes())
    return found


TARGETS = {
    "object": Target(fuzz_object, objects),
    "location of a body": Target(fuzz_location, lambda: [formats.pack_location((1, -1, 2, 3, 4))]),
    "journal": Target(fuzz_journal, journal_rows),
    "stub": Target(fuzz_stub, lambda: [tier_mover.create_stub(b"body").body]),
    "cached answer": Target(
        fuzz_cached_answer, lambda: [cache_wrapper._pack([[Row(KEY, COLUMNS, b"b")]], b""), encode([[(KEY, (), b"")]])]
    ),
    "replica": Target(
        fuzz_replica,
        lambda: [encode(replica_pair.ReplicaIdentity("id", 1, 2, True, False)), encode(("id", 1, 2))],
    ),
    "row in quarantine": Target(fuzz_quarantined, lambda: [encode((KEY, COLUMNS, b"body"))]),
    "sealed row": Target(fuzz_sealed_row, lambda: [encode((KEY[2:], COLUMNS, b"record"))]),
    "declared index": Target(fuzz_declared_index, lambda: [encode(("user", "plan"))]),
    "ledger of erasures": Target(fuzz_ledger, lambda: [b"d" * 16 + bytes(8)]),
    "message of a replay": Target(fuzz_replay_message, lambda: [b"{}", bytes(7) + b"\x02" + bytes(7) + b"\x01{}x"]),
    "durable step": Target(fuzz_durable_step, lambda: [StoredStep("done", 1, "f", b"k", b"d", 1, "here").pack()]),
    "run": Target(fuzz_run, run_bodies),
    "SQLite file": Target(fuzz_sqlite_file, sqlite_files),
}


pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a file


@pytest.mark.parametrize("name", TARGETS)
def test_a_format_gives_a_value_or_a_typed_error(name: str) -> None:
    settings(BY_DAY, max_examples=EVERYDAY)(TARGETS[name].attack())()


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_new_bytes_of_a_format_give_a_value_or_a_typed_error(name: str) -> None:
    settings(BY_NIGHT, max_examples=1000)(TARGETS[name].attack())()


@pytest.mark.torture
@pytest.mark.parametrize("name", TARGETS)
def test_a_format_gives_a_value_or_a_typed_error_for_long(name: str) -> None:
    end = time.monotonic() + SECONDS / len(TARGETS)
    while time.monotonic() < end:
        settings(BY_NIGHT, max_examples=1000, database=None)(TARGETS[name].attack())()


# No reader is left out ------------------------------------------------------------------------------------------


def test_every_reader_of_stored_bytes_is_fuzzed() -> None:
    known = set(readers(SOURCE))
    assert ("codec/envelope.py", "_parse") in known
    assert len(known) > 40
    left_out = known - reached({**test_fuzz.TARGETS, **test_fuzz_documents.BYTES, **TARGETS})
    assert not left_out, "give these a target in tests/test_fuzz_formats.py, whose seeds reach them"


def test_a_reader_without_a_target_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "class Format:\n"
        "    def read(self, data):\n"
        "        return ByteReader(data).rest()\n"
        "def take(reader: 'ByteReader | None') -> None: ...\n"
        "def take_key(*, reader: ByteReader) -> None: ...\n"
        "async def parse(data):\n"
        "    return msgpack.parse(data)\n"
        "def other(data: bytes) -> bytes:\n"
        "    return data\n"
    )
    assert {name for _, name in readers(tmp_path)} == {"Format.read", "take", "take_key", "parse"}
    assert ("codec/envelope.py", "_parse") not in reached({"pointer": test_fuzz.TARGETS["pointer"]})


def readers(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the functions that take or make a reader, or parse a packed value: the file, and the name in it."""
    for path in folder.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if path.name != "byte_reader.py" and ("ByteReader" in source or "msgpack.parse" in source):
            for name in _readers_in(ast.parse(source), ""):
                yield path.relative_to(folder).as_posix(), name


def _readers_in(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _readers_in(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(map(_reads, ast.walk(child))):
                yield prefix + child.name
        else:
            yield from _readers_in(child, prefix)


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.arg) and node.annotation is not None:
        return "ByteReader" in ast.unparse(node.annotation)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("ByteReader", "msgpack.parse")


def reached(targets: dict[str, Target]) -> set[tuple[str, str]]:
    """Return the functions that the seeds reach."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    seeds = [(target, seed) for target in targets.values() for seed in target.seeds()]
    sys.setprofile(note)
    try:
        for target, seed in seeds:
            with contextlib.suppress(HoldfastError):
                target.read(seed)
    finally:
        sys.setprofile(None)
    start = inspect.getfile(holdfast).removesuffix("__init__.py")
    # A function inside of another counts for that one.
    return {
        (Path(file.removeprefix(start)).as_posix(), name.split(".<locals>")[0])
        for file, name in found
        if file.startswith(start)
    }
