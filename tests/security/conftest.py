"""A store in which others can interfere, and whose clock ticks at every look; and two identities in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def backend() -> InterferingBackend:
    return InterferingBackend()


@pytest.fixture
def store(backend: InterferingBackend) -> Iterator[Store]:
    clock = Clock()

    def tick() -> int:
        clock.sleep(1)
        return clock()

    with store_on(backend, tick) as opened:
        yield opened


@pytest.fixture
def alice(store: Store) -> IdentityView:
    return store.as_identity(user="alice", read_window=0)


@pytest.fixture
def bob(store: Store) -> IdentityView:
    return store.as_identity(user="bob", read_window=0)


@pytest.fixture
def clock() -> Clock:
    return Clock()
