"""Words and where they are, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable

from holdfast.backends.interface import Row, WordMatch, WordMatches
from holdfast.backends.tables import Key


class InvertedIndex:
    """The keys of rows of `WORDS`, by tenant and word. Whoever uses it sees to it that only one does at a time."""

    def __init__(self) -> None:
        self._times: dict[str, dict[Key, int]] = {}
        self._keys: dict[str, dict[str, set[Key]]] = {}

    def add(self, row: Row) -> None:
        """Take in a row whose key is not in here."""
        tenant = str(row.key[0])
        self._times.setdefault(tenant, {})[row.key] = int(row.columns[0])
        keys = self._keys.setdefault(tenant, {})
        for word in _words(row):
            keys.setdefault(word, set()).add(row.key)

    def remove(self, row: Row) -> None:
        """Let go of a row that was taken in."""
        tenant = str(row.key[0])
        del self._times[tenant][row.key]
        keys = self._keys[tenant]
        for word in _words(row):
            found = keys[word]
            found.discard(row.key)
            if not found:
                del keys[word]

    def match(self, match: WordMatch) -> WordMatches:
        """A page of what has these words, the last first."""
        tenant, words, prefixes, line, after, limit = match
        times, keys = self._times.get(tenant, {}), self._keys.get(tenant, {})
        sets = [keys.get(word, set()) for word in words]
        for prefix in filter(None, prefixes):
            sets.append(_union(found for word, found in keys.items() if word.startswith(prefix)))  # noqa: PERF401
        sets.sort(key=len)
        found = set.intersection(*sets) if sets else set(times)
        order = sorted(((times[key], key) for key in found if line in (None, key[1])), reverse=True)
        if after is not None:
            time, *rest = json.loads(after)
            order = [each for each in order if each < (time, (tenant, *rest))]
        page = [key for _, key in order[:limit]]
        return WordMatches(page, json.dumps([times[page[-1]], *page[-1][1:]]) if page and len(order) > limit else None)


def _words(row: Row) -> Iterable[str]:
    return {word for word in str(row.columns[-1]).split(" ") if word}


def _union(sets: Iterable[set[Key]]) -> set[Key]:
    return set().union(*sets)
