"""Two agents and a hook; then the questions of whoever debugs them: what happened, what did it lead to, and why?

    python -m examples.what_happened

It prints the timeline of a request, the effects of its first change, and what led to a value.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import holdfast
from holdfast.hooks import HookContext


def work(store: holdfast.Store) -> None:
    """Handle a request: the plan of one agent leads to the order of another."""

    @store.hooks.after("state.set", scope="agent:planner", key="plan", name="hand-over", record="full")
    def hand_over(call: HookContext) -> None:
        store.state(agent="buyer")["order"] = {"item": call.value, "by": "planner"}

    with holdfast.correlation("req-7"):
        store.thread("chat-7").put({"messages": ["a kite, please"]})
        store.state(agent="planner")["plan"] = "kite"
    store.hooks.drain(30)


def show(tree: Any) -> None:
    """Print a tree."""
    for depth, node in tree.walk():
        for event in node.events:
            print(f"{'  ' * depth}{event.kind} {event.action} {event.scope} {event.key}".rstrip())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        work(store)
        print("what happened")
        for event in store.timeline.query("correlation:req-7", oldest_first=True):
            print(f"  {event.kind} {event.action} {event.scope} {event.key} {event.summary}".rstrip())
        (change,) = store.timeline.query("kind:change agent:planner")
        print("what the plan led to")
        show(store.timeline.effects(change.id))
        print("what led to the order")
        show(store.timeline.causes(scope="agent:buyer", key="order"))


if __name__ == "__main__":
    main()
