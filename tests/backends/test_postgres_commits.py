"""The PostgreSQL backend: groups and their stamps, errors of the server, connections that are lost."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.conformance.kit import Driven
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Get, Put, Scan
from holdfast.backends.postgres import setup
from holdfast.backends.postgres.apply_function import MAX_LOCKS, lock_id
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.binary_values import escape, unescape
from holdfast.backends.postgres.queries import MAX_COMBINED
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BRANCHES, LINES, METADATA, NODES, REFS, STEPS
from holdfast.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    TooLargeError,
    TransientError,
    UnavailableError,
)
from tests import servers
from tests.backends.postgres_databases import emptied, emptied_pooled
from tests.servers.pace import TooSoon, given_time, hurried
from tests.servers.postgresql import PostgresServer
from tests.servers.processes import HOST
from tests.servers.proxy import Proxy

LINE = row_of(LINES, "tenant", "line", version=7)
NEXT: list[Change] = [Expect(LINES, LINE.key, LINE.columns), Create(STEPS, step(0))]


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def store(url: str) -> Iterator[Driven]:
    driven = opened(url)
    yield driven
    driven.close()


def opened(url: str, **options: Any) -> Driven:
    return Driven(run(PostgresBackend.open(url, **options)), run)


def commit(store: Driven, batches: list[Batch], stamp: GroupStamp) -> list[Any]:
    """Commit a group as it comes from the network's base."""
    backend = store.backend
    assert isinstance(backend, PostgresBackend)
    outcomes: list[Any] = run(backend._run_in_loop(lambda: backend._commit(batches, stamp)))
    return outcomes


def sql(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


# Groups


def test_a_group_that_comes_again_is_made_once(store: Driven, url: str) -> None:
    group: list[Batch] = [[Create(STEPS, step(0))], [Create(STEPS, step(0, body=b"another"))], [Put(LINES, LINE)]]
    assert commit(store, group, GroupStamp("client", 0, 1)) == [None, 0, None]
    assert commit(store, group, GroupStamp("client", 0, 1)) == [None, 0, None]
    assert commit(store, [[Delete(STEPS, ())]], GroupStamp("client", 1, 1)) == [None]
    assert commit(store, group, GroupStamp("client", 0, 1)) == [None, 0, None]
    assert store.scan(STEPS) == []
    assert sql(url, "SELECT client, slot, number, outcomes FROM holdfast.clients ORDER BY slot") == [
        ("client", 0, 1, [-1, 0, -1]),
        ("client", 1, 1, [-1]),
    ]


def test_a_group_that_was_overtaken_is_refused(store: Driven) -> None:
    assert commit(store, [[Create(STEPS, step(0))]], GroupStamp("client", 0, 5)) == [None]
    with pytest.raises(OutcomeUnknownError, match="had given up on it"):
        commit(store, [[Create(STEPS, step(1))]], GroupStamp("client", 0, 4))
    assert store.scan(STEPS) == [step(0)]


def test_a_group_that_is_overtaken_on_its_way_is_refused(store: Driven, url: str) -> None:
    """It waits for its line while the next group of its slot is made: both read the record before either wrote it."""
    other = opened(url)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [lock_id("holdfast", "tenant", "held")])
        failed: list[Exception] = []

        def late() -> None:
            try:
                commit(other, [[Create(STEPS, step(0, line="held"))]], GroupStamp("client", 0, 1))
            except OutcomeUnknownError as error:
                failed.append(error)

        thread = threading.Thread(target=late)
        thread.start()
        _until(url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1)
        assert commit(store, [[Create(STEPS, step(0))]], GroupStamp("client", 0, 2)) == [None]
    thread.join()
    assert len(failed) == 1
    assert store.scan(STEPS) == [step(0)]
    other.close()


