"""The durable steps, timers and signals on the page of an agent, and the actions on them: each with what will be true
afterwards, the same as a command, and its request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.agents.steps.records import StepRecord
from holdfast.agents.steps.signals import Signal
from holdfast.agents.steps.timers import Timer
from holdfast.codec.value_text import json_text
from holdfast.errors import DeniedError, HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.cli.formatting import clock
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.action_plan import (
    ActionField,
    ActionForm,
    ActionPlan,
    UnmetError,
    build_request,
    require,
)
from holdfast.interfaces.web.page_renderer import python_text, segment, shell_text

_ROWS = 50
_EXAMINED = 1000
"""Among how many steps at a time those without an outcome are looked for: to read so many takes part of a second."""

_HOWS = (
    ("", "choose what you found out"),
    ("result", "it was done, with this result"),
    ("error", "it failed, with this error"),
    ("retry", "it may run again"),
)


class StepParts(NamedTuple):
    """The data of the page of an agent about its steps, timers and signals."""

    steps: Sequence[StepRecord] = ()
    next: str | None = None
    unresolved: Sequence[StepRecord] = ()
    """Those of them that are running, or whose outcome is unknown."""
    only: bool = False
    """Whether only those are shown."""
    examined: int = 0
    timers: Sequence[Timer] = ()
    more_timers: int = 0
    """How many timers are not shown."""
    signals: Sequence[Signal] = ()
    """Each with the start of its value."""
    more_signals: int = 0
    problem: models.Problem | None = None
    """Why they cannot be shown."""
    changeable: bool = False
    sendable: bool = False


def step_parts(call: Call, id: str, params: Mapping[str, str]) -> StepParts:
    """Return what the page of an agent shows of its steps, timers and signals, or why it cannot."""
    steps, only = call.store.agents.steps(id), params.get("unresolved") == "1"
    try:
        page = steps.list(limit=_EXAMINED if only else _ROWS, cursor=params.get("steps") or None)
        unresolved = [each for each in page if each.state == "running"]
        timers, signals = call.store.agents.timers(id).list(), steps.signals()
        return StepParts(
            steps=unresolved if only else page,
            next=page.next,
            unresolved=unresolved,
            only=only,
            examined=len(page),
            timers=timers[:_ROWS],
            more_timers=len(timers[_ROWS:]),
            signals=signals[:_ROWS],
            more_signals=len(signals[_ROWS:]),
            changeable=_may_change(call, id, "step"),
            sendable=_may_change(call, id, "signal"),
        )
    except HoldfastError as error:
        return StepParts(problem=to_problem(error), sendable=_may_change(call, id, "signal"))


def _may_change(call: Call, id: str, key: str) -> bool:
    """Whether the caller may change the steps of an agent, or send it signals."""
    if not call.service.may_write(call.caller):
        return False
    identity = call.caller.identity
    access = call.service.store.access
    return not identity or access.may(identity, "write", None, key, agent=id, custom="steps/main")


# Actions ----------------------------------------------------------------------------------------------------------


def resolve_step_values(call: Call, id: str, key: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form shows by which somebody records what became of a step."""
    _require_change(call, id, "step")
    step = call.store.agents.steps(id).get(key)
    path = f"steps/{segment(key)}/resolve"
    return _action_values(id, path, "Resolve a step", key, form, lambda: _plan_resolution(id, step, form))


def _plan_resolution(id: str, step: StepRecord, form: ActionForm) -> ActionPlan:
    how, typed = form.text("how"), form.text("value")
    python = f"store.agents.steps({python_text(id)}).resolve({python_text(step.key)}, "
    cli = f"holdfast agent resolve-step {shell_text(id)} {shell_text(step.key)} "
    plan = ActionPlan(
        [
            ActionField("how", "What became of it", how, "select", _HOWS),
            ActionField("value", "Its result as JSON, or its error as text", typed, "long", hint='{"paid": true}'),
        ],
        "Resolve",
        effects=_describe(step),
        # Neither of them does anything before it is filled in: to run a step again by mistake may charge twice.
        python=f"{python}result=…)  # or error=…, or retry=True",
        cli=f"{cli}--result JSON  # or --error TEXT, or --retry",
        confirm=step.key,
    )
    if step.state == "done":
        return plan._replace(effects=["The step is done, and its result is recorded."])
    body: dict[str, Any] = {"how": how}
    if how == "result":
        body["result"] = require(plan, lambda: _parse_json(typed))
        given = f"result={body['result']!r}", f"--result {shell_text(json_text(body['result']))}"
        effect = "The step is done, with this result. Whoever calls it gets the result, and the function is not run."
    elif how == "error":
        body["error"] = require(plan, lambda: _require_text(typed))
        given = f"error={python_text(typed)}", f"--error {shell_text(typed)}"
        effect = "The step has failed. Whoever calls it gets a HandlerError with this text."
    elif how == "retry":
        given = "retry=True", "--retry"
        effect = (
            f"Whoever calls the step runs the function again, as attempt {step.attempts + 1}, with the same "
            "idempotency key. If it was done after all, it is done twice, unless the service knows that key."
        )
    else:
        return plan
    address = f"/api/v1/agents/{segment(id)}/steps/{segment(step.key)}/resolutions"
    return plan._replace(
        effects=[*plan.effects, effect],
        python=f"{python}{given[0]})",
        cli=f"{cli}{given[1]}",
        request=build_request("POST", address, body),
    )


