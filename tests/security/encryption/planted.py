"""Strings that are planted in a store, and a search for them in everything that it left anywhere."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.backends.interface import Backend, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES
from holdfast.codec.compression import dictionary
from holdfast.codec.envelope import unwrap
from holdfast.errors import HoldfastError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD, _GZIP, _ENVELOPE = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"HF\x02"
_LIMIT = 1 << 24
_CHUNK = 1 << 17


def planted(count: int) -> dict[str, list[str]]:
    """Strings to plant, by where: each is found in no other text."""
    kinds = ("value", "message", "metadata", "key", "write", "tag", "reason", "artifact", "state", "branch")
    names: dict[str, list[str]] = {kind: [] for kind in kinds}
    for number in range(count):
        kind = kinds[number % len(kinds)]
        names[kind].append(f"planted{kind}x{number:04}q")
    return names


def plant(store: Store, names: dict[str, list[str]]) -> None:
    """Save every string, in the places that a user has."""
    thread = store.thread("chat")
    for number in range(3):  # to be pruned
        thread.put({"n": number})
    for number, (value, message) in enumerate(zip(names["value"], names["message"], strict=True)):
        thread.put(
            {"value": value, "large": value * 9000, "messages": [{"role": "user", "content": message}] * (number + 1)}
        )
    for name in names["metadata"]:
        thread.put({"n": name[-5:]}, metadata={"who": name})
    for name in names["key"]:
        thread.update({name: 1})
    head = thread.get().id
    for number, name in enumerate(names["write"]):
        Checkpointer(store).put_writes("chat", head, [(name, name)], task_id=f"t{number}")
    for name in names["tag"]:
        thread.put({"tagged": True}, metadata={"label": name})
    for name in names["reason"]:
        thread.pin(reason=name)
        store.thread("chat").hold(reason=name)
        assert {each.reason for each in thread.pins()} >= {name}
        assert name in {each.reason for each in store.maintenance.holds()}
        store.thread("chat").release(reason=name)
    for name in names["state"]:
        store.state(agent="r")["note"] = name
    for name in names["artifact"]:
        store.artifacts.register(name.encode() * 3000, id=name[-5:], metadata={"about": name})
    for name in names["branch"]:
        thread.fork(name)
    for number in range(40):  # folded states, too
        thread.update({"n": number})
    store.maintenance.prune("chat", keep_last=len(list(thread.log().all())) - 3)
    store.maintenance.compact("chat")
    Checkpointer(store).put_writes("chat", thread.get().id, [("last", 1)], task_id="last")


def find_planted(names: dict[str, list[str]], data: Iterable[bytes]) -> set[str]:
    """Return which strings are in the data, also inside of compressed parts and of records."""
    found: set[str] = set()
    patterns = {each: each.encode() for kind in names.values() for each in kind}
    for each in data:
        for part in _expanded(each):
            if b"planted" in part:
                found |= {name for name, pattern in patterns.items() if pattern in part}
    return found


def contents_of(folder: Path) -> Iterator[bytes]:
    """Yield the content of all files, with the freed pages and the log of SQLite."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


def rows_of(backend: Backend) -> Iterator[bytes]:
    """Yield everything in all tables of a store."""
    for table in TABLES:
        for row in run(backend.read([Scan(table, ())]))[0]:
            yield repr((row.key, row.columns)).encode()
            yield row.body


def _expanded(data: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield data, and what is inside of every compressed frame and every record in it."""
    yield data
    if depth > 3:
        return
    for start in (match.start() for match in re.finditer(re.escape(_ENVELOPE), data)):
        for end in (len(data), *(start + 12 + size for size in _sizes(data, start))):
            try:
                yield from _expanded(unwrap(data[start:end]).content, depth + 1)
                break
            except (HoldfastError, UnicodeDecodeError):
                continue
    for start in (match.start() for match in re.finditer(re.escape(_ZSTD), data)):
        for known in (None, dictionary()):
            with suppress(zstd.ZstdError):  # the rest of a frame may be on another page
                stream = zstd.ZstdDecompressor(known)
                yield from _expanded(stream.decompress(data[start : start + _CHUNK], _LIMIT), depth + 1)
    for start in (match.start() for match in re.finditer(re.escape(_GZIP), data)):
        try:
            yield from _expanded(zlib.decompressobj(31).decompress(data[start:], _LIMIT), depth + 1)
        except (zlib.error, gzip.BadGzipFile):
            continue


def _sizes(data: bytes, start: int) -> Iterator[int]:
    """Yield sizes that a record in the middle of a page may have: up to the next one."""
    following = data.find(_ENVELOPE, start + 3)
    if following > 0:
        yield following - start - 12
