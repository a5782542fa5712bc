"""State machines: states and transitions, declared in one place.

A machine is data. It does nothing by itself: `holdfast.agents.runtime.two_phase` takes an agent through its
transitions, `holdfast.agents.storage.diagram` draws it, and `holdfast.agents.storage.transition_check` holds what was
recorded against it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

from holdfast.errors import InvalidError

Called: TypeAlias = "Callable[..., Any] | str"
"""A function that is given the agent and the data of the transition; or the name of a method of the agent, which is
given the data."""

OnIncomplete: TypeAlias = Literal["back", "forward", "manual"]
"""What becomes of a change that is found half-done: it is taken back, done again and finished, or left to somebody."""

POLICIES: tuple[OnIncomplete, ...] = get_args(OnIncomplete)

ANY = "*"
"""As the source of a transition: every state that is not final."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One way from one state to another."""

    trigger: str
    source: str
    """The name of a state, or `*`."""
    target: str
    guard: Called | None = None
    """Says whether it may be taken."""
    validators: Sequence[Called] = ()
    """Raise what there is to say against the data."""
    action: Called | None = None
    """What is done on the way. It may be done again, if it was interrupted and is rolled forward."""
    via: str = ""
    """The state that it is in meanwhile; the one that it comes from, if this is empty."""
    on_incomplete: OnIncomplete | None = None
    """What becomes of it if it was interrupted; None for what the agent does with all."""


