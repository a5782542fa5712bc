"""`store.timeline`: everything that happened, on one axis, as far as it may be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider

import holdfast
from holdfast import Store
from holdfast.agents import Machine, PersistentAgent
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import InvalidError, NotFoundError
from holdfast.store.timeline.api import TimelinePage
from holdfast.store.timeline.event import TimelineEvent
from tests.hooks.kit import Clock
from tests.hooks.kit import store as hook_store
from tests.security.sensitive.test_protection import FixedKeys
from tests.servers import mongodb, postgres
from tests.support.cases import case


class Worker(PersistentAgent, name="timeline-worker"):
    """An agent with a machine."""

    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy")


def kinds(events: list[TimelineEvent]) -> list[str]:
    return [event.kind for event in events]


def places(events: list[TimelineEvent]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.scope, event.key) for event in events]


@pytest.fixture
def busy(store: Store) -> Store:
    """A store in which one request led to several changes."""
    return fill(store)


def fill(store: Store) -> Store:
    """Have one request lead to several changes."""

    @store.hooks.after("state.set", scope="agent:a", name="react", record=True)
    def react(call: Any) -> None:
        store.state(agent="b")["got"] = call.value
        store.thread("log").put({"seen": call.value})

    with holdfast.correlation("req-1"):
        store.thread("chat").put({"messages": ["please refund the order"]})
        store.state(agent="a")["plan"] = "refund"
    store.hooks.drain()
    store.thread("chat").put({"messages": ["please refund the order", "done"]})
    return store


def test_all_that_happened_is_on_one_axis(store: Store) -> None:
    @store.hooks.before("state.set", name="check")
    def check(call: Any) -> None:
        if call.key == "bad":
            raise holdfast.errors.VetoError("not that")

    store.thread("chat").put({"n": 1})
    store.state(user="ann")["name"] = "Ann"
    with pytest.raises(holdfast.errors.VetoError):
        store.state(user="ann")["bad"] = 1
    store.sessions.start("visit")
    store.artifacts.register(b"report", type="text")
    worker = Worker().attach(store, "w1")
    worker.start()
    worker.transition("work")
    worker.once("charge", lambda: 7)
    with pytest.raises(ZeroDivisionError):
        worker.once("split", lambda: 1 // 0)
    worker.stop()
    with pytest.raises(holdfast.errors.DeniedError):
        store.as_identity(agent="b").state(user="ann").get("name")
    found = list(store.timeline.query(limit=7).all())
    assert {*kinds(found)} >= {
        *("checkpoint", "change", "hook", "session", "artifact", "lifecycle", "transition", "step", "denied"),
    }
    assert [event.time for event in found] == sorted((event.time for event in found), reverse=True)
    assert [*store.timeline.query(oldest_first=True, limit=3).all()] == found[::-1]
    failed = store.timeline.query(errors=True)
    assert {event.outcome for event in failed} == {"veto", "vetoed", "denied", "error"}
    assert all(event.failed for event in failed)
    (step,) = store.timeline.query("kind:step", errors=True)
    assert (step.key, step.outcome, step.summary.split(":")[0]) == ("step/split", "error", "failed")
    steps = store.timeline.query("kind:step key:step/charge")
    assert [(event.scope, event.key, event.summary) for event in steps] == [("agent:w1", "step/charge", "done")]
    assert store.timeline.query("kind:change key:name")[0].summary == '"Ann"'
    assert {"lifecycle", "transition", "step"} <= {*kinds(store.timeline.query(scope="agent:w1"))}


QUERIES = {
    "refund": {"checkpoint", "change", "hook"},
    "refund kind:checkpoint": {"checkpoint"},
    "correlation:req-1": {"checkpoint", "change", "hook"},
    "kind:hook hook:react": {"hook"},
    "hook:other": set(),
    "agent:b": {"change"},
    "scope:agent:a key:plan": {"change", "hook"},
    "thread:chat": {"checkpoint"},
    "thread:* -thread:chat": {"checkpoint"},
    "outcome:error": set(),
    "time>1h": {"checkpoint", "change", "hook"},
    "before:2020-01-01": set(),
    "duration>=0 actor:agent:x": set(),
    "(agent:b OR thread:log) -kind:change": {"checkpoint"},
}


def test_queries_select_events(busy: Store, subtests: pytest.Subtests) -> None:
    everything = list(busy.timeline.query(limit=1000))
    assert len(everything) == 6
    for query, expected in QUERIES.items():
        with case(subtests, query):
            found = list(busy.timeline.query(query, limit=2).all())
            assert {*kinds(found)} == expected
            assert [event for event in everything if event in found] == found  # in order, each once
    for query in ("colour:red", "kind>3", "time:yesterdayish", '"open', "meta.source=x"):
        with case(subtests, query), pytest.raises(InvalidError):
            busy.timeline.query(query)


def test_what_led_to_a_value_and_what_it_led_to(busy: Store) -> None:
    (change,) = busy.timeline.query("kind:change agent:a")
    tree = busy.timeline.effects(change.id)
    assert [(depth, *places(list(node.events))) for depth, node in tree.walk()] == [
        (0, ("change", "agent:a", "plan")),
        (1, ("change", "agent:b", "got")),
        (1, ("checkpoint", "thread:log", "")),
        (1, ("hook", "agent:a", "plan")),
    ]
    for back in (busy.timeline.causes(scope="agent:b", key="got"), busy.timeline.causes(thread="log", path="seen")):
        assert [depth for depth, _ in back.walk()] == [0, 1]
        assert back.links[0].events == (change,)
    first = busy.timeline.causes(thread="chat", path="messages[0]")
    assert [event.kind for event in first.events] == ["checkpoint"]
    assert first.links == ()
    with pytest.raises(NotFoundError):
        busy.timeline.effects("no-such-event")
    with pytest.raises(InvalidError):
        busy.timeline.causes()


def test_long_chains_and_many_effects_are_followed(store: Store) -> None:
    cause, ids = "", []
    for number in range(5):
        with holdfast.correlation("chain", cause=cause or None):
            ids.append(store.thread(f"thread-{number}").put({"n": number}).id)
            for other in range(number):
                store.state(agent=f"{number}-{other}")["n"] = other
        cause = ids[-1]
    tree = store.timeline.effects(ids[0])
    assert [node.id for _, node in tree.walk() if node.id in ids] == ids
    assert sum(1 for _ in tree.walk()) == 5 + 1 + 2 + 3 + 4
    assert [node.id for _, node in store.timeline.causes(ids[-1]).walk()] == ids[::-1]
    whole = sum(1 for _ in tree.walk())
    assert not any(node.more for _, node in store.timeline.effects(ids[0], limit=whole).walk())
    for limit in (1, 3, whole - 1):
        cut = store.timeline.effects(ids[0], limit=limit)
        assert sum(1 for _ in cut.walk()) == limit
        assert any(node.more for _, node in cut.walk())
    assert [node.more for _, node in store.timeline.causes(ids[-1], limit=2).walk()] == [False, True]
    for wrong in ("", 5, None):
        with pytest.raises(InvalidError):
            store.timeline.effects(wrong)  # type: ignore[arg-type]


def test_pages_are_bounded_and_cursors_belong_to_their_question(busy: Store) -> None:
    page = busy.timeline.query("kind:session", scan_limit=2)
    if busy.status().capabilities.times:
        assert (list(page), page.stopped) == ([], False)  # the index knows that there are none
    page = busy.timeline.query('"nowhere to be found"', scan_limit=2)
    if busy.status().capabilities.times:
        assert (list(page), page.stopped, page.examined) == ([], True, 2)
        assert list(page.all()) == []
    first = busy.timeline.query(limit=2)
    assert first.next is not None
    for cursor in ("", "x", first.next[:-3], first.next + "AAAA", "WzFd"):
        with pytest.raises(InvalidError):
            busy.timeline.query(limit=2, cursor=cursor)
    with pytest.raises(InvalidError):
        busy.timeline.query("kind:hook", cursor=first.next)
    assert busy.timeline.query(limit=0) == []
    for times in ({"since": "1h"}, {"until": "0s"}, {"query": "time>1h"}, {"since": timedelta(hours=1)}):
        page = busy.timeline.query(limit=2, **times)
        rest = busy.timeline.query(limit=100, cursor=page.next, **times)
        assert [*page, *rest] == [*busy.timeline.query(**times)]
        assert len(rest) == 4
    assert list(busy.timeline.query(since="9999-12-31")) == []
    assert len(busy.timeline.query(until="9999-12-31")) == 6


def test_an_identity_sees_what_it_may_read(busy: Store) -> None:
    busy.state(agent="a")["secret"] = 1
    busy.hooks.drain()
    own = busy.as_identity(agent="b")
    assert {place[1:] for place in places(list(own.timeline.query()))} == {("agent:b", "got")}
    assert list(own.timeline.query("kind:checkpoint")) == []
    assert list(own.timeline.query(thread="chat")) == []
    busy.access.grant("agent:b", "read", "agent:a", keys="plan")
    grant = busy.access.grant("agent:b", "read", thread="chat")
    seen = {place[1:] for place in places(list(own.timeline.query()))}
    assert seen == {("agent:b", "got"), ("agent:a", "plan"), ("thread:chat", "")}
    (change,) = busy.timeline.query("kind:change agent:a key:plan")
    below = own.timeline.effects(change.id)
    assert {event.scope for _, node in below.walk() for event in node.events} == {"agent:a", "agent:b"}
    with pytest.raises(NotFoundError):
        own.timeline.causes(thread="log", path="seen")
    busy.access.revoke(grant)
    assert list(own.timeline.query("kind:checkpoint")) == []
    reads = busy.timeline.query("kind:read actor:agent:b thread:chat")
    assert len(reads) == 1


def test_sensitive_data_is_redacted_also_by_later_policies(store: Store) -> None:
    key = "ghp_" + "x7Kq2mWv9" * 4
    hook: dict[str, Any] = {"record": True, "name": "keep"}
    store.hooks.after("state.set", **hook)(lambda call: None)
    store.state(agent="a")["token"] = key
    store.thread("chat").put({"note": key})
    store.hooks.drain()
    assert key in str([*store.timeline.query()])  # the control: without a policy it is shown
    assert len(store.timeline.query(f'"{key}"')) >= 2
    store.thread("long").put({"messages": [{"role": "user", "content": "x" * 165 + f" {key}"}]})
    store.redaction.protect("redact", keys=FixedKeys())
    shown = store.timeline.query()
    assert key not in str([*shown])
    assert key not in shown.to_html()
    assert key not in json.dumps(shown.to_otlp())
    assert key[:8] not in str([*shown])  # also where a summary is cut
    assert list(store.timeline.query(f'"{key}"')) == []  # nor can it be guessed by searching
    assert list(store.timeline.query(f"{key[:6]}*")) == []


def test_spans_of_opentelemetry_are_taken_along(store: Store) -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        store.thread("chat").put({"n": 1})
        store.state(agent="a")["n"] = 1
        with holdfast.correlation("mine"):
            store.state(agent="a")["n"] = 2
    store.state(agent="a")["n"] = 3
    trace, own = (f"{span.get_span_context().trace_id:032x}", f"{span.get_span_context().span_id:016x}")
    found = list(store.timeline.query(oldest_first=True))
    assert [(event.trace_id, event.span_id, event.cause) for event in found[:3]] == [(trace, own, "")] * 3
    assert [event.correlation for event in found[:3]] == [trace, trace, "mine"]
    assert (found[3].trace_id, found[3].correlation == trace) == ("", False)
    assert [*store.timeline.query(f"trace:{trace}", oldest_first=True)] == found[:3]
    ((resource,),) = (found_ := store.timeline.query(oldest_first=True).to_otlp()).values()
    spans = resource["scopeSpans"][0]["spans"]
    assert json.loads(json.dumps(found_)) == found_
    assert [(each["traceId"], each["parentSpanId"]) for each in spans[:3]] == [(trace, own)] * 3
    assert len({each["spanId"] for each in spans}) == 4
    assert all(len(each["traceId"]) == 32 and len(each["spanId"]) == 16 for each in spans)


def test_spans_of_another_trace_are_linked(store: Store) -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request"), holdfast.correlation("mine"):
        first = store.thread("chat").put({"n": 1})
    with holdfast.correlation("mine", cause=first.id):
        store.state(agent="a")["n"] = 1
    effect, cause = store.timeline.query().to_otlp()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert effect["traceId"] != cause["traceId"]
    assert (effect["parentSpanId"], effect["links"]) == (
        *("", [{"traceId": cause["traceId"], "spanId": cause["spanId"]}]),
    )


def test_events_of_a_line_that_was_removed_have_their_causes(store: Store) -> None:
    store.sessions.start("visit")
    store.state(session="visit")["n"] = 1
    (change,) = store.timeline.query("kind:change key:n scope:session:visit")
    with holdfast.correlation("c", cause=change.id):
        store.state(agent="a")["n"] = 1
    store.sessions.end("visit")
    (again,) = store.timeline.query("kind:change key:n scope:session:visit")
    assert again.id == change.id
    assert [node.events[0].scope for _, node in store.timeline.effects(change.id).walk()] == [
        *("session:visit", "agent:a"),
    ]


def test_a_clock_that_was_set_back_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.timeline.rows._MOST", 4)
    monkeypatch.setattr("holdfast.hooks.execution_log._PAGE", 4)
    clock = Clock()
    with hook_store(clock) as store:
        store.hooks.before("state.set", name="check", inline=True)(lambda call: None)
        clock.pass_by(86_400)
        store.state(agent="a")["n"] = "ahead"
        clock.pass_by(-86_400)
        for number in range(20):
            clock.pass_by(1800)
            store.state(agent="a")["n"] = number
        changes = store.timeline.query("kind:change", scope="agent:a", limit=3)
        assert changes[0].summary == '"ahead"'
        assert len([*changes.all()]) == 21
        calls = store.hooks.history(scope="agent:a", limit=3)
        assert calls[0].time > calls[1].time
        assert len([*calls.all()]) == 21


def test_the_document_is_escaped_and_complete(busy: Store) -> None:
    evil = '<script>alert("x")</script>'
    busy.thread(evil).put({evil: evil})
    html = busy.timeline.query().to_html(evil)
    assert evil not in html
    assert html.count("<script>") == 1
    assert html.count("<li") == 7
    assert "http-equiv" in html


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "backend"),
    [
        (lambda: "sqlite://", "sqlite.backend.SQLiteBackend"),
        (postgres, "postgres.backend.PostgresBackend"),
        pytest.param(mongodb, "mongodb.backend.MongoDBBackend", marks=pytest.mark.nightly),
    ],
    ids=["sqlite", "postgresql", "mongodb"],
)
def test_the_index_and_a_scan_agree(
    place: Callable[[], str], backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place()
    with holdfast.open(f"{tmp_path}/store.db" if url == "sqlite://" else url) as store:
        fill(store)
        store.access.grant('agent:é"x', "write", thread="chat")
        store.as_identity(agent='é"x').thread("chat").update({"n": 1})
        queries = ["", *QUERIES, 'actor:"agent:é\\"x"', "kind:access", "-kind:change", "cause:*"]

        def ask() -> list[Any]:
            (change,) = store.timeline.query("kind:change agent:a")
            pages = [list(store.timeline.query(query, limit=2).all()) for query in queries]
            failed = list(store.timeline.query(errors=True))
            return [*pages, failed, store.timeline.effects(change.id), store.timeline.causes(thread="log", path="seen")]

        capabilities, indexed = store.status().capabilities, ask()
        assert capabilities.times
        assert all(found for query, found in zip(queries, indexed, strict=False) if query not in QUERIES)
        monkeypatch.setattr(f"holdfast.backends.{backend}.capabilities", replace(capabilities, times=False))
        assert not store.status().capabilities.times
        assert ask() == indexed


@pytest.fixture(scope="module")
def shared() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        yield store


@given(data=st.data())
def test_pages_are_what_one_listing_is(shared: Store, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.sampled_from("ab"))
        if data.draw(st.booleans()):
            shared.thread(f"thread-{place}").put({"n": data.draw(st.integers(0, 3))})
        else:
            shared.state(agent=place)["n"] = data.draw(st.integers(0, 3))
    forward, limit = data.draw(st.booleans()), data.draw(st.integers(1, 5))
    query = data.draw(st.sampled_from(["", "kind:change", "agent:a", "thread:thread-b", "-kind:change"]))
    whole = list(shared.timeline.query(query, oldest_first=forward, limit=10_000))
    assert list(shared.timeline.query(query, oldest_first=forward, limit=limit).all()) == whole
    assert whole == sorted(whole, key=lambda event: event.time, reverse=not forward)
    number = data.draw(st.integers(0, 1000))  # whatever the store has of earlier examples, the same is drawn
    if whole:
        moment = whole[number % len(whole)].time
        later = list(shared.timeline.query(query, since=moment, oldest_first=forward, limit=10_000))
        earlier = list(shared.timeline.query(query, until=moment, oldest_first=forward, limit=10_000))
        assert later == [event for event in whole if event.time >= moment]
        assert earlier == [event for event in whole if event.time <= moment]
        assert not shared.timeline.query(query, since=max(each.time for each in whole) + timedelta(seconds=1))


def test_a_page_is_a_page() -> None:
    assert (TimelinePage().next, TimelinePage().stopped, list(TimelinePage())) == (None, False, [])


@pytest.mark.parametrize("hide", [False, True], ids=["names shown", "names hidden"])
def test_an_encrypted_store_has_the_same_timeline(tmp_path: Path, hide: bool) -> None:
    encryption = Encryption(LocalKeys(generate_key()), hide_names=hide)
    with holdfast.open(tmp_path / "store.db", encryption=encryption) as store:
        with holdfast.correlation("req-1"):
            first = store.thread("chat").put({"messages": ["refund"]})
        with holdfast.correlation("req-1", cause=first.id):
            store.state(agent="a")["plan"] = "refund"
        store.state(agent="b")["plan"] = "other"
        assert [event.scope for event in store.timeline.query(limit=1).all()] == [
            *("agent:b", "agent:a", "thread:chat"),
        ]
        assert kinds(store.timeline.query("correlation:req-1")) == ["change", "checkpoint"]
        assert kinds(store.timeline.query("kind:change agent:a")) == ["change"]
        assert kinds(store.timeline.query("refund")) == ["change", "checkpoint"]
        assert [node.events[0].scope for _, node in store.timeline.effects(first.id).walk()] == [
            *("thread:chat", "agent:a"),
        ]
        assert kinds(store.timeline.query(scope="agent:a")) == ["change"]
