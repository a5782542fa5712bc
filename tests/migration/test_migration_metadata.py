"""Schemas of the metadata of artifacts and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError, InvalidError
from tests.migration.documents import IMAGE_1, IMAGE_2, IMAGE_21
from tests.support.counting import CountingBackend


def test_metadata_of_artifacts(opened: Callable[[], Store]) -> None:
    old, store = opened(), opened()
    old.schemas.attach(IMAGE_1, artifacts="image/*")
    old.artifacts.register(b"1", id="a", type="image/png", metadata={"w": 5})
    with pytest.raises(InvalidError) as refused:
        old.artifacts.register(b"2", id="b", type="image/png", metadata={"w": "5"})
    assert (refused.value.code, refused.value.where) == ("schema-mismatch", "w of metadata of artifact 'b'")
    old.artifacts.register(b"2", id="b", type="text", metadata={"w": "5"})  # the control: another type
    store.schemas.attach(IMAGE_2, artifacts="image/*")
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
    old.schemas.attach(IMAGE_1, sessions="**")
    old.sessions.start("a", metadata={"w": 5}, on_end="keep")
    old.sessions.start("b", metadata={"w": 6})
    with pytest.raises(InvalidError):
        old.sessions.update("a", {"w": "6"})
    plain.sessions.update("a", {"w": 7})  # keeps the version
    store.schemas.attach(IMAGE_2, sessions="**")
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
    newer.schemas.attach(IMAGE_21, sessions="**")
    newer.sessions.update("a", {"by": "ada"})
    store.sessions.update("a", {"alt": "y"})
    assert newer.sessions.get("a").metadata == {"width": 7, "alt": "y", "by": "ada"}


def test_a_schema_of_metadata_costs_no_call_of_the_store() -> None:
    calls = []
    for attached in (False, True):
        backend = CountingBackend(MemoryBackend())
        store = Store(Engine(EngineContext(backend)), "")
        if attached:
            store.schemas.attach(IMAGE_2, artifacts="image")
            store.schemas.attach(IMAGE_2, sessions="**")
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


def test_a_program_without_schemas_is_refused_on_newer_metadata(opened: Callable[[], Store]) -> None:
    plain, store = opened(), opened()
    plain.sessions.start("a", metadata={"w": 5}, on_end="keep")
    store.schemas.attach(IMAGE_2, sessions="**")
    store.sessions.update("a", {"alt": "x"})
    with pytest.raises(ConflictError) as refused:
        plain.sessions.update("a", {"w": 9})
    assert (refused.value.code, refused.value.where) == ("schema-missing", "metadata of session 'a'")
    plain.sessions.end("a")  # which leaves it as it is
    assert store.sessions.get("a").metadata == {"width": 5, "alt": "x"}
