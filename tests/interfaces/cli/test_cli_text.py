"""Text for terminals: harmless, measured, cut; sizes and times in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._views import size
from holdfast.interfaces.cli.formatting import ago, cut, first_line, local, pad, plural, safe, width

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ANY = st.text(st.characters(categories=None) | st.sampled_from("\x1b\n\t\r\x9b\u202e\ud800"))
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(ANY)
def test_safe_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    assert not CONTROLS.search(safe(text))
    assert not CONTROLS.search(safe(text, lines=True).replace("\n", "").replace("\t", ""))
    safe(text).encode()


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"])))
def test_safe_leaves_other_text_as_it_is(text: str) -> None:
    assert safe(text) == text


def test_safe_shows_what_was_there() -> None:
    assert safe("a\x1b[31mb\nc\td\x9be\u202ef\ud800") == "a\\x1b[31mb\\nc\\td\\x9be\\u202ef\\ud800"
    assert safe("a\nb\tc\r", lines=True) == "a\nb\tc\\r"


@given(st.text(), st.integers(0, 40))
def test_cut_text_fits(text: str, columns: int) -> None:
    found = cut(text, columns)
    assert width(found) <= columns
    assert found == text or found == "" or found.endswith("…")
    assert (found == text) is (width(text) <= columns) or columns == 0


def test_width_counts_columns() -> None:
    assert [width(text) for text in ("abc", "日本", "é", "e\u0301")] == [3, 4, 1, 1]
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    assert pad("日", 4) + "|" == "日  |"
    assert pad("7", 3, right=True) == "  7"


SIZES: list[tuple[int, str]] = [
    (0, "0 B"),
    (999, "999 B"),
    (1000, "1.0 kB"),
    (99_949, "99.9 kB"),
    (123_456, "123 kB"),
    (999_499, "999 kB"),
    (999_500, "1.0 MB"),
    (5_000_000_000, "5.0 GB"),
    (7_200_000_000_000, "7.2 TB"),
]


def test_sizes(subtests: pytest.Subtests) -> None:
    for count, said in SIZES:
        with subtests.test(said=said):
            assert size(count) == said


TIMES: list[tuple[timedelta, str]] = [
    (timedelta(seconds=-300), "in the future"),
    (timedelta(seconds=-1), "now"),
    (timedelta(seconds=1), "1 second ago"),
    (timedelta(minutes=2), "2 minutes ago"),
    (timedelta(hours=2, minutes=59), "2 hours ago"),
    (timedelta(days=1), "1 day ago"),
    (timedelta(days=15), "2 weeks ago"),
    (timedelta(days=70), "2 months ago"),
    (timedelta(days=800), "2 years ago"),
]


def test_times_in_words(subtests: pytest.Subtests) -> None:
    for back, said in TIMES:
        with subtests.test(said=said):
            assert ago(NOW - back, NOW) == said


def test_times_on_this_clock() -> None:
    assert local(NOW).endswith(f"{NOW.astimezone():%z}")
    assert "2026" in local(NOW)
    assert re.fullmatch(r"\d+ seconds? ago", ago(datetime.now(UTC)))


def test_plurals_and_first_lines() -> None:
    assert [plural(1, "step"), plural(2, "step"), plural(1000, "branch"), plural(0, "match")] == [
        "1 step",
        "2 steps",
        "1,000 branches",
        "0 matches",
    ]
    assert first_line("\n\n  hello \nyou") == "hello"
    assert first_line(" \n") == ""
