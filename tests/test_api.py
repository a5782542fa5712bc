"""The public names of the package."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import codec


def test_every_public_name_is_there() -> None:
    assert dir(holdfast) == sorted(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert holdfast.Codec is codec.Codec


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'nonsense'"):
        holdfast.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_what_is_registered_for_all_is_known_to_every_codec() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    holdfast.register(Celsius, lambda c: c.degrees, Celsius, name="tests: celsius")
    assert holdfast.Codec().unpack(holdfast.Codec().pack(Celsius(5.0))).degrees == 5.0
