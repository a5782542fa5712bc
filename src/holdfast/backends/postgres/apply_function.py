"""The function `apply` in the database: it applies a group of batches in one call.

It is generated from the declared tables. Its arguments are arrays: the changes as numbers, and their values by type, in
the order of the changes. It takes its locks first; each statement after that sees all that others have committed, so
that batches on the same lines are applied one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.feed import MAX_LINES
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put
from holdfast.backends.postgres.binary_values import (
    BinaryValue,
    bigint_array,
    bind,
    bytea_array,
    integer_array,
    pack_bytes,
    pack_number,
    pack_text,
    text_array,
)
from holdfast.backends.tables import TABLES, JsonText, Key, Scalar, Table, WordList

TOO_LARGE, BAD_VALUE, FORBIDDEN = -2, -3, -4
"""Outcomes of a batch that the database rejected. -1: it was applied; from 0: the number of the change that failed."""

OVERTAKEN_STATE = "HF001"
"""The SQLSTATE of a group that came after a later one of its slot."""
WRONG_ISOLATION_STATE = "HF002"
"""The SQLSTATE of a transaction in which `apply` would not see what others committed."""
_REFUSED_STATE = "HF409"

GROUP_LINES = 64
"""The most lines that the batches of a group touch together, so that other groups seldom wait for it."""
MAX_LOCKS = 256
"""The most lines that a single batch locks one by one; a larger one locks their tenants. PostgreSQL has some thousands
of locks for all sessions."""
_SHARED = 1
"""Added to the number of a lock that is shared. The numbers of locks are even."""

_CREATE, _ENSURE, _PUT, _EXPECT, _ABSENT, _DELETE = range(6)
_TRIM_EVERY = 256
"""After how many groups of a client the table of changes is trimmed, and with its first."""

_KINDS = 32
"""A change is the number of its table times this, plus its kind; for deletions, plus the width of the prefix."""

_FUNCTION = """
CREATE OR REPLACE FUNCTION {schema}.apply(
  p_client text, p_slot bigint, p_number bigint, p_locks bigint[],
  p_batches integer[], p_changes integer[], p_texts text[], p_numbers bigint[], p_blobs bytea[],
  p_tenants text[], p_lines text[], p_wide bigint
) RETURNS integer[] LANGUAGE plpgsql VOLATILE SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $apply$
DECLARE
  v_nothing text;
  v_lock bigint;
  v_known bigint;
  v_oldest xid8;
  v_outcomes integer[] := '{{}}';
  v_count CONSTANT integer := pg_catalog.cardinality(p_batches) / 5;
  v_batch integer := 0;
  v_at_once boolean;
  v_place integer;
  v_first integer;
  v_length integer;
  v_kind integer;
  t integer;
  n integer;
  b integer;
