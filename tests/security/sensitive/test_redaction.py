"""Sensitive data that is stored already is replaced: nothing of it is left, and the rest stays."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from msgspec.structs import astuple

import holdfast
from holdfast import replay
from holdfast.agents import PersistentAgent
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError
from holdfast.langgraph import HoldfastSaver
from holdfast.maintenance.erasure.redaction import RedactionReport
from holdfast.store.doctor import doctor
from tests.interfaces.cli import kit
from tests.security.sensitive.samples import github_token
from tests.security.sensitive.test_credential_check import notice, reported, stored_bytes
from tests.servers.places import place
from tests.support.kills import MOMENTS, kill_at_write, run_in_child
from tests.support.nightly import mostly_nightly

KEY = github_token(Random("redacted"))
OTHER = github_token(Random("refused"))


def _plant(store: holdfast.Store) -> None:
    for number in range(4):
        store.thread("chat").put({"messages": [f"message {each}" for each in range(number)]})
    store.thread("chat").tag("before")
    store.thread("chat").put({"messages": [*map("message {}".format, range(3)), f"my key is {KEY}"]})
    store.thread("chat").put({"messages": [*map("message {}".format, range(3)), f"my key is {KEY}", "thanks"]})
    store.thread("gone").put({"text": KEY})
    store.thread("gone").put({"text": "nothing"})
    store.thread("large").put({"file": "line\n" * 100_000 + KEY})
    store.thread("clean").put({"text": "nothing"})
    store.state(user="alice").set("keys", {"github": KEY})


_KEYS = LocalKeys(b"1" * 32)


@pytest.mark.parametrize(
    "encryption",
    [False, Encryption(_KEYS), Encryption(_KEYS, hide_names=True)],
    ids=["plain", "encrypted", "hidden names"],
)
def test_what_is_stored_is_replaced(encryption: Any, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        _plant(store)
        clean = [each.id for each in store.thread("clean").log()]
        notice(store)
        assert len(reported(store)) == 4
        report = store.redaction.redact()
        assert astuple(report)[:2] == (4, 5)
        said = [*map("message {}".format, range(3)), "my key is [redacted:github-token]", "thanks"]
        assert store.thread("chat").get().state == {"messages": said}
        assert store.thread("chat").get(at="before").state == {"messages": said[:3]}
        assert store.thread("gone").get().state == {"text": "nothing"}
        assert store.thread("large").get().state["file"].endswith("[redacted:github-token]")
        assert store.state(user="alice").get("keys") == {"github": "[redacted:github-token]"}
        assert [each.id for each in store.thread("clean").log()] == clean
        assert reported(store) == []
        assert store.redaction.scan(history=True).findings == []
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
        (record,) = store.audit.query(action="erase", thread="gone")
        assert "github-token" in record.detail["redacted"]
        assert store.redaction.redact() == RedactionReport(0, 0, 0, [])
    assert KEY.encode() not in stored_bytes(tmp_path)


def test_the_control_has_the_bytes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _plant(store)
    assert KEY.encode() in stored_bytes(tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(["postgres", "file", "redis", "mongodb"], daily=["postgres"]))
def test_other_stores(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path)) as store:
        _plant(store)
        notice(store)
        assert len(reported(store)) == 4
        store.thread("later").put({"text": KEY})
        store.jobs.run("credentials")
        assert len(reported(store)) == 5
        assert astuple(store.redaction.redact())[:2] == (5, 6)
        store.jobs.run("credentials")
        assert reported(store) == []
        assert store.redaction.scan(history=True).findings == []
        assert store.maintenance.verify(level="decode").findings == []


class _Keeper(PersistentAgent, name="redaction-keeper"):
    text: str = ""
    count: int = 0


def test_agents_sessions_artifacts_and_topics(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        agent = _Keeper().attach(store, "keeper")
        agent.text, agent.count = f"use {KEY}", 7
        agent.save()
        store.sessions.start("s1", user="bob", metadata={"note": f"use {KEY}"})
        artifact = store.artifacts.register(b"x", metadata={"note": f"use {KEY}"})
        store.sharing.topic("news").publish({"note": f"use {KEY}"})
        notice(store)
        assert len(reported(store)) == 4
        store.redaction.redact()
        clean = {"note": "use [redacted:github-token]"}
        assert store.agents.load("keeper").fields == {"text": clean["note"], "count": 7}
        assert store.sessions.get("s1").metadata == clean
        assert store.artifacts.get(artifact.id).metadata == clean
        assert [each.value for each in store.sharing.topic("news").read()] == [clean]
        assert reported(store) == []
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
    assert KEY.encode() not in stored_bytes(tmp_path)


def test_an_archived_session_is_left_and_named(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for on_end in ("archive", "keep"):
            session = store.sessions.start(on_end, on_end=on_end)
            session.state["cart"], session.state["note"] = ["book"], f"use {KEY}"
            session.end()
        left, freed_blocks = store.redaction.redact().remains
        assert left.startswith("session:archive: the state of an archived session")
        assert store.sessions.archived("archive") == {"cart": ["book"], "note": f"use {KEY}"}
        assert store.state(session="keep")["note"] == "use [redacted:github-token]"
        store.sessions.resume("archive")
        assert store.redaction.redact().remains == [freed_blocks]
        assert dict(store.state(session="archive")) == {"cart": ["book"], "note": "use [redacted:github-token]"}
    assert KEY.encode() not in stored_bytes(tmp_path)


def test_branches_pins_and_holds(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("chat")
        thread.put({"text": "hello"})
        thread.fork("other")
        thread.put({"text": f"main {KEY}"})
        thread.pin()
        thread.switch("other")
        thread.put({"text": f"other {KEY}"})
        store.thread("chat").hold(reason="case 7")
        with pytest.raises(DeniedError, match="case 7"):
            store.redaction.redact()
        store.thread("chat").release()
        store.redaction.redact()
        texts = {branch.name: thread.get(at=branch.name).state["text"] for branch in thread.branches()}
        assert texts == {"main": "main [redacted:github-token]", "other": "other [redacted:github-token]"}
        assert store.maintenance.verify(level="decode").findings == []
    assert KEY.encode() not in stored_bytes(tmp_path)


def _record(store: holdfast.Store) -> None:
    """Save a key in everything that is noted beside states."""
    store.hooks.before("state.set", inline=True, name="note")(lambda call: call.note(saw=repr(call.value)))
    store.hooks.after("state.set", record=True, name="after")(lambda _: None)
    store.state(user="alice")["note"] = f"use {KEY}"
    store.artifacts.register(b"x", id="a1", type=f"image {KEY}", producer=KEY)
    store.thread("chat").put({"n": 1})
    store.thread("chat").pin(reason=f"why {KEY}")
    store.thread("held").put({"n": 1})
    store.thread("held").hold(reason=f"case {KEY}")
    store.thread("released").put({"n": 1})
    store.thread("released").hold(reason=f"case {KEY}")
    store.thread("released").release()
    agent = _Keeper().attach(store, "keeper")
    agent.start()
    agent.fail(RuntimeError(f"refused {KEY}"))
    store.access.freeze("agent:x", reason=f"it has {KEY}")
    assert store.hooks.drain(30)


@pytest.mark.parametrize(
    "encryption",
    [False, Encryption(_KEYS), Encryption(_KEYS, hide_names=True)],
    ids=["plain", "encrypted", "hidden names"],
)
def test_notes_reasons_errors_and_links(encryption: Any, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        _record(store)
        if not encryption:
            assert KEY.encode() in stored_bytes(tmp_path)  # the control
        notice(store)
        assert {(scope, path) for scope, path in reported(store)} == {
            ("user:alice", "note"),
            ("user:alice", "(audit).saw"),
            ("artifacts", "a1.type"),
            ("artifacts", "a1.producer"),
            ("thread:chat", "(pin)"),
            ("thread:held", "(hold)"),
            ("agents:keeper", "(audit).error"),
            ("access", "(audit).reason"),
            ("audit", "(audit).reason"),
            ("audit", "(audit).removed.released.refs[0][1]"),
            ("hooks", "(audit).value"),
        }
        other = holdfast.open(tmp_path / "a.db", encryption=encryption)
        assert len(reported(other)) == 11
        report = store.redaction.redact()
        assert astuple(report)[:3] == (2, 2, 10)
        assert store.access.frozen() == {"agent:x": "it has [redacted:github-token]"}
        assert reported(store) == reported(other) == []
        other.close()
        assert store.redaction.redact() == RedactionReport(0, 0, 0, [])
        assert [each.reason for each in store.maintenance.holds()] == ["case [redacted:github-token]"]
        assert [each.reason for each in store.thread("chat").pins()] == ["why [redacted:github-token]"]
        (found,) = store.artifacts.list(producer="[redacted:github-token]")
        assert (found.id, found.type) == ("a1", "image [redacted:github-token]")
        assert KEY not in repr([*store.audit.query().all(), *store.hooks.history().all()])
        assert store.audit.verify().findings == []
        assert store.maintenance.verify(level="decode").findings == []
    assert KEY.encode() not in stored_bytes(tmp_path)


def test_names_are_masked_and_said_to_stay(tmp_path: Path) -> None:
    url, names = str(tmp_path / "a.db"), [github_token(Random(f"name {each}")) for each in range(9)]
    with holdfast.open(url) as store:
        store.thread(names[0]).put({names[1]: KEY, "keys": {names[2]: {"x": KEY}}}, metadata={names[3]: KEY})
        store.state(user=names[4])[names[5]] = KEY
        store.sessions.start(names[6]).state["a"] = KEY
        agent = _Keeper().attach(store, names[7])
        agent.text = KEY
        agent.save()
        store.thread("refused").put({"n": 1})
        told: list[str] = []
        notice(store)
        report = store.redaction.credentials()
        told += [repr(report), report.describe(99), repr(store.jobs.list()), repr(doctor(url))]
        for history in (False, True):
            told.append(repr(store.redaction.scan(history=history, progress=lambda *each: told.append(repr(each)))))
        told += [kit.run("redaction", "scan", "--history", *how, store=url).out for how in ((), ("--json",))]
        done = store.redaction.redact(progress=lambda *each: told.append(repr(each)))
        told.append(repr(done))
        assert "thread:…: its name, by which it is found" in done.remains
        store.redaction.protect("refuse")
        with pytest.raises(DeniedError) as denied:
            store.thread(names[0]).put({names[1]: OTHER})
        told.append(repr(denied.value) + str(denied.value))
    text = "\n".join(told)
    assert "github-token" in text  # the control
    assert "keys.(key)" in text
    assert [each for each in (*names, KEY, OTHER) if each[4:24] in text] == []


def test_what_a_policy_allows_stays(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect("allow", scope="agent:vault")
        store.hooks.before("state.set", inline=True, name="note")(lambda call: call.note(saw=repr(call.value)))
        store.state(agent="vault")["key"] = KEY
        store.state(agent="other")["key"] = KEY
        assert reported(store) == [("agent:other", "(audit).saw"), ("agent:other", "key")]
        assert astuple(store.redaction.redact())[:3] == (1, 1, 1)
        assert store.state(agent="vault")["key"] == KEY
        assert store.state(agent="other")["key"] == "[redacted:github-token]"


class _State(TypedDict):
    done: int


def _graph(saver: HoldfastSaver) -> Any:
    @replay.recorded
    def call(header: str) -> str:
        return f"200 OK for {header}"

    def work(state: _State) -> dict[str, Any]:
        call(f"Bearer {KEY}")
        return {"done": state["done"] + 1}

    return StateGraph(_State).add_node(work).add_edge(START, "work").compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_recordings_of_a_graph_are_found_and_removed(durability: Any, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store)
        config = {"configurable": {"thread_id": "run"}, "callbacks": [saver.recorder]}
        _graph(saver).invoke({"done": 1}, config, durability=durability)
        notice(store)
        assert {(scope, path.partition(".")[0]) for scope, path in reported(store)} == {("thread:run", "__recorded__")}
        store.redaction.redact()
        assert reported(store) == []
        assert _graph(saver).get_state(config).values == {"done": 2}
    assert KEY.encode() not in stored_bytes(tmp_path)


@pytest.mark.nightly
def test_a_redaction_that_is_killed_goes_on(tmp_path: Path) -> None:
    struck, number = 0, 0
    for write, moment in [(each, MOMENTS[each % 3]) for each in (2, 6, 10)]:
        folder = tmp_path / f"{(number := number + 1)}"
        folder.mkdir()
        with holdfast.open(folder / "a.db") as store:
            _plant(store)

        def work(report: Any, at: int = write, when: Any = moment, folder: Path = folder) -> None:
            kill_at_write(at, when)
            with holdfast.open(folder / "a.db") as store:
                store.redaction.redact()

        struck += run_in_child(work)[1]
        with holdfast.open(folder / "a.db") as store:
            store.redaction.redact()
            assert store.thread("chat").get().state["messages"][3:] == ["my key is [redacted:github-token]", "thanks"]
            assert store.maintenance.verify(level="decode").findings == []
        assert KEY.encode() not in stored_bytes(folder)
    assert struck == 3
