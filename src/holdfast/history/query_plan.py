"""How a query is best answered: what the index can be asked, and which threads need not be looked at."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from holdfast.history.query import And, Field, Or, Query, TextTerm

_ALTERNATIVES = 16
"""How many questions the index is asked for one query."""


class WordFilter(NamedTuple):
    """What the words of a checkpoint must be for it to match: all of these, and some that start so."""

    words: frozenset[str]
    prefixes: frozenset[str] = frozenset()

    def met(self, words: set[str]) -> bool:
        """Whether these words do."""
        return self.words <= words and all(any(word.startswith(each) for word in words) for each in self.prefixes)


def needs(query: Query) -> list[WordFilter] | None:
    """What the index can be asked: whatever matches has what one of these says. None if it may be anything."""
    if isinstance(query, TextTerm):
        words, prefixes = query.words
        return [WordFilter(frozenset(words), frozenset(prefixes))] if words or prefixes else None
    if isinstance(query, Or):
        parts = [needs(each) for each in query.queries]
        known = [each for part in parts if part is not None for each in part]
        return None if None in parts or len(known) > _ALTERNATIVES else list(dict.fromkeys(known))
    if not isinstance(query, And):
        return None
    found: list[WordFilter] | None = None
    for each in query.queries:
        part = needs(each)
        if part is None or (found is not None and len(found) * len(part) > _ALTERNATIVES):
            continue
        pairs = product(found or [WordFilter(frozenset())], part)
        found = [WordFilter(one.words | other.words, one.prefixes | other.prefixes) for one, other in pairs]
    return found


def one_thread(query: Query) -> str | None:
    """The only thread whose checkpoints may match; None if there may be others."""
    for each in query.queries if isinstance(query, And) else (query,):
        if isinstance(each, Field) and each.name == "thread" and each.exact is not None:
            return each.exact
    return None


def thread_prefix(query: Query) -> str:
    """What the names of all threads start with whose checkpoints may match."""
    for each in query.queries if isinstance(query, And) else (query,):
        if isinstance(each, Field) and each.name == "thread" and each.operator == ":":
            return each.value.partition("*")[0]
    return ""
