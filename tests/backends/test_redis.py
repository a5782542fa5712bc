"""The Redis backend: the suite for all backends, on real servers, and how rows lie in Redis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis as client
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.conformance.suite import ShortConformance, SyncConformance
from holdfast.backends.interface import Create, Delete, Get, Put, Row, Scan
from holdfast.backends.redis.backend import MAX_BODY, RedisBackend
from holdfast.backends.redis.key_layout import decode_words, encode_words
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, OBJECTS, STEPS, WRITES, Key
from holdfast.errors import CorruptError, InvalidError, TooLargeError
from holdfast.testing import Stores
from tests.servers import RedisServer, redis

KINDS = {str: st.text(), int: st.integers(-(2**63), 2**63 - 1), bytes: st.binary()}
KEYS = st.lists(st.sampled_from([str, int, bytes]), max_size=4).flatmap(
    lambda kinds: st.tuples(st.just(kinds), *(st.tuples(*(KINDS[kind] for kind in kinds)) for _ in "ab"))
)


class TestConformance(ShortConformance):
    lacks = frozenset({"words", "times"})

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(redis())


@pytest.mark.nightly
class TestConformanceInFull(SyncConformance):
    lacks = TestConformance.lacks
    stores = TestConformance.stores


class Installed(RedisServer):
    """The Redis of the system, which may be older."""

    def command(self) -> list[str | Path]:
        found = shutil.which("redis-server")
        assert found is not None
        return [Path(found), *super().command()[1:]]


@cache
def installed() -> Installed:
    return Installed().start()


if shutil.which("redis-server") is not None:

    @pytest.mark.nightly
    @pytest.mark.no_cover  # that of another version was measured
    class TestInstalledRedis(SyncConformance):
        lacks = TestConformance.lacks

        @pytest.fixture
        def stores(self) -> Stores:
            return Stores(installed().fresh())


@pytest.fixture
def url() -> str:
    return redis()


@pytest.fixture
def store(url: str) -> Iterator[RedisBackend]:
    store = run(RedisBackend.open(url))
    yield store
    run(store.close())


@pytest.fixture
def raw(url: str) -> Iterator[client.Redis]:
    """The server, as any other client sees it."""
    with client.Redis.from_url(url.partition("?")[0]) as found:
        yield found


def key_of(url: str, rest: str) -> str:
    return f"{{{url.partition('prefix=')[2]}}}:{rest}"


# Names ------------------------------------------------------------------------------------------------------------


@given(KEYS)
def test_words_sort_as_keys_do(drawn: tuple[list[type], Key, Key]) -> None:
    kinds, one, other = drawn
    assert decode_words(kinds, encode_words(one)) == one
    comparable = [tuple(v.encode() if isinstance(v, str) else v for v in key) for key in (one, other)]
    assert (encode_words(one) < encode_words(other)) == (comparable[0] < comparable[1])
    assert (encode_words(one) == encode_words(other)) == (one == other)


@given(KEYS, st.integers(0, 4))
def test_what_starts_with_some_words_has_a_key_that_does(drawn: tuple[list[type], Key, Key], width: int) -> None:
    _, one, other = drawn
    assert encode_words(one).startswith(encode_words(other[:width])) == (one[: len(other[:width])] == other[:width])


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("chat-1", b"chat-1+"),
        ("", b"+"),
        ("a b+c,d", b"a,20b,2bc,2cd+"),
        ("\u00e9", b"\xc3\xa9+"),
        (0, b"a0+"),
        (17, b"b17+"),
        (2**63 - 1, b"s9223372036854775807+"),
        (-1, b"-z8+"),
        (-10, b"-y89+"),
        (b"\x01\xff", b"01ff+"),
    ],
    ids=repr,
)
def test_a_word_can_be_read(value: str | int | bytes, word: bytes) -> None:
    assert encode_words([value]) == word


# What is in the server --------------------------------------------------------------------------------------------


def test_people_find_a_step_with_the_tools_of_redis(url: str, store: RedisBackend, raw: client.Redis) -> None:
    row = step(17, id="id-17", revision=2, hash=b"\xab", kind="save", metadata='{"a": 1}')
    run(store.apply([Create(STEPS, row)]))
    value: Any = raw.hget(key_of(url, "steps:tenant+line+"), "a0+b17+")
    line, body = value.split(b"\n")
    assert line.startswith(b"id-17+a2+[")
    assert json.loads(line[9:]) == [0, "ab", 0, "save", '{"a": 1}', 0, 0, 0]
    assert body == b"body"
    about: Any = raw.hgetall(key_of(url, "store"))
    assert about[b"steps"].split() == [name.encode() for name in STEPS.columns]
    assert raw.zrange(key_of(url, "steps"), 0, -1) == [b"tenant+line+"]
    assert raw.zrange(key_of(url, "steps.keys:tenant+line+"), 0, -1) == [b"a0+b17+"]
    assert raw.zrange(key_of(url, "steps.by-id:tenant+line+"), 0, -1) == [b"id-17+a2+a0+b17+"]


def test_nothing_is_left_of_a_line_that_was_deleted(url: str, store: RedisBackend, raw: client.Redis) -> None:
    def keys() -> set[bytes]:
        return {
            key for key in raw.scan_iter(key_of(url, "*")) if b":client:" not in key and not key.endswith(b":changes")
        }

    before = keys()
    rows = {space: Row(tuple(kind() for kind in space.key.values()), ()) for space in (NODES, OBJECTS)}
    run(store.apply([Create(space, row) for space, row in rows.items()]))
    run(store.apply([Create(STEPS, step(seq, id=f"{seq}")) for seq in range(3)]))
    run(store.apply([Put(STEPS, step(0, id="other")), Delete(STEPS, step(1).key)]))
    assert run(store.check()) == []
    assert len(keys()) == len(before) + 4 + 2 * 3
    run(
        store.apply(
            [Delete(STEPS, ("tenant", "line", 0)), *(Delete(space, row.key[:1]) for space, row in rows.items())]
        )
    )
    assert keys() == before


def test_stores_with_different_prefixes_are_apart(url: str, store: RedisBackend) -> None:
    run(store.apply([Create(STEPS, step())]))
    other = run(RedisBackend.open(f"{url}-other"))
    assert run(other.read([Scan(STEPS, ())])) == [[]]
    run(other.close())


def test_a_large_body(store: RedisBackend) -> None:
    row = row_of(OBJECTS, "tenant", "line", b"d", 0, body=bytes(range(256)) * (1 << 17))  # 32 MiB
    assert run(store.apply([Create(OBJECTS, row)])) is None
    ((found,),) = run(store.read([Get(OBJECTS, [row.key])]))
    assert found == row
    assert run(store.read([Scan(OBJECTS, (), bodies=False)])) == [[row._replace(body=b"")]]


def test_a_body_that_is_too_large_is_refused_alone(store: RedisBackend) -> None:
    with pytest.raises(TooLargeError):
        run(store.apply([Create(OBJECTS, row_of(OBJECTS, "t", "l", b"d", 0, body=bytes(MAX_BODY + 1)))]))
    assert run(store.apply([Create(STEPS, step())])) is None


def test_a_name_that_is_no_text_is_refused_alone(store: RedisBackend) -> None:
    with pytest.raises(InvalidError):
        run(store.apply([Create(LINES, row_of(LINES, "tenant", "\ud800"))]))
    with pytest.raises(InvalidError):
        run(store.read([Get(LINES, [("tenant", "\ud800")])]))
    assert run(store.apply([Create(STEPS, step())])) is None


# Damage -----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Any, Callable[[str], str]], object]] = {
    "a row is gone": lambda raw, at: raw.hdel(at("steps:tenant+line+"), "a0+a1+"),
    "a name is gone": lambda raw, at: raw.zrem(at("steps.keys:tenant+line+"), "a0+a1+"),
    "an index entry is gone": lambda raw, at: raw.zrem(at("steps.by-id:tenant+line+"), "i1+a0+a0+a1+"),
    "an index entry is another": lambda raw, at: (
        raw.zrem(at("steps.by-id:tenant+line+"), "i1+a0+a0+a1+"),
        raw.zadd(at("steps.by-id:tenant+line+"), {"i9+a0+a0+a1+": 0}),
    ),
    "a part is not listed": lambda raw, at: raw.zrem(at("steps"), "tenant+line+"),
    "a listed part is empty": lambda raw, at: raw.zadd(at("steps"), {"tenant+other+": 0}),
    "a row is not one": lambda raw, at: raw.hset(at("steps:tenant+line+"), "a0+a1+", "nonsense"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_check_finds(url: str, store: RedisBackend, raw: client.Redis, damage: Any) -> None:
    run(store.apply([Create(STEPS, step(seq, id=f"i{seq}")) for seq in range(3)]))
    assert run(store.check()) == []
    damage(raw, lambda rest: key_of(url, rest))
    assert run(store.check()) != []


@pytest.mark.parametrize("name", ["a row is gone", "a row is not one"])
def test_a_damaged_row_is_not_read(url: str, store: RedisBackend, raw: client.Redis, name: str) -> None:
    run(store.apply([Create(STEPS, step(seq, id=f"i{seq}")) for seq in range(3)]))
    DAMAGE[name](raw, lambda rest: key_of(url, rest))
    with pytest.raises(CorruptError):
        run(store.read([Scan(STEPS, ())]))


def test_check_sees_every_row_of_a_long_line(url: str, store: RedisBackend, raw: client.Redis) -> None:
    run(store.apply([Create(WRITES, row_of(WRITES, "t", "l", "s", "t", place)) for place in range(1200)]))
    raw.hset(key_of(url, "writes:t+l+"), "s+t+d1150+", "nonsense")
    assert run(store.check()) == ["writes:t+l+ has a row that is not one, s+t+d1150+"]


def test_the_servers_own_view(store: RedisBackend) -> None:
    status = run(store.status())
    assert status["appendfsync"] == "always"
    assert int(status["memory"]) > 0
