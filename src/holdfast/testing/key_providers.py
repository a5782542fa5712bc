"""The conformance suite of key providers."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from holdfast.errors import DeniedError
from holdfast.security.encryption.provider import KeyProvider

_CONTEXT: Mapping[str, str] = {"purpose": "holdfast-wrapping", "number": "0", "tenant": "acme"}


class KeyProviderSuite:
    """Tests that every provider of keys passes. A subclass, whose name starts with `Test`, overrides the fixtures
    `provider`, and `other`, a provider of the same kind with another master key."""

    @pytest.fixture
    def provider(self) -> KeyProvider:
        """The provider to test."""
        raise NotImplementedError

    @pytest.fixture
    def other(self) -> KeyProvider:
        """One with another master key."""
        raise NotImplementedError

    def test_a_key_is_wrapped_and_unwrapped(self, provider: KeyProvider) -> None:
        """A wrapped key is not the key, and unwraps to it."""
        key = os.urandom(32)
        wrapped = provider.wrap(key, _CONTEXT)
        assert key not in wrapped
        assert wrapped != provider.wrap(key, _CONTEXT), "two wrapped keys are equal: whoever sees them learns that"
        assert provider.unwrap(wrapped, provider.key_id, _CONTEXT) == key

    def test_the_context_is_bound(self, provider: KeyProvider) -> None:
        """A wrapped key does not unwrap for another tenant, purpose or number, nor without one of them."""
        wrapped = provider.wrap(os.urandom(32), _CONTEXT)
        for name in _CONTEXT:
            for context in (
                {**_CONTEXT, name: "another"},
                {each: value for each, value in _CONTEXT.items() if each != name},
            ):
                with pytest.raises(DeniedError) as caught:
                    provider.unwrap(wrapped, provider.key_id, context)
                assert caught.value.code == "key-wrong"

    def test_an_altered_key_is_refused(self, provider: KeyProvider) -> None:
        """A wrapped key of which a bit was flipped, or the end is missing, does not unwrap."""
        wrapped = provider.wrap(os.urandom(32), _CONTEXT)
        for altered in (wrapped[:-1] + bytes([wrapped[-1] ^ 1]), wrapped[:-1]):
            with pytest.raises(DeniedError) as caught:
                provider.unwrap(altered, provider.key_id, _CONTEXT)
            assert caught.value.code == "key-wrong"

    def test_another_master_key_does_not_unwrap(self, provider: KeyProvider, other: KeyProvider) -> None:
        """A key that another master key wrapped is refused."""
        assert provider.key_id != other.key_id
        wrapped = other.wrap(os.urandom(32), _CONTEXT)
        with pytest.raises(DeniedError):
            provider.unwrap(wrapped, provider.key_id, _CONTEXT)

    def test_ids(self, provider: KeyProvider) -> None:
        """Ids are short texts, and the current one is among them."""
        assert 0 < len(provider.key_id) <= 500
        assert provider.key_id in provider.key_ids()

    def test_nothing_secret_is_shown(self, provider: KeyProvider) -> None:
        """Neither a provider nor its errors show keys: checked for keys in base64 and hex that it wraps."""
        key = os.urandom(32)
        wrapped = provider.wrap(key, _CONTEXT)
        with pytest.raises(DeniedError) as caught:
            provider.unwrap(wrapped[:-1], provider.key_id, _CONTEXT)
        assert key.hex() not in f"{provider!r} {caught.value} {caught.value!r}"
