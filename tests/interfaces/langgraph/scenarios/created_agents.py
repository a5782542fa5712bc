"""Agents of `create_agent` with middleware, and deep agents with files, todos and subagents."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    after_model,
    before_model,
    dynamic_prompt,
    wrap_tool_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel

from tests.interfaces.langgraph.scenarios.chat_models import ScriptedModel, calls, scripted
from tests.interfaces.langgraph.sessions import Session, on, program


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def asked(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


@program
async def an_agent_with_tools(s: Session) -> None:
    both = calls(("weather", {"city": "Kiel"}), ("weather", {"city": "Bergen"}))
    graph = create_agent(scripted(both, "rain"), [weather], system_prompt="Be brief.", checkpointer=s.saver)
    await s.run("one", graph, asked("weather?"), on("t"))
    await s.run("stops", graph, asked("and now?"), on("t"), interrupt_before=["tools"])
    await s.update(graph, on("t"), {"messages": [ToolMessage("by hand", tool_call_id="call-0-0")]}, as_node="tools")
    await s.run("goes on", graph, None, on("t"))
    await s.audit(graph, "t", ask=False)


class Steps(AgentState[Any]):
    steps: NotRequired[int]
    marks: NotRequired[dict[str, list[str]]]


class CountSteps(AgentMiddleware[Steps, Any]):
    """Counts the calls of the model in a channel of its own."""

    state_schema = Steps

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"steps": state.get("steps", 0) + 1}

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"marks": {"ended": [str(state["steps"])]}}


@program
async def middleware_of_ones_own(s: Session) -> None:
    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"Step {request.state['steps']}."

    @after_model(can_jump_to=["end"])
    def stop(state: Any, runtime: Any) -> dict[str, Any] | None:
        return {"jump_to": "end"} if state["messages"][-1].text.startswith("stop") else None

    @before_model
    def shout(state: Any, runtime: Any) -> dict[str, Any] | None:
        last = state["messages"][-1]
        if last.type != "human" or last.text.isupper():
            return None
        return {"messages": [last.model_copy(update={"content": last.text.upper()})]}

    @wrap_tool_call
    def log_tool(request: Any, handler: Any) -> Any:
        result = handler(request)
        return result.model_copy(update={"content": f"[{result.content}]"})

    @wrap_tool_call
    async def alog_tool(request: Any, handler: Any) -> Any:
        result = await handler(request)
        return result.model_copy(update={"content": f"[{result.content}]"})

    middleware: list[Any] = [CountSteps(), prompt, shout, stop, alog_tool if s.asynchronous else log_tool]
    model = scripted(calls(("weather", {"city": "Kiel"})), "stop here")
    graph = create_agent(model, [weather], middleware=middleware, checkpointer=s.saver)
    await s.run("one", graph, asked("weather?"), on("t"))
    await s.run("two", graph, asked("and now?"), on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def summaries_by_middleware(s: Session) -> None:
    middleware = SummarizationMiddleware(scripted("all was said"), trigger=("messages", 4), keep=("messages", 2))
    graph = create_agent(scripted("well"), [], middleware=[middleware], checkpointer=s.saver)
    for number in range(4):
        await s.run(f"turn {number}", graph, asked(f"word {number}"), on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def limits_by_middleware(s: Session) -> None:
    model = ScriptedModel(answer=lambda messages: calls(("weather", {"city": "Kiel"}), number=len(messages)))
    middleware: list[Any] = [
        ModelCallLimitMiddleware(run_limit=3, thread_limit=5),
        ToolCallLimitMiddleware(tool_name="weather", run_limit=2),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=1)]),
        PIIMiddleware("email", strategy="redact"),
    ]
    graph = create_agent(model, [weather], middleware=middleware, checkpointer=s.saver)
    await s.run("until the limit of a run", graph, asked("I am ann@example.org"), on("t"))
    await s.run("until the limit of the thread", graph, asked("again"), on("t"))
    await s.run("nothing more", graph, asked("and again"), on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def tools_and_models_that_fail(s: Session) -> None:
    tries: list[str] = []

    @tool
    def flaky(name: str) -> str:
        """Fail at first."""
        tries.append(name)
        if len(tries) % 3:
            raise ConnectionError("not yet")
        return f"{name} at last"

    def broken(messages: list[BaseMessage]) -> AIMessage:
        raise RuntimeError("the model is down")

    fallback = ModelFallbackMiddleware(scripted(calls(("flaky", {"name": "kelp"})), "done"))
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0.0, backoff_factor=0.0, jitter=False)
    graph = create_agent(ScriptedModel(answer=broken), [flaky], middleware=[fallback, retry], checkpointer=s.saver)
    await s.run("one", graph, asked("go"), on("t"))
    await s.run("two", graph, asked("again"), on("t"))
    s.note("tries", tries)
    alone = create_agent(ScriptedModel(answer=broken), [], checkpointer=s.saver)
    await s.run("nothing helps", alone, asked("go"), on("u"))
    await s.audit(graph, "t", ask=False)
    await s.audit(alone, "u", ask=False)


class Forecast(BaseModel):
    """A forecast."""

    city: str
    rain: float
    days: list[int] = []


@program
async def structured_answers(s: Session) -> None:
    wrong = calls(("Forecast", {"city": "Kiel", "rain": "much"}))
    right = calls(("Forecast", {"city": "Kiel", "rain": 0.9, "days": [1, 2]}), number=1)
    graph = create_agent(
        scripted(wrong, right), [weather], response_format=ToolStrategy(Forecast), checkpointer=s.saver
    )
    await s.run("one", graph, asked("forecast?"), on("t"))
    await s.run("two", graph, asked("and again?"), on("t"))
    await s.audit(graph, "t", ask=False)


def merge_files(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The reducer of deep agents: a file that is None is deleted."""
    merged = {**(old or {}), **new}
    return {name: content for name, content in merged.items() if content is not None}


