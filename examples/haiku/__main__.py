"""A haiku agent on asyncio: it is asked for haiku, keeps the conversation, and collects the poems that it wrote.

Where a model would be, a script writes, so that it needs neither key nor network. The agent stops after two poems, is
brought back by its id from the store, knows what was said, and goes on with the third.

    python -m examples.haiku

It prints the poems, and what the agent remembers after it was brought back.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import holdfast
from holdfast.agents import AsyncPersistentAgent

LINES = {
    "tides": "The moon pulls the sea / a crab waits under the stone / twice a day it rains",
    "kelp": "Forest under waves / a holdfast grips the dark rock / the storm goes away",
    "git": "Two branches apart / a line changed on either side / merged before the dawn",
}


class Model:
    """The scripted model: it knows a haiku on three subjects, and numbers them by what it sees of the conversation."""

    async def write(self, messages: list[dict[str, str]]) -> str:
        await asyncio.sleep(0)  # a model takes its time, and others work meanwhile
        written = sum(message["role"] == "assistant" for message in messages)
        return f"({written + 1}) {LINES[messages[-1]['content']]}"


class HaikuAgent(AsyncPersistentAgent, name="haiku"):
    """Writes haiku. The declared fields are what is kept besides the conversation."""

    collection: dict[str, str] = {}

    async def ask(self, subject: str) -> str:
        """A haiku on a subject; when it is returned, it is saved."""
        poem = await self.answer(subject)
        await self.save()
        return poem

    async def answer(self, subject: str) -> str:
        question = {"role": "user", "content": subject}
        poem = await Model().write([*await self.conversation.window(max_tokens=2000), question])
        with self.change_block():  # no save in the background sees half of it
            self.conversation.extend([question, {"role": "assistant", "content": poem}])
            self.collection[subject] = poem
        return poem


async def main(directory: Path) -> None:
    """Two poems, an end, and a third one."""
    url = f"sqlite:///{(directory / 'agents.db').as_posix()}"
    async with holdfast.aopen(url) as store:
        agent = HaikuAgent(form="5-7-5").attach(store, "basho")
        await agent.start()
        for subject in ("tides", "kelp"):
            print(await agent.ask(subject))
        await agent.stop()

    async with holdfast.aopen(url) as store:  # another day, another process: the id is all that is needed
        agent = await store.agents.restore("basho")
        await agent.start()
        print(f"back, in the form {agent.configuration['form']}, with {len(agent.conversation)} messages")
        print(await agent.ask("git"))
        print("collected:", ", ".join(agent.collection))
        await agent.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