class Machine:
    """States, the first of them, and the transitions between them::

    machine = Machine("draft", "review", "done", final=["done"])
    machine.add("submit", "draft", "review", action="notify")
    machine.add("approve", "review", "done", guard=lambda agent, data: data == "yes")
    machine.add("reset", "*", "draft")
    """

    def __init__(
        self,
        *states: str,
        initial: str | None = None,
        final: Iterable[str] = (),
        validators: Mapping[str, Called] | None = None,
        enter: Mapping[str, Called] | None = None,
        leave: Mapping[str, Called] | None = None,
    ) -> None:
        """`validators` are asked about the fields of an agent that is to be in a state: at the end of a transition,
        when it is saved, and when it is restored. `enter` and `leave` are what is done whenever a transition leads into
        a state, or out of it; they are given what actions are given."""
        named = all(_is_name(state) and state != ANY for state in states)
        if not states or not named or len(set(states)) < len(states):
            raise InvalidError("a machine has states, each by a name of its own", where=repr(states)[:80])
        self.states = states
        self.initial = states[0] if initial is None else self._known(initial)
        self.final = frozenset(map(self._known, final))
        self.validators = self._by_state(validators)
        self.enter = self._by_state(enter)
        self.leave = self._by_state(leave)
        self.transitions: list[Transition] = []
        """All of them, in the order in which they were declared."""
        self._ways: dict[tuple[str, str], list[Transition]] = {}
        self._checked: set[type] = set()

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Self:
        """A machine of plain data, as a TOML or JSON file has it. Guards, validators and actions are names of methods.

        The keys are `states`, `initial`, `final`, `validators`, `enter`, `leave` and `transitions`: a list of mappings
        with what `add` takes.
        """
        rest = dict(_mapping(declared, "a machine"))
        states, transitions = rest.pop("states", ()), rest.pop("transitions", ())
        if isinstance(states, str) or not isinstance(states, Sequence):
            raise InvalidError("the states of a machine are a list of names", where=repr(states)[:80])
        try:
            machine = cls(*states, **rest)
            for each in transitions:
                machine.add(**_mapping(each, "a transition"))
        except TypeError as error:
            raise InvalidError(f"that declares no machine: {error}", where=repr(declared)[:80]) from None
        return machine

    def to_dict(self) -> dict[str, Any]:
        """The machine as plain data: what `of` takes. `InvalidError` if it has functions, which are no data."""
        declared: dict[str, Any] = {"states": list(self.states), "initial": self.initial}
        if self.final:
            declared["final"] = [state for state in self.states if state in self.final]
        for name, given in (("validators", self.validators), ("enter", self.enter), ("leave", self.leave)):
            if given:
                declared[name] = {state: _name_of(each) for state, each in given.items()}
        declared["transitions"] = [_plain(each) for each in self.transitions]
        return declared

    def __repr__(self) -> str:
        return f"<Machine of {len(self.states)} states and {len(self.transitions)} transitions>"

    def add(
        self,
        trigger: str,
        source: str | Sequence[str],
        target: str,
        *,
        guard: Called | None = None,
        validators: Sequence[Called] = (),
        action: Called | None = None,
        via: str = "",
        on_incomplete: OnIncomplete | None = None,
    ) -> None:
        """Declare a transition; from several states if several are given, and from all that are not final if it is `*`.

        Of those that one trigger has from one state, the first is taken whose guard lets it. What is declared for the
        state itself comes before what is declared for `*`.
        """
        if not _is_name(trigger):
            raise InvalidError("a transition has a trigger, which is a name", where=repr(trigger)[:80])
        if on_incomplete not in (None, *POLICIES):
            raise InvalidError(f"on_incomplete is one of {', '.join(POLICIES)}, not {on_incomplete!r}")
        if isinstance(validators, str) or not isinstance(validators, Sequence):
            raise InvalidError(f"the validators of {trigger!r} are a list", where=repr(validators)[:80])
        for each in [source] if isinstance(source, str) else source:
            way = Transition(
                trigger,
                each if each == ANY else self._known(each),
                self._known(target),
                guard,
                tuple(validators),
                action,
                via and self._known(via),
                on_incomplete,
            )
            if way.source in self.final:
                raise InvalidError(f"no transition leads out of a final state, {way.source!r}")
            self.transitions.append(way)
            self._ways.setdefault((trigger, way.source), []).append(way)
        self._checked.clear()

    # What there is --------------------------------------------------------------------------------------------

    @property
    def triggers(self) -> list[str]:
        """The triggers, in the order in which they were declared."""
        return list(dict.fromkeys(each.trigger for each in self.transitions))

    def ways(self, trigger: str, source: str, where: str = "") -> list[Transition]:
        """Those that a trigger has from a state, in the order in which they are tried. `InvalidError` if there is
        none."""
        found = self._ways.get((trigger, source), [])
        if source not in self.final and (trigger, ANY) in self._ways:
            found = [*found, *self._ways[trigger, ANY]]
        if not found:
            can = self.leaving(source)
            raise InvalidError(
                f"{trigger!r} leads nowhere from the state {source!r}",
                where=where,
                hint=f"From there, there is {', '.join(can)}" if can else "Nothing leads out of that state",
                code="no-transition",
            )
        return found

    def leaving(self, source: str) -> list[str]:
        """The triggers that lead out of a state."""
        several = (each.trigger for each in self.transitions if self._starts_at(each, source))
        return list(dict.fromkeys(several))

    def expanded(self) -> Iterator[Transition]:
        """All transitions, with each of the states that `*` stands for."""
        for each in self.transitions:
            if each.source != ANY:
                yield each
                continue
            for state in self.states:
                if state not in self.final:
                    yield _from(each, state)

    def _starts_at(self, way: Transition, source: str) -> bool:
        return way.source == source or (way.source == ANY and source in self.states and source not in self.final)

    # Whether it is right --------------------------------------------------------------------------------------

    def problems(self, agent: object = None) -> list[str]:
        """What is wrong with it: states that nothing leads to, transitions that can never be taken; and, if an agent or
        its class is given, names of methods that it does not have."""
        found = [f"nothing leads to the state {state!r}" for state in self.states if state not in self._reached()]
        for (trigger, source), ways in self._ways.items():
            if any(way.guard is None for way in ways[:-1]):
                where = "any state" if source == ANY else f"the state {source!r}"
                found.append(f"{trigger!r} is declared again from {where}, behind one that has no guard")
        if agent is not None:
            found += [
                f"{what} is {name!r}, and {_class_of(agent).__name__} has no such method"
                for what, name in self._named()
                if not callable(getattr(agent, name, None))
            ]
        found += [
            f"the validator of the state {state!r} is a coroutine function, which nobody can wait for while saving"
            for state, each in self.validators.items()
            if inspect.iscoroutinefunction(getattr(agent, each, None) if isinstance(each, str) else each)
        ]
        return found

    def check(self, agent: object) -> None:
        """Raise `InvalidError` if something is wrong with it, for an agent or for its class. Looked at once for a
        class."""
        if _class_of(agent) in self._checked:
            return
        found = self.problems(agent)
        if found:
            raise InvalidError(
                f"the machine is not right: {'; '.join(found)}",
                where=f"the machine of {_class_of(agent).__name__}",
                hint="Mend its declaration",
            )
        self._checked.add(_class_of(agent))

    def validate(self, state: str, agent: object, fields: Mapping[str, Any]) -> None:
        """Raise what there is to say against an agent that is to be in a state and have these fields."""
        if state not in self.states:
            raise InvalidError(
                f"the machine has no state {state!r}, which the agent is in",
                where=f"the machine of {_class_of(agent).__name__}",
                hint="Declare that state as well, or roll the agent back to another one",
            )
        validator = self.validators.get(state)
        if validator is not None:
            bound(validator, agent)(fields)

    def _reached(self) -> set[str]:
        reached, todo = {self.initial}, [self.initial]
        while todo:
            source = todo.pop()
            for way in self.transitions:
                if self._starts_at(way, source):
                    new = {way.target, way.via or source} - reached
                    reached |= new
                    todo += new
        return reached

    def _named(self) -> Iterator[tuple[str, str]]:
        """The methods that it names, and as what."""
        for what, given in (("validator", self.validators), ("entry action", self.enter), ("exit action", self.leave)):
            for state, each in given.items():
                if isinstance(each, str):
                    yield f"the {what} of the state {state!r}", each
        for way in self.transitions:
            several = (("guard", way.guard), ("action", way.action), *(("validator", each) for each in way.validators))
            for what, called in several:
                if isinstance(called, str):
                    yield f"the {what} of {way.trigger!r}", called

    def _known(self, state: str) -> str:
        if state not in self.states:
            raise InvalidError(f"the machine has no state {state!r}", hint=f"Its states are {', '.join(self.states)}")
        return state

    def _by_state(self, given: Mapping[str, Called] | None) -> dict[str, Called]:
        return {self._known(state): each for state, each in (given or {}).items()}


