"""The detector: finds what matches the formats, in text and in fields with telling names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.errors import ConfigError, InvalidError
from holdfast.security.sensitive import checks
from holdfast.security.sensitive.formats import (
    BEFORE,
    BETWEEN,
    BY_NAME,
    CREDENTIALS,
    FIELD,
    FORMATS,
    GROUPS,
    LONG,
    NAMES,
    Format,
    is_secret_name,
)

Formats: TypeAlias = "Literal['credentials', 'personal', 'all'] | str | Iterable[str]"
"""How callers name formats: a group, `all`, a name such as `email`, or several of these."""


class SensitiveSpan(NamedTuple):
    """Sensitive data in a text: where it is, and its format."""

    start: int
    end: int
    format: str


Recognizer: TypeAlias = Callable[[str], Iterable[SensitiveSpan]]
"""Finds what no format of the table describes, such as names of people."""


def parse_formats(formats: Formats) -> frozenset[str]:
    """Return the names of formats that a caller names. `InvalidError` if there is no such format."""
    found: set[str] = set()
    for each in [formats] if isinstance(formats, str) or not isinstance(formats, Iterable) else formats:
        if each == "all":
            found.update(NAMES)
        elif each in GROUPS:
            found.update(format_.name for format_ in FORMATS if format_.group == each)
            found.update([FIELD] * (each == CREDENTIALS))
        elif each in NAMES:
            found.add(each)
        else:
            raise InvalidError(
                f"there is no format {ascii(each)[:80]}", hint=f"Formats are all, {', '.join((*GROUPS, *NAMES))}"
            )
    if not found:
        raise InvalidError("no format is named", hint=f"Formats are all, {', '.join((*GROUPS, *NAMES))}")
    return frozenset(found)


_UNUSUAL = re.compile(
    "[\u00a0\u00ad\u034f\u061c\u180e\u2000-\u2013\u202a-\u202f\u205f-\u2064\u206a-\u206f\u2212\u3000\ufe00-\ufe0f\ufeff\uff01-\uff5e]"
    r"|(?![0-9])\d"
)
"""Spaces, dashes, digits and letters that look like others, and characters that are not seen at all."""

_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2212")


def plain_text(text: str) -> tuple[str, list[int] | None]:
    """Return a text as it looks, in plain characters where there are such; and for each of them where it was. None, if
    the text is the same."""
    if text.isascii() or _UNUSUAL.search(text) is None:
        return text, None
    parts: list[str] = []
    places: list[int] = []
    for place, each in enumerate(text):
        plain = each if each < "\x80" else _plain_character(each)
        parts.append(plain)
        places += [place] * len(plain)
    return "".join(parts), places


@lru_cache(4096)
def _plain_character(each: str) -> str:
    if _UNUSUAL.match(each) is None:
        return each
    if each in _DASHES:
        return "-"
    if each.isspace():
        return " "
    if each.isdecimal():
        return str(unicodedata.decimal(each))
    # What is not seen is left out; forms of full width have a plain one.
    return unicodedata.normalize("NFKC", each) if each >= "\uff01" else ""


class Detector:
    """Finds sensitive data of some formats."""

    def __init__(self, formats: Iterable[str] = NAMES, recognizers: Sequence[Recognizer] = ()) -> None:
        self.names: frozenset[str] = frozenset(formats)
        self.by_field: bool = FIELD in self.names
        self._recognizers = tuple(recognizers)
        chosen = [each for each in FORMATS if each.name in self.names]
        self._in_words = [each for each in chosen if each.in_word and each.anchors]
        self._in_long_words = [each for each in chosen if each.in_word and not each.anchors]
        self._in_texts = [each for each in chosen if not each.in_word]
        self._counts_digits = any(each.min_digits for each in chosen)
        self._anchors = _any_of({anchor for each in self._in_words for anchor in each.anchors})

    def find(self, text: str) -> list[SensitiveSpan]:
        """Return what is found in a text, in its order. Findings do not overlap."""
        plain, places = plain_text(text)
        found = self._find(plain)
        if places is not None:
            found = [each._replace(start=places[each.start], end=places[each.end - 1] + 1) for each in found]
        for recognizer in self._recognizers:
            found += recognizer(text)
        return _apart(found) if len(found) > 1 else found

    def _find(self, text: str) -> list[SensitiveSpan]:
        """Return what the formats find, which may overlap."""
        found: list[SensitiveSpan] = []
        words = BETWEEN.join([word for word in text.split() if len(word) >= LONG])
        if words:
            if self._anchors.search(words):
                for format_ in self._in_words:
                    if _has(words, format_.anchors) and any(_matches(format_, words)):
                        found += _matches(format_, text)
            for format_ in self._in_long_words:
                if any(_matches(format_, words)):
                    found += _matches(format_, text)
        if self._in_texts:
            folded, digits = text.lower(), sum(map(text.count, "0123456789")) if self._counts_digits else 0
            for format_ in self._in_texts:
                if digits >= format_.min_digits and (
                    not format_.anchors or _has(folded if format_.folded else text, format_.anchors)
                ):
                    found += _matches(format_, text)
        return found

    def find_in_field(self, name: str, text: str) -> list[SensitiveSpan]:
        """Return what is found in the text of a field. All of it is a secret, if the name says so."""
        if self.by_field and is_secret_name(name) and checks.is_value(text):
            return [SensitiveSpan(0, len(text), FIELD)]
        return self.find(text)


def _any_of(anchors: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of some texts, grouped by their first characters, which is faster."""
    rests: dict[str, list[str]] = {}
    for anchor in sorted(anchors):
        rests.setdefault(anchor[0], []).append(re.escape(anchor[1:]))
    parts = [f"{re.escape(first)}(?:{'|'.join(each)})" for first, each in rests.items()]
    return re.compile("|".join(parts) or BETWEEN * 2)


