"""Chat models and tools that answer from a recording, in the process of a replay.

Their own code is replaced where a provider would be called; LangChain's around it runs, with its callbacks.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessageChunk, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from holdfast.interfaces.langgraph.recorder import decode_chunks
from holdfast.recording.journal import Call, block_if_cancelled, restore_error, wait_if_cancelled

FindCall = Callable[[Any], Call]
"""Returns the recorded call that answers a run of LangChain's, given its run manager."""


def patch_classes(find: FindCall) -> None:
    """Make all chat models and tools of this process answer from a recording, for good."""
    prepared: set[type] = set()

    def prepare(instance: Any, replacements: dict[str, Any], base: type) -> None:
        cls = type(instance)
        if cls in prepared:
            return
        prepared.add(cls)
        streams = {
            name for name in ("_stream", "_astream") if getattr(cls, name, None) is not getattr(base, name, None)
        }
        if "_stream" in streams:
            streams.add("_astream")  # which calls the other by default
        for name, function in replacements.items():
            if "stream" not in name or name in streams:
                setattr(cls, name, function)

    def wrap(base: type, name: str, replacements: dict[str, Any]) -> None:
        original = getattr(base, name)

        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            prepare(self, replacements, base)
            if base is BaseChatModel:  # no provider is called, and none of its answers is cached
                self.rate_limiter, self.cache = None, False
            return original(self, *args, **kwargs)

        setattr(base, name, call)

    for name in ("generate", "agenerate", "stream", "astream"):
        wrap(BaseChatModel, name, _model_methods(find))
    for name in ("run", "arun"):
        wrap(BaseTool, name, _tool_methods(find))


def _raise_error(call: Call) -> None:
    if call.error is None:
        return
    error = restore_error(call.error)
    if isinstance(error, GraphInterrupt) and error.args and error.args[0]:
        interrupt(error.args[0][0].value)  # with the id that it has in this run
    raise error


def _raise_unless_closed(call: Call) -> None:
    """Raise the error of a stream; whoever closed it early does so again."""
    if call.error is not None and not isinstance(restore_error(call.error), GeneratorExit):
        _raise_error(call)


def _model_methods(find: FindCall) -> dict[str, Any]:
    def result_of(call: Call) -> ChatResult:
        _raise_error(call)
        message = copy.deepcopy(call.result)
        if isinstance(message, BaseMessageChunk):
            message = message_chunk_to_message(message)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def generate(*_: Any, run_manager: Any = None, **__: Any) -> ChatResult:
        call = find(run_manager)
        block_if_cancelled(call)
        return result_of(call)

    async def agenerate(*_: Any, run_manager: Any = None, **__: Any) -> ChatResult:
        call = find(run_manager)
        await wait_if_cancelled(call)
        return result_of(call)

    def chunks_of(call: Call) -> Iterator[ChatGenerationChunk]:
        result = copy.deepcopy(call.result)
        if call.chunks:
            for chunk in decode_chunks(copy.deepcopy(call.chunks), result):
                yield ChatGenerationChunk(message=chunk)
        elif call.error is None:
            fields = {name: value for name, value in result.__dict__.items() if name != "type"}
            yield ChatGenerationChunk(message=AIMessageChunk(**fields))

    def stream(*_: Any, run_manager: Any = None, **__: Any) -> Iterator[ChatGenerationChunk]:
        call = find(run_manager)
        yield from chunks_of(call)
        block_if_cancelled(call)
        _raise_unless_closed(call)

    async def astream(*_: Any, run_manager: Any = None, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        call = find(run_manager)
        for chunk in chunks_of(call):
            yield chunk
        await wait_if_cancelled(call)
        _raise_unless_closed(call)

    return {"_generate": generate, "_agenerate": agenerate, "_stream": stream, "_astream": astream}


def _tool_methods(find: FindCall) -> dict[str, Any]:
    def result_of(tool: Any, call: Call) -> Any:
        _raise_error(call)
        result = copy.deepcopy(call.result)
        return (result, None) if tool.response_format == "content_and_artifact" else result

    def run(self: Any, *args: Any, run_manager: Any = None, **kwargs: Any) -> Any:  # noqa: ARG001
        call = find(run_manager)
        block_if_cancelled(call)
        return result_of(self, call)

    async def arun(self: Any, *args: Any, run_manager: Any = None, **kwargs: Any) -> Any:  # noqa: ARG001
        call = find(run_manager)
        await wait_if_cancelled(call)
        return result_of(self, call)

    return {"_run": run, "_arun": arun}
