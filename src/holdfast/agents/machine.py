"""State machines: states and transitions, declared in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import Invalid

Called: TypeAlias = "Callable[..., Any] | str"
"""A function that is given the agent and the data of the transition; or the name of a method of the agent, which is
given the data."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One way from one state to another."""

    trigger: str
    source: str
    target: str
    guard: Called | None = None
    """Says whether it may be taken."""
    validators: Sequence[Called] = ()
    """Raise what there is to say against the data."""
    action: Called | None = None
    """What is done on the way. It may be done again, if it was interrupted and is rolled forward."""


class Machine:
    """States, the first of them, and the transitions between them::

    machine = Machine("draft", "review", "done")
    machine.add("submit", "draft", "review", action="notify")
    machine.add("approve", "review", "done", guard=lambda agent, data: data == "yes")
    """

    def __init__(
        self,
        *states: str,
        initial: str | None = None,
        final: Iterable[str] = (),
        validators: Mapping[str, Called] | None = None,
    ) -> None:
        """`validators` are asked about the fields of an agent that is to be in a state."""
        if not states or len(set(states)) < len(states) or not all(states):
            raise Invalid("a machine has states, each by a name of its own", where=repr(states)[:80])
        self.states = states
        self.initial = states[0] if initial is None else self._known(initial)
        self.final = frozenset(map(self._known, final))
        self.validators = {self._known(state): each for state, each in (validators or {}).items()}
        self._transitions: dict[tuple[str, str], list[Transition]] = {}

    def add(
        self,
        trigger: str,
        source: str | Sequence[str],
        target: str,
        *,
        guard: Called | None = None,
        validators: Sequence[Called] = (),
        action: Called | None = None,
    ) -> None:
        """Declare a transition; from several states, if several are given. Of those that one trigger has from one
        state, the first is taken whose guard lets it."""
        for each in [source] if isinstance(source, str) else source:
            way = Transition(trigger, self._known(each), self._known(target), guard, tuple(validators), action)
            if way.source in self.final:
                raise Invalid(f"no transition leads out of a final state, {way.source!r}")
            self._transitions.setdefault((trigger, way.source), []).append(way)

    @property
    def transitions(self) -> list[Transition]:
        """All of them, in the order in which they were declared."""
        return [each for several in self._transitions.values() for each in several]

    def ways(self, trigger: str, source: str) -> list[Transition]:
        """Those that a trigger has from a state. `Invalid` if there is none."""
        found = self._transitions.get((trigger, source))
        if not found:
            can = sorted({each for each, state in self._transitions if state == source})
            raise Invalid(
                f"{trigger!r} leads nowhere from the state {source!r}",
                hint=f"From there, there is {', '.join(can)}" if can else "Nothing leads out of that state",
                code="no-transition",
            )
        return found

    def _known(self, state: str) -> str:
        if state not in self.states:
            raise Invalid(f"the machine has no state {state!r}", hint=f"Its states are {', '.join(self.states)}")
        return state
