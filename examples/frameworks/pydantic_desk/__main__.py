"""An order desk of Pydantic AI: its conversation is in a store, and a worker's death calls no tool twice.

The model is a function, so no key is needed. The desk is asked twice, and remembers the first question. Then an order
is paid in a run; the worker "dies" after the payment, and another one goes on: the recorded payment is returned.

    python -m examples.frameworks.pydantic_desk

It prints the answers, the conversation as any interface of the store shows it, and how often was paid.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast.pydantic_ai import HoldfastConversationStore, HoldfastDurability

payments: list[str] = []


def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Stand for a model: pay if asked to, and otherwise count the questions."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(f"paid: {last.content}")])
    if isinstance(last, UserPromptPart) and "pay" in str(last.content):
        return ModelResponse([ToolCallPart("pay", {"order": "42"}, tool_call_id="call-1")])
    asked = sum(isinstance(part, UserPromptPart) for message in messages for part in message.parts)
    return ModelResponse([TextPart(f"question {asked}")])


desk = Agent(FunctionModel(answer), name="desk", capabilities=[HoldfastDurability()])


@desk.tool_plain
def pay(order: str) -> str:
    """Pay an order."""
    payments.append(order)  # stands for a call of a payment service
    return f"receipt of {order}"


died: list[str] = []


@holdfast.workflow
async def sell(order: str) -> str:
    """Have the desk pay an order."""
    result = await desk.run(f"pay {order}")
    if not died:
        died.append(order)
        raise ConnectionError("the worker lost its network")
    answered: str = result.output
    return answered


async def main() -> None:
    """Talk, and sell."""
    with tempfile.TemporaryDirectory() as folder:
        async with holdfast.aopen(Path(folder) / "agents.db") as store:
            conversations = HoldfastConversationStore(store)
            for question in ("What is a holdfast?", "And who eats it?"):
                conversation = await conversations.load("chat-1") or Conversation(conversation_id="chat-1")
                result = await desk.run(question, conversation=conversation)
                await conversations.save(result)
                print(result.output)
            for entry in await store.thread("chat-1").log():
                print(f"step {entry.step} of chat-1, from {entry.metadata['framework']}")

            run = await store.runs.submit(None, ["order-42"], graph=sell)
            async with store.worker(sell):
                run = await store.runs.wait(run.id, timeout=60)
            print(f"{run.state} after {run.attempts} attempts: {run.result}; payments: {len(payments)}")


if __name__ == "__main__":
    asyncio.run(main())
