"""The word index: written by all writers, built concurrently, correct after every change of a line."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast.backends.interface import Batch, Delete, Get, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import STEPS, WORDS, WordList
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.row_format import Line
from holdfast.engine.text_index import indexer
from holdfast.engine.text_index.extract import texts
from holdfast.errors import ConflictError, CorruptError, UnsupportedError
from tests.damaged import flipped
from tests.history.search_model import everything
from tests.support.interference import InterferingBackend


def by_index(store: holdfast.Store, query: str) -> list[str]:
    """What is found by the index; all pages of it."""
    assert store.search(query).how == "index"
    return sorted(id for _, id in everything(store, query))


def rows(store: holdfast.Store, thread: str) -> set[tuple[Any, ...]]:
    (found,) = run(store._engine.context.backend.read([Scan(WORDS, (store.tenant, thread))]))
    return {row.key[2:] for row in found}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


def test_a_writer_that_was_there_before_adds_its_words(url: str) -> None:
    with holdfast.open(url) as writer, holdfast.open(url) as other:
        writer.thread("t").put({"say": "hello"}, id="1")
        writer.thread("t").put({"say": "again"}, id="2")
        assert astuple(other.maintenance.build_index()) == (1, 2)
        writer.thread("t").put({"say": "latecomer"}, id="3")
        writer.thread("new").put({"say": "latecomer"}, id="4")
        assert by_index(other, "latecomer") == ["3", "4"]
        assert rows(other, "t") == {(0, 0), (0, 1), (0, 2)}
        assert astuple(other.maintenance.build_index()) == (2, 0)


def test_whoever_opens_the_store_later_knows(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
    with holdfast.open(url) as store:
        store.thread("t").put({"say": "hello"}, id="1")
        assert by_index(store, "hello") == ["1"]
        with store.transaction() as together:
            together.put("t", {"say": "two"}, id="2")
            together.put("t", {"say": "three"}, id="3")
            together.put("u", {"say": "three"}, id="4")
        assert by_index(store, "three") == ["3", "4"]


def test_building_goes_on_where_it_ended(url: str) -> None:
    with holdfast.open(url) as store:
        for n in range(6):
            store.thread(f"t{n}").put({"say": "hello"}, id=str(n))

        def stop(done: int, total: int | None, what: str) -> None:
            assert (total, what) == (6, f"t{done - 1}")
            if done == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.maintenance.build_index(progress=stop)
        page = store.search("hello")
        assert page.how == "scan"  # it is not there whole
        assert len(page) == 6
        store.thread("t0").put({"say": "meanwhile"}, id="m")
        assert rows(store, "t0") == {(0, 0), (0, 1)}
        assert astuple(store.maintenance.build_index()) == (6, 2)
        assert by_index(store, "hello") == list("012345")
        assert by_index(store, "meanwhile") == ["m"]


def test_many_steps_are_built_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "_PAGE", 3)
    with holdfast.open("memory://") as store:
        for n in range(10):
            store.thread("t").put({"say": f"word{n}"}, id=str(n))
        assert astuple(store.maintenance.build_index()) == (1, 10)
        assert by_index(store, "word*") == list("0123456789")


def test_the_last_changed_is_found_first_also_if_the_index_was_built_later(url: str) -> None:
    with holdfast.open(url) as store:
        for thread in ("c", "a", "b"):
            for n in range(2):
                store.thread(thread).put({"say": f"hello {n}"}, id=f"{thread}{n}")
        scanned = [match.id for match in store.search("hello")]
        assert scanned == ["b1", "b0", "a1", "a0", "c1", "c0"]
        store.maintenance.build_index()
        assert [match.id for match in store.search("hello")] == scanned


def test_no_index_any_more(url: str) -> None:
    with holdfast.open(url) as store:
        assert store.maintenance.drop_index() is False
        store.thread("t").put({"say": "hello"}, id="1")
        store.maintenance.build_index()
        assert store.maintenance.drop_index() is True
        assert rows(store, "t") == set()
        store.thread("t").put({"say": "hello again"}, id="2")
        assert rows(store, "t") == set()
        assert store.search("hello").how == "scan"


def test_dropped_between_two_pages(url: str) -> None:
    with holdfast.open(url) as store:
        for n in range(3):
            store.thread("t").put({"say": f"hello {n}"})
        store.maintenance.build_index()
        page = store.search("hello", limit=2)
        store.maintenance.drop_index()
        with pytest.raises(ConflictError, match="removed since the previous page"):
            store.search("hello", limit=2, cursor=page.next)


def test_dropped_while_it_is_built(url: str) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as other:
        for n in range(3):
            store.thread(f"t{n}").put({"say": "hello"}, id=str(n))

        def drop(done: int, total: int | None, what: str) -> None:
            if done == 2:
                other.maintenance.drop_index()

        with pytest.raises(ConflictError, match="was removed while it was made"):
            store.maintenance.build_index(progress=drop)
        assert store.search("hello").how == "scan"
        assert len(everything(store, "hello")) == 3

        def anew(done: int, total: int | None, what: str) -> None:
            if done == 2 and not begun:
                begun.append(other.maintenance.drop_index())
                with pytest.raises(KeyboardInterrupt):
                    other.maintenance.build_index(progress=stop)

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        begun: list[bool] = []
        store.maintenance.build_index(progress=anew)
        assert begun == [True]
        assert by_index(store, "hello") == ["0", "1", "2"]


def test_rows_of_a_dropped_index_are_not_used(url: str) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as writer:
        store.maintenance.build_index()
        writer.thread("t").put({"old": "first words"}, id="1")
        store.maintenance.drop_index()
        writer.thread("t").put({"old": "first words", "new": "later"}, id="2")  # it has not heard
        assert rows(store, "t") == {(0, 1)}
        store.maintenance.prune(keep_last=1)
        assert astuple(store.maintenance.build_index()) == (1, 1)
        assert by_index(store, "first") == ["2"]


def test_a_thread_begun_before_there_was_an_index(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as writer:
        store.thread("a").put({"say": "hello"}, id="1")
        monkeypatch.setattr(writer._engine.lines, "note_index", lambda *_: None)  # it looked before
        own, set_mark = store._engine.indexer, store._engine.indexer._set_mark

        async def late(tenant: str, was: Any, state: str) -> bool:
            if state == indexer.ON:
                writer.thread("b").put({"say": "hello"}, id="2")
            return await set_mark(tenant, was, state)

        monkeypatch.setattr(own, "_set_mark", late)
        assert astuple(store.maintenance.build_index()) == (2, 2)
        assert by_index(store, "hello") == ["1", "2"]


def test_how_far_a_long_thread_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "_PAGE", 4)
    with holdfast.open("memory://") as store:
        for n in range(10):
            store.thread("t").put({"say": f"word{n}"})
        told: list[tuple[int, int | None, str]] = []
        store.maintenance.build_index(progress=lambda *each: told.append(each))
        assert told == [(0, 1, "t: 4 of 10 steps"), (0, 1, "t: 8 of 10 steps"), (1, 1, "t")]


def test_stores_without_an_index_search_all_the_same(tmp_path: Path) -> None:
    with holdfast.open(f"file://{tmp_path}/files") as store:
        store.thread("t").put({"say": "hello"}, id="1")
        page = store.search("hello")
        assert (page.how, [match.id for match in page]) == ("scan", ["1"])
        with pytest.raises(UnsupportedError, match="does not support a text index"):
            store.maintenance.build_index()


def test_a_query_without_words_does_not_use_the_index(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        store.thread("t").put({"say": "a ++ b"}, id="1")
        for query in ("label:x", '"++"', "-hello", "a OR label:x", "a OR -b"):
            assert store.search(query).how == "scan"
        for query in ("a", "a label:x", "a -b", "(a OR b) label:x", "a OR b", 'a "++"'):
            assert store.search(query).how == "index"
        assert by_index(store, 'a "++"') == ["1"]


def test_many_alternatives(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        for n in range(20):
            store.thread("t").put({"say": f"a{n} b{n} c"}, id=f"{n:02}")
        ids = [f"{n:02}" for n in range(20)]
        assert by_index(store, " OR ".join(f"a{n}" for n in range(16))) == ids[:16]
        assert by_index(store, "a1 OR b1 OR c") == ids  # each once
        each = " OR ".join(f"a{n}" for n in range(20))
        assert store.search(each).how == "scan"
        assert by_index(store, f"c ({each})") == ids
        assert by_index(store, "(a1 OR a2 OR a3 OR a4) (b1 OR b2 OR b3 OR b9) (c OR a5)") == ["01", "02", "03"]


def test_deleted_threads_are_gone(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        store.thread("t").put({"say": "hello"})
        store.thread("t").delete()
        assert rows(store, "t") == set()
        assert by_index(store, "hello") == []


def test_a_step_with_too_many_words_is_found_by_any(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "MAX_WORDS", 5)
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        store.thread("t").put({"say": " ".join(f"word{n}" for n in range(50))}, id="1")
        store.thread("t").put({"say": "word7"}, id="2")
        assert by_index(store, "word49") == ["1"]
        assert by_index(store, "word7") == ["1", "2"]
        assert by_index(store, "word0") == ["1"]


def test_words_that_are_cut_off(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        store.thread("t").put({"say": "x" * 50}, id="1")
        store.thread("t").put({"say": "x" * 60}, id="2")
        assert by_index(store, "x" * 50) == ["1"]
        assert by_index(store, "x" * 50 + "*") == ["1", "2"]


def test_a_copy_of_a_thread_is_found(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("t").put({"say": "hello"}, id="1")
        run(LineCopier(store._engine).copy({Line("", "t"): Line("", "u")}))
        assert rows(store, "u") == set()
        store.maintenance.build_index()
        run(LineCopier(store._engine).copy({Line("", "t"): Line("", "v")}))
        assert rows(store, "v") == {(0, 0)}
        assert {match.thread for match in store.search("hello")} == {"t", "u", "v"}


def test_threads_that_are_copied_to_a_store_are_found_there(url: str) -> None:
    with holdfast.open("memory://") as source, holdfast.open(url) as target:
        source.thread("t").put({"say": "hello"}, id="1")
        source.thread("t").put({"say": "there"}, id="2")
        target.maintenance.build_index()
        source.maintenance.copy_to(target)
        assert by_index(target, "hello") == ["1"]
        source.thread("t").put({"say": "more"}, id="3")
        source.maintenance.copy_to(target)
        assert by_index(target, "more") == ["3"]
        assert astuple(target.maintenance.build_index()) == (1, 0)


# Pruning ----------------------------------------------------------------------------------------------------------


def talk(store: holdfast.Store, count: int = 12, **more: Any) -> None:
    said = []
    for n in range(count):
        said.append({"role": "user", "content": f"message number{n} " + "and more of it " * 20})
        store.thread("t").put({"messages": list(said), "note": f"note{n}"}, id=f"{n:02}", **more)


@pytest.mark.parametrize("index", [False, True], ids=["scan", "index"])
def test_text_that_came_with_pruned_steps_is_found_where_it_still_is(url: str, index: bool) -> None:
    with holdfast.open(url) as store:
        if index:
            store.maintenance.build_index()
        talk(store)
        store.thread("t").fork("other", at="08")
        store.thread("t").put({"messages": [], "note": "else"}, branch="other", id="o1")
        store.thread("t").label("keep", "02")
        store.maintenance.prune(threads="t", keep_last=3, keep_labels=["keep"])
        left = {each.id for each in store.thread("t").log().all()}
        assert left == {"02", "10", "11", "o1"}
        how = "index" if index else "scan"
        for word, ids in {
            "number0": ["02"],
            "number2": ["02"],
            "number3": ["10"],
            "number10": ["10"],
            "number11": ["11"],
            "note2": ["02"],
            "note1": [],
            "note9": [],
            "note10": ["10"],
            "else": ["o1"],
        }.items():
            assert store.search(word).how == how
            assert sorted(id for _, id in everything(store, word)) == ids, word
        if index:
            assert len(rows(store, "t")) == 4
            assert astuple(store.maintenance.build_index()) == (1, 0)
            store.maintenance.drop_index()
            store.maintenance.build_index()  # made anew it is the same
            assert by_index(store, "number3") == ["10"]
            assert by_index(store, "note9") == []


def test_rows_of_steps_that_are_not_there_do_no_harm_and_are_removed(url: str) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()
        store.thread("t").put({"say": "hello"}, id="1")
        backend = store._engine.context.backend
        for thread in ("t", "never"):
            row = indexer._row(Line("", thread), store._engine.lines.cached_tip(Line("", "t")).point, [])  # type: ignore[union-attr, arg-type]
            run(backend.apply([Put(WORDS, row._replace(key=("", thread, 7, 7), columns=(1, WordList("hello"))))]))
        assert by_index(store, "hello") == ["1"]
        store.maintenance.build_index()
        assert rows(store, "t") == {(0, 0)}


# Meanwhile --------------------------------------------------------------------------------------------------------


def watched(url: str) -> tuple[holdfast.Store, InterferingBackend]:
    with_backend = holdfast.open(url)
    backend = InterferingBackend(with_backend._engine.context.stored)
    return holdfast.Store(Engine(EngineContext(backend, MemoryCache(1 << 20))), ""), backend


def test_without_an_index_saving_asks_and_writes_no_more(url: str) -> None:
    store, backend = watched(url)
    with store:
        store.thread("t").put({"say": "hello"})
        assert backend.reads == 3  # one look at the thread, one at the quota, and one whether there are schemas
        store.thread("t").put({"say": "again"})
        assert backend.reads == 3
        assert not any(change.space is WORDS for batch in backend.batches for change in batch)
        backend.batches.clear()
        store.maintenance.build_index()
        backend.reads = 0
        backend.batches.clear()
        store.thread("t").put({"say": "more"})
        assert backend.reads <= 1
        (batch,) = backend.batches
        assert [change.row.columns[1] for change in batch if isinstance(change, Put) and change.space is WORDS] == [
            "more"
        ]


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
def test_a_thread_that_is_rewritten_while_its_words_are_indexed(url: str) -> None:
    store, backend = watched(url)
    with store:
        talk(store, 4)

        def compact() -> None:
            with holdfast.open(url) as other:
                other.maintenance.compact("t")

        def of_words(batch: Batch) -> bool:
            return any(isinstance(change, Put) and change.space is WORDS for change in batch)

        with backend.interfere(compact, times=2, where=of_words):
            assert astuple(store.maintenance.build_index()) == (1, 4)
        assert by_index(store, "message") == ["00", "01", "02", "03"]
        store.maintenance.drop_index()
        theirs = backend.interfere(compact, times=None, where=of_words)
        with pytest.raises(ConflictError, match="gave up indexing words"), theirs:
            store.maintenance.build_index()


def test_damaged_steps_have_no_row(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("t").put({"say": "hello"}, id="1")
        store.thread("t").put({"say": "there"}, id="2")
        backend = store._engine.context.stored
        ((row,),) = run(backend.read([Get(STEPS, [("", "t", 0, 0)])]))
        run(backend.apply([Put(STEPS, row._replace(body=flipped(row.body, -17)))]))
        store._engine.context.cache.clear()
        assert astuple(store.maintenance.build_index()) == (1, 1)
        assert by_index(store, "there") == ["2"]
        run(backend.apply([Delete(STEPS, row.key)]))


def test_a_damaged_thread_can_be_saved_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(url) as store:
        store.maintenance.build_index()

        def damaged(*_: object) -> None:
            raise CorruptError("damaged")

        with monkeypatch.context() as patch:
            patch.setattr(indexer, "texts", damaged)
            store.thread("t").put({"say": "hello"}, id="1")
        assert rows(store, "t") == set()
        assert astuple(store.maintenance.build_index()) == (1, 1)
        assert by_index(store, "hello") == ["1"]


@pytest.mark.parametrize("lost", [False, True], ids=["rewritten", "lost"])
def test_nodes_that_are_missing_while_words_are_indexed(url: str, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    with holdfast.open(url) as store:
        store.thread("t").put({"say": "hello"}, id="1")
        real, left = texts, 1 << 30 if lost else 2

        def missing(*given: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                raise MissingNode("a node is missing")
            return real(*given)

        monkeypatch.setattr(indexer, "texts", missing)
        if lost:
            with pytest.raises(MissingNode):
                store.maintenance.build_index()
            return
        store.maintenance.build_index()
        assert not left
        left = 2
        store.thread("t").put({"say": "again"}, id="2")
        assert not left
        assert by_index(store, "again") == ["2"]
