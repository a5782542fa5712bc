"""Stores that may only be read, and stores that tell what they do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Delete, Ensure, Expect, Get, Put, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.wrappers.composite_urls import compose
from holdfast.backends.wrappers.metrics import BUCKETS, MetricsBackend
from holdfast.backends.wrappers.readonly import ReadOnlyBackend
from holdfast.errors import CorruptError, DeniedError, TransientError, UnavailableError
from tests.backends.wrappers.pairs import Clock
from tests.support.faults import Fault, Faults


def test_nothing_can_be_changed() -> None:
    memory = MemoryBackend()
    assert run(memory.apply([Create(STEPS, step())])) is None
    store = ReadOnlyBackend(memory)
    for change in (Create(STEPS, step(1)), Ensure(STEPS, step()), Put(STEPS, step()), Delete(STEPS, ("nobody",))):
        with pytest.raises(DeniedError, match="reading only"):
            run(store.apply([change]))
        with pytest.raises(DeniedError):
            run(store.apply([Expect(STEPS, step(7).key, None), change]))
    assert run(store.read([Get(STEPS, [step().key])])) == [[step()]]
    assert run(store.apply([])) is None
    assert run(store.apply([Expect(STEPS, step().key, step().columns)])) is None
    assert run(store.apply([Expect(STEPS, step().key, None)])) == 0
    run(store.tidy())
    run(store.close())
    for call in (store.tidy, store.size, store.check):
        with pytest.raises(UnavailableError):
            run(call())


def test_a_thread_can_be_read_and_not_saved(tmp_path: Path) -> None:
    plain = f"sqlite:///{tmp_path}/agents.db"
    with holdfast.open(plain) as store:
        store.put("chat", {"n": 1})
    with holdfast.open(compose("readonly", store=plain)) as store:
        latest = store.get("chat")
        assert latest is not None
        assert latest.state == {"n": 1}
        with pytest.raises(DeniedError):
            store.put("chat", {"n": 2})
        with pytest.raises(DeniedError):
            store.delete("chat")
        assert [checkpoint.step for checkpoint in store.log("chat")] == [0]


class Slow(MemoryBackend):
    """A store whose second read takes twenty milliseconds, by a clock of its own."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._reads = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._reads += 1
        self._clock.now += 0.02 if self._reads == 2 else 0.0
        return await super().read(queries)


def test_calls_errors_and_times_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("holdfast.backends.wrappers.metrics.time", clock)
    plan = [
        Fault("read", 2, lambda: TransientError("busy")),
        Fault("read", 3, lambda: CorruptError("bytes")),
        Fault("apply", 3, lambda: TransientError("busy"), times=2),
    ]
    store = MetricsBackend(Faults(Slow(clock), plan))
    assert run(store.apply([Create(STEPS, step())])) is None
    assert run(store.apply([Create(STEPS, step())])) == 0
    for _ in range(2):
        with pytest.raises(TransientError):
            run(store.apply([Create(STEPS, step(1))]))
    outcomes: list[int | str] = []
    for _ in range(4):
        try:
            outcomes.append(len(run(store.read([Get(STEPS, [step().key])]))[0]))
        except (TransientError, CorruptError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes == [1, "TransientError", "CorruptError", 1]
    found = run(store.status())
    assert (found["reads"], found["queries"], found["applies"], found["refused"]) == (2, 2, 2, 1)
    assert (found["rows_written"], found["rows_read"]) == (1, 2)
    assert found["bytes_read"] == 2 * int(found["bytes_written"]) > 0
    assert (
        found["read_errors_TransientError"],
        found["read_errors_CorruptError"],
        found["apply_errors_TransientError"],
    ) == (1, 1, 2)
    assert "apply_errors_CorruptError" not in found
    assert found["read_seconds_le_inf"] == 4, "errors take time too"
    assert found["apply_seconds_le_inf"] == 4
    assert found["read_seconds_le_0.01"] == 3
    assert found["read_seconds_le_0.03"] == 4
    assert float(found["read_seconds_sum"]) == pytest.approx(0.02)
    counts = [int(found[f"read_seconds_le_{bound:g}"]) for bound in BUCKETS]
    assert counts == sorted(counts)
    store.reset()
    found = run(store.status())
    assert found["reads"] == found["read_seconds_le_inf"] == found["read_seconds_sum"] == 0
    assert "read_errors_CorruptError" not in found


def test_a_store_says_how_it_is_doing() -> None:
    with holdfast.open(compose("metrics", store="memory://")) as store:
        store.put("chat", {"n": 1})
        began = store.status()
        time.sleep(0)
        store.put("chat", {"n": 2})
        assert int(store.status()["applies"]) == int(began["applies"]) + 1
    with holdfast.open("memory://") as store:
        assert store.status() == {}