def _describe(step: StepRecord) -> list[str]:
    """Say what is known of a step, by which one can find out what became of it."""
    found = f"{step.function} was called {clock(step.started)}, attempt {step.attempts}, by {step.by}."
    known = [found, f"Its idempotency key is {step.idempotency_key}."]
    return [*known, f"Its error was: {step.error}"] if step.error else known


def cancel_timer_values(call: Call, id: str, name: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form shows by which a timer is cancelled."""
    _require_change(call, id, "step")
    timer = next((each for each in call.store.agents.timers(id).list() if each.name == name), None)
    plan = ActionPlan(
        [],
        "Cancel the timer",
        python=f"store.agents.timers({python_text(id)}).cancel({python_text(name)})",
        cli=f"holdfast agent cancel-timer {shell_text(id)} {shell_text(name)}",
    )
    if timer is None:
        plan = plan._replace(effects=["There is no such timer any more: it was delivered, or cancelled."])
    else:
        sends = f"the signal {timer.signal} is not sent" if timer.signal else "the sleep ends now"
        plan = plan._replace(
            effects=[f"It is due {clock(timer.due)}. If it is cancelled, {sends}."],
            request=build_request("DELETE", f"/api/v1/agents/{segment(id)}/timers/{segment(name)}", None),
        )
    return _action_values(id, f"timers/{segment(name)}/cancel", "Cancel a timer", name, form, lambda: plan)


def send_signal_values(call: Call, id: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form shows by which a signal is sent."""
    _require_change(call, id, "signal")
    return _action_values(id, "signal", "Send a signal", "", form, lambda: _plan_signal(id, form))


def _plan_signal(id: str, form: ActionForm) -> ActionPlan:
    name, typed, signal_id = form.text("name"), form.text("value"), form.text("signal_id")
    plan = ActionPlan(
        [
            ActionField("name", "Name", name, hint="approved"),
            ActionField("signal_id", "Id, of which each is sent once", signal_id, hint="approval-42"),
            ActionField("value", "Value as JSON", typed, "long", hint='{"by": "Ada"}'),
        ],
        "Send",
        python=f"store.agents.signal({python_text(id)}, {python_text(name or 'NAME')})",
        cli=f"holdfast agent signal {shell_text(id)} {shell_text(name or 'NAME')}",
        effects=[
            f"The signal waits until the agent calls wait_for({python_text(name or 'NAME')}), or is given to it now."
        ],
    )
    if not name:
        return plan
    value = require(plan, lambda: _parse_json(typed)) if typed else None
    python, cli = (f", {value!r}", f" {shell_text(json_text(value))}") if typed else ("", "")
    if signal_id:
        python, cli = f"{python}, id={python_text(signal_id)}", f"{cli} --id {shell_text(signal_id)}"
        plan = plan._replace(
            effects=[*plan.effects, f"If one with the id {signal_id} was sent before, this is not sent."]
        )
    body = {"name": name, "value": value, "signal_id": signal_id or None}
    return plan._replace(
        python=f"{plan.python[:-1]}{python})",
        cli=f"{plan.cli}{cli}",
        request=build_request("POST", f"/api/v1/agents/{segment(id)}/signals", body),
    )


def _require_change(call: Call, id: str, key: str) -> None:
    if not _may_change(call, id, key):
        raise DeniedError("this agent is only read here", hint="Start the server with --write, with a right to write")
    if not call.store.agents.exists(id):
        raise NotFoundError("there is no such agent", where=f"agent {id!r}"[:200])


def _action_values(
    id: str, path: str, title: str, subject: str, form: ActionForm, make_plan: Callable[[], ActionPlan]
) -> dict[str, Any]:
    """Return what the form of an action at a path below the page of an agent shows."""
    try:
        plan = make_plan()
    except UnmetError as unmet:
        plan = unmet.plan
    return {
        "id": id,
        "path": path,
        "title": title,
        "subject": subject,
        "plan": plan,
        "typed": form.text("typed"),
        "seen": "",
        "stale": None,
    }


def _require_text(text: str) -> str:
    if not text:
        raise InvalidError("an error needs a text")
    return text


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidError('the value is not JSON: a text needs quotes, as in "rest"') from None
