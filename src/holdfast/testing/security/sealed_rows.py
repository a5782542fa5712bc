"""Attacks on an encrypted store by somebody who can write to its database, and has no key."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, OBJECTS, REFS, STEPS, WRITES, Table
from holdfast.codec.envelope import wrap
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.errors import HoldfastError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from holdfast.testing.security.stored_rows import database, read_everything, reopened

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
