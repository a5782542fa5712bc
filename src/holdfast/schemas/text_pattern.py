"""The pattern of a text in a schema: a regular expression whose `$` is the end of the text, as in JSON Schema.

Python's also matches before a line break at the end, so that `^a$` would take "a\\n".
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidError

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""Matches a `$`, and parts in which it has another meaning: an escape, or a set of characters."""


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Raises `InvalidError` if it is no regular expression."""
    try:
        found = re.compile(pattern)
        if found.flags & re.MULTILINE:
            return found
        return re.compile(_PARTS.sub(lambda part: r"\Z" if part[0] == "$" else part[0], pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidError(f"a pattern is no regular expression: {error}", where=pattern[:80]) from error
