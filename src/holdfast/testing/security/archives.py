"""Exports, snapshots and backups that somebody altered."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from holdfast import snapshots
from holdfast.agents.api.agent import PersistentAgent
from holdfast.store.opener import open as open_store
from holdfast.store.store import Store
from holdfast.testing.security.names import HOSTILE_KEYS
from holdfast.testing.security.payloads import Canary, constructor_payload, hostile_bodies, is_refused, pickle_payload

_SELECTED = 5
"""Of alterations whose check takes long, one in so many is tried."""


class Frozen(PersistentAgent, name="holdfast.testing: frozen"):
    """An agent to take snapshots of."""

    note: str = ""


def altered_bytes(data: bytes, canary: Canary, *, count: int = 8, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield a file with bits flipped, parts cut out, doubled and swapped, and with other contents, each with a name."""
    random = Random(seed)  # noqa: S311 - the same each time
    for _ in range(count):
        at, to = random.randrange(len(data)), random.randrange(len(data))
        at, to = min(at, to), max(at, to)
        yield f"bit {at}", data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        yield f"cut at {at}", data[:at]
        if to > at:
            yield f"without {at} to {to}", data[:at] + data[to:]
            yield f"zeros from {at} to {to}", data[:at] + bytes(to - at) + data[to:]
    yield "twice", data + data
    yield "more", data + b"\0"
    for name, content in hostile_bodies(canary).items():
        yield name, content
        yield f"{name}, compressed", gzip.compress(content)
        yield f"{name} before", content + data
    yield "a bomb", _bomb()
    yield "a bomb in a bomb", gzip.compress(_bomb())


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(1 << 25))


def forged_exports(data: bytes, canary: Canary) -> Iterator[tuple[str, bytes]]:
    """Yield exports whose content was changed and whose checksum is right again."""
    lines = [json.loads(line) for line in data.splitlines()[:-1]]

    def seal(changed: list[dict[str, Any]]) -> bytes:
        text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in changed)
        threads, rows = (sum(line.get("type") == kind for line in changed) for kind in ("thread", "row"))
        last = {"type": "checksum", "sha256": sha256(text).hexdigest(), "threads": threads, "rows": rows}
        return text + json.dumps(last, separators=(",", ":")).encode() + b"\n"

    steps = [number for number, line in enumerate(lines) if line.get("space") == "steps"]
    for name in (*HOSTILE_KEYS.values(), "\u241eagent:victim", "%system"):
        if "\ud800" not in name:
            yield f"a thread named {name[:40]!r}", seal([lines[0], {**lines[1], "thread": name}, *lines[2:]])
    values: list[Any] = ["AAAA", "", 1, None, [], {}, pickle_payload(canary).decode(), constructor_payload(canary)]
    for value in values:
        yield (
            f"a body that is {str(value)[:40]!r}",
            seal([{**line, "body": value} if number == steps[0] else line for number, line in enumerate(lines)]),
        )
        yield (
            f"a key that is {str(value)[:40]!r}",
            seal([{**line, "key": value} if number == steps[0] else line for number, line in enumerate(lines)]),
        )
    for space in ("keys", "events", "nowhere", "../steps", "steps; DROP TABLE steps"):
        row = {"type": "row", "space": space, "key": [1], "columns": []}
        yield f"a row in {space}", seal([*lines[:-1], row, {**lines[-1], "rows": lines[-1].get("rows", 0) + 1}])


def check_exports(store: Store, canary: Canary) -> int:
    """Check that altered exports are refused as a whole, by an error of Holdfast. Return the number of them.

    They are imported into the store. A name of a thread that only looks strange is no alteration: such a thread is
    imported, and must be the only change.
    """
    file, count = io.BytesIO(), 0
    with open_store("memory://", encryption=False) as source:
        source.thread("exported").put({"n": 1, "text": "text"}, metadata={"source": "kit"})
        source.thread("exported").put({"n": 2, "text": "text"})
        source.maintenance.export(file)
    before = store.maintenance.heads(kinds="all").threads
    for name, altered in (*altered_bytes(file.getvalue(), canary), *forged_exports(file.getvalue(), canary)):
        if altered == file.getvalue():
            continue
        count += 1
        is_refused(lambda: store.maintenance.import_(io.BytesIO(altered)), f"the export: {name}")
        canary.check(f"an export: {name}")
        after = store.maintenance.heads(kinds="thread").threads
        new = [each for each in after if each not in before]
        if new:
            assert name.startswith("a thread named"), f"an export was imported: {name}"
            assert len(new) == 1, name
            store.thread(new[0]).delete()
        assert {each: head for each, head in after.items() if each in before} == {
            each: head for each, head in before.items() if each in after
        }, f"an export changed other threads: {name}"
    return count


def check_snapshots(folder: Path, canary: Canary) -> int:
    """Check that altered snapshots of an agent are refused. Return the number of them."""
    with open_store("memory://", encryption=False) as source:
        agent = Frozen().attach(source, "frozen")
        agent.note = "text" * 10
        agent.save()
        snapshots.snapshot(agent, folder / "agent.hfsnap")
    data, count = (folder / "agent.hfsnap").read_bytes(), 0
    for name, altered in altered_bytes(data, canary):
        if altered == data:
            continue
        count += 1
        path = folder / "altered.hfsnap"
        path.write_bytes(altered)
        with open_store("memory://", encryption=False) as target:
            refused = is_refused(lambda: snapshots.restore(path, store=target), f"the snapshot: {name}")
            assert refused, f"a snapshot was restored: {name}"
            assert not target.agents.exists("frozen"), f"a snapshot that was refused left an agent: {name}"
        canary.check(f"a snapshot: {name}")
    return count


def check_backups(store: Store, folder: Path, canary: Canary) -> int:
    """Check that alterations of a backup are found, in every file of it, and that it is not restored as another state.
    Return the number of them."""
    store.thread("saved").put({"n": 1, "text": "text" * 1000})
    repository = folder / "repository"
    store.backups(repository).create()
    expected, count = store.thread("saved").get().state, 0
    for path in sorted(each for each in repository.rglob("*") if each.is_file()):
        data = path.read_bytes()
        if not data:
            continue
        for name, altered in [*altered_bytes(data, canary, count=2, seed=len(data))][::_SELECTED]:
            if altered == data:
                continue
            count += 1
            what = f"{path.relative_to(repository)}: {name}"
            path.write_bytes(altered)
            with _empty_copy(store) as target:
                backups = target.backups(repository)
                if not is_refused(lambda: backups.restore("latest"), what):
                    assert target.thread("saved").get().state == expected, (
                        f"a backup was restored as another state, {what}"
                    )
            canary.check(f"a backup: {what}")
        path.write_bytes(data)
    return count


def _empty_copy(store: Store) -> Store:
    """Open a store in memory that has the same keys."""
    from holdfast.security.encryption.encrypted_rows import EncryptedRows

    rows = store._engine.context.rows
    return open_store("memory://", encryption=rows._encryption if isinstance(rows, EncryptedRows) else False)
