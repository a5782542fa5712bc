"""Agents without inheritance: by the decorator and by the builder, for classes of every kind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import attrs
import pydantic
import pytest

from holdfast.agents import AgentBuilder, persistent
from holdfast.agents.api.handle import AgentHandle, AsyncAgentHandle
from holdfast.agents.definition.spec import Spec, registry
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError, NotFoundError
from tests.agents.greeters import aopened, machine, opened


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    before = set(registry)
    yield
    for name in set(registry) - before:
        registry.forget(name)


class Plain:
    """Declares by annotations, and is made with something that it does not keep as a field."""

    seen: list[str]

    def __init__(self, model: str = "small") -> None:
        self.model = model
        self.seen = []


@dataclasses.dataclass
class Data:
    model: str
    seen: list[str] = dataclasses.field(default_factory=list)


@attrs.define
class Attrs:
    model: str
    seen: list[str] = attrs.field(factory=list)


class Slots:
    __slots__ = ("model", "seen")

    def __init__(self, model: str) -> None:
        self.model = model
        self.seen: list[str] = []


class Model(pydantic.BaseModel):
    model: str
    seen: list[str] = []


@pytest.mark.parametrize("cls", [Plain, Data, Attrs, Slots, Model], ids=lambda cls: cls.__name__)
def test_a_class_of_any_kind_is_kept_and_comes_back(cls: Any) -> None:
    before = dict(vars(cls))
    assert persistent(name="tests: any")(cls) is cls
    assert dict(vars(cls)) == before
    backend = MemoryBackend()
    kept = opened(backend).agents.attach(cls(model="large"), "a")
    assert isinstance(kept, AgentHandle)
    kept.agent.seen.append("x")
    kept.context["k"] = 1
    kept.conversation.append("hello")
    kept.start()
    kept.stop()
    found = opened(backend).agents.restore("a")
    assert type(found.agent) is cls
    assert (found.agent.model, found.agent.seen) == ("large", ["x"])
    assert (found.context, found.conversation.all(), found.status) == ({"k": 1}, ["hello"], "stopped")
    assert found.configuration == {"model": "large"}
    assert repr(found).startswith("<AgentHandle 'a': ")


def test_a_decorated_class_says_what_is_kept_of_it() -> None:
    @persistent(
        name="tests: chosen",
        fields=["count"],
        configuration=["model"],
        schema="2",
        machine=machine(),
        on_conflict="merge",
    )
    class Chosen:
        def __init__(self, model: str, other: int = 0) -> None:
            self.model, self.other, self.count = model, other, 0

    backend = MemoryBackend()
    kept = opened(backend).agents.create(Chosen, "a", model="m")
    kept.agent.other = kept.agent.count = 5
    assert kept.transition("work") == "busy"
    record = opened(backend).agents.load("a")
    assert (record.fields, record.configuration, record.schema, record.state) == (
        {"count": 5},
        {"model": "m"},
        "2",
        "busy",
    )
    assert kept.persister.options.on_conflict == "merge"
    assert opened(backend).agents.restore("a").agent.other == 0


def test_what_is_no_class_is_not_decorated() -> None:
    with pytest.raises(InvalidError, match="can only decorate classes"):
        persistent(name="tests: none")(len)  # type: ignore[type-var]
    with pytest.raises(InvalidError):
        persistent(name="tests: none", fields="count")(Plain)


def test_an_object_knows_what_it_is_kept_by() -> None:
    @persistent(name="tests: knowing", fields=[])
    class Knowing:
        def on_attach(self, kept: Any) -> None:
            self.kept = kept

        def say(self, text: str) -> None:
            self.kept.conversation.append(text)

    store = opened(MemoryBackend())
    kept = store.agents.create(Knowing, "a")
    kept.agent.say("hello")
    kept.save()
    assert store.agents.messages("a") == ["hello"]

    @persistent(name="tests: waiting", fields=[])
    class Waiting:
        def on_attach(self, kept: Any) -> int:
            return 1

    with pytest.raises(InvalidError, match="returns None"):
        store.agents.create(Waiting, "b")


def test_a_builder_takes_functions_in_place_of_methods() -> None:
    told: list[Any] = []
    spec = (
        AgentBuilder("tests: built")
        .fields("count", extra=[])
        .configuration("model")
        .machine(machine())
        .schema("3")
        .policies(on_incomplete="forward")
        .on_attach(lambda agent, kept: told.append("attach"))
        .on_start(lambda agent: told.append(("start", agent.count)))
        .on_pause(lambda agent: told.append("pause"))
        .on_resume(lambda agent: told.append("resume"))
        .on_stop(lambda agent: told.append("stop"))
        .on_fail(lambda agent, error: told.append(error))
        .validate(lambda agent, fields: 1 // (1 + fields["count"]))
        .handle_recovery(lambda agent, recovery: told.append(recovery.kind))
        .upgrade(lambda fields, schema: {**fields, "count": 40})
        .build(Counting)
    )
    assert isinstance(spec, Spec)
    backend = MemoryBackend()
    kept = opened(backend).agents.create(spec, "a", model="m")
    kept.start()
    kept.pause()
    kept.resume()
    kept.stop()
    kept.fail("broken")
    assert told == ["attach", ("start", 0), "pause", "resume", "stop", "broken"]
    kept.agent.count = -1
    with pytest.raises(InvalidError, match="division|modulo"):
        kept.save()
    told.clear()
    kept = opened(backend).agents.restore("a")
    assert kept.agent.extra == []
    kept.start()
    restored = opened(backend).agents.restore("a")
    restored.start()
    assert told[-2:] == ["crashed", ("start", 0)]
    registry.forget("tests: built")
    AgentBuilder("tests: built").fields("count").schema("4").upgrade(lambda fields, schema: {"count": 41}).build(
        Counting
    )
    assert opened(backend).agents.restore("a").agent.count == 41


class Counting:
    def __init__(self, model: str = "") -> None:
        self.model, self.count = model, 0


def test_a_class_that_declares_no_fields() -> None:
    class Bare:
        def __init__(self) -> None:
            self.count = 0

    for build in (persistent(name="tests: bare"), AgentBuilder("tests: bare").build):
        with pytest.raises(InvalidError, match="the class declares no fields") as refused:
            build(Bare)
        assert "Bare, as 'tests: bare'" in str(refused.value)
        assert 'fields=["count"]' in str(refused.value)
    assert "tests: bare" not in registry

    class Choosing(Bare):
        def persist(self) -> dict[str, Any]:
            return {"count": self.count}

    store = opened(MemoryBackend())
    for stored, decorate, kind in (
        ({}, persistent(name="tests: bare", fields=[]), Bare),
        ({}, AgentBuilder("tests: bare").fields().build, Bare),
        ({"count": 0}, persistent(name="tests: choosing"), Choosing),
        ({"count": 0}, AgentBuilder("tests: bare").persist(lambda agent: {"count": agent.count}).build, Bare),
    ):
        decorate(kind)
        id = str(len(store.agents.list()))
        store.agents.create("tests: choosing" if kind is Choosing else "tests: bare", id)
        assert store.agents.load(id).fields == stored
    for name in ("tests: bare", "tests: choosing"):
        registry.forget(name)


def test_a_builder_takes_a_function_that_makes_agents() -> None:
    def make(model: str) -> dict[str, Any]:
        return {"model": model}

    with pytest.raises(InvalidError, match="the class declares no fields"):
        AgentBuilder("tests: made").build(make)
    spec = (
        AgentBuilder("tests: made")
        .persist(lambda agent: {key: value for key, value in agent.items() if key != "model"})
        .restore(lambda agent, fields: agent.update(fields))
        .build(make)
    )
    backend = MemoryBackend()
    kept = opened(backend).agents.create(spec, "a", model="m")
    kept.agent["x"] = 1
    kept.save()
    assert opened(backend).agents.restore("a").agent == {"model": "m", "x": 1}
    assert opened(backend).agents.load("a").fields == {"x": 1}
    store = opened(backend)
    attached = store.agents.attach({"model": "n"}, "b", kind=spec, configuration={"model": "n"})
    attached.save()
    assert opened(backend).agents.restore("b").agent == {"model": "n"}
    with pytest.raises(NotFoundError, match="is not registered"):
        store.agents.attach({}, "c")
    with pytest.raises(InvalidError, match="on_start must be a function"):
        AgentBuilder("tests: none").on_start(3)  # type: ignore[arg-type]


def test_the_same_for_asyncio() -> None:
    @persistent(name="tests: async data")
    @dataclasses.dataclass
    class Own:
        count: int = 0

        async def on_start(self) -> None:
            await asyncio.sleep(0)
            self.count += 1

    async def main() -> None:
        backend = MemoryBackend()
        kept = await aopened(backend).agents.create(Own, "a")
        assert isinstance(kept, AsyncAgentHandle)
        await kept.start()
        await kept.stop()
        found = await aopened(backend).agents.restore("a")
        assert found.agent.count == 1

    asyncio.run(main())


def test_a_resolver_of_names_knows_one_class_by_many() -> None:
    spec = AgentBuilder("tests: one").build(Data)
    assert registry.of(spec) is registry.of("tests: one") is registry.of(Data)
    assert "tests: one" in list(registry)
