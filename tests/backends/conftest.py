"""Settings for the tests of backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.backends.conformance import processes, races
from tests.support.nightly import by_day


@pytest.fixture(scope="session", autouse=True)
def _fewer_keys() -> Iterator[None]:
    """By day, the writers of a race compete for fewer keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(races, "KEYS", by_day(races.KEYS, 15))
        patch.setattr(processes, "KEYS", by_day(processes.KEYS, 20))
        yield
