"""Search on servers with their own text index."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.text_index.indexer import IndexReport
from tests.history.search_model import everything
from tests.servers import places
from tests.support.nightly import mostly_nightly

QUERIES = (
    "refund",
    "ref*",
    '"on its way"',
    "refund OR größe",
    "STRASSE",
    "注文",
    "refund -role:assistant",
    "channel:note needle*",
    """\"it's \\\\ 'quoted' | & ! <-> (x)\"""",
    "thread:t1 message",
    "label:good",
    "nowhere",
)


SERVERS = ("postgres", "mongodb")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return places.place(request.param, tmp_path)


def fill(store: holdfast.Store) -> None:
    talk = [{"role": "user", "content": "I want a refund for order 1207, Straße 3"}]
    store.thread("t1").put({"messages": talk}, id="a", labels=["good"])
    talk.append({"role": "assistant", "content": "The refund is on\tits way: message 1. 注文を確認しました"})
    store.thread("t1").put({"messages": talk}, id="b")
    store.thread("t1").fork("other", at="a")
    store.thread("t1").put({"messages": talk[:1], "note": "needles in haystacks"}, id="c", branch="other")
    store.thread("t2").put({"note": "it's \\ 'quoted' | & ! <-> (x) and größe" + " filler" * 3000}, id="d")
    for number in range(30):
        store.thread("many").put({"n": f"refund number {number}"}, id=f"m{number:02}")


@pytest.mark.nightly
def test_index_and_scan_find_the_same(url: str) -> None:
    with holdfast.open("memory://") as plain, holdfast.open(url) as store:
        fill(plain)
        fill(store)
        assert store.search("refund").how == "scan"
        expected = {query: sorted(everything(plain, query)) for query in QUERIES}
        assert {query: sorted(everything(store, query)) for query in QUERIES} == expected
        assert store.maintenance.build_index() == IndexReport(3, 34)
        assert store.search("refund").how == "index"
        assert {query: sorted(everything(store, query)) for query in QUERIES} == expected
        first = store.search("refund", limit=7)
        assert [match.id for match in first] == [f"m{number}" for number in range(29, 22, -1)]
        store.thread("many").delete()
        assert sorted(everything(store, "refund")) == [("t1", "a"), ("t1", "b")]
        assert store.maintenance.drop_index()
        assert store.search("refund").how == "scan"


def test_writers_keep_it_and_tenants_have_their_own(url: str) -> None:
    with holdfast.open(url) as writer, holdfast.open(url) as other, holdfast.open(url, tenant="acme") as acme:
        writer.thread("t").put({"say": "hello"}, id="1")
        acme.thread("t").put({"say": "hello"}, id="x")
        assert other.maintenance.build_index() == IndexReport(1, 1)
        writer.thread("t").put({"say": "hello again"}, id="2")
        writer.thread("new").put({"say": "hello there"}, id="3")
        assert sorted(everything(other, "hello")) == [("new", "3"), ("t", "1"), ("t", "2")]
        assert acme.search("hello").how == "scan"
        assert other.maintenance.build_index() == IndexReport(2, 0)
        other.maintenance.prune(keep_last=1)
        assert sorted(everything(writer, "hello")) == [("new", "3"), ("t", "2")]


@pytest.mark.parametrize("url", mostly_nightly(SERVERS, daily=["postgres"]), indirect=True)
def test_two_build_it_at_a_time(url: str) -> None:
    with holdfast.open(url) as one, holdfast.open(url) as two:
        fill(one)
        made: list[IndexReport] = []
        builders = [
            threading.Thread(target=lambda each=each: made.append(each.maintenance.build_index()))
            for each in (one, two)
        ]
        for each in builders:
            each.start()
        for each in builders:
            each.join()
        assert len(made) == 2
        assert len(everything(one, "refund")) == 32
        assert one.search("refund").how == "index"
        assert two.maintenance.build_index() == IndexReport(3, 0)


def test_without_blocking(url: str) -> None:
    async def go() -> None:
        async with await holdfast.aopen(url) as store:
            await store.thread("t").put({"say": "hello"}, id="1")
            assert await store.maintenance.build_index() == IndexReport(1, 1)
            page = await store.search("hel*")
            assert (page.how, [match.id for match in page]) == ("index", ["1"])

    asyncio.run(go())
