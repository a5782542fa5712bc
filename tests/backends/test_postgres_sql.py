"""The PostgreSQL backend: the views for people, and functions that somebody else put into the path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import holdfast
from holdfast.backends.conformance.kit import Driven
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Create, Get, Put, Scan
from holdfast.backends.postgres import setup
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.queries import MAX_COMBINED
from holdfast.backends.postgres.schema import table_names
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, METADATA, READABLE, STEPS, WORDS
from holdfast.errors import UnavailableError
from tests import servers


@pytest.fixture
def url() -> str:
    """A database with nothing in it."""
    return servers.postgres()


def sql(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def opened(url: str) -> Driven:
    return Driven(run(PostgresBackend.open(url)), run)


# Functions of others

_PLANTED = {
    "cardinality(integer[])": "integer",
    "array_remove(text[], text)": "text[]",
    "array_to_string(text[], text)": "text",
    "unnest(text[])": "SETOF text",
    "unnest(bigint[])": "SETOF bigint",
    "to_timestamp(numeric)": "timestamptz",
    "replace(text, text, name)": "text",
    "format(text, text, text)": "text",
    "quote_ident(name)": "text",
    "pg_total_relation_size(oid)": "bigint",
    "has_function_privilege(oid, text)": "boolean",
    "verify_heapam(regclass)": "SETOF record",
    "append(integer[], integer)": "integer[]",
    "divide(bigint, numeric)": "numeric",
    "add(bytea, bytea)": "bytea",
}
"""Functions that fit a call better than PostgreSQL's own, which take any array or need a cast."""


