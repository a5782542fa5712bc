"""Who may use what is shared: those who own, or were granted, the scope that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DeniedError, NotFoundError
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on

STAGES = ["fetch", "parse"]


@pytest.fixture
def store() -> Iterator[Store]:
    with store_on(MemoryBackend(), Clock()) as opened:
        yield opened


def uses(acting: Any) -> dict[str, Callable[[], object]]:
    """All that can be done, by name."""
    topic, requests = acting.sharing.topic("news"), acting.sharing.requests("planner")
    pipeline, document = acting.sharing.pipeline("ingest", STAGES), acting.sharing.document("plan")
    return {
        "publish": lambda: topic.publish(1),
        "subscribe": lambda: topic.subscribe("a"),
        "read topic": lambda: topic.read(),
        "count": lambda: topic.count(),
        "subscribers": lambda: topic.subscribers(),
        "unsubscribe": lambda: topic.unsubscribe("a"),
        "trim": lambda: topic.trim(),
        "delete topic": lambda: topic.delete(),
        "ask": lambda: requests.ask(1),
        "call": lambda: requests.call(1, timeout=0),
        "wait": lambda: requests.wait("000000000000-x", timeout=0),
        "cancel": lambda: requests.cancel("000000000000-x"),
        "take request": lambda: requests.take(),
        "serve": lambda: requests.serve(str, timeout=0),
        "pending": lambda: requests.pending(),
        "put": lambda: pipeline.put(1),
        "take": lambda: pipeline.take("fetch"),
        "work": lambda: pipeline.work("parse", str, timeout=0),
        "results": lambda: pipeline.results(),
        "dead": lambda: pipeline.dead(),
        "forget": lambda: pipeline.forget(["x"]),
        "requeue": lambda: pipeline.requeue("x"),
        "trim pipeline": lambda: pipeline.trim(),
        "trim requests": lambda: requests.trim(),
        "stats": lambda: pipeline.stats(),
        "read": lambda: document.read(),
        "edit": lambda: document.edit(lambda _: 1),
        "save": lambda: document.save(1, 0),
        "wait for": lambda: document.wait(0, timeout=0),
        "history": lambda: document.history(),
        "delete": lambda: document.delete(),
    }


def test_nothing_is_allowed_without_a_grant(store: Store, subtests: pytest.Subtests) -> None:
    owner = uses(store)
    for each in ("publish", "subscribe", "ask", "put", "edit"):
        owner[each]()
    for number, what in enumerate(owner):
        with subtests.test(what):
            stranger = f"stranger-{number}"
            with pytest.raises(DeniedError):
                uses(store.as_identity(agent=stranger))[what]()
            tried = store.audit.query(actor=f"agent:{stranger}")
            assert tried
            assert {each.outcome for each in tried} == {"denied"}


def test_a_topic_of_an_agents_own_scope_is_its_own(store: Store) -> None:
    mine = store.as_identity(agent="writer")
    topic = mine.sharing.topic("drafts", agent="writer")
    subscription = topic.subscribe("a")
    topic.publish("hello")
    message = subscription.receive(0)
    assert message is not None
    assert (message.value, message.actor) == ("hello", "agent:writer")
    subscription.ack()
    with pytest.raises(DeniedError):
        store.as_identity(agent="other").sharing.topic("drafts", agent="writer").subscribe("a")


def test_one_who_may_read_a_topic_subscribes_and_one_who_may_write_publishes(store: Store) -> None:
    store.access.grant("agent:reader", "read", custom="topic/news")
    store.access.grant("agent:writer", "write", custom="topic/news")
    reader, writer = (store.as_identity(agent=name).sharing.topic("news") for name in ("reader", "writer"))
    subscription = reader.subscribe("inbox")
    writer.publish("x")
    assert [message.value for message in subscription.receive_many(timeout=0)] == ["x"]
    subscription.ack()
    for denied in (lambda: reader.publish("y"), reader.trim, reader.delete, lambda: writer.subscribe("a"), writer.read):
        with pytest.raises(DeniedError):
            denied()


def test_names_of_subscribers_are_the_own_of_each_identity(store: Store) -> None:
    store.access.grant("group:everyone", "read", custom="topic/news")
    one, two = (store.as_identity(agent=name).sharing.topic("news") for name in ("one", "two"))
    first = one.subscribe("inbox")
    second = two.subscribe("inbox")
    store.sharing.topic("news").publish(1)
    for subscription in (first, second):
        assert subscription.receive(0) is not None
        subscription.ack()
    assert {(each.name, each.actor, each.cursor) for each in one.subscribers()} == {
        ("inbox", "agent:one", 1),
        ("inbox", "agent:two", 1),
    }
    assert two.unsubscribe("inbox")
    assert [each.actor for each in one.subscribers()] == ["agent:one"]


def test_a_grant_that_is_revoked_cuts_a_subscriber_off_at_once(store: Store) -> None:
    grant = store.access.grant("agent:reader", "read", custom="topic/news")
    topic = store.sharing.topic("news")
    subscription = store.as_identity(agent="reader").sharing.topic("news").subscribe("a")
    for number in range(3):
        topic.publish(number)
    assert subscription.receive(0) is not None
    store.access.revoke(grant)
    with pytest.raises(DeniedError):
        subscription.receive(0)
    with pytest.raises(DeniedError):
        subscription.lag()


def test_who_asks_cannot_serve_and_who_serves_cannot_ask(store: Store) -> None:
    store.access.grant("agent:asker", "write", custom="requests/planner", keys="ask")
    store.access.grant("agent:planner", ["read", "write"], custom="requests/planner", keys="serve")
    asker, planner = (store.as_identity(agent=name).sharing.requests("planner") for name in ("asker", "planner"))
    id = asker.ask("plan")
    request = planner.take()
    assert request is not None
    assert request.actor == "agent:asker"
    planner.answer(request, "done")
    assert asker.wait(id) == "done"
    for denied in (asker.take, asker.pending, lambda: planner.ask(1), lambda: planner.wait(id)):
        with pytest.raises(DeniedError):
            denied()


def test_a_worker_is_let_into_its_stage_only(store: Store) -> None:
    store.access.grant("agent:parser", ["read", "write"], custom="pipeline/ingest", keys="parse")
    store.sharing.pipeline("ingest", STAGES).put(1)
    store.sharing.pipeline("ingest", STAGES).work("fetch", str, timeout=0)
    parser = store.as_identity(agent="parser").sharing.pipeline("ingest", STAGES)
    assert parser.work("parse", str.upper, timeout=0) == 1
    for denied in (lambda: parser.put(1), lambda: parser.take("fetch"), parser.stats, parser.results):
        with pytest.raises(DeniedError):
            denied()


def test_a_document_is_edited_by_those_who_may(store: Store) -> None:
    store.access.grant("agent:editor", ["read", "write"], custom="document/plan")
    store.access.grant("agent:reader", "read", custom="document/plan")
    editor, reader = (store.as_identity(agent=name).sharing.document("plan") for name in ("editor", "reader"))
    editor.edit(lambda _: {"a": 1})
    assert reader.read().value == {"a": 1}
    assert [past.actor for past in reader.history()] == ["agent:editor"]
    for denied in (lambda: reader.edit(lambda value: value), lambda: reader.save(1, 1), reader.delete):
        with pytest.raises(DeniedError):
            denied()


def test_the_state_of_the_scope_is_something_else(store: Store) -> None:
    """Who may publish can neither change nor take away what others published."""
    store.access.grant("agent:writer", ["read", "write"], custom="topic/news")
    store.sharing.topic("news").publish(1)
    state = store.as_identity(agent="writer").state(custom="topic/news")
    assert list(state) == []
    state["message"] = 2
    state.clear()
    assert [message.value for message in store.sharing.topic("news").read()] == [1]


def test_a_handle_that_only_reads_moves_no_cursor(store: Store) -> None:
    news = store.sharing.topic("news")
    store.access.grant("agent:reader", "read", news.scope)
    strict, only = (store.as_identity(agent="reader", mode=mode) for mode in ("strict", "read-only"))
    subscription = strict.sharing.topic("news").subscribe("inbox", start="start")
    for number in range(3):
        news.publish(number)
    first = subscription.receive()
    assert first is not None
    theirs = only.sharing.topic("news")
    assert [message.value for message in theirs.read()] == [0, 1, 2]
    for change in (
        lambda: theirs.subscribe("inbox"),
        lambda: theirs.subscribe("new"),
        lambda: theirs.unsubscribe("inbox"),
    ):
        with pytest.raises(DeniedError, match="only reads"):
            change()
    second = subscription.receive()  # it is not replaced, and acknowledges the first
    assert (first.value, second and second.value) == (0, 1)
    assert [(each.name, each.cursor) for each in news.subscribers()] == [("inbox", 1)]
    assert strict.sharing.topic("news").unsubscribe("inbox"), "the control: in another mode it is one's own"


def test_only_who_asked_has_the_answer(store: Store) -> None:
    requests = store.sharing.requests("planner")
    for name, key in (("one", "ask"), ("two", "ask"), ("server", "serve")):
        store.access.grant(f"agent:{name}", ["read", "write"] if key == "serve" else "write", requests.scope, keys=key)
    store.access.grant("agent:server", "write", requests.scope, keys="ask")
    one, two, server = (store.as_identity(agent=name).sharing.requests("planner") for name in ("one", "two", "server"))
    answered, waiting = one.ask("a"), one.ask("b")
    assert server.serve(lambda value: f"secret {value}", limit=1, timeout=60) == 1
    for id in (answered, waiting):
        with pytest.raises(DeniedError):
            two.wait(id, timeout=0)
        with pytest.raises(DeniedError):
            two.cancel(id)
    with pytest.raises(NotFoundError):
        two.wait("000000000000-none", timeout=0)
    assert store.audit.query(actor="agent:two", kind="denied")
    assert one.wait(answered) == "secret a"
    assert server.wait(answered) == "secret a", "who may serve sees it anyway"
    assert requests.wait(answered) == "secret a", "and the store's owner"
    assert one.cancel(waiting)
