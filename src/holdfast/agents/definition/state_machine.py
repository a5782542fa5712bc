"""State machines: states and the transitions between them.

A machine is only data: `holdfast.agents.runtime.two_phase` takes an agent through its transitions,
`holdfast.agents.storage.transition_log` draws it, and checks recorded transitions.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

from holdfast.backends.interface import Suspension
from holdfast.errors import InvalidError

if TYPE_CHECKING:
    from holdfast.schemas.schema import Schema

Callback: TypeAlias = "Callable[..., Any] | str"
"""A function of the agent and the data of the transition; or the name of a method of the agent, which is passed the
data."""

Validator: TypeAlias = "Callback | Schema"
"""A callback that raises an error for what is invalid; or a schema, or a class that describes one."""

OnIncomplete: TypeAlias = Literal["back", "forward", "manual"]
"""How a change that is found half-done is resolved: undone, run again and finished, or left to the program."""

POLICIES: tuple[OnIncomplete, ...] = get_args(OnIncomplete)

ANY = "*"
"""As the source of a transition: every state that is not final."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition from one state to another."""

    trigger: str
    source: str
    """The name of a state, or `*`."""
    target: str
    guard: Callback | None = None
    """Returns whether the transition may be taken."""
    validators: Sequence[Callback] = ()
    """Raise an error for invalid data. A schema is one that does."""
    action: Callback | None = None
    """Run during the transition; and again, if it was interrupted and is rolled forward."""
    via: str = ""
    """The state during the action; the source, if this is empty."""
    on_incomplete: OnIncomplete | None = None
    """How an interrupted transition is resolved; None for the agent's own option."""


