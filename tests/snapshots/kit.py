"""Objects to take snapshots of: a scripted model, tools, middleware."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, before_model, wrap_model_call
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, tool
from pydantic import BaseModel, SecretStr

from holdfast.agents.snapshots import container
from holdfast.agents.snapshots.header import FORMAT, VERSION, PayloadInfo, SnapshotHeader

KEY = "sk-do-not-tell-4711"
SECRETS = {"SCRIPTED_API_KEY": KEY}


class Scripted(BaseChatModel):
    """Says its lines in turn: which one, the messages tell. `call add` has a tool called."""

    lines: list[str]
    api_key: SecretStr | None = None
    headers: dict[str, Any] = {}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "SCRIPTED_API_KEY"}

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[each["type"] if isinstance(each, dict) else each.name for each in tools])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        number = sum(message.type == "ai" for message in messages)
        line = self.lines[number % len(self.lines)]
        if line.startswith("call "):
            name = line.removeprefix("call ")
            call = {"name": name, "args": {"a": number, "b": len(messages)}, "id": f"call-{number}"}
            said = AIMessage("", tool_calls=[call])
        else:
            said = AIMessage(f"{line} ({len(messages)} heard, tools {kwargs.get('tools', [])})")
        return ChatResult(generations=[ChatGeneration(message=said)])


class Unserializable(Scripted):
    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool("add")
def other_add(a: int, b: int, c: int = 0) -> int:
    """Add three numbers."""
    return a + b + c


@before_model
def look(state: AgentState[Any], runtime: Any) -> None:
    """Look, and do nothing."""


@wrap_model_call
def wrap(request: Any, handler: Callable[[Any], Any]) -> Any:
    """Hand on."""
    return handler(request)


@wrap_model_call
def wrap_too(request: Any, handler: Callable[[Any], Any]) -> Any:
    """Hand on as well."""
    return handler(request)


class Toolbox(AgentMiddleware[Any, Any]):
    """Brings a tool."""

    tools: Sequence[BaseTool] = [add]


class Prefix(AgentMiddleware[Any, Any]):
    """Has a setting, and counts."""

    def __init__(self, prefix: Any) -> None:
        super().__init__()
        self._prefix = prefix
        self.calls = 0

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self.calls += 1
        return handler(request)


class Weather(BaseModel):
    """The weather."""

    sky: str
    degrees: float


def lines_of(path: Path) -> list[Any]:
    """The lines of a snapshot, as `zcat` shows them."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def header_of(content: PayloadInfo, **changes: Any) -> SnapshotHeader:
    """A header, in order but for the changes."""
    fields: dict[str, Any] = {
        "id": "0123456789abcdef" * 2,
        "format": FORMAT,
        "version": VERSION,
        "kind": "langchain",
        "type": "HumanMessage",
        "name": "",
        "time": "2026-01-02T03:04:05+00:00",
        "description": "",
        "versions": {"holdfast": "0.1.0"},
        "secrets": (),
        "classes": (),
        "tools": (),
        "middleware": (),
        "content": content,
    }
    return SnapshotHeader(**{**fields, **changes})


def forged(document: Any, **changes: Any) -> bytes:
    """A file that is sealed as it should be, and holds whatever somebody wants."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return container.build(content, lambda about: header_of(about, **changes))


def elsewhere(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, and tell it where a snapshot is."""
    return subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def set_at(*keys: Any, to: Any) -> Callable[[Any], None]:
    """Changes what is at a place of a document."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    change.__qualname__ = f"{'.'.join(map(str, keys))} = {to!r}"
    return change
