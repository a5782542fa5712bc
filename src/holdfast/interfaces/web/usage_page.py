"""The data of the page of usage: the tokens that models took, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import InvalidError
from holdfast.history.usage import KEYS, UsageKey, query_of
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call

_SINCE, _ALL = "7d", "all"
_SHOWN = 500


def usage_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of usage shows: of a week, unless another time is asked for."""
    by, thread, where = (params.get(name, "").strip() for name in ("by", "thread", "where"))
    since = params.get("since", _SINCE).strip() or _ALL
    given = {"by": by or KEYS[0], "thread": thread, "where": where, "since": since}
    values: dict[str, Any] = {"given": given, "keys": KEYS, "filtered": bool(thread or where), "problem": None}
    try:
        query = query_of(where, thread)
        found = call.store.usage(by=cast(UsageKey, given["by"]), where=query, since=None if since == _ALL else since)
    except InvalidError as error:
        return {**values, "problem": to_problem(error)}
    most = max((each.cost or each.input + each.output for each in found.sums), default=0)
    shares = {each.key: 100 * (each.cost or each.input + each.output) / most if most else 0 for each in found.sums}
    return {**values, "query": query, "found": found, "items": found.sums[:_SHOWN], "shares": shares}
