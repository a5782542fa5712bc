"""Several processes save one agent: saves are refused, or merged; no update is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.agents.storage.conflicts import Sides, resolve_conflict
from holdfast.backends.interface import Batch
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.wrappers import Wrapper
from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import pack_state
from holdfast.errors import ConflictError, InvalidError, NotFoundError, OutcomeUnknownError, UnsupportedError
from holdfast.store.store import Store
from tests.agents.counting import added
from tests.agents.greeters import AsyncGreeter, Greeter, aopened, opened
from tests.support.nightly import examples, mostly_nightly


def two(store: Store, **policies: Any) -> tuple[Greeter, Greeter]:
    """One agent, twice: the first is as it should be, the second goes by policies."""
    store.agents.create(Greeter, "a")
    return store.agents.restore("a"), store.agents.restore("a", **policies)


def test_the_second_to_save_is_refused_and_stays_as_it_was() -> None:
    store = opened(MemoryBackend())
    one, other = two(store)
    one.count, other.count = 1, 5
    other.greeted.append("x")
    other.conversation.append("hello")
    one.save()
    with pytest.raises(ConflictError) as caught:
        other.save()
    assert caught.value.code == "agent-conflict"
    assert "agent.reload()" in caught.value.hint
    assert (other.count, other.greeted, other.version, len(other.conversation)) == (5, ["x"], 1, 1)
    with pytest.raises(ConflictError):
        other.transition("work")
    assert (other.state, other.status) == ("idle", "created")
    with pytest.raises(ConflictError):
        other.pause() if other.status == "running" else other.stop()
    other.reload()
    assert (other.count, other.greeted, other.version, len(other.conversation)) == (1, [], 2, 0)
    other.count += 1
    assert other.save() == 3
    assert store.agents.load("a").fields["count"] == 2


def test_who_never_looked_is_refused_whatever_was_agreed() -> None:
    store = opened(MemoryBackend())
    store.agents.create(Greeter, "a")
    for how in ("raise", "merge", "overwrite"):
        with pytest.raises(ConflictError):
            Greeter().attach(store, "a", on_conflict=how).save()
    assert store.agents.load("a").version == 1


def test_what_both_changed_apart_is_merged() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    one.count, one.notes = 7, {"a": 1, "both": 1}
    one.context["one"] = 1
    one.metadata["m"] = 1
    one.greeted.append("one")
    one.conversation.append("from one")
    one.transition("work")
    other.notes = {"b": 2}
    other.context["other"] = 2
    other.workflow["w"] = 1
    other.greeted.append("other")
    other.conversation.append("from other")
    assert other.save() == 3
    assert (other.count, other.notes) == (7, {"a": 1, "both": 1, "b": 2})
    assert (other.context, other.metadata, dict(other.workflow)) == ({"one": 1, "other": 2}, {"m": 1}, {"w": 1})
    assert (other.greeted, other.state) == (["one", "other"], "busy")
    assert other.conversation.all() == ["from one", "from other"] == store.agents.messages("a")
    record = store.agents.load("a")
    assert (record.fields["count"], record.messages) == (7, 2)
    assert record.fields["greeted"] == ["one", "other"]
    one.reload()
    assert one.notes == other.notes
    assert store.maintenance.verify().findings == []


def test_what_both_changed_differently_is_refused() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    one.count, other.count = 1, 2
    other.notes["x"] = 1
    one.save()
    with pytest.raises(ConflictError, match=r"both sides changed fields\.count") as caught:
        other.save()
    assert caught.value.code == "agent-conflict"
    assert (other.count, other.notes, other.version) == (2, {"x": 1}, 1)


@pytest.mark.parametrize("how", ["merge", "overwrite", added], ids=["merge", "overwrite", "function"])
def test_two_transitions_at_once_are_refused_even_if_they_agree(how: Any) -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict=how)
    one.transition("work")
    with pytest.raises(ConflictError, match="both sides changed the state"):
        other.transition("work")
    assert (other.state, other.version) == ("idle", 1)
    one.stop()
    with pytest.raises(ConflictError, match="both sides changed the status"):
        other.stop()
    assert [each.kind for each in store.agents.history("a")] == ["lifecycle", "transition", "create"]


def test_who_is_in_the_middle_of_something_is_not_disturbed() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    caught: list[ConflictError] = []

    def meanwhile() -> None:
        other.count = 3
        with pytest.raises(ConflictError, match="in the middle of a lifecycle, 'start'") as error:
            other.save()
        caught.append(error.value)

    one.on_start = meanwhile  # type: ignore[attr-defined]
    one.start()
    assert caught[0].code == "agent-conflict"
    other.save()
    assert (other.status, store.agents.load("a").fields["count"]) == ("running", 3)


def test_the_last_one_may_have_its_way() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="overwrite")
    one.count, other.count = 1, 2
    one.greeted.append("one")
    one.conversation.append("from one")
    other.conversation.append("from other")
    one.save()
    other.save()
    record = store.agents.load("a")
    assert (record.fields["count"], record.fields["greeted"]) == (2, [])
    assert store.agents.messages("a") == ["from one", "from other"]
    assert store.agents.load("a", version=2).fields["count"] == 1
    one.reload()
    one.transition("work")
    other.count = 9
    other.save()
    assert (other.state, store.agents.load("a").state, store.agents.load("a").fields["count"]) == ("busy", "busy", 9)


def test_a_function_decides() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict=added)
    one.count, other.count = 10, 5
    one.save()
    other.save()
    assert (other.count, store.agents.load("a").fields["count"]) == (15, 15)


@pytest.mark.parametrize("made", [None, {}, {"fields": {}}, [1]], ids=["none", "empty", "partial", "list"])
def test_a_function_that_decides_nothing_is_told(made: Any) -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict=lambda base, mine, theirs: made)
    one.count, other.count = 1, 2
    one.save()
    with pytest.raises(InvalidError, match="the resolver must return a dict of configuration, fields"):
        other.save()
    assert other.count == 2


@pytest.mark.parametrize("part", ["fields", "context"])
@pytest.mark.parametrize("value", [5, [1], {"notes": object()}], ids=["number", "list", "object"])
def test_what_a_function_decides_is_checked_before_it_is_taken_on(part: str, value: Any) -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict=lambda base, mine, theirs: {**mine, part: value})
    one.count, other.count = 1, 2
    one.save()
    for _ in range(2):
        with pytest.raises((InvalidError, UnsupportedError)):
            other.save()
        assert (other.count, other.notes, other.context, other.version) == (2, {}, {}, 1)
    assert store.agents.load("a").fields["count"] == 1


def test_a_transition_is_merged_with_what_another_saved() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    one.count = 1
    one.save()
    assert other.transition("work") == "busy"
    record = store.agents.load("a")
    assert (record.state, record.fields["count"], other.count) == ("busy", 1, 1)


def test_both_sides_cannot_change_the_form_of_the_fields() -> None:
    base, mine, theirs = (pack_state(default_codec, {"schema": each}) for each in ("1", "2", "3"))
    with pytest.raises(ConflictError, match="both sides changed the schema"):
        resolve_conflict(default_codec, "merge", Sides(base, mine, theirs), {}, "here")


def test_an_agent_that_saves_itself_while_it_is_saved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    for name in ("persist", "validate"):
        with monkeypatch.context() as patch:
            patch.setattr(Greeter, name, lambda self, *_: self.save())
            with pytest.raises(InvalidError, match="is already being saved by the caller"):
                agent.save()
    agents: list[Greeter] = []
    agents += two(opened(MemoryBackend()), on_conflict=lambda base, mine, theirs: agents[1].reload())
    agents[0].save()
    agents[1].count = 1
    with pytest.raises(InvalidError, match="is already being saved by the caller"):
        agents[1].save()

    async def main() -> None:
        agent = AsyncGreeter().attach(aopened(MemoryBackend()), "a")
        await asyncio.gather(*(agent.save() for _ in range(5)))  # tasks of one thread wait for each other
        assert agent.version == 5

    asyncio.run(main())


def test_an_agent_that_is_deleted_while_it_is_loaded() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")

    async def channels(point: Any) -> Any:
        opened(store._handle.engine.context.backend).agents.delete("a")
        raise NotFoundError("the checkpoint no longer exists")

    agent.persister.line.read_channels = channels  # type: ignore[method-assign]
    with pytest.raises(NotFoundError, match="no such agent"):
        agent.reload()


def test_what_is_merged_must_pass_validation() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict=lambda base, mine, theirs: {**mine, "fields": {**mine["fields"], "count": -1}})
    one.count, other.count = 1, 2
    one.save()
    with pytest.raises(InvalidError, match="less than nobody"):
        other.save()
    assert (other.count, store.agents.load("a").version) == (2, 2)


@pytest.mark.parametrize("how", ["merge", "overwrite"])
@pytest.mark.parametrize("longer", [0, 3], ids=["as long", "longer"])
def test_what_was_made_anew_is_not_merged_with_what_was_deleted(how: Any, longer: int) -> None:
    store = opened(MemoryBackend())
    _, mine = two(store, on_conflict=how)
    mine.conversation.append("mine")
    mine.save()
    store.agents.delete("a")
    other = store.agents.create(Greeter, "a")
    for _ in range(1 + longer):
        other.greet("Ada")
        other.save()
    mine.count = 7
    with pytest.raises(ConflictError):
        mine.save()
    assert (mine.count, list(mine.conversation), len(store.agents.messages("a"))) == (7, ["mine"], 1 + longer)


def test_what_was_pruned_since_is_merged_all_the_same() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    for name in ("Ada", "Bob"):
        one.greet(name)
        one.save()
    store.maintenance.prune(kinds="agent", keep_last=1)
    other.notes["x"] = 1
    other.save()
    assert store.agents.load("a").fields == {"greeted": ["Ada", "Bob"], "count": 2, "notes": {"x": 1}}


def test_who_cannot_take_on_what_is_merged_does_not_save_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    one.count, one.context["k"] = 1, "theirs"
    one.save()

    def restore(self: Greeter, fields: Any) -> None:
        raise RuntimeError("not now")

    other.notes["x"] = 1
    with monkeypatch.context() as patch:
        patch.setattr(Greeter, "restore", restore)
        with pytest.raises(RuntimeError, match="not now"):
            other.save()
    assert (other.version, other.context, other.status) == (1, {}, "created")
    other.save()
    record = store.agents.load("a")
    assert (record.fields["count"], record.fields["notes"], record.context) == (1, {"x": 1}, {"k": "theirs"})


def test_a_rewritten_conversation_is_not_merged_with_another() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    one.conversation.append("from one")
    one.save()
    other.conversation.replace(["other"])
    with pytest.raises(ConflictError):
        other.save()
    assert other.conversation.all() == ["other"]
    other.reload()
    one.conversation.replace(["summary"])
    one.save()
    other.conversation.append("more")
    other.save()
    assert store.agents.messages("a") == ["summary", "more"]


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=12))
def test_merging_loses_no_change(changes: list[tuple[bool, str, int]]) -> None:
    """Each side has keys of its own, and says something with each change."""
    store = opened(MemoryBackend())
    first, second = two(store, on_conflict="merge")
    first = store.agents.restore("a", on_conflict="merge")
    truth: dict[str, int] = {}
    for is_first, key, value in changes:
        agent, name = (first, f"first {key}") if is_first else (second, f"second {key}")
        agent.notes[name] = truth[name] = value
        agent.conversation.append([name, value])
        agent.save()
    assert store.agents.load("a").fields["notes"] == truth if changes else True
    said = store.agents.messages("a")
    wanted = [[f"{'first' if each[0] else 'second'} {each[1]}", each[2]] for each in changes]
    assert said == wanted


@pytest.mark.nightly
@pytest.mark.parametrize(("processes", "count"), mostly_nightly([(2, 10), (16, 3)], daily=[(2, 10)]))
def test_processes_lose_nothing(tmp_path: Path, processes: int, count: int) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        store.agents.create(Greeter, "shared")
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tests.agents.counting", url, str(count)]
        workers = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) for _ in range(processes)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.communicate("go\n")
        assert [worker.returncode for worker in workers] == [0] * processes
    with holdfast.open(url) as store:
        record = store.agents.load("shared")
        assert record.fields["count"] == processes * count
        assert record.version == 1 + processes * count
        assert sorted(store.agents.messages("shared")) == sorted(list(range(count)) * processes)
        assert store.maintenance.verify().findings == []


def test_many_tasks_of_one_agent_save_in_turn() -> None:
    async def main() -> None:
        store = aopened(MemoryBackend())
        agent = await store.agents.create(AsyncGreeter, "a")

        async def work(number: int) -> None:
            agent.greeted.append(str(number))
            await agent.save()

        await asyncio.gather(*map(work, range(20)))
        record = await store.agents.load("a")
        assert (record.version, sorted(record.fields["greeted"])) == (21, sorted(map(str, range(20))))

    asyncio.run(main())


# Saves of which it is not known whether they were made ----------------------------------------------------------------


class Unsure(Wrapper):
    """A store whose answer gets lost, after the change was made or before."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.lost: bool | None = None
        """Whether the next change is made, and its answer lost; None if nothing is lost."""

    async def apply(self, changes: Batch) -> int | None:
        lost, self.lost = self.lost, None
        if lost is None:
            return await super().apply(changes)
        if lost:
            await super().apply(changes)
        raise OutcomeUnknownError("no answer was received")


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_an_uncertain_save_is_repeated_and_not_doubled(made: bool) -> None:
    backend = Unsure()
    store = opened(backend)
    agent: Any = store.agents.create(Greeter, "a")
    agent.greet("Ada")
    backend.lost = made
    with pytest.raises(OutcomeUnknownError):
        agent.save()
    assert agent.persister.uncertain_attempt is not None
    agent.greet("Bob")
    assert agent.save() == 3
    assert agent.persister.uncertain_attempt is None
    record = opened(backend).agents.load("a")
    assert (record.fields["greeted"], record.version, record.messages) == (["Ada", "Bob"], 3, 2)
    assert len(opened(backend).agents.messages("a")) == 2
    assert [each.action for each in store.audit.query(kind="agent")].count("save") == 2
    assert opened(backend).maintenance.verify().findings == []


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_an_uncertain_creation_is_repeated_and_not_doubled(made: bool) -> None:
    backend = Unsure()
    store = opened(backend)
    for _ in range(2):
        backend.lost = made
        with pytest.raises(OutcomeUnknownError):
            store.agents.create(Greeter, "a", greeting="Hi")
    agent = store.agents.create(Greeter, "a", greeting="Hi")
    assert (agent.version, agent.configuration) == (1, {"greeting": "Hi"})
    assert [each.action for each in store.audit.query(kind="agent")] == ["create"]
    agent.greet("Ada")
    assert agent.save() == 2
    with pytest.raises(ConflictError) as caught:
        store.agents.create(Greeter, "a", greeting="Hi")
    assert caught.value.code == "agent-exists"


