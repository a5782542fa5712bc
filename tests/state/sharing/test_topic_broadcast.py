"""Topics: every subscriber gets every message, in order, and goes on where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import astuple

from holdfast.backends.memory import MemoryBackend
from holdfast.engine.trace_context import correlation
from holdfast.errors import ConflictError, CorruptError, InvalidError, VetoError
from holdfast.state.sharing import segmented_log
from holdfast.state.sharing.topic import Subscription, Topic
from holdfast.store.store import Store
from tests.state.kit import Clock, awaited, store_on
from tests.support.interference import InterferingBackend
from tests.support.nightly import examples


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Links of a few steps, so that there are many."""
    monkeypatch.setattr(segmented_log, "LENGTH", 4)
    return iter(())


@pytest.fixture
def store() -> Iterator[Store]:
    with store_on(MemoryBackend(), Clock()) as opened:
        yield opened


def values(subscription: Subscription, limit: int = 1000) -> list[Any]:
    """All that is there for a subscriber, acknowledged."""
    found = []
    while page := subscription.receive_many(limit, timeout=0):
        found += [message.value for message in page]
    return found


@pytest.mark.usefixtures("short")
def test_each_subscriber_gets_every_message_in_order(store: Store) -> None:
    topic = store.sharing.topic("news")
    one = topic.subscribe("one", start="start")
    numbers = [topic.publish({"n": number, "text": "x" * 500}).number for number in range(11)]
    assert numbers == list(range(1, 12))
    late = topic.subscribe("late", start="start")
    assert [value["n"] for value in values(one)] == [value["n"] for value in values(late, 3)] == list(range(11))
    assert one.receive(timeout=0) is None
    assert (one.cursor, one.lag(), topic.count()) == (11, 0, 11)
    assert [message.number for message in topic.read(after=9)] == [10, 11]
    now = topic.subscribe("now")
    topic.publish("last")
    assert values(now) == values(one) == ["last"]


def test_a_page_of_messages_is_one_read() -> None:
    watched = InterferingBackend()
    topic = store_on(watched, Clock()).sharing.topic("news")
    subscription = topic.subscribe("a", start="start")
    for number in range(20):
        topic.publish(number)
    reads = []
    read = watched.read

    async def counted(queries: Any) -> Any:
        reads.append(queries)
        return await read(queries)

    watched.read = counted  # type: ignore[method-assign]
    assert len(subscription.receive_many(timeout=0)) == 20
    assert len(reads) == 1


