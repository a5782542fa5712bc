"""Entries of metadata that are declared indexed: found by equality, by keyed digests outside of the seals.

The digests, *tokens*, follow that of the whole metadata in the column `metadata`. Each field has a key of its own. A
filter reads the columns alone, and opens only the steps with the token of its value. Whoever sees the store sees which
steps of a tenant have the same value in a field, and so how often each value occurs, but not which value it is.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.backends.interface import Row
from holdfast.backends.tables import STEPS
from holdfast.engine.metadata_filter import MetadataFilter, value_texts, values_below

_TOKEN_SIZE, _TOKEN_LENGTH = 9, 12
_MAX_TOKENS = 64
_ANY = "*"
"""In place of tokens: there are too many."""

_METADATA = list(STEPS.columns).index("metadata")
_DIGEST_LENGTH = 20


class MetadataIndex:
    """The tokens of one tenant. `derive` returns the key for a purpose."""

    def __init__(self, fields: Iterable[str], derive: Callable[[bytes], bytes]) -> None:
        self._keys = {name: derive(b"field 1 " + name.encode()) for name in fields}

    def tokens(self, metadata: str) -> str:
        """Return the tokens of some metadata, which is JSON."""
        try:
            found: Any = json.loads(metadata) if metadata else None
        except ValueError:
            return _ANY
        tokens = {
            self._token(name, text)
            for name in self._keys
            for value in values_below(found, tuple(name.split(".")))
            for text in value_texts(value)[:1]
        }
        return "".join(sorted(tokens)) if len(tokens) <= _MAX_TOKENS else _ANY

    def matcher(self, filters: Sequence[MetadataFilter]) -> Callable[[Row], bool] | None:
        """Return whether a step, as it is stored, may match filters; None if no field of them is indexed."""
        wanted = [
            {self._token(name, text) for text in each.texts}
            for each in filters
            if (name := ".".join(each.path)) in self._keys
        ]
        if not wanted:
            return None

        def may_match(row: Row) -> bool:
            text = str(row.columns[_METADATA])[_DIGEST_LENGTH:]
            if text == _ANY:
                return True
            tokens = {text[at : at + _TOKEN_LENGTH] for at in range(0, len(text), _TOKEN_LENGTH)}
            return all(not tokens.isdisjoint(each) for each in wanted)

        return may_match

    def _token(self, name: str, text: str) -> str:
        digest = hmac.digest(self._keys[name], text.encode(errors="surrogatepass"), "sha256")
        return urlsafe_b64encode(digest[:_TOKEN_SIZE]).decode()
