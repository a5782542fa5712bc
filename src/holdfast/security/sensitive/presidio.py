"""Names, places and other personal data that only a language model recognises, by Microsoft Presidio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.security.sensitive.detector import SensitiveSpan

_ENTITIES = ("PERSON", "LOCATION", "NRP", "US_SSN", "UK_NHS", "MEDICAL_LICENSE")


class PresidioRecognizer:
    """Finds entities with Presidio: `store.sensitive.protect(recognizers=[PresidioRecognizer()])`.

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
