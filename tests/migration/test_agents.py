"""Schemas of agents' fields: a class declares them, and its agents are upgraded when they are loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from holdfast import Store
from holdfast.agents import AgentBuilder, Machine, PersistentAgent
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas import Migration, Schema, SchemaSet, add, each, rename
from holdfast.schemas.attached_version import SchemaWarning
from tests.migration.documents import (
    FIRST_FIELDS,
    GREETER_1,
    GREETER_2,
    GREETER_21,
    SECOND_FIELDS,
    Fields1,
    release,
    saved,
)
from tests.support.counting import CountingBackend


def test_an_agent_is_upgraded_when_it_is_restored_and_stored_so_at_the_next_step(opened: Callable[[], Store]) -> None:
    saved(opened())
    store = opened()
    kind = release(GREETER_2, SECOND_FIELDS)
    agent = store.agents.restore("a", kind)
    assert (agent.greeted, agent.count, agent.mood) == (["Ada"], 1.0, "calm")
    record = store.agents.load("a")
    assert (record.fields, record.schema) == (FIRST_FIELDS, "greeter@1.0.0"), "nothing was written yet"
    agent.greeted.append("Bob")
    agent.save()
    record = store.agents.load("a")
    assert (record.fields, record.schema) == ({**SECOND_FIELDS, "greeted": ["Ada", "Bob"]}, "greeter@2.0.0")
    assert store.agents.load("a", version=1).fields == FIRST_FIELDS, "history keeps the original"
    agent.save()
    agent = store.agents.restore("a", kind)
    agent.rollback(1)
    assert (agent.greeted, store.agents.load("a").schema) == (["Ada"], "greeter@1.0.0")
    agent.save()
    assert store.agents.load("a").fields == SECOND_FIELDS
    assert store.maintenance.verify().ok


def test_a_live_agent_of_an_older_release_is_refused_at_its_next_save(opened: Callable[[], Store]) -> None:
    old = saved(opened())
    old.names.append("Bob")
    old.save()  # the control
    new = release(GREETER_2, SECOND_FIELDS)().attach(opened(), "b")
    new.save()
    old.names.append("Cy")
    for policy in ("raise", "merge"):
        agent = old.attach(opened(), "a", on_conflict=policy)
        with pytest.raises(ConflictError) as refused:
            agent.save()
        assert refused.value.code == "schema-outdated"
    store = opened()
    assert store.agents.load("a").fields["names"] == ["Ada", "Bob"]
    with pytest.raises(ConflictError, match="is incompatible with this program"):
        release(GREETER_1, FIRST_FIELDS)().attach(store, "c").save()


def test_an_older_release_that_gets_along_keeps_what_it_does_not_know(opened: Callable[[], Store]) -> None:
    older = saved(opened(), GREETER_2, SECOND_FIELDS)
    store = opened()
    newer = store.agents.restore("a", release(GREETER_21, {**SECOND_FIELDS, "extra": 5}))
    newer.save()
    again = older.attach(opened(), "a", on_conflict="merge")
    again.mood = "glad"
    again.save()
    record = store.agents.load("a")
    assert (record.fields, record.schema) == ({**SECOND_FIELDS, "mood": "glad", "extra": 5}, "greeter@2.1.0")


def test_both_sides_of_a_conflict_are_merged_in_one_version(opened: Callable[[], Store]) -> None:
    saved(opened())
    mine = opened().agents.restore("a", release(GREETER_2, SECOND_FIELDS), on_conflict="merge")
    theirs = opened().agents.restore("a", release(GREETER_2, SECOND_FIELDS))
    theirs.mood = "glad"
    theirs.save()
    mine.greeted.append("Bob")
    mine.save()
    store = opened()
    assert store.agents.load("a").fields == {**SECOND_FIELDS, "mood": "glad", "greeted": ["Ada", "Bob"]}


def test_fields_are_validated(opened: Callable[[], Store]) -> None:
    store = opened()
    agent = saved(store)
    agent.names.append(5)
    with pytest.raises(InvalidError) as refused:
        agent.save()
    assert (refused.value.code, refused.value.where) == ("schema-mismatch", "names[1] of agent 'a'")
    assert store.agents.load("a").fields == FIRST_FIELDS
    lax = release(GREETER_1, FIRST_FIELDS, validation="warn")().attach(store, "b")
    lax.count = "many"
    with pytest.warns(SchemaWarning, match="count"):
        lax.save()
    off = release(GREETER_1, FIRST_FIELDS, validation="off")().attach(store, "c")
    off.count = "many"
    off.save()
    with pytest.raises(InvalidError):
        release(5.0, FIRST_FIELDS)


def test_agents_from_before_there_was_a_schema(opened: Callable[[], Store]) -> None:
    saved(opened(), "1")
    store = opened()
    agent = store.agents.restore("a", release(GREETER_2, SECOND_FIELDS))
    assert agent.mood == "calm"
    agent.save()
    with pytest.raises(UnsupportedError):  # the class does not declare it any more
        opened().agents.restore("a", release("1", SECOND_FIELDS))


def test_a_class_of_a_builder(opened: Callable[[], Store]) -> None:
    class Plain:
        def __init__(self) -> None:
            self.names, self.count = ["x"], 1

    store = opened()
    spec = AgentBuilder("tests: built plain").fields("names", "count").schema(GREETER_1).build(Plain)
    handle = store.agents.create(spec, "p")
    assert store.agents.load("p").schema == "greeter@1.0.0"
    handle.agent.count = "x"
    with pytest.raises(InvalidError):
        handle.save()
    handle.agent.count = 2


class Text(TypedDict):
    """A message of the first version."""

    text: str


class Content(TypedDict):
    """A field is renamed, and one added."""

    content: str
    role: str


TALK_1 = SchemaSet(Schema("talk", "1.0.0", list[Text]))
TALK_2 = SchemaSet(
    TALK_1,
    Schema("talk", "2.0.0", list[Content]),
    Migration("talk", "1.0.0", "2.0.0", each("", rename("text", "content"), add("role", default="user"))),
)


def test_a_conversation_has_a_schema_of_its_own(opened: Callable[[], Store]) -> None:
    old = release("1", {}, conversation=TALK_1)().attach(opened(), "a")
    old.conversation.extend([{"text": "one"}, {"text": "two"}])
    with pytest.raises(InvalidError) as refused:
        old.conversation.append({"text": 5})
    assert (refused.value.code, refused.value.where) == ("schema-mismatch", "[0].text of new messages of agent 'a'")
    old.save()
    old.conversation.append({"text": "three"})
    old.save()
    store = opened()
    kind = release("1", {}, conversation=TALK_2)
    agent = store.agents.restore("a", kind)
    new = [{"content": text, "role": "user"} for text in ("one", "two", "three")]
    assert list(agent.conversation) == new
    assert store.agents.messages("a")[0] == {"text": "one"}, "nothing was written yet"
    agent.conversation.append({"content": "four", "role": "user"})
    agent.save()
    assert [each["content"] for each in store.agents.messages("a")] == ["one", "two", "three", "four"]
    again = opened().agents.restore("a", kind)
    assert len(again.conversation) == 4
    old.conversation.append({"text": "late"})
    with pytest.raises(ConflictError) as outdated:
        old.attach(opened(), "a", on_conflict="merge").save()
    assert outdated.value.code in ("schema-outdated", "agent-conflict")
    fresh = release("1", {}, conversation=TALK_1)
    with pytest.raises(ConflictError) as outdated:
        fresh().attach(opened(), "b").save()
    assert outdated.value.code == "schema-outdated"
    down = store.schemas.down(TALK_2, to="1.0.0")
    assert (down.migrated, store.agents.messages("a")[3]) == (1, {"text": "four"})
    assert store.schemas.up(TALK_2).migrated == 1
    kind = release("1", {}, conversation=TALK_2)
    assert store.agents.restore("a", kind).conversation[1] == new[1]
    assert store.maintenance.verify().ok


def test_a_class_without_a_schema_of_messages_is_refused_on_newer_ones(opened: Callable[[], Store]) -> None:
    plain, store = opened(), opened()
    old = release("1", {})().attach(plain, "a")
    old.conversation.append({"text": "one"})
    old.save()
    assert len(plain.agents.restore("a", release("1", {})).conversation) == 1
    agent = store.agents.restore("a", release("1", {}, conversation=TALK_2))
    agent.conversation.append({"content": "two", "role": "user"})
    agent.save()
    with pytest.raises(ConflictError) as refused:
        opened().agents.restore("a", release("1", {}))
    assert (refused.value.code, refused.value.where) == ("schema-missing", "conversation of agent 'a'")
    store.schemas.down(TALK_2, to="1.0.0")
    again = opened().agents.restore("a", release("1", {}))
    again.conversation.append({"text": "three"})
    again.save()
    assert [each["text"] for each in plain.agents.messages("a")] == ["one", "two", "three"]


def test_a_state_of_a_machine_may_have_a_schema(opened: Callable[[], Store]) -> None:
    class Done(TypedDict):
        result: str

    states = Machine("open", "done", validators={"done": Done})
    states.add("finish", "open", "done", validators=[Schema("answer", "1", int)])

    class Worker(PersistentAgent, name="tests: worker with schemas"):
        machine = states
        result: Any = None

    store = opened()
    with Worker().attach(store, "w") as agent:
        with pytest.raises(InvalidError, match="it is str, not int"):
            agent.transition("finish", "x")
        with pytest.raises(InvalidError, match="it is None, not str"):
            agent.transition("finish", 5)
        agent.result = "ok"
        agent.transition("finish", 5)
    assert store.agents.load("w").state == "done"


# Costs ---------------------------------------------------------------------------------------------------------------


def test_a_schema_costs_no_call_of_the_store() -> None:
    calls = []
    for schema in ("1", GREETER_2):
        backend = CountingBackend(MemoryBackend())
        store = Store(Engine(EngineContext(backend)), "")
        kind = release(schema, SECOND_FIELDS)
        kind().attach(store, "first").save()  # attaches the schema
        agent = kind().attach(store, "a")
        agent.save()
        entered = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal entered
            if event == "call" and "/holdfast/schemas/" in frame.f_code.co_filename:
                entered += 1

        backend.reset()
        for number in range(10):
            agent.count = float(number)
            agent.save()
        saves = (backend.reads, backend.applies)
        backend.reset()
        sys.setprofile(profile)
        try:
            store.agents.restore("a", kind)
        finally:
            sys.setprofile(None)
        calls.append((saves, backend.reads, backend.applies))
        if schema is GREETER_2:
            assert entered == 0
            with pytest.raises(NotFoundError):  # the control
                store.agents.restore("a", release(SchemaSet(Schema("greeter", "3.0.0", Fields1)), SECOND_FIELDS))
    assert calls[0] == calls[1]
