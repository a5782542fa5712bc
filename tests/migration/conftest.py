"""Fixtures for tests of migrations: a store that is opened several times, as other processes would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly


@pytest.fixture(params=mostly_nightly([kind for kind in KINDS if kind != "memory"], daily=("sqlite",)))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place(request.param, tmp_path)


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Store]]:
    stores: list[Store] = []

    def another() -> Store:
        stores.append(holdfast.open(url))
        return stores[-1]

    yield another
    for store in stores:
        store.close()