def bound(function: Called, agent: Any) -> Callable[..., Any]:
    """What is called for an agent: a method of it, or a function that is given it."""
    if isinstance(function, str):
        found: Callable[..., Any] = getattr(agent, function)
        return found
    return lambda *args: function(agent, *args)


def _from(way: Transition, state: str) -> Transition:
    return Transition(way.trigger, state, way.target, way.guard, way.validators, way.action, way.via, way.on_incomplete)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _class_of(agent: object) -> type:
    return agent if isinstance(agent, type) else type(agent)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidError(f"{what} is declared by a mapping with names", where=repr(value)[:80])
    return value


def _name_of(called: Called) -> str:
    if not isinstance(called, str):
        raise InvalidError(
            "a machine with functions is no plain data",
            where=getattr(called, "__qualname__", repr(called)),
            hint="Make it a method of the agent, and give its name",
        )
    return called


def _plain(way: Transition) -> dict[str, Any]:
    plain: dict[str, Any] = {"trigger": way.trigger, "source": way.source, "target": way.target}
    if way.guard is not None:
        plain["guard"] = _name_of(way.guard)
    if way.validators:
        plain["validators"] = [_name_of(each) for each in way.validators]
    if way.action is not None:
        plain["action"] = _name_of(way.action)
    if way.via:
        plain["via"] = way.via
    if way.on_incomplete is not None:
        plain["on_incomplete"] = way.on_incomplete
    return plain
