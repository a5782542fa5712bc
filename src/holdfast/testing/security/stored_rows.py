"""Attacks of somebody who can write to the database: rows with other contents, and checksums that are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from holdfast.backends.interface import Backend, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import EVENTS, LINES, LINKS, NODES, OBJECTS, REFS, STEPS, WRITES, Table
from holdfast.codec.envelope import wrap
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from holdfast.testing.security.payloads import Canary, forged_values, hostile_bodies, hostile_values, is_refused

TABLES = (STEPS, NODES, WRITES, OBJECTS, REFS, LINES, EVENTS, LINKS)


def database(store: Store) -> Backend:
    """Return a store as its database has it: below encryption, checksums and caches."""
    backend: Any = store._engine.context.stored
    while type(backend).__module__.startswith("holdfast.security."):
        backend = backend.inner
    return backend  # type: ignore[no-any-return]


@contextmanager
def reopened(store: Store) -> Iterator[Store]:
    """Yield the store as another process sees it, without anything in memory."""
    context = replace(store._engine.context, cache=MemoryCache(1 << 20))
    yield Store(Engine(context), store.tenant)


def read_everything(store: Store, thread: str) -> Any:
    """Read a thread in all ways: its states, log, writes, and differences, as text and as JSON."""
    from holdfast.codec import default_codec

    found = store.thread(thread).get()
    handle = store.thread(thread)
    log = list(handle.log().all())
    writes = Checkpointer(store).get_tuple(thread)
    if len(log) > 1:
        str(handle.diff(log[-1].id, log[0].id))
    return found.state, repr(found.state), default_codec.to_json(found.state), writes, handle.info()


def check_values(store: Store, canary: Canary) -> int:
    """Check that values which are code elsewhere come back as they are, and run nothing. Return the number of them."""
    values = hostile_values(canary)
    for number, (name, value) in enumerate(values.items()):
        thread = f"value {number}"
        store.thread(thread).put({"value": value}, id="1", metadata={"value": value})
        Checkpointer(store).put_writes(thread, "1", [("value", value)], task_id="task")
        with reopened(store) as again:
            assert again.thread(thread).get().state == {"value": value}, name
            assert again.thread(thread).get().metadata["value"] == value, name
            read_everything(again, thread)
        store.state(agent="kit")["value"] = value
        assert store.state(agent="kit")["value"] == value, name
        canary.check(name)
    return len(values)


def check_forged_values(store: Store, canary: Canary) -> int:
    """Check that stored bytes which name functions and classes run nothing. Return the number of them."""
    values = forged_values(canary)
    store.thread("forged").put({f"v{number}": value for number, value in enumerate(values.values())}, id="1")
    with reopened(store) as again:
        is_refused(lambda: read_everything(again, "forged"), "forged values")
    canary.check("forged values")
    for name, value in list(values.items())[:: max(1, len(values) // 20)]:
        store.thread("forged one").put({"value": [value, {"in": value}]})
        with reopened(store) as again:
            is_refused(lambda: read_everything(again, "forged one"), name)
        canary.check(name)
    return len(values)


def check_stored_rows(store: Store, canary: Canary) -> int:
    """Check that rows whose content was replaced are found, or harmless. Return the number of them.

    Somebody who can write to the database computes checksums, but has no key: so on an encrypted store every one must
    be found.
    """
    store.thread("rows").put({"n": 0, "large": "text" * 30_000}, id="0")
    for number in range(1, 40):
        store.thread("rows").put({"n": number, "items": list(range(number))}, id=f"{number}")
    Checkpointer(store).put_writes("rows", "39", [("answer", 1)], task_id="task")
    store.thread("rows").tag("v1")
    backend, sealed, count = database(store), store._engine.context.rows.hides_columns, 0
    for table in TABLES:
        rows = run(backend.read([Scan(table, (store.tenant, "rows"))]))[0]
        for row in rows[:: max(1, len(rows) - 1)]:
            for name, content in hostile_bodies(canary).items():
                count += 1
                run(backend.apply([Put(table, _forged(table, row, content))]))
                with reopened(store) as again:
                    refused = is_refused(lambda: read_everything(again, "rows"), f"{name} in {table.name}")
                    if sealed and not refused:
                        report = again.maintenance.verify("rows")
                        assert not report.ok, f"{name} in {table.name} is not found"
                canary.check(f"{name} in {table.name}")
            run(backend.apply([Put(table, row)]))
    with reopened(store) as again:
        read_everything(again, "rows")
    assert count
    return count


def _forged(table: Table, row: Row, content: bytes) -> Row:
    """Return a row with another content, and the checksum of an unencrypted store."""
    return CHECKSUMS.encode(table, Row(row.key, row.columns, wrap(content)))


_TABLES = (STEPS, NODES, WRITES, OBJECTS, REFS, LINES)


def check_sealed_rows(store: Store, other: Store) -> int:
    """Check that an encrypted store finds every row that was flipped, swapped, moved, downgraded or cut. Return the
    number of attacks.

    `other` is the same store, opened for another tenant. Threads `a` and `b` are created in both.
    """
    for each in (store, other):
        for name in ("a", "b"):
            _fill(each, name)
    backend, count = database(store), 0
    for table in _TABLES:
        own, foreign, neighbours = (
            run(backend.read([Scan(table, key)]))[0] for key in (_key(store, "a"), _key(other, "a"), _key(store, "b"))
        )
        assert own, f"{table.name} has no rows of the thread: nothing was attacked"
        for row in own[:: max(1, len(own) - 1)]:
            for name, altered in _attacks(table, row, own, neighbours, foreign):
                count += 1
                run(backend.apply([Put(table, altered)]))
                _check_found(store, f"{name} in {table.name}")
            run(backend.apply([Put(table, row)]))
    for each in (store, other):
        with reopened(each) as again:
            read_everything(again, "a")
    return count


def _fill(store: Store, name: str) -> None:
    for number in range(40):
        state = {"who": f"{name}{number} {store.tenant}", "items": list(range(number)), "large": "text" * 30_000}
        store.thread(name).put(state, id=f"{number:02}")
    Checkpointer(store).put_writes(name, "39", [("answer", name)], task_id="task")
    store.thread(name).tag("v1")


def _key(store: Store, line: str) -> tuple[str, str]:
    """Return the start of the keys of a line's rows, as they are stored."""
    key = store._engine.context.rows.hide_key(STEPS, (store.tenant, line))
    return str(key[0]), str(key[1])


