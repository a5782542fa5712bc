"""The data of the page of a recorded run: its steps with what they called, replays, and what would be otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import run
from holdfast.codec.value_text import json_text
from holdfast.engine.namespaces import split_name
from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.recording_routes import get_recording, replay_thread
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.action_plan import ActionForm
from holdfast.interfaces.web.page_renderer import python_text, shell_text
from holdfast.interfaces.web.redaction import Redaction
from holdfast.store.checkpoint_store import CheckpointStore

_STEPS = 50
"""How many checkpoints are looked at for a page."""

_SUBGRAPHS = 100


class ReplayPlan(NamedTuple):
    """A replay as a form has it: from which checkpoint, and which result is replaced by what."""

    since: str = ""
    change: str = ""
    """The name of a call; empty if nothing is replaced."""
    value: str = ""
    """What replaces its result, as JSON."""


def recording_values(call: Call, name: str, at: str, params: Mapping[str, str], form: ActionForm) -> dict[str, Any]:
    """Return what the page of a recorded run shows, up to a checkpoint; if its form was sent, also how its replay
    ended."""
    checkpoint = call.store.thread(name).find(at)
    cursor = params.get("cursor") or None
    page = get_recording(call, name, at=None if cursor else checkpoint.id, cursor=cursor, limit=_STEPS)
    redaction = Redaction(call, name, clear=params.get("clear") == "1")
    steps = [redaction.apply(each) for each in reversed(page)]
    calls = {each.name: each for step in steps for task in step.tasks for each in task.calls}
    plan = _plan({field: form.text(field) for field in ReplayPlan._fields} if form.sent else params, calls)
    graph = call.service.options.graph
    until = "" if at == "HEAD" else checkpoint.id
    values: dict[str, Any] = {
        "name": name,
        "at": at,
        "step": checkpoint.step,
        "steps": steps,
        "next": page.next,
        "further": bool(cursor),
        "redaction": redaction,
        "calls": len(calls),
        "exact": all(task.mode == "full" for step in steps for task in step.tasks),
        "plan": plan,
        "editing": calls.get(plan.change),
        "graph": graph,
        "replayable": bool(graph) and not call.caller.identity and call.service.may_write(call.caller),
        "report": None,
        "problem": None,
        **_namespaces(call, name),
    }
    values["python"], values["cli"] = _commands(name, plan, until, graph or "MODULE:NAME")
    if form.sent:
        values |= _replay(call, name, plan, until)
    return values


def _namespaces(call: Call, name: str) -> dict[str, Any]:
    """Return the thread that a subgraph belongs to, if this is one; and the subgraphs of a thread, with their names."""
    thread, namespace = split_name(name)
    if namespace:
        return {"parent": thread, "subgraphs": []}
    found = run(CheckpointStore(call.store).namespaces(name))[1 : _SUBGRAPHS + 1]
    return {"parent": "", "subgraphs": [(each, split_name(each)[1]) for each in found]}


def _plan(given: Mapping[str, str], calls: Mapping[str, models.RecordedCallModel]) -> ReplayPlan:
    plan = ReplayPlan(*(given.get(field, "").strip() for field in ReplayPlan._fields))
    found = calls.get(plan.change)
    if found is None or plan.value:
        return plan
    recorded = found.result if found.answer is None else found.answer.text
    return plan._replace(value=json_text(recorded, indent=2))


def _commands(name: str, plan: ReplayPlan, until: str, graph: str) -> tuple[str, str]:
    """Return a replay as Python and as a command."""
    python = [python_text(graph), f"thread={python_text(name)}"]
    cli = ["holdfast replay run", shell_text(name), "--graph", shell_text(graph)]
    for option, value in (("since", plan.since), ("until", until)):
        if value:
            python.append(f"{option}={python_text(value)}")
            cli += [f"--{option}", shell_text(value)]
    if plan.change:
        try:
            value = json.loads(plan.value or "null")
        except ValueError:
            value = plan.value
        python.append(f"changes={{{python_text(plan.change)}: {value!r}}}")
        cli += ["--change", shell_text(f"{plan.change}={json_text(value)}")]
    check = "" if plan.change else ".check()"
    return f"from holdfast import replay\nreplay.run(store, {', '.join(python)}){check}", " ".join(cli)


def _replay(call: Call, name: str, plan: ReplayPlan, until: str) -> dict[str, Any]:
    try:
        changes = {plan.change: json.loads(plan.value)} if plan.change else {}
    except ValueError as error:
        return {"problem": to_problem(InvalidError(f"the result is not JSON: {error}", hint='A text is in "quotes"'))}
    try:
        call.require_write()
        report = replay_thread(call, name, since=plan.since or None, until=until or None, changes=changes)
        return {"report": report}
    except HoldfastError as error:
        return {"problem": to_problem(error)}
