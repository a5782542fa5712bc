"""Laws of protection: no sequence of changes stores a secret, and revealing what is read gives what was saved."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.store.store import AsyncStore, Store
from tests.security.sensitive.samples import github_token
from tests.security.sensitive.test_protection import KEYS, stored_text
from tests.support.nightly import fewer_examples

SECRETS = [github_token(Random(number)) for number in range(3)]

TEXTS = st.sampled_from(["", "plain", "a longer text " * 30, "x" * 5000, *SECRETS]) | st.builds(
    "{} {} {}".format, st.sampled_from(["", "before " * 20]), st.sampled_from(SECRETS), st.sampled_from(["", "after"])
)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(0, 9) | st.booleans() | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "content", "role", f"to {SECRETS[0]}"]), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)
CHANNELS = st.sampled_from(["messages", "plan", "text"])
STATES = st.dictionaries(CHANNELS, VALUES | st.lists(TEXTS, min_size=10, max_size=20), max_size=3)
CHANGES = st.tuples(st.just("put"), STATES) | st.tuples(
    st.just("update"), st.dictionaries(CHANNELS, VALUES, min_size=1, max_size=2)
)


@given(changes=st.lists(CHANGES, min_size=1, max_size=6), cold=st.booleans())
@fewer_examples()
def test_what_is_read_and_revealed_is_what_was_saved(changes: list[tuple[str, Any]], cold: bool) -> None:
    backend = MemoryBackend()
    model: dict[str, Any] = {}
    store = _open(backend)
    for action, value in changes:
        if cold:
            store = _open(backend)  # a process that has nothing in its caches
        if action == "put":
            model = dict(value)
            store.thread("t").put(value)
        else:
            model |= value
            store.thread("t").update(value)
        state = store.thread("t").get().state
        assert store.redaction.reveal(state, thread="t") == model
        assert not any(secret in stored_text(store) for secret in SECRETS)
        store.thread("t").put(model)  # what a program goes on with
        assert store.thread("t").get().state == state
    assert store.maintenance.verify().ok


def _open(backend: MemoryBackend) -> Store:
    store = Store(Engine(EngineContext(backend, MemoryCache(1 << 20), fold_every=3)), "")
    store.redaction.protect(keys=KEYS)
    return store


def test_many_threads_at_a_time() -> None:
    """Recording a replacement is a save inside of another: no two may wait for each other."""
    with _open(MemoryBackend()) as store, ThreadPoolExecutor(8) as pool:

        def write(number: int) -> None:
            store.thread(f"t{number % 3}").put({f"c{number}": SECRETS[number % 3]})
            store.state(agent="x")[f"k{number}"] = SECRETS[0]
            with store.transaction() as together:
                together.put(f"t{number % 2}", {"x": SECRETS[1]})
                together.state(agent="y")[f"k{number}"] = SECRETS[2]

        for done in [pool.submit(write, number) for number in range(60)]:
            done.result(timeout=60)
        assert not any(secret in stored_text(store) for secret in SECRETS)
        assert store.audit.verify().ok


def test_many_tasks_at_a_time() -> None:
    async def use() -> None:
        store = AsyncStore(Engine(EngineContext(MemoryBackend())), "")
        store.redaction.protect(keys=KEYS)
        tasks = (store.thread(f"t{number % 3}").put({f"c{number}": SECRETS[number % 3]}) for number in range(60))
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert not any(secret in stored_text(store) for secret in SECRETS)
        await store.close()

    asyncio.run(use())
