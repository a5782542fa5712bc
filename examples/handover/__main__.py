"""A greeter hands a conversation to a haiku agent, in one atomic step.

The greeter is a plain class made durable by a decorator, and the poet an agent of its own; both are on asyncio here.
The poet is asked first: it refuses what it knows no haiku on, and then the greeter keeps what it had. Once it accepts,
the conversation is with the poet and no longer with the greeter, whatever process ends when.

    python -m examples.handover

It prints who holds how many messages, the poem that the conversation asked for, and the record of the transfers.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import holdfast
from examples.greeter.__main__ import Greeter
from examples.haiku.__main__ import LINES, HaikuAgent
from holdfast.agents import Offer


class Poet(HaikuAgent, name="poet"):
    """A haiku agent that takes conversations over."""

    def accepts(self, offer: Offer) -> bool:
        """Asked before anything is handed over."""
        return offer.context.get("subject") in LINES

    async def on_receive(self, offer: Offer) -> None:
        """Called when it has the conversation: it answers what it was asked."""
        await self.answer(offer.context["subject"])


async def hand_over(greeter: Any, poet: Poet, subject: str) -> None:
    """Have the greeter give the conversation away."""
    greeter.context["subject"] = subject
    try:
        await greeter.transfer(poet, reason=f"a haiku on {subject}")
    except holdfast.errors.DeniedError as refused:
        print("refused:", refused.what)
    print(f"{subject}: the greeter has {len(greeter.conversation)} messages, the poet {len(poet.conversation)}")


async def main(directory: Path) -> None:
    async with holdfast.aopen(f"sqlite:///{(directory / 'agents.db').as_posix()}") as store:
        greeter = await store.agents.create(Greeter, "door", greeting="Welcome")
        poet = Poet().attach(store, "basho")
        await greeter.start()
        await poet.start()
        greeter.conversation.append({"role": "assistant", "content": greeter.agent.greet("Ada")})
        greeter.conversation.append({"role": "user", "content": "Can I have a haiku?"})
        await hand_over(greeter, poet, "football")
        await hand_over(greeter, poet, "kelp")
        print((await poet.conversation.get(-1))["content"])
        for each in await store.agents.transfers("door"):
            print(f"{each.phase}: {each.reason}")
        await greeter.stop()
        await poet.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
