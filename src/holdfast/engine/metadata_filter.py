"""Filters by equality of entries of metadata, for codecs that can tell from columns alone which steps may match."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast._named_tuple import NamedTuple

UNMATCHED = "\ufdd0"
"""The metadata of a step that does not match a filter, and was not read."""


class MetadataFilter(NamedTuple):
    """The keys of an entry, and the texts of the values that it may have: see `value_texts`."""

    path: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def of_value(cls, key: str, value: Any) -> MetadataFilter | None:
        """Return the filter for a value as programs have it; None if values like it cannot be told by their text."""
        if value is not None and not isinstance(value, str | int | float):
            return None
        texts = {*value_texts(value)}
        if isinstance(value, int | float) and value in (0, 1):  # which equal False and True
            texts |= {"sfalse", "n0"} if not value else {"strue", "n1"}
        return cls((key,), tuple(sorted(texts)))

    @classmethod
    def of_text(cls, path: Sequence[str], text: str, number: float | None) -> MetadataFilter:
        """Return the filter for a text in a query, and the number that it is, if it is one."""
        return cls(tuple(path), (f"s{text}", *(() if number is None else value_texts(number))))


def values_below(value: Any, path: Sequence[str]) -> list[Any]:
    """Return the values under nested keys; of a list, those of each item."""
    if isinstance(value, list):
        return [inner for item in value for inner in values_below(item, path)]
    if not path:
        return [value]
    return values_below(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []


def value_texts(value: Any) -> tuple[str, ...]:
    """Return a text that equal values have in common, and others not: numbers are equal whatever their type."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, int) or value.is_integer()
        return (f"n{int(value) if whole else value!r}",)
    return ("s" + plain_text(value),)


def plain_text(value: Any) -> str:
    """Return a value as text: JSON, unless it is text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
