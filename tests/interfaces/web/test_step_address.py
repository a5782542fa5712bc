"""Steps that are asked for by number, by the clock, and by revision."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.interfaces.web.pages import page_routes
from tests.engine.lines import store_on
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.test_pages import signed_in

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def timed() -> Iterator[ServedStore]:
    """A thread with a step at 11:58, at 12:00 and at 14:05:30 of a day."""
    moments = [NOON + timedelta(seconds=each) for each in (-2 * 60, 0, 125 * 60 + 30)]
    now = [0]
    with store_on(MemoryBackend(), clock=lambda: now[0]) as store:
        for number, moment in enumerate(moments):
            now[0] = int(moment.timestamp()) * 10**9
            store.thread("t").put({"n": number}, id=f"c{number}")
        store.thread("t").tag("v1", "c1")
        with ServedStore(store, page_routes) as served:
            yield served


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("to=1", "c1"),
        ("to=v1", "c1"),
        ("to=HEAD~2", "c0"),
        ("to=", "c2"),
        ("to=14:05", "c2"),
        ("to=14:04", "c1"),
        ("to=14:05:29", "c1"),
        ("to=14:05:30", "c2"),
        ("to=12:00", "c1"),
        ("to=11:59", "c0"),
        ("to=15:05&zone=60", "c2"),
        ("to=7:00&zone=-300", "c1"),
        ("to=2026-03-02 12:30", "c1"),
        ("to=2026-03-02T12:30", "c1"),
        ("to=2027-01-01 00:00", "c2"),
        ("to=14:04&branch=main", "c1"),
        ("to=9:05", None),  # of that day, before the thread
        ("to=23:00", None),  # of the day before
        ("to=2026-02-30 10:00", None),
        ("to=2026-03-01 10:00", None),
        ("to=25:00", None),
        ("to=14:05&zone=99999", "c2"),
    ],
)
def test_a_step_is_found(timed: ServedStore, query: str, found: str | None) -> None:
    address = f"/go/t?{quote(query, safe='=&:')}&tab=state"
    answer = timed.request("GET", address, token=None, headers=signed_in(timed))
    if found is None:
        assert answer.status in (400, 404), answer.text
    else:
        assert (answer.status, answer.headers["location"]) == (303, f"/threads/t/{found}?tab=state")
