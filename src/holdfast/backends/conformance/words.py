"""Tests of searches for words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.backends.conformance.kit import Driven, Suite, case, needs
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Change, Create, Delete, Ensure, Get, Put, Row, Scan
from holdfast.backends.tables import STEPS, WORDS, Key
from holdfast.errors import UnsupportedError

ODD = {
    "quotes": "it's",
    "double quotes": 'a"b"',
    "operators": "AND",
    "a prefix's sign": "a*",
    "signs": "(a:b)-c^d+e!f&g|h<i>",
    "a backslash": "a\\b\\",
    "percent": "100%",
    "an underscore": "snake_case",
    "not ASCII": "na\u00efve",
    "another script": "\ud55c\uad6d\uc5b4",
    "astral": "\U0001f600",
    "a control character": "a\1b",
    "NUL": "a\0b",
    "a tab": "a\tb",
    "a private character": "\ue100tenant",
    "1,000 bytes": "w" * 1000,
}


def words_row(seq: int, words: str, *, tenant: str = "tenant", line: str = "line", time: int = 0) -> Row:
    """Return a row of `WORDS`."""
    return row_of(WORDS, tenant, line, 0, seq, time=time or seq, words=words)


class WordsFound(Suite):
    """`match`, and the rows of `WORDS`."""

    def test_words_are_looked_for_or_refused(self, store: Driven) -> None:
        assert store.apply(Create(WORDS, words_row(0, "one two"))) is None
        if store.backend.capabilities.words:
            assert _match(store, ["one"]) == [words_row(0, "").key]
        else:
            with pytest.raises(UnsupportedError):
                store.drive(store.backend.match("tenant", ["one"]))

    def test_rows_of_words_are_rows(self, store: Driven) -> None:
        rows = [words_row(0, "b a"), words_row(1, ""), words_row(2, "\u00e4 b\0c")]
        assert store.apply(*(Create(WORDS, row) for row in rows)) is None
        assert _sorted(store.scan(WORDS)) == _sorted(rows)
        assert _sorted(store.read(Get(WORDS, [rows[0].key]))[0]) == _sorted(rows[:1])
        assert _sorted(store.scan(WORDS, ("tenant", "line"), reverse=True)) == _sorted(reversed(rows))
        assert store.apply(Create(WORDS, rows[0])) == 0
        assert store.apply(Ensure(WORDS, words_row(0, "other")), Put(WORDS, words_row(1, "new"))) is None
        assert _sorted(store.scan(WORDS)) == _sorted([rows[0], words_row(1, "new"), rows[2]])

    @needs("words")
    def test_all_words_have_to_be_there(self, store: Driven) -> None:
        rows = [words_row(0, "red green blue"), words_row(1, "red"), words_row(2, "green red"), words_row(3, "")]
        store.fill(WORDS, rows)
        assert set(_match(store, ["red"])) == {row.key for row in rows[:3]}
        assert set(_match(store, ["green", "red"])) == {rows[0].key, rows[2].key}
        assert _match(store, ["red", "grey"]) == _match(store, ["gree"]) == _match(store, ["redgreen"]) == []
        assert set(_match(store, [])) == {row.key for row in rows}

    @needs("words")
    def test_prefixes(self, store: Driven) -> None:
        rows = [words_row(0, "reading rainbow"), words_row(1, "ready"), words_row(2, "bread \uffff\U0010ffffx")]
        store.fill(WORDS, rows)
        for prefix, expected in {"r": 2, "read": 2, "reading": 1, "readings": 0, "b": 1, "\uffff\U0010ffff": 1}.items():
            assert len(_match(store, [], prefixes=[prefix])) == expected, prefix
        assert _match(store, ["ready"], prefixes=["rea"]) == [rows[1].key]
        assert _match(store, [], prefixes=["rea", "rai"]) == [rows[0].key]

    @needs("words")
    def test_a_word_is_any_text_without_spaces(self, store: Driven) -> None:
        for kind, word in ODD.items():
            rows = [words_row(0, f"before {word} after"), words_row(1, word), words_row(2, "before after")]
            assert store.apply(Delete(WORDS, ("tenant",)), *(Create(WORDS, row) for row in rows)) is None
            with case(kind):
                assert set(_match(store, [word])) == {rows[0].key, rows[1].key}
                assert set(_match(store, [word, "before"])) == {rows[0].key}
                assert set(_match(store, [], prefixes=[word])) == {rows[0].key, rows[1].key}

    @needs("words")
    def test_a_word_that_is_too_long_is_found_nowhere(self, store: Driven) -> None:
        store.fill(WORDS, [words_row(0, "word")])
        assert _match(store, ["w" * 100_000]) == _match(store, [], prefixes=["w" * 100_000]) == []

    @needs("words")
    def test_words_of_tenants_and_lines_are_apart(self, store: Driven) -> None:
        for other in ("", "b", "a b", "a\0", "A", "n" * 1024):
            assert store.apply(Delete(WORDS, ())) is None
            with case(other):
                _apart(store, other)

    @needs("words")
    def test_pages(self, store: Driven) -> None:
        rows = [words_row(seq, "even all" if seq % 2 == 0 else "odd all", time=100 + seq) for seq in range(25)]
        for row in rows:
            store.fill(WORDS, [row])
        last_first = [row.key for row in reversed(rows)]
        assert _match(store, ["all"], limit=7) == last_first
        assert _match(store, ["even"], limit=3) == last_first[::2]
        assert _match(store, [], prefixes=["a"], limit=25) == _match(store, [], limit=4) == last_first
        page = store.drive(store.backend.match("tenant", ["all"], limit=7))
        assert len(page.keys) <= 7
        assert page.next is not None

    @needs("words")
    def test_what_is_written_over_or_removed_is_not_found(self, store: Driven) -> None:
        store.fill(WORDS, [words_row(seq, f"all word{seq}", line=f"line{seq % 2}") for seq in range(6)])
        store.fill(WORDS, [words_row(0, "all changed", line="line0")])
        assert _match(store, ["word0"]) == []
        assert _match(store, ["changed"]) == [("tenant", "line0", 0, 0)]
        assert store.apply(Delete(WORDS, ("tenant", "line0", 0, 2))) is None
        assert _match(store, ["word2"]) == []
        assert store.apply(Delete(WORDS, ("tenant", "line1"))) is None
        assert set(_match(store, ["all"])) == {("tenant", "line0", 0, 0), ("tenant", "line0", 0, 4)}
        assert store.apply(Delete(WORDS, ()), Create(WORDS, words_row(9, "all"))) is None
        assert _match(store, ["all"]) == [("tenant", "line", 0, 9)]

    @needs("words")
    def test_a_batch_that_is_refused_leaves_no_words(self, store: Driven) -> None:
        store.fill(STEPS, [step(0)])
        store.fill(WORDS, [words_row(0, "before")])
        changes: list[Change] = [Put(WORDS, words_row(0, "after")), Create(WORDS, words_row(1, "after"))]
        assert store.apply(Delete(WORDS, ("tenant", "gone")), *changes, Create(STEPS, step(0))) == 3
        assert (_match(store, ["after"]), _match(store, ["before"])) == ([], [words_row(0, "").key])

    @needs("words")
    def test_words_are_found_as_the_rows_say(self, plain: Driven) -> None:
        words = st.lists(st.sampled_from(["a", "ab", "b", "ba", "\u00e4", "a'b", "%"]), max_size=3, unique=True)
        places = st.tuples(st.sampled_from(["", "t"]), st.sampled_from(["x", "y"]), st.just(0), st.integers(0, 2))
        changes = st.tuples(st.sampled_from([Create, Ensure, Put, Delete]), places, words, st.integers(0, 4))

        @settings(
            deadline=None,
            max_examples=self.histories or settings().max_examples,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(st.lists(changes, max_size=8), words, words, st.sampled_from(["", "t"]), st.sampled_from([None, "x"]))
        def follow(
            history: list[tuple[type, Key, list[str], int]],
            search: list[str],
            prefixes: list[str],
            tenant: str,
            line: str | None,
        ) -> None:
            assert plain.apply(Delete(WORDS, ())) is None
            for kind, key, found, width in history:
                row = Row(key, (width, " ".join(found)))
                plain.apply(Delete(WORDS, key[:width]) if kind is Delete else kind(WORDS, row))
            (rows,) = plain.read(Scan(WORDS, ()))
            expected = {
                row.key
                for row in rows
                if row.key[0] == tenant
                and line in (None, row.key[1])
                and set(search) <= {*_words(row)}
                and all(any(word.startswith(prefix) for word in _words(row)) for prefix in prefixes)
            }
            assert set(_match(plain, search, prefixes=prefixes, tenant=tenant, line=line, limit=2)) == expected

        follow()


def _apart(found: Driven, other: str) -> None:
    names = ["a", other]
    rows = {
        (tenant, line): words_row(0, "word", tenant=tenant, line=line) for tenant in names for line in names if line
    }
    assert found.apply(*(Create(WORDS, row) for row in rows.values())) is None
    for tenant in names:
        own = {row.key for row in rows.values() if row.key[0] == tenant}
        assert set(_match(found, ["word"], tenant=tenant)) == own
        for line in filter(None, names):
            assert _match(found, ["word"], tenant=tenant, line=line) == [rows[tenant, line].key]
            assert _match(found, [], tenant=tenant, line=line) == [rows[tenant, line].key]
    assert _match(found, ["word"], tenant="nobody") == _match(found, ["word"], tenant="a", line="none") == []


def _match(
    store: Driven,
    words: list[str],
    *,
    prefixes: Iterable[str] = (),
    tenant: str = "tenant",
    line: str | None = None,
    limit: int = 100,
) -> list[Key]:
    """Return all results, page by page."""
    keys: list[Key] = []
    after: str | None = None
    for _ in range(100):
        page = store.drive(
            store.backend.match(tenant, words, prefixes=list(prefixes), line=line, after=after, limit=limit)
        )
        keys += page.keys
        after = page.next
        if after is None:
            assert len(set(keys)) == len(keys)
            return keys
    raise AssertionError("there is no end to the pages")


def _words(row: Row) -> Iterator[str]:
    return filter(None, str(row.columns[-1]).split(" "))


def _sorted(rows: Iterable[Row]) -> list[tuple[Key, list[str]]]:
    return [(row.key, sorted(_words(row))) for row in rows]
