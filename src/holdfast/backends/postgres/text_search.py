"""Looking for words in a PostgreSQL store.

Words are the lexemes of a `tsvector`, as they are. Its index finds rare words; the order by time finds common ones
sooner, and everything where row-level security is on: no index may tell of rows then before it is known whose they are.
The planner knows how common words are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.backends.interface import WordMatch, WordMatches
from holdfast.backends.postgres.binary_values import escape, unescape, value
from holdfast.backends.postgres.connection import Statement
from holdfast.backends.postgres.schema import quoted

_LONGEST = 2046
"""How many bytes a lexeme may have."""

PLANNED: Statement = (
    "SELECT set_config('enable_bitmapscan', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true)",
    (),
)
"""Comes before the statement, in its transaction: what other statements need makes this one slow."""


def is_found_nowhere(match: WordMatch) -> bool:
    """Whether a word is longer than any that is stored."""
    return any(len(escape(word).encode()) > _LONGEST for word in (*match.words, *match.prefixes))


def matching(schema: str, match: WordMatch) -> Statement:
    """The statement that finds a page."""
    bound = [value(match.tenant)]
    where = ["tenant = $1"]
    if match.line is not None:
        bound.append(value(match.line))
        where.append(f"line = ${len(bound)}")
    lexemes = [_lexeme(word) for word in match.words] + [f"{_lexeme(prefix)}:*" for prefix in match.prefixes if prefix]
    if lexemes:
        # Escaped already, and the cast takes it as it is.
        bound.append(value(" & ".join(lexemes)))
        where.append(f"words @@ ${len(bound)}::text::tsquery")
    if match.after is not None:
        time, *place = json.loads(match.after)
        bound += (value(time), *map(value, place))
        last = len(bound)
        where.append(f"(time, line, branch, seq) < (${last - 3}, ${last - 2}, ${last - 1}, ${last})")
    bound.append(value(match.limit + 1))
    sql = (
        f"SELECT time, line, branch, seq FROM {quoted(schema)}.words"  # noqa: S608 - our own names
        f" WHERE {' AND '.join(where)} ORDER BY time DESC, line DESC, branch DESC, seq DESC LIMIT ${len(bound)}"
    )
    return sql, bound


def matches(match: WordMatch, found: Sequence[tuple[Any, ...]]) -> WordMatches:
    """The page, of what was found."""
    places = [(time, unescape(line), branch, seq) for time, line, branch, seq in found]
    page = places[: match.limit]
    following = json.dumps(page[-1]) if len(places) > match.limit else None
    return WordMatches([(match.tenant, *place[1:]) for place in page], following)


def _lexeme(word: str) -> str:
    doubled = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
