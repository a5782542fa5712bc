"""Chat models for programs: what they say follows from the messages alone, so that it is the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

Answer = Callable[[list[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """Answers with a function of the messages, word by word where a stream is asked for."""

    answer: Answer

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        answer = self.answer(messages)
        if answer.tool_calls:
            chunks = [
                tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
                for index, call in enumerate(answer.tool_calls)
            ]
            yield ChatGenerationChunk(message=AIMessageChunk(content=answer.content, tool_call_chunks=chunks))
            return
        for word in str(answer.content).split(" "):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def calls(*tools: tuple[str, dict[str, Any]], number: int = 0, text: str = "") -> AIMessage:
    """A message that calls tools."""
    made = [
        {"name": name, "args": arguments, "id": f"call-{number}-{index}", "type": "tool_call"}
        for index, (name, arguments) in enumerate(tools)
    ]
    return AIMessage(text, tool_calls=made)


def scripted(*answers: AIMessage | str) -> ScriptedModel:
    """A model that says its lines in turn: the number of answers since the last question tells which is next."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        said = 0
        for message in messages:
            said = 0 if message.type == "human" else said + (message.type == "ai")
        line = answers[said % len(answers)]
        return AIMessage(f"{line} ({len(messages)})") if isinstance(line, str) else line.model_copy(deep=True)

    return ScriptedModel(answer=answer)
