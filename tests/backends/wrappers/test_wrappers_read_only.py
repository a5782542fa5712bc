"""Stores that may only be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Delete, Ensure, Expect, Get, Put
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.urls import compose
from holdfast.backends.wrappers import ReadOnlyBackend
from holdfast.errors import DeniedError, NotFoundError, UnavailableError


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
        store.thread("chat").put({"n": 1})
    with holdfast.open(compose("readonly", store=plain)) as store:
        latest = store.thread("chat").get()
        assert latest is not None
        assert latest.state == {"n": 1}
        with pytest.raises(DeniedError):
            store.thread("chat").put({"n": 2})
        with pytest.raises(DeniedError):
            store.thread("chat").delete()
        assert [checkpoint.step for checkpoint in store.thread("chat").log().all()] == [0]


@pytest.mark.parametrize(
    "inside",
    [
        lambda folder: f"sqlite:///{folder}/a.db",
        lambda folder: f"{folder}/a.db",
        lambda folder: f"file:///{folder}/a",
        lambda folder: compose("retry", store=f"sqlite:///{folder}/a.db"),
        lambda folder: compose("cache", store=f"sqlite:///{folder}/a.db"),
        lambda folder: compose("cache", store=f"{folder}/a.db", in_="redis://127.0.0.1:1"),
        lambda folder: compose("mirror", local=f"sqlite:///{folder}/a.db", remote=f"sqlite:///{folder}/b.db"),
        lambda folder: compose("write-behind", local=f"{folder}/a.db", remote=f"sqlite:///{folder}/b.db"),
        lambda folder: compose("tiered", hot=f"sqlite:///{folder}/a.db", cold=f"sqlite:///{folder}/b.db"),
        lambda folder: compose("readonly", store=f"sqlite:///{folder}/a.db"),
    ],
    ids=["sqlite", "path", "file", "retry", "cache", "redis cache", "mirror", "write-behind", "tiered", "readonly"],
)
def test_a_store_that_is_missing_is_not_created(tmp_path: Path, inside: Callable[[Path], str]) -> None:
    url = compose("readonly", store=inside(tmp_path))
    with pytest.raises(NotFoundError, match="there is no store here") as caught:
        holdfast.open(url)
    assert caught.value.code == "no-store"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["retry", "cache"])
def test_what_is_around_a_store_passes_it_on(tmp_path: Path, kind: str) -> None:
    plain = f"sqlite:///{tmp_path}/agents.db"
    with holdfast.open(plain) as store:
        store.thread("chat").put({"n": 1})
    before = sorted(tmp_path.iterdir())
    with holdfast.open(compose(kind, store=plain), read_only=True) as store:
        assert store.thread("chat").get().state == {"n": 1}
        with pytest.raises(DeniedError):
            store.thread("chat").put({"n": 2})
    assert sorted(tmp_path.iterdir()) == before
    with holdfast.open(compose(kind, store=plain)) as store:  # as usual, it can be written
        store.thread("chat").put({"n": 2})
