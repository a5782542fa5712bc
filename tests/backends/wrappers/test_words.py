"""Looking for words through the wrappers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Backend, Put, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, QUARANTINE, WORDS
from holdfast.backends.wrappers.retry import RetryBackend
from holdfast.backends.wrappers.store_diff import same_row
from holdfast.errors import TransientError, UnsupportedError
from tests.support.counting import CountingBackend
from tests.support.faults import Fault, Faults

ROW = Row(("", "t", 0, 0), (1, "some words"))


def failing(times: int) -> Faults:
    return Faults(MemoryBackend(), [Fault("read", 1, lambda: TransientError("busy"), times=times)])


def keys(store: Backend) -> list[object]:
    return list(run(store.match("", ["words"])).keys)


def test_what_fails_for_the_moment_is_tried_again() -> None:
    inner = failing(2)
    store = RetryBackend(inner, pause=0.001)
    run(store.apply([Put(WORDS, ROW)]))
    assert keys(store) == [ROW.key]
    assert inner.reads == 3


def test_searches_are_counted() -> None:
    store = CountingBackend(MemoryBackend())
    run(store.apply([Put(WORDS, ROW)]))
    assert keys(store) == [ROW.key]
    assert (store.matches, store.reads) == (1, 0)
    store.reset()
    assert store.matches == 0


COMPOSED = {
    "readonly": lambda folder: f"readonly:?store=sqlite:///{folder}/a.db",
    "retry": lambda folder: f"retry:?store=sqlite:///{folder}/a.db",
    "cache": lambda folder: f"cache:?store=sqlite:///{folder}/a.db",
    "write-behind": lambda folder: f"write-behind:?local=sqlite:///{folder}/a.db&remote=file://{folder}/b",
    "mirror": lambda folder: f"mirror:?local=sqlite:///{folder}/a.db&remote=file://{folder}/b",
    "tiered": lambda folder: f"tiered:?hot=sqlite:///{folder}/a.db&cold=file://{folder}/b",
}


@pytest.mark.parametrize("url_in", COMPOSED.values(), ids=COMPOSED.keys())
def test_the_store_that_is_read_is_the_one_that_is_searched(url_in: Callable[[Path], str], tmp_path: Path) -> None:
    plain = f"sqlite:///{tmp_path}/a.db"
    on = run(backend_for(plain).open(plain))
    run(on.apply([Put(WORDS, ROW)]))
    run(on.close())
    url = url_in(tmp_path)
    store = run(backend_for(url).open(url))
    assert store.capabilities.words
    assert keys(store) == [ROW.key]
    run(store.close())


@pytest.mark.parametrize("kind", [kind for kind in COMPOSED if kind != "readonly"])
def test_an_index_is_built_and_kept_up_to_date(kind: str, tmp_path: Path) -> None:
    with holdfast.open(COMPOSED[kind](tmp_path)) as store:
        store.thread("chat").put({"say": "an apple"})
        store.maintenance.build_index()
        store.thread("chat").put({"say": "an apple and a pear"})
        page = store.search("pear")
        assert (len(page), page.how) == (1, "index")


@pytest.mark.parametrize("scheme", ["write-behind", "mirror"])
def test_a_store_that_is_filled_from_its_copy_finds_words_again(scheme: str, tmp_path: Path) -> None:
    def opened(local: str, more: str = "") -> Backend:
        url = f"{scheme}:?local=sqlite:///{tmp_path}/{local}&remote=file://{tmp_path}/b{more}"
        return run(backend_for(url).open(url))

    store = opened("a.db")
    rows = {QUARANTINE: Row(("", "t", 0), ("steps", 1, "damaged"), b"x"), JOBS: Row(("", "", "j"), ("", "", "", 1, 2))}
    run(store.apply([Put(WORDS, ROW), *(Put(space, row) for space, row in rows.items())]))
    run(store.close())
    again = opened("c.db", "&restore=true")
    assert keys(again) == [ROW.key]
    assert run(again.check()) == []
    run(again.close())


def test_a_store_that_cannot_search_says_so_through_a_wrapper(tmp_path: Path) -> None:
    url = f"retry:?store=file://{tmp_path}/b"
    store = run(backend_for(url).open(url))
    assert not store.capabilities.words
    with pytest.raises(UnsupportedError, match="does not support text search"):
        keys(store)
    run(store.close())


def test_words_in_another_order_are_the_same() -> None:
    other = ROW._replace(columns=(1, "words some"))
    assert same_row(WORDS, ROW, other)
    assert not same_row(WORDS, ROW, other._replace(columns=(1, "words")))
    assert not same_row(WORDS, ROW, other._replace(columns=(2, "words some")))
