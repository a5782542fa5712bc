"""The page of the timeline: a line for each event, by runs, with durations and links."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

import holdfast
from holdfast.interfaces.web.pages import page_routes
from holdfast.interfaces.web.timeline_page import ICONS, group_events
from holdfast.store.timeline.event import TimelineEvent
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import HOSTILE, Baker, fill_statuses
from tests.interfaces.web.recorded_graph import THREAD, record_run
from tests.interfaces.web.recorded_hooks import record_hooks
from tests.interfaces.web.test_pages import get, read


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    """A store with events of many kinds, that is only read."""
    with holdfast.open(tmp_path / "a.db") as store:
        fill_statuses(store)
        record_hooks(store)
        store.access.grant("user:bob", "read", thread="weather-3")
        store.access.freeze("user:bob")
        store.sessions.start("visit-1", user="bob").end()
        store.artifacts.register(b"x", id="table")
        baker = Baker().attach(store, "baker")
        baker.start()
        baker.transition("knead", 1)
        with ServedStore(store, page_routes) as served:
            yield served


def event(kind: str, second: float, *, duration: float = 0.0, correlation: str = "", **fields: object) -> TimelineEvent:
    """An event of a test."""
    return TimelineEvent(
        time=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second),
        kind=kind,
        action=str(fields.get("action", "save")),
        scope=str(fields.get("scope", "thread:a")),
        key="",
        actor="",
        outcome=str(fields.get("outcome", "ok")),
        duration=duration,
        correlation=correlation,
        cause="",
        id=f"id-{second}",
        number=0,
        summary="",
        detail={"branch": fields.get("branch", 0), "nodes": fields.get("nodes", [])} if kind == "checkpoint" else {},
    )


def test_events_are_grouped_by_run_with_their_durations() -> None:
    events = [
        event("checkpoint", 10.0, nodes=["tools"]),
        event("hook", 9.5, duration=0.5, correlation="r-1", outcome="error"),
        event("checkpoint", 6.0, nodes=["__start__", "agent"]),
        event("change", 5.0, correlation="r-1"),
        event("checkpoint", 4.0, branch=1),
        event("checkpoint", 2.0),
        event("checkpoint", 1.0, scope="thread:b"),
    ]
    thread, run, other = group_events(events)
    assert [each.title for each in thread.lines] == ["tools", "start, agent", "save", "save"]
    assert [each.seconds for each in thread.lines] == [4.0, 4.0, 0.0, 0.0], "since the one before, on its branch"
    assert [(each.x, each.width) for each in thread.lines[:2]] == [(50.0, 50.0), (0.0, 50.0)]
    assert (run.correlation, run.failed, run.seconds) == ("r-1", 1, 4.5)
    assert all(0 <= each.x <= 100 - each.width for each in (*run.lines, *thread.lines))
    assert len(other.lines) == 1


def test_a_line_leads_to_what_it_is_about(served: ServedStore) -> None:
    text = get(served, "/timeline").text
    assert text.count('<li class="event') == len(served.store.timeline.query(limit=100))
    addresses = set(re.findall(r'<span class="what"><a href="([^"]*)"', text))
    for start in ("/threads/weather-3/", "/agents/baker", "/access/identities/user%3Abob", "/artifacts/table"):
        assert any(each.startswith(start) for each in addresses), start
    assert {"/sessions/visit-1", "/state/user%3Acarol/name"} <= addresses
    for each in addresses:
        answer = get(served, html.unescape(each))
        assert answer.status == 200 or answer.headers.get("location", "").startswith("/hooks/calls/"), each
        if answer.status == 303:
            assert get(served, answer.headers["location"]).status == 200
    assert sum(each.startswith("/hooks/events/") for each in addresses) >= 2
    correlation = next(each.correlation for each in served.store.hooks.history("limit_discount"))
    assert f">{correlation}</a>" in text, "it is whole"
    assert "<b>look</b>" in text, "a step has the name of its node"


def test_failures_have_the_results_of_tools_that_failed(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ""
    for query in ("", "&thread=weather-3", "&query=kind%3Acheckpoint+OR+kind%3Ahook", "&since=1h"):
        text = get(served, f"/timeline?errors=true{query}").text
        assert "tool failed: TimeoutError: no answer in 10 s" in text, query
        assert text.count('data-kind="checkpoint"') == 1, "those that did not fail are not there"
    assert "no answer" not in get(served, "/timeline?errors=true&thread=refund-18").text
    assert "looked for in the latest" not in text
    monkeypatch.setattr("holdfast.interfaces.web.timeline_page._CHECKPOINTS", 1)
    assert "looked for in the latest 1 checkpoint" in get(served, "/timeline?errors=true").text


def test_runs_of_jobs_are_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.web.timeline_page._PAGE", 3)
    with holdfast.open(tmp_path / "a.db") as store:
        store.jobs.add("tidy", "verify")
        store.jobs.add("odd", "backup", settings={"repository": str(tmp_path / "a.db" / "none")})
        for number in range(4):
            store.thread("chat").put({"n": number})
            store.jobs.run("tidy")
        with contextlib.suppress(holdfast.errors.HoldfastError):
            store.jobs.run("odd")
        store.runs.cancel(store.runs.submit("chat-2", [1], graph="draft").id)
        store.access.grant("user:bob", "read", thread="chat")
        token = store.access.issue_token("user:bob", until="1h").secret
        with ServedStore(store, page_routes) as served:
            kinds, address, pages = list[str](), "/timeline", 0
            while address:
                text = get(served, address).text
                kinds += re.findall(r'aria-label="(job|run|checkpoint)"', text)
                address = html.unescape(next(iter(re.findall(r'class="more" href="([^"]+)"', text)), ""))
                pages += 1
            assert pages > 1
            assert sorted(kinds) == ["checkpoint"] * 4 + ["job"] * 5 + ["run"], "each once, on the page of its time"
            failed = get(served, "/timeline?errors=true").text
            assert re.findall(r'<span class="what"><a href="([^"]*)"', failed) == ["/jobs/odd"]
            assert 'aria-label="job"' not in get(served, "/timeline?thread=chat").text
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            seen = served.request("GET", "/timeline", token=None, headers=cookie).text
            assert 'aria-label="checkpoint"' in seen
            assert 'aria-label="job"' not in seen


def name_graph(name: str) -> Any:
    """A graph of one node, with this name, that calls a tool of this name, which fails with it."""
    from langchain_core.tools import StructuredTool
    from langgraph.graph import START, StateGraph

    def fail(text: str) -> str:
        raise ValueError(text)

    def node(state: dict[str, Any]) -> dict[str, Any]:
        tool = StructuredTool.from_function(fail, name=name, description="Fails.")
        with contextlib.suppress(ValueError):
            tool.invoke({"text": name})
        return state

    graph: Any = StateGraph(dict)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    return graph


def test_calls_of_models_and_tools_have_bars_of_their_own(tmp_path: Path) -> None:
    from holdfast.langgraph import HoldfastSaver

    with holdfast.open(tmp_path / "a.db") as store:
        record_run(store)
        odd = HOSTILE.replace(":", "")  # a name of a node has no colon
        saver = HoldfastSaver(store)
        config: Any = {"configurable": {"thread_id": HOSTILE}, "callbacks": [saver.recorder]}
        name_graph(odd).compile(checkpointer=saver).invoke({"n": 1}, config)
        store.access.grant("user:bob", "read", thread="*")
        token = store.access.issue_token("user:bob", until="1h").secret
        with ServedStore(store, page_routes) as served:
            text = get(served, f"/timeline?thread={THREAD}").text
            assert sorted(re.findall(r'aria-label="(model|tool|call)"', text)) == ["model"] * 2 + ["tool"] * 4
            assert text.count("ValueError: there is no such town &lt;i&gt;") == 2
            calls = [each for each in re.findall(r'<span class="what"><a href="([^"]*)"', text) if "#" in each]
            assert len(calls) == 6
            for each in calls:
                address, _, anchor = html.unescape(each).partition("#")
                assert f'id="{html.escape(unquote(anchor))}"' in get(served, address).text
            assert 'aria-label="tool"' not in get(served, "/timeline").text, "only those of one thread are read"
            answer = get(served, f"/timeline?thread={quote(HOSTILE, safe='')}")
            assert answer.text.count('aria-label="tool"') == 1
            assert read(answer).suspicious == []
            assert "&lt;script&gt;document" in answer.text
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            seen = served.request("GET", f"/timeline?thread={THREAD}", token=None, headers=cookie).text
            assert 'aria-label="checkpoint"' in seen
            assert 'aria-label="tool"' not in seen, "what an identity reads of a recording is in the audit"


def test_an_event_has_its_time_links_and_ids(served: ServedStore) -> None:
    found = next(each for each in served.store.timeline.query("kind:hook") if each.failed)
    text = get(served, f"/timeline/{found.id}").text
    assert f"{found.time:%Y-%m-%d %H:%M:%S}" in text
    assert f">{found.correlation}</a>" in text
    assert "/hooks/events/" in text
    gone = get(served, f"/hooks/events/{found.id}/99?scope=user%3Acarol&hook=check_name")
    assert gone.headers["location"] == "/hooks?hook=check_name"


def test_every_kind_has_an_icon(served: ServedStore) -> None:
    assert {each.kind for each in served.store.timeline.query(limit=1000).all()} <= set(ICONS)
    assert len(set(ICONS.values())) == len(ICONS)


def test_markup_in_events_is_text(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for n in range(2):
            store.thread(HOSTILE).put({HOSTILE: n}, metadata={"node": HOSTILE})
        store.hooks.before("state.set", name=HOSTILE, record="full")(lambda call: HOSTILE)
        store.state(agent=HOSTILE).set(HOSTILE, HOSTILE)
        store.hooks.remove(HOSTILE)
        with ServedStore(store, page_routes) as served:
            answer = get(served, "/timeline")
            assert read(answer).suspicious == []
            assert "<script>document" not in answer.text
            assert "&lt;script&gt;document" in answer.text
            for address in re.findall(r'<a href="(/hooks/events/[^"]*)"', answer.text):
                assert get(served, html.unescape(address)).headers["location"].startswith("/hooks/calls/")