def test_a_subscriber_goes_on_after_the_last_message_it_acknowledged(store: Store) -> None:
    topic = store.sharing.topic("news")
    first = topic.subscribe("a")
    for number in range(4):
        topic.publish(number)
    assert [first.receive(0).value for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    # The third is not acknowledged: the process may have died while at work on it.
    again = topic.subscribe("a")
    assert (again.cursor, again.lag()) == (2, 2)
    assert [message.value for message in islice(again, 2)] == [2, 3]
    again.ack()
    assert list(map(astuple, topic.subscribers())) == [("a", "", 4, 0)]


def test_who_was_replaced_can_acknowledge_nothing(store: Store) -> None:
    topic = store.sharing.topic("news")
    old = topic.subscribe("a")
    topic.publish(1)
    topic.publish(2)
    assert old.receive(0) is not None
    new = topic.subscribe("a")
    with pytest.raises(ConflictError, match="another has subscribed") as caught:
        old.ack()
    assert caught.value.code == "lease-lost"
    assert values(new) == [1, 2]
    assert topic.unsubscribe("a")
    assert not topic.unsubscribe("a")
    topic.publish(3)
    assert new.receive(0) is not None
    with pytest.raises(ConflictError, match="taken away"):
        new.ack()


def test_a_handler_that_fails_gets_the_message_again(store: Store) -> None:
    topic, seen = store.sharing.topic("news"), list[Any]()
    subscription = topic.subscribe("a")
    for number in range(3):
        topic.publish(number)

    def handler(message: Any) -> None:
        seen.append(message.value)
        if seen == [0, 1]:
            raise RuntimeError("once")

    with pytest.raises(RuntimeError, match="once"):
        subscription.deliver(handler, timeout=0)
    assert subscription.cursor == 1
    assert subscription.deliver(handler, timeout=0) == 2
    assert seen == [0, 1, 1, 2]


def test_what_a_handler_changes_carries_the_message_as_its_cause(store: Store) -> None:
    topic, state = store.sharing.topic("news"), store.state(agent="a")
    subscription = topic.subscribe("a")
    with correlation("run-7", cause="order-1"):
        published = topic.publish("go")
    (message,) = topic.read()
    assert (message.id, message.correlation, message.cause, message.actor) == (published.id, "run-7", "order-1", "")
    subscription.deliver(lambda message: state.set("got", message.value), timeout=0)
    (change,) = state.history("got")
    assert (change.correlation, change.cause) == ("run-7", published.id)


@pytest.mark.usefixtures("short")
def test_messages_that_all_have_seen_are_dropped(store: Store) -> None:
    topic = store.sharing.topic("news")
    assert topic.trim() == 0
    fast, slow = topic.subscribe("fast"), topic.subscribe("slow")
    for number in range(14):
        topic.publish(number)
    assert len(values(fast)) == 14
    for _ in range(7):
        slow.receive(0)
    assert topic.trim() == 4  # six are acknowledged, and they go by the link
    assert values(slow) == list(range(7, 14))
    assert topic.trim() == 8
    assert [message.number for message in topic.read()] == [13, 14]
    assert values(topic.subscribe("new", start="start")) == [12, 13]
    # What was dropped is not begun again by one who still remembers it.
    assert store_on(store._engine.context.backend, Clock()).sharing.topic("news").publish("x").number == 15
    assert topic.publish("y").number == 16


@pytest.mark.usefixtures("short")
def test_messages_that_are_old_are_dropped_and_a_held_one_is_not() -> None:
    clock = Clock()
    store = store_on(MemoryBackend(), clock)
    topic = store.sharing.topic("news")
    subscription = topic.subscribe("a")
    for number in range(10):
        clock.sleep(60)
        topic.publish(number)
    assert topic.trim(older_than=timedelta(minutes=4)) == 4
    assert values(subscription) == list(range(4, 10))  # it was too slow
    store.maintenance.hold("topic:news/link:000000000001", kind="system", reason="asked for")
    assert topic.trim(older_than=1) == 0
    with pytest.raises(InvalidError):
        topic.trim(older_than=-1)


@pytest.mark.usefixtures("short")
def test_the_cursor_takes_no_more_room_the_more_is_acknowledged(store: Store) -> None:
    topic = store.sharing.topic("news")
    subscription = topic.subscribe("a")
    for number in range(40):
        topic.publish(number)
        assert subscription.receive(0) is not None
    names = [line.name for line in asyncio.run(_names(store, "␞topic:news/reader:"))]
    assert len(names) <= 3
    assert topic.subscribe("a").cursor == 39


async def _names(store: Store, prefix: str) -> Any:
    from holdfast.backends.runtime.drivers import arun

    return await arun(store._engine.lines.names("", prefix))


@pytest.mark.usefixtures("short")
def test_a_topic_can_be_deleted_and_begun_again(store: Store) -> None:
    topic = store.sharing.topic("news")
    assert not topic.delete()
    topic.subscribe("a")
    for number in range(6):
        topic.publish(number)
    assert topic.delete()
    assert (topic.count(), topic.read(), topic.subscribers()) == (0, [], [])
    assert topic.publish("again").number == 1
    assert not store.maintenance.verify().findings


@pytest.mark.usefixtures("short")
def test_writers_that_remember_different_links_agree(store: Store) -> None:
    others = [store_on(store._engine.context.backend, Clock()).sharing.topic("news") for _ in range(3)]
    for number in range(30):
        assert others[number % 7 % 3].publish(number).number == number + 1
    assert [message.value for message in _all(others[0])] == list(range(30))


def _all(topic: Topic) -> list[Any]:
    found: list[Any] = []
    while page := topic.read(after=len(found)):
        found += page
    return found


@pytest.mark.usefixtures("short")
def test_one_who_slept_while_all_it_knew_was_dropped(store: Store) -> None:
    backend = store._engine.context.backend
    writer, reader = (store_on(backend, Clock()).sharing.topic("news") for _ in range(2))
    subscription = reader.subscribe("slow", start="start")
    assert writer.publish(0).number == reader.count() == 1
    assert store.sharing.topic("news").unsubscribe("slow")
    other = store.sharing.topic("news").subscribe("quick", start="start")
    for number in range(1, 10):
        store.sharing.topic("news").publish(number)
    assert len(values(other)) == 10
    assert store.sharing.topic("news").trim() == 8
    assert writer.publish(10).number == 11
    assert reader.count() == 11
    assert [message.value for message in subscription.receive_many(timeout=0)] == [8, 9, 10]


def test_two_that_begin_a_topic_at_once() -> None:
    watched = InterferingBackend()
    one, other = (store_on(watched, Clock()).sharing.topic("news") for _ in range(2))
    with watched.interfere(lambda: other.publish("first")):
        assert one.publish("second").number == 2
    assert [message.value for message in one.read()] == ["first", "second"]


@pytest.mark.usefixtures("short")
def test_a_link_that_is_dropped_while_the_next_is_begun() -> None:
    """What the new link rests on goes before it is stored: another one has begun it by then."""
    watched = InterferingBackend()
    one, other = (store_on(watched, Clock()).sharing.topic("news") for _ in range(2))
    seen = other.subscribe("a")
    for number in range(4):
        one.publish(number)

    def meanwhile() -> None:
        for number in range(4, 9):
            other.publish(number)
        values(seen)
        assert other.trim() == 8

    with watched.interfere(meanwhile):
        assert one.publish(9).number == 10
    assert [message.number for message in other.read()] == [9, 10]


def test_hooks_are_called_for_what_is_shared_and_not_for_how_it_is_kept(store: Store) -> None:
    seen: list[Any] = []

    @store.hooks.before("*", inline=True)
    def look(call: Any) -> None:
        seen.append((call.point, call.scope, call.value))
        if call.value == "bad":
            raise VetoError("not that")

    topic, document = store.sharing.topic("news"), store.sharing.document("plan")
    subscription = topic.subscribe("a")
    topic.publish("good")
    with pytest.raises(VetoError, match="not that"):
        topic.publish("bad")
    assert [message.value for message in islice(subscription, 1)] == ["good"]
    subscription.ack()
    pipeline, requests = store.sharing.pipeline("p", ["a"]), store.sharing.requests("r")
    pipeline.put("item")
    assert pipeline.work("a", str.upper, timeout=0) == 1
    requests.ask("question")
    assert requests.serve(str.upper, timeout=0) == 1
    document.edit(lambda _: "plan")
    assert [(point, value) for point, _, value in seen] == [
        ("topic.publish", "good"),
        ("topic.publish", "bad"),
        ("pipeline.put", "item"),
        ("pipeline.done", "ITEM"),
        ("requests.ask", "question"),
        ("requests.answer", "QUESTION"),
        ("document.edit", "plan"),
    ]
    assert seen[0][1].startswith("topic:news")
    assert seen[-1][1] == "document:plan"


def test_large_messages_and_names_of_all_kinds(store: Store) -> None:
    topic = store.sharing.topic("team/é %2F news", agent="writer", tool="x")
    topic.publish(b"x" * 200_000)
    topic.publish({"small": 1})
    assert [message.value for message in topic.subscribe("in/box %", start="start").receive_many(timeout=0)] == [
        b"x" * 200_000,
        {"small": 1},
    ]
    assert topic.subscribers()[0].name == "in/box %"
    assert str(topic.scope) == "agent:writer/tool:x/custom:topic%2Fteam%2Fé %252F news"
    assert "team" in repr(topic)
    assert store.sharing.topic("team").count() == 0


@pytest.mark.parametrize("name", ["", "..", "a/../b", "a//b", "a\0b", "x" * 257])
def test_bad_names(store: Store, name: str) -> None:
    with pytest.raises(InvalidError):
        store.sharing.topic(name)
    with pytest.raises(InvalidError):
        store.sharing.topic("news").subscribe(name)


def test_bad_arguments(store: Store) -> None:
    topic = store.sharing.topic("news")
    with pytest.raises(InvalidError, match="starts from"):
        topic.subscribe("a", start="middle")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="page starts"):
        topic.read(after=-1)
    with pytest.raises(InvalidError, match="at least 1"):
        topic.subscribe("a").receive_many(0)
    with pytest.raises(InvalidError, match="timeout"):
        topic.subscribe("a").receive(-1)
    with pytest.raises(InvalidError, match="cannot be in a custom scope"):
        store.sharing.topic("news", custom="x")
    with pytest.raises(InvalidError, match="at most"):
        store.sharing.topic("é" * 200, user="é" * 250, agent="é" * 100)
    with pytest.raises(InvalidError, match="at most"):
        store.sharing.topic("é" * 200, user="é" * 150).subscribe("é" * 200)


