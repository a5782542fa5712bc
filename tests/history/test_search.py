"""Search: matches, hits, excerpts."""

import asyncio
import dataclasses
import random
from collections import deque
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from msgspec.structs import astuple
from pydantic import BaseModel

import holdfast
from holdfast.backends.interface import Get, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.errors import InvalidError
from tests.damaged import flipped
from tests.history.search_model import everything


@pytest.fixture
def store() -> Any:
    with holdfast.open("memory://") as store:
        yield store


def found(store: holdfast.Store, query: str) -> list[str]:
    return sorted(id for _, id in everything(store, query))


# What is shown ----------------------------------------------------------------------------------------------------


def test_a_match_names_the_checkpoint_that_brought_the_text_and_where(store: holdfast.Store) -> None:
    talk = [HumanMessage("I want a Refund, please"), AIMessage("Of course")]
    store.thread("t").put({"messages": talk[:1]}, id="a")
    store.thread("t").put({"messages": talk}, id="b", kind="turn")
    (match,) = store.search("refund")
    checkpoint = store.thread("t").get("a")
    assert astuple(match)[:6] == ("t", "a", checkpoint.time, 0, 0, "save")
    (hit,) = match.hits
    assert astuple(hit) == ("messages[0].content", "user", "I want a Refund, please", ((9, 15),))
    (match,) = store.search("course")
    assert (match.id, match.kind, match.hits[0].path) == ("b", "turn", "messages[1].content")


def test_hits_in_messages_come_first_and_are_limited(store: holdfast.Store) -> None:
    store.thread("t").put({"a": [f"word {n}" for n in range(20)], "messages": [{"role": "user", "content": "word"}]})
    (match,) = store.search("word")
    assert match.hits[0].path == "messages[0].content"
    assert [hit.path for hit in match.hits[1:3]] == ["a[0]", "a[1]"]
    assert len(match.hits) + match.more == 21


def test_an_excerpt_is_cut_around_the_hit(store: holdfast.Store) -> None:
    store.thread("t").put({"text": "x " * 100 + "needle\n\tand needle" + " y" * 200})
    (hit,) = store.search("needle")[0].hits
    assert hit.excerpt.startswith("…")
    assert hit.excerpt.endswith("…")
    assert len(hit.excerpt) < 170
    assert [hit.excerpt[low:high] for low, high in hit.spans] == ["needle", "needle"]
    assert "\n" not in hit.excerpt


def test_spans_are_right_where_folding_changes_the_length(store: holdfast.Store) -> None:
    store.thread("t").put({"text": "Die Straße und die große STRASSE"})
    (hit,) = store.search("strasse")[0].hits
    assert [hit.excerpt[low:high] for low, high in hit.spans] == ["Straße", "STRASSE"]


def test_overlapping_hits_are_one(store: holdfast.Store) -> None:
    store.thread("t").put({"text": "one two three"})
    (hit,) = store.search('"one two" "two three" two')[0].hits
    assert hit.spans == ((0, 13),)


def test_hits_have_readable_paths(store: holdfast.Store) -> None:
    store.thread("t").put({"plan": {"odd key": ["x", {"a": "needle"}], 7: "needle"}})
    assert {hit.path for hit in store.search("needle")[0].hits} == {'plan["odd key"][1].a', "plan.7"}


# What is text -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Note:
    body: str


class Model(BaseModel, extra="allow"):
    title: str


VALUES: list[Any] = [
    "needle",
    ["a", "needle"],
    ("a", "needle"),
    {"needle"},
    frozenset({"needle"}),
    deque(["needle"]),
    {"k": {"l": "needle"}},
    {(1, 2): "needle"},
    Note("needle"),
    Model(title="needle"),
    Model.model_validate({"title": "a", "more": "needle"}),
    PurePosixPath("/tmp/needle"),
    ValueError("needle"),
    HumanMessage([{"type": "text", "text": "needle"}]),
    AIMessage("", tool_calls=[{"name": "f", "args": {"q": "needle"}, "id": "1"}]),
    ToolMessage("a", tool_call_id="needle"),
    "needle \ud800",
    [None, 5, "needle"],
    ["word"] * 30 + ["needle"],
    "large " * 20_000 + "needle",
    ["large " * 20_000 + "needle"],
    {str(n): "large " * 2_000 + "needle" * (n == 7) for n in range(20)} | {"x": " needle"},
]


