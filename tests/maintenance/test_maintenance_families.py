"""What is done to a thread is done to its namespaces."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.engine.namespaces import thread_name
from holdfast.errors import DeniedError
from holdfast.store.checkpointer import Checkpointer


@pytest.fixture
def store() -> holdfast.Store:
    store = holdfast.open("memory://")
    for thread, namespace in (("a", ""), ("a", "child:1"), ("a", "child:1|sub"), ("b", ""), ("a2", ""), ("a␟", "")):
        store.thread(thread_name(thread, namespace)).put({"n": 1})
    return store


def names(store: holdfast.Store) -> set[str]:
    return {each.thread for each in store.threads()}


OTHERS = {"b", "a2", "a␟␟"}


def test_deleting_a_thread_deletes_its_namespaces_and_no_others(store: holdfast.Store) -> None:
    assert store.thread("a").delete()
    assert names(store) == OTHERS
    assert not store.thread("a").delete()
    Checkpointer(store).delete_thread("a2")
    assert names(store) == OTHERS - {"a2"}


def test_deleting_a_namespace_leaves_its_thread(store: holdfast.Store) -> None:
    assert store.thread("a␟child:1").delete()
    assert names(store) == OTHERS | {"a", "a␟child:1|sub"}
    assert store.thread("a").delete()
    assert names(store) == OTHERS


def test_namespaces_without_their_thread_are_deleted_by_its_name() -> None:
    store = holdfast.open("memory://")
    store.thread("a␟child").put({"n": 1})
    assert store.thread("a").delete()
    assert not names(store)


def test_a_namespace_that_is_held_keeps_its_thread(store: holdfast.Store) -> None:
    before = names(store)
    store.thread("a␟child:1").hold(reason="audit")
    with pytest.raises(DeniedError, match="audit"):
        store.thread("a").delete()
    assert names(store) == before
