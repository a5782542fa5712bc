"""A value for "no value", where None could be one."""

from __future__ import annotations

from typing import Final


class MissingType:
    """A named constant that is false."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return False


MISSING: Final = MissingType("MISSING")
"""No value: a side has none, or none is to be there."""
