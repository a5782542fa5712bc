"""A class of agents: its fields, its cost without a store, and that it is restored as it was."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.agents import AsyncPersistentAgent, PersistentAgent, persistent
from holdfast.agents.definition.spec import Persistent, registry
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from tests.agents.greeters import AsyncGreeter, Greeter, aopened, opened
from tests.codec.values import values
from tests.support.nightly import fewer_examples


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    """Classes that a test declares are forgotten with it."""
    before = set(registry)
    yield
    for name in set(registry) - before:
        registry.forget(name)


# Not kept -----------------------------------------------------------------------------------------------------------


def test_an_agent_without_a_store_is_a_plain_object() -> None:
    agent = Greeter(greeting="Hi")
    assert agent.greet("Ada") == "Hi, Ada (0)"
    agent.context["topic"] = "names"
    agent.metadata["team"] = "red"
    assert (agent.status, agent.state) == ("created", "idle")
    assert (len(agent.conversation), agent.greeted, agent.configuration) == (1, ["Ada"], {"greeting": "Hi"})
    assert isinstance(agent, Persistent)
    with pytest.raises(InvalidError, match="not attached to a store"):
        agent.save()
    with pytest.raises(InvalidError):
        _ = agent.id


def test_no_two_agents_share_a_default() -> None:
    one, other = Greeter(), Greeter()
    one.greet("Ada")
    one.notes["x"] = [1]
    assert (other.greeted, other.notes, Greeter.greeted, Greeter.notes) == ([], {}, [], {})


def test_a_mutable_attribute_without_annotation_warns() -> None:
    values: dict[str, Any] = {"lists": [1], "dicts": {}, "sets": set()}
    for name, value in values.items():
        kind = type(value).__name__
        with pytest.warns(UserWarning, match=f"^Shared.{name} is a {kind} without annotation: all agents") as warned:
            type("Shared", (PersistentAgent,), {name: value, "__qualname__": "Shared"}, abstract=True)
        assert f"Write `{name}: {kind} = …` for a field of each agent" in str(warned[0].message)
        assert f"or `{name}: ClassVar[{kind}] = …` to share it" in str(warned[0].message)
    with pytest.warns(UserWarning, match="Sharing.notes is a list") as warned:

        class Sharing(PersistentAgent, name="agent-sharing"):
            notes = []  # type: ignore[var-annotated]

    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="Decorated.notes is a list") as warned:

        @persistent(name="agent-decorated")
        class Decorated:
            notes = []  # type: ignore[var-annotated]
            seen: list[str] = []

    assert warned[0].filename == __file__


def test_a_simple_attribute_without_annotation_warns_once_an_agent_sets_it() -> None:
    class Counting(PersistentAgent, name="agent-counting"):
        count = 0
        limit = 10
        color = "red"
        seen: int = 0

        def __init__(self, **configuration: Any) -> None:
            super().__init__(**configuration)
            self.color = configuration.get("color", self.color)

    store = opened(MemoryBackend())
    agent = store.agents.create(Counting, "a", color="blue")  # which sets it again when it is restored
    agent.seen = 1
    agent.save()
    agent.count += 1
    with pytest.warns(UserWarning, match="Counting.count has no annotation, .* is not saved. Write `count: int = …`"):
        agent.save()
    agent.count += 1
    agent.save()  # only once
    assert store.agents.load("a").fields == {"seen": 1}

    class Choosing(PersistentAgent, name="agent-choosing"):
        count = 0

        def persist(self) -> dict[str, Any]:
            return {"n": self.count}

        def restore(self, fields: Any) -> None:
            self.count = fields["n"]

    other = store.agents.create(Choosing, "b")
    other.count += 1
    other.save()
    assert store.agents.restore("b", Choosing).count == 1


def test_fields_and_attributes_that_are_shared_deliberately_do_not_warn() -> None:
    class Quiet(PersistentAgent, name="agent-quiet"):
        notes: list[str] = []
        limits: ClassVar[dict[str, int]] = {}
        _cache = {}  # type: ignore[var-annotated]
        names = ("a", "b")

    class Louder(Quiet, name="agent-louder"):
        notes = ["first"]
        limits = {"a": 1}

    assert Louder().notes == ["first"]
    assert list(Louder.spec.fields) == ["notes"]


def test_declaring_agents_loads_nothing_of_stores() -> None:
    """Whoever does not use agents pays nothing for them."""
    code = (
        "import sys, holdfast\nassert not [n for n in sys.modules if n.startswith('holdfast.agents')]\n"
        "holdfast.open('memory://').close()\n"
        "print([n for n in sys.modules if n.startswith('holdfast.agents.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# Fields -------------------------------------------------------------------------------------------------------------


def test_fields_are_what_is_annotated() -> None:
    class Base(PersistentAgent, abstract=True):
        shared: int = 1

    class Declared(Base, name="tests: declared"):
        own: str
        default: list[int] = [1]
        limit: ClassVar[int] = 3
        _hidden: int = 0
        plain = 5

    assert set(Declared.spec.fields) == {"shared", "own", "default"}
    agent = Declared()
    assert agent.persist() == {"shared": 1, "default": [1]}
    agent.own = "x"
    assert agent.persist() == {"shared": 1, "default": [1], "own": "x"}
    agent.restore({"own": "y"})
    assert agent.persist() == {"shared": 1, "default": [1], "own": "y"}


def test_a_field_cannot_hide_what_every_agent_has() -> None:
    with pytest.raises(InvalidError, match="'status' is an attribute of every agent"):

        class Hiding(PersistentAgent, name="tests: hiding"):
            status: str = ""  # type: ignore[assignment]

    for name in ("attach", "persist", "machine", "spec"):
        with pytest.raises(InvalidError, match=f"'{name}' is an attribute of every agent"):
            type("Hiding", (PersistentAgent,), {"__annotations__": {name: int}, "__module__": __name__})


def test_an_abstract_class_has_no_agents() -> None:
    class Base(PersistentAgent, abstract=True):
        pass

    with pytest.raises(InvalidError, match="abstract"):
        Base().attach(opened(MemoryBackend()), "a")


def test_policies_are_inherited_and_checked() -> None:
    class Careful(PersistentAgent, name="tests: careful", on_corrupt="last-good", on_conflict="merge"):
        pass

    class MoreSo(Careful, name="tests: more so", on_conflict="raise"):
        pass

    assert (MoreSo.spec.options.on_corrupt, MoreSo.spec.options.on_conflict) == ("last-good", "raise")
    with pytest.raises(InvalidError, match="on_corrupt is one of raise, last-good"):
        MoreSo().attach(opened(MemoryBackend()), "a", on_corrupt="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="an agent has no option 'on_curropt'"):
        MoreSo().attach(opened(MemoryBackend()), "a", on_curropt="raise")  # type: ignore[call-arg]
    with pytest.raises(InvalidError, match="autosave is an Autosave, or None, not 5"):
        MoreSo().attach(opened(MemoryBackend()), "a", autosave=5)  # type: ignore[arg-type]


def test_names_are_those_of_one_class() -> None:
    class First(PersistentAgent, name="tests: twice"):
        pass

    with pytest.raises(InvalidError, match="the name 'tests: twice' is already used by another agent class"):

        class Second(PersistentAgent, name="tests: twice"):
            pass

    assert registry.of(First).factory is First


@settings(fewer_examples())
@given(st.dictionaries(st.text(max_size=5), values, max_size=3), st.lists(values, max_size=3))
def test_whatever_can_be_saved_comes_back(notes: dict[str, Any], messages: list[Any]) -> None:
    backend = MemoryBackend()
    agent = Greeter().attach(opened(backend), "a")
    agent.notes = notes
    agent.conversation.extend(messages)
    agent.save()
    codec = holdfast.codec.Codec()
    found = opened(backend).agents.restore("a")
    assert codec.pack(found.notes) == codec.pack(notes)
    assert codec.pack(found.conversation.all()) == codec.pack(messages)
    found.save()
    again = opened(backend).agents.restore("a")
    assert codec.pack([again.notes, again.conversation.all()]) == codec.pack([notes, messages])


# Coming back --------------------------------------------------------------------------------------------------------


def test_an_agent_comes_back_as_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        agent = Greeter(greeting="Hi").attach(store, "g")
        agent.start()
        agent.greet("Ada")
        agent.transition("work")
        agent.context["topic"] = {"names": {"Ada"}}
        agent.metadata["team"] = "red"
        agent.workflow["step"] = 3
        agent.tools.declare("search", permissions=["net"])
        agent.pause()
        would = agent.greet("Bob")
    with holdfast.open(url) as store:
        found = store.agents.restore("g")
        assert type(found) is Greeter
        assert (found.id, found.status, found.state, found.version) == ("g", "paused", "busy", 3)
        assert (found.configuration, found.context) == ({"greeting": "Hi"}, {"topic": {"names": {"Ada"}}})
        assert (found.metadata, found.workflow["step"], list(found.tools)) == ({"team": "red"}, 3, ["search"])
        assert [message["content"] for message in found.conversation] == ["Hi, Ada (0)"]
        assert found.greet("Bob") == would
        found.resume()
        assert found.transition("rest") == "idle"
        found.stop()
        assert store.agents.load("g").fields == {"greeted": ["Ada", "Bob"], "count": 2, "notes": {}}


def test_the_same_for_asyncio() -> None:
    backend = MemoryBackend()

    async def main() -> None:
        store = aopened(backend)
        agent = await store.agents.create(AsyncGreeter, "g", greeting="Hi")
        agent.count = 7
        await agent.start()
        await agent.stop()
        found = await aopened(backend).agents.restore("g")
        assert (found.count, found.status, found.configuration) == (7, "stopped", {"greeting": "Hi"})
        found.count = 8
        assert await found.save() == 4
        await agent.reload()
        assert agent.count == 8

    asyncio.run(main())


def test_kinds_of_agents_and_of_stores_go_together() -> None:
    with pytest.raises(InvalidError, match="a Greeter belongs in a Store"):
        Greeter().attach(aopened(MemoryBackend()), "a")
    with pytest.raises(InvalidError, match="a AsyncGreeter belongs in an AsyncStore"):
        AsyncGreeter().attach(opened(MemoryBackend()), "a")
    assert issubclass(AsyncGreeter, AsyncPersistentAgent)


def test_a_constructor_of_its_own_is_given_the_configuration() -> None:
    class Own(PersistentAgent, name="tests: own constructor"):
        seen: int = 0

        def __init__(self, model: str, *, heat: float = 0.5) -> None:
            self.model, self.heat = model, heat

    backend = MemoryBackend()
    Own("m", heat=1.5).attach(opened(backend), "a").save()
    found = opened(backend).agents.restore("a")
    assert (found.model, found.heat, found.configuration) == ("m", 1.5, {"model": "m", "heat": 1.5})

    class Other(PersistentAgent, name="tests: another constructor"):
        def __init__(self, engine: str) -> None:
            self.engine = engine

    Other("m").attach(opened(backend), "b").save()
    Other.__init__ = lambda self: None  # type: ignore[method-assign,assignment,misc]
    with pytest.raises(InvalidError, match=r"cannot be created from configuration \['engine'\]") as caught:
        opened(backend).agents.restore("b")
    assert caught.value.code == "agent-invalid"


def test_a_dataclass_can_be_an_agent() -> None:
    @dataclasses.dataclass
    class Data(PersistentAgent, name="tests: data"):
        model: str
        seen: list[str] = dataclasses.field(default_factory=list)

    backend = MemoryBackend()
    agent = Data("m").attach(opened(backend), "a")
    agent.seen.append("x")
    agent.save()
    found = opened(backend).agents.restore("a")
    assert (found.model, found.seen) == ("m", ["x"])


def test_defaults_are_made_by_factories_too() -> None:
    class Made(PersistentAgent, name="tests: made"):
        items: list[str] = dataclasses.field(default_factory=lambda: ["first"])
        limits: dict[str, int] = dataclasses.field(default={"a": 1})
        number: int = dataclasses.field(default=3)
        tags: list[str] = attrs.field(factory=list)
        name: str = attrs.field(default="x")
        later: str = attrs.field()

    one, other = Made(), Made()
    one.items.append("more")
    one.limits["b"] = 2
    one.tags.append("t")
    assert (other.items, other.limits, other.number, other.tags, other.name) == (["first"], {"a": 1}, 3, [], "x")
    backend = MemoryBackend()
    one.later = "now"
    one.attach(opened(backend), "a").save()
    found = opened(backend).agents.restore("a")
    assert (found.items, found.limits, found.tags) == (["first", "more"], {"a": 1, "b": 2}, ["t"])
    other.restore({"number": 5})
    assert (other.items, other.number) == (["first"], 5)
    assert other.items is not one.items


def test_an_object_does_not_take_over_an_agent_of_another_class() -> None:
    class Other(PersistentAgent, name="tests: other"):
        pass

    store = opened(MemoryBackend())
    store.agents.create(Greeter, "a").greet("Ada")
    for name in ("start", "reload"):
        with pytest.raises(InvalidError, match="class is 'tests: greeter', but this one's is 'tests: other'"):
            getattr(Other().attach(store, "a"), name)()
    mine = Other().attach(store, "b", on_conflict="merge")
    mine.save()
    store.agents.delete("b")
    store.agents.create(Greeter, "b")
    with pytest.raises(InvalidError, match="the stored agent's class is"):
        mine.save()
    assert [store.agents.load(each).kind for each in "ab"] == ["tests: greeter"] * 2


def test_a_restore_that_raises_leaves_the_rest_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    other = store.agents.restore("a")
    other.context["k"] = 1
    other.transition("work")
    monkeypatch.setattr(Greeter, "restore", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        agent.reload()
    assert (agent.context, agent.state, agent.version) == ({}, "idle", 1)


def test_an_agent_says_what_it_is() -> None:
    agent = Greeter()
    assert repr(agent) == "<Greeter, not attached>"
    agent.attach(opened(MemoryBackend()), "a").start()
    assert repr(agent) == "<Greeter 'a': running, version 1>"


def test_without_its_class_an_agent_is_not_made() -> None:
    class Known(PersistentAgent, name="tests: known"):
        pass

    backend = MemoryBackend()
    Known().attach(opened(backend), "a").save()
    registry.forget("tests: known")
    with pytest.raises(NotFoundError, match="no agent class is registered as 'tests: known'") as caught:
        opened(backend).agents.restore("a")
    assert caught.value.code == "agent-class-unknown"
    assert "Import the module that declares it" in caught.value.hint
    assert opened(backend).agents.load("a").kind == "tests: known"


# Validation ---------------------------------------------------------------------------------------------------------


def test_what_validate_refuses_is_not_saved() -> None:
    store = opened(MemoryBackend())
    agent = Greeter().attach(store, "g")
    agent.save()
    agent.count = -1
    with pytest.raises(InvalidError, match="nobody greets less than nobody") as caught:
        agent.save()
    assert caught.value.code == "agent-invalid"
    assert isinstance(caught.value.__cause__, ValueError)
    assert store.agents.load("g").version == 1
    assert agent.count == -1
    assert agent.metrics.counts.invalid == 1
    agent.count = 1
    assert agent.save() == 2


def test_nor_taken_on(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    Greeter().attach(opened(backend), "g").save()
    agent = Greeter().attach(opened(backend), "g")
    agent.count = 9
    monkeypatch.setattr(Greeter, "validate", lambda _self, _fields: 1 / 0)
    with pytest.raises(InvalidError, match="division by zero"):
        agent.reload()
    assert (agent.count, agent.version) == (9, 0)
    with pytest.raises(InvalidError, match="division by zero"):
        opened(backend).agents.restore("g")


def test_validate_is_a_plain_function() -> None:
    class Waiting(AsyncPersistentAgent, name="tests: waiting"):
        async def validate(self, fields: Mapping[str, Any]) -> None:  # type: ignore[override]
            """Nobody awaits it."""

    async def main() -> None:
        with pytest.raises(InvalidError, match="validate must be a plain function"):
            await Waiting().attach(aopened(MemoryBackend()), "a").save()

    asyncio.run(main())


# Schemas ------------------------------------------------------------------------------------------------------------


def versioned(schema: str, **methods: Any) -> type[PersistentAgent]:
    """Another release of one class."""
    registry.forget("tests: versioned")
    space = {"__annotations__": {"name": str}, "name": "", **methods}
    return type("Versioned", (PersistentAgent,), space, name="tests: versioned", schema=schema)


def test_older_fields_are_upgraded_once_and_saved_in_the_new_form() -> None:
    backend, asked = MemoryBackend(), []

    def upgrade(fields: dict[str, Any], schema: str) -> dict[str, Any]:
        asked.append(schema)
        return {"name": fields["name"].upper()}

    old = versioned("1")().attach(opened(backend), "a")
    old.name = "ada"  # type: ignore[attr-defined]
    old.save()
    versioned("2", upgrade=staticmethod(upgrade))
    found = opened(backend).agents.restore("a")
    assert (found.name, asked) == ("ADA", ["1"])
    assert opened(backend).agents.load("a").schema == "1"
    found.save()
    assert (opened(backend).agents.load("a").schema, opened(backend).agents.load("a").fields) == ("2", {"name": "ADA"})
    assert opened(backend).agents.restore("a").name == "ADA"


@pytest.mark.parametrize(("now", "hint"), [("2", "upgrade"), ("0.9", "a later one"), ("zwei", "upgrade")])
def test_another_schema_is_refused_and_nothing_is_lost(now: str, hint: str) -> None:
    backend = MemoryBackend()
    versioned("1")().attach(opened(backend), "a").save()
    versioned(now)
    with pytest.raises(UnsupportedError, match="fields of schema '1'") as caught:
        opened(backend).agents.restore("a")
    assert caught.value.code == "agent-schema"
    assert hint in caught.value.hint
    assert opened(backend).agents.load("a").version == 1


def test_an_upgrade_that_returns_nothing_is_told() -> None:
    backend = MemoryBackend()
    versioned("1")().attach(opened(backend), "a").save()
    versioned("2", upgrade=staticmethod(lambda fields, schema: None))
    with pytest.raises(InvalidError, match="upgrade must return a dict of fields"):
        opened(backend).agents.restore("a")


def test_fields_that_are_not_declared_any_more_stay() -> None:
    class Before(PersistentAgent, name="tests: before and after"):
        kept: int = 1
        dropped: int = 2

    backend = MemoryBackend()
    Before().attach(opened(backend), "a").save()
    registry.forget("tests: before and after")

    class After(PersistentAgent, name="tests: before and after"):
        kept: int = 1

    found = opened(backend).agents.restore("a")
    assert isinstance(found, After)
    found.kept = 5
    found.save()
    assert opened(backend).agents.load("a").fields == {"kept": 5, "dropped": 2}


def test_an_author_says_what_is_kept() -> None:
    class Own(PersistentAgent, name="tests: own fields"):
        def __init__(self) -> None:
            self.secret, self.shown = "s", "x"

        def persist(self) -> Mapping[str, Any]:
            return {"shown": self.shown}

        def restore(self, fields: Mapping[str, Any]) -> None:
            self.shown = fields["shown"] + "!"

    backend = MemoryBackend()
    Own().attach(opened(backend), "a").save()
    assert opened(backend).agents.load("a").fields == {"shown": "x"}
    assert opened(backend).agents.restore("a").shown == "x!"

    class Wrong(Own, name="tests: wrong fields"):
        def persist(self) -> Mapping[str, Any]:
            return ["shown"]  # type: ignore[return-value]

    with pytest.raises(InvalidError, match="persist must return a dict"):
        Wrong().attach(opened(backend), "b").save()
