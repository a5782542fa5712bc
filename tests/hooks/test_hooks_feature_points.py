"""Hooks of sessions and artifacts that are deleted, of requests and of pipelines: they may refuse and replace."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast.errors import HandlerError, VetoError
from holdfast.hooks import HookContext
from holdfast.store.store import Store
from tests.hooks.kit import Clock, events, store


class Recorder:
    """Notes what it is called with, and vetoes or replaces if it is told to."""

    def __init__(self, held: Store, *points: str) -> None:
        self.before: list[tuple[str, str, Any]] = []
        self.after: list[tuple[str, str, Any]] = []
        self.veto = False
        self.replacement: Any = None
        held.hooks.before(*points, name="before")(self._before)
        held.hooks.after(*points, name="after")(self._after)

    def _before(self, call: HookContext) -> Any:
        self.before.append((call.point, call.key, call.value))
        call.note(ticket="T-1")
        if self.veto:
            raise VetoError("not today")
        return self.replacement

    def _after(self, call: HookContext) -> None:
        assert call.id
        self.after.append((call.point, call.key, call.value))


def outcomes(held: Store) -> list[str]:
    """The recorded outcomes of the before-hook, the first first."""
    held.hooks.drain()
    return [each.outcome for each in reversed(held.hooks.history("before"))]


def test_a_session_is_deleted() -> None:
    held = store()
    recorder = Recorder(held, "session.delete")
    session = held.sessions.start("s", user="alice", metadata={"n": 1})
    session.state["k"] = 1
    recorder.veto = True
    with pytest.raises(VetoError, match="not today"):
        held.sessions.delete("s")
    assert (held.sessions.get("s").status, session.state["k"]) == ("active", 1)
    recorder.veto = False
    held.sessions.delete("s")
    assert [each.id for each in held.sessions.list()] == []
    assert outcomes(held) == ["veto", "ok"]
    assert recorder.before == [("session.delete", "s", holdfast.MISSING)] * 2
    assert recorder.after == recorder.before[1:]
    (record,) = [each for each in held.audit.query(kind="session") if each.action == "delete"]
    assert record.detail == {"ticket": "T-1"}


def test_a_session_whose_retention_is_over() -> None:
    clock = Clock()
    held = store(clock)
    recorder = Recorder(held, "session.delete")
    held.sessions.start("s", retention=60).end()
    clock.pass_by(120)
    recorder.veto = True
    assert astuple(held.sessions.collect())[1:] == (0, 0, 1)  # it is tried again later
    assert held.sessions.get("s").status == "ended"
    recorder.veto = False
    clock.pass_by(7200)
    assert held.sessions.collect().forgotten == 1
    assert [point for point, _, _ in recorder.before] == ["session.delete"] * 2


def test_an_artifact_is_deleted() -> None:
    held = store()
    recorder = Recorder(held, "artifact.delete")
    held.artifacts.register(b"content", type="text", id="a")
    recorder.veto = True
    with pytest.raises(VetoError, match="not today"):
        held.artifacts.delete("a")
    assert held.artifacts.get("a").size == 7
    recorder.veto = False
    held.artifacts.delete("a")
    assert not list(held.artifacts.list())
    assert outcomes(held) == ["veto", "ok"]
    assert recorder.after == [("artifact.delete", "a", holdfast.MISSING)]


def test_a_request_is_asked_and_answered() -> None:
    held = store()
    recorder = Recorder(held, "requests.*")
    planner = held.sharing.requests("planner")
    id = planner.ask({"plan": 1})
    request = planner.take()
    assert request is not None
    planner.answer(request, ["think"])
    assert planner.wait(id) == ["think"]
    held.hooks.drain()
    assert recorder.before == [("requests.ask", id, {"plan": 1}), ("requests.answer", id, ["think"])]
    assert sorted(recorder.after) == sorted(recorder.before)
    assert outcomes(held) == ["ok", "ok"]


def test_hooks_replace_requests_and_answers() -> None:
    held = store()
    recorder = Recorder(held, "requests.ask")
    recorder.replacement = "***"
    planner = held.sharing.requests("planner")
    id = planner.ask("a secret")
    assert planner.serve(lambda value: value + "!", limit=1, timeout=0) == 1
    assert planner.wait(id) == "***!"
    assert "a secret" not in str([row.body for row in events(held)])


def test_hooks_refuse_requests_and_answers() -> None:
    held = store()
    asked, answered = Recorder(held, "requests.ask"), None
    asked.veto = True
    planner = held.sharing.requests("planner")
    with pytest.raises(VetoError, match="not today"):
        planner.ask("anything")
    assert planner.pending() == 0
    asked.veto = False
    for name in ("before", "after"):
        held.hooks.remove(name)
    answered = Recorder(held, "requests.answer")
    answered.veto = True
    id = planner.ask("anything")
    assert planner.serve(str.upper, limit=1, timeout=0) == 1  # whoever asked is told
    with pytest.raises(HandlerError, match="not today"):
        planner.wait(id)
    assert len(answered.before) == 1


def test_items_of_a_pipeline() -> None:
    held = store()
    recorder = Recorder(held, "pipeline.*")
    line = held.sharing.pipeline("ingest", ["fetch", "parse"])
    (id,) = line.put_many(["a"])
    assert line.work("fetch", lambda value: value + "1", timeout=0) == 1
    assert line.work("parse", lambda value: value + "2", timeout=0) == 1
    assert [result.value for result in line.results()] == ["a12"]
    held.hooks.drain()
    assert recorder.before == [("pipeline.put", id, "a"), ("pipeline.done", id, "a1"), ("pipeline.done", id, "a12")]
    assert recorder.after == recorder.before


def test_hooks_replace_and_refuse_items() -> None:
    held = store()
    recorder = Recorder(held, "pipeline.*")
    line = held.sharing.pipeline("ingest", ["fetch"], tries=1)
    recorder.veto = True
    with pytest.raises(VetoError, match="not today"):
        line.put("a")
    assert line.stats().waiting == {"fetch": 0}
    recorder.veto = False
    recorder.replacement = "b"
    line.put("a")
    recorder.veto = True
    assert line.work("fetch", str.upper, timeout=0) == 0
    (dead,) = line.dead()
    assert (dead.value, "not today" in dead.error) == ("b", True)
    recorder.veto = False
    recorder.replacement = None
    line.requeue(dead.id)
    assert line.work("fetch", str.upper, timeout=0) == 1
    assert [result.value for result in line.results()] == ["B"]
