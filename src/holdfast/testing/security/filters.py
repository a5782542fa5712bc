"""Filters that are part of a query to a store that builds its queries from text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store

SQL_KEY = "x') IS NOT NULL OR 1=1 OR json_extract('{}', '$.x"
"""A key of metadata that matches everything where it is put into SQL (CVE-2025-67644, CVE-2025-64104, CVE-2025-8709).
It needs no comment, which would cut off parameters of the query."""

REDIS_VALUE = "x}) | (@thread_id:{*"
"""A value that adds an alternative to a query of RediSearch (CVE-2026-27022)."""

HOSTILE_FILTERS: dict[str, dict[str, Any]] = {
    "a key in SQL": {SQL_KEY: "x"},
    "a key that ends the text": {"x') OR '1'='1": "x"},
    "a key with a comment": {"x') = 'x' OR 1=1 --": "x"},
    "a key with a union": {"x') UNION SELECT * FROM steps --": "x"},
    "a key with another statement": {"x'); DROP TABLE steps; --": "x"},
    "a key in a path of jsonb": {"{owner,0}' OR TRUE --": "x"},
    "a key with an operator in SQL": {SQL_KEY: {"$eq": "x"}},
    "a value in SQL": {"owner": "x' OR '1'='1"},
    "a value with an operator of MongoDB": {"owner": {"$ne": None}},
    "a value greater than nothing": {"owner": {"$gt": ""}},
    "a value with code for MongoDB": {"owner": {"$where": "return true"}},
    "an expression of MongoDB": {"$where": "return true"},
    "alternatives of MongoDB": {"$or": [{}, {"owner": "victim"}]},
    "a pattern": {"owner": {"$regex": ".*"}},
    "a key with a dot": {"owner.$ne": "x"},
    "a value in RediSearch": {"owner": REDIS_VALUE},
    "a key in RediSearch": {"owner:{x}) | (@thread_id:{*}) (@x": "x"},
    "a wildcard of RediSearch": {"owner": "*"},
    "a wildcard of SQL": {"owner": "%"},
    "a wildcard of files": {"owner": "**"},
    "nothing": {"owner": None},
    "an empty key": {"": ""},
    "half a character": {"owner": "\ud800"},
    "a NUL": {"owner\0": "victim\0"},
    "a deep value": {"owner": [[[[[[[["victim"]]]]]]]]},
}
"""Filters of metadata, none of which matches anything of a store that has only owners `mine` and `victim`."""

HOSTILE_QUERIES = (
    *("' OR '1'='1", "x' OR 1=1 --", '" OR "1"="1', "meta.owner='x' OR '1'='1'", "%", "_", "*", "**", "thread:*' --"),
    *("meta.owner=" + REDIS_VALUE, "meta.$where:1", 'meta."$or":1', 'meta."x\') OR 1=1 --":1', "label:{$ne:null}"),
    *("(" * 5000, "a OR " * 3000 + "a", "NOT " * 3000 + "a", '"' * 999, "-" * 5000, "a" * 100_000, "\\" * 1000),
    *("step:" + "9" * 5000, "time>" + "9" * 400 + "h", "size>1e999mb", "step>=nan", "meta.n>1e400", "\0", "\ud800"),
    *("(a*)*" * 200, "a*" * 2000, "thread:" + "*a" * 2000, 'tag:"' + "*" * 3000 + '"', "\u202ea OR b", "id:%00"),
)
"""Texts of queries that are no queries, or would take long."""


def check_filters(store: Store, matches: Callable[[dict[str, Any]], Iterable[str]] | None = None) -> int:
    """Check that filters find what matches them, and that none of the hostile ones is more than that.

    Two threads, `mine` and `victim`, are created in the store, whose metadata name them as owners. `matches` returns
    the threads of the checkpoints with these entries in their metadata, among those of `mine`; by default, those that
    `Checkpointer` lists. Return the number of filters and queries.
    """
    for owner in ("mine", "victim"):
        store.thread(owner).put({"text": f"owned by {owner}"}, metadata={"owner": owner})
    if matches is None:
        checkpointer = Checkpointer(store)

        def matches(metadata: dict[str, Any]) -> Iterable[str]:
            return [each.thread_id for each in checkpointer.list("mine", metadata=metadata)]

    assert list(matches({"owner": "mine"})) == ["mine"], "the filter does not find what matches it"
    for name, entries in HOSTILE_FILTERS.items():
        try:
            found = list(matches(entries))
        except HoldfastError:
            continue
        assert found == [], f"{name} matches {found}"
    return len(HOSTILE_FILTERS) + check_queries(store)


def check_queries(store: Store, seconds: float = 5.0) -> int:
    """Check that hostile texts, in the place of every text that is searched for, find nothing of the thread `victim`,
    and return within a time or are refused by an error of Holdfast. Return the number of texts."""
    log = store.thread("mine").log(where='meta.owner="mine"').all()
    assert [each.thread for each in log] == ["mine"], "the query does not find what matches it"
    for text in (*HOSTILE_QUERIES, *_texts()):
        uses: list[Callable[[], Any]] = [
            lambda: [each.thread for each in store.thread("mine").log(where=text).all()],
            lambda: [each.thread for each in store.thread("mine").log(where=f"meta.{text}:*").all()],
            lambda: [each.thread for each in store.threads(prefix=text or "x")],
            lambda: [each.id for each in store.artifacts.list(producer=text)],
            lambda: [each.id for each in store.artifacts.list(type=text)],
            lambda: [each.id for each in store.sessions.list(user=text)],
            lambda: [each.key for each in store.audit.query(actor=text, thread="mine")],
            lambda: store.thread("mine").get(text).thread,
        ]
        for number, use in enumerate(uses):
            start = time.perf_counter()
            try:
                found = use()
            except (HoldfastError, LookupError):
                found = []
            assert "victim" not in found, f"use {number} of {text[:60]!r} finds another's"
            took = time.perf_counter() - start
            assert took < seconds, f"use {number} of {text[:60]!r} took {took:.1f} s"
        store.search(text[:50]) if text[:50].isalnum() else None
    assert store.thread("victim").get().state == {"text": "owned by victim"}
    return len(HOSTILE_QUERIES) + len(_texts())


def _texts() -> list[str]:
    """Return the keys and values of the filters that are texts."""
    parts = [part for entries in HOSTILE_FILTERS.values() for part in (*entries, *entries.values())]
    return [part for part in parts if isinstance(part, str) and part not in ("owner", "")]
