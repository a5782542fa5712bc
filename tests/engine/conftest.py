"""Fixtures for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from tests.engine.lines import KINDS, Backends, backend
from tests.support.nightly import mostly_nightly


@pytest.fixture(params=mostly_nightly(KINDS, daily=["memory"]))
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backends]:
    """Opens as many backends as a test wants, and closes them in the end."""
    backends = Backends(request.param, tmp_path)
    yield backends
    backends.close()


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    opened = backend(request.param, tmp_path)
    yield opened
    run(opened.close())