BEGIN
  IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'apply needs a transaction that is read committed' USING ERRCODE = '{wrong_isolation}';
  END IF;
  -- Odd numbers are locks that are shared.
  FOREACH v_lock IN ARRAY p_locks LOOP
    IF v_lock % 2 = 0 THEN
      v_nothing := pg_catalog.pg_advisory_xact_lock(v_lock);
    ELSE
      v_nothing := pg_catalog.pg_advisory_xact_lock_shared(v_lock - {shared});
    END IF;
  END LOOP;

  SELECT c.number, c.outcomes INTO v_known, v_outcomes
    FROM {schema}.clients c WHERE c.client = p_client AND c.slot = p_slot;
  IF v_known = p_number THEN
    RETURN v_outcomes;
  END IF;
  IF v_known IS NULL THEN
    DELETE FROM {schema}.clients c WHERE c.ctid = ANY (ARRAY(
      SELECT o.ctid FROM {schema}.clients o WHERE o.time < pg_catalog.now() - interval '1 day'
      LIMIT 100 FOR UPDATE SKIP LOCKED));
  END IF;

  IF v_known IS NULL OR p_number % {trim_every} = 0 THEN
    SELECT o.xid INTO v_oldest FROM {schema}.changes o
      WHERE o.xid < pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())
      ORDER BY o.xid DESC OFFSET {max_lines} LIMIT 1;
    IF FOUND THEN
      DELETE FROM {schema}.changes c WHERE c.ctid = ANY (ARRAY(
        SELECT o.ctid FROM {schema}.changes o WHERE o.xid <= v_oldest FOR UPDATE SKIP LOCKED));
      INSERT INTO {schema}.changes (xid, line, trimmed) VALUES (v_oldest, NULL, true);
    END IF;
  END IF;

  -- First all batches at once, which saves subtransactions; if one is refused, each by itself.
  v_outcomes := '{{}}';
  v_at_once := v_count > 1;
  WHILE v_batch < v_count LOOP
    BEGIN
      LOOP
        v_first := p_batches[5 * v_batch + 1];
        v_length := p_batches[5 * v_batch + 2];
        t := p_batches[5 * v_batch + 3];
        n := p_batches[5 * v_batch + 4];
        b := p_batches[5 * v_batch + 5];
        v_place := 0;
        WHILE v_place < v_length LOOP
          v_kind := p_changes[v_first + v_place] % {kinds};
          CASE p_changes[v_first + v_place] / {kinds}
{spaces}
          END CASE;
          IF (v_kind = {create} OR v_kind = {expect}) AND NOT FOUND OR v_kind = {absent} AND FOUND THEN
            RAISE EXCEPTION 'refused' USING ERRCODE = '{refused}';
          END IF;
          v_place := v_place + 1;
        END LOOP;
        v_outcomes := v_outcomes || -1;
        v_batch := v_batch + 1;
        EXIT WHEN NOT v_at_once OR v_batch = v_count;
      END LOOP;
    EXCEPTION WHEN SQLSTATE '{refused}' OR program_limit_exceeded OR data_exception OR insufficient_privilege THEN
      IF v_at_once THEN
        v_at_once := false;
        v_batch := 0;
        v_outcomes := '{{}}';
      ELSE
        v_outcomes := v_outcomes || CASE
          WHEN SQLSTATE = '{refused}' THEN v_place
          WHEN SQLSTATE LIKE '54%' THEN {too_large}
          WHEN SQLSTATE LIKE '22%' THEN {bad_value}
          ELSE {forbidden} END;
        v_batch := v_batch + 1;
      END IF;
    END;
  END LOOP;

  IF v_outcomes @> ARRAY[-1] THEN
    INSERT INTO {schema}.changes (tenant, line)
      SELECT f.tenant, f.line FROM unnest(p_tenants, p_lines) AS f (tenant, line);
    IF p_wide > 0 THEN
      INSERT INTO {schema}.changes (line) VALUES (NULL);
    END IF;
  END IF;

  INSERT INTO {schema}.clients AS c (client, slot, number, outcomes) VALUES (p_client, p_slot, p_number, v_outcomes)
    ON CONFLICT (client, slot) DO UPDATE
    SET number = excluded.number, outcomes = excluded.outcomes, time = pg_catalog.now()
    WHERE c.number < excluded.number;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'a later group came first' USING ERRCODE = '{overtaken}';
  END IF;
  RETURN v_outcomes;
