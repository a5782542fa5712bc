"""Agents without a class, for programs whose state machine is elsewhere: save where one is, and record its transitions.

They have the same records as agents with a class: versions, transitions, refusals, hooks, metrics, the timeline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import Any

from holdfast.agents.definition.spec import EXTERNAL, Spec, registry
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import Placeholder, load_placeholder
from holdfast.agents.runtime.two_phase import TwoPhaseChange
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord, PendingChange, error_text
from holdfast.agents.storage.transition_log import TransitionRecord, read_step_transition
from holdfast.backends.runtime.drivers import operation
from holdfast.engine import trace_context, validation
from holdfast.engine.model.scopes import check_key
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle

_STATE = "name of a state"

_REFUSED = "refused"
"""The error of a transition that did not succeed, if the program gave none."""


class ExternalMachineOperations:
    """Operations on agents whose state machine is elsewhere."""

    _handle: StoreHandle

    @operation(changes=True, rights=("read", "write"))
    async def save_state(
        self, id: str, *, type: str | None = None, state: str | None = None, data: Mapping[str, Any] | None = None
    ) -> AgentRecord:
        """Save an agent that has no class here: the state that it is in, and its data, which are its fields. What is
        None stays as it was; a new agent is of the type `agent`, unless another is given. Raises `InvalidError` for an
        agent with a class, code `agent-class`."""
        line = AgentLine(self._handle, id)
        fields = None if data is None else dict(validation.require_mapping(data, "data"))
        kind = check_key(type or "agent", "type of an agent")

        async def save(persister: AgentPersister) -> StepRef:
            if type is not None and kind != persister.spec.name:
                raise InvalidError(f"the agent's type is {persister.spec.name!r}, not {type!r}", where=line.where)
            if fields is not None:
                persister.agent.restore(fields)
            position = persister.data.position
            async with persister.lifecycle.exclusive("the save"):
                await persister.lifecycle.require_nothing_pending()
                action = "save" if persister.version else "create"
                moved = position._replace(state=position.state if state is None else check_key(state, _STATE))
                events = [persister.build_event("agent", action)]
                return await persister.commit(action, events, hook=f"agent.{action}", position=moved)

        return await line.read_record(await _change(line, save, kind))

    @operation(changes=True, rights=("read", "write"))
    async def record_transition(
        self,
        id: str,
        from_: str,
        to: str,
        *,
        trigger: str = "",
        success: bool = True,
        error: BaseException | str = "",
        data: Any = None,
    ) -> TransitionRecord:
        """Record a transition that an agent without a class took elsewhere, and save the state that it led to; or, if
        it did not succeed, that it was refused, with the error: its state stays. Raises `NotFoundError` for an agent
        that was never saved, and `InvalidError` for one with a class, code `agent-class`."""
        if success and error:
            raise InvalidError("a successful transition cannot have an error", hint="Pass success=False with an error")
        line, text = AgentLine(self._handle, id), error_text(error) if isinstance(error, BaseException) else str(error)
        source, target, name = (
            check_key(from_, _STATE),
            check_key(to, _STATE),
            trigger and check_key(trigger, "trigger"),
        )

        async def record(persister: AgentPersister) -> StepRef:
            lifecycle, before, started = persister.lifecycle, persister.data.position, perf_counter_ns()
            async with lifecycle.exclusive("the transition"):
                await lifecycle.require_nothing_pending()
                with trace_context.correlation() as correlation:
                    now = persister.now()
                    pending = PendingChange("transition", name, source, target, now, correlation, data=data)
                    if not success:
                        point = await lifecycle.record_refusal(
                            lifecycle.build_event(pending, started, text or _REFUSED)
                        )
                    else:
                        after = before._replace(state=target)
                        await lifecycle.run(TwoPhaseChange(pending, None, before, after, before), "agent.transition")
                        point = persister.point
            if point is None:
                raise line.not_found_error()  # it was deleted just now
            return point

        return await read_step_transition(line, await _change(line, record))


async def _change(
    line: AgentLine, change: Callable[[AgentPersister], Awaitable[StepRef]], new_type: str = ""
) -> StepRef:
    """Change an agent as it was saved last: again, if another save was first. One that was never saved is made, if
    there is a type for it."""
    attempts = Attempts("changing an agent", line.where, line.handle.engine.context.metrics, code="agent-conflict")
    while True:
        await attempts.begin()
        persister = await _load(line, new_type)
        try:
            return await change(persister)
        except ConflictError as conflict:
            if conflict.code != "agent-conflict":
                raise
            await line.check_restored(persister.point, conflict)


async def _load(line: AgentLine, new_type: str) -> AgentPersister:
    await line.allow("write")
    if new_type and await line.latest_step() is None:
        _refuse_class(line, new_type, new_type in registry)
        return AgentPersister(line, Placeholder(), Spec(new_type, Placeholder, EXTERNAL), AgentData())
    await line.allow("read")
    persister = await load_placeholder(line)
    kind = persister.spec.name
    _refuse_class(line, kind, kind in registry or persister.spec.schema != EXTERNAL)
    return persister


def _refuse_class(line: AgentLine, name: str, has_class: bool) -> None:
    if has_class:
        raise InvalidError(
            f"agents of {name!r} have a class, which checks their states and fields",
            where=line.where,
            hint="Restore the agent, and call its transition or save; or use another type",
            code="agent-class",
        )
