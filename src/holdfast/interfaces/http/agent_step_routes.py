"""Operations of the API on the durable steps, timers and signals of agents, and on agents without a class."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.agents import AgentRecord, Signal, StepRecord, Timer, TransitionRecord
from holdfast.errors import InvalidError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.store import Page

AGENT_STEPS = RouteTable()

_SignalId = Annotated[str | None, msgspec.Meta(description="A signal whose id was sent before is not sent again.")]
_Create = Annotated[bool, msgspec.Meta(description="Whether it is kept for an agent that does not exist yet.")]


@AGENT_STEPS.get("/agents/{id}/steps")
def list_steps(call: Call, id: str, *, limit: Limit = 100, cursor: str | None = None) -> Page[StepRecord]:
    """List the durable steps of an agent by their keys."""
    return call.store.agents.steps(id).list(limit=limit, cursor=cursor)


@AGENT_STEPS.get("/agents/{id}/steps/{key}")
def get_step(call: Call, id: str, key: str) -> StepRecord:
    """Describe a durable step of an agent."""
    return call.store.agents.steps(id).get(key)


@AGENT_STEPS.post("/agents/{id}/steps/{key}/resolutions", status=200)
def resolve_step(
    call: Call,
    id: str,
    key: str,
    *,
    how: Literal["result", "error", "retry"],
    result: Any = None,
    error: str | None = None,
) -> StepRecord:
    """Record what became of a step whose outcome is unknown, or that failed."""
    _refuse_condition(call)
    others = [result is not None and how != "result", error is not None and how != "error"]
    if any(others) or (how == "error" and error is None):
        raise InvalidError(
            "a step is resolved by one of result, error and retry",
            where=f"how {how}",
            hint="Give a result with how=result, an error with how=error, and neither with how=retry",
        )
    steps = call.store.agents.steps(id)
    if how == "result":
        return steps.resolve(key, result=result)
    return steps.resolve(key, error=error, retry=how == "retry")


@AGENT_STEPS.get("/agents/{id}/timers")
def list_timers(call: Call, id: str) -> list[Timer]:
    """List the timers and sleeps of an agent, the next one first."""
    return call.store.agents.timers(id).list()


@AGENT_STEPS.put("/agents/{id}/timers/{name}")
def set_timer(call: Call, id: str, name: str, *, when: str, signal: str | None = None, value: Any = None) -> Timer:
    """Set a timer of an agent, due after `2h` or at a time. One of the same name is replaced."""
    _refuse_condition(call)
    return call.store.agents.timers(id).set(name, when, signal=signal, value=value)


@AGENT_STEPS.delete("/agents/{id}/timers/{name}")
def cancel_timer(call: Call, id: str, name: str) -> models.DoneModel:
    """Cancel a timer of an agent, or end a sleep by its key."""
    _refuse_condition(call)
    return models.DoneModel(ids=[name] if call.store.agents.timers(id).cancel(name) else [])


@AGENT_STEPS.get("/agents/{id}/signals")
def list_signals(call: Call, id: str, *, name: str | None = None) -> list[Signal]:
    """List the signals that wait for an agent, in their order."""
    return call.store.agents.steps(id).signals(name)


@AGENT_STEPS.post("/agents/{id}/signals")
def send_signal(
    call: Call, id: str, *, name: str, value: Any = None, signal_id: _SignalId = None, create: _Create = False
) -> models.SentSignalModel:
    """Send a signal to an agent, which gets it when it waits for it. One whose id was sent before is not sent."""
    _refuse_condition(call)
    return models.SentSignalModel(new=call.store.agents.signal(id, name, value, id=signal_id, create=create))


@AGENT_STEPS.put("/agents/{id}/state")
def save_agent_state(
    call: Call, id: str, *, type: str | None = None, state: str | None = None, data: dict[str, Any] | None = None
) -> AgentRecord:
    """Save an agent that has no class: the state that it is in, and its data, which are its fields."""
    _refuse_condition(call)
    return call.store.agents.save_state(id, type=type, state=state, data=data)


@AGENT_STEPS.post("/agents/{id}/transitions")
def record_transition(
    call: Call,
    id: str,
    *,
    source: str,
    target: str,
    trigger: str = "",
    success: bool = True,
    error: str = "",
    data: Any = None,
) -> TransitionRecord:
    """Record a transition that an agent without a class took elsewhere, or that was refused there."""
    _refuse_condition(call)
    return call.store.agents.record_transition(
        id, source, target, trigger=trigger, success=success, error=error, data=data
    )


def _refuse_condition(call: Call) -> None:
    """Refuse a condition that would not be checked."""
    if call.if_match:
        raise InvalidError("If-Match has no effect here", hint="Send the request without it")
