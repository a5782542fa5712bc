"""Search finds what a naive evaluation of every checkpoint finds, with an index and without."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.history.query import Field, Not, Query, TextTerm, either, every
from tests.history.search_model import Told, everything, naive
from tests.support.nightly import examples

WORDS = ["refund", "Refunds", "order", "Straße", "STRASSE", "日本語", "x1", "foo-bar", "ﬁne", "e\u0301t\u00e9", "C++"]
SAID = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
MESSAGES = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), SAID), max_size=3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "three"]),
        MESSAGES,
        st.none() | SAID,
        st.sampled_from([[], ["good"], ["good", "bad"]]),
        st.integers(0, 2),
    ),
    max_size=12,
)

LEAVES: st.SearchStrategy[Query] = st.one_of(
    st.builds(TextTerm, st.sampled_from([*WORDS, "refund order", "order  refund", "日本", "本語", "++"])),
    st.builds(TextTerm, st.sampled_from(["ref", "str", "foo-b", "日", "C"]), st.just(True)),
    st.builds(Field, st.just("role"), st.just(":"), st.sampled_from(["human", "assistant", "*"])),
    st.builds(Field, st.just("channel"), st.just(":"), st.sampled_from(["messages", "note", "n*"])),
    st.builds(Field, st.just("label"), st.just(":"), st.sampled_from(["good", "b*"])),
    st.builds(Field, st.just("thread"), st.just(":"), st.sampled_from(["one", "t*"])),
    st.builds(Field, st.just("step"), st.sampled_from([":", ">", "<=", "!="]), st.integers(0, 3).map(str)),
    st.builds(Field, st.just("meta"), st.just("="), st.integers(0, 2).map(str), st.just(("n",))),
)
QUERIES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(every),
        st.lists(inner, min_size=2, max_size=3).map(either),
    ),
    max_leaves=5,
)


def filled(store: holdfast.Store, steps: list[tuple[Any, ...]]) -> list[Told]:
    """Save steps, and tell what was saved."""
    states: dict[str, dict[str, Any]] = {}
    told = []
    for thread, messages, note, tags, number in steps:
        state = states.setdefault(thread, {"messages": []})
        said = [{"role": role, "content": text} for role, text in messages]
        texts = [("messages", role, text) for role, text in messages]
        changed = bool(said)
        if note is not None and note != state.get("note"):
            state["note"] = note
            texts.append(("note", "", note))
        state["messages"] = [*state["messages"], *said]
        saved = store.thread(thread).put(state, labels=tags, metadata={"n": number}, kind="save")
        if not changed and saved.step == 0:
            texts.append(("messages", "", "\0"))  # the empty list is set, and is no text
        told.append(Told(thread, saved.id, saved.step, "save", tags, {"n": number}, texts))
    return told


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STEPS, st.lists(QUERIES, min_size=1, max_size=4), st.booleans())
def test_search_is_a_look_at_everything(steps: list[tuple[Any, ...]], queries: list[Query], before: bool) -> None:
    with holdfast.open("memory://") as store:
        if before:
            store.maintenance.build_index()
        told = filled(store, steps)
        for query in queries:
            expected = sorted((each.thread, each.id) for each in told if naive(query, each))
            scanned = everything(store, str(query), 3)
            assert sorted(scanned) == expected
        store.maintenance.build_index()
        for query in queries:
            expected = sorted((each.thread, each.id) for each in told if naive(query, each))
            assert sorted(everything(store, str(query), 3)) == expected
            for thread in {each.thread for each in told}:
                log = [each.id for each in store.thread(thread).log(where=str(query))]
                assert log == sorted((id for name, id in expected if name == thread), reverse=True)


EDITS = st.lists(
    st.tuples(
        st.integers(0, 6000),
        st.integers(0, 40),
        st.text(alphabet=st.sampled_from(list("ab é日 .")), max_size=30),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=examples(25))
@given(EDITS, st.sampled_from(["a", "ab", "b", "é", "日", "ab*", '"a b"', '"b é"', "marker*"]))
def test_long_texts_that_are_edited_are_found_alike_with_an_index_and_without(
    edits: list[tuple[int, int, str]], query: str
) -> None:
    text = " ".join(f"marker{number}" for number in range(600))
    with holdfast.open("memory://") as plain, holdfast.open("memory://") as indexed:
        indexed.maintenance.build_index()
        for store in (plain, indexed):
            now = text
            store.thread("t").put({"doc": now, "nested": {"deep": [now]}}, id="0")
            for number, (place, gone, new) in enumerate(edits, 1):
                now = now[:place] + new + now[place + gone :]
                store.thread("t").put({"doc": now, "nested": {"deep": [now]}}, id=str(number))
        assert indexed.search(query).how == "index"
        assert plain.search(query).how == "scan"
        assert sorted(everything(indexed, query)) == sorted(everything(plain, query))
