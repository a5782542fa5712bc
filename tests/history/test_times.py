"""Times in human-readable forms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.time_parsing import parse_age, parse_moment
from holdfast.errors import InvalidError

NOW = datetime(2026, 11, 15, 14, 30, tzinfo=UTC)  # a Sunday


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An hour ahead of UTC in winter, two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


AGES: list[tuple[str, timedelta]] = [
    ("90s", timedelta(seconds=90)),
    ("30m", timedelta(minutes=30)),
    ("2h", timedelta(hours=2)),
    (" 3 Days ", timedelta(days=3)),
    ("1w", timedelta(weeks=1)),
    ("6mo", timedelta(days=180)),
    ("1 year", timedelta(days=365)),
    ("1h30m", timedelta(minutes=90)),
    ("1 week, 2 days", timedelta(days=9)),
    ("an hour", timedelta(hours=1)),
    ("0.5d", timedelta(hours=12)),
]


def test_ages(subtests: pytest.Subtests) -> None:
    for text, age in AGES:
        with subtests.test(text=text):
            assert parse_age(text) == age
            assert parse_moment(f"{text} ago", NOW) == parse_moment(text, NOW) == NOW - age


MOMENTS: list[tuple[str, datetime]] = [
    ("now", NOW),
    ("yesterday", datetime(2026, 11, 14, 14, 30, tzinfo=UTC)),
    ("today", datetime(2026, 11, 14, 23, tzinfo=UTC)),
    ("Monday", datetime(2026, 11, 8, 23, tzinfo=UTC)),
    ("last sunday", datetime(2026, 11, 7, 23, tzinfo=UTC)),  # not today
    ("10:30", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
    ("9:30:15", datetime(2026, 11, 15, 8, 30, 15, tzinfo=UTC)),
    ("2026-11-01", datetime(2026, 10, 31, 23, tzinfo=UTC)),
    ("2026-07-01T10:00", datetime(2026, 7, 1, 8, tzinfo=UTC)),  # in summer, and asked in winter
    ("2026-11-01 10:00:00.5", datetime(2026, 11, 1, 9, 0, 0, 500000, tzinfo=UTC)),
    ("2026-11-01t10:00z", datetime(2026, 11, 1, 10, tzinfo=UTC)),
    ("2026-11-01T10:00-05:00", datetime(2026, 11, 1, 10, tzinfo=timezone(timedelta(hours=-5)))),
]


def test_moments(subtests: pytest.Subtests) -> None:
    for text, moment in MOMENTS:
        with subtests.test(text=text):
            assert parse_moment(text, NOW) == moment


def test_no_times(subtests: pytest.Subtests) -> None:
    for text in ["", "ago", "soon", "5", "-1h", "2 parsecs", "25:00", "10:75", "2026-13-01", "h"]:
        with subtests.test(text=text):
            with pytest.raises(InvalidError, match=r"is no time.*Write 2h"):
                parse_moment(text, NOW)
            with pytest.raises(InvalidError, match=r"is no length of time.*Write 90s"):
                parse_age(text)


@pytest.mark.parametrize("text", ["9999y", "9" * 400 + "y", "9" * 30 + "s", "0001-01-01"])
def test_times_too_far_away(text: str) -> None:
    with pytest.raises(InvalidError, match="too far away"):
        parse_moment(text, NOW)


@given(st.text())
def test_whatever_is_written(text: str) -> None:
    for parse in (parse_age, lambda text: parse_moment(text, NOW)):
        try:
            parse(text)
        except InvalidError:
            continue


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 3), max_value=datetime(9998, 1, 1)))
def test_formatted_times_are_parsed(moment: datetime) -> None:
    assert parse_moment(moment.isoformat(), NOW) == parse_moment(str(moment), NOW) == moment
