"""A user's program, for type checkers: mypy and pyright accept it in strict mode, and know its types."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict, assert_type

import holdfast
from holdfast import Page
from holdfast.access import Policy
from holdfast.errors import ConflictError, DeniedError
from holdfast.jobs import JobRunner
from holdfast.savers import AutoCheckpointer, EveryStep
from holdfast.security.access.identity import Identity


class Chat(TypedDict):
    messages: list[str]
    plan: dict[str, str]


class Researcher(holdfast.agents.PersistentAgent):
    goal: str = ""
    notes: list[str]

    def __init__(self) -> None:
        self.notes = []


def use_threads(store: holdfast.Store) -> None:
    thread = store.thread("chat-1", Chat)
    first = thread.put({"messages": [], "plan": {}}, tag="start", labels=["draft"], metadata={"model": "small"})
    assert_type(first, holdfast.Checkpoint[Chat])
    assert_type(thread.get(at="start").state["messages"], list[str])
    assert_type(thread.log(limit=10), Page[holdfast.Checkpoint[Chat]])
    for checkpoint in thread.log().all():
        print(checkpoint.id, checkpoint.step, checkpoint.time, checkpoint.metadata)
    thread.update({"plan.goal": "rest"}, remove=["messages[0]"], on_conflict="overwrite")
    thread.fork("shorter", at=first)
    thread.merge("shorter", strategy="union")
    thread.tag("v1", at=12, move=True)
    thread.pin(reason="audit")
    for entry in thread.blame("messages[-1]"):
        print(entry.writer.id, entry.where)
    print(thread.diff("start", "HEAD").summary)
    for info in store.threads(prefix="chat-"):
        print(info.thread, info.steps)
    try:
        store.thread("chat-1").put({"messages": []}, parent=first, on_conflict="raise")
    except ConflictError as error:
        print(error.code, error.what, error.where, error.hint)


def use_state(store: holdfast.Store) -> None:
    notes = store.state(agent="researcher")
    notes["favourite"] = "kelp"
    with store.transaction() as together:
        together.state(agent="worker")["busy"] = True
        together.put("planner", {"plan": []})
    store.access.grant("agent:writer", "read", agent="researcher", until=timedelta(hours=1))
    try:
        store.as_identity(Identity.of(agent="writer")).state(agent="researcher")["favourite"] = 1
    except DeniedError as error:
        print(error.hint)
    print(store.audit.query(kind="denied").next, Policy)


def use_agents(store: holdfast.Store) -> None:
    agent = store.agents.restore("researcher-1", Researcher)
    assert_type(agent, Researcher)
    print(agent.notes)


def maintain(store: holdfast.Store) -> None:
    report = store.maintenance.verify(level="decode")
    print(report.ok, report.findings)
    store.maintenance.prune("chat-1", keep_last=100, dry_run=True)
    JobRunner(store).run_due()
    state: dict[str, int] = {}
    with AutoCheckpointer(store, "auto", lambda: state, EveryStep(5)) as saver:
        saver.step()


async def use_asyncio() -> None:
    async with holdfast.aopen("sqlite:///agents.db") as store:
        thread = store.thread("chat-1", Chat)
        assert_type(await thread.get(), holdfast.Checkpoint[Chat])
        async for checkpoint in (await thread.log()).all():
            print(checkpoint.id)


if __name__ == "__main__":
    with holdfast.open("agents.db", tenant="acme") as opened:
        for use in (use_threads, use_state, use_agents, maintain):
            use(opened)