def _has(text: str, anchors: tuple[str, ...]) -> bool:
    for anchor in anchors:  # noqa: SIM110 - a generator takes longer than all comparisons
        if anchor in text:
            return True
    return False


def _matches(format_: Format, text: str) -> Iterable[SensitiveSpan]:
    group = format_.pattern.groups
    for match in format_.pattern.finditer(text):
        if match.start(group) < 0:
            continue
        if format_.before is not None:
            start = match.start()
            if format_.before.search(text[max(start - BEFORE, 0) : start].lower()) is None:
                continue
        if format_.check is None or format_.check(match.group(group)):
            yield SensitiveSpan(match.start(group), match.end(group), format_.name)


def _apart(found: list[SensitiveSpan]) -> list[SensitiveSpan]:
    """Return findings in the order of the text. Of those that overlap, the first format of the table is retained,
    extended over the others, so that nothing of any is left."""
    apart: list[SensitiveSpan] = []
    for each in sorted(found):
        if apart and each.start < apart[-1].end:
            last = apart[-1]
            first = min(last.format, each.format, key=_order)
            apart[-1] = SensitiveSpan(last.start, max(last.end, each.end), first)
        else:
            apart.append(each)
    return apart


_PLACES = {name: place for place, name in reversed(list(enumerate(NAMES)))}


def _order(name: str) -> int:
    return _PLACES.get(name, len(_PLACES))


def mask(name: str) -> str:
    """Return a name without what has the form of a credential, for reports and errors."""
    for found in reversed(_by_form().find(name)):
        name = f"{name[: found.start]}…{name[found.end :]}"
    return name


@cache
def _by_form() -> Detector:
    return Detector(parse_formats(CREDENTIALS) - BY_NAME)


def find(text: str, formats: Formats = "all") -> list[SensitiveSpan]:
    """Return the sensitive data of some formats in a text: where it starts and ends, and its format."""
    return Detector(parse_formats(formats)).find(text)


# Presidio -------------------------------------------------------------------------------------------------------------
#
# Names, places and other personal data that only a language model recognises, by Microsoft Presidio.

_ENTITIES = ("PERSON", "LOCATION", "NRP", "US_SSN", "UK_NHS", "MEDICAL_LICENSE")


class PresidioRecognizer:
    """Finds entities with Presidio: `store.redaction.protect(recognizers=[PresidioRecognizer()])`.

    Its formats are named after the entities: `presidio-person`. It takes milliseconds for a message, where the formats
    of the table take microseconds.
    """

    def __init__(
        self,
        entities: Sequence[str] = _ENTITIES,
        *,
        language: str = "en",
        min_score: float = 0.6,
        analyzer: Any = None,
    ) -> None:
        """`analyzer` is an `AnalyzerEngine` that is configured already. `ConfigError` if Presidio is not installed."""
        self._analyzer = _create_analyzer() if analyzer is None else analyzer
        self._entities = list(entities)
        self._language = language
        self._min_score = min_score

    def __call__(self, text: str) -> Iterable[SensitiveSpan]:
        """Return what is found in a text."""
        results = self._analyzer.analyze(
            text=text, language=self._language, entities=self._entities, score_threshold=self._min_score
        )
        for each in results:
            name = each.entity_type.lower().replace("_", "-")
            yield SensitiveSpan(each.start, each.end, f"presidio-{name}"[:40])


def _create_analyzer() -> Any:
    try:
        from presidio_analyzer import AnalyzerEngine
    except ImportError as missing:
        raise ConfigError(
            "the recognizer needs presidio-analyzer, which is not installed",
            hint="pip install presidio-analyzer, and a model: python -m spacy download en_core_web_lg",
            code="not-installed",
        ) from missing
    return AnalyzerEngine()