def test_every_string_in_a_value_is_text(subtests: pytest.Subtests) -> None:
    for value in VALUES:
        with subtests.test(value=repr(value)[:40]), holdfast.open("memory://") as store:
            store.thread("t").put({"other": 1}, id="a")
            store.thread("t").put({"other": 1, "value": value}, id="b")
            store.thread("t").put({"other": 2, "value": value}, id="c")
            assert found(store, "needle") == ["b"]
            store.maintenance.build_index()
            assert found(store, "needle") == ["b"]


def test_names_of_classes_keys_and_numbers_are_no_text(store: holdfast.Store) -> None:
    store.thread("t").put({"needle": 5, "a": {"key": 7}, "b": Note("x"), "c": b"bytes", "m": [HumanMessage("hi")]})
    for word in ("needle", "key", "Note", "note", "bytes", "5", "human", "body"):
        assert found(store, word) == []


def test_internal_channels_are_not_searched(store: holdfast.Store) -> None:
    store.thread("t").put({"__own__": "needle", "a": "x"})
    assert found(store, "needle") == []
    assert found(store, "channel:__own__") == []


def test_a_channel_that_is_removed_was_changed(store: holdfast.Store) -> None:
    store.thread("t").put({"a": 1, "b": 2}, id="a")
    store.thread("t").update({}, remove=["b"], id="b")
    assert found(store, "channel:b") == ["a", "b"]


def test_an_item_of_a_list_that_is_changed_is_new_text(store: holdfast.Store) -> None:
    items = [{"text": f"word{n} " * 50, "n": n} for n in range(40)]
    store.thread("t").put({"items": items}, id="a")
    items[7] = {**items[7], "note": "needle"}
    store.thread("t").put({"items": items}, id="b")
    assert found(store, "needle") == ["b"]
    assert found(store, "word7") == ["a"]
    assert store.search("needle")[0].hits[0].path == "items[7].note"


def test_a_message_that_is_edited_is_still_its_speaker_s(store: holdfast.Store) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "assistant" if n % 2 else "user", "content": f"word{n} " * 50, "n": n} for n in range(40)
    ]
    store.thread("t").put({"messages": talk, "more": {"talk": talk}}, id="a")
    talk[7] = {**talk[7], "content": "needle " * 3}
    talk[8] = {**talk[8], "content": talk[8]["content"].replace("word8", "pin", 1)}
    talk[9] = {**talk[9], "type": "needless"}
    store.thread("t").put({"messages": talk, "more": {"talk": talk}}, id="b")
    assert found(store, "needle role:ai") == ["b"]
    assert found(store, "needle role:human") == []
    assert found(store, "pin role:user") == ["b"]
    assert found(store, "needless") == []
    assert [hit.path for hit in store.search("needle")[0].hits] == [
        "messages[7].content",
        "more.talk[7].content",
    ]
    assert store.search("needle")[0].hits[0].role == "assistant"


def test_only_new_parts_of_rewritten_small_values_are_found(store: holdfast.Store) -> None:
    store.thread("t").put({"plan": {"goal": "rest", "steps": ["one", "two"]}, "l": ["yes"]}, id="a")
    store.thread("t").put({"plan": {"goal": "rest", "steps": ["one", "two", "three"]}, "l": ["yes", "yes"]}, id="b")
    store.thread("t").put({"plan": {"goal": "work", "steps": ["two", "three"]}, "l": ["yes", "yes"]}, id="c")
    for word, ids in {
        "one": ["a"],
        "two": ["a"],
        "three": ["b"],
        "rest": ["a"],
        "work": ["c"],
        "yes": ["a", "b"],
    }.items():
        assert found(store, word) == ids
    assert store.search("yes")[0].hits[0].path == "l[1]"


def test_only_new_parts_of_a_long_text_are_found(store: holdfast.Store) -> None:
    text = " ".join(f"word{n}" for n in range(2000))
    store.thread("t").put({"doc": text}, id="a")
    store.thread("t").put({"doc": text + " and the needle"}, id="b")
    text = text.replace("word1000 word1001", "word1000word1001") + " and the needle"
    store.thread("t").put({"doc": text}, id="c")
    store.thread("t").put({"doc": text.replace("word500", "woinrd500")}, id="d")
    for _ in range(2):
        assert found(store, "needle") == ["b"]
        assert found(store, '"word1999 and"') == ["b"]
        assert found(store, "word1999") == ["a"]
        assert found(store, "word1000word1001") == ["c"]
        assert found(store, "woinrd500") == ["d"]
        store.maintenance.build_index()


