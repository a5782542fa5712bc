"""Served stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.http.kit import ServedStore, fill


@pytest.fixture(scope="session")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that `fill` filled: to be copied, which is quicker than to fill another one."""
    file = tmp_path_factory.mktemp("filled") / "agents.db"
    with holdfast.open(file) as store:
        fill(store)
    return file


@pytest.fixture(scope="module")
def served(filled_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A filled store that is served for reading."""
    file = tmp_path_factory.mktemp("served") / "agents.db"
    shutil.copyfile(filled_file, file)
    with holdfast.open(file) as store, ServedStore(store) as served:
        yield served


@pytest.fixture
def filled(filled_file: Path, tmp_path: Path) -> Iterator[holdfast.Store]:
    """A filled store."""
    shutil.copyfile(filled_file, tmp_path / "agents.db")
    with holdfast.open(tmp_path / "agents.db") as store:
        yield store


@pytest.fixture
def writable(filled: holdfast.Store) -> Iterator[ServedStore]:
    """A filled store that is served for changes."""
    with ServedStore(filled, write=True) as served:
        yield served
