"""Search for words in a PostgreSQL store.

Words are the lexemes of a `tsvector`, unchanged. Its index is faster for rare words, the index by time for common ones;
the planner knows how common words are. With row-level security only the index by time is used: PostgreSQL may not
search other columns before it has checked whose the rows are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.backends.interface import WordMatch, WordMatches
from holdfast.backends.postgres.binary_values import bind, escape, unescape
from holdfast.backends.postgres.connection import Statement
from holdfast.backends.postgres.schema import quote_name

_LONGEST = 2046
"""The most bytes that a lexeme may have."""

PLANNER_SETTINGS: Statement = (
    "SELECT pg_catalog.set_config('enable_bitmapscan', 'on', true), "
    "pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true)",
    (),
)
"""Runs before the search, in its transaction: the settings of the session suit all other statements."""


def cannot_match(match: WordMatch) -> bool:
    """Whether a word is longer than any that can be stored."""
    return any(len(escape(word).encode()) > _LONGEST for word in (*match.words, *match.prefixes))


def build_search(schema: str, match: WordMatch) -> Statement:
    """Build the statement that finds a page of matches."""
    bound = [bind(match.tenant)]
    where = ["tenant = $1"]
    if match.line is not None:
        bound.append(bind(match.line))
        where.append(f"line = ${len(bound)}")
    lexemes = [_lexeme(word) for word in match.words] + [f"{_lexeme(prefix)}:*" for prefix in match.prefixes if prefix]
    if lexemes:
        # Quoted already; the cast does not normalize words.
        bound.append(bind(" & ".join(lexemes)))
        where.append(f"words @@ ${len(bound)}::text::tsquery")
    if match.after is not None:
        bound += map(bind, json.loads(match.after))
        last = len(bound)
        where.append(f"(time, line, branch, seq) < (${last - 3}, ${last - 2}, ${last - 1}, ${last})")
    bound.append(bind(match.limit + 1))
    sql = (
        f"SELECT time, line, branch, seq FROM {quote_name(schema)}.words"  # noqa: S608 - quoted names
        f" WHERE {' AND '.join(where)} ORDER BY time DESC, line DESC, branch DESC, seq DESC LIMIT ${len(bound)}"
    )
    return sql, bound


def read_matches(match: WordMatch, rows: Sequence[tuple[Any, ...]]) -> WordMatches:
    """Read a page of matches from the rows of the statement."""
    found = [(time, unescape(line), branch, seq) for time, line, branch, seq in rows]
    page = found[: match.limit]
    following = json.dumps(page[-1]) if len(found) > match.limit else None
    return WordMatches([(match.tenant, *key) for _, *key in page], following)


def _lexeme(word: str) -> str:
    doubled = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
