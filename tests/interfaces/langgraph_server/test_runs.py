"""Runs of a served store by LangGraph's own client: submitted, streamed, awaited, answered, cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import ToolException, tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph_sdk import get_client, schema
from langgraph_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableEntityError,
)

import holdfast
from holdfast.interfaces.langgraph_server import runs as served_runs
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Chat, Clients, logged, serving, values_of

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


def new_thread(clients: Clients, **fields: Any) -> str:
    """A new thread of the owner."""
    return clients.owner.threads.create(**fields)["thread_id"]


def until(true: Callable[[], Any]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_is_submitted_and_joined(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    made = runs.create(thread, "support", input=HELLO, metadata={"n": 1})
    msgspec.convert(made, schema.Run)
    assert (made["status"], made["thread_id"], made["metadata"]) == ("pending", thread, {"n": 1})
    assert made["assistant_id"] == clients.owner.assistants.get("support")["assistant_id"]
    values: Any = runs.join(thread, made["run_id"])
    assert [each["content"] for each in values["messages"]] == ["hello", "You said hello"]
    assert runs.get(thread, made["run_id"])["status"] == "success"
    assert [each["run_id"] for each in runs.list(thread)] == [made["run_id"]]
    assert runs.list(thread, status="error") == []
    found: Any = clients.owner.threads.get(thread)
    assert (found["status"], found["metadata"]["graph_id"]) == ("idle", "support")
    assert clients.owner.threads.get_history(thread, metadata={"n": 1})
    with pytest.raises(NotFoundError):
        runs.get(new_thread(clients), made["run_id"])
    runs.delete(thread, made["run_id"])
    with pytest.raises(NotFoundError):
        runs.get(thread, made["run_id"])


def test_a_run_is_awaited(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    values: Any = runs.wait(thread, "support", input=HELLO, context={"tone": "kindly"})
    assert values["log"] == ["planned kindly", "replied"]


def test_an_assistant_configures_a_run(clients: Clients) -> None:
    made = clients.owner.assistants.create("support", context={"tone": "gruffly"})
    values: Any = clients.owner.runs.wait(new_thread(clients), made["assistant_id"], input=HELLO)
    assert values["log"][0] == "planned gruffly"


def test_a_question_is_answered_by_another_run(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    values: Any = runs.wait(thread, "approval", input=HELLO)
    assert values["__interrupt__"][0]["value"] == {"question": "Who approves?"}
    assert clients.owner.threads.get(thread)["status"] == "interrupted"
    assert runs.list(thread)[0]["status"] == "interrupted"
    after: Any = runs.wait(thread, "approval", command={"resume": "Ada"})
    assert after["log"] == ["planned plainly", "approved by Ada", "replied"]
    assert clients.owner.threads.get(thread)["status"] == "idle"
    assert [each.kind for each in clients.store.thread(thread).log()][-1] == "input"


def test_a_command_changes_the_state_and_goes_elsewhere(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    runs.wait(thread, "support", input=HELLO)
    command: Any = {"update": {"log": ["by command"]}, "goto": "reply"}
    values: Any = runs.wait(thread, "support", command=command)
    assert values["log"] == ["planned plainly", "replied", "by command", "replied"]
    sent: Any = {"goto": [{"node": "reply", "input": {"messages": [{"role": "user", "content": "sent"}]}}]}
    with pytest.raises(Exception, match="AttributeError"):  # what is sent to a node is not coerced: these are dicts
        runs.wait(thread, "support", command=sent)
    unknown: Any = {"unknown": 1}
    with pytest.raises(BadRequestError):
        runs.create(thread, "approval", command=unknown)


def test_a_run_stops_before_and_after_nodes(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    runs.wait(thread, "support", input=HELLO, interrupt_before=["reply"])
    assert clients.owner.threads.get_state(thread)["next"] == ["reply"]
    values: Any = runs.wait(thread, "support")
    assert values["log"] == ["planned plainly", "replied"]
    other = new_thread(clients)
    runs.wait(other, "support", input=HELLO, interrupt_after="*")
    assert clients.owner.threads.get_state(other)["next"] == ["reply"]


def test_a_run_begins_at_an_earlier_checkpoint(clients: Clients) -> None:
    runs, threads, thread = clients.owner.runs, clients.owner.threads, new_thread(clients)
    runs.wait(thread, "support", input=HELLO)
    before = threads.get_history(thread)
    (planned,) = [each for each in before if each["next"] == ["reply"]]
    runs.wait(thread, "support", input=None, checkpoint=planned["checkpoint"])
    after = threads.get_state(thread)
    assert after["next"] == []
    forked: Any = threads.get_state(thread, checkpoint=after["parent_checkpoint"])
    assert forked["metadata"]["source"] == "fork"
    assert forked["parent_checkpoint"]["checkpoint_id"] == planned["checkpoint"]["checkpoint_id"]
    edited: Any = {"messages": [{"role": "user", "content": "goodbye"}]}
    runs.wait(thread, "support", input=edited, checkpoint_id=before[-1]["checkpoint"]["checkpoint_id"])
    assert values_of(threads, thread)["messages"][-1]["content"] == "You said goodbye"


def test_parts_of_a_run_are_streamed(clients: Clients) -> None:
    thread = new_thread(clients)
    modes: Any = ["values", "updates", "custom", "messages-tuple", "debug", "tasks", "checkpoints"]
    parts = list(clients.owner.runs.stream(thread, "support", input=HELLO, stream_mode=modes))
    assert parts[0].event == "metadata"
    kinds = {each.event for each in parts}
    assert kinds == {"metadata", "values", "updates", "custom", "messages", "debug", "tasks", "checkpoints"}
    updates = [each.data for each in parts if each.event == "updates"]
    assert [list(each) for each in updates] == [["plan"], ["reply"]]
    assert [each.data for each in parts if each.event == "custom"] == [{"progress": "planning"}]
    last = [each.data for each in parts if each.event == "values"][-1]
    assert last["log"] == ["planned plainly", "replied"]
    message, metadata = next(each.data for each in parts if each.event == "messages")
    assert (message["content"], metadata["langgraph_node"]) == ("You said hello", "reply")
    numbers = [int(each.id or 0) for each in parts]
    assert numbers == list(range(len(parts)))


def test_messages_come_whole(clients: Clients) -> None:
    parts = list(clients.owner.runs.stream(new_thread(clients), "support", input=HELLO, stream_mode="messages"))
    assert [each.event for each in parts] == ["metadata", "messages/metadata", "messages/complete"]
    assert parts[-1].data[0]["content"] == "You said hello"


def test_events_are_streamed(clients: Clients) -> None:
    modes: Any = ["events", "values"]
    parts = list(clients.owner.runs.stream(new_thread(clients), "support", input=HELLO, stream_mode=modes))
    names = {each.data["event"] for each in parts if each.event == "events"}
    assert {"on_chain_start", "on_chain_stream", "on_chain_end"} <= names
    assert [each.data["log"] for each in parts if each.event == "values"][-1] == ["planned plainly", "replied"]


def test_subgraphs_are_streamed(clients: Clients) -> None:
    thread = new_thread(clients)
    options: Any = {"input": HELLO, "stream_mode": "updates"}
    parts = list(clients.owner.runs.stream(thread, "nested", stream_subgraphs=True, **options))
    assert any(each.event.startswith("updates|inner:") for each in parts)
    outer = list(clients.owner.runs.stream(thread, "nested", command={"resume": "Ada"}, stream_mode="updates"))
    assert {each.event for each in outer} == {"metadata", "updates"}


def test_a_stream_goes_on_after_the_last_part(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    modes: Any = ["updates", "values"]
    made = runs.create(thread, "support", input=HELLO, stream_mode=modes)
    whole = list(runs.join_stream(thread, made["run_id"]))
    assert len(whole) > 4
    for seen in whole:
        rest = list(runs.join_stream(thread, made["run_id"], last_event_id=seen.id))
        assert [each.id for each in rest] == [each.id for each in whole[whole.index(seen) + 1 :]] or seen.id == "0"
    only = list(runs.join_stream(thread, made["run_id"], stream_mode="updates"))
    assert [each.event for each in only] == ["metadata", "updates", "updates"]
    with pytest.raises(BadRequestError):
        list(runs.join_stream(thread, made["run_id"], last_event_id="x"))


def test_a_failure_is_told(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    bad = {"messages": 5}
    parts = list(runs.stream(thread, "support", input=bad))
    assert parts[-1].event == "error"
    with pytest.raises(Exception, match=parts[-1].data["error"]):
        runs.wait(thread, "support", input=bad)
    assert runs.list(thread, status="error")
    assert clients.owner.threads.search(ids=[thread])
    with pytest.raises(BadRequestError):  # what a graph cannot read is no fault of the server
        clients.owner.threads.update_state(thread, {"log": 5}, as_node="plan")


# Several runs of a thread -----------------------------------------------------------------------------------------


def slow(clients: Clients, thread: str, seconds: float = 30.0) -> str:
    """Begin a run that takes long, and wait until it is being done. It is cancelled by the test."""
    made = clients.owner.runs.create(thread, "support", input={**HELLO, "pause": seconds}, stream_mode="custom")
    until(lambda: clients.owner.runs.get(thread, made["run_id"])["status"] == "running")
    return made["run_id"]


def test_runs_of_a_busy_thread(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    first = slow(clients, thread, 2.0)
    assert clients.owner.threads.get(thread)["status"] == "busy"
    assert [each["thread_id"] for each in clients.owner.threads.search(status="busy")] == [thread]
    with pytest.raises(ConflictError):
        runs.create(thread, "support", input=HELLO, multitask_strategy="reject")
    second = runs.create(thread, "support", input=HELLO, multitask_strategy="enqueue")
    assert runs.get(thread, second["run_id"])["status"] == "pending"
    runs.join(thread, second["run_id"])
    assert runs.get(thread, first)["status"] == "success"


def test_a_run_interrupts_another(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    first = slow(clients, thread, 2.0)
    second: Any = runs.wait(thread, "support", input=HELLO, multitask_strategy="interrupt")
    assert "replied" in second["log"]
    assert runs.get(thread, first)["status"] == "interrupted"


def test_a_run_rolls_another_back(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients, metadata={"user": "ada"})
    runs.wait(thread, "support", input=logged("kept"))
    before = values_of(clients.owner.threads, thread)["log"]
    first = slow(clients, thread, 2.0)
    until(lambda: values_of(clients.owner.threads, thread).get("pause") == 2.0)
    values: Any = runs.wait(thread, "support", input=logged("again"), multitask_strategy="rollback")
    assert values["log"] == [*before, "again", "planned plainly", "replied"]
    assert "pause" not in values
    with pytest.raises(NotFoundError):
        runs.get(thread, first)
    other = new_thread(clients, metadata={"user": "ada"})
    only = slow(clients, other, 2.0)
    until(lambda: len(clients.owner.threads.get_history(other)) > 1)
    runs.cancel(other, only, action="rollback")
    assert clients.owner.threads.get_history(other) == []
    left: Any = clients.owner.threads.get(other)
    assert left["metadata"]["user"] == "ada"


def test_runs_are_cancelled(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    first = slow(clients, thread, 2.0)
    second = runs.create(thread, "support", input=HELLO)["run_id"]
    runs.cancel_many(thread_id=thread, status="pending")
    assert runs.get(thread, second)["status"] == "interrupted"
    assert runs.get(thread, first)["status"] == "running"
    runs.cancel(thread, first, wait=True)
    assert runs.get(thread, first)["status"] == "interrupted"
    runs.cancel(thread, first)
    with pytest.raises(NotFoundError):
        runs.cancel(thread, "0" * 24)


def test_a_run_begins_later(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    made = runs.create(thread, "support", input=HELLO, after_seconds=3600)
    assert made["status"] == "pending"
    assert clients.store.runs.get(made["run_id"]).due is not None
    values: Any = runs.wait(thread, "support", input=HELLO)
    assert values["log"]
    runs.cancel(thread, made["run_id"])


def test_a_run_ends_when_its_client_goes_away(clients: Clients) -> None:
    thread = new_thread(clients)

    async def leave(mode: Any) -> str:
        async with get_client(url=clients.served.url, api_key=clients.served.token) as client:
            slow_input: Any = {**HELLO, "pause": 1.0}
            modes: Any = ["custom"]
            stream = client.runs.stream(
                thread,
                "support",
                input=slow_input,
                stream_mode=modes,
                on_disconnect=mode,
                multitask_strategy="interrupt",
            )
            async for part in stream:
                if part.event == "custom":
                    break
            await stream.aclose()  # type: ignore[attr-defined]
            return (await client.runs.list(thread))[0]["run_id"]

    gone = asyncio.run(leave("cancel"))
    until(lambda: clients.owner.runs.get(thread, gone)["status"] == "interrupted")
    kept = asyncio.run(leave("continue"))
    until(lambda: clients.owner.runs.get(thread, kept)["status"] == "success")


def test_what_a_run_cannot_have_is_refused(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    refused: list[dict[str, Any]] = [
        {"langsmith_tracing": {"project_name": "a"}},
        {"feedback_keys": ["a"]},
        {"stream_mode": ["lifecycle"]},
        {"config": {"callbacks": []}},
    ]
    for each in refused:
        with pytest.raises(UnprocessableEntityError):
            list(runs.stream(thread, "support", input=HELLO, **each))
    with pytest.raises(NotFoundError):
        runs.create("missing", "support", input=HELLO)
    with pytest.raises(NotFoundError):
        runs.create(thread, "missing", input=HELLO)
    assert runs.list(thread) == []
    made = runs.create("made-by-run", "support", input=HELLO, if_not_exists="create")
    assert runs.join("made-by-run", made["run_id"])


def test_a_config_names_no_other_thread(clients: Clients) -> None:
    ada = clients.of("user:ada")
    hers, other = ada.threads.create()["thread_id"], new_thread(clients)
    clients.owner.runs.wait(other, "support", input=logged("secret"))
    before = clients.owner.threads.get_history(other)
    config: Any = {"configurable": {"thread_id": other, "checkpoint_ns": "", "__pregel_read": 1}}
    values: Any = ada.runs.wait(hers, "support", input=logged("mine"), config=config)
    assert values["log"][0] == "mine"
    checkpoint: Any = {"thread_id": other, "checkpoint_id": before[0]["checkpoint"]["checkpoint_id"]}
    parts = list(ada.runs.stream(hers, "support", input=logged("mine"), checkpoint=checkpoint))
    assert "secret" not in str(parts)
    assert clients.owner.threads.get_history(other) == before


def test_runs_of_others_do_not_exist(clients: Clients) -> None:
    ada, ben = clients.of("user:ada"), clients.of("user:ben")
    thread = ada.threads.create()["thread_id"]
    run = ada.runs.create(thread, "support", input=HELLO)["run_id"]
    ada.runs.join(thread, run)
    own = ben.threads.create()["thread_id"]
    calls: list[Callable[[], Any]] = [
        lambda: ben.runs.get(thread, run),
        lambda: ben.runs.get(own, run),
        lambda: ben.runs.list(thread),
        lambda: ben.runs.join(thread, run),
        lambda: list(ben.runs.join_stream(thread, run)),
        lambda: list(ben.runs.join_stream(own, run)),
        lambda: ben.runs.cancel(thread, run),
        lambda: ben.runs.cancel_many(thread_id=thread, status="all"),
        lambda: ben.runs.create(thread, "support", input=HELLO),
        lambda: list(ben.runs.stream(thread, "support", input=HELLO)),
    ]
    for call in calls:
        with pytest.raises(httpx.HTTPStatusError) as caught:  # those that reconnect raise no error of the client's own
            call()
        assert caught.value.response.status_code == 404
    with pytest.raises((PermissionDeniedError, NotFoundError)):
        ben.runs.create(thread, "support", input=HELLO, if_not_exists="create")
    assert len(ada.runs.list(thread)) == 1


# Without a thread -------------------------------------------------------------------------------------------------


def temporary(clients: Clients) -> list[str]:
    """The threads of runs without one."""
    return [each.thread for each in clients.store.threads(prefix="temporary-")]


def test_runs_without_a_thread(clients: Clients) -> None:
    runs = clients.owner.runs
    values: Any = runs.wait(None, "support", input=HELLO)
    assert values["log"] == ["planned plainly", "replied"]
    parts = list(runs.stream(None, "support", input=HELLO, stream_mode="updates"))
    assert [each.event for each in parts] == ["metadata", "updates", "updates"]
    assert temporary(clients) == []
    made = runs.create(None, "support", input=HELLO)
    joined: Any = runs.join(made["thread_id"], made["run_id"])
    assert joined["log"]
    assert temporary(clients)  # until it is swept
    kept: Any = runs.create(None, "support", input=HELLO, on_completion="keep")
    assert runs.join(kept["thread_id"], kept["run_id"])
    assert not kept["thread_id"].startswith("temporary-")
    ada = clients.of("user:ada")
    hers = ada.runs.create(None, "support", input=HELLO)
    assert ada.runs.join(hers["thread_id"], hers["run_id"])
    with pytest.raises(NotFoundError):
        clients.of("user:ben").runs.get(hers["thread_id"], hers["run_id"])


def test_threads_that_nobody_waited_for_are_deleted(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = clients.owner.runs
    made = runs.create(None, "support", input=HELLO)
    runs.join(made["thread_id"], made["run_id"])
    runs.wait(None, "support", input=HELLO)
    assert made["thread_id"] in temporary(clients)  # its end was a moment ago
    monkeypatch.setattr(served_runs, "_ABANDONED", timedelta(0))
    runs.wait(None, "support", input=HELLO)
    assert made["thread_id"] in temporary(clients)  # it was looked for them a moment ago
    served_runs._sweeps.clear()
    monkeypatch.setattr(served_runs, "_PAGE_EVERY", 0.0)
    monkeypatch.setattr(served_runs, "_SWEPT", 2)  # also where they are on several pages
    for _ in range(3):
        runs.wait(None, "support", input=HELLO)
    assert made["thread_id"] not in temporary(clients)


def test_runs_of_a_batch(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    batch: Any = [
        {"thread_id": thread, "assistant_id": "support", "input": HELLO},
        {"assistant_id": "support", "input": HELLO},
    ]
    made: Any = runs.create_batch(batch)
    for each in made:
        assert runs.join(each["thread_id"], each["run_id"])
    assert made[0]["thread_id"] == thread
    missing: Any = {**batch[0], "thread_id": "missing"}
    with pytest.raises(NotFoundError):
        runs.create_batch([*batch, missing])
    with pytest.raises(BadRequestError):
        runs.create_batch(batch * 51)
    assert len(runs.list(thread)) == 1


# Modes and options ------------------------------------------------------------------------------------------------


def tooled() -> Any:
    """A graph that calls a tool, and one that fails."""

    @tool
    def double(number: int) -> int:
        """Double a number."""
        if number < 0:
            raise ToolException("no")
        return 2 * number

    def call(state: Chat) -> dict[str, Any]:
        wanted = [{"name": "double", "args": {"number": number}, "id": f"call{number}"} for number in (2, -1)]
        return {"messages": [AIMessage("", tool_calls=wanted)]}

    builder: Any = StateGraph(Chat)
    builder.add_sequence([("call", call), ("tools", ToolNode([double], handle_tool_errors=True))])
    builder.add_edge(START, "call")
    return builder.compile(name="tooled")


def test_tools_are_streamed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"tooled": tooled}) as clients:
        thread = new_thread(clients)
        parts = list(clients.owner.runs.stream(thread, "tooled", input=HELLO, stream_mode="tools"))
        told = {(each.data["toolCallId"], each.data["event"]): each.data for each in parts[1:]}
        assert set(told) == {
            ("call2", "on_tool_start"),
            ("call2", "on_tool_end"),
            ("call-1", "on_tool_start"),
            ("call-1", "on_tool_error"),
        }
        assert {each["name"] for each in told.values()} == {"double"}
        assert told["call2", "on_tool_start"]["input"] == {"number": 2}
        assert told["call2", "on_tool_end"]["output"]["content"] == "4"
        run = clients.owner.runs.list(thread)[0]["run_id"]
        rest = list(clients.owner.runs.join_stream(thread, run, last_event_id="1", stream_mode="tools"))
        assert [each.data for each in rest] == [each.data for each in parts[2:]]


def test_at_exit_only_the_last_state_is_stored(clients: Clients) -> None:
    runs, threads, thread = clients.owner.runs, clients.owner.threads, new_thread(clients)
    values: Any = runs.wait(thread, "approval", input=HELLO, durability="exit")
    assert values["__interrupt__"]
    assert len(threads.get_history(thread)) == 1
    with pytest.warns(DeprecationWarning, match="durability"):
        after: Any = runs.wait(thread, "approval", command={"resume": "Ada"}, checkpoint_during=False)
    assert after["log"] == ["planned plainly", "approved by Ada", "replied"]
    assert len(threads.get_history(thread)) == 2
    runs.wait(thread, "support", input=HELLO, durability="sync")
    assert len(threads.get_history(thread)) == 2 + 4  # the control: each step


def test_an_answer_to_no_question_is_refused_if_it_is_to_be(clients: Clients) -> None:
    runs, thread = clients.owner.runs, new_thread(clients)
    asked: Any = runs.wait(thread, "approval", input=HELLO)
    before = clients.owner.threads.get_state(thread)
    unknown: Any = {"resume": {"0" * 32: "Eve"}}
    parts = list(runs.stream(thread, "approval", command=unknown, strict_resume=True))
    assert parts[-1].event == "error"
    assert parts[-1].data["error"] == "UnknownInterruptError"
    after = clients.owner.threads.get_state(thread)
    assert (after["values"], after["interrupts"]) == (before["values"], before["interrupts"])
    assert clients.owner.threads.get(thread)["status"] == "interrupted"
    known: Any = {"resume": {asked["__interrupt__"][0]["id"]: "Ada"}}
    values: Any = runs.wait(thread, "approval", command=known, strict_resume=True)
    assert "approved by Ada" in values["log"]
