"""A store that looks like one of an agent at work, for pages to show."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.store import CheckpointStore, run

QUESTIONS = (
    "What is a holdfast?",
    "How does kelp stay on the rock in a storm?",
    "Which animals live between the branches of a holdfast?",
    "Can you find a source from after 2015?",
)
ANSWERS = (
    "A holdfast is what anchors kelp to the rock. Unlike a root, it takes up **no nutrients**.",
    "It grips with many branched fingers, the `haptera`. They grow down and out, each around some roughness of the "
    "stone:\n\n```text\nblade\n  stipe\n    holdfast  (haptera)\n```",
    "Brittle stars, worms, small crabs and juvenile mussels: up to 70 species in one holdfast.",
    "Yes: Teagle et al. (2017) reviewed kelp as habitat formers.",
)


def messages_of(turn: int) -> list[dict[str, Any]]:
    """The messages of a turn: a question, a call of a tool, its result and an answer."""
    number = turn % len(QUESTIONS)
    call = {"id": f"call-{turn}", "name": "search", "args": {"query": QUESTIONS[number][:24], "limit": 3}}
    return [
        {"role": "user", "content": QUESTIONS[number]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{turn}", "content": f"3 results for turn {turn}: [a, b, c]"},
        {"role": "assistant", "content": ANSWERS[number]},
    ]


_TALK = 600
"""After so many steps, no further message is added."""

NODES = ("input", "agent", "tools", "agent")


def fill_thread(store: holdfast.Store, name: str, steps: int, forks: int = 2) -> None:
    """A conversation of so many steps, with forks, a merge, tags, and an interrupt at its end."""
    thread, said = store.thread(name), list[dict[str, Any]]()
    for step in range(steps):
        id, metadata, done = f"{step:08}", {"node": NODES[step % 4]}, step // 4
        if step < _TALK:
            said.append(messages_of(done)[step % 4])
            plan = {"goal": "explain holdfasts", "done": done, "open": ["sources", "summary"]}
            budget = {"tokens": 40_000 - 28 * done, "currency": "EUR"}
            thread.put({"messages": said, "plan": plan, "budget": budget}, id=id, metadata=metadata)
        else:  # the rest only counts: to save thousands of steps takes long enough
            thread.update({"budget.tokens": 40_000 - step}, id=id, metadata=metadata)
    for number in range(forks):
        at = f"{steps * (number + 2) // (forks + 3):08}"
        branch = ("what-if", "shorter", "other")[number % 3] + ("" if number < 3 else str(number))
        thread.fork(branch, at=at, changes={"plan.goal": f"answer in {number + 1} sentences"})
        for more in range(3):
            store.thread(name).update({"plan.done": 1000 + more}, branch=branch, metadata={"node": "agent"})
    if forks:
        thread.merge("what-if", strategy="ours")
    thread.tag("asked", f"{steps // 2:08}")
    thread.label("reviewed", f"{steps - 2:08}")
    head = thread.get().id
    writes = [(0, "__interrupt__", "May I send this answer to the customer?"), (1, "messages", {"role": "assistant"})]
    run(CheckpointStore(store).put_writes(name, head, writes, task_id="3f0c-approve"))


HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def fill_odd(store: holdfast.Store) -> None:
    """Threads with markup in every field, text in other directions, a long text, and values of many types."""
    calls = [{"id": "1", "name": HOSTILE, "args": {HOSTILE: HOSTILE}}]
    images = ["https://evil.example/x.png", "data:image/svg+xml;base64,PHN2Zz4="]
    state = {
        "messages": [
            {"role": "user", "content": HOSTILE, "name": HOSTILE},
            {"role": "assistant", "content": "مرحبا، كيف حالك؟ 👋🏽", "tool_calls": calls},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": each}} for each in images]},
        ],
        HOSTILE: {HOSTILE: HOSTILE},
        "text": "A long text. " * 20_000,
        "none": None,
        "yes": True,
        "number": 12.5,
        "empty": [],
        "bytes": b"\x00\x01",
    }
    thread = store.thread(HOSTILE)
    thread.put(state, metadata={"node": HOSTILE, HOSTILE: HOSTILE}, id="c1")
    thread.update({"text": HOSTILE, "yes": False}, id="c2")
    thread.tag("<i>tag", "c1")
    thread.label(HOSTILE, "c1")
    thread.fork("<i>branch", at="c1")
    thread.pin("c1", reason=HOSTILE)
