"""Items of a served store by LangGraph's own client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langgraph_sdk import schema
from langgraph_sdk.errors import NotFoundError, PermissionDeniedError, UnprocessableEntityError

import holdfast
from holdfast.langgraph import HoldfastStore
from tests.interfaces.langgraph_server.kit import Clients, serving, support


def test_items_are_stored_found_and_deleted(clients: Clients) -> None:
    items = clients.owner.store
    items.put_item(["docs", "a"], "one", {"title": "One", "n": 1})
    items.put_item(["docs", "b"], "two", {"title": "Two", "n": 2}, ttl=60)
    found = items.get_item(["docs", "a"], "one")
    msgspec.convert(found, schema.Item)
    assert (found["value"], found["namespace"]) == ({"title": "One", "n": 1}, ["docs", "a"])
    page = items.search_items(["docs"])
    msgspec.convert(page, schema.SearchItemsResponse)
    assert [each["key"] for each in page["items"]] == ["two", "one"]
    assert [each["key"] for each in items.search_items(["docs"], filter={"n": {"$lt": 2}})["items"]] == ["one"]
    assert items.search_items(["docs"], limit=1, offset=1)["items"][0]["key"] == "one"
    assert items.list_namespaces(prefix=["docs"]) == {"namespaces": [["docs", "a"], ["docs", "b"]]}
    assert items.list_namespaces(max_depth=1) == {"namespaces": [["docs"]]}
    items.delete_item(["docs", "a"], "one")
    with pytest.raises(NotFoundError):
        items.get_item(["docs", "a"], "one")
    with pytest.raises(UnprocessableEntityError):
        items.search_items(["docs"], query="what is it about?")
    assert HoldfastStore(clients.store).get(("docs", "b"), "two").value["n"] == 2  # type: ignore[union-attr]


@pytest.fixture
def with_index(tmp_path: Path) -> Iterator[Clients]:
    """A served store whose graph has an index of its items, and namespaces of users."""

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "aeiou"] for text in texts]

    with holdfast.open(tmp_path / "a.db") as store:
        index: Any = {"dims": 5, "embed": embed, "fields": ["text"]}
        items = HoldfastStore(store, index=index, users=[("memories", "{user}")])
        graphs = {"support": lambda: support().copy(update={"store": items})}
        with serving(store, graphs, work=False) as clients:
            yield clients


def test_items_are_those_of_the_graph(with_index: Clients) -> None:
    ada, ben = (with_index.of(f"user:{name}").store for name in ("ada", "ben"))
    ada.put_item(["memories", "ada"], "1", {"text": "aaa"})
    ada.put_item(["memories", "ada"], "2", {"text": "eee"})
    (first,) = ada.search_items(["memories"], query="a", limit=1)["items"]
    assert first["key"] == "1"
    assert first["score"] == pytest.approx(1.0)
    assert ben.search_items([])["items"] == []
    assert ben.list_namespaces()["namespaces"] == []
    calls: list[Callable[[], Any]] = [
        lambda: ben.get_item(["memories", "ada"], "1"),
        lambda: ben.put_item(["memories", "ada"], "1", {"text": "his"}),
        lambda: ben.delete_item(["memories", "ada"], "1"),
    ]
    for call in calls:
        with pytest.raises((PermissionDeniedError, NotFoundError)):
            call()
    assert ada.get_item(["memories", "ada"], "1")["value"] == {"text": "aaa"}
