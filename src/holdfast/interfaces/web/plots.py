"""Plots as SVG: distributions as bars, changes over time as lines. Templates draw what these functions place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast._views import size as format_size
from holdfast.backends.distribution import Distribution

_WIDTH, _HEIGHT = 320, 96


class Bar(NamedTuple):
    """A bar of a distribution: how many values were up to a bound."""

    x: float
    y: float
    width: float
    height: float
    label: str
    number: int


class Histogram(NamedTuple):
    """A distribution as bars. `first` and `last` are the labels below the ends."""

    bars: list[Bar]
    first: str
    last: str
    width: int = _WIDTH
    height: int = _HEIGHT


class Line(NamedTuple):
    """Values over time, as the points of a line, and the area below it."""

    points: str
    area: str
    low: float
    high: float
    width: int = _WIDTH
    height: int = _HEIGHT


def draw_histogram(distribution: Distribution, unit: str) -> Histogram:
    """Draw the bounds between which there were values."""
    counts = distribution.bucket_counts
    used = [number for number, count in enumerate(counts) if count]
    first, last = (max(0, used[0] - 1), min(len(counts) - 1, used[-1] + 1)) if used else (0, len(counts) - 1)
    shown = counts[first : last + 1]
    most, step = max(1, *shown), _WIDTH / max(1, len(shown))
    bars = [
        Bar(
            round(number * step + 1, 1),
            round(_HEIGHT - _HEIGHT * count / most, 1),
            round(step - 2, 1),
            round(_HEIGHT * count / most, 1),
            _bound(distribution.bounds, first + number, unit),
            count,
        )
        for number, count in enumerate(shown)
    ]
    return Histogram(bars, bars[0].label, bars[-1].label)


def _bound(bounds: Sequence[float], number: int, unit: str) -> str:
    if number >= len(bounds):
        return f"> {amount(bounds[-1], unit)}"
    return f"≤ {amount(bounds[number], unit)}"


def draw_line(values: Sequence[tuple[float, float]]) -> Line | None:
    """Draw values by their times; None if there are fewer than two."""
    if len(values) < 2:
        return None
    times, amounts = [time for time, _ in values], [value for _, value in values]
    start, end, low, high = times[0], times[-1], min(amounts), max(amounts)
    wide, tall = (end - start) or 1.0, (high - low) or 1.0
    places = [
        (round((time - start) / wide * _WIDTH, 1), round(_HEIGHT - 4 - (value - low) / tall * (_HEIGHT - 8), 1))
        for time, value in values
    ]
    points = " ".join(f"{x},{y}" for x, y in places)
    return Line(points, f"0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}", low, high)


def quantile(distribution: Distribution, part: float) -> float:
    """Return the bound that so many of the values are below: 0.5 for half of them."""
    wanted, seen = distribution.count * part, 0
    for bound, count in zip((*distribution.bounds, distribution.worst), distribution.bucket_counts, strict=True):
        seen += count
        if seen >= wanted:
            return min(bound, distribution.worst)
    return distribution.worst


def amount(value: float, unit: str) -> str:
    """Return a value with its unit: `2.5 ms`, `64.0 kB`, `12`."""
    if unit == "seconds":
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return "0 s"
    if unit == "bytes":
        return format_size(int(value))
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
