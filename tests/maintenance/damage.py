"""Small stores to damage, and every way to damage their rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from holdfast.backends.interface import Backend, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FIELDS, STEPS, TABLES, Key, Table
from holdfast.engine.checked_rows import CheckedBackend
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, Severity, VerifyLevel
from holdfast.engine.integrity.verify import verify
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import CorruptError
from tests.engine.lines import store_on
from tests.engine.pruned import Picture, decorate, dropping_ids, filled, prune

LINE = Line("", "t")
Rows = Mapping[tuple[Table, Key], Row]
Damage = tuple[str, Table, Key, str]


@cache
def small(*, pruned: bool) -> Rows:
    """The rows of a thread with a branch, a revision, names, tags, writes, folds and a large value."""
    backend = memory()
    store = filled(backend)
    decorate(store, ["0", "3", "5", "80"], 0b1111111)
    store.thread("t").put({"again": 1}, id="4")
    if pruned:
        prune(store, dropping_ids("1", "2"))
        store.thread("t").put({"x": [1, 2, 3]}, id="9")
    return rows_of(backend)


def memory() -> MemoryBackend:
    return run(MemoryBackend.open("memory://"))


def rows_of(backend: Backend) -> dict[tuple[Table, Key], Row]:
    """The rows as they are stored, but for the index of fields, which a verification compares with the rest."""
    if isinstance(backend, CheckedBackend):
        backend = backend.inner
    tables = [space for space in TABLES if space is not FIELDS]
    return {(space, row.key): row for space in tables for row in run(backend.read([Scan(space, tuple(LINE))]))[0]}


def loaded(rows: Rows) -> Engine:
    """An engine on a store that has just these rows, and the index of fields of what is left."""
    backend = memory()
    run(backend.apply([Put(space, row) for (space, _), row in rows.items()]))
    engine = store_on(backend, fold_every=3)._engine
    with suppress(CorruptError):
        run(engine.fields.refresh(LINE))
    return engine


def found_in(engine: Engine, level: VerifyLevel = VerifyLevel.HASHES) -> list[Finding]:
    return run(verify(engine.context, LINE, level)).findings


def damage_in(engine: Engine) -> list[Finding]:
    return [each for each in found_in(engine, VerifyLevel.DECODE) if each.severity is Severity.DAMAGE]


def picture(engine: Engine) -> dict[tuple[int, int], tuple[StepRef, Any, dict[str, Any]]]:
    """All steps, with what they say and their states."""
    steps = Picture(store_on(engine.context.backend, fold_every=3)).steps
    return {place: (each.point._replace(tail=0, size=0), each.header, each.state) for place, each in steps.items()}


def missing(rows: Rows) -> Iterator[tuple[Damage, Rows]]:
    """Each row away."""
    for at in rows:
        yield ("missing", *at, ""), {each: row for each, row in rows.items() if each != at}


def altered(rows: Rows) -> Iterator[tuple[Damage, Rows]]:
    """Each column of each row another one, and each body."""
    for at, row in rows.items():
        for number, name in enumerate(at[0].columns):
            columns = list(row.columns)
            value = columns[number]
            if isinstance(value, int):
                columns[number] = value + 1
            else:
                columns[number] = f"{value}x" if isinstance(value, str) else bytes([value[0] ^ 1]) + value[1:]
            yield ("altered", *at, name), {**rows, at: row._replace(columns=tuple(columns))}
        if row.body:
            body = bytearray(row.body)
            body[len(body) // 2] ^= 1
            yield ("altered", *at, "body"), {**rows, at: row._replace(body=bytes(body))}


def exchanged(rows: Rows) -> Iterator[tuple[Damage, Rows]]:
    """Each two rows of a space exchanged, and each copied over each other."""
    for space in TABLES:
        here = [at for at in rows if at[0] is space]
        for one, other in itertools.combinations(here, 2):
            first, second = rows[one], rows[other]
            if first[1:] == second[1:]:
                continue
            put_first = second._replace(key=first.key)
            yield ("swapped", *one, repr(other[1])), {**rows, one: put_first, other: first._replace(key=second.key)}
            yield ("copied", *one, repr(other[1])), {**rows, one: put_first}


UNCOVERED = {"missing steps at the end of a branch", "missing writes", "missing refs"}
"""What neither a checksum nor a hash covers, and only exported heads show."""


def named(damage: Damage, rows: Rows) -> str:
    """A kind of damage, as `UNCOVERED` has it."""
    kind, space, key, what = damage
    name = f"{kind} {space.name}" + (f".{what}" if kind == "altered" else "")
    if space is STEPS and kind == "missing" and (space, (*key[:3], int(key[3]) + 1)) not in rows:
        return f"{name} at the end of a branch"
    if space is STEPS and what in ("time", "hash") and StepRef.of(rows[space, key]).pruned:
        return f"{name} of a pruned one"
    return name
