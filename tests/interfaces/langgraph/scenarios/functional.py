"""The functional API: entrypoints, tasks, what was returned the last time, and what is saved instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.func import entrypoint, task
from langgraph.types import Command, RetryPolicy, interrupt

from tests.interfaces.langgraph.sessions import Session, on, scenario


def workflow(s: Session, body: Callable[..., Any], with_asyncio: Callable[..., Any]) -> Any:
    return entrypoint(checkpointer=s.saver)(with_asyncio if s.asynchronous else body)


@scenario
async def tasks_and_previous(s: Session) -> None:
    ran: list[str] = []

    @task
    def double(number: int) -> int:
        ran.append(f"double {number}")
        return number * 2

    @task
    async def adouble(number: int) -> int:
        ran.append(f"double {number}")
        return number * 2

    def body(numbers: list[int], *, previous: Any = None) -> Any:
        futures = [double(number) for number in numbers]
        return {"doubled": [future.result() for future in futures], "previous": previous}

    async def abody(numbers: list[int], *, previous: Any = None) -> Any:
        futures = [adouble(number) for number in numbers]
        return {"doubled": [await future for future in futures], "previous": previous}

    graph = workflow(s, body, abody)
    await s.run("one", graph, [1, 2, 3], on("t"))
    await s.run("two", graph, [4], on("t"))
    await s.run("three", graph, [], on("t"))
    s.note("ran", sorted(ran))
    await s.audit(graph, "t")


@scenario
async def something_else_is_saved(s: Session) -> None:
    def body(number: int, *, previous: Any = None) -> Any:
        return entrypoint.final(value={"told": number}, save=(previous or 0) + number)

    async def abody(number: int, *, previous: Any = None) -> Any:
        return body(number, previous=previous)

    graph = workflow(s, body, abody)
    for number in (1, 2, 3):
        await s.run("turn", graph, number, on("t"))
    await s.audit(graph, "t")


@scenario
async def questions_between_tasks(s: Session) -> None:
    ran: list[str] = []

    @task
    def write(text: str) -> str:
        ran.append(text)
        return text.upper()

    @task
    async def awrite(text: str) -> str:
        ran.append(text)
        return text.upper()

    def body(topic: str) -> Any:
        first = write(topic).result()
        answer = interrupt({"draft": first})
        second = write(f"{topic} {answer}").result()
        return {"texts": (first, second), "again": interrupt("again?")}

    async def abody(topic: str) -> Any:
        first = await awrite(topic)
        answer = interrupt({"draft": first})
        second = await awrite(f"{topic} {answer}")
        return {"texts": (first, second), "again": interrupt("again?")}

    graph = workflow(s, body, abody)
    await s.run("asks", graph, "kelp", on("t"))
    await s.run("answered", graph, Command(resume="grows"), on("t"))
    await s.run("answered again", graph, Command(resume="no"), on("t"))
    assert ran == ["kelp", "kelp grows"], "a task that had finished ran again"
    await s.audit(graph, "t")


@scenario
async def a_task_that_fails(s: Session) -> None:
    ran: list[str] = []
    broken = [True]

    def step(name: str) -> str:
        ran.append(name)
        if name == "second" and broken[0]:
            raise ValueError("second is out of order")
        return name

    async def astep(name: str) -> str:
        return step(name)

    policy = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False, retry_on=KeyError)
    tried: Any = task(retry_policy=policy)
    sync, asynchronous = tried(step), tried(astep)

    def body(_: Any) -> list[str]:
        return [sync(name).result() for name in ("first", "second", "third")]

    async def abody(_: Any) -> list[str]:
        return [await asynchronous(name) for name in ("first", "second", "third")]

    graph = workflow(s, body, abody)
    await s.run("fails", graph, {"go": True}, on("t"))
    broken[0] = False
    await s.run("goes on", graph, None, on("t"))
    s.note("ran", ran)
    assert ran == ["first", "second", "second", "third"]
    await s.audit(graph, "t")
