"""Keys of digests and tokens; and the recognizer of Presidio."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from holdfast.encryption import LocalKeys
from holdfast.errors import ConfigError, DeniedError
from holdfast.redaction import PresidioRecognizer
from holdfast.security.sensitive.detector import SensitiveSpan
from holdfast.security.sensitive.markers import check_keys
from holdfast.store.store import Store
from tests.hooks import kit

ONE, TWO = b"1" * 32, b"2" * 32


def test_keys_of_a_source_are_checked() -> None:
    local = LocalKeys(ONE, TWO)
    assert check_keys(local.keys()) == (ONE, TWO)
    for wrong in ((), (b"short",), (ONE, "text")):
        with pytest.raises(ConfigError) as error:
            check_keys(wrong)  # type: ignore[arg-type]
        assert error.value.code == "redaction-key"
    with pytest.raises(DeniedError) as denied:
        LocalKeys().keys()
    assert denied.value.code == "key-missing"


class _Result(NamedTuple):
    entity_type: str
    start: int
    end: int


class _Analyzer:
    """Stands in for Presidio's analyzer, which needs a language model: it knows one name."""

    def analyze(self, text: str, **options: Any) -> list[_Result]:
        assert options["language"] == "en"
        place = text.find("Ada Lovelace")
        return [] if place < 0 else [_Result("PERSON", place, place + 12)]


def test_a_recognizer_finds_what_no_format_describes() -> None:
    with kit.store() as store:
        assert isinstance(store, Store)
        recognizer = PresidioRecognizer(analyzer=_Analyzer())
        assert list(recognizer("I am Ada Lovelace")) == [SensitiveSpan(5, 17, "presidio-person")]
        store.redaction.protect("redact", keys=_Keys(), recognizers=[recognizer], scope="people")
        store.thread("people").put({"text": "I am Ada Lovelace"})
        store.thread("others").put({"text": "I am Ada Lovelace"})
        assert store.thread("people").get().state["text"].startswith("I am [redacted:presidio-person:")
        assert store.thread("others").get().state["text"] == "I am Ada Lovelace"


class _Keys:
    def keys(self) -> tuple[bytes, ...]:
        return (ONE,)


def test_presidio_itself() -> None:
    try:
        import presidio_analyzer  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError) as error:
            PresidioRecognizer()
        assert error.value.code == "not-installed"
        pytest.skip("presidio-analyzer is not installed: the recognizer was tested with a stand-in only")
    found = list(PresidioRecognizer()("My name is Ada Lovelace and I live in London."))
    assert any(each.format == "presidio-person" for each in found)
