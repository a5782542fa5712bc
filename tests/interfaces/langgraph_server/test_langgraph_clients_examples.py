"""The examples that LangGraph publishes for its Python client: those of its README and of its reference, which is made
from the docstrings of the package that is installed. They run as they are, but for what a reader of them has to fill
in, and slips of the text (`_mended`)."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk import _async, _sync, get_client
from langgraph_sdk._async import client as _async_client
from langgraph_sdk.errors import UnprocessableEntityError

import holdfast
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Chat, Clients, serving

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ELSEWHERE = ("threads.join_stream", "threads.stream(")
"""What the tests of the event protocol run."""

_NOT_CODE = ("async def my_node(...)", 'http://localhost:8123",\n    api_key=None')
"""A sketch of a node, and how to connect without a key."""


def _named(part: ModuleType) -> Iterator[tuple[str, str]]:
    for module in (each for _, each in sorted(vars(part).items()) if isinstance(each, ModuleType)):
        for kind_name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__:
                yield kind_name, inspect.getdoc(kind) or ""
                for name, method in inspect.getmembers(kind, inspect.isfunction):
                    yield f"{kind_name}.{name}", inspect.getdoc(method) or ""


def examples(part: ModuleType) -> list[tuple[str, str]]:
    """The examples of the asynchronous or the synchronous client, with the names of what they are of."""
    found = [*_named(part)]
    if part is _async:
        readme = metadata("langgraph-sdk").json["description"]
        found += [("README", str(readme)), ("get_client", inspect.getdoc(_async_client.get_client) or "")]
    blocks = [(name, textwrap.dedent(block)) for name, doc in found for block in _BLOCK.findall(doc)]
    return [(name, block) for name, block in blocks if not any(each in block for each in (*_ELSEWHERE, *_NOT_CODE))]


def _mended(text: str, *, is_async: bool, made: dict[str, str]) -> str:
    """Return an example with what a reader fills in, and without the slips of the text: quotes and brackets that are
    missing where the client is made, results below the code, and awaits in examples of the synchronous client."""
    text = text.partition("\n-----")[0]
    text = re.sub(r"^client = get_(sync_)?client\(.*$", "", text, flags=re.MULTILINE)
    if not is_async:
        text = re.sub(r"\b(async|await) ", "", text)
    for name, id in made.items():  # those that a server makes
        text = text.replace(f'"{name}"', f'"{id}"')
    return text


def agent() -> Any:
    """A graph with the nodes that the examples name."""
    builder: Any = StateGraph(Chat)
    builder.add_sequence([("my_node", lambda _: {"log": ["mine"]}), ("node_to_stop_before_1", lambda _: {"log": []})])
    builder.add_edge(START, "my_node")
    return builder.compile(name="agent")


THREADS = ("thread", "thread_1", "thread_2", "thread_123", "thread_456", "my_thread_id", "my-thread-id", "thread_id")
RUN_THREADS = ("thread_id_to_cancel", "thread_id_to_delete", "thread_id_to_join")
ASSISTANTS = ("assistant_id_123", "my_assistant_id", "some_uuid", "asst_123", "asst_456")
UPDATED = "e280dad7-8618-443f-87f1-8e41841c180f"


def prepare(clients: Clients, text: str) -> dict[str, str]:
    """Make what an example names. Returns the ids that the server has made for its names."""
    client = clients.owner
    for each in (*ASSISTANTS, UPDATED):
        if each in text:
            client.assistants.create("agent", assistant_id=each, if_exists="do_nothing", metadata={"name": "my_name"})
    if "version=3" in text:
        for number in range(2):
            client.assistants.update("my_assistant_id", metadata={"number": number})
    for each in (*THREADS, *RUN_THREADS):
        if f'"{each}"' in text:
            client.threads.create(thread_id=each, graph_id="agent", if_exists="do_nothing")
    if 'if_exists="raise"' in text:
        client.threads.delete("my-thread-id")
    made = {}
    for each in ("run_id_to_cancel", "run_id_to_delete", "run_id_to_join"):
        if each in text:
            thread = each.replace("run", "thread")
            if thread not in text:
                thread = "thread_id_to_delete"
            run = client.runs.create(thread, "agent", input=HELLO, stream_mode=["values", "debug"])
            if "cancel" not in each:
                client.runs.join(thread, run["run_id"])
            made[each] = run["run_id"]
    if "my_checkpoint_id" in text:
        done = client.threads.update_state("my_thread_id", HELLO, as_node="my_node")
        made["my_checkpoint_id"] = str(done["checkpoint"]["checkpoint_id"])
    for each in ("cron_to_delete", "1ef3cefa-4c09-6926-96d0-3dc97fd5e39b"):
        if each in text:
            made[each] = client.crons.create("agent", schedule="0 9 * * *")["cron_id"]  # type: ignore[typeddict-item]
    if "get_item" in text:
        client.store.put_item(["documents", "user123"], "item456", {"title": "My Document"})
    return made


async def run(text: str, client: Any) -> dict[str, Any]:
    """Run an example. Returns its names."""
    code: CodeType = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"client": client}
    if inspect.isawaitable(found := FunctionType(code, names)()):
        await found
    for each in names.values():
        if inspect.iscoroutine(each):  # one of the examples does not await its call
            await each
    return names


def run_all(clients: Clients, part: ModuleType) -> list[str]:
    """Run all examples. Returns the names of what they are of."""
    is_async = part is _async

    async def all_of_them() -> list[str]:
        async with get_client(url=clients.served.url, api_key=clients.served.token, timeout=SECONDS) as client:
            ran = []
            for name, block in examples(part):
                made = await asyncio.to_thread(prepare, clients, block)
                text = _mended(block, is_async=is_async, made=made)
                used = client if is_async else clients.owner
                if "feedback_keys" in text:  # they are for a service that is not used: this is refused, and says so
                    with pytest.raises(UnprocessableEntityError):
                        await run(text, used)
                    text = re.sub(r"^ *feedback_keys=.*\n", "", text, flags=re.MULTILINE)
                try:
                    await run(text, used)
                except Exception as error:
                    error.add_note(f"the example of {name}:\n{text}")
                    raise
                ran.append(name)
            return ran

    return asyncio.run(all_of_them())


@pytest.mark.filterwarnings("ignore:`checkpoint_during` is deprecated:DeprecationWarning")
@pytest.mark.time_limit(180)
@pytest.mark.nightly  # by day, every method is called by the suite
@pytest.mark.parametrize("part", [_async, _sync], ids=["async", "sync"])
def test_published_examples_run(tmp_path: Path, part: ModuleType) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"agent": agent, "other-graph": agent}) as clients:
        ran = run_all(clients, part)
    assert len(ran) >= 38
    assert len(set(ran)) >= 35
