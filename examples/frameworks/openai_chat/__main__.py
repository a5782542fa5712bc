"""A session of the OpenAI Agents SDK in a store: what was popped is in its history.

    python -m examples.frameworks.openai_chat

It prints what the session has, and its history. No agent is run, so that it needs no key: a runner does the same calls.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import holdfast
from holdfast.openai_agents import HoldfastSession


async def talk(store: holdfast.Store) -> None:
    """Stand for `Runner.run(agent, text, session=session)`."""
    session = HoldfastSession("chat-1", store)
    await session.add_items([{"role": "user", "content": "Hello"}])
    await session.add_items([{"role": "assistant", "content": "Hi!"}])
    await session.pop_item()
    print("items:", len(await session.get_items()))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        asyncio.run(talk(store))
        thread = store.thread("chat-1")
        print("history:", *(each.kind for each in reversed(thread.log())))
        print("what was popped:", thread.get(at="HEAD~1").state["messages"][-1]["content"])


if __name__ == "__main__":
    main()