def test_a_large_text_that_is_edited(store: holdfast.Store) -> None:
    text = " ".join(f"word{n}" for n in range(30_000))
    store.thread("t").put({"doc": text, "docs": [text, "b"]}, id="a")
    for n in range(40):
        store.thread("t").put({"doc": f"{text} tail{n}", "docs": [f"{text} item{n}", "b"]}, id=f"b{n:02}")
    assert found(store, "tail7") == ["b07"]
    assert found(store, "item39") == ["b39"]
    store.maintenance.build_index()
    assert found(store, "tail7") == ["b07"]
    assert found(store, "item39") == ["b39"]


# Fields -----------------------------------------------------------------------------------------------------------


PAD = "".join(random.Random(7).choices("abcdefghijklmnop", k=6000))


@pytest.fixture
def fields(store: holdfast.Store) -> holdfast.Store:
    for n in range(4):
        about: dict[str, Any] = {"n": n, "user": {"plan": "pro" if n % 2 else "Free"}, "flags": [1, "x"], "ok": n > 1}
        store.thread("t").put(
            {"n": n, "pad": PAD * (n == 3)}, id=f"a{n}", metadata=about, kind="save" if n else "input"
        )
    store.thread("t").fork("draft", at="a1")
    store.thread("t").put({"n": 9}, id="b0", branch="draft", labels=["release", "x"], tag="v1")
    store.thread("other").put({"n": 1}, id="o0", labels=["release"], metadata={"n": "3.5", "when": "2026-01-05"})
    return store


FIELDS: list[tuple[str, list[str]]] = [
    ("", ["a0", "a1", "a2", "a3", "b0", "o0"]),
    ("thread:t", ["a0", "a1", "a2", "a3", "b0"]),
    ("thread:o*", ["o0"]),
    ("thread!=t", ["o0"]),
    ("thread:nobody", []),
    ("thread:*", ["a0", "a1", "a2", "a3", "b0", "o0"]),
    ("thread=*", []),
    ("id:a", ["a0", "a1", "a2", "a3"]),
    ("id=a", []),
    ("id=a1", ["a1"]),
    ("kind:input", ["a0"]),
    ("kind!=save", ["a0"]),
    ("label:release", ["b0", "o0"]),
    ("label:rel*", ["b0", "o0"]),
    ("label!=release", ["a0", "a1", "a2", "a3"]),
    ("-label:release", ["a0", "a1", "a2", "a3"]),
    ("tag:v1", ["b0"]),
    ("branch:draft", ["b0"]),
    ("branch:main", ["a0", "a1", "a2", "a3", "o0"]),
    ("step:2", ["a2", "b0"]),
    ("step!=2 thread:t", ["a0", "a1", "a3"]),
    ("step:1..2", ["a1", "a2", "b0"]),
    ("time>1h", ["a0", "a1", "a2", "a3", "b0", "o0"]),
    ("time<1h", []),
    ("time:today OR time:yesterday", ["a0", "a1", "a2", "a3", "b0", "o0"]),
    ("before:2020-01-01", []),
    ("after:2100-01-01", []),
    ("meta.n=2", ["a2"]),
    ("meta.n:2", ["a2"]),
    ("meta.n>1", ["a2", "a3", "o0"]),
    ("meta.n>=3.5", ["o0"]),
    ("meta.n:2..3", ["a2", "a3"]),
    ("meta.n=2..3.5", ["a2", "a3", "o0"]),
    ("meta.n:2..", ["a2", "a3", "o0"]),
    ("meta.n:..1", ["a0", "a1"]),
    ("meta.n:-1..0.5", ["a0"]),
    ("meta.n!=2..3 thread:t", ["a0", "a1", "b0"]),
    ("meta.when:2..3", []),
    ("meta.n!=2 thread:t", ["a0", "a1", "a3", "b0"]),
    ("meta.n:*", ["a0", "a1", "a2", "a3", "o0"]),
    ("meta.user.plan:free", ["a0", "a2"]),
    ("meta.user.plan=free", []),
    ("meta.user.plan:f*", ["a0", "a2"]),
    ("meta.flags=x", ["a0", "a1", "a2", "a3"]),
    ("meta.flags.x=1", []),
    ("meta.ok=true", ["a2", "a3"]),
    ("meta.when>2026-01-01", ["o0"]),
    ("meta.when<5", []),
    ("meta.user:*pro*", ["a1", "a3"]),
    ("size>2kb", ["a3"]),
    ("size<2kb id:a3", []),
    ("steps>1", ["a0", "a1", "a2", "a3", "b0"]),
    ("branches>1", ["a0", "a1", "a2", "a3", "b0"]),
    ("branches:1", ["o0"]),
    ("created>1h updated>1h", ["a0", "a1", "a2", "a3", "b0", "o0"]),
    ("updated<1h", []),
    ("channel:pad", ["a0", "a3", "b0"]),
    ("channel!=pad", ["a1", "a2", "o0"]),
]