class Machine:
    """A state machine: states, the initial one, and the transitions between them::

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
        validators: Mapping[str, Validator] | None = None,
        enter: Mapping[str, Callback] | None = None,
        leave: Mapping[str, Callback] | None = None,
    ) -> None:
        """`validators` check the fields of an agent in a state: at the end of a transition, when it is saved, and when
        it is restored. A validator is a callback, a `holdfast.schemas.Schema`, or a class such as a TypedDict. `enter`
        and `leave` are actions that run whenever a transition enters or leaves a state; they are called like other
        actions."""
        named = all(_is_name(state) and state != ANY for state in states)
        if not states or not named or len(set(states)) < len(states):
            raise InvalidError("the states of a machine must have distinct names", where=repr(states)[:80])
        self.states = states
        self.initial: str = states[0] if initial is None else self._require_state(initial)
        self.final: frozenset[str] = frozenset(map(self._require_state, final))
        checks = {state: _validator(each) for state, each in (validators or {}).items()}
        self.validators: dict[str, Callback] = self._by_state(checks)
        self.enter: dict[str, Callback] = self._by_state(enter)
        self.leave: dict[str, Callback] = self._by_state(leave)
        self.transitions: list[Transition] = []
        """All transitions, in the order of their declaration."""
        self._by_trigger: dict[tuple[str, str], list[Transition]] = {}
        self._checked_classes: set[type] = set()

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Self:
        """Build a machine from plain data, such as of a TOML or JSON file. Guards, validators and actions are names of
        methods.

        The keys are `states`, `initial`, `final`, `validators`, `enter`, `leave` and `transitions`: a list of mappings
        with the arguments of `add`.
        """
        rest = dict(_mapping(declared, "a machine"))
        states, transitions = rest.pop("states", ()), rest.pop("transitions", ())
        if isinstance(states, str) or not isinstance(states, Sequence):
            raise InvalidError("the states of a machine must be a list of names", where=repr(states)[:80])
        try:
            machine = cls(*states, **rest)
            for each in transitions:
                machine.add(**_mapping(each, "a transition"))
        except TypeError as error:
            raise InvalidError(
                f"the declaration of the state machine is invalid: {error}", where=repr(declared)[:80]
            ) from None
        return machine

    def to_dict(self) -> dict[str, Any]:
        """Return the machine as plain data, as `of` accepts it. Raises `InvalidError` if it has functions."""
        declared: dict[str, Any] = {"states": list(self.states), "initial": self.initial}
        if self.final:
            declared["final"] = [state for state in self.states if state in self.final]
        for name, callbacks in (("validators", self.validators), ("enter", self.enter), ("leave", self.leave)):
            if callbacks:
                declared[name] = {state: _method_name(each) for state, each in callbacks.items()}
        declared["transitions"] = [_to_dict(each) for each in self.transitions]
        return declared

    def __repr__(self) -> str:
        return f"<Machine of {len(self.states)} states and {len(self.transitions)} transitions>"

    def add(
        self,
        trigger: str,
        source: str | Sequence[str],
        target: str,
        *,
        guard: Callback | None = None,
        validators: Sequence[Validator] = (),
        action: Callback | None = None,
        via: str = "",
        on_incomplete: OnIncomplete | None = None,
    ) -> None:
        """Declare a transition from one state, from several, or with `*` from all that are not final.

        If a trigger has several transitions from a state, the first is taken whose guard allows it. Transitions of the
        state itself precede those of `*`.
        """
        if not _is_name(trigger):
            raise InvalidError("the trigger of a transition must be a name", where=repr(trigger)[:80])
        if on_incomplete not in (None, *POLICIES):
            raise InvalidError(f"on_incomplete must be one of {', '.join(POLICIES)}, not {on_incomplete!r}")
        if isinstance(validators, str) or not isinstance(validators, Sequence):
            raise InvalidError(f"the validators of {trigger!r} must be a list", where=repr(validators)[:80])
        for each in [source] if isinstance(source, str) else source:
            transition = Transition(
                trigger,
                each if each == ANY else self._require_state(each),
                self._require_state(target),
                guard,
                tuple(map(_validator, validators)),
                action,
                via and self._require_state(via),
                on_incomplete,
            )
            if transition.source in self.final:
                raise InvalidError(f"a transition cannot start from the final state {transition.source!r}")
            self.transitions.append(transition)
            self._by_trigger.setdefault((trigger, transition.source), []).append(transition)
        self._checked_classes.clear()

    # Queries --------------------------------------------------------------------------------------------------

    @property
    def triggers(self) -> list[str]:
        """The triggers, in the order of their declaration."""
        return list(dict.fromkeys(each.trigger for each in self.transitions))

    def transitions_for(self, trigger: str, source: str, where: str = "") -> list[Transition]:
        """Return the transitions of a trigger from a state, in the order in which they are tried. Raises
        `InvalidError` if there is none."""
        transitions = self._by_trigger.get((trigger, source), [])
        if source not in self.final and (trigger, ANY) in self._by_trigger:
            transitions = [*transitions, *self._by_trigger[trigger, ANY]]
        if not transitions:
            triggers = self.triggers_from(source)
            raise InvalidError(
                f"{trigger!r} is not a trigger of the state {source!r}",
                where=where,
                hint=f"Its triggers are {', '.join(triggers)}" if triggers else "Nothing leads out of that state",
                code="no-transition",
            )
        return transitions

    def triggers_from(self, source: str) -> list[str]:
        """Return the triggers that lead out of a state."""
        return list(dict.fromkeys(each.trigger for each in self.transitions if self._starts_at(each, source)))

    def expand(self) -> Iterator[Transition]:
        """Yield all transitions, with `*` replaced by each of the states that it stands for."""
        for each in self.transitions:
            if each.source != ANY:
                yield each
                continue
            for state in self.states:
                if state not in self.final:
                    yield replace(each, source=state)

    def _starts_at(self, transition: Transition, source: str) -> bool:
        is_wildcard = transition.source == ANY and source in self.states and source not in self.final
        return transition.source == source or is_wildcard

    # Checks ---------------------------------------------------------------------------------------------------

    def problems(self, agent: object = None) -> list[str]:
        """Return the problems of the machine: states that nothing leads to, transitions that can never be taken; and,
        for an agent or its class, names of methods that it does not have."""
        reachable = self._reachable()
        problems = [f"nothing leads to the state {state!r}" for state in self.states if state not in reachable]
        for (trigger, source), transitions in self._by_trigger.items():
            if any(each.guard is None for each in transitions[:-1]):
                where = "any state" if source == ANY else f"the state {source!r}"
                problems.append(f"{trigger!r} is declared again from {where}, behind one that has no guard")
        if agent is not None:
            problems += [
                f"{role} is {name!r}, and {_class_of(agent).__name__} has no such method"
                for role, name in self._methods()
                if not callable(getattr(agent, name, None))
            ]
        problems += [
            f"the validator of the state {state!r} is a coroutine function, which cannot be awaited during a save"
            for state, each in self.validators.items()
            if inspect.iscoroutinefunction(getattr(agent, each, None) if isinstance(each, str) else each)
        ]
        return problems

    def check(self, agent: object) -> None:
        """Raise `InvalidError` if the machine has problems, for an agent or its class. Each class is checked once."""
        if _class_of(agent) in self._checked_classes:
            return
        problems = self.problems(agent)
        if problems:
            raise InvalidError(
                f"the machine is invalid: {'; '.join(problems)}",
                where=f"the machine of {_class_of(agent).__name__}",
                hint="Correct its declaration",
            )
        self._checked_classes.add(_class_of(agent))

    def validate(self, state: str, agent: object, fields: Mapping[str, Any]) -> None:
        """Raise an error if an agent with these fields cannot be in a state."""
        if state not in self.states:
            raise InvalidError(
                f"the machine has no state {state!r}, which the agent is in",
                where=f"the machine of {_class_of(agent).__name__}",
                hint="Declare that state as well, or roll the agent back to another one",
            )
        validator = self.validators.get(state)
        if validator is not None:
            bind(validator, agent)(fields)

    def _reachable(self) -> set[str]:
        reachable, todo = {self.initial}, [self.initial]
        while todo:
            source = todo.pop()
            for each in self.transitions:
                if self._starts_at(each, source):
                    new = {each.target, each.via or source} - reachable
                    reachable |= new
                    todo += new
        return reachable

    def _methods(self) -> Iterator[tuple[str, str]]:
        """Yield the roles and names of the methods that the machine uses."""
        by_state = (("validator", self.validators), ("entry action", self.enter), ("exit action", self.leave))
        for role, callbacks in by_state:
            for state, each in callbacks.items():
                if isinstance(each, str):
                    yield f"the {role} of the state {state!r}", each
        for transition in self.transitions:
            roles = [
                ("guard", transition.guard),
                ("action", transition.action),
                *(("validator", each) for each in transition.validators),
            ]
            for role, callback in roles:
                if isinstance(callback, str):
                    yield f"the {role} of {transition.trigger!r}", callback

    def _require_state(self, state: str) -> str:
        if state not in self.states:
            raise InvalidError(f"the machine has no state {state!r}", hint=f"Its states are {', '.join(self.states)}")
        return state

    def _by_state(self, callbacks: Mapping[str, Callback] | None) -> dict[str, Callback]:
        return {self._require_state(state): each for state, each in (callbacks or {}).items()}


def _validator(declared: Validator) -> Callback:
    """Return the callback of a validator: that of a schema, or of a class that describes one, checks against it."""
    if isinstance(declared, str):
        return declared
    if isinstance(declared, type) or hasattr(declared, "schema_reference"):
        from holdfast.schemas.schema import as_schema

        schema = as_schema(declared, "state")
        return lambda _, value: schema.require(value)
    return declared


def bind(callback: Callback, agent: Any) -> Callable[..., Any]:
    """Bind a callback to an agent: return its method, or a function that passes the agent."""
    if isinstance(callback, str):
        method: Callable[..., Any] = getattr(agent, callback)
        return method
    return lambda *args: callback(agent, *args)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _class_of(agent: object) -> type:
    return agent if isinstance(agent, type) else type(agent)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidError(f"{what} must be declared as a mapping with string keys", where=repr(value)[:80])
    return value


def _method_name(callback: Callback) -> str:
    if not isinstance(callback, str):
        raise InvalidError(
            "a state machine that contains functions cannot be converted to plain data",
            where=getattr(callback, "__qualname__", repr(callback)),
            hint="Make the function a method of the agent, and refer to it by name",
        )
    return callback


def _to_dict(transition: Transition) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(transition, name) for name in ("trigger", "source", "target")}
    if transition.guard is not None:
        data["guard"] = _method_name(transition.guard)
    if transition.validators:
        data["validators"] = [_method_name(each) for each in transition.validators]
    if transition.action is not None:
        data["action"] = _method_name(transition.action)
    if transition.via:
        data["via"] = transition.via
    if transition.on_incomplete is not None:
        data["on_incomplete"] = transition.on_incomplete
    return data


class _CallbackWait(Suspension[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._coroutine = coroutine
        self._name = name

    def wait(self) -> Any:
        self._coroutine.close()
        raise InvalidError(
            "an agent of a synchronous Store cannot run coroutine functions",
            where=self._name,
            hint="Write it with `def`, or use AsyncPersistentAgent on an AsyncStore",
        )

    def watch(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._coroutine)


async def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, await its result if that is a coroutine, and return it."""
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        return await _CallbackWait(result, getattr(function, "__qualname__", repr(function)))
    return result
