"""Patterns of keys and scopes: `plan/*/done`, `agent:*`, `user:alice/**`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from holdfast.errors import InvalidError

_MAX = 512
_SPECIAL = re.compile(r"\*\*|\*|\?")


@lru_cache(1024)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a text matches: `*` is any text without a slash, `**` any text, `?` one
    character but a slash."""
    if type(pattern) is not str or not 0 < len(pattern) <= _MAX:
        raise InvalidError(
            f"a pattern must be a string of 1 to {_MAX} characters, such as plan/*", where=repr(pattern)[:80]
        )
    if pattern.count("*") > 16:
        raise InvalidError("a pattern can have at most 16 stars", where=repr(pattern)[:80])
    if not _SPECIAL.search(pattern):
        return pattern.__eq__
    regex = re.compile(_regex(pattern, "[^/]*", "[^/]"), re.DOTALL)
    return lambda text: regex.fullmatch(text) is not None


def _regex(pattern: str, star: str, character: str) -> str:
    """Return a regular expression for a pattern, with these for `*` and `?`.

    It does not backtrack into parts that were found: of a part after a star, the first occurrence is as good as any
    later one, unless the text must end with it. Otherwise a pattern of a dozen stars could take years.
    """
    first, *more = pattern.split("**")
    if not more:
        return _chain(first, star, character, at_end=True)
    middle = "".join(f"(?>.*?{_chain(part, star, character, at_end=False)})" for part in more[:-1])
    return f"{_chain(first, star, character, at_end=False)}{middle}.*{_chain(more[-1], star, character, at_end=True)}"


def _chain(pattern: str, star: str, character: str, *, at_end: bool) -> str:
    """Return a regular expression for a pattern without `**`, which the text may have to end with."""
    first, *more = (character.join(map(re.escape, part.split("?"))) for part in pattern.split("*"))
    last = f"{star}{more.pop()}" if at_end and more else ""
    return f"{first}{''.join(f'(?>{star}?{part})' for part in more)}{last}"


# What stands for a wildcard of a pattern that another one is compared with.
_MARKS = {"**": "\ue000", "*": "\ue001", "?": "\ue002"}


class KeyPattern(str):
    """All keys that match a pattern, where a guard is asked about keys: a listing or a watch of them."""

    __slots__ = ()

    def is_within(self, pattern: str) -> bool:
        """Return whether all keys that match this also match a pattern. False if that is not certain."""
        text = "".join(_MARKS.get(part, part) for part in _split(self))
        return re.fullmatch(_regex(pattern, "[^/\ue000]*", "[^/\ue000\ue001]"), text, re.DOTALL) is not None


def keys_of_listing(prefix: str, pattern: str) -> tuple[KeyPattern, ...]:
    """Return the keys that a listing is about, for a guard: none if it is about all of the scope."""
    if pattern:
        matcher(pattern)  # raises if it is not one
        return () if pattern == "**" else (KeyPattern(pattern),)
    return (KeyPattern(f"{prefix}**"),) if prefix and not _SPECIAL.search(prefix) else ()


def _split(pattern: str) -> list[str]:
    return re.split(r"(\*\*|\*|\?)", pattern)


def stem(pattern: str) -> str:
    """Return the prefix of all texts that match."""
    special = _SPECIAL.search(pattern)
    return pattern if special is None else pattern[: special.start()]


def narrowed(prefix: str, pattern: str) -> str | None:
    """Return the common prefix of all texts that start with a prefix and match a pattern; None if no text can."""
    start = stem(pattern) if pattern else ""
    if not (prefix.startswith(start) or start.startswith(prefix)):
        return None
    return max(prefix, start, key=len)