def test_fields(fields: holdfast.Store, subtests: pytest.Subtests) -> None:
    for query, ids in FIELDS:
        with subtests.test(query=query):
            assert found(fields, query) == ids


THREADS: list[tuple[str, list[str]]] = [
    ("", ["other", "t"]),
    ("steps>1", ["t"]),
    ("branches>1", ["t"]),
    ("size>2kb", ["t"]),
    ("updated>1h", ["other", "t"]),
    ("updated<1h", []),
    ("time>1h", ["other", "t"]),
    ("after:2100-01-01", []),
    ("label:release", ["other", "t"]),
    ("label:x", ["t"]),
    ("-label:x", ["other"]),
    ("kind:input label:release", []),
    ("kind:input -label:x", []),
    ("kind:save -kind:input", ["other"]),
    ("size>2kb OR tag:v1", ["t"]),
    ("(size>1gb OR kind:input) steps>1", ["t"]),
    ("thread:o* label:release", ["other"]),
    ("thread:o*", ["other"]),
    ("NOT (label:x OR kind:nothing)", ["other"]),
    (f"{PAD[:9]}* -label:x", []),
    (f'"{PAD[:9]}"*', ["t"]),
]


def test_threads_that_match(fields: holdfast.Store, subtests: pytest.Subtests) -> None:
    for indexed in (False, True):
        if indexed:
            fields.maintenance.build_index()
        for query, threads in THREADS:
            with subtests.test(query, indexed=indexed):
                assert [each.thread for each in fields.threads(where=query)] == threads


def test_threads_by_page(store: holdfast.Store) -> None:
    for n in range(9):
        store.thread(f"t{n}").put({"n": n}, labels=["even"] if n % 2 == 0 else [])
    assert [each.thread for each in store.threads(where="label:even", limit=2)] == ["t0", "t2"]
    assert [each.thread for each in store.threads(where="label:even", limit=2, cursor="t2")] == ["t4", "t6"]
    assert [each.thread for each in store.threads(where="thread:t*", prefix="t8")] == ["t8"]
    assert store.threads(where="thread:x*", prefix="t") == []


def test_the_log_of_those_that_match(fields: holdfast.Store) -> None:
    assert [each.id for each in fields.thread("t").log(where="kind:save").all()] == ["b0", "a3", "a2", "a1"]
    assert [each.id for each in fields.thread("t").log(where="kind:save", limit=2)] == ["b0", "a3"]
    assert [each.id for each in fields.thread("t").log(where="kind:save", cursor="a3").all()] == ["a2", "a1"]
    assert [each.id for each in fields.thread("t").log(where="step>0", label="x").all()] == ["b0"]
    assert fields.thread("t").log(where="kind:nothing") == []


def test_text_beside_a_role_or_a_channel_is_looked_for_there(store: holdfast.Store) -> None:
    talk = [HumanMessage("refund me"), AIMessage("no way")]
    store.thread("t").put({"messages": talk, "note": "way"}, id="a")
    assert found(store, "refund role:human") == ["a"]
    assert found(store, "refund role:user") == ["a"]
    assert found(store, "refund role:ai") == []
    assert found(store, "refund -role:ai") == ["a"]
    assert found(store, "way -role:ai") == ["a"]
    assert found(store, "no -role:ai") == []
    assert found(store, "way channel:messages -role:ai") == []
    assert found(store, "role:ai (way OR refund)") == ["a"]
    assert found(store, "-role:ai") == []
    assert found(store, "role:ai -refund") == ["a"]
    assert found(store, "role:a*") == ["a"]
    assert found(store, "role!=user") == []


