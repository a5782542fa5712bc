"""The process of a replay of an agent: takes its recorded transitions again, on a fork of the agent in memory."""

from __future__ import annotations

import time
from typing import Any

from holdfast._lazy import import_declared
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord
from holdfast.backends.runtime.drivers import run as drive
from holdfast.errors import ConfigError
from holdfast.maintenance.erasure.store_copy import copy_lines
from holdfast.recording import (
    VERSION,
    Call,
    DivergedRun,
    Divergence,
    ReplayJournal,
    ReplayReport,
    current_journal,
    difference,
    first_of,
    isolate,
    plain,
    serve,
)
from holdfast.store.opener import open as open_store
from holdfast.store.store import Store
from holdfast.store.store_rows import open_rows


def replay(order: dict[str, Any], recording: bytes) -> dict[str, Any]:
    """Replay an agent as ordered, and return the report."""
    start, id = time.monotonic(), order["agent"]
    recorded = open_rows(recording)
    line = AgentLine(recorded._handle, id)
    newest = drive(line.require_step())
    actions = drive(line.read_recorded(newest))
    found: list[Divergence] = []
    isolate(lambda what: found.append(Divergence("effect", f"the code {what}")))
    _import(order["kind"])
    steps = calls = 0
    state: Any = None
    note = next((f"version {each['version']} is not recorded in full" for each in actions if not _is_full(each)), "")
    for action in actions if not note else ():
        before = len(found)
        journal = ReplayJournal(
            action["key"],
            action["version"],
            [Call.of_record(call) for call in action["calls"]],
            lambda _, a, b: difference(a, b),
            found.append,
        )
        state = _take(recorded, line, action, journal, found)
        steps, calls = steps + 1, calls + len(journal.recorded) - len(journal.left)
        if len(found) == before and not action.get("error"):
            text = difference(_state_of(recorded.agents.load(id, version=action["version"] + 1)), state)
            if text is not None:
                found.append(Divergence("output", "the agent differs", action["version"], action["key"], 1 << 30, text))
        if found:
            break
    return ReplayReport(
        id, steps, calls, time.monotonic() - start, first_of(found), len(found), not note, note, plain(state)
    ).to_json()


def _take(
    recorded: Store, line: AgentLine, action: dict[str, Any], journal: ReplayJournal, found: list[Divergence]
) -> Any:
    """Take a recorded transition again, from the version that it began with. Returns the agent's state."""
    with open_store("memory://", tenant=recorded.tenant) as fork:
        engine = recorded._handle.engine
        drive(copy_lines(engine, fork._handle.engine, {}, recorded.tenant, None, [line.line]))
        id = line.id
        fork.agents.rollback(id, action["version"] - 1)
        agent = fork.agents.restore(id, record=False)
        journal_before = current_journal.set(journal)
        error = ""
        try:
            agent.transition(action["trigger"], action["data"])
        except DivergedRun:
            return None
        except Exception as raised:  # noqa: BLE001 - it may be the recorded one
            error = f"{type(raised).__name__}: {raised}"
        finally:
            current_journal.reset(journal_before)
        journal.close()
        text = difference(action.get("error", ""), error)
        if text is not None:
            found.append(Divergence("error", "the action ends otherwise", action["version"], action["key"], 0, text))
        return _state_of(fork.agents.load(id))


def _state_of(record: AgentRecord) -> dict[str, Any]:
    return {"state": record.state, "fields": dict(record.fields), "context": dict(record.context)}


def _is_full(action: dict[str, Any]) -> bool:
    return action.get("v") == VERSION and action.get("mode", "full") == "full"


def _import(name: str) -> None:
    """Import the module that declares the agent's class; its name may follow a colon."""
    try:
        import_declared(name.partition(":")[0])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"the agent cannot be imported: {error}", where=name[:200]) from error


def main() -> None:
    """Replay what the host sends."""
    serve(lambda _, order, recording: replay(order, recording))


if __name__ == "__main__":
    main()
