"""Ids of steps that sort by time, in the form of version 6 UUIDs, and what ids and names of steps cannot be.

Steps of lines that are no threads, which are written in great numbers, have the first part of such a UUID as their id:
the time, and 14 random bits. Both forms sort together by time.
"""

from __future__ import annotations

import re

from holdfast.engine.rng import rng
from holdfast.engine.row_format import check_name
from holdfast.errors import InvalidError

_GREGORIAN = 0x01B21DD213814000
"""From the start of the Gregorian calendar to 1970, in units of 100 nanoseconds."""


LATEST = ("HEAD", "@")
"""The revisions that name the latest step of a line."""

SUFFIX = re.compile(r"(?P<kind>[~^#])(?P<count>\d*)$|@\{(?P<time>[^{}]*)\}$")
"""The last suffix of a revision."""

_RESERVED = ("", *LATEST, "main")
_STARTS = (*_RESERVED[1:], "^", "#")
"""How reserved names start: with a revision, or a suffix of the empty one."""


def is_reserved(name: str) -> bool:
    """Return whether a name is a revision in every line: `HEAD`, `main`, or with suffixes, as `HEAD~2` and `#12`.

    Not `~2`, which callers use for ids that sort after all others.
    """
    if name and not name.startswith(_STARTS):
        return False  # nearly every name
    base = name
    while match := SUFFIX.search(base):
        base = base[: match.start()]
    return base in _RESERVED


def check_new_name(text: object, what: str) -> str:
    """Return an id or a tag for a step. Raises `InvalidError` if it is empty or means another step already."""
    name = check_name(text, what)
    if not name:
        raise InvalidError(f"the {what} must not be empty", hint="Use another one")
    if is_reserved(name):
        raise InvalidError(
            f"the {what} cannot be {name!r}: that name is reserved for a checkpoint of every thread",
            hint="Use another one",
        )
    return name


def new_id(time: int, after: str = "", *, short: bool = False) -> str:
    """Return an id for a step at this time (nanoseconds since 1970) that sorts after another one; a short one, for a
    step of a line that is no thread.

    They sort by time together with those of frameworks that use version 6 UUIDs, as LangGraph does.
    """
    form = _short if short else _uuid6
    id = form(time // 100 + _GREGORIAN)
    if id > after:
        return id
    ticks = _ticks(after)
    if ticks is not None and ticks + 1 < _END:  # the other id comes from a clock that is ahead
        return form(ticks + 1)
    # An id in a format of the caller's own: a continuation of it sorts after it.
    stem, _, last = after.partition("~")
    return check_name(f"{stem}~{new_id(time, last, short=short)}", "id made to follow that of the parent")


def _uuid6(ticks: int) -> str:
    bits = rng.getrandbits(62)
    digits = f"{(ticks >> 12 << 16 | 0x6000 | ticks & 0xFFF) << 64 | 1 << 63 | bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _short(ticks: int) -> str:
    bits = rng.getrandbits(14)
    digits = f"{(ticks >> 12 << 16 | 0x6000 | ticks & 0xFFF) << 16 | 0x8000 | bits:020x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:]}"


_UUID6 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[0-9a-f]{4}(?:-[0-9a-f]{12})?")
_END = 1 << 60


def time_of(id: str) -> int:
    """Return when an id was created, in nanoseconds since 1970; 0 if it does not say."""
    ticks = _ticks(id)
    return 0 if ticks is None else max(ticks - _GREGORIAN, 0) * 100


def _ticks(id: str) -> int | None:
    """Return the time in a version 6 UUID, or in the first part of one; None if it is neither."""
    match = _UUID6.fullmatch(id)
    return None if match is None else int("".join(match.groups()), 16)