# Pages, and what may be wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [False, True], ids=["scan", "index"])
def test_pages(index: bool) -> None:
    with holdfast.open("memory://") as store:
        if index:
            store.maintenance.build_index()
        for n in range(300):
            store.thread(f"t{n % 3}").put({"say": f"hello {n}"})
        first = store.search("hello", limit=200)
        assert first.how == ("index" if index else "scan")
        assert first.next is not None
        store.thread("t1").put({"say": "hello again"})
        second = store.search("hello", limit=200, cursor=first.next)
        ids = [match.id for match in (*first, *second)]
        assert len(ids) == len(set(ids)) == 300
        assert second.next is None
        assert len({match.thread for match in first[:5]}) == (3 if index else 1)


def test_a_page_that_ends_with_all_there_is(store: holdfast.Store) -> None:
    store.thread("t").put({"a": "hello"})
    page = store.search("hello", limit=1)
    assert len(page) == 1
    assert page.next is not None
    last = store.search("hello", limit=1, cursor=page.next)
    assert (list(last), last.next, last.how, last.examined, last.unreadable) == ([], None, "scan", 0, 0)
    assert list(page.all()) == list(page)


def test_a_cursor_belongs_to_its_query(store: holdfast.Store) -> None:
    store.thread("t").put({"a": "hello"})
    page = store.search("hello", limit=1)
    with pytest.raises(InvalidError, match="another query"):
        store.search("hell*", limit=1, cursor=page.next)
    for wrong in ("%%%", "abc", "eyJ9"):
        with pytest.raises(InvalidError, match="the cursor is invalid"):
            store.search("hello", cursor=wrong)


def test_a_thread_that_goes_between_pages(store: holdfast.Store) -> None:
    for n in range(4):
        store.thread(f"t{n}").put({"a": "hello"})
    page = store.search("hello", limit=2)
    store.thread("t2").delete()
    store.thread("t1").delete()
    assert [match.thread for match in store.search("hello", cursor=page.next)] == ["t0"]


def test_progress_is_reported_during_a_scan(store: holdfast.Store) -> None:
    for n in range(3):
        store.thread(f"t{n}").put({"a": "x"})
    told: list[tuple[int, int | None, str]] = []
    store.search("hello", progress=lambda *each: told.append(each))
    assert told == [(1, 3, "t2"), (2, 3, "t1"), (3, 3, "t0")]


def test_only_the_last_revision_is_found(store: holdfast.Store) -> None:
    store.thread("t").put({"a": "first"}, id="1")
    store.thread("t").put({"a": "second"}, id="2")
    store.thread("t").put({"a": "changed"}, id="1")
    for _ in range(2):
        assert found(store, "first") == []
        assert found(store, "changed") == ["1"]
        assert found(store, "second") == ["2"]
        store.maintenance.build_index()


def test_tenants_see_their_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with holdfast.open(url, tenant="a") as one, holdfast.open(url, tenant="b") as other:
        one.maintenance.build_index()
        one.thread("t").put({"say": "hello"}, id="1")
        other.thread("t").put({"say": "hello"}, id="2")
        assert found(one, "hello") == ["1"]
        assert one.search("hello").how == "index"
        assert found(other, "hello") == ["2"]
        assert other.search("hello").how == "scan"


def test_damaged_checkpoints_are_counted(store: holdfast.Store) -> None:
    for n in range(3):
        store.thread("t").put({"a": f"hello {n}"}, id=str(n))
    backend = store._engine.context.stored
    ((row,),) = run(backend.read([Get(STEPS, [("", "t", 0, 1)])]))
    run(backend.apply([Put(STEPS, row._replace(body=flipped(row.body, -17)))]))
    store._engine.context.cache.clear()
    page = store.search("hello")
    assert [match.id for match in page] == ["2", "0"]
    assert page.unreadable == 1
    columns = list(row.columns)
    columns[6] = "{no json"
    run(backend.apply([Put(STEPS, row._replace(columns=tuple(columns)))]))
    page = store.search("meta.a:x")
    assert (page, page.unreadable) == ([], 1)


def test_async(tmp_path: Path) -> None:
    async def search() -> None:
        async with holdfast.aopen(f"sqlite:///{tmp_path}/s.db") as store:
            await store.thread("t").put({"a": "hello"})
            assert (await store.search("hello")).how == "scan"
            assert astuple(await store.maintenance.build_index()) == (1, 1)
            assert (await store.search("hello")).how == "index"
            assert [each.thread for each in await store.threads(where="hello")] == ["t"]
            assert len(await store.thread("t").log(where="hello")) == 1

    asyncio.run(search())
