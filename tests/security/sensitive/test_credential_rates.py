"""What the check for credentials notices, of generated examples: the rates that the guide has."""

from __future__ import annotations

import pytest

from holdfast.security.sensitive.detector import parse_formats
from tools import credential_rates
from tools.credential_rates import FALSE, PAGE, TRUE, describe, measure


def test_the_rates_are_those_of_the_guide() -> None:
    assert describe() in PAGE.read_text("utf-8")


def test_most_credentials_are_noticed_and_hardly_anything_else() -> None:
    true, false = measure()
    assert (sum(each.examples for each in true), sum(each.examples for each in false)) == (TRUE, FALSE) == (200, 2_000)
    assert sum(each.found for each in true) >= 0.97 * TRUE, true
    assert min(each.found / each.examples for each in true) >= 0.8, true
    assert sum(each.found for each in false) <= 0.002 * FALSE, [each for each in false if each.found]


def test_the_control_notices_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_rates, "noticed_formats", lambda: parse_formats("iban"))
    assert not any(each.found for each in measure()[0])
