"""An agent's run in a store on SQLite, and what can be done with it afterwards.

Run it with `make demo`. It leaves the store in build/demo.db, to be looked at.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

import holdfast
from holdfast.errors import HoldfastError

TURNS = 300
FILE = Path("build/demo.db")
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


def run(store: holdfast.Store) -> tuple[int, float]:
    """Run the agent. Returns how many bytes its state would take, saved whole at every step; and the time to save."""
    codec = holdfast.Codec()
    whole, took = 0, 0.0
    state: dict[str, Any] = {
        "messages": [],
        "plan": {"goal": "answer everything", "done": 0},
        "document": prose(50_000, 0),
    }
    for n in range(TURNS):
        state = turn(state, n)
        start = time.perf_counter()
        store.put("agent", state, metadata={"turn": n})
        took += time.perf_counter() - start
        whole += len(codec.pack(state))
    return whole, took


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    for file in FILE.parent.glob(f"{FILE.name}*"):
        file.unlink()
    with holdfast.open(f"sqlite:///{FILE}") as store:
        headline(f"An agent runs {TURNS} turns, and is saved after each")
        whole, took = run(store)
        thread = store.thread("agent")
        print(f"  its state, whole at every step  {whole / 1e6:8.1f} MB")
        print(f"  what the store keeps of it      {thread.bytes / 1e6:8.1f} MB, {thread.steps} checkpoints")
        print(f"  the time to save it             {took:8.2f} s")

        headline("Resume: the latest state, as it was")
        latest = store.get("agent")
        print(f"  {latest.id}: turn {latest.state['turn']}, {len(latest.state['messages'])} messages")
        print(f"  the last of them: {type(latest.state['messages'][-1]).__name__}")

        headline("Look back: any checkpoint is one read away")
        for checkpoint in store.log("agent", limit=3):
            print(f"  {checkpoint.time:%H:%M:%S.%f}  {checkpoint.id}  {checkpoint.metadata}")
        past = store.get("agent", step=99)
        print(f"  step 99: {len(past.state['messages'])} messages, plan {past.state['plan']}")
        lazy = store.get("agent", step=200, lazy=True).state
        print(f"  step 200, read in part: {lazy.length('messages')} messages, plan {lazy.value('plan')}")

        headline("Try another way from there; nothing is copied")
        store.fork("agent", past.id, branch="what if")
        other = store.put("agent", turn(past.state, 1000), branch="what if", tags=["experiment"])
        print(f"  {other.id} follows {other.parent}, on branch {other.branch}")
        print(f"  main is where it was: turn {store.get('agent', branch='main').state['turn']}")

        headline("Go back: a new checkpoint with an old state")
        restored = store.restore("agent", past.id, branch="main")
        print(f"  {restored.id}: turn {store.get('agent', restored.id).state['turn']}; all before it are kept")

        headline("Change a part: only the part is written")
        before = store.thread("agent").bytes
        store.update("agent", {("plan", "note"): "from the demo"}, branch="main")
        print(f"  {store.thread('agent').bytes - before} bytes")

        headline("Values that can not be kept say where they are")
        try:
            store.put("agent", {"messages": [HumanMessage("x", additional_kwargs={"client": object()})]})
        except HoldfastError as error:
            print(f"  {type(error).__name__}: {error}")

    headline(f"{FILE} is an SQLite file of {FILE.stat().st_size / 1e6:.1f} MB; look at it:")
    print(f"  sqlite3 {FILE} 'select * from threads'")
    print(f"  sqlite3 {FILE} 'select time, id, metadata, bytes from log limit 5'")


if __name__ == "__main__":
    main()
