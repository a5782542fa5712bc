"""Two texts compared: word by word, and line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.engine.model.alignment import gaps

_WORD = re.compile(r"\w+|\n|[^\S\n]+|[^\w\s]")

SAME, OLD, NEW = "=", "-", "+"


class TextSpan(NamedTuple):
    """A stretch of text: `=` in both, `-` only in the old one, `+` only in the new one."""

    kind: str
    text: str


def words(old: str, new: str) -> list[TextSpan]:
    """What changed from one text to the other, word by word."""
    return _spans(_WORD.findall(old), _WORD.findall(new))


def lines(old: str, new: str) -> list[TextSpan]:
    """The same, line by line; each span is a whole line with its end."""
    parts = _spans(old.splitlines(keepends=True), new.splitlines(keepends=True))
    return [TextSpan(part.kind, line) for part in parts for line in part.text.splitlines(keepends=True)]


def _spans(old: Sequence[str], new: Sequence[str]) -> list[TextSpan]:
    return [span for span in _parts(old, new) if span.text]


def _parts(old: Sequence[str], new: Sequence[str]) -> Iterator[TextSpan]:
    done = 0
    for gap in gaps(_encoded(old), _encoded(new)):
        yield TextSpan(SAME, "".join(old[done : gap.start]))
        yield TextSpan(OLD, "".join(old[gap.start : gap.stop]))
        yield TextSpan(NEW, "".join(new[gap.at : gap.until]))
        done = gap.stop
    yield TextSpan(SAME, "".join(old[done:]))


def _encoded(parts: Sequence[str]) -> list[bytes]:
    return [part.encode(errors="surrogatepass") for part in parts]
