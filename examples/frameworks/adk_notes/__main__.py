"""An agent of Google ADK with its session, its notes and its memory in one store.

The model is a class of this file, so no key is needed. Two sessions of one user share `user:` state; the second finds
in the memory what was said in the first. What a turn changed is one checkpoint of the session's thread.

    python -m examples.frameworks.adk_notes

It prints the answers, the state of the user, the log of the first session, and the versions of the note.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from google.genai import types

import holdfast
from holdfast.google_adk import HoldfastArtifactService, HoldfastMemoryService, HoldfastSessionService


class Model(BaseLlm):
    """Stands for a model: has the note written, and then confirms it."""

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002 - the answer is short
    ) -> AsyncGenerator[LlmResponse]:
        """Answer the last message."""
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=f"noted, {last.function_response.response['result']}")
        else:
            part = types.Part(function_call=types.FunctionCall(name="note", args={"text": last.text}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def note(text: str, tool_context: ToolContext) -> str:
    """Write a note."""
    tool_context.state["user:notes"] = tool_context.state.get("user:notes", 0) + 1
    version = await tool_context.save_artifact("user:note.txt", types.Part(text=text))
    return f"version {version}"


async def main() -> None:
    """Talk in two sessions."""
    with tempfile.TemporaryDirectory() as folder:
        async with holdfast.aopen(Path(folder) / "agents.db") as store:
            sessions, memory = HoldfastSessionService(store), HoldfastMemoryService(store)
            runner = Runner(
                app_name="notes",
                agent=LlmAgent(name="notary", model=Model(model="local"), tools=[note]),
                session_service=sessions,
                artifact_service=HoldfastArtifactService(store),
                memory_service=memory,
            )
            for id, text in (("one", "Kelp holds fast."), ("two", "Urchins eat kelp.")):
                await sessions.create_session(app_name="notes", user_id="ada", session_id=id)
                message = types.Content(role="user", parts=[types.Part(text=text)])
                async for event in runner.run_async(user_id="ada", session_id=id, new_message=message):
                    if event.content and event.content.parts and event.content.parts[-1].text:
                        print(event.content.parts[-1].text)
                session = await sessions.get_session(app_name="notes", user_id="ada", session_id=id)
                assert session is not None
                await memory.add_session_to_memory(session)
            print("state of ada:", await sessions.get_user_state(app_name="notes", user_id="ada"))
            print("steps:", [entry.kind for entry in await store.thread("adk/notes/ada/one").log()])
            found = await memory.search_memory(app_name="notes", user_id="ada", query="who holds fast?")
            print("found:", found.memories[0].content.parts[0].text)
            await runner.close()


if __name__ == "__main__":
    asyncio.run(main())
