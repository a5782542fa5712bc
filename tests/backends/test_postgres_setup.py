"""The PostgreSQL backend: URLs and options, making the schema, and who may do what."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import holdfast
from holdfast.backends.conformance.kit import Driven, case
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Create, Delete, Expect, Get, Put, Scan
from holdfast.backends.postgres import setup
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.schema import VERSION, table_names
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS, TABLES, WORDS
from holdfast.errors import ConfigError, DeniedError, TransientError
from tests import servers

ACME = row_of(LINES, "acme", "line", body=b"acme's")
OTHER = row_of(LINES, "other", "line", body=b"other's")


@pytest.fixture
def url() -> str:
    """A database with nothing in it."""
    return servers.postgres()


@pytest.fixture
def role(url: str) -> Iterator[str]:
    """The name of a role that may connect, and nothing else."""
    name = f"role_{urlsplit(url).path[1:]}"
    sql(url, f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    yield name
    sql(url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def sql(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        while cursor.nextset():  # what the last statement finds
            pass
        return cursor.fetchall() if cursor.description else []


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()


def with_parts(url: str, **query: str) -> str:
    return url + "?" + "&".join(f"{name}={value}" for name, value in query.items())


def opened(url: str, **options: Any) -> Driven:
    return Driven(run(PostgresBackend.open(url, **options)), run)


# Where it is


def test_a_schema_of_any_name(url: str) -> None:
    names = ("agents", "Two Words", 'quo"ted', "it's", "select", "é")
    for schema in names:
        with case(schema):
            store = opened(url, schema=schema)
            store.fill(LINES, [ACME])
            assert store.apply(Create(LINES, ACME)) == 0
            assert store.scan(LINES) == [ACME]
            assert store.drive(store.backend.check()) == []
            store.drive(store.backend.tidy())
            assert store.drive(store.backend.size()) > 0
            store.close()
    found = sql(url, "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|public)'")
    assert {schema for (schema,) in found} == set(names)


def test_schemas_are_stores_of_their_own(url: str) -> None:
    first, second = opened(with_parts(url, schema="first")), opened(url, schema="second")
    first.fill(LINES, [ACME])
    assert second.scan(LINES) == []
    assert second.apply(Create(LINES, ACME)) is None
    assert first.apply(Delete(LINES, ())) is None
    assert second.scan(LINES) == [ACME]
    first.close()
    second.close()


@pytest.mark.parametrize("schema", ["", "x" * 64, "a$b", "a\nb", 7], ids=["none", "long", "dollar", "break", "number"])
def test_names_that_no_schema_can_have(schema: Any) -> None:
    with pytest.raises(ConfigError, match="schema cannot be"):
        opened("postgresql://127.0.0.1:1/nowhere", schema=schema)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": "soon"}, "timeout cannot be 'soon'"),
        ({"timeout": 0}, "timeout cannot be 0"),
        ({"pool_size": 0}, "pool_size cannot be 0"),
        ({"tenant": 7}, "tenant cannot be 7"),
    ],
    ids=["words", "no time", "no connection", "number"],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened("postgresql://127.0.0.1:1/nowhere", **options)


def test_a_url_that_libpq_cannot_read() -> None:
    for bad in ("postgresql://host/db?no_such_parameter=1", "postgresql://host:port/db%zz", "postgresql:/host"):
        with pytest.raises(ConfigError):
            opened(bad)


def test_what_libpq_knows_is_passed_on(url: str) -> None:
    store = opened(with_parts(url, application_name="a+b", connect_timeout="5", schema="other"))
    assert sql(url, "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'a%'") == [("a+b",)]
    store.close()
    store = opened(url)
    assert sql(url, "SELECT DISTINCT application_name FROM pg_stat_activity WHERE query LIKE '%max(version)%' "
                    "AND pid <> pg_backend_pid()") == [("holdfast",)]  # fmt: skip
    store.close()


def test_a_service_file_and_variables(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = urlsplit(url)
    service = tmp_path / "services"
    service.write_text(f"[agents]\nhost={parts.hostname}\nport={parts.port}\nuser=app\ndbname={parts.path[1:]}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    with holdfast.open("postgresql:///?service=agents") as store:
        store.thread("chat").put({"n": 1})
    with pytest.raises(ConfigError, match="no_such_service"):
        opened("postgresql:///?service=no_such_service")
    for name, value in {"HOST": parts.hostname, "PORT": parts.port, "USER": "app", "DATABASE": parts.path[1:]}.items():
        monkeypatch.setenv(f"PG{name}", str(value))
    with holdfast.open("postgres://") as store:
        assert store.thread("chat").get().state == {"n": 1}


def test_a_database_that_is_not_there(url: str) -> None:
    with pytest.raises(ConfigError, match='database "nowhere" does not exist'):
        opened(url.rpartition("/")[0] + "/nowhere")


def test_a_user_that_is_not_there(url: str) -> None:
    with pytest.raises(ConfigError, match='role "nobody_we_know" does not exist'):
        opened(as_role(url, "nobody_we_know"))


def test_a_password_is_shown_to_nobody(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(as_role(url, "nobody_we_know") + "?password=another-secret")
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_utf_8(url: str) -> None:
    sql(url, "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        with pytest.raises(ConfigError, match="encoded in LATIN1"):
            opened(url.rpartition("/")[0] + "/latin")
    finally:
        sql(url, "DROP DATABASE latin")


# Making the schema


@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_several_processes_come_first(url: str, count: int) -> None:
    program = (
        "import sys\n"
        "from holdfast.backends.interface import Create\n"
        "from holdfast.backends.postgres import PostgresBackend\n"
        "from holdfast.backends.tables import LINES\n"
        "from holdfast.backends.runtime.drivers import run\n"
        "from holdfast.backends.conformance.rows import row_of\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "store = run(PostgresBackend.open(sys.argv[1]))\n"
        "assert run(store.apply([Create(LINES, row_of(LINES, 'tenant', sys.argv[2]))])) is None\n"
        "run(store.close())\n"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, url]
    children = [subprocess.Popen([*command, str(n)], stdin=pipe, stdout=pipe, stderr=pipe) for n in range(count)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:  # all at once, before any is waited for
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
    errors = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0] * count, errors
    store = opened(url)
    assert len(store.scan(LINES)) == count
    store.close()


def test_one_who_may_not_make_the_schema_is_told_how(url: str, role: str) -> None:
    with pytest.raises(ConfigError, match=r"holdfast\.backends\.postgres\.setup\(url, schema='holdfast', role="):
        opened(as_role(url, role))


def test_one_who_may_not_make_the_schema_uses_it(url: str, role: str) -> None:
    setup(url, role=role)
    store = opened(as_role(url, role))
    store.fill(LINES, [ACME])
    assert store.scan(LINES) == [ACME]
    assert store.apply(Delete(LINES, ()), Put(LINES, OTHER), Create(STEPS, row_of(STEPS, "t", "l", 0, 0))) is None
    assert store.drive(store.backend.check()) == []
    store.drive(store.backend.tidy())
    store.close()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql(as_role(url, role), "DELETE FROM holdfast.version")


def test_a_schema_without_grants(url: str, role: str) -> None:
    setup(url)
    with pytest.raises(DeniedError, match=r"postgres\.setup\(schema"):
        opened(as_role(url, role))
    sql(url, f"GRANT USAGE ON SCHEMA holdfast TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}")
    store = opened(as_role(url, role))
    assert store.scan(LINES) == []
    with pytest.raises(DeniedError):
        store.apply(Create(LINES, ACME))
    assert store.scan(LINES) == []
    store.close()


def test_one_whose_schema_was_made_for_him(url: str, role: str) -> None:
    """He may make tables in it, but no schemas."""
    sql(url, f"CREATE SCHEMA holdfast AUTHORIZATION {role}")
    store = opened(as_role(url, role))
    store.fill(LINES, [ACME])
    store.close()


@pytest.mark.parametrize("schema", ["100% it's"])
def test_a_schema_of_any_name_that_a_role_may_use(url: str, role: str, schema: str) -> None:
    setup(url, schema, role=role)
    setup(url, schema)
    store = opened(as_role(url, role), schema=schema)
    assert store.scan(WORDS) == []
    store.close()


def test_tidying_gives_room_back(url: str) -> None:
    store = opened(url)
    store.fill(NODES, [row_of(NODES, "t", "l", 0, bytes([n]), body=bytes(200_000)) for n in range(50)])
    before = store.drive(store.backend.size())
    assert store.apply(Delete(NODES, ("t",))) is None
    store.drive(store.backend.tidy())
    assert store.drive(store.backend.size()) < before / 5
    store.close()


def test_setting_up_again_changes_nothing(url: str) -> None:
    sql(url, setup())
    store = opened(url)
    store.fill(LINES, [ACME])
    setup(url)
    sql(url, setup())
    assert store.scan(LINES) == [ACME]
    assert store.apply(Create(LINES, ACME)) == 0
    store.close()


def test_a_newer_schema_is_left_alone(url: str) -> None:
    setup(url)
    sql(url, f"INSERT INTO holdfast.version VALUES ({VERSION + 1})")
    with pytest.raises(ConfigError, match="newer Holdfast"):
        opened(url)


def test_a_schema_that_is_dropped_meanwhile(url: str) -> None:
    store = opened(url)
    sql(url, "SET client_min_messages = warning; DROP SCHEMA holdfast CASCADE")
    with pytest.raises(ConfigError, match="not what Holdfast created"):
        store.scan(LINES)
    with pytest.raises(ConfigError, match="not what Holdfast created"):
        store.apply(Create(LINES, ACME))
    store.close()


def test_setup_tells_what_is_wrong(url: str, role: str) -> None:
    with pytest.raises(DeniedError):
        setup(as_role(url, role))
    with pytest.raises(ConfigError, match="does not exist"):
        setup(as_role(url, "nobody_we_know"))
    with pytest.raises(TransientError, match="refused"):
        setup("postgresql://127.0.0.1:1/nowhere")


def test_people_find_their_way(url: str) -> None:
    with holdfast.open(url, tenant="acme") as store:
        store.thread("chat-1").put({"n": 1}, metadata={"user": "ada"})
        store.thread("chat-1").put({"n": 2})
    assert sql(url, "SELECT tenant, thread, steps, branches, time >= created FROM holdfast.threads") == [
        ("acme", "chat-1", 2, 1, True)
    ]
    log = sql(url, "SELECT tenant, thread, seq, bytes > 0, now() - time < interval '1 hour' FROM holdfast.log")
    assert log == [("acme", "chat-1", 0, True, True), ("acme", "chat-1", 1, True, True)]
    described = sql(url, "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' "
                         "AND obj_description(oid) IS NOT NULL")  # fmt: skip
    assert {name for (name,) in described} == {*table_names(clients=True), "version"}
    # Bodies are compressed by Holdfast: PostgreSQL is told not to try.
    storage = sql(url, "SELECT DISTINCT attstorage FROM pg_attribute WHERE attname = 'body' "
                       "AND attrelid = 'holdfast.steps'::regclass")  # fmt: skip
    assert storage == [("e",)]


# Row-level security


@pytest.fixture
def guarded(url: str, role: str) -> str:
    """A schema with row-level security, and the URL of a role that is bound by it."""
    setup(url, rls=True, role=role)
    return as_role(url, role)


def test_a_guarded_schema_is_opened_for_a_tenant(url: str, role: str, guarded: str) -> None:
    with pytest.raises(ConfigError, match="row-level security") as caught:
        opened(guarded)
    with pytest.raises(ConfigError, match="the tenant without a name"):
        holdfast.open(guarded)
    deadline = time.monotonic() + 120
    while sql(url, f"SELECT 1 FROM pg_stat_activity WHERE usename = '{role}'"):
        assert time.monotonic() < deadline, "a connection was left open"
        time.sleep(0.01)
    assert caught.value.hint  # it is still known here, and all that led to it


def test_a_tenant_sees_nothing_of_another(url: str, guarded: str) -> None:
    acme, other = opened(guarded, tenant="acme"), opened(with_parts(guarded, tenant="other"))
    acme.fill(LINES, [ACME])
    other.fill(LINES, [OTHER])
    for space in TABLES:
        assert other.scan(space, ("acme",)) == []
    assert other.read(Get(LINES, [ACME.key]), Scan(LINES, ())) == [[], [OTHER]]
    # Nor through the function that makes changes: neither the row itself, nor whether it is there.
    assert other.apply(Expect(LINES, ACME.key, ACME.columns)) == 0
    assert other.apply(Expect(LINES, ACME.key, None)) is None
    for change in (Create(LINES, ACME), Put(LINES, ACME), Create(STEPS, row_of(STEPS, "acme", "line", 0, 0))):
        with pytest.raises(DeniedError):
            other.apply(change)
    assert other.apply(Delete(LINES, ("acme",)), Delete(LINES, ())) is None
    assert other.scan(LINES) == []
    assert acme.scan(LINES) == [ACME]
    assert sql(url, "SELECT tenant FROM holdfast.lines") == [("acme",)]
    acme.close()
    other.close()


def test_views_and_plain_sql_are_guarded_too(guarded: str) -> None:
    with holdfast.open(guarded, tenant="acme") as store:
        store.thread("chat-1").put({"n": 1})
    with holdfast.open(guarded, tenant="other") as store:
        assert list(store.threads()) == []
    for name in (*table_names(clients=True), "threads", "log"):
        assert sql(guarded, f"SELECT * FROM holdfast.{name}") == [], name
        query = "SET holdfast.tenant = 'other'; SELECT * FROM holdfast.{}"
        assert sql(guarded, query.format(name)) == [], name
    assert len(sql(guarded, "SET holdfast.tenant = 'acme'; SELECT * FROM holdfast.threads")) == 1


def test_a_connection_that_had_a_tenant_sees_nothing(url: str, guarded: str) -> None:
    """After a transaction that set the tenant, PostgreSQL has an empty text for it, and not NULL."""
    unnamed = row_of(LINES, "", "line")
    owner = opened(url)
    owner.fill(LINES, [unnamed, ACME])
    owner.close()
    with psycopg.connect(guarded, autocommit=True) as connection:
        for _ in range(2):
            assert connection.execute(b"SELECT * FROM holdfast.lines").fetchall() == []
            assert connection.execute(b"SELECT * FROM holdfast.threads").fetchall() == []
            with connection.transaction():
                connection.execute(b"SELECT set_config('holdfast.tenant', 'acme', true)")
                assert connection.execute(b"SELECT tenant FROM holdfast.lines").fetchall() == [("acme",)]
        assert connection.execute(b"SELECT current_setting('holdfast.tenant', true)").fetchall() == [("",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(b"INSERT INTO holdfast.nodes VALUES ('', 'line', 0, '', '')")
    assert len(sql(url, "SELECT * FROM holdfast.lines WHERE tenant = ''")) == 1  # there is something to see


def test_the_owner_is_bound_too(url: str, role: str) -> None:
    sql(url, f"CREATE SCHEMA holdfast AUTHORIZATION {role}")
    owner = as_role(url, role)
    setup(owner, rls=True)
    with pytest.raises(ConfigError, match="row-level security"):
        opened(owner)
    store = opened(owner, tenant="acme")
    store.fill(LINES, [ACME])
    store.close()
    assert sql(owner, "SELECT * FROM holdfast.lines") == []


def test_old_clients_of_a_tenant_are_forgotten(url: str, guarded: str) -> None:
    store = opened(guarded, tenant="acme")
    sql(url, "INSERT INTO holdfast.clients SELECT who, 1, 1, '{}', now() - interval '2 days', who "
             "FROM unnest('{acme,other}'::text[]) who")  # fmt: skip
    store.drive(store.backend.tidy())
    assert store.drive(store.backend.check()) == []
    store.close()
    assert sql(url, "SELECT client FROM holdfast.clients") == [("other",)]


def test_names_of_tenants_that_are_escaped(guarded: str) -> None:
    odd = row_of(LINES, "a\0b\1", "line")
    store = opened(guarded, tenant="a\0b\1")
    store.fill(LINES, [odd])
    assert store.scan(LINES) == [odd]
    store.close()


def test_security_is_turned_on_later(url: str, role: str) -> None:
    setup(url, role=role)
    store = opened(as_role(url, role), tenant="acme")
    store.fill(LINES, [ACME, OTHER])
    store.close()
    setup(url, rls=True)
    store = opened(as_role(url, role), tenant="acme")
    assert store.scan(LINES) == [ACME]
    store.close()


def test_a_guarded_schema_through_pgbouncer() -> None:
    with servers.pgbouncer_server() as pooler:
        direct = pooler.behind.fresh()
        database = urlsplit(direct).path[1:]
        sql(direct, f"CREATE ROLE role_{database}")
        setup(direct, rls=True, role=f"role_{database}")
        # PgBouncer knows one user, who is bound by nothing; as this role he is.
        sql(direct, f"ALTER DATABASE {database} SET role = role_{database}")
        acme, other = (opened(pooler.through(direct), tenant=tenant) for tenant in ("acme", "other"))
        acme.fill(LINES, [ACME])
        other.fill(LINES, [OTHER])
        for _ in range(20):
            assert acme.scan(LINES) == [ACME]
            assert other.read(Scan(LINES, ()), Scan(STEPS, ())) == [[OTHER], []]
        acme.close()
        other.close()
