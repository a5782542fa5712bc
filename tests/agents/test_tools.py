"""The tools of an agent, and its workflow: checked, counted and stored."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

import holdfast
from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.api.tools import Tools
from holdfast.errors import DeniedError, InvalidError, NotFoundError


class Worker(PersistentAgent, name="worker-of-tests"):
    """An agent with tools."""


class AsyncWorker(AsyncPersistentAgent, name="async-worker-of-tests"):
    """One for asyncio."""


def boom(*_: Any) -> None:
    """Fail."""
    raise RuntimeError("out of order")


def test_what_nobody_allowed_is_denied_and_counted() -> None:
    with holdfast.open("memory://") as store:
        agent = Worker().attach(store, "w")
        tool = agent.tools.declare("search", permissions=("net", "disk"), description="Looks things up")
        assert (tool.permissions, tool.description, tool.uses) == (("net", "disk"), "Looks things up", 0)
        assert not agent.tools.may("search")
        agent.tools.allow("net")
        with pytest.raises(DeniedError, match="it takes disk") as denied:
            agent.tools.call("search", boom)
        assert denied.value.code == "tool-denied"
        agent.tools.allow("disk")
        assert agent.tools.call("search", lambda a, b=0: a + b, 1, b=2) == 3
        agent.tools.deny("net")
        assert not agent.tools.may("search")
        found = agent.tools["search"]
        assert (found.uses, found.denied, found.failures) == (1, 1, 0)
        assert agent.tools.permissions == {"net": False, "disk": True}


def test_a_tool_can_be_denied_as_such_and_allowed_again() -> None:
    tools = Worker().tools
    tools.declare("free")
    assert tools.may("free")
    tools.deny(tool="free")
    with pytest.raises(DeniedError, match="the tool is denied"), tools.use("free"):
        pass
    tools.allow(tool="free")
    with tools.use("free") as tool:
        assert tool.name == "free"
    assert (list(tools), len(tools), "free" in tools, repr(tools)) == (["free"], 1, True, "<Tools: free>")
    tools.forget("free")
    assert (list(tools), repr(tools)) == ([], "<Tools: none>")


def test_uses_failures_and_durations_are_kept_across_restarts() -> None:
    with holdfast.open("memory://") as store:
        agent = Worker().attach(store, "w")
        agent.tools.declare("run")
        agent.tools.call("run", lambda: None)
        with pytest.raises(RuntimeError, match="out of order"):
            agent.tools.call("run", boom)
        with agent.tools.use("run"):
            pass
        agent.save()
        again = store.agents.restore("w").tools["run"]
        assert again == agent.tools["run"]
        assert (again.uses, again.failures, again.last_error) == (3, 1, "RuntimeError: out of order")
        assert again.seconds >= again.last_seconds > 0
        assert isinstance(again.last_used, datetime)
        restored = store.agents.restore("w")
        restored.tools.declare("run", permissions=["new"], description="again")
        assert (restored.tools["run"].uses, restored.tools["run"].permissions) == (3, ("new",))
        assert Tools.of(store.agents.load("w"))["run"] == again


def test_what_was_asked_for_before_a_reload_is_still_that_of_the_agent() -> None:
    with holdfast.open("memory://") as store:
        agent = Worker().attach(store, "w")
        tools, work, talk = agent.tools, agent.workflow, agent.conversation
        tools.declare("one")
        agent.save()
        tools.declare("two")
        agent.reload()
        tools.declare("three")
        work["seen"] = True
        talk.append("hello")
        agent.save()
        record = store.agents.load("w")
        assert list(Tools.of(record)) == ["one", "three"]
        assert (record.workflow, record.messages) == ({"seen": True}, 1)


def test_tools_that_there_are_not() -> None:
    tools = Worker().tools
    with pytest.raises(NotFoundError, match="Declare it first"):
        tools.may("nothing")
    tools.declare("one")
    with pytest.raises(NotFoundError, match="It has one"), tools.use("two"):
        pass
    with pytest.raises(InvalidError):
        tools.declare("")
    with pytest.raises(InvalidError):
        tools.allow("")


def test_a_tool_that_is_forgotten_while_it_is_used_is_not_counted() -> None:
    tools = Worker().tools
    tools.declare("gone")
    with tools.use("gone"):
        tools.forget("gone")
    assert "gone" not in tools


def test_tools_may_be_coroutine_functions_under_asyncio() -> None:
    async def scenario() -> None:
        async with await holdfast.aopen("memory://") as store:
            agent = AsyncWorker().attach(store, "w")
            agent.tools.declare("wait")

            async def wait(value: int) -> int:
                await asyncio.sleep(0)
                return value

            assert await agent.tools.call("wait", wait, 7) == 7
            assert await agent.tools.call("wait", lambda: 8) == 8
            assert agent.tools["wait"].uses == 2

    asyncio.run(scenario())


def test_a_workflow_is_a_dict_and_knows_how_far_it_got() -> None:
    with holdfast.open("memory://") as store:
        agent = Worker().attach(store, "w")
        work = agent.workflow
        assert (work.percent, repr(work)) == (0.0, "<Workflow {}>")
        work["ticket"] = 7
        work["gone"] = 1
        del work["gone"]
        assert dict(work) == {"ticket": 7}
        work.plan("fetch", "read", "write", "send")
        work.begin("fetch")
        assert work.current == "fetch"
        work.complete()
        work.begin("read")
        work.fail(error=ValueError("no text"))
        assert (work.percent, work.done_count, work.step_count) == (25.0, 1, 4)
        with pytest.raises(InvalidError, match="no step is active"):
            work.complete()
        work.begin("read")
        agent.save()
        again = store.agents.restore("w").workflow
        assert (again.current, again["ticket"], len(again)) == ("read", 7, 2)
        again.complete("read")
        steps = again.steps
        assert (steps["read"]["attempts"], steps["read"]["status"], steps["read"]["error"]) == (2, "done", "")
        assert steps["write"] == {"status": "planned", "attempts": 0}
        assert repr(again) == "<Workflow 2 of 4 steps>"
        assert type(store.agents.load("w").workflow) is dict


def test_steps_that_there_are_not() -> None:
    work = Worker().workflow
    with pytest.raises(InvalidError, match="no step is active"):
        work.complete()
    with pytest.raises(InvalidError, match="no step 'other'"):
        work.fail("other", "why")
    work.begin("one")
    work.begin("two")
    work.fail("one", "why")
    assert work.current == "two"
    assert work.steps["one"]["error"] == "why"
