"""Operations of the API on the durable steps, timers and signals of agents, and on agents without a class."""

from __future__ import annotations

from typing import Any

from holdfast.agents import Signal, StepRecord, Timer
from holdfast.errors import InvalidError
from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import fields_of
from holdfast.interfaces.http.values import small_json

AGENT_STEPS = RouteTable()


@AGENT_STEPS.get("/agents/{id}/steps")
def list_steps(call: Call, params: inputs.AgentParams) -> models.PageModel[admin_models.StepModel]:
    """List the durable steps of an agent by their keys."""
    page = call.store.agents.steps(params.id).list(limit=params.limit, cursor=params.cursor)
    return models.PageModel(items=[_to_step(each) for each in page], next=page.next)


@AGENT_STEPS.get("/agents/{id}/steps/{key}")
def get_step(call: Call, params: inputs.StepParams) -> admin_models.StepModel:
    """Describe a durable step of an agent."""
    return _to_step(call.store.agents.steps(params.id).get(params.key))


@AGENT_STEPS.post("/agents/{id}/steps/{key}/resolutions", status=200)
def resolve_step(call: Call, params: inputs.StepParams, body: inputs.StepResolutionRequest) -> admin_models.StepModel:
    """Record what became of a step whose outcome is unknown, or that failed."""
    _refuse_condition(call)
    others = [body.result is not None and body.how != "result", body.error is not None and body.how != "error"]
    if any(others) or (body.how == "error" and body.error is None):
        raise InvalidError(
            "a step is resolved by one of result, error and retry",
            where=f"how {body.how}",
            hint="Give a result with how=result, an error with how=error, and neither with how=retry",
        )
    steps = call.store.agents.steps(params.id)
    if body.how == "result":
        return _to_step(steps.resolve(params.key, result=body.result))
    return _to_step(steps.resolve(params.key, error=body.error, retry=body.how == "retry"))


@AGENT_STEPS.get("/agents/{id}/timers")
def list_timers(call: Call, params: inputs.IdParams) -> admin_models.TimerListModel:
    """List the timers and sleeps of an agent, the next one first."""
    found = call.store.agents.timers(params.id).list()
    return admin_models.TimerListModel(items=[_to_timer(each) for each in found])


@AGENT_STEPS.put("/agents/{id}/timers/{name}")
def set_timer(call: Call, params: inputs.TimerParams, body: inputs.TimerRequest) -> admin_models.TimerModel:
    """Set a timer of an agent. One of the same name is replaced."""
    _refuse_condition(call)
    timers = call.store.agents.timers(params.id)
    return _to_timer(timers.set(params.name, body.when, signal=body.signal, value=body.value))


@AGENT_STEPS.delete("/agents/{id}/timers/{name}")
def cancel_timer(call: Call, params: inputs.TimerParams) -> models.DoneModel:
    """Cancel a timer of an agent, or end a sleep by its key."""
    _refuse_condition(call)
    done = call.store.agents.timers(params.id).cancel(params.name)
    return models.DoneModel(ids=[params.name] if done else [])


@AGENT_STEPS.get("/agents/{id}/signals")
def list_signals(call: Call, params: inputs.SignalsParams) -> admin_models.SignalListModel:
    """List the signals that wait for an agent, in their order."""
    found = call.store.agents.steps(params.id).signals(params.name)
    return admin_models.SignalListModel(items=[_to_signal(each) for each in found])


@AGENT_STEPS.post("/agents/{id}/signals")
def send_signal(call: Call, params: inputs.IdParams, body: inputs.SignalRequest) -> admin_models.SentSignalModel:
    """Send a signal to an agent, which gets it when it waits for it. One whose id was sent before is not sent."""
    _refuse_condition(call)
    sent = call.store.agents.signal(params.id, body.name, body.value, id=body.signal_id, create=body.create)
    return admin_models.SentSignalModel(new=sent)


@AGENT_STEPS.put("/agents/{id}/state")
def save_agent_state(call: Call, params: inputs.IdParams, body: inputs.AgentStateRequest) -> models.AgentModel:
    """Save an agent that has no class: the state that it is in, and its data, which are its fields."""
    _refuse_condition(call)
    saved = call.store.agents.save_state(params.id, type=body.type, state=body.state, data=body.data)
    return models.AgentModel(**fields_of(models.AgentModel, saved, damaged=False, pending=""))


@AGENT_STEPS.post("/agents/{id}/transitions")
def record_transition(call: Call, params: inputs.IdParams, body: inputs.TransitionRequest) -> models.TransitionModel:
    """Record a transition that an agent without a class took elsewhere, or that was refused there."""
    _refuse_condition(call)
    options = {name: getattr(body, name) for name in ("trigger", "success", "error", "data")}
    made = call.store.agents.record_transition(params.id, body.source, body.target, **options)
    return models.TransitionModel(**fields_of(models.TransitionModel, made))


def _refuse_condition(call: Call) -> None:
    """Refuse a condition that would not be checked."""
    if call.if_match:
        raise InvalidError("If-Match has no effect here", hint="Send the request without it")


def _to_step(step: StepRecord) -> admin_models.StepModel:
    return admin_models.StepModel(**fields_of(admin_models.StepModel, step))


def _to_timer(timer: Timer) -> admin_models.TimerModel:
    return admin_models.TimerModel(**_with_value(admin_models.TimerModel, timer))


def _to_signal(signal: Signal) -> admin_models.SignalModel:
    return admin_models.SignalModel(**_with_value(admin_models.SignalModel, signal))


def _with_value(kind: type[models.Model], found: Timer | Signal) -> dict[str, Any]:
    return fields_of(kind, found, value=small_json(found.value))
