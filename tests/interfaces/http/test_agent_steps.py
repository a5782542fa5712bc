"""Durable steps, timers and signals of agents over HTTP, and on a served store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.agents import PersistentAgent
from holdfast.agents.steps.records import StepRecord
from holdfast.errors import ConflictError, DeniedError, HandlerError, NotFoundError, UnsupportedError
from tests.interfaces.http.kit import ServedStore


class Payer(PersistentAgent, name="http-payer"):
    """An agent whose process ended while it paid."""


def interrupt() -> None:
    raise KeyboardInterrupt


def refuse() -> None:
    raise ValueError("no money")


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.fixture
def payer(store: holdfast.Store) -> Payer:
    """An agent with a step of each outcome, and two timers."""
    payer = Payer().attach(store, "p")
    payer.start()
    payer.once("fine", abs, -3)
    for key in ("charge", "refund", "rent", "tax"):
        with pytest.raises(KeyboardInterrupt):
            payer.once(key, interrupt)
    with pytest.raises(ValueError, match="money"):
        payer.once("refused", refuse)
    payer.timers.set("reminder", "1h", signal="remind", value={"order": 42})
    payer.timers.set("give-up", "7d")
    return payer


@pytest.fixture
def served(store: holdfast.Store) -> Iterator[ServedStore]:
    """The store, served for changes."""
    with ServedStore(store, write=True) as served:
        yield served


def test_steps_are_listed_and_resolved(served: ServedStore, payer: Payer) -> None:
    first = served.get("/agents/p/steps?limit=4").json
    rest = served.get(f"/agents/p/steps?limit=4&cursor={first['next']}").json
    found = {each["key"]: each for each in (*first["items"], *rest["items"])}
    assert [(key, each["state"]) for key, each in found.items()] == [
        ("charge", "running"),
        ("fine", "done"),
        ("refund", "running"),
        ("refused", "failed"),
        ("rent", "running"),
        ("tax", "running"),
    ]
    assert (found["refused"]["error_kind"], rest["next"]) == ("ValueError", None)
    assert served.get("/agents/p/steps/charge").json == found["charge"]
    assert served.get("/agents/p/steps/none").json["code"] == "not-found"

    def resolve(key: str, body: Any, **headers: str) -> Any:
        return served.change("POST", f"/agents/p/steps/{key}/resolutions", body, headers=headers)

    for body in (
        {"how": "retry", "result": 1},
        {"how": "result", "error": "no"},
        {"how": "error"},
        {"how": "retry", "error": ""},
        {"how": "guess"},
        {},
    ):
        assert (resolve("charge", body).status, payer.steps.get("charge").state) == (400, "running"), body
    conditional = {"If-Match": '"1"'}
    assert resolve("charge", {"how": "retry"}, **conditional).json["detail"] == "If-Match has no effect here"
    repeated = {"Idempotency-Key": "k"}
    done = resolve("charge", {"how": "result", "result": {"paid": 9}}, **repeated)
    assert (done.status, done.json["state"], done.json["resolved"]) == (200, "done", "by hand")
    assert resolve("charge", {"how": "result", "result": {"paid": 9}}, **repeated).json == done.json
    assert resolve("charge", {"how": "result", "result": {"paid": 9}}).json["code"] == "step-done"
    assert payer.once("charge", interrupt) == {"paid": 9}
    assert resolve("rent", {"how": "result", "result": None}).json["state"] == "done"
    assert payer.once("rent", interrupt) is None
    assert resolve("tax", {"how": "error", "error": "it was refused"}).json["error"] == "HandlerError: it was refused"
    with pytest.raises(HandlerError, match="it was refused"):
        payer.once("tax", interrupt)
    assert resolve("refund", {"how": "retry"}).json["state"] == "waiting"
    assert resolve("none", {"how": "retry"}).json["code"] == "not-found"


def test_timers_are_set_and_cancelled_and_signals_sent(served: ServedStore, payer: Payer) -> None:
    timers = served.get("/agents/p/timers").json["items"]
    assert [(each["name"], each["signal"], each["value"]) for each in timers] == [
        ("reminder", "remind", {"order": 42}),
        ("give-up", "give-up", None),
    ]
    made = served.change("PUT", "/agents/p/timers/later", {"when": "2h", "value": [1]})
    assert (made.status, made.json["signal"], made.json["value"]) == (200, "later", [1])
    assert served.change("PUT", "/agents/p/timers/later", {"when": "soon"}).status == 400
    assert served.change("DELETE", "/agents/p/timers/later").json["ids"] == ["later"]
    assert served.change("DELETE", "/agents/p/timers/later").json["ids"] == []
    assert [each.name for each in payer.timers.list()] == ["reminder", "give-up"]
    signal = {"name": "approved", "value": {"by": "Ada"}, "signal_id": "s1"}
    sent = served.change("POST", "/agents/p/signals", signal)
    assert (sent.status, sent.json) == (201, {"new": True})
    assert served.change("POST", "/agents/p/signals", {**signal, "value": 2}).json == {"new": False}
    assert served.change("POST", "/agents/p/signals", {"name": "other"}).json == {"new": True}
    assert [each["name"] for each in served.get("/agents/p/signals").json["items"]] == ["approved", "other"]
    (waiting,) = served.get("/agents/p/signals?name=approved").json["items"]
    assert (waiting["value"], waiting["id"]) == ({"by": "Ada"}, "s1")
    got = payer.wait_for("approved", timeout=0)
    assert got is not None
    assert got.value == {"by": "Ada"}
    assert served.change("POST", "/agents/none/signals", {"name": "x"}).json["code"] == "not-found"
    for method, path, body in (
        ("DELETE", "/agents/p/timers/reminder", None),
        ("PUT", "/agents/p/timers/reminder", {"when": "9h"}),
        ("POST", "/agents/p/signals", {"name": "approved"}),
    ):
        assert served.change(method, path, body, headers={"If-Match": '"1"'}).status == 400, path
    assert [each.name for each in payer.timers.list()] == ["reminder", "give-up"]
    assert payer.steps.signals("approved") == []


def test_a_served_store_has_the_same_steps_timers_and_signals(served: ServedStore, payer: Payer) -> None:
    with holdfast.open(served.url, token=served.token) as remote:
        steps, timers = remote.agents.steps("p"), remote.agents.timers("p")
        assert steps.list() == payer.steps.list()
        assert list(steps.list(limit=2).all()) == list(payer.steps.list().all())
        assert steps.get("charge") == payer.steps.get("charge")
        assert timers.list() == payer.timers.list()
        done = steps.resolve("charge", result=(1, {2}))
        assert isinstance(done, StepRecord)
        assert payer.once("charge", interrupt) == (1, {2})
        assert steps.resolve("rent", result=None).state == "done"
        with pytest.raises(ConflictError) as conflict:
            steps.resolve("charge", retry=True)
        assert conflict.value.code == "step-done"
        with pytest.raises(NotFoundError):
            steps.get("none")
        with pytest.raises(UnsupportedError, match="is text"):
            steps.resolve("tax", error=ValueError("no"))
        assert steps.resolve("tax", error="no").error == "HandlerError: no"
        with pytest.raises(UnsupportedError, match=r"Steps\.once"):
            steps.once("more", abs, 1)
        timers.set("pair", "2h", value=(1, 2))
        assert payer.timers.list()[1].value == (1, 2)
        assert (timers.cancel("pair"), timers.cancel("pair")) == (True, False)
        assert remote.agents.signal("p", "approved", (1, 2), id="s1")
        assert not remote.agents.signal("p", "approved", id="s1")
        assert steps.signals() == payer.steps.signals()
        assert steps.signals()[0].value == (1, 2)


def test_a_token_has_the_rights_to_signals_and_steps_that_were_granted(
    store: holdfast.Store, served: ServedStore, payer: Payer
) -> None:
    store.access.grant("agent:reviewer", ["write"], agent="p", custom="steps/main", keys="signal")
    token = store.access.issue_token("agent:reviewer").secret
    with holdfast.open(served.url, token=token) as reviewer:
        assert reviewer.agents.signal("p", "reviewed")
        assert served.change("POST", "/agents/p/signals", {"name": "reviewed"}, token=token).status == 201
        for method, path, body in (
            ("GET", "/agents/p/steps", None),
            ("GET", "/agents/p/steps/charge", None),
            ("GET", "/agents/p/timers", None),
            ("GET", "/agents/p/signals", None),
            ("POST", "/agents/p/steps/charge/resolutions", {"how": "retry"}),
            ("PUT", "/agents/p/timers/t", {"when": "2h"}),
            ("DELETE", "/agents/p/timers/reminder", None),
        ):
            assert served.change(method, path, body, token=token).status == 403, path
        for denied in (
            lambda: reviewer.agents.steps("p").resolve("charge", retry=True),
            lambda: reviewer.agents.timers("p").cancel("reminder"),
            lambda: reviewer.agents.steps("p").signals(),
        ):
            with pytest.raises(DeniedError):
                denied()
    assert payer.steps.get("charge").state == "running"
    assert len(payer.timers.list()) == 2


def test_an_agent_whose_machine_is_elsewhere(store: holdfast.Store, served: ServedStore) -> None:
    saved = served.change("PUT", "/agents/e/state", {"type": "crawler", "state": "idle", "data": {"url": "x"}})
    assert (saved.status, saved.json["kind"], saved.json["state"], saved.json["version"]) == (200, "crawler", "idle", 1)
    taken = {"source": "idle", "target": "busy", "trigger": "fetch", "data": {"n": 1}}
    repeated = {"Idempotency-Key": "k"}
    made = served.change("POST", "/agents/e/transitions", taken, headers=repeated)
    assert (made.status, made.json["outcome"]) == (201, "ok")
    assert served.change("POST", "/agents/e/transitions", taken, headers=repeated).json == made.json
    refused = {"source": "busy", "target": "done", "success": False, "error": "pages are missing"}
    assert served.change("POST", "/agents/e/transitions", refused).json["error"] == "pages are missing"
    assert [(each.outcome, each.data) for each in store.agents.transitions("e")] == [("error", None), ("ok", {"n": 1})]
    assert (store.agents.load("e").state, dict(store.agents.load("e").fields)) == ("busy", {"url": "x"})
    assert served.change("POST", "/agents/none/transitions", taken).json["code"] == "not-found"
    assert served.change("POST", "/agents/e/transitions", {**taken, "error": "no"}).status == 400
    for method, path, body in (("PUT", "state", {"state": "x"}), ("POST", "transitions", taken)):
        assert served.change(method, f"/agents/e/{path}", body, headers={"If-Match": '"1"'}).status == 400
    with holdfast.open(served.url, token=served.token) as remote:
        assert remote.agents.save_state("e", data={"url": ("y",)}) == store.agents.load("e")
        assert remote.agents.record_transition("e", "busy", "done") == store.agents.transitions("e")[0]
    token = str(store.access.issue_token("agent:other").secret)
    assert served.change("PUT", "/agents/e/state", {"state": "x"}, token=token).status == 403
    assert served.change("POST", "/agents/e/transitions", taken, token=token).status == 403
    assert store.agents.load("e").state == "done"
