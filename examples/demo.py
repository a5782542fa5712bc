"""What Holdfast stores of an agent's run, step by step, and what can be done with it.

Everything here happens in memory: it shows the codec and the model, on which the stores stand.
Run it with `make demo`.
"""

from __future__ import annotations

import random
import time
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from holdfast import Codec
from holdfast.errors import HoldfastError
from holdfast.model import (
    EditList,
    Header,
    Operation,
    PackedMap,
    Parent,
    Set,
    Step,
    apply_map,
    diff_maps,
    flatten,
    merge,
    pack_state,
)
from holdfast.model.merge import path_text, union
from holdfast.model.operations import Change, Keep
from holdfast.model.packed import unpack_state

codec = Codec()
TURNS = 300
WORDS = ("agent plan tool search result because then user asked about the state of every step and why").split()  # noqa: SIM905


def prose(size: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=size // 6))


def headline(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m")


def turn(state: dict[str, Any], n: int) -> dict[str, Any]:
    """What a turn of the agent does to its state."""
    call: Any = {"name": "search", "args": {"query": prose(30, n)}, "id": f"call_{n}"}
    fresh = [
        HumanMessage(prose(300, n), id=f"h{n}"),
        AIMessage("", tool_calls=[call], id=f"c{n}"),
        ToolMessage(prose(600, -n), tool_call_id=f"call_{n}", id=f"t{n}"),
        AIMessage(prose(1200, n + 1), id=f"a{n}"),
    ]
    return {**state, "messages": [*state["messages"], *fresh], "turn": n, "plan": {**state["plan"], "done": n}}


def run() -> tuple[list[Step], list[PackedMap]]:
    """A line of steps, each holding what its turn changed."""
    state: dict[str, Any] = {
        "messages": [],
        "plan": {"goal": "answer everything", "done": 0},
        "document": prose(50_000, 0),
    }
    before: PackedMap = {}
    steps: list[Step] = []
    states: list[PackedMap] = []
    for n in range(TURNS):
        state = turn(state, n)
        after = pack_state(codec, state)
        parents = (Parent(0, n - 1, steps[-1].commit),) if steps else ()
        steps.append(Step(Header(f"step-{n}", parents, time.time_ns()), diff_maps(before, after)))
        states.append(after)
        before = after
    return steps, states


def describe(operation: Operation) -> str:
    if isinstance(operation, EditList):
        kept = sum(part.length for part in operation.parts if isinstance(part, Keep))
        fresh = [item for part in operation.parts if not isinstance(part, Keep | Change) for item in part]
        return f"keeps {kept} items, adds {', '.join(type(codec.unpack(item)).__name__ for item in fresh)}"
    return f"is now {codec.unpack(operation.value)}" if isinstance(operation, Set) else str(operation)


def main() -> None:
    headline(f"An agent runs {TURNS} turns")
    start = time.perf_counter()
    steps, states = run()
    took = time.perf_counter() - start
    written = sum(len(step.encode()) for step in steps)
    whole = sum(len(flatten(state)) for state in states)
    final = len(flatten(states[-1]))
    print(f"  its state grew to            {final / 1e6:8.2f} MB")
    print(f"  the whole state, every step  {whole / 1e6:8.2f} MB")
    print(
        f"  what each step changed       {written / 1e6:8.2f} MB   ({whole / written:.0f} times less, in {took:.2f} s)"
    )

    headline("What the last step changed")
    for name, operation in steps[-1].edit.put:
        print(f"  {codec.unpack(name):<9} {describe(operation)}")

    headline("Any past state is a matter of applying steps")
    state: PackedMap = {}
    for step in steps[:100]:
        state = apply_map(step.edit, state)
    past = unpack_state(codec, state)
    print(f"  after step 99: {len(past['messages'])} messages, plan {past['plan']}")
    print(f"  the last of them: {type(past['messages'][-1]).__name__}, {past['messages'][-1].content[:50]!r}…")

    headline("Two alternatives from there, merged")
    ours = pack_state(codec, turn(past, 1000) | {"plan": {**past["plan"], "ours": True}})
    theirs = pack_state(codec, turn(past, 2000) | {"plan": {**past["plan"], "theirs": True}})
    merged = merge(state, ours, theirs)
    for clash in merged.clashes:
        print(f"  both changed {path_text(clash.path)}")
    both = unpack_state(codec, merge(state, ours, theirs, union).state)
    print(f"  with the union of lists: {len(both['messages'])} messages, plan {both['plan']}")

    headline("Nothing is altered unseen")
    print(f"  commit hash of the last step: {steps[-1].commit.hex()}")
    data = bytearray(steps[150].encode())
    data[len(data) // 2] ^= 1
    try:
        Step.decode(bytes(data))
    except HoldfastError as error:
        print(f"  one flipped bit in step 150: {type(error).__name__}: {error}")

    headline("Values that can not be kept say where they are")
    try:
        pack_state(codec, {"messages": [HumanMessage("x", additional_kwargs={"client": object()})]})
    except HoldfastError as error:
        print(f"  {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
