"""What the core in Python makes of forged bytes, as the oracle of the native one."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from holdfast.codec.message_cache import MessageParts
from tests.codec.test_message_cache import outcome
from tests.codec.values import identical
from tests.support.cores import CORES, codec_of

PYTHON, NATIVE = codec_of(CORES["python"]), codec_of(CORES.get("native", CORES["python"]))


def sources() -> list[bytes]:
    """Packed messages and values of all kinds."""
    calls: Any = [{"name": "f", "args": {"x": [1.5, None]}, "id": "1"}]
    return PYTHON.pack_items(
        [
            HumanMessage("question é", id="1"),
            AIMessage("", tool_calls=calls, response_metadata={"n": -300, "big": 1 << 60}),
            ToolMessage("answer", tool_call_id="1", artifact={"k": [b"bytes", {1: True}]}),
            *({"role": "user", "content": "x" * 40}, [1, -1, [2.5, "a"]], {"a": {"b": [None, 70000, (1, 2)]}}, "text"),
        ]
    )


_GOOD = sources()


def check(forged: bytes) -> None:
    """Read forged bytes in every way, beside good ones: new, known, and returned; and write what they say again."""
    items = [forged, *_GOOD[:2]]
    expected = outcome(lambda: PYTHON.unpack_items(items))
    _compare(outcome(lambda: NATIVE.unpack_items(items)), expected, forged)
    # Each time with what the time before knew; the values of the second are still held at the third.
    made, loan, held = MessageParts.of(items), None, None
    for _ in range(3):
        got = outcome(lambda: NATIVE.unpack_cached(items, made, loan))  # noqa: B023
        values = got[0] if len(got) == 4 else got
        _compare(values, expected, forged)
        if len(got) != 4 or got[1] is None:
            return
        held, (_, made, _, loan) = values, got
    assert held is not None
    _compare(outcome(lambda: NATIVE.pack_items(held)), outcome(lambda: PYTHON.pack_items(held)), forged)


def _compare(got: Any, expected: Any, forged: bytes) -> None:
    same = got == expected if isinstance(expected, tuple) else identical(got, expected)
    assert same, (forged, got, expected)
