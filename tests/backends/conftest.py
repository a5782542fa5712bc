"""Settings for the tests of backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.conformance import processes, races, reads, writes
from tests.support.nightly import by_day


@pytest.fixture(scope="session", autouse=True)
def _fewer_keys() -> Iterator[None]:
    """By day, the writers of a race compete for fewer keys, and large batches have fewer rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(races, "KEYS", by_day(races.KEYS, 15))
        patch.setattr(processes, "KEYS", by_day(processes.KEYS, 20))
        for part in (reads, writes):
            patch.setattr(part, "MANY", by_day(part.MANY, 1500))
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"
