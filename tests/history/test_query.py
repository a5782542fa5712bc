"""Queries: parsed, formatted, and refused with the column of the error."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.engine.types import to_time
from holdfast.errors import InvalidError
from holdfast.history.query import (
    And,
    Field,
    MatchAll,
    Not,
    Or,
    Query,
    TextTerm,
    either,
    every,
    parse,
    walk,
)

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)

TEXTS = st.text(min_size=1, max_size=12).filter(str.strip)
NAMES = st.sampled_from(["thread", "id", "tag", "label", "branch", "kind", "channel", "role"])


def fields() -> st.SearchStrategy[Query]:
    texts = st.builds(Field, NAMES, st.sampled_from([":", "=", "!="]), st.text(max_size=8))
    numbers = st.builds(
        Field,
        st.sampled_from(["step", "steps", "branches"]),
        st.sampled_from([":", "=", "!=", "<", "<=", ">", ">="]),
        st.one_of(st.integers(0, 10**6).map(str)),
    )
    ranges = st.builds(Field, st.just("step"), st.sampled_from([":", "="]), st.sampled_from(["1..2", "..3", "4.."]))
    sizes = st.builds(Field, st.just("size"), st.sampled_from([">", "<="]), st.sampled_from(["1mb", "0", "1.5kib"]))
    times = st.builds(
        Field,
        st.sampled_from(["time", "created", "updated"]),
        st.sampled_from([":", "<", ">"]),
        st.sampled_from(["2h", "3 days ago", "2026-11-01", "today", "2026-11-01T10:00", "monday", "10:30:00"]),
    )
    meta = st.builds(
        Field,
        st.just("meta"),
        st.sampled_from([":", "=", "!=", "<", "<=", ">", ">="]),
        st.text(max_size=8),
        st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
    )
    return st.one_of(texts, numbers, ranges, sizes, times, meta)


def said(text: str, prefix: bool) -> TextTerm:
    return TextTerm(text, prefix and not text[-1].isspace())


QUERIES: st.SearchStrategy[Query] = st.recursive(
    st.one_of(st.builds(said, TEXTS, st.booleans()), fields()),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=4).map(every),
        st.lists(inner, min_size=2, max_size=4).map(either),
    ),
    max_leaves=8,
)


@given(QUERIES)
@example(TextTerm("meta.x"))
@example(TextTerm("OR"))
@example(TextTerm(":"))
@example(TextTerm("-x"))
@example(TextTerm('a "quote" \\ and\\" more'))
@example(Field("meta", ">", "=5", ("a.b", "")))
@example(Not(Not(TextTerm("x", prefix=True))))
@example(Or((And((TextTerm("a"), TextTerm("b"))), TextTerm("c"))))
def test_printed_and_read_again_it_is_the_same(query: Query) -> None:
    assert parse(str(query), NOW) == query


@given(st.text(alphabet=st.sampled_from(list('ab:=<>!*()"\\-. 1ORNTDmetastepim')), max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    query, wrong = None, None
    try:
        query = parse(text, NOW)
    except InvalidError as error:
        wrong = error
    if wrong is None:
        assert parse(str(query), NOW) == query
    else:
        assert wrong.where.startswith("column ")
        assert wrong.hint.splitlines()[-1].strip() == "^"


READ: list[tuple[str, Query]] = [
    ("", MatchAll()),
    ("  ", MatchAll()),
    ("refund", TextTerm("refund")),
    ("ref*", TextTerm("ref", prefix=True)),
    ('"exact phrase"', TextTerm("exact phrase")),
    ('"exact phr"*', TextTerm("exact phr", prefix=True)),
    ("a b", And((TextTerm("a"), TextTerm("b")))),
    ("a AND b", And((TextTerm("a"), TextTerm("b")))),
    ("a b OR c", Or((And((TextTerm("a"), TextTerm("b"))), TextTerm("c")))),
    ("a (b OR c)", And((TextTerm("a"), Or((TextTerm("b"), TextTerm("c")))))),
    ("-a", Not(TextTerm("a"))),
    ("NOT a", Not(TextTerm("a"))),
    ("-(a b)", Not(And((TextTerm("a"), TextTerm("b"))))),
    ("(a (b c))", And((TextTerm("a"), TextTerm("b"), TextTerm("c")))),
    ("foo-bar C++ 3.14 what!", And((TextTerm("foo-bar"), TextTerm("C++"), TextTerm("3.14"), TextTerm("what!")))),
    ("label:release", Field("label", ":", "release")),
    ("step:>=10", Field("step", ">=", "10")),
    ('meta."a.b".c=1', Field("meta", "=", "1", ("a.b", "c"))),
    ('tag:"my name"', Field("tag", ":", "my name")),
    ("or and not", And((TextTerm("or"), TextTerm("and"), TextTerm("not")))),
    ("ORder", TextTerm("ORder")),
]


def test_parsed_queries(subtests: pytest.Subtests) -> None:
    for text, query in READ:
        with subtests.test(text=text):
            assert parse(text) == query


WRONG: list[tuple[str, int, str]] = [
    ("tga:release", 1, "Did you mean tag?"),
    ("a zzzzz:1", 3, "Fields are thread"),
    ("a (b", 3, "this ( is not closed"),
    ("a b)", 4, "unmatched )"),
    ("()", 2, "expected a word or a field"),
    ("a OR", 5, "expected a word or a field here"),
    ("OR a", 1, "not 'OR'"),
    ("a AND OR b", 7, "not 'OR'"),
    ('say "hello', 5, "this quote is not closed"),
    ("label:", 7, "expected a value after label:"),
    ("step>ten", 6, "'ten' is not a number"),
    ("step:..", 6, "a range needs a start or an end"),
    ("step:5..2", 6, "ends before it starts"),
    ("size>1xb", 6, "is not a size"),
    ("time>soon", 6, "'soon' is not a time"),
    ("tag>1", 4, "Use : = !="),
    ("before>2h", 7, "Use :"),
    ("meta=1", 5, "needs the name of an entry"),
    ("meta.a:3..2", 8, "ends before it starts"),
    ("meta.=1", 6, "expected the name of an entry"),
    ("meta.a", 7, "expected an operator after meta.a"),
    ("a*b", 2, "a * must be at the end"),
    ("a**", 2, "a * must be at the end"),
    ("*", 1, "'*' is not allowed here"),
    ('""', 1, "text to search for is empty"),
    ('"a "*', 5, "must follow a word directly"),
    ("x/y:z", 4, "':' is not allowed here"),
    ('label:"a"b', 10, "'b' is not allowed here"),
    ("日本 tga:x", 4, "Did you mean tag?"),
    ("(" * 200 + "a", 102, "is nested more than"),
]


def test_errors_point_at_the_column(subtests: pytest.Subtests) -> None:
    for text, column, says in WRONG:
        with subtests.test(text=text):
            with pytest.raises(InvalidError) as raised:
                parse(text, NOW)
            error = raised.value
            assert error.where == f"column {column}"
            assert says in str(error)
            *_, shown, caret = str(error).splitlines()
            assert shown == f"  {text}"
            if text.isascii():
                assert caret == " " * (column + 1) + "^"


def test_the_caret_stands_under_wide_characters() -> None:
    with pytest.raises(InvalidError) as raised:
        parse("日本 tga:x")
    assert str(raised.value).splitlines()[-1] == " " * 7 + "^"


def test_a_query_is_a_string() -> None:
    with pytest.raises(InvalidError, match="a query must be a string"):
        parse(b"a")  # type: ignore[arg-type]


def one(text: str) -> Field:
    query = parse(text, NOW)
    assert isinstance(query, Field)
    return query


def ns(moment: datetime) -> int:
    return to_time(moment) - 999


def test_an_age_is_the_moment_that_long_ago() -> None:
    ago = ns(NOW - timedelta(hours=2))
    assert one("time>2h").range == (ago, None)
    assert one("time:2h").range == (ago, None)
    assert one("time<2h").range == (None, ago)
    assert one("after:2h").range == (ago, None)
    assert one("before:2h").range == (None, ago)


def test_a_date_is_the_whole_day() -> None:
    start = datetime(2026, 11, 1).astimezone()
    end = datetime(2026, 11, 4).astimezone()
    next_day = datetime(2026, 11, 2).astimezone()
    assert one("time:2026-11-01..2026-11-03").range == (ns(start), ns(end))
    assert one("time:2026-11-01").range == (ns(start), ns(next_day))
    assert one("time>2026-11-01").range == (ns(next_day), None)
    assert one("time>=2026-11-01").range == (ns(start), None)
    assert one("time<2026-11-01").range == (None, ns(start))
    assert one("time<=2026-11-01").range == (None, ns(next_day))
    assert one("after:2026-11-01").range == (ns(start), None)
    assert one("before:2026-11-01").range == (None, ns(start))
    assert one("time:2026-11-03..").range == (ns(datetime(2026, 11, 3).astimezone()), None)


def test_a_minute_and_a_second_are_as_long_as_they_are() -> None:
    minute = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
    assert one("time:2026-11-01T10:00Z").range == (ns(minute), ns(minute + timedelta(minutes=1)))
    assert one("time:2026-11-01T10:00:00Z").range == (ns(minute), ns(minute + timedelta(seconds=1)))


RANGES: list[tuple[str, tuple[float | None, float | None]]] = [
    ("step:10", (10, 11)),
    ("step=10", (10, 11)),
    ("step>10", (11, None)),
    ("step>=10", (10, None)),
    ("step<10", (None, 10)),
    ("step<=10", (None, 11)),
    ("step:10..20", (10, 21)),
    ("step:10..", (10, None)),
    ("step:..20", (None, 21)),
    ("step>1.5", (1.5, None)),
    ("size>=64kib", (64 << 10, None)),
    ("size<1.5mb", (None, 1_500_000)),
]


def test_numbers_are_ranges(subtests: pytest.Subtests) -> None:
    for text, meant in RANGES:
        with subtests.test(text=text):
            assert one(text).range == meant


def test_all_parts_are_walked() -> None:
    query = parse("a (b OR -c)")
    assert [str(each) for each in walk(query)] == ["a (b OR -c)", "a", "b OR -c", "b", "-c", "c"]