def test_a_step_without_a_message_is_noticed(store: Store) -> None:
    store.sharing.topic("news").publish(1)
    from holdfast.backends.runtime.drivers import run
    from holdfast.engine.model.scopes import Scope, ScopePart
    from holdfast.state.writer import KeyWrite, write

    link = Scope((ScopePart("topic", "news"), ScopePart("link", f"{0:012d}")))
    run(write(store._handle, {link: [KeyWrite("other", packed=b"\x01")]}))
    with pytest.raises(CorruptError, match="no message"):
        store.sharing.topic("news").read()


def test_for_asyncio(store: Store) -> None:
    async def main() -> None:
        topic = awaited(store).sharing.topic("news")
        subscription = await topic.subscribe("a")
        seen: list[Any] = []

        async def handler(message: Any) -> None:
            seen.append(message.value)
            if len(seen) == 2:
                raise RuntimeError("once")

        async def publisher() -> None:
            for number in range(3):
                await asyncio.sleep(0.005)
                await topic.publish(number)

        task = asyncio.create_task(publisher())
        async for message in subscription:
            seen.append(message.value)
            break
        await subscription.ack()
        await task
        with pytest.raises(RuntimeError):
            await subscription.deliver(handler, timeout=60)
        assert await subscription.deliver(handler, timeout=0) == 2
        assert seen == [0, 1, 1, 2]
        assert await subscription.lag() == 0
        assert await topic.count() == 3

    asyncio.run(main())


