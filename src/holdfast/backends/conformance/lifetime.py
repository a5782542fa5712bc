"""Tests of opening and closing a store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.backends.conformance.kit import Drive, Driven, Stores, Suite, case, needs, same
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Backend, Create, Delete, Get
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES, OBJECTS, STEPS
from holdfast.errors import ConfigError, UnavailableError

CALLS: dict[str, Callable[[Backend], Coroutine[Any, Any, Any]]] = {
    "read": lambda backend: backend.read([Get(STEPS, [])]),
    "read nothing": lambda backend: backend.read([]),
    "apply": lambda backend: backend.apply([Create(STEPS, step())]),
    "apply nothing": lambda backend: backend.apply([]),
    "changes": lambda backend: backend.changes(),
    "size": lambda backend: backend.size(),
    "check": lambda backend: backend.check(),
    "tidy": lambda backend: backend.tidy(),
}


class Lifetime(Suite):
    """`open`, `close`, `url`, `capabilities`, `size`, `check` and `tidy`."""

    def test_the_backend_serves_the_scheme(self, stores: Stores) -> None:
        assert urlsplit(stores.url).scheme in stores.backend().schemes

    def test_a_bad_url_is_refused(self, stores: Stores, drive: Drive) -> None:
        with pytest.raises(ConfigError):
            drive(stores.backend().open("no-such-scheme://nowhere"))

    def test_an_unknown_option_is_refused(self, stores: Stores, drive: Drive) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            drive(stores.backend().open(stores.url, **stores.options, no_such_option=1))

    def test_the_url_names_the_store_without_its_password(self, stores: Stores, store: Driven) -> None:
        assert store.backend.url.startswith(urlsplit(stores.url).scheme)
        password = urlsplit(stores.url).password
        assert password is None or password not in store.backend.url

    def test_capabilities_say_what_the_suite_relies_on(self, store: Driven) -> None:
        capabilities = store.backend.capabilities
        assert 1 << 20 <= capabilities.max_body <= capabilities.max_batch
        assert capabilities == store.backend.capabilities

    def test_closing_again_is_no_failure(self, stores: Stores, drive: Drive) -> None:
        backend = drive(stores.open())
        drive(backend.close())
        drive(backend.close())

    def test_a_closed_store_is_unavailable(self, stores: Stores, drive: Drive) -> None:
        backend = drive(stores.open())
        for call in CALLS.values():
            drive(call(backend))
        drive(backend.close())
        for name, call in CALLS.items():
            with case(name), pytest.raises(UnavailableError):
                drive(call(backend))

    def test_closing_waits_for_batches_under_way(self, stores: Stores) -> None:
        backend = run(stores.open())
        under_way = threading.Barrier(5)

        def write(worker: int) -> int:
            for seq in range(10_000):
                try:
                    assert run(backend.apply([Create(STEPS, step(seq, branch=worker))])) is None
                except UnavailableError:
                    return seq
                if seq == 3:
                    under_way.wait()
            raise AssertionError("the store was never closed")

        with ThreadPoolExecutor(4) as pool:
            counts = [pool.submit(write, worker) for worker in range(4)]
            under_way.wait()
            run(backend.close())
            written = [count.result() for count in counts]
        if backend.capabilities.durable:
            again = Driven(run(stores.open()), run)
            found = again.scan(STEPS)
            for worker, count in enumerate(written):
                assert [row.key[3] for row in found if row.key[2] == worker][:count] == list(range(count))
            again.close()

    # Durability

    @needs("durable")
    def test_everything_is_there_after_opening_again(self, claimed: Stores, drive: Drive) -> None:
        first = Driven(drive(claimed.open()), drive)
        rows = [step(seq, id=f"{99 - seq}", body=b"%d" % seq * 100) for seq in range(50)]
        first.fill(STEPS, rows)
        large = row_of(OBJECTS, "tenant", "line", b"d", 0, body=random.Random(3).randbytes(1 << 20))  # noqa: S311
        first.fill(OBJECTS, [large])
        assert first.apply(Delete(STEPS, rows[7].key)) is None
        assert first.apply(Create(STEPS, rows[8]), Create(STEPS, step(99))) == 0
        before = first.scan(STEPS)
        first.close()
        for _ in range(2):
            again = Driven(drive(claimed.open()), drive)
            assert again.scan(STEPS) == before
            assert same(again.scan(OBJECTS), [large])
            assert again.scan(STEPS, ("tenant", "line"), by="id", limit=2) == [rows[49], rows[48]]
            assert again.apply(Create(STEPS, rows[3])) == 0
            again.close()

    def test_size_grows_with_what_is_stored(self, store: Driven) -> None:
        before = store.drive(store.backend.size())
        assert before >= 0
        rng = random.Random(2)  # noqa: S311
        store.fill(NODES, [row_of(NODES, "t", "l", 0, bytes([n]), body=rng.randbytes(1 << 18)) for n in range(8)])
        assert (1 << 21) <= store.drive(store.backend.size()) - before < (1 << 24)

    def test_a_sound_store_passes_its_own_check(self, store: Driven) -> None:
        assert store.drive(store.backend.check()) == []
        store.fill(STEPS, [step(seq) for seq in range(100)])
        assert store.drive(store.backend.check()) == []

    def test_tidying_changes_nothing(self, store: Driven) -> None:
        store.drive(store.backend.tidy())
        rows = [row_of(NODES, "t", "l", 0, bytes([n]), body=bytes(50_000)) for n in range(100)]
        store.fill(NODES, rows)
        assert store.apply(*(Delete(NODES, row.key) for row in rows[10:])) is None
        store.drive(store.backend.tidy())
        assert same(store.scan(NODES), rows[:10])
        store.fill(NODES, rows)
        assert same(store.scan(NODES), rows)
        assert store.drive(store.backend.check()) == []
