"""Stores that may only be read."""

from __future__ import annotations

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
from holdfast.errors import DeniedError, UnavailableError


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
        assert [checkpoint.step for checkpoint in store.log("chat").all()] == [0]
