"""Replays of agents: takes their recorded transitions again, each on a fork of the agent in memory."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any

from holdfast.agents.definition.spec import registry
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord, error_text
from holdfast.backends.runtime.drivers import AsyncApi, arun
from holdfast.backends.runtime.drivers import run as drive
from holdfast.errors import ConfigError, HoldfastError
from holdfast.maintenance.erasure.store_copy import copy_lines
from holdfast.recording.comparison import difference
from holdfast.recording.journal import VERSION, Call, DivergedRun, Divergence, ReplayJournal, current_journal
from holdfast.store.opener import aopen as aopen_store
from holdfast.store.opener import open as open_store
from holdfast.store.replay.code_lookup import find_code
from holdfast.store.replay.isolation import isolate
from holdfast.store.replay.process import Host
from holdfast.store.replay.report import build_report, divergence_here
from holdfast.store.store import AsyncStore, Store
from holdfast.store.store_rows import open_rows


class AgentReplayer:
    """Takes the recorded transitions of agents again."""

    def __init__(self, _: Host) -> None:
        self._found: list[Divergence] = []
        self._is_isolated = False

    def replay(self, order: dict[str, Any], recording: bytes) -> dict[str, Any]:
        """Replay an agent as ordered, and return the report; of one that is finished, or of another class, only that,
        if open ones are meant."""
        start, id = time.monotonic(), order["agent"]
        with open_rows(recording) as recorded:
            line = AgentLine(recorded._handle, id)
            newest = drive(line.require_step())
            actions = drive(line.read_recorded(newest))
            self._found.clear()
            if not self._is_isolated:
                self._is_isolated = True
                isolate(lambda what: self._found.append(divergence_here("effect", f"the code {what}")))
            kinds = _import(order["kind"])
            latest = recorded.agents.load(id)
            if order.get("only_open") and latest.kind not in kinds:
                return {"skipped": "other"}
            machine = registry.get(latest.kind).machine
            is_open = machine is None or latest.state not in machine.final
            if order.get("only_open") and not is_open:
                return {"skipped": "finished"}
            steps, calls, state = 0, 0, None
            note = _note(actions)
            for action in actions if not note else ():
                journal = ReplayJournal(
                    action["key"],
                    action["version"],
                    [Call.of_record(call) for call in action["calls"]],
                    lambda _, a, b: difference(a, b),
                    self._found.append,
                )
                state = self._replay_action(recorded, line, action, journal)
                steps, calls = steps + 1, calls + len(journal.recorded) - len(journal.left)
                if any(each.kind != "effect" for each in self._found):
                    break
            return build_report(
                id, self._found, steps=steps, calls=calls, start=start, note=note, state=state, is_open=is_open
            ).to_json()

    def _replay_action(self, recorded: Store, line: AgentLine, action: dict[str, Any], journal: ReplayJournal) -> Any:
        """Take a recorded transition again, and compare the agent with the recorded one. Returns its state."""
        version, key, known = action["version"], action["key"], len(self._found)
        before, is_async = current_journal.set(journal), _is_async(recorded.agents.load(line.id).kind)
        try:
            error, record = (asyncio.run if is_async else drive)(_take(recorded, line, action, is_async))
        except DivergedRun:
            return None
        finally:
            current_journal.reset(before)
        journal.close()
        text = difference(action.get("error", ""), error)
        if text is not None:
            self._found.append(Divergence("error", "the action ends otherwise", version, key, 0, text))
        state = _state_of(record)
        if len(self._found) == known and not action.get("error"):
            text = difference(_state_of(recorded.agents.load(line.id, version=version + 1)), state)
            if text is not None:
                self._found.append(Divergence("output", "the agent differs", version, key, 1 << 30, text))
        return state


async def _take(recorded: Store, line: AgentLine, action: dict[str, Any], is_async: bool) -> tuple[str, AgentRecord]:
    """Take a transition, from the version that it began with, on a fork. Returns its error and the agent's record."""
    fork: Store | AsyncStore = (
        await aopen_store("memory://", tenant=recorded.tenant)
        if is_async
        else open_store("memory://", tenant=recorded.tenant)
    )
    try:
        copy = copy_lines(recorded._handle.engine, fork._handle.engine, {}, recorded.tenant, None, [line.line])
        await (arun(copy) if is_async else copy)
        await _settle(fork.agents.rollback(line.id, action["version"] - 1))
        agent = await _settle(fork.agents.restore(line.id, record=False))
        error = ""
        try:
            await _settle(agent.transition(action["trigger"], action["data"]))
        except Exception as raised:  # noqa: BLE001 - it may be the recorded one
            error = error_text(raised)
        record: AgentRecord = await _settle(fork.agents.load(line.id))
        return error, record
    finally:
        await _settle(fork.close())


async def _settle(found: Any) -> Any:
    """Return what a call of a store or an agent returned, for asyncio or not."""
    return await found if inspect.isawaitable(found) else found


def _is_async(kind: str) -> bool:
    factory = registry.get(kind).factory
    return isinstance(factory, type) and issubclass(factory, AsyncApi)


def _note(actions: list[dict[str, Any]]) -> str:
    """Return why an agent cannot be replayed exactly; empty if it can."""
    if not actions:
        return "no action was recorded: attach the agent with record=True"
    return next((f"version {each['version']} is not recorded in full" for each in actions if not _is_full(each)), "")


def _state_of(record: AgentRecord) -> dict[str, Any]:
    return {"state": record.state, "fields": dict(record.fields), "context": dict(record.context)}


def _is_full(action: dict[str, Any]) -> bool:
    return action.get("v") == VERSION and action.get("mode", "full") == "full"


def _import(name: str) -> set[str]:
    """Import a class of agents, or a module with some. Returns the names under which they are registered."""
    hint = "Name its class: package.module:Class"
    found = find_code(name, "agent", hint)
    try:
        return {registry.of(found).name} if ":" in name else set(registry)
    except HoldfastError as error:
        raise ConfigError(f"the agent cannot be imported: {error}", where=name[:200], hint=hint) from error