END
$apply$;
COMMENT ON FUNCTION {schema}.apply IS 'Makes batches of changes: each whole, or not at all';
"""


def apply_function_sql(schema: str) -> str:
    """Build the statement that creates the function, in a schema whose name is quoted."""
    return _FUNCTION.format(
        schema=schema,
        spaces="\n".join(_table_case(schema, place, space) for place, space in enumerate(TABLES)),
        kinds=_KINDS,
        create=_CREATE,
        expect=_EXPECT,
        absent=_ABSENT,
        refused=_REFUSED_STATE,
        overtaken=OVERTAKEN_STATE,
        wrong_isolation=WRONG_ISOLATION_STATE,
        too_large=TOO_LARGE,
        bad_value=BAD_VALUE,
        forbidden=FORBIDDEN,
        shared=_SHARED,
        max_lines=MAX_LINES,
        trim_every=_TRIM_EVERY,
    )


def _table_case(schema: str, place: int, space: Table) -> str:
    """Build the branch for the changes of one table."""
    table = f"{schema}.{space.name}"
    row = {**space.all_columns, "body": bytes}
    insert = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(_value_expressions(row))})"  # noqa: S608 - quoted names
    update = ", ".join(f"{name} = excluded.{name}" for name in (*space.columns, "body"))
    perform = f"PERFORM 1 FROM {table} WHERE"
    cases = [
        _case((_CREATE, _ENSURE), f"{insert} ON CONFLICT DO NOTHING", row),
        _case((_EXPECT,), f"{perform} {_equality(space.all_columns)}", space.all_columns),
        _case((_PUT,), f"{insert} ON CONFLICT ({', '.join(space.key)}) DO UPDATE SET {update}", row),
        _case((_ABSENT,), f"{perform} {_equality(space.key)}", space.key),
    ]
    for width in range(len(space.key), -1, -1):
        prefix = dict(list(space.key.items())[:width])
        cases.append(_case((_DELETE + width,), f"DELETE FROM {table} WHERE {_equality(prefix)}", prefix))  # noqa: S608
    lines = "\n".join(cases)
    return f"          WHEN {place} THEN\n            CASE v_kind\n{lines}\n            END CASE;"


def _case(kinds: Sequence[int], statement: str, columns: Mapping[str, type]) -> str:
    indent = " " * 14
    moves = "".join(
        f"\n{indent}{at} := {at} + {count};"
        for at, count in (
            ("t", sum(kind in (str, JsonText, WordList) for kind in columns.values())),
            ("n", sum(kind is int for kind in columns.values())),
            ("b", sum(kind is bytes for kind in columns.values())),
        )
        if count
    )
    return f"            WHEN {', '.join(map(str, kinds))} THEN\n{indent}{statement};{moves}"


def _value_expressions(columns: Mapping[str, type]) -> Iterator[str]:
    """Yield the SQL of the values of columns, from the positions `t`, `n` and `b` on."""
    counts = {"p_texts[t": 0, "p_numbers[n": 0, "p_blobs[b": 0}
    words = "pg_catalog.array_to_tsvector"
    for kind in columns.values():
        array = "p_numbers[n" if kind is int else "p_blobs[b" if kind is bytes else "p_texts[t"
        value = f"{array} + {counts[array]}]"
        if kind is WordList:
            value = f"{words}(pg_catalog.array_remove(pg_catalog.string_to_array({value}, ' '), ''))"
        yield f"{value}::jsonb" if kind is JsonText else value
        counts[array] += 1


def _equality(columns: Mapping[str, type]) -> str:
    pairs = zip(columns, _value_expressions(columns), strict=True)
    return " AND ".join(f"{name} = {value}" for name, value in pairs) or "true"


# Arguments --------------------------------------------------------------------------------------------------------


class PackedBatch(NamedTuple):
    """A batch, ready to send."""

    changes: list[int]
    texts: list[bytes]
    numbers: list[bytes]
    blobs: list[bytes]
    changed: set[Key]
    """The lines that it changes: tenant and name. A tenant alone, or an empty key, stands for all lines below it."""
    expected: set[Key]
    """The lines on which it has conditions."""
    reported: set[Key]
    """The lines of `changed` that `Backend.changes` reports."""


_TABLE_CODES = {space.name: place * _KINDS for place, space in enumerate(TABLES)}
_ROW_KINDS: dict[type[Change], int] = {Create: _CREATE, Ensure: _ENSURE, Put: _PUT}


def pack(batch: Batch) -> PackedBatch:
    """Pack a batch as arrays. A value that does not fit into its column raises one of `VALUE_ERRORS`."""
    packed = PackedBatch([], [], [], [], set(), set(), set())
    for change in batch:
        space = change.space
        if isinstance(change, Delete):
            key, kind = change.prefix, _DELETE + len(change.prefix)
            _pack_values(packed, list(space.key.values())[: len(key)], key)
        elif isinstance(change, Expect):
            key = change.key
            kind = _ABSENT if change.columns is None else _EXPECT
            columns = space.key if change.columns is None else space.all_columns
            _pack_values(packed, columns.values(), key + (change.columns or ()))
        else:
            key, kind = change.row.key, _ROW_KINDS[type(change)]
            _pack_values(packed, space.all_columns.values(), key + change.row.columns)
            packed.blobs.append(pack_bytes(change.row.body))
        packed.changes.append(_TABLE_CODES[space.name] + kind)
        if isinstance(change, Expect):
            packed.expected.add(key[:2])
        else:
            packed.changed.add(key[:2])
            if space.in_feed:
                packed.reported.add(key[:2])
    return packed


def _pack_values(packed: PackedBatch, kinds: Iterable[type], values: Key) -> None:
    for each, kind in zip(values, kinds, strict=True):
        if kind is int:
            packed.numbers.append(pack_number(each))  # type: ignore[arg-type]
        elif kind is bytes:
            packed.blobs.append(pack_bytes(each))  # type: ignore[arg-type]
        else:
            packed.texts.append(pack_text(each))  # type: ignore[arg-type]


def build_arguments(schema: str, stamp: GroupStamp, group: Sequence[PackedBatch]) -> list[BinaryValue]:
    """Build the arguments of `apply`."""
    shape: list[int] = []
    all_changes: list[int] = []
    all_texts: list[bytes] = []
    all_numbers: list[bytes] = []
    all_blobs: list[bytes] = []
    for packed in group:
        firsts = (len(all_texts) + 1, len(all_numbers) + 1, len(all_blobs) + 1)
        shape += (len(all_changes) + 1, len(packed.changes), *firsts)
        all_changes += packed.changes
        all_texts += packed.texts
        all_numbers += packed.numbers
        all_blobs += packed.blobs
    reported: set[Key] = set().union(*(packed.reported for packed in group))
    lines = [key for key in reported if len(key) == 2]
    return [
        bind(stamp.client),
        bind(stamp.slot),
        bind(stamp.number),
        bigint_array([pack_number(each) for each in _locks(schema, group)]),
        integer_array(shape),
        integer_array(all_changes),
        text_array(all_texts),
        bigint_array(all_numbers),
        bytea_array(all_blobs),
        text_array([pack_text(str(tenant)) for tenant, _ in lines]),
        text_array([pack_text(str(line)) for _, line in lines]),
        bind(len(reported) - len(lines)),
    ]


def _locks(schema: str, group: Sequence[PackedBatch]) -> list[int]:
    """Return the locks of a group: of the store, of tenants, of lines. Those of lines that have only conditions are
    shared, and so are those above a line; a group that changes all lines of a tenant, or too many, locks the tenant.

    They are in the same order everywhere, so that there are no deadlocks.
    """
    changed: set[Key] = set().union(*(packed.changed for packed in group))
    touched = changed.union(*(packed.expected for packed in group))
    if () in changed:
        return [lock_id(schema)]
    whole = {key[0] for key in touched if len(key) == 1 or len(touched) > MAX_LOCKS}
    tenants = {lock_id(schema, tenant) | (_SHARED * (tenant not in whole)) for tenant in {key[0] for key in touched}}
    lines = {lock_id(schema, *key) | (_SHARED * (key not in changed)) for key in touched if key[0] not in whole}
    return [lock_id(schema) | _SHARED, *sorted(tenants), *sorted(lines)]


@lru_cache(4096)
def lock_id(schema: str, *key: Scalar) -> int:
    """Return the number of the advisory lock of a line, of a tenant or of the schema. It is even."""
    names = (schema, *map(str, key))
    digest = blake2b(b"".join(pack_text(name) for name in names), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, signed=True) & ~1  # type: ignore[stored-bytes]  # a digest has its size
