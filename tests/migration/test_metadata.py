"""Schemas of the metadata of artifacts and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError, InvalidError
from holdfast.schemas import Migration, Schema, SchemaSet, add, rename
from holdfast.store import Store
from tests.servers.places import KINDS, place
from tests.support.counting import CountingBackend
from tests.support.nightly import mostly_nightly


class Image1(TypedDict):
    """The first version."""

    w: int


class Image2(TypedDict):
    """A field is renamed, and one added."""

    width: int
    alt: str


class Image21(TypedDict):
    """A field more, which older programs need not know."""

    width: int
    alt: str
    by: NotRequired[str]


ONE = SchemaSet(Schema("image", "1.0.0", Image1))
TO_2 = Migration("image", "1.0.0", "2.0.0", rename("w", "width"), add("alt", default=""))
TWO = SchemaSet(ONE, Schema("image", "2.0.0", Image2), TO_2)
TWO_ONE = SchemaSet(TWO, Schema("image", "2.1.0", Image21))


@pytest.fixture(params=mostly_nightly([kind for kind in KINDS if kind != "memory"], daily=("sqlite",)))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place(request.param, tmp_path)


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], Store]]:
    stores: list[Store] = []

    def another() -> Store:
        stores.append(holdfast.open(url))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


def test_metadata_of_artifacts(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(ONE, artifacts="image/*")
    old.artifacts.register(b"1", id="a", type="image/png", metadata={"w": 5})
    with pytest.raises(InvalidError) as refused:
        old.artifacts.register(b"2", id="b", type="image/png", metadata={"w": "5"})
    assert (refused.value.code, refused.value.where) == ("schema-mismatch", "w of metadata of artifact 'b'")
    old.artifacts.register(b"2", id="b", type="text", metadata={"w": "5"})  # the control: another type
    store.schemas.attach(TWO, artifacts="image/*")
    assert store.artifacts.get("a").metadata == {"width": 5, "alt": ""}
    assert store.artifacts.get("a", migrate=False).metadata == {"w": 5}
    assert [each.metadata for each in store.artifacts.list(type="image/png")] == [{"width": 5, "alt": ""}]
    with pytest.raises(ConflictError) as outdated:
        old.artifacts.register(b"3", id="c", type="image/png", metadata={"w": 5})
    assert outdated.value.code == "schema-outdated"
    assert [each.id for each in store.artifacts.list()] == ["a", "b"], "nothing was written"
    store.artifacts.register(b"3", id="c", type="image/png", metadata={"width": 1, "alt": "x"})
    plain = opened()
    assert plain.artifacts.get("a").metadata == {"w": 5}
    assert store.maintenance.verify().ok


def test_metadata_of_sessions(opened: Callable[[], Store]) -> None:
    old, store, plain = opened(), opened(), opened()
    old.schemas.attach(ONE, sessions="**")
    old.sessions.start("a", metadata={"w": 5}, on_end="keep")
    old.sessions.start("b", metadata={"w": 6})
    with pytest.raises(InvalidError):
        old.sessions.update("a", {"w": "6"})
    plain.sessions.update("a", {"w": 7})  # keeps the version
    store.schemas.attach(TWO, sessions="**", unversioned="2.0.0")
    assert store.sessions.get("a").metadata == {"width": 7, "alt": ""}
    assert store.sessions.get("a", migrate=False).metadata == {"w": 7}
    assert store.sessions.update("a", {"alt": "x"}).metadata == {"width": 7, "alt": "x"}
    assert plain.sessions.get("a").metadata == {"width": 7, "alt": "x"}
    with pytest.raises(ConflictError) as outdated:
        old.sessions.update("b", {"w": 5})
    assert outdated.value.code == "schema-outdated"
    plain.sessions.end("b")
    assert plain.sessions.get("b").metadata == {"w": 6}
    store.sessions.end("a")
    assert store.sessions.resume("a").metadata == {"width": 7, "alt": "x"}
    newer = opened()
    newer.schemas.attach(TWO_ONE, sessions="**")
    newer.sessions.update("a", {"by": "ada"})
    store.sessions.update("a", {"alt": "y"})
    assert newer.sessions.get("a").metadata == {"width": 7, "alt": "y", "by": "ada"}


def test_a_schema_of_metadata_costs_no_call_of_the_store() -> None:
    calls = []
    for attached in (False, True):
        backend = CountingBackend(MemoryBackend())
        store = Store(Engine(EngineContext(backend)), "")
        if attached:
            store.schemas.attach(TWO, artifacts="image")
            store.schemas.attach(TWO, sessions="**")
        good: dict[str, Any] = {"width": 1, "alt": ""}
        store.artifacts.register(b"0", id="first", type="image", metadata=good)
        store.sessions.start("first", metadata=good)
        backend.reset()
        for number in range(5):
            store.artifacts.register(str(number).encode(), id=str(number), type="image", metadata=good)
            store.sessions.start(str(number), metadata=good)
            store.sessions.update(str(number), {"width": 2})
            store.artifacts.get(str(number))
            store.sessions.get(str(number))
        calls.append((backend.reads, backend.applies))
    assert calls[0] == calls[1]
