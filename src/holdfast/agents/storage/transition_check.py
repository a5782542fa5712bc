"""Compare recorded transitions with a machine as it is declared now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.transition_log import ROLLBACK, TransitionRecord, parse_cursor
from holdfast.errors import InvalidError


@dataclass(frozen=True, slots=True)
class TransitionCheck:
    """The result of recorded triggers on a machine as it is declared now."""

    path: tuple[str, ...]
    """The states, from the first on."""
    state: str
    """The last state."""
    matches: bool
    """Whether all transitions lead where they were recorded to lead."""
    divergence: TransitionRecord | None = None
    """The first transition that does not."""
    reason: str = ""


def check_transitions(changes: Iterable[TransitionRecord], machine: Machine) -> TransitionCheck:
    """Apply recorded triggers to a machine, and check that they lead to the recorded states. Nothing is called: where
    guards decide between several transitions, any of them matches.

    The check ends with the first transition that leads elsewhere, as it may after the machine was changed. Failed
    transitions are skipped; rollbacks are followed.
    """
    path: list[str] = []
    for each in sorted(changes, key=lambda each: parse_cursor(each.cursor)):
        if not each.ok:
            continue
        path = path or [each.source]
        reason = _difference(each, machine, path[-1])
        if reason:
            return TransitionCheck(tuple(path), path[-1], False, each, reason)
        path.append(each.target)
    path = path or [machine.initial]
    return TransitionCheck(tuple(path), path[-1], True)


def _difference(change: TransitionRecord, machine: Machine, state: str) -> str:
    """Return how a transition differs from its record; empty if it does not."""
    if change.source != state:
        return f"it is recorded from the state {change.source!r}, and the one before led to {state!r}"
    if change.target not in machine.states or state not in machine.states:
        return f"the machine has no state {(state if state not in machine.states else change.target)!r}"
    if change.trigger == ROLLBACK:
        return ""
    try:
        targets = dict.fromkeys(each.target for each in machine.transitions_for(change.trigger, state))

    except InvalidError as error:
        return error.what
    if change.target not in targets:
        return f"{change.trigger!r} leads from {state!r} to {' or '.join(map(repr, targets))}, not {change.target!r}"
    return ""