@pytest.fixture
def planted(url: str) -> Iterator[str]:
    """A database in whose public schema another role has put functions and operators that say as whom they run."""
    role = f"role_{urlsplit(url).path[1:]}"
    sql(url, f"CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        for signature, result in _PLANTED.items():
            body = f"BEGIN RAISE EXCEPTION 'planted: {signature} runs as %', current_user; END"
            connection.execute(
                f"CREATE FUNCTION public.{signature} RETURNS {result} LANGUAGE plpgsql AS $${body}$$".encode()
            )
        connection.execute(b"CREATE OPERATOR public.|| (FUNCTION = append, LEFTARG = integer[], RIGHTARG = integer)")
        connection.execute(b"CREATE OPERATOR public./ (FUNCTION = divide, LEFTARG = bigint, RIGHTARG = numeric)")
        connection.execute(b"CREATE AGGREGATE public.count (bytea) (SFUNC = add, STYPE = bytea, INITCOND = '')")
    yield url
    sql(url, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_functions_of_others_are_never_run(planted: str) -> None:
    setup(planted)
    store = opened(planted)
    lines = [row_of(LINES, "tenant", f"{n}", created=1) for n in range(3)]
    word = row_of(WORDS, "tenant", "0", 0, 0, time=1, words="some words")
    value = row_of(METADATA, "tenant", "0", "c", "k", value="[1]")
    assert store.apply(*(Create(LINES, line) for line in lines), Create(WORDS, word), Put(METADATA, value)) is None
    step = row_of(STEPS, "tenant", "0", 0, 0, id="a", time=1, metadata="{}")
    assert store.apply(Create(STEPS, step)) is None
    keys = [(line.key[0], line.key[1]) for line in lines]
    assert [sorted(rows) for rows in store.read(Get(LINES, keys), Get(LINES, [*keys, ("other", "x")]))] == [lines] * 2
    assert len(store.read(*[Scan(LINES, ("tenant",))] * (MAX_COMBINED + 1))) == MAX_COMBINED + 1
    assert store.scan(WORDS) in ([word], [word._replace(columns=(1, "words some"))])
    assert store.scan(METADATA) == [value]
    assert store.drive(store.backend.match("tenant", ["words"])).keys == [word.key]
    assert store.drive(store.backend.size()) > 0
    assert store.drive(store.backend.check()) == []
    store.drive(store.backend.tidy())
    store.close()
    # Nor by the views, for anybody who looks.
    assert len(sql(planted, "SELECT * FROM holdfast.threads")) == 3
    assert len(sql(planted, "SELECT * FROM holdfast.log")) == 1
    setup(planted, rls=True)


def test_without_the_setting_a_function_of_another_is_run(planted: str) -> None:
    """The control: what is planted fits, and its effects are noticed."""
    for call in ("cardinality(ARRAY[1])", "ARRAY[1] || 1", "count(''::bytea)", "quote_ident('x'::name)"):
        with pytest.raises(psycopg.errors.RaiseException, match="planted: .* runs as app"):
            sql(planted, f"SELECT {call}")
    setup(planted)
    sql(planted, "ALTER FUNCTION holdfast.apply RESET search_path")
    store = opened(planted)
    with pytest.raises(UnavailableError, match="planted: append"):
        store.apply(Create(LINES, row_of(LINES, "tenant", "line")))
    store.close()


def test_every_function_has_a_path_of_its_own(url: str) -> None:
    setup(url)
    found = sql(url, "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace")
    assert [name for name, _ in found] == ["apply"]
    for name, settings in found:
        assert "search_path=pg_catalog, pg_temp" in settings, name


# Views


def test_columns_have_the_types_that_people_expect(url: str) -> None:
    said = {"user": "ada", "nul": "a\0b", "deep": [{"n": 1.5}], "slash": "\\", "none": None}
    with holdfast.open(url) as store:
        store.thread("chat").put({"n": 1}, metadata=said)
        store.thread("chat").put({"n": 2})
    found = sql(url, "SELECT seq, metadata, time, pg_typeof(metadata)::text, pg_typeof(time)::text FROM holdfast.log")
    assert [row[:2] for row in sorted(found)] == [(0, said | {"nul": "a\ufffdb"}), (1, None)]
    assert {row[3:] for row in found} == {("jsonb", "timestamp with time zone")}
    assert all(abs(datetime.now(UTC) - row[2]) < timedelta(hours=1) for row in found)
    assert sql(url, "SELECT seq FROM holdfast.log WHERE metadata ->> 'user' = 'ada'") == [(0,)]
    types = "SELECT DISTINCT pg_typeof(created)::text, pg_typeof(time)::text FROM holdfast.threads"
    assert sql(url, types) == [("timestamp with time zone",) * 2]


def test_comments_say_something(url: str) -> None:
    setup(url)
    described = dict(sql(url, "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class "
                              "WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'v')"))  # fmt: skip
    assert set(described) == {*table_names(clients=True), "version", "threads", "log", "agent_states"}
    for name, comment in described.items():
        assert comment is not None, name
        assert len(comment.split()) >= 3, (name, comment)
    columns = sql(url, "SELECT c.relname, a.attname, col_description(c.oid, a.attnum) FROM pg_class c "
                       "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
                       "WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'v'")  # fmt: skip
    assert len(columns) == 31
    assert all(comment and comment != column for _, column, comment in columns), columns


_MANY = """
INSERT INTO holdfast.lines SELECT 'tenant ' || n, 'chat ' || n, 1, 1, 1, 0, '', '' FROM generate_series(1, 5000) n;
INSERT INTO holdfast.steps SELECT 'tenant ' || n, 'chat ' || n, 0, s, s::text, 0, s, '', 1, 'save', '', 0, 0, -1, ''
  FROM generate_series(1, 5000) n, generate_series(0, 3) s;
INSERT INTO holdfast.branches SELECT 'tenant ' || n, 'chat ' || n, 1, 0, 0, 0, '', '' FROM generate_series(1, 5000) n;
INSERT INTO holdfast.heads SELECT 'tenant ' || n, 'chat ' || n, '', '', '', '', '', '', '', '', '', 0, '', 0, ''
  FROM generate_series(1, 5000) n;
INSERT INTO holdfast.state_values SELECT 'tenant ' || n, 'chat ' || n, 'c', '', 0, '', '', 'null', ''
  FROM generate_series(1, 5000) n;
INSERT INTO holdfast.conversation_history
  SELECT 'tenant ' || n, 'chat ' || n, 'c', 0, '', '', '', '', 'null', '', '', 'null', ''
  FROM generate_series(1, 5000) n;
INSERT INTO holdfast.transitions SELECT 'tenant ' || n, 'chat ' || n, 'c', '', '', 0, 0, '', '', 'null', ''
  FROM generate_series(1, 5000) n;
INSERT INTO holdfast.metadata SELECT 'tenant ' || n, 'chat ' || n, 'c', 'k', 'null', '' FROM generate_series(1, 5000) n;
INSERT INTO holdfast.state_transitions
  SELECT 'tenant ' || n, 'chat ' || n, 'c', 0, 'a', '', '', '', '', 'true', '', 'null', '', 'null', ''
  FROM generate_series(1, 5000) n;
"""


def plan(connection: psycopg.Connection, relation: str) -> set[tuple[str, str]]:
    """The nodes of the plan for a thread, each with the index that it uses."""
    explain = f"EXPLAIN (FORMAT JSON) SELECT * FROM holdfast.{relation} WHERE thread = 'chat 77'"
    (row,) = connection.execute(explain.encode()).fetchall()
    nodes, found = [json.loads(json.dumps(row[0]))[0]["Plan"]], set()
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        found.add((node["Node Type"], node.get("Index Name", "")))
    return found


def test_a_thread_is_found_by_an_index(url: str) -> None:
    setup(url)
    names = ["threads", "log", *(space.name for space in READABLE)]
    sql(url, _MANY)
    sql(url, "ANALYZE")
    with psycopg.connect(url) as connection:
        for name in names:
            used = plan(connection, name)
            table = "lines" if name in ("threads", "log") else name
            assert f"{table}_thread" in {index for _, index in used}, (name, used)
            assert not [node for node, _ in used if node == "Seq Scan"], (name, used)
        # The control: without these indexes, the tables are read.
        for table in ("lines", *names[2:]):
            connection.execute(f"DROP INDEX holdfast.{table}_thread".encode())
        for name in names:
            assert [node for node, _ in plan(connection, name) if node == "Seq Scan"], name
        connection.rollback()
