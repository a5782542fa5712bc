"""A saver takes no serializer; and one on a thread that the store itself saved to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START

import holdfast
from holdfast.errors import ConfigError, NotFoundError
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
        return ciphertext[::-1]


class Recorder(JsonPlusSerializer):
    """LangGraph's serializer, and what it was called with."""

    called: list[Any] = []

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.called.append(data)
        return super().loads_typed(data)


@pytest.mark.parametrize("serde", [JsonPlusSerializer(), EncryptedSerializer(Turned()), Recorder()])
def test_a_serializer_is_refused(serde: Any) -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(ConfigError, match=type(serde).__name__) as refused:
            HoldfastSaver(store, serde=serde)
        assert refused.value.code == "serde-refused"
    with pytest.raises(ConfigError, match="takes no serializer"):
        HoldfastSaver.from_conn_string("memory://", serde=serde)


def test_what_a_serializer_dumped_is_never_decoded(tmp_path: Any) -> None:
    """CVE-2025-64439: the payload is stored as another saver would have it, and every way of reading is tried."""
    canary = tmp_path / "owned"
    payload = {"lc": 2, "type": "constructor", "id": ["pathlib", "Path", "mkdir"], "args": [str(canary)]}
    stored = {"type": "json", "data": json.dumps(payload).encode(), "value": payload}
    with holdfast.open("memory://") as store:
        saver = Caller(HoldfastSaver(store), False)
        saver.saver.serde = Recorder()  # as a program may do: LangGraph's base class has it
        saver.put("1", {"x": stored})
        write(saver, [("y", stored)])
        for found in (saver.get(), saver.listed(None)[0]):
            assert found.checkpoint["channel_values"]["x"] == stored
            assert [value for _, _, value in found.pending_writes or ()] == [stored]
    assert Recorder.called == []
    assert not canary.exists()


# Together with the store ------------------------------------------------------------------------------------------


def test_a_graph_goes_on_from_what_the_store_saved() -> None:
    with holdfast.open("memory://") as store:
        saver = HoldfastSaver(store)
        graph = Session(saver, asynchronous=False).graph(
            Log, {"a": says("a"), "b": says("b")}, ((START, "a"), ("a", "b")), interrupt_before=["b"]
        )
        graph.invoke({"log": ["in"]}, on("t"))
        stopped = store.thread("t").get()
        store.thread("t").update({"log": ["changed"]})
        assert graph.get_state(on("t")).next == ("b",)
        assert graph.invoke(None, on("t"))["log"] == ["changed", "b"]
        restored = store.thread("t").restore(at=stopped.id)
        assert graph.get_state(on("t")).values["log"] == ["in", "a"]
        assert saver.get_tuple(on("t")).metadata["step"] == restored.step - 1  # type: ignore[union-attr]
        assert graph.invoke(None, on("t"))["log"] == ["in", "a", "b"]
        store.thread("t").put({**store.thread("t").get().state, "log": ["put"]})
        assert graph.invoke({"log": ["more"]}, on("t"))["log"] == ["put", "more", "a"]
        store.thread("u").put({"log": ["from scratch"]})
        assert graph.get_state(on("u")).values == {"log": ["from scratch"]}
        assert graph.invoke({"log": ["in"]}, on("u"))["log"] == ["from scratch", "in", "a"]
        with pytest.raises(NotFoundError):
            store.thread("u").get("nope")