def test_an_uncertain_creation_is_not_taken_for_another() -> None:
    backend = Unsure()
    store = opened(backend)
    backend.lost = True
    with pytest.raises(OutcomeUnknownError):
        store.agents.create(Greeter, "a", greeting="Hi")
    for agents, how in ((store.agents, {}), (opened(backend).agents, {"greeting": "Hi"})):
        with pytest.raises(ConflictError) as caught:
            agents.create(Greeter, "a", **how)
        assert caught.value.code == "agent-exists"
    store.agents.delete("a")
    opened(backend).agents.create(Greeter, "a")
    with pytest.raises(ConflictError) as caught:
        store.agents.create(Greeter, "a", greeting="Hi")
    assert caught.value.code == "agent-exists"


def test_an_uncertain_save_that_another_came_before_is_a_conflict() -> None:
    backend = Unsure()
    store = opened(backend)
    agent = store.agents.create(Greeter, "a")
    agent.count = 1
    backend.lost = False
    with pytest.raises(OutcomeUnknownError):
        agent.save()
    other = opened(backend).agents.restore("a")
    other.count = 5
    other.save()
    with pytest.raises(ConflictError):
        agent.save()
    agent.reload()
    assert (agent.count, agent.version) == (5, 2)


def test_an_uncertain_transition_is_made_sure_of() -> None:
    backend = Unsure()
    agent = opened(backend).agents.create(Greeter, "a")
    backend.lost = True
    with pytest.raises(OutcomeUnknownError):
        agent.transition("work")
    agent.save()
    assert (agent.state, opened(backend).agents.load("a").state) == ("busy", "busy")
