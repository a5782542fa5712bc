"""Files that are damaged, forged or something else: nothing of them is imported."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.codec import Codec
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.errors import ConfigError, ConflictError, CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.maintenance.test_archive import filled, is_empty
from tests.store.test_copy_to import backend_of
from tests.support.nightly import mostly_nightly


@pytest.fixture
def source() -> Store:
    return filled()


@pytest.mark.parametrize("stride", mostly_nightly([1, 24], daily=[24]))
def test_every_flipped_byte_is_found(tmp_path: Path, stride: int) -> None:
    source = store_on(MemoryBackend(), fold_every=2)
    for n in range(3):
        source.thread("t").put({"n": n})
    source.maintenance.export(tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    target = store_on(MemoryBackend())
    for at in range(0, len(data), 41 * stride):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 7)
        with pytest.raises((CorruptError, InvalidError, UnsupportedError)):
            target.maintenance.import_(io.BytesIO(bytes(flipped)))
    for end in range(0, len(data), 211 * stride):
        with pytest.raises((CorruptError, InvalidError)):
            target.maintenance.import_(io.BytesIO(data[:end]))
    # Of the last line, which has the checksum of the others, every byte counts, too, and blanks are no exception.
    *_, last = data.splitlines(keepends=True)
    start = len(data) - len(last)
    other_blanks = [
        data[:at] + blank + data[at:] for at in (start, start + 1, len(data) - 1) for blank in (b" ", b"\t")
    ]
    other_ends = [data[:-1] + bytes([each]) for each in range(256) if each != ord("\n")]
    for other in (data[:-1], *other_ends, *other_blanks, data[:start] + last.replace(b'":', b'": ', 1)):
        with pytest.raises(CorruptError):
            target.maintenance.import_(io.BytesIO(other))
    with pytest.raises(CorruptError, match="after its end"):
        target.maintenance.import_(io.BytesIO(data + b"x"))
    deep = b'{"type":' + b"[" * 100_000
    for strange in (deep, b"\n".join([data.splitlines()[0], deep]), data.replace(b'"thread":"t"', b'"thread":"\xff"')):
        with pytest.raises((CorruptError, InvalidError)):
            target.maintenance.import_(io.BytesIO(strange))
    zipped = gzip.compress(data)
    broken = [zipped[:end] for end in (20, 40, len(zipped) - 20, len(zipped) - 8, len(zipped) - 1)]
    broken += [zipped[:at] + bytes([zipped[at] ^ 0x55]) + zipped[at + 1 :] for at in range(10, len(zipped), 7 * stride)]
    for one in (*broken, zipped[:-3] + b"\0\0\0", zipped + b"more", b"\x1f\x8bnot at all"):
        with pytest.raises((CorruptError, InvalidError, UnsupportedError)):
            target.maintenance.import_(io.BytesIO(one))
    assert is_empty(target)


def resealed(data: bytes, change: Callable[[list[dict[str, Any]]], None]) -> io.BytesIO:
    """A file with other lines, and a checksum that is right."""
    lines = [json.loads(line) for line in data.splitlines()[:-1]]
    change(lines)
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    threads, rows = (sum(line.get("type") == kind for line in lines) for kind in ("thread", "row"))
    last = {"type": "checksum", "sha256": hashlib.sha256(text).hexdigest(), "threads": threads, "rows": rows}
    return io.BytesIO(text + json.dumps(last, separators=(",", ":")).encode() + b"\n")


def _drop(place: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        del lines[place]

    return change


def _of(lines: list[dict[str, Any]], space: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("space") == space)


def _swap_bodies(lines: list[dict[str, Any]]) -> None:
    one, two = [line for line in lines if line.get("space") == "steps"][:2]
    one["body"], two["body"] = two["body"], one["body"]


def _set(space: str, name: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        _of(lines, space)[name] = value

    return change


def _hash(lines: list[dict[str, Any]]) -> None:
    _of(lines, "steps")["columns"][3] = "AAAA"


def _number(lines: list[dict[str, Any]]) -> None:
    _of(lines, "steps")["columns"][4] = 1 << 63


def _twice(lines: list[dict[str, Any]]) -> None:
    lines.insert(-1, _of(lines, "steps"))
    lines[-1]["rows"] += 1


def _without_a_node(lines: list[dict[str, Any]]) -> None:
    lines.remove(_of(lines, "nodes"))
    lines[-1]["rows"] -= 1


def _columns(lines: list[dict[str, Any]]) -> None:
    lines[1]["columns"].append(1)


def _add_row(space: str, key: list[Any], columns: list[Any]) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        lines.insert(-1, {"type": "row", "space": space, "key": key, "columns": columns})
        lines[-1]["rows"] += 1

    return change


def _rename(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        _of(lines, "steps")["columns"][0] = name

    return change


FORGED: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "a thread does not end": (_drop(-1), "does not end"),
    "a row in no thread": (_drop(1), "in no thread"),
    "a row is missing": (_drop(3), "missing"),
    "a thread in another": (lambda lines: lines.insert(2, lines[1]), "in another"),
    "a second head": (lambda lines: lines.insert(2, lines[0]), "begin with a header"),
    "bodies are swapped": (_swap_bodies, "its hash is not that of its content"),
    "a body of nothing": (_set("nodes", "body", "AAAA"), "magic bytes"),
    "text for a number": (_set("steps", "key", ["0", "0"]), "cannot be read"),
    "too short a key": (_set("steps", "key", [0]), "cannot be read"),
    "no base64": (_set("nodes", "key", [1, "%%%"]), "cannot be read"),
    "another hash": (_hash, "its hash is not that of its content"),
    "too large a number": (_number, "more than 64 bits"),
    "a number of 65 bits in a column": (_add_row("refs", ["tag", "x", ""], ["x", 1 << 64]), "more than 64 bits"),
    "a number of 65 bits in a key": (_add_row("branches", [1 << 64], [0, 2, 1, "b"]), "more than 64 bits"),
    "a number of 65 bits in a thread": (lambda lines: lines[1]["columns"].__setitem__(0, 1 << 64), "other columns"),
    "a number of 200 digits": (_add_row("refs", ["tag", "x", ""], ["x", 10**200]), "more than 64 bits"),
    "a lease": (_add_row("refs", ["lease", "rewrite", ""], ["x", 1]), "has a lease"),
    "a row twice": (_twice, "twice"),
    "a node is missing": (_without_a_node, "not sound"),
    "other columns of a thread": (_columns, "other columns"),
    "a branch that is the latest": (_add_row("branches", [1], [0, 2, 1, "HEAD"]), "name that is reserved"),
    "a tag that is a branch": (_add_row("refs", ["tag", "main", ""], ["x", 1]), "name that is reserved"),
    "an id that is a branch": (_rename("main"), "name that is reserved"),
    "an id that is the latest": (_rename("@"), "name that is reserved"),
    "an unknown line": (lambda lines: lines.insert(2, {"type": "surprise"}), "cannot be read"),
    "an unknown field": (lambda lines: lines[1].update(more=1), "cannot be read"),
}


@pytest.mark.parametrize(("change", "says"), FORGED.values(), ids=FORGED.keys())
def test_a_file_that_makes_no_sense_is_refused(
    change: Callable[[list[dict[str, Any]]], None], says: str, tmp_path: Path
) -> None:
    source = store_on(MemoryBackend(), fold_every=2)
    for n in range(5):
        source.thread("t").put({"n": n})
    source.maintenance.export(tmp_path / "f")
    target = store_on(MemoryBackend())
    with pytest.raises(CorruptError, match=says):
        target.maintenance.import_(resealed((tmp_path / "f").read_bytes(), change))
    assert is_empty(target)
    assert target.maintenance.import_(resealed((tmp_path / "f").read_bytes(), lambda _: None)).threads == ("t",)


def test_what_is_newer_or_something_else(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f", threads=["thread 0"])
    data = (tmp_path / "f").read_bytes()
    target = store_on(MemoryBackend())
    with pytest.raises(UnsupportedError, match="version 2"):
        target.maintenance.import_(io.BytesIO(data.replace(b'"version":1', b'"version":2', 1)))
    with pytest.raises(UnsupportedError, match="'novelties'"):
        target.maintenance.import_(resealed(data, _set("steps", "space", "novelties")))
    for other in (b"Dear diary\n", b"[1]\n", b'{"type":"thread"}\n', b"\xff\xfe\n", b"null\n"):
        with pytest.raises(InvalidError, match="not a file of exported threads"):
            target.maintenance.import_(io.BytesIO(other))
    with pytest.raises(CorruptError, match="ends early"):
        target.maintenance.import_(io.BytesIO())
    with pytest.raises(NotFoundError, match="no such file"):
        target.maintenance.import_(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        target.maintenance.import_(tmp_path)


def test_a_line_without_end_is_refused() -> None:
    """Also one that is small as long as it is compressed."""
    limit = 1_000_000
    codec = Codec(max_bytes=limit)
    endless = b"x" * (50 * limit)
    for data in (endless, gzip.compress(endless)):
        tracemalloc.start()
        try:
            with (
                holdfast.open("memory://", codec=codec) as store,
                pytest.raises(CorruptError, match="longer than any row"),
                contextlib.closing(io.BytesIO(data)) as file,
            ):
                store.maintenance.import_(file)
            assert tracemalloc.get_traced_memory()[1] < 10 * limit
        finally:
            tracemalloc.stop()


@pytest.mark.nightly
def test_what_is_as_large_as_may_be_comes_back() -> None:
    codec = Codec(max_bytes=3_000_000)
    with holdfast.open("memory://", codec=codec) as store, holdfast.open("memory://", codec=codec) as target:
        parts = {f"part {n}": random.Random(n).randbytes(60_000) for n in range(49)}
        store.thread("t").put({**parts, "whole": random.Random(1).randbytes(2_900_000)})
        file = io.BytesIO()
        store.maintenance.export(file)
        file.seek(0)
        target.maintenance.import_(file)
        assert target.thread("t").get().state == store.thread("t").get().state


def test_a_name_that_no_thread_has_is_refused(tmp_path: Path) -> None:
    """What belongs to the whole store is under the empty name: the leases of jobs, and whether there is an index."""

    def named(name: str) -> Callable[[list[dict[str, Any]]], None]:
        def change(lines: list[dict[str, Any]]) -> None:
            lines[1:] = [{**lines[1], "thread": name}, {"type": "end", "rows": 0}]

        return change

    source = store_on(MemoryBackend())
    source.thread("t").put({"n": 1})
    source.maintenance.export(tmp_path / "f")
    target = store_on(MemoryBackend())
    with pytest.raises(CorruptError, match="no name"):
        target.maintenance.import_(resealed((tmp_path / "f").read_bytes(), named("")))
    with pytest.raises(InvalidError, match="at most 1024 bytes"):
        target.maintenance.import_(resealed((tmp_path / "f").read_bytes(), named("x" * 3000)))
    assert is_empty(target)


def test_a_branch_of_a_file_is_not_main(tmp_path: Path) -> None:
    """Only a new revision of one of its checkpoints takes over the name."""
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    for n in range(3):
        source.thread("t").put({"n": n}, id=f"a{n}")
    source.maintenance.copy_to(target)
    source.thread("t").fork("other", at="a1")
    source.thread("t").put({"n": "forged"}, id="b", branch="other")
    source.maintenance.export(tmp_path / "f")
    data = (tmp_path / "f").read_bytes()

    def renamed(lines: list[dict[str, Any]]) -> None:
        _of(lines, "branches")["columns"][3] = "main"

    for store in (target, store_on(MemoryBackend())):
        with pytest.raises(CorruptError, match="calls itself main"):
            store.maintenance.import_(resealed(data, renamed))
    assert target.thread("t").get(at="main").state == {"n": 2}

    def pruned(lines: list[dict[str, Any]]) -> None:
        renamed(lines)
        first = [line for line in lines if line.get("space") == "steps"][-1]
        first["columns"][:2], first["columns"][5:] = ["", 0], ["pruned", "", 0, 0, -1]
        first.pop("body")
        lines[1]["columns"][3] += 1

    with pytest.raises(ConflictError, match="another branch 'main'"):
        target.maintenance.import_(resealed(data, pruned))
    assert target.thread("t").get(at="main").state == {"n": 2}
    source.thread("t").put({"n": "again"}, id="a2", parent="a1")
    source.maintenance.export(tmp_path / "f")
    assert target.maintenance.import_(tmp_path / "f").threads == ("t",)
    assert target.thread("t").get(at="main").state == {"n": "again"}


def test_holds_come_along_and_leases_do_not(source: Store, tmp_path: Path) -> None:
    run(Lease(source._engine.context, Line("", "thread 0"), "rewrite").acquire())
    source.thread("thread 0").hold(reason="audit")
    source.maintenance.export(tmp_path / "f", threads=["thread 0"])
    target = store_on(MemoryBackend())
    target.maintenance.import_(tmp_path / "f")
    kinds = {row.key[2] for row in run(backend_of(target).read([Scan(REFS, ())]))[0]}
    assert "lease" not in kinds
    assert [each.reason for each in target.thread("thread 0").holds()] == ["audit"]
