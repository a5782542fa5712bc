"""Random machines, random triggers and random crashes, against a model.

The model knows where an agent has to be after each of them: a crash in an action, or a store that fails at any step,
leaves an agent whose next start finds it, and whose record is either as before or as after, never in between.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.agents.api.agent import PersistentAgent
from holdfast.agents.definition.spec import Spec
from holdfast.agents.definition.state_machine import Machine, OnIncomplete
from holdfast.agents.runtime.two_phase import Recovery
from holdfast.agents.storage.transition_log import check_transitions, count_transitions
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import HoldfastError, InvalidError, OutcomeUnknownError, TransientError
from tests.agents.workers import Crash, kinds, recorded, store_on
from tests.support.faults import Fault, Faults
from tests.support.nightly import examples

STATES = ("a", "b", "c", "d")
TRIGGERS = ("t", "u", "v")
HOW: st.SearchStrategy[OnIncomplete] = st.sampled_from(["back", "forward"])


class Random(PersistentAgent, name="test-random"):
    """Counts its actions: the count is what an action changes."""

    count: int = 0
    machine = Machine("a")
    calm = False
    """Whether actions end well, whatever they are told."""

    def persist(self) -> dict[str, Any]:
        return {"count": self.count}

    def act(self, data: str) -> None:
        self.count += 1
        if self.calm:
            return
        if "save" in data:
            self.save()
        if "error" in data:
            raise ValueError("wrong")
        if "crash" in data:
            raise Crash


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A machine of a few states and triggers, each trigger with at most one way from a state."""
    states = STATES[: draw(st.integers(1, 4))]
    machine = Machine(*states)
    ways = st.tuples(st.sampled_from(TRIGGERS), st.sampled_from(("*", *states)))
    for trigger, source in draw(st.lists(ways, unique=True, max_size=8)):
        action, policy = draw(st.sampled_from([None, "act"])), draw(st.one_of(st.none(), HOW))
        via = draw(st.sampled_from(("", *states)))
        machine.add(
            trigger,
            source,
            draw(st.sampled_from(states)),
            action=action,
            on_incomplete=policy,
            via=(action and via) or "",
        )
    for state in states[1:]:
        machine.add(f"to {state}", "*", state)
    return machine


class AgainstModel(RuleBasedStateMachine):
    """An agent and its model."""

    @initialize(machine=machines(), policy=HOW)
    def begin(self, machine: Machine, policy: Any) -> None:
        self.machine = machine
        self.memory = MemoryBackend()
        self.spec = Spec("test-random", Random, machine=machine, fields={"count": 0})
        self.policy = policy
        self.state, self.count, self.status = machine.initial, 0, "created"
        self.taken = self.failed = 0
        self.reopen()

    def reopen(self) -> None:
        self.faults = Faults(self.memory)
        self.store = store_on(self.faults)
        self.agent = Random()
        self.agent.__dict__["spec"] = self.spec
        self.agent.attach(self.store, "w", on_incomplete=self.policy)

    def start(self) -> None:
        self.agent.start()
        self.status = "running"

    @rule()
    def crash(self) -> None:
        """The process is gone between two changes, and another one starts."""
        self.reopen()
        self.start()

    @precondition(lambda self: self.status == "running")
    @rule()
    def stop_and_start(self) -> None:
        self.agent.stop()
        assert self.store.agents.load("w").status == "stopped"
        self.reopen()
        self.agent.start()
        assert self.agent.recoveries == []

    @precondition(lambda self: self.status == "running")
    @rule(
        trigger=st.sampled_from(TRIGGERS),
        data=st.sampled_from(["", "save", "error", "crash", "save, error", "save, crash"]),
        stays=st.booleans(),
    )
    def transition(self, trigger: str, data: str, stays: bool) -> None:
        try:
            (way, *_) = self.machine.transitions_for(trigger, self.state)
        except InvalidError:
            way = None
        acts = way is not None and way.action is not None
        try:
            self.agent.transition(trigger, data)
        except InvalidError:
            assert way is None
            self.failed += 1  # it is recorded that it was refused
        except ValueError:
            assert acts
            assert "error" in data
            self.failed += 1  # what the action changed is undone, even if it saved that
        except Crash:
            assert way is not None
            assert "crash" in data
            if not stays:
                self.reopen()
            self.agent.calm = True
            (found,) = self.agent.recover() if stays else self.started()
            self.agent.calm = False
            assert (found.kind, found.resolved) == ("transition", way.on_incomplete or self.policy)
            if found.resolved == "forward":
                # Run again, it sees what it has saved.
                more = 2 if "save" in data else 1
                self.state, self.count, self.taken = way.target, self.count + more, self.taken + 1
            else:
                self.failed += 1
        else:
            assert way is not None
            self.state, self.count, self.taken = way.target, self.count + acts, self.taken + 1

    def started(self) -> list[Recovery]:
        self.agent.start()
        return self.agent.recoveries

    @precondition(lambda self: self.status == "running")
    @rule(
        trigger=st.sampled_from(TRIGGERS),
        nth=st.integers(1, 2),
        when=st.sampled_from(["before", "after"]),
        error=st.sampled_from([TransientError, OutcomeUnknownError, Crash]),
        stays=st.booleans(),
    )
    def fails(self, trigger: str, nth: int, when: Any, error: Any, stays: bool) -> None:
        """The store fails at a step, before it or after; then the process goes on, or another one starts.

        Whether it was made is in the store: it must be one or the other, and the agent must be as the store says.
        """
        before = (self.state, self.count)
        if error is TransientError and when == "after":
            return  # who says that nothing was done has done nothing
        self.faults.plan = [Fault("apply", self.faults.applies + nth, lambda: error("down"), when)]
        with suppress(HoldfastError, Crash):
            self.agent.transition(trigger, "")
        self.faults.plan = []
        if stays:
            self.agent.recover()
        else:
            self.reopen()
            self.agent.start()
        rows = count_transitions(recorded(self.store))
        taken, failed = rows.successes.total(), rows.failures.total()
        assert (taken - self.taken) + (failed - self.failed) <= 1
        if taken > self.taken:
            way = self.machine.transitions_for(trigger, before[0])[0]
            self.state, self.count = way.target, self.count + (way.action is not None)
        self.taken, self.failed = taken, failed

    @precondition(lambda self: self.status == "running")
    @rule(to=st.integers(1, 5))
    def rollback(self, to: int) -> None:
        if to > self.agent.version:
            return
        old = self.store.agents.load("w", version=to)
        self.agent.rollback(to)
        self.state, self.count, self.taken = old.state, old.fields["count"], self.taken + 1

    @invariant()
    def is_as_the_model_says(self) -> None:
        if self.status == "created":
            return
        assert (self.agent.state, self.agent.count, self.agent.status) == (self.state, self.count, "running")
        assert self.agent.persister.data.pending is None
        record = store_on(self.memory).agents.load("w")
        assert (record.state, record.status, record.pending) == (self.state, "running", None)
        assert record.version == self.agent.version == len(kinds(self.store))
        rows = recorded(self.store)
        total = count_transitions(rows)
        assert (total.successes.total(), total.failures.total()) == (self.taken, self.failed)
        again = check_transitions(rows, self.machine)
        assert again.matches, again.reason
        if total.successes:
            assert again.state == self.state

    def teardown(self) -> None:
        if self.status != "created":
            assert self.store.maintenance.verify().findings == []


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=examples(25), stateful_step_count=20)