class Files(AgentState[Any]):
    files: NotRequired[Annotated[dict[str, dict[str, Any]], merge_files]]


@tool
def write_file(path: str, content: str, runtime: ToolRuntime) -> Command[Any]:
    """Write a file."""
    file = {"content": content.split("\n"), "size": len(content)}
    done = ToolMessage(f"wrote {path}", tool_call_id=str(runtime.tool_call_id))
    return Command(update={"files": {path: file}, "messages": [done]})


@tool
def delete_file(path: str, runtime: ToolRuntime) -> Command[Any]:
    """Delete a file."""
    done = ToolMessage(f"deleted {path}", tool_call_id=str(runtime.tool_call_id))
    return Command(update={"files": {path: None}, "messages": [done]})


@tool
def read_file(path: str, runtime: ToolRuntime) -> str:
    """Read a file."""
    file = runtime.state.get("files", {}).get(path)
    if runtime.store is not None:
        runtime.store.put(("reads",), path, {"found": file is not None})
    return "\n".join(file["content"]) if file else f"no {path}"


class FilesMiddleware(AgentMiddleware[Files, Any]):
    """Brings the files and their tools, as the middleware of deep agents does."""

    state_schema = Files
    tools = [write_file, delete_file, read_file]


def subagent(s: Session) -> Any:
    """A tool that has another agent work on the files, and takes over what it left."""
    script = scripted(calls(("write_file", {"path": "/report.md", "content": "# Kelp\nit grows"})), "reported")
    inner: Any = create_agent(script, [], middleware=[FilesMiddleware()], name="researcher")

    def given(description: str, runtime: ToolRuntime) -> dict[str, Any]:
        return {**asked(description), "files": runtime.state.get("files", {})}

    def taken(result: dict[str, Any], runtime: ToolRuntime) -> Command[Any]:
        said = ToolMessage(result["messages"][-1].text, tool_call_id=str(runtime.tool_call_id))
        return Command(update={"files": result["files"], "messages": [said]})

    @tool("task")
    def run_task(description: str, runtime: ToolRuntime) -> Command[Any]:
        """Have a subagent do a task."""
        return taken(inner.invoke(given(description, runtime)), runtime)

    @tool("task")
    async def arun_task(description: str, runtime: ToolRuntime) -> Command[Any]:
        """Have a subagent do a task."""
        return taken(await inner.ainvoke(given(description, runtime)), runtime)

    return arun_task if s.asynchronous else run_task


@program
async def a_deep_agent_with_files(s: Session) -> None:
    todos = [{"content": "research", "status": "in_progress"}, {"content": "write", "status": "pending"}]
    finished = [{**each, "status": "completed"} for each in todos]
    model = scripted(
        calls(("write_todos", {"todos": todos}), number=1),
        calls(("write_file", {"path": "/notes.md", "content": "a\nb"}), ("task", {"description": "kelp"}), number=2),
        calls(("read_file", {"path": "/report.md"}), ("delete_file", {"path": "/notes.md"}), number=3),
        calls(("write_todos", {"todos": finished}), number=4),
        "all is done",
    )
    middleware: list[Any] = [TodoListMiddleware(), FilesMiddleware()]
    graph = create_agent(
        model, [subagent(s)], middleware=middleware, checkpointer=s.saver, store=InMemoryStore(), name="deep"
    )
    await s.run(
        "one", graph, {**asked("report on kelp"), "files": {"/given.md": {"content": ["x"], "size": 1}}}, on("t")
    )
    await s.run("stops", graph, asked("again"), on("t"), interrupt_after=["model"])
    await s.update(graph, on("t"), {"files": {"/by hand.md": {"content": [], "size": 0}, "/given.md": None}})
    await s.run("goes on", graph, None, on("t"))
    await s.audit(graph, "t", ask=False)
