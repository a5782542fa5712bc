"""Keys of digests and tokens; and the recognizer of Presidio."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.errors import ConfigError
from holdfast.sensitive import EnvironmentKeys, FileKeys, PresidioRecognizer, SensitiveSpan
from holdfast.store.store import Store
from tests.hooks import kit
from tests.support.cases import case

ONE, TWO = b"1" * 32, b"2" * 40


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setenv("MY_KEYS", f"{_text(ONE)}, {_text(TWO)}")
    assert EnvironmentKeys("MY_KEYS").keys() == (ONE, TWO)
    for wrong in ("", ",", "no base64!", _text(b"short"), f"{_text(ONE)},{_text(b'short')}"):
        with case(subtests, wrong):
            monkeypatch.setenv("MY_KEYS", wrong)
            with pytest.raises(ConfigError) as error:
                EnvironmentKeys("MY_KEYS").keys()
            assert error.value.code == "sensitive-key"
            assert not wrong or wrong not in str(error.value)


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(ConfigError):
        FileKeys(file).keys()
    file.write_text(f"{_text(ONE)}\n{_text(TWO)}\n")
    file.chmod(0o600)
    assert FileKeys(file).keys() == (ONE, TWO)
    if os.name == "posix":
        for mode in (0o640, 0o604, 0o660):
            file.chmod(mode)
            with pytest.raises(ConfigError, match="others than its owner"):
                FileKeys(file).keys()
    file.chmod(0o600)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError):
        FileKeys(file).keys()


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
        store.sensitive.protect("redact", keys=_Keys(), recognizers=[recognizer], scope="people")
        store.put("people", {"text": "I am Ada Lovelace"})
        store.put("others", {"text": "I am Ada Lovelace"})
        assert store.get("people").state["text"].startswith("I am [redacted:presidio-person:")
        assert store.get("others").state["text"] == "I am Ada Lovelace"


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
