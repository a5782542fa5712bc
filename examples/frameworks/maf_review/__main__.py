"""A workflow of the Microsoft Agent Framework that asks a person, and goes on in another process.

No model is called, so no key is needed. The first workflow drafts and asks; its process "dies". A second one, with the
same store, finds the checkpoint, gets the answer, and publishes. Then an answer to the same question from an older
checkpoint opens a branch, and both ways are in the history of the thread.

    python -m examples.frameworks.maf_review

It prints what came out, the checkpoints, and the branches of the thread.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

import holdfast
from holdfast.agent_framework import HoldfastCheckpointStorage


@dataclass
class Question:
    """What a person is asked."""

    draft: str


class Editor(Executor):
    """Drafts a text, has it reviewed, and publishes it."""

    @handler
    async def draft(self, topic: str, ctx: WorkflowContext[str, str]) -> None:
        """Draft a text, and ask."""
        await ctx.request_info(Question(f"{topic} holds fast"), str)

    @response_handler
    async def publish(self, question: Question, answer: str, ctx: WorkflowContext[str, str]) -> None:
        """Publish what was reviewed."""
        await ctx.yield_output(f"{question.draft}: {answer}")


def build(store: holdfast.AsyncStore) -> Workflow:
    """Build the workflow, as each process does."""
    editor = Editor(id="editor")
    storage = HoldfastCheckpointStorage(store)
    return WorkflowBuilder(
        name="review", start_executor=editor, checkpoint_storage=storage, output_from=[editor]
    ).build()


async def main() -> None:
    """Draft in one process, and answer in others."""
    with tempfile.TemporaryDirectory() as folder:
        async with holdfast.aopen(Path(folder) / "agents.db") as store:
            await build(store).run("Kelp")
        async with holdfast.aopen(Path(folder) / "agents.db") as store:
            storage = HoldfastCheckpointStorage(store)
            asked = await storage.get_latest(workflow_name="review")
            assert asked is not None
            (question,) = asked.pending_request_info_events
            for answer in ("fine", "too short"):
                result = await build(store).run(checkpoint_id=asked.checkpoint_id, responses={question: answer})
                print(result.get_outputs())
            print(len(await storage.list_checkpoint_ids(workflow_name="review")), "checkpoints")
            print([branch.name for branch in await store.thread("review").branches()][:1])


if __name__ == "__main__":
    asyncio.run(main())
