"""What is measured: each case prints rows and returns the figures that are checked."""

from __future__ import annotations

import random
import uuid
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks.measure import Figure, in_turns
from holdfast.codec import Codec
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.fold import fold
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import EditList, EditMap, KeepRun, Set, apply_map
from holdfast.engine.model.packed_state import flatten, pack_state
from holdfast.engine.model.workspace import Workspace

codec = Codec()
langgraph = JsonPlusSerializer()


_words = [
    "".join(random.Random(i).choices("etaoinshrdlucmfwypvbgkqjxz", k=random.Random(-i).randint(2, 9)))
    for i in range(3000)
]


def text(size: int, seed: int) -> str:
    """Text of about this many characters."""
    return " ".join(random.Random(seed).choices(_words, k=size // 6))


def chat(turns: int) -> list[BaseMessage]:
    """Question and answer: 0.3 and 1.2 KB a turn."""
    messages: list[BaseMessage] = []
    for i in range(turns):
        messages.append(HumanMessage(text(300, 2 * i), id=str(uuid.UUID(int=2 * i))))
        messages.append(AIMessage(text(1200, 2 * i + 1), id=str(uuid.UUID(int=2 * i + 1))))
    return messages


def tool_use(turns: int) -> list[BaseMessage]:
    """Question, tool call, tool result and answer, with the metadata that providers add."""
    messages: list[BaseMessage] = []
    for i in range(turns):
        usage: Any = {"input_tokens": i, "output_tokens": 20, "total_tokens": i + 20}
        call: Any = {"name": "search", "args": {"query": text(30, i), "limit": 5}, "id": f"call_{i}"}
        messages += [
            HumanMessage(text(300, i), id=str(uuid.UUID(int=4 * i))),
            AIMessage("", tool_calls=[call], usage_metadata=usage, id=str(uuid.UUID(int=4 * i + 1))),
            ToolMessage(text(800, -i), tool_call_id=f"call_{i}", id=str(uuid.UUID(int=4 * i + 2))),
            AIMessage(text(1200, i), usage_metadata=usage, id=str(uuid.UUID(int=4 * i + 3))),
        ]
    return messages


def _against_langgraph(what: str, messages: list[BaseMessage], pack_floor: float, pack_goal: float) -> list[Figure]:
    ours, theirs = codec.pack_items(messages), langgraph.dumps_typed(messages)
    back = codec.unpack_items(ours)
    assert back == langgraph.loads_typed(theirs) == messages
    assert all(type(a) is type(b) and a is not b for a, b in zip(back, messages, strict=True)), "not fresh objects"
    messages[-1].additional_kwargs["mutated"] = True
    assert codec.pack_items(messages)[-1] != ours[-1], "a mutation in place went unseen"
    del messages[-1].additional_kwargs["mutated"]
    best = in_turns(
        {
            "pack": lambda: codec.pack_items(messages),
            "their pack": lambda: langgraph.dumps_typed(messages),
            "read": lambda: codec.unpack_items(ours),
            "their read": lambda: langgraph.loads_typed(theirs),
        }
    )
    count = len(messages)
    pack_note = f"{best['pack']:.2f} ms against {best['their pack']:.2f} ms"
    read_note = f"{best['read']:.2f} ms against {best['their read']:.2f} ms"
    return [
        Figure(
            f"pack {count} messages, {what}",
            best["their pack"] / best["pack"],
            "x faster",
            pack_floor,
            note=pack_note,
            goal=pack_goal,
        ),
        Figure(f"read {count} messages, {what}", best["their read"] / best["read"], "x faster", 3, note=read_note),
    ]


def codec_against_langgraph() -> list[Figure]:
    """Packing and reading messages, beside LangGraph's JsonPlusSerializer.

    More than half of the time of packing goes into the proof that messages hold nothing but plain values under the
    declared names; LangGraph's serializer has no such check. The goals want that proof in native code.
    """
    return _against_langgraph("chat", chat(500), 2.7, 4) + _against_langgraph("tool use", tool_use(250), 2.2, 3)


def typical_agent() -> list[Figure]:
    """200 messages, 20 tools, 50 KB of context."""
    state = {
        "messages": chat(100),
        "tools": [
            {"name": f"tool_{i}", "description": text(200, i), "schema": {"properties": {"q": {"type": "string"}}}}
            for i in range(20)
        ],
        "context": {f"note_{i}": text(500, i) for i in range(100)},
        "step": 12,
    }  # fmt: skip
    packed = pack_state(codec, state)
    assert flatten(packed) == codec.pack(state)
    best = in_turns({"pack": lambda: pack_state(codec, state)})
    return [Figure("serialize a typical agent", best["pack"], "ms", None, 5, f"{len(flatten(packed)) / 1000:.0f} KB")]


def diff_of_long_lists() -> list[Figure]:
    """Two packed lists of 10,000 messages that share all but the last."""
    messages = chat(5000)
    old = pack_state(codec, {"messages": messages})
    new = pack_state(codec, {"messages": [*messages[:-1], HumanMessage("another")]})
    edit = diff_maps(old, new)
    assert apply_map(edit, old) == new
    best = in_turns({"diff": lambda: diff_maps(old, new)})
    return [Figure("diff of 10,000 messages, the last changed", best["diff"], "ms", None, 10)]


def folding() -> list[Figure]:
    """Bytes that folding writes per step, early in a line and late."""
    key = codec.pack("messages")
    items = codec.pack_items(chat(1))
    written: dict[int, float] = {}
    nodes: dict[bytes, bytes] = {}
    root, count = EMPTY, 0
    for round_ in range(625):
        steps = []
        for _ in range(32):
            edit = EditList((KeepRun(0, count), tuple(items))) if count else Set(flatten(list(items)))
            steps.append((WrittenBy(0, count // 2), EditMap((), ((key, edit),))))
            count += 2
        ws = Workspace()
        rounds = fold(ws, root, steps, nodes.__getitem__)
        try:
            wanted = next(rounds)
            while True:
                wanted = rounds.send({id: nodes[id] for id in wanted})
        except StopIteration as done:
            root = done.value
        nodes |= ws.created
        written[round_] = sum(map(len, ws.created.values())) / 32
    early, late = sum(written[i] for i in range(1, 6)) / 5, sum(written[i] for i in range(620, 625)) / 5
    return [
        Figure(
            "bytes folded per step, 20,000 steps in / 64 steps in", late / early, "x", None, 1.5, f"{late:.0f} bytes"
        )
    ]


CASES = (codec_against_langgraph, typical_agent, diff_of_long_lists, folding)
