"""The data of the pages of runs: all of them, and one with its steps and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import NotFoundError
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text

_CHANGES = {"failed": "retry", "cancelled": "retry", "queued": "cancel", "running": "cancel", "waiting": "cancel"}
"""What can be done with a run in a state; an answer is given by a program or a command."""

_SHOWN = 50


def run_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of runs shows: the latest, of a thread, or in a state."""
    given = {name: params.get(name, "") for name in ("state", "thread")}
    chosen = {name: value for name, value in given.items() if value}
    runs = call.owned.runs.list(**chosen, limit=_SHOWN, cursor=params.get("cursor"))
    return {"runs": runs, "run": None, "given": given, "states": ("queued", "running", "waiting", "failed")}


def run_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of a run shows."""
    runs = call.owned.runs
    run = runs.get(id)
    return {
        "run": run,
        "steps": runs.steps(id),
        "events": runs.events(id)[::-1],
        "input": "" if run.input is None else long_text(run.input, 4000)[0],
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
