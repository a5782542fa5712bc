"""The data of the pages of runs: all of them, and one with its steps and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.agents.runs.record import CLIENT
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.action_plan import ActionField, ActionForm
from holdfast.interfaces.web.operation_form import Given, OperationForm, fill_form

_CHANGES = {"failed": "retry", "cancelled": "retry", "queued": "cancel", "running": "cancel", "waiting": "cancel"}
"""What can be done with a run in a state; an answer is given by a program or a command."""

_SHOWN = 50


def run_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of runs shows: the latest, of a thread, or in a state; and the limits for all workers."""
    given = {name: params.get(name, "") for name in ("state", "thread")}
    chosen = {name: value for name, value in given.items() if value}
    runs = call.owned.runs
    return {
        "runs": runs.list(**chosen, limit=_SHOWN, cursor=params.get("cursor")),
        "run": None,
        "given": given,
        "states": ("queued", "running", "waiting", "failed"),
        "limits": runs.limits(),
        "changeable": call.service.may_write(call.caller),
    }


def run_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of a run shows."""
    runs = call.owned.runs
    run = runs.get(id)
    given = run.input
    if isinstance(given, Mapping) and list(given) == [CLIENT]:
        given = given[CLIENT]
    return {
        "run": run,
        "steps": runs.steps(id),
        "events": runs.events(id)[::-1],
        "input": "" if given is None else long_text(given, 4000)[0],
        "result": "" if run.result is None else long_text(run.result, 4000)[0],
        "change": _CHANGES.get(run.state, "") if call.service.may_write(call.caller) else "",
    }


def change_run(call: Call, id: str, change: str) -> None:
    """Cancel or retry a run."""
    call.require_write()
    if change not in ("cancel", "retry"):
        raise NotFoundError("there is no page at this address", hint="Go to the runs")
    runs = call.owned.runs
    (runs.cancel if change == "cancel" else runs.retry)(id)


def limit_values(call: Call, form: ActionForm) -> dict[str, Any]:
    """Return what the form shows by which runs are limited; and limit them, if it was sent to be done."""
    graph = form.text("graph")
    most = next((str(each.most) for each in call.owned.runs.limits() if each.graph == graph), "")

    def arguments(given: Given) -> tuple[list[Any], dict[str, Any]]:
        if given["most"] and not given["most"].isdecimal():
            raise InvalidError(f"the limit is a number of runs, not {given['most']!r}"[:200])
        return [given["graph"] or None, int(given["most"]) if given["most"] else None], {}

    def effects(given: Given) -> list[str]:
        what = f"Runs of {given['graph']}" if given["graph"] else "All runs"
        if not given["most"]:
            return [f"{what} have no limit."]
        return [f"{what}: at most {given['most']} at a time, by all workers together. Those under way go on."]

    chosen = OperationForm(
        "Limit runs",
        "runs.limit",
        "Save",
        "/runs",
        [
            ActionField("graph", "Graph or workflow, empty for all together", graph),
            ActionField("most", "At most so many at a time, empty for no limit", most, hint="0 lets none begin"),
        ],
        "",
        arguments,
        effects,
        lambda given: [
            *("runs", "limit", given["most"] or "--remove"),
            *(("--graph", given["graph"]) if given["graph"] else ()),
        ],
    )
    filled = fill_form(call, chosen, form)
    return {"form": chosen, "filled": filled, "plan": filled.plan, "secret": "", "report": None}