def test_one_batch_does_not_keep_the_others_from_being_made(store: Driven) -> None:
    long = row_of(REFS, *(os.urandom(500).hex() for _ in range(5)))
    number: Any = "no number"
    group: list[Batch] = [
        [Create(STEPS, step(0))],
        [Put(BRANCHES, row_of(BRANCHES, "t", "l", 1)), Create(STEPS, step(0))],
        [Create(REFS, long)],
        [Create(STEPS, step(number))],
        [Create(STEPS, step(2**63))],
        [Create(LINES, row_of(LINES, "\ud800", ""))],
        [Put(METADATA, row_of(METADATA, "t", "l", "c", "k", value="no JSON"))],
        [Put(METADATA, row_of(METADATA, "t", "l", "c", "k", value='"\\u0000"'))],
        [Create(STEPS, step(0)._replace(columns=()))],
        [Create(STEPS, step(1))],
    ]
    outcomes = commit(store, group, GroupStamp("client", 0, 1))
    kinds = [type(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes]
    assert kinds == [None, 1, TooLargeError, *[InvalidError] * 6, None]
    assert store.scan(STEPS) == [step(0), step(1)]
    assert store.scan(BRANCHES) == store.scan(REFS) == store.scan(METADATA) == []


def test_a_value_that_cannot_be_asked_for(store: Driven) -> None:
    store.fill(LINES, [LINE])
    assert store.read(Get(LINES, [("tenant", "x" * 9000)])) == [[]]
    text: Any = "x"
    two = Get(STEPS, [("t", "l", text, 0), ("t", "l", 1, 0)])
    for bad in (Get(LINES, [("tenant", "\ud800")]), Scan(STEPS, ("t", "l", 2**70)), two):
        with pytest.raises(InvalidError):
            store.read(bad)
    assert store.scan(LINES) == [LINE]


def test_a_group_of_more_lines_than_it_may_lock(store: Driven, url: str) -> None:
    others = [opened(url) for _ in range(2)]
    lines = 2 * MAX_LOCKS

    def write(driven: Driven, worker: int) -> None:
        backend = driven.backend
        group: list[Batch] = [[Create(STEPS, step(worker, line=f"{n}"))] for n in range(lines)]
        assert isinstance(backend, PostgresBackend)
        run(backend._run_in_loop(lambda: backend._commit(group, GroupStamp(f"client {worker}", 0, 1))))

    threads = [threading.Thread(target=write, args=(driven, n)) for n, driven in enumerate([store, *others])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.scan(STEPS)) == 3 * lines
    for other in others:
        other.close()


def test_groups_that_touch_the_same_lines_do_not_block_each_other_for_good(store: Driven, url: str) -> None:
    """Each batch touches two lines, in either order."""
    other = opened(url)

    def write(driven: Driven, first: str, second: str) -> None:
        for n in range(60):
            changes: list[Change] = [
                Ensure(STEPS, step(n, line=first)),
                Ensure(NODES, row_of(NODES, "tenant", second, n, b"")),
            ]
            assert driven.apply(*changes) is None

    threads = [
        threading.Thread(target=write, args=(store, "a", "b")),
        threading.Thread(target=write, args=(other, "b", "a")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sql(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
    assert len(store.scan(STEPS)) == 120
    other.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose log and files are those of this module alone."""
    with servers.postgres_server() as server:
        yield server


def test_a_refusal_leaves_no_error_in_the_log(own_server: PostgresServer) -> None:
    log = own_server.directory / "log"
    start = len(log.read_text())
    store = opened(own_server.fresh())
    store.fill(STEPS, [step(0)])
    before = len(log.read_text())
    assert store.apply(Create(STEPS, step(0))) == 0
    assert store.apply(Expect(STEPS, step(0).key, None)) == 0
    store.close()
    assert "refused" not in log.read_text()[before:]
    assert "ERROR" not in log.read_text()[start:]


def test_other_settings_of_the_database(url: str) -> None:
    """Under any other isolation `apply` would not see what was done while it waited."""
    settings = "default_transaction_isolation%3Dserializable"
    stores = [opened(f"{url}?options=-c%20{settings}") for _ in range(2)]
    stores[0].fill(LINES, [LINE])

    def count(driven: Driven) -> None:
        for _ in range(20):
            done = False
            while not done:
                ((row,),) = driven.read(Get(LINES, [LINE.key]))
                raised = row._replace(columns=(int(row.columns[0]) + 1, *row.columns[1:]))
                done = driven.apply(Expect(LINES, row.key, row.columns), Put(LINES, raised)) is None

    threads = [threading.Thread(target=count, args=(driven,)) for driven in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].scan(LINES)[0].columns[0] == 40
    for driven in stores:
        driven.close()


def test_durable_is_what_the_server_is(url: str) -> None:
    for said, durable in (("on", True), ("local", True), ("off", False)):
        store = opened(f"{url}?options=-c%20synchronous_commit%3D{said}")
        assert store.backend.capabilities.durable is durable
        store.close()


def test_old_clients_are_forgotten(store: Driven, url: str) -> None:
    store.fill(LINES, [LINE])
    old = (
        "INSERT INTO holdfast.clients SELECT 'old', n, 1, '{}', now() - interval '2 days' FROM generate_series(1, 9) n"
    )
    sql(url, old)
    assert commit(store, [[Put(LINES, LINE)]], GroupStamp("new", 0, 1)) == [None]
    assert sql(url, "SELECT count(*) FROM holdfast.clients WHERE client = 'old'") == [(0,)]
    sql(url, old)
    store.drive(store.backend.tidy())
    assert sql(url, "SELECT count(*) FROM holdfast.clients WHERE client = 'old'") == [(0,)]
    assert sql(url, "SELECT count(*) FROM holdfast.clients") >= [(2,)]


# Round trips


@pytest.mark.parametrize("pooled", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["direct", "pooled"])
def test_one_round_trip_each(pooled: bool) -> None:
    direct = emptied_pooled() if pooled else emptied()
    port = urlsplit(direct).port
    assert port is not None
    with Proxy(port) as proxy:
        store = opened(direct.replace(f"{HOST}:{port}", f"{HOST}:{proxy.port}"))
        store.fill(LINES, [LINE])
        some = [Get(LINES, [LINE.key]), Scan(STEPS, LINE.key, reverse=True, limit=1), Scan(NODES, ())]
        many = [Scan(STEPS, ("tenant", str(n))) for n in range(MAX_COMBINED + 1)]
        for n in range(6):
            counts = [proxy.round_trips]
            assert store.apply(NEXT[0], Create(STEPS, step(n))) is None
            counts.append(proxy.round_trips)
            for queries in (some[:1], some, many):
                assert len(store.read(*queries)) == len(queries)
                counts.append(proxy.round_trips)
            # Whether they are sent for the first time, prepared, or used again.
            assert [after - before for before, after in itertools.pairwise(counts)] == [1, 1, 1, 1]
        store.close()


@pytest.mark.nightly  # needs PgBouncer, as the conformance through it
def test_statements_are_prepared_where_there_is_no_pooler(url: str) -> None:
    for found, direct in ((url, True), (emptied_pooled(), False)):
        store = opened(found)
        backend = store.backend
        assert isinstance(backend, PostgresBackend)
        for _ in range(3):
            store.read(Get(LINES, [LINE.key]))
        (connection,) = backend._pool._idle
        assert connection.server.direct is connection.prepares is direct
        prepared = [sql for sql in connection._prepared if "FROM" in sql]
        assert len(prepared) == direct
        store.close()


def test_a_pooler_that_was_not_noticed(store: Driven) -> None:
    """Prepared statements are gone from one call to the next: then it goes on without them."""
    backend = store.backend
    assert isinstance(backend, PostgresBackend)
    store.fill(LINES, [LINE])
    for _ in range(4):
        assert store.scan(LINES) == [LINE]

    async def forget() -> None:
        for connection in backend._pool._idle:
            await connection.run("DEALLOCATE ALL")

    run(backend._run_in_loop(forget))
    assert store.scan(LINES) == [LINE]
    assert [connection.prepares for connection in backend._pool._idle] == [False]
    assert store.apply(*NEXT) is None


# What the server says


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", TransientError),
        ("53200", TransientError),
        ("58030", TransientError),
        ("XX001", CorruptError),
        ("28000", ConfigError),
        ("XX000", UnavailableError),
    ],
)
def test_an_error_of_the_server_is_told(store: Driven, url: str, state: str, kind: type[HoldfastError]) -> None:
    store.fill(LINES, [LINE])
    with _trigger(url, f"RAISE EXCEPTION 'so it is' USING ERRCODE = '{state}'"):
        with pytest.raises(kind, match="so it is") as caught:
            store.apply(*NEXT)
        assert type(caught.value) is kind
        assert store.scan(STEPS) == []
    assert store.apply(*NEXT) is None


def test_an_error_that_is_one_batchs_own(store: Driven, url: str) -> None:
    with _trigger(url, "IF NEW.seq = 1 THEN RAISE EXCEPTION 'so it is' USING ERRCODE = '42501'; END IF"):
        group: list[Batch] = [[Create(STEPS, step(seq))] for seq in range(3)]
        outcomes = commit(store, group, GroupStamp("client", 0, 1))
        assert [type(outcome) for outcome in outcomes] == [type(None), DeniedError, type(None)]
    assert store.scan(STEPS) == [step(0), step(2)]


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57014", "57P01", "08006", "25006"])
def test_what_passes_is_tried_again(store: Driven, url: str, state: str) -> None:
    sql(url, "CREATE SEQUENCE IF NOT EXISTS tries; ALTER SEQUENCE tries RESTART")
    store.fill(LINES, [LINE])
    with _trigger(
        url, f"IF nextval('public.tries') < 4 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF"
    ):
        assert store.apply(*NEXT) is None
    assert sql(url, "SELECT last_value FROM tries") == [(4,)]
    assert store.scan(STEPS) == [step(0)]


def test_what_does_not_pass_is_given_up(url: str) -> None:
    store = opened(url)

    def given_up(seconds: float) -> None:
        with (
            _trigger(url, "RAISE EXCEPTION 'never' USING ERRCODE = '40001'"),
            hurried(store.backend, seconds),
            pytest.raises(TransientError) as caught,
        ):
            store.apply(Create(STEPS, step(0)))
        if isinstance(caught.value, OutcomeUnknownError):  # the last try was broken off
            raise TooSoon(caught.value)
        assert "never" in str(caught.value)

    given_time(given_up, 1)
    store.close()


def test_too_many_connections(url: str) -> None:
    sql(url, "CREATE ROLE lonely LOGIN SUPERUSER CONNECTION LIMIT 1")
    sql(url, "ALTER ROLE lonely NOSUPERUSER; GRANT USAGE ON SCHEMA holdfast TO lonely")
    sql(url, "GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO lonely")
    lonely = url.replace("//app@", "//lonely@")
    try:
        first = opened(lonely)

        def refused(seconds: float) -> None:
            with pytest.raises((TransientError, UnavailableError)) as caught:
                opened(lonely, timeout=seconds)
            if "too many connections" not in str(caught.value):
                raise TooSoon(caught.value)

        given_time(refused, 0.4)
        first.close()
        second = opened(lonely)
        assert second.scan(LINES) == []
        second.close()
    finally:
        sql(url, "DROP OWNED BY lonely; DROP ROLE lonely")


# Connections that are lost


def test_connections_that_the_server_ended(store: Driven, url: str) -> None:
    store.fill(LINES, [LINE])
    for n in range(3):
        ended = sql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                         "AND datname = current_database()")  # fmt: skip
        assert ended
        if n % 2:
            assert store.scan(LINES) == [LINE]
        assert store.apply(Create(STEPS, step(n))) is None
    assert len(store.scan(STEPS)) == 3


@pytest.mark.nightly
def test_one_who_waits_too_long_is_told_and_harms_nobody(url: str) -> None:
    store = opened(url)
    store.fill(LINES, [LINE])
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [lock_id("holdfast", "tenant", "line")])
        began = time.monotonic()
        with hurried(store.backend, 1), pytest.raises(OutcomeUnknownError, match="did not confirm a change"):
            store.apply(*NEXT)
        assert time.monotonic() - began < 60
        backend = store.backend
        assert isinstance(backend, PostgresBackend)
        assert len(backend._pool._idle) == 0, "nobody gets a connection on which an answer is still due"
        assert store.scan(LINES) == [LINE]
    # What was sent may be made yet, or was given up by the server: not both.
    assert store.apply(Create(LINES, row_of(LINES, "tenant", "another"))) is None
    assert store.scan(STEPS) in ([], [step(0)])
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_connections_of_its_own(store: Driven) -> None:
    store.fill(LINES, [LINE])
    child = os.fork()
    if child == 0:
        try:
            assert store.scan(LINES) == [LINE]
            assert store.apply(Create(STEPS, step(0))) is None
            store.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.scan(STEPS) == [step(0)]
    assert store.apply(Create(STEPS, step(1))) is None


# Upkeep


def test_an_index_that_is_not_whole_is_found(url: str) -> None:
    store = opened(url)
    mark = "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'holdfast.steps_id'::regclass"
    sql(url, mark.format("false"))
    try:
        (found,) = run(store.backend.check())
        assert "holdfast.steps_id is invalid" in found
    finally:
        sql(url, mark.format("true"))
    assert run(store.backend.check()) == []
    store.close()


def test_damage_is_found(own_server: PostgresServer) -> None:
    url = own_server.fresh()
    store = opened(url)
    store.fill(NODES, [row_of(NODES, "tenant", "line", 0, bytes([n]), body=os.urandom(1500)) for n in range(40)])
    store.close()
    ((path,),) = sql(url, "SELECT pg_relation_filepath('holdfast.nodes')")
    sql(url, "CHECKPOINT")  # else it would be mended from the log
    own_server.kill()
    file = own_server.directory / "data" / path
    data = bytearray(file.read_bytes())
    data[3 * 8192 + 4000] ^= 0xFF
    file.write_bytes(data)
    own_server.restart()
    store = opened(url)
    found = run(store.backend.check())
    assert any("nodes is damaged" in each for each in found), found
    with pytest.raises(CorruptError, match="damaged"):
        store.scan(NODES)
    store.close()
    # By one whom row-level security shows one tenant's rows, too.
    sql(url, "CREATE ROLE guarded LOGIN")
    setup(url, rls=True, role="guarded")
    store = opened(url.replace("//app@", "//guarded@"), tenant="tenant")
    found = run(store.backend.check())
    assert any("nodes is damaged" in each for each in found), found
    store.close()


# Names


@given(st.text(st.sampled_from("\0\1\2\3aé\U0001f600")), st.text(st.sampled_from("\0\1\2\3aé\U0001f600")))
def test_escaped_names_come_back_and_keep_their_order(one: str, other: str) -> None:
    assert unescape(escape(one)) == one
    assert "\0" not in escape(one)
    assert (escape(one).encode() < escape(other).encode()) == (one.encode() < other.encode())


class _trigger:
    """Has the server do something whenever a step is stored."""

    def __init__(self, url: str, does: str) -> None:
        self._url = url
        self._does = does

    def __enter__(self) -> None:
        body = f"$$ BEGIN {self._does}; RETURN NEW; END $$"
        sql(self._url, f"CREATE FUNCTION hurt() RETURNS trigger LANGUAGE plpgsql AS {body}")
        sql(self._url, "CREATE TRIGGER hurt BEFORE INSERT ON holdfast.steps FOR EACH ROW EXECUTE FUNCTION hurt()")

    def __exit__(self, *_: object) -> None:
        sql(self._url, "SET client_min_messages = warning; DROP FUNCTION hurt CASCADE")


def _until(url: str, query: str, value: int) -> None:
    deadline = time.monotonic() + 120
    while sql(url, query) != [(value,)]:
        assert time.monotonic() < deadline, query
        time.sleep(0.01)