def _attacks(
    table: Table, row: Row, own: list[Row], neighbours: list[Row], foreign: list[Row]
) -> Iterator[tuple[str, Row]]:
    """Yield other rows for the place of one."""
    body = row.body
    for at in (0, 5, 12, 44, 60, 72, len(body) // 2, len(body) - 5):
        flipped = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        yield f"byte {at}", row._replace(body=flipped)
        yield f"byte {at} with its CRC", row._replace(body=flipped[:-4] + crc32(flipped[:-4]).to_bytes(4, "big"))
    for end in (0, 12, 40, 72, len(body) - 17, len(body) - 1):
        yield f"cut at {end}", row._replace(body=body[:end])
        yield f"cut at {end} with its CRC", row._replace(body=body[:end] + crc32(body[:end]).to_bytes(4, "big"))
    yield "longer", row._replace(body=body + b"\0")
    yield "a plaintext row", CHECKSUMS.encode(table, Row(row.key, row.columns, wrap(b"\x80")))
    yield "an empty plaintext row", CHECKSUMS.encode(table, Row(row.key, row.columns, b""))
    for kind, rows in (("the same thread", own), ("another thread", neighbours), ("another tenant", foreign)):
        for other in rows[:1] + rows[-1:]:
            if other.key != row.key:
                yield f"the row of {kind}", Row(row.key, other.columns, other.body)
                yield f"the body of {kind}", row._replace(body=other.body)


def _check_found(store: Store, what: str) -> None:
    """Check that reading fails with the right error, or else that verifying finds it."""
    with reopened(store) as again:
        try:
            read_everything(again, "a")
        except HoldfastError as error:
            assert error.code in ("tampered", "corrupt", "key-missing", "key-wrong"), f"{what}: {error!r}"
            return
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} instead of an error of Holdfast, {what}: {error}") from error
        assert not again.maintenance.verify("a").ok, f"{what} is not found"
