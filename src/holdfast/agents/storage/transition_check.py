"""Replay: recorded transitions, held against a machine as it is declared now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.transition_log import ROLLBACK, TransitionRecord, place
from holdfast.errors import InvalidError


@dataclass(frozen=True, slots=True)
class TransitionCheck:
    """What recorded triggers come to, on a machine as it is declared now."""

    path: tuple[str, ...]
    """The states, from the first on."""
    state: str
    """The last of them."""
    matches: bool
    """Whether all went as it was recorded."""
    diverged: TransitionRecord | None = None
    """The first that did not."""
    reason: str = ""


def check_transitions(changes: Iterable[TransitionRecord], machine: Machine) -> TransitionCheck:
    """Apply recorded triggers to a machine, and see whether they lead where they led. Nothing is called: where guards
    decide between several ways, any of them will do.

    It ends with the first that leads elsewhere, as it may after the machine was changed. Those that failed are passed
    over; a rollback is followed.
    """
    path: list[str] = []
    for each in sorted(changes, key=lambda each: place(each.cursor)):
        if not each.ok:
            continue
        path = path or [each.source]
        reason = _against(each, machine, path[-1])
        if reason:
            return TransitionCheck(tuple(path), path[-1], False, each, reason)
        path.append(each.target)
    path = path or [machine.initial]
    return TransitionCheck(tuple(path), path[-1], True)


def _against(change: TransitionRecord, machine: Machine, state: str) -> str:
    """What is not as it was recorded; empty if nothing is."""
    if change.source != state:
        return f"it is recorded from the state {change.source!r}, and the one before led to {state!r}"
    if change.target not in machine.states or state not in machine.states:
        return f"the machine has no state {(state if state not in machine.states else change.target)!r}"
    if change.trigger == ROLLBACK:
        return ""
    try:
        targets = dict.fromkeys(way.target for way in machine.ways(change.trigger, state))
    except InvalidError as error:
        return error.what
    if change.target not in targets:
        return f"{change.trigger!r} leads from {state!r} to {' or '.join(map(repr, targets))}, not {change.target!r}"
    return ""
