"""Progress through a known number of things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.engine.types import Progress

T = TypeVar("T")


def report_each(items: Sequence[T], progress: Progress | None, describe: Callable[[T], str]) -> Iterator[T]:
    """Yield things, and report each as soon as the caller is done with it."""
    for number, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(number, len(items), describe(item))
