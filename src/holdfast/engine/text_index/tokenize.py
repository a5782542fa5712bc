"""Text for searching: folded, and split into words.

Folding makes `Straße` and `STRASSE` equal (NFKC, then case folding). A word is a run of letters and digits. Scripts
without spaces between words are split into characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

LONGEST = 32
"""How many characters of a word are indexed."""

_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_IN_WORD = rf"[^\W_{_ALONE}]"
_ASCII = bytes(
    (byte | 0x20) if 0x41 <= byte <= 0x5A else byte if chr(byte).isalnum() and byte < 0x80 else 0x20
    for byte in range(256)
)
"""Turns ASCII into lower case, and all that is in no word into spaces."""


# Compiled on first use: that takes longer than importing everything else here.


@cache
def _word() -> re.Pattern[str]:
    return re.compile(rf"[{_ALONE}]|{_IN_WORD}+")


@cache
def _end_of_word() -> re.Pattern[str]:
    return re.compile(rf"{_IN_WORD}\Z")


class FoldedText(NamedTuple):
    """A text as it is shown, as it is searched, and the position in the former of each character of the latter."""

    shown: str
    text: str
    places: Sequence[int] | None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the position of a part of the folded text in the text that is shown."""
        if self.places is None:
            return start, end
        return self.places[start], self.places[end - 1] + 1 if end > start else self.places[start]


def fold(text: str) -> FoldedText:
    """Fold a text. Where that normalizes characters, it is shown normalized, too."""
    if text.isascii():
        return FoldedText(text, text.lower(), None)
    shown = text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)
    folded = shown.casefold()
    if len(folded) == len(shown):
        return FoldedText(shown, folded, None)
    places = [place for place, char in enumerate(shown) for _ in char.casefold()]
    return FoldedText(shown, folded, [*places, len(shown)])


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the distinct words of texts, each truncated to the longest length."""
    joined = "\n".join(texts)
    if joined.isascii():
        words = {word[:LONGEST] for word in joined.encode().translate(_ASCII).split()}
        return set(b" ".join(words).decode().split())
    return {word[:LONGEST] for word in _word().findall(fold(joined).text)}


def in_order(text: str) -> list[str]:
    """Return the words of a text, in order."""
    return [word[:LONGEST] for word in _word().findall(fold(text).text)]


def needed(text: str, *, prefix: bool = False) -> tuple[list[str], list[str]]:
    """Return the words that every text has that contains this one, and prefixes of such words."""
    words = in_order(text)
    if prefix and words and _end_of_word().search(fold(text).text):
        return words[:-1], words[-1:]
    return words, []


class TextFinder:
    """Finds a text in folded ones: where it starts or ends with a word, so must the match, except at the end of a
    prefix. White space matches any white space."""

    def __init__(self, text: str, *, prefix: bool = False) -> None:
        folded = fold(text).text.strip()
        pattern = r"\s+".join(map(re.escape, folded.split()))
        if not prefix and _end_of_word().search(folded):
            pattern += rf"(?!{_IN_WORD})"
        # What comes before is checked last: a pattern that starts with plain characters is found quickly.
        self._find = re.compile(pattern).search
        self._starts_word = re.match(_IN_WORD, folded) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions in a folded text."""
        match = self._find(text)
        while match is not None:
            start, end = match.span()
            if self._starts_word and start and _end_of_word().match(text, start - 1, start):
                match = self._find(text, start + 1)
            else:
                yield start, end
                match = self._find(text, end)
