"""Encrypted compositions: copies, journals, caches and tiers have encrypted rows only, and the keys go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Backend, Put, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import JOURNAL, KEYS, STEPS
from holdfast.backends.urls import compose
from holdfast.backends.wrappers.cache import CacheBackend, MemoryCacheStorage
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import DeniedError
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.key_rows import SUBJECT, KeyRow
from holdfast.store.store import Store
from tests.security.encryption.planted import contents_of, find_planted, plant, planted, rows_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

KEY = b"c" * 32


def open_raw(url: str) -> Backend:
    return run(backend_for(url).open(url))


def parts(kind: str, folder: Path) -> tuple[str, str]:
    first = f"sqlite:///{folder}/local.db"
    other = place("postgres", folder) if kind.endswith("postgres") else f"sqlite:///{folder}/remote.db"
    return first, other


def url_of(kind: str, first: str, other: str, **options: Any) -> str:
    if kind == "tiered":
        return compose("tiered", hot=first, cold=other, after="0s", **options)
    return compose(kind.partition(" ")[0], local=first, remote=other, drain=120, **options)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind",
    mostly_nightly(
        ["mirror", "write-behind", "tiered", "mirror postgres", "write-behind postgres"], daily=["mirror", "tiered"]
    ),
)
def test_copies_have_encrypted_rows_only(kind: str, tmp_path: Path) -> None:
    names, (first, other) = planted(20), parts(kind, tmp_path)
    url = url_of(kind, first, other)
    with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as store:
        plant(store, names)
        run(store._engine.context.backend.tidy())
        store.encryption_keys.rotate()
        assert store.encryption_keys.reencrypt().rows
        assert run(store._engine.context.backend.check()) == []
    raws = [open_raw(each) for each in (first, other)]
    for raw in raws:
        assert any(rows_of(raw))
        assert find_planted(names, rows_of(raw)) == set()
        if kind != "tiered":  # a copy has the same keys: it is a store of its own
            assert len({row.columns[0] for row in run(raw.read([Scan(KEYS, ())]))[0]}) > 3
        run(raw.close())
    assert find_planted(names, contents_of(tmp_path)) == set()
    with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as store:
        assert store.thread("chat").get().state["n"] == 39
        assert store.maintenance.verify(level="decode").findings == []
    if kind != "tiered":
        with pytest.raises(DeniedError, match="without a key"):
            holdfast.open(other, encryption=False)
        with holdfast.open(other, encryption=Encryption(LocalKeys(KEY))) as copy:
            assert copy.thread("chat").get().state["n"] == 39
            assert copy.maintenance.verify(level="decode").findings == []


def test_a_journal_has_encrypted_rows_only(tmp_path: Path) -> None:
    """While the copy is away, everything is in the journal; what deletes a key reaches the copy as well."""
    names, (first, other) = planted(20), parts("write-behind", tmp_path)
    url = url_of("write-behind", first, other).replace("drain=120", "drain=0")
    with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as store:
        store.thread("gone").put({"n": 1})
    with holdfast.open(url_of("write-behind", first, other), encryption=Encryption(LocalKeys(KEY))) as store:
        sender = store._engine.context.stored.inner._sender  # type: ignore[attr-defined]
        sender.stop(120)  # the copy has all so far, and gets no more
        plant(store, names)
        store.thread("gone").delete()
        raw = open_raw(first)
        journal = run(raw.read([Scan(JOURNAL, ())]))[0]
        run(raw.close())
        assert len(journal) > 50
        assert find_planted(names, (row.body for row in journal)) == set()
        assert find_planted(names, contents_of(tmp_path)) == set()
    raw = open_raw(other)
    assert run(raw.read([Scan(KEYS, ("", "gone"))]))[0]
    run(raw.close())
    with holdfast.open(url_of("write-behind", first, other), encryption=Encryption(LocalKeys(KEY))):
        pass  # closing waits for the copy
    raw = open_raw(other)
    assert run(raw.read([Scan(KEYS, ("", "gone"))]))[0] == []
    assert run(raw.read([Scan(KEYS, ("", "chat"))]))[0]
    run(raw.close())
    with holdfast.open(other, encryption=Encryption(LocalKeys(KEY))) as copy:
        assert copy.thread("chat").get().state["n"] == 39


def test_a_damaged_row_is_healed_from_the_copy_and_a_lost_store_restored(tmp_path: Path) -> None:
    (first, other), keys = parts("mirror", tmp_path), Encryption(LocalKeys(KEY))
    url = url_of("mirror", first, other)
    with holdfast.open(url, encryption=keys) as store:
        store.thread("t").put({"n": 1})
    raw = open_raw(first)
    (row,) = run(raw.read([Scan(STEPS, ("", "t"))]))[0]
    run(raw.apply([Put(STEPS, row._replace(body=row.body[:-9] + b"x" + row.body[-8:]))]))
    with holdfast.open(url, encryption=keys) as store:
        assert store.thread("t").get().state == {"n": 1}
    assert run(raw.read([Scan(STEPS, ("", "t"))]))[0] == [row]
    run(raw.close())
    lost = compose("mirror", local=f"sqlite:///{tmp_path}/new.db", remote=other, restore="true")
    with holdfast.open(lost, encryption=keys) as store:
        assert store.thread("t").get().state == {"n": 1}
        store.thread("t").put({"n": 2})


class _Recorded(MemoryCacheStorage):
    """A cache of which everything that was ever in it is known."""

    def __init__(self) -> None:
        super().__init__(1 << 26)
        self.stored: list[bytes] = []

    async def put_many(self, values: Any, seconds: float) -> None:
        self.stored += [part for pair in values.items() for part in pair]
        await super().put_many(values, seconds)


def cached(inner: Backend, storage: MemoryCacheStorage, max_age: float = 3600.0) -> Store:
    rows = EncryptedRows(Encryption(LocalKeys(KEY)))
    context = EngineContext(CacheBackend(inner, storage, max_age), MemoryCache(0), rows=rows)
    run(context.rows.check_store(context.stored, ""))
    return Store(Engine(context), "")


def test_a_cache_has_encrypted_rows_only_and_no_keys(tmp_path: Path) -> None:
    url, names, storage = f"sqlite:///{tmp_path}/a.db", planted(20), _Recorded()
    store = cached(open_raw(url), storage)
    plant(store, names)
    for _ in range(2):
        assert store.thread("chat").get().state["n"] == 39
    hits = run(store._engine.context.backend.status())["cache_hits"]
    assert hits
    assert len(storage.stored) > 20
    assert find_planted(names, storage.stored) == set()
    keys = run(open_raw(url).read([Scan(KEYS, ())]))[0]
    assert keys
    everything = b"".join(storage.stored)
    assert not [row for row in keys if row.body[-40:] in everything]


def test_rows_that_a_cache_has_from_before_a_rotation(tmp_path: Path) -> None:
    """Somebody encrypts everything anew who does not use the cache: a new process reads the store instead."""
    url, storage = f"sqlite:///{tmp_path}/a.db", _Recorded()
    with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as direct:
        direct.thread("t").put({"n": 1})
        first = cached(open_raw(url), storage)
        assert first.thread("t").get().state == {"n": 1}
        direct.encryption_keys.rotate()
        direct.encryption_keys.reencrypt()
        second = cached(open_raw(url), storage)  # without the old key
        assert second.thread("t").get().state == {"n": 1}
        assert first.thread("t").get().state == {"n": 1}
        first.thread("t").put({"n": 2})
        assert second.thread("t").get().state in ({"n": 1}, {"n": 2})
        assert direct.thread("t").get().state == {"n": 2}
        direct.thread("t").delete()
        direct.thread("t").put({"n": 3})
        third = cached(open_raw(url), storage)
        assert third.thread("t").get().state == {"n": 3}


@pytest.mark.nightly
def test_a_shared_cache_in_redis(tmp_path: Path) -> None:
    names, url = planted(20), compose("cache", store=f"sqlite:///{tmp_path}/a.db", in_=place("redis", tmp_path))
    with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as store:
        plant(store, names)
        assert store.thread("chat").get().state["n"] == 39
        store.encryption_keys.rotate()
        assert store.encryption_keys.reencrypt().rows
        with holdfast.open(url, encryption=Encryption(LocalKeys(KEY))) as other:
            assert other.thread("chat").get().state["n"] == 39
            other.thread("chat").update({"n": 40})
        assert store.thread("chat").get().state["n"] == 40
    assert find_planted(names, contents_of(tmp_path)) == set()


def subject_keys(url: str) -> set[bytes]:
    """Return the keys of persons in a store, as they are stored."""
    raw = open_raw(url)
    rows = run(raw.read([Scan(KEYS, ())]))[0]
    run(raw.close())
    return {KeyRow.of(row).wrapped for row in rows if row.key[2] == SUBJECT}


@pytest.mark.parametrize("kind", mostly_nightly(["mirror", "write-behind"], daily=["mirror"]))
@pytest.mark.parametrize("away", [False, True], ids=["copied", "away"])
def test_an_erasure_destroys_the_keys_of_a_person_in_the_copy(kind: str, away: bool, tmp_path: Path) -> None:
    (first, other), keys = parts(kind, tmp_path), Encryption(LocalKeys(KEY))
    url = url_of(kind, first, other, patience="1")
    with holdfast.open(url, encryption=keys) as store:
        store.thread("letters").put({"text": "of u-1"}, metadata={"subject": "u-1"})
        store.thread("notes").put({"text": "of u-2"}, metadata={"subject": "u-2"})
    before = subject_keys(first)
    assert len(before) == 2
    assert subject_keys(other) == before, "a copy has the keys, or it could not replace its store"
    with holdfast.open(url, encryption=keys) as store:
        if away:
            store._engine.context.stored.inner._sender.stop(120)  # type: ignore[attr-defined]
        certificate = store.erasure.erase("u-1").certificate
        assert certificate is not None
        assert certificate.keys_destroyed == 1
        assert any("until it has caught up" in each for each in certificate.unreachable) == away
    if away:
        assert subject_keys(other) == before, "and the certificate says so"
        with holdfast.open(url, encryption=keys) as store:  # it catches up, and what is left of it is removed
            again = store.erasure.erase("u-1").certificate
            assert again is not None
            assert not any("until it has caught up" in each for each in again.unreachable)
    (left,) = subject_keys(first)
    assert subject_keys(other) == {left}
    (gone,) = before - {left}
    files = list(contents_of(tmp_path))
    assert any(left in each for each in files)
    assert not any(gone in each for each in files), "neither in a table, nor in a journal, a log or a free page"
    with holdfast.open(other, encryption=keys) as copy:
        assert copy.thread("notes").get().state == {"text": "of u-2"}
        assert [each.thread for each in copy.threads()] == ["notes"]