class Machine(RuleBasedStateMachine):
    """A topic beside a list, with subscribers that come back at any time."""

    @initialize()
    def begin(self) -> None:
        self.backend, self.clock = MemoryBackend(), Clock()
        self.stores = [store_on(self.backend, self.clock) for _ in range(2)]
        self.published: list[int] = []
        self.open: dict[str, Subscription] = {}
        self.acknowledged: dict[str, int] = {}
        self.given: dict[str, int] = {}
        self.trimmed = 0

    def topic(self, which: int) -> Topic:
        return self.stores[which].sharing.topic("t")

    @rule(which=st.integers(0, 1))
    def publish(self, which: int) -> None:
        self.published.append(len(self.published))
        assert self.topic(which).publish(self.published[-1]).number == len(self.published)

    @rule(which=st.integers(0, 1), name=st.sampled_from("ab"), start=st.sampled_from(["now", "start"]))
    def subscribe(self, which: int, name: str, start: Any) -> None:
        self.open[name] = self.topic(which).subscribe(name, start=start)
        known = len(self.published) if start == "now" else 0
        self.given[name] = self.acknowledged.setdefault(name, known)
        assert self.open[name].cursor == self.acknowledged[name]

    @rule(name=st.sampled_from("ab"), limit=st.integers(1, 6))
    def receive(self, name: str, limit: int) -> None:
        if name not in self.open:
            return
        self.acknowledged[name] = self.given[name]
        start = max(self.given[name], self.trimmed)
        found = [message.value for message in self.open[name].receive_many(limit, timeout=0)]
        # As many as are wanted, but for the end of a link, or of what was read before.
        assert found == self.published[start : start + len(found)]
        assert bool(found) == bool(self.published[start:])
        if found:
            self.given[name] = found[-1] + 1

    @rule(which=st.integers(0, 1))
    def trim(self, which: int) -> None:
        seen = min(self.acknowledged.values(), default=0)
        self.topic(which).trim()
        if seen:
            self.trimmed = max(
                self.trimmed, min(seen, max(len(self.published) - 1, 0)) // segmented_log.LENGTH * segmented_log.LENGTH
            )

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "stores"):
            assert self.topic(0).count() == len(self.published)


def test_a_topic_is_a_list_with_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_log, "LENGTH", 3)
    case = Machine.TestCase
    case.settings = settings(
        max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
