"""What workers run: graphs of LangGraph, workflows and classes of agents, each by its name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from holdfast._lazy import load
from holdfast.agents.definition.spec import Spec, registry
from holdfast.agents.runs.record import DONE, NO_VALUE, QUEUED, WAITING, RunState
from holdfast.agents.runs.steps import Workflow, protected
from holdfast.agents.runs.table import HandOver, HeldRun, RunTable
from holdfast.backends.runtime.drivers import arun, run
from holdfast.engine.namespaces import split_name
from holdfast.errors import InvalidError, NotFoundError
from holdfast.history.thread_status import read_status
from holdfast.security.handle import HasHandle


class Outcome(NamedTuple):
    """The end of an attempt without an error."""

    state: RunState
    result: bytes = NO_VALUE


class GraphTarget:
    """A compiled graph. It continues from its checkpoints: only what they do not have yet is given to it."""

    def __init__(self, name: str, graph: Any, store: HasHandle) -> None:
        self.name = name
        saver_class, saver = load("holdfast.interfaces.langgraph.saver", "HoldfastSaver"), graph.checkpointer
        followed = load("holdfast.interfaces.langgraph.client_runs", "FollowedGraph")
        self._graph = followed(graph if saver is not None else graph.copy(update={"checkpointer": saver_class(store)}))
        if saver is None:
            return
        own = store._handle
        theirs = saver.store._handle if isinstance(saver, saver_class) else None
        if theirs is None or theirs.tenant != own.tenant or not theirs.engine.context.is_same_store(own.engine.context):
            raise InvalidError(
                "the graph keeps its checkpoints elsewhere than in the worker's store, where its runs are",
                where=f"graph {name}",
                hint="Compile it without a checkpointer, or with HoldfastSaver(store)",
            )

    def call(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run it to its end, to a question, or until the worker stops."""
        held.hand_over = _graph_hand_over()
        given = run(self._given(table, held))
        stream = self._graph.stream(given, self._config(held), stream_mode="values", durability="sync")
        try:
            for _ in stream:
                if held.must_stop():
                    break
        finally:
            stream.close()
        return run(self._outcome(table, held))

    async def acall(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run it likewise, awaited."""
        held.hand_over = _graph_hand_over()
        given = await arun(self._given(table, held))
        stream = self._graph.astream(given, self._config(held), stream_mode="values", durability="sync")
        try:
            async for _ in stream:
                if held.must_stop():
                    break
        finally:
            await stream.aclose()
        return await arun(self._outcome(table, held))

    def _config(self, held: HeldRun) -> dict[str, Any]:
        thread, _ = split_name(held.stored.thread)
        metadata = {"run": held.stored.id}
        if held.stored.submitter:
            metadata["actor"] = held.stored.submitter  # what is saved for a person is erased with that person's data
        return {"configurable": {"thread_id": thread}, "metadata": metadata}

    async def _given(self, table: RunTable, held: HeldRun) -> Any:
        """Return the input; None if a checkpoint has it, or has gone past it. Answers are in the store."""
        head = await table.handle.engine.lines.latest_step(held.line)
        stored, codec = held.stored, table.handle.codec
        if ("" if head is None else head.id) != stored.base:
            return None
        if head is None and not stored.input:
            raise InvalidError(
                "there is nothing to run: the run has no input, and its thread no checkpoint",
                where=f"run {stored.id} of thread {held.line}",
                code="run-empty",
            )
        return codec.unpack(stored.input) if stored.input else None

    async def _outcome(self, table: RunTable, held: HeldRun) -> Outcome:
        status = (await read_status(table.handle.engine, held.line, is_own=True)).status
        if status == "done":
            return Outcome(DONE)
        if status == "waiting" or not held.must_stop():
            return Outcome(WAITING)
        return Outcome(QUEUED)


@cache
def _graph_hand_over() -> type[HandOver]:
    """Return what a step in a node raises to hand the run over: to LangGraph it is no error of the node."""

    class GraphHandOver(load("langgraph.errors", "GraphBubbleUp"), HandOver):  # type: ignore[misc]
        pass

    return GraphHandOver


class WorkflowTarget:
    """A function under `workflow`."""

    def __init__(self, workflow: Workflow[Any, Any]) -> None:
        self.name = workflow.name
        self._function = workflow.function

    def call(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run it to its end."""
        if inspect.iscoroutinefunction(self._function):
            raise InvalidError(
                "a worker of a synchronous store cannot run coroutine functions",
                where=f"workflow {self.name}",
                hint="Write it with `def`, or use the worker of an AsyncStore",
            )
        args, kwargs = _arguments(table, held)
        return run(self._outcome(table, held, self._function(*args, **kwargs)))

    async def acall(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run it likewise, awaited."""
        args, kwargs = _arguments(table, held)
        if inspect.iscoroutinefunction(self._function):
            result = await self._function(*args, **kwargs)
        else:
            result = await asyncio.to_thread(self._function, *args, **kwargs)
        return await arun(self._outcome(table, held, result))

    async def _outcome(self, table: RunTable, held: HeldRun, result: Any) -> Outcome:
        return Outcome(DONE, await protected(table, held.line, table.handle.codec.pack(result), "result"))


class AgentTarget:
    """A class of agents. Its method `run` does the work of one of them, which is started before and stopped after."""

    def __init__(self, spec: Spec, store: HasHandle) -> None:
        self.name = spec.name
        self._spec = spec
        self._store = store
        if "run" not in spec.functions and not callable(getattr(spec.factory, "run", None)):
            raise InvalidError(
                "a worker calls the method `run` of an agent, and the class has none",
                where=f"class {spec.name}",
                hint="Define it: def run(self, …). It gets the input of the run",
            )

    def call(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run the agent to the end of its work, or until it waits."""
        agent = run(self._begin(held))
        try:
            args, kwargs = _arguments(table, held)
            result = agent.persister.find_method("run")(*args, **kwargs)
        except BaseException as error:
            run(self._leave(held, agent, error))
            raise
        return run(self._end(table, held, agent, result))

    async def acall(self, table: RunTable, held: HeldRun) -> Outcome:
        """Run it likewise, awaited."""
        agent = await arun(self._begin(held))
        try:
            args, kwargs = _arguments(table, held)
            result = agent.persister.find_method("run")(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            await arun(self._leave(held, agent, error))
            raise
        return await arun(self._end(table, held, agent, result))

    async def _begin(self, held: HeldRun) -> Any:
        """Return the agent, started, or resumed if it was paused. All that it saves is on the run's condition."""
        kind = self._spec.factory if isinstance(self._spec.factory, type) else None
        restore = load("holdfast.agents.api.agent", "restore_agent")
        agent = await restore(self._store, held.stored.agent, {}, kind)
        held.claim.attempt, agent.persister.claim = held, held.claim
        try:
            await agent._enter_context()
        except BaseException:
            _retire(agent)
            raise
        return agent

    async def _leave(self, held: HeldRun, agent: Any, error: BaseException) -> None:
        """Pause the agent, if the run is handed over, or record that it failed."""
        try:
            if isinstance(error, HandOver):
                if agent.status == "running":
                    await agent.persister.lifecycle.pause()
            elif isinstance(error, Exception) and not held.claim.is_lost:
                await agent._exit_context(error)
        finally:
            _retire(agent)

    async def _end(self, table: RunTable, held: HeldRun, agent: Any, result: Any) -> Outcome:
        packed = await protected(table, held.line, table.handle.codec.pack(result), "result")
        try:
            await agent._exit_context(None)
        finally:
            _retire(agent)
        return Outcome(DONE, packed)


def _retire(agent: Any) -> None:
    """Let nobody save the agent through this object any more: its run is over here."""
    with suppress(InvalidError):  # it is in the middle of a change, and its next save is refused
        agent.persister.retire()


def _find_spec(given: Any) -> Spec | None:
    """Return the declaration of a class of agents; None for anything else."""
    if not isinstance(given, type | Spec):
        return None
    try:
        found: Spec = registry.of(given)
    except NotFoundError:
        return None
    return found


def _arguments(table: RunTable, held: HeldRun) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that are the input of a run."""
    given = table.handle.codec.unpack(held.stored.input) if held.stored.input else None
    if isinstance(given, Mapping):
        return [], dict(given)
    if given is not None and not isinstance(given, list | tuple):
        raise InvalidError(
            f"the input is the list of the arguments, or a dict of them by name, not {type(given).__name__}",
            where=f"run {held.stored.id}",
            hint="Submit [value] for one argument",
            code="run-input",
        )
    return list(given or ()), {}


Target = GraphTarget | WorkflowTarget | AgentTarget


def make_targets(store: Any, unnamed: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Target]:
    """Return what a worker runs by name: graphs have the name that they were compiled with, unless they are given by
    another one."""
    found: dict[str, Target] = {}
    for name, given in [*((None, each) for each in unnamed), *named.items()]:
        target: Target
        if isinstance(given, Workflow):
            target = WorkflowTarget(given)
        elif callable(getattr(given, "stream", None)) and hasattr(given, "copy"):
            target = GraphTarget(name or str(getattr(given, "name", "") or ""), given, store)
        elif (spec := _find_spec(given)) is not None and name in (None, spec.name):
            target = AgentTarget(spec, store)
        else:
            raise InvalidError(
                f"a worker runs compiled graphs, workflows and classes of agents, not {type(given).__name__}",
                where=name or repr(given)[:80],
                hint="Pass what StateGraph.compile() returned, a function under @holdfast.workflow, or a class",
            )
        key = name or target.name
        if key in found:
            raise InvalidError(f"two things to run have the name {key!r}", hint="Pass them by name: support=graph")
        found[key] = target
    if not found:
        raise InvalidError("a worker needs something to run", hint="Pass graphs or workflows")
    return found
