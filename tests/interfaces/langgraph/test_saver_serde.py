"""A saver with a serializer of the user's own, and one on a thread that the store itself saved to."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START

import holdfast
from holdfast.errors import NotFoundError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.calls import Caller, write
from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.sessions import Session, on

# A serializer of the user's own -----------------------------------------------------------------------------------


class Turned(CipherProtocol):
    """No secret at all."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "turned", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "turned"
        return ciphertext[::-1]


class Noting(JsonPlusSerializer):
    """Notes what it dumps."""

    def __init__(self) -> None:
        super().__init__()
        self.dumped: list[Any] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.dumped.append(obj)
        return super().dumps_typed(obj)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_encrypted(asynchronous: bool) -> None:
    with holdfast.open("memory://") as store:
        saver = Caller(HoldfastSaver(store, serde=EncryptedSerializer(Turned())), asynchronous)
        saver.put("1", {"x": "a secret", "n": None})
        write(saver, [("y", ["another secret"])])
        assert saver.values() == {"x": "a secret", "n": None}
        assert saver.get().pending_writes == [("task", "y", ["another secret"])]
        assert saver.listed(None)[0].checkpoint["channel_values"] == {"x": "a secret", "n": None}
        kept = store.get("t").state["x"]
        assert b"a secret" not in kept.data
        assert b"a secret"[::-1] in kept.data
        without = Caller(HoldfastSaver(store), asynchronous)
        for read in (without.get, lambda: without.listed(None)):
            with pytest.raises(UnsupportedError, match=r"serializer of its own.*HoldfastSaver\(store, serde=…\)"):
                read()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_channel_is_dumped_when_its_version_changes(asynchronous: bool) -> None:
    serde = Noting()
    with holdfast.open("memory://") as store:
        saver = Caller(HoldfastSaver(store, serde=serde), asynchronous)
        saver.put("1", {"x": "x1", "y": "y1"}, versions={"x": 1, "y": 1})
        assert serde.dumped == ["x1", "y1"]
        saver.put(
            "2", {"x": "x1", "y": "y2", "z": "z1"}, parent="1", versions={"x": 1, "y": 2, "z": 1}, new={"y": 2, "z": 1}
        )
        assert serde.dumped == ["x1", "y1", "y2", "z1"]
        saver.put("3", {"x": "x1", "z": "z1"}, parent="2", versions={"x": 1, "y": 3, "z": 1}, new={"y": 3})
        assert serde.dumped == ["x1", "y1", "y2", "z1"]
        assert saver.values("3") == {"x": "x1", "z": "z1"}
        assert saver.values("2") == {"x": "x1", "y": "y2", "z": "z1"}
        saver.put("4", {"x": "x1"}, parent="gone", versions={"x": 1}, new={})
        assert saver.values("4") == {"x": "x1"}


@pytest.mark.parametrize("before", ["no checkpoint of LangGraph's", "no value", "value removed"])
def test_a_value_that_is_not_there_is_dumped(before: str) -> None:
    with holdfast.open("memory://") as store:
        saver = Caller(HoldfastSaver(store, serde=JsonPlusSerializer()), False)
        if before == "no checkpoint of LangGraph's":
            store.put("t", {"x": "plain"}, id="1")
        else:
            saver.put("1", {} if before == "no value" else {"x": 1}, versions={"x": 1})
        if before == "value removed":
            store.update("t", {}, remove=["x"], id="1a")
        saver.put("2", {"x": 2}, parent=store.get("t").id, versions={"x": 1})
        assert saver.values("2") == {"x": 2}


# Together with the store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialized", [False, True], ids=["plain", "serialized"])
def test_a_graph_goes_on_from_what_the_store_saved(serialized: bool) -> None:
    with holdfast.open("memory://") as store:
        saver = HoldfastSaver(store, serde=JsonPlusSerializer() if serialized else None)
        graph = Session(saver, asynchronous=False).graph(
            Log, {"a": says("a"), "b": says("b")}, ((START, "a"), ("a", "b")), interrupt_before=["b"]
        )
        graph.invoke({"log": ["in"]}, on("t"))
        stopped = store.get("t")
        store.update("t", {"log": ["changed"]})
        assert graph.get_state(on("t")).next == ("b",)
        assert graph.invoke(None, on("t"))["log"] == ["changed", "b"]
        restored = store.thread("t").restore(at=stopped.id)
        assert graph.get_state(on("t")).values["log"] == ["in", "a"]
        assert saver.get_tuple(on("t")).metadata["step"] == restored.step - 1  # type: ignore[union-attr]
        assert graph.invoke(None, on("t"))["log"] == ["in", "a", "b"]
        store.put("t", {**store.get("t").state, "log": ["put"]})
        assert graph.invoke({"log": ["more"]}, on("t"))["log"] == ["put", "more", "a"]
        store.put("u", {"log": ["from scratch"]})
        assert graph.get_state(on("u")).values == {"log": ["from scratch"]}
        assert graph.invoke({"log": ["in"]}, on("u"))["log"] == ["from scratch", "in", "a"]
        with pytest.raises(NotFoundError):
            store.get("u", "nope")
