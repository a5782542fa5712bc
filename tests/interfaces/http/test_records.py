"""States, sessions, artifacts and agents over HTTP, and what is for the store's owner: jobs, schemas, keys, backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest

import holdfast
from holdfast.agents import Machine, PersistentAgent
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.schemas import Schema
from tests.interfaces.http.kit import ServedStore


class Potter(PersistentAgent, name="http-potter"):
    """Its process ends while it fires."""

    pots: int = 0

    machine = Machine("idle", "firing", "cooling")
    machine.add("fire", "idle", "cooling", via="firing", action="burn")

    def burn(self, what: object) -> None:
        raise KeyboardInterrupt  # as a kill: nothing is recorded of it


class Chat(TypedDict):
    """The state of a chat."""

    text: str


@pytest.fixture
def records(tmp_path: Path) -> Iterator[ServedStore]:
    """An encrypted store with an agent in a half-done transition, a session, an artifact, a hook, a schema and jobs."""
    encryption = Encryption(LocalKeys(b"k" * 32))
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as store:
        store.hooks.before("state.set", scope="agent:**", name="seen", inline=True)(lambda context: None)
        store.state(agent="writer")["draft"] = 1
        ben = Potter().attach(store, "ben")
        ben.start()
        with pytest.raises(KeyboardInterrupt):
            ben.transition("fire")
        store.sessions.start("s-1", user="alice")
        artifact = store.artifacts.register(b"0123456789", id="a-1", type="file", name="a.txt")
        with store.artifacts.using(artifact.id):
            store.state(agent="writer")["used"] = True
        store.schemas.attach(Schema("chat", "1.0.0", Chat), threads="chat-*")
        store.thread("chat-1").put({"text": "hello"})
        repository = str(tmp_path / "backups")
        (tmp_path / "backup.key").write_text(generate_key())
        (tmp_path / "backup.key").chmod(0o600)
        store.backups(repository, keys=f"file:{tmp_path}/backup.key").create()
        for name, kind in (("nightly", "backup"), ("proof", "drill")):
            settings = {"repository": repository, "keys": f"file:{tmp_path}/backup.key"}
            store.jobs.add(name, kind, schedule="every 1d", settings=settings)
        with ServedStore(store, write=True) as served:
            yield served


def test_records_are_read(records: ServedStore, tmp_path: Path) -> None:
    get = records.get
    agent = get("/agents/ben").json
    assert (agent["state"], agent["pending"]["kind"], agent["fields"]) == ("firing", "transition", {"pots": 0})
    assert get("/sessions/s-1").json["user"] == "alice"
    assert get("/artifacts/a-1").json["size"] == 10
    links = get("/artifacts/a-1/changes").json["items"]
    assert [(each["scope"], each["key"]) for each in links] == [("agent:writer", "used")]
    content = get("/artifacts/a-1/content")
    assert (content.body, content.headers["content-disposition"]) == (b"0123456789", "attachment")
    part = get("/artifacts/a-1/content", headers={"Range": "bytes=2-4"})
    assert (part.status, part.body) == (206, b"234")
    executions = get("/hooks/executions?hook=seen").json["items"]
    assert {each["key"] for each in executions} == {"draft", "used"}
    (schema,) = get("/schemas").json["items"]
    assert (schema["name"], schema["versions"], schema["states"]) == ("chat", ["1.0.0"], {"1.0.0": 1})
    assert {each["kind"] for each in get("/encryption-keys").json["items"]} >= {"wrapping"}
    assert get("/jobs/nightly").json["kind"] == "backup"
    (repository,) = get("/backups").json["items"]
    assert (repository["name"], repository["jobs"], len(repository["items"])) == ("nightly", ["nightly", "proof"], 1)
    assert get("/backups/proof/verification").json["ok"]
    # No secret and no place of the owner's files is in what a browser may show.
    for path in ("/jobs", "/backups", "/encryption-keys", "/jobs/nightly"):
        assert str(tmp_path) not in get(path).text, path
    for path in ("/agents/none", "/sessions/none", "/artifacts/none", "/jobs/none", "/backups/none/verification"):
        assert get(path).json["code"] == "not-found", path


def test_records_are_changed(records: ServedStore) -> None:
    done = records.change("POST", "/agents/ben/resolutions", {"how": "back"})
    assert (done.status, done.json["resolved"]) == (200, "back")
    assert records.store.agents.load("ben").state == "idle"
    assert [each["trigger"] for each in records.get("/agents/ben/transitions").json["items"]][:1] == ["fire"]
    assert records.change("PUT", "/jobs/nightly/pause").json["paused"]
    assert not records.change("DELETE", "/jobs/nightly/pause").json["paused"]
    run = records.change("POST", "/jobs/nightly/runs")
    assert (run.status, run.json["outcome"]) == (201, "ok"), run.text
    assert records.change("POST", "/backups/nightly", {"reason": "before"}).json["reason"] == "before"
    drill = records.change("POST", "/backups/nightly/drills")
    assert (drill.status, drill.json["ok"]) == (201, True), drill.text
    repair = records.change("POST", "/backups/nightly/repairs")
    assert (repair.status, repair.json["rebuilt"], repair.json["lost"]) == (201, [], []), repair.text
    before = len(records.store.encryption_keys.list())
    assert records.change("POST", "/encryption-keys/rotations").json["state"] == "active"
    assert len(records.store.encryption_keys.list()) > before
    for name in ("none", "..%2F..%2Fetc", "%2Fetc"):
        assert records.change("POST", f"/backups/{name}", {}).json["code"] == "not-found"


def test_a_key_is_changed_only_in_the_version_that_was_read(writable: ServedStore) -> None:
    path = "/scopes/agent:writer/keys/mood"
    assert writable.change("PUT", path, {"value": 1}, headers={"If-Match": '"0"'}).status == 200
    version = writable.get(path).json["version"]
    assert writable.change("PUT", path, {"value": 2}, headers={"If-Match": f'"{version}"'}).status == 200
    for method, body in (("PUT", {"value": 3}), ("DELETE", None)):
        stale = writable.change(method, path, body, headers={"If-Match": f'"{version}"'})
        assert (stale.status, stale.json["code"]) == (412, "version-mismatch")
        assert writable.change(method, path, body, headers={"If-Match": '"x"'}).status == 400
    assert writable.store.state(agent="writer")["mood"] == 2
    assert writable.change("DELETE", path).json["ids"] == ["mood"]
    assert writable.get(path).status == 404


def test_a_state_is_saved_only_after_the_checkpoint_that_was_read(writable: ServedStore) -> None:
    thread = writable.store.thread("chat")
    head = thread.find().id
    writable.store.thread("chat").put({"count": 50})
    for path, body in (("checkpoints", {"state": {"count": 1}}), ("updates", {"changes": {"count": 1}})):
        stale = writable.change("POST", f"/threads/chat/{path}", body, headers={"If-Match": f'"{head}"'})
        assert (stale.status, stale.json["code"]) == (412, "version-mismatch")
        assert stale.json["current"] == thread.find().id
        assert stale.json["diff"]["total"] > 0
    assert thread.get().state == {"count": 50}
    current = {"If-Match": f'"{thread.find().id}"'}
    assert writable.change("POST", "/threads/chat/updates", {"changes": {"count": 51}}, headers=current).status == 201
    assert thread.get().state == {"count": 51}


def test_an_erasure_needs_the_name_again(writable: ServedStore) -> None:
    writable.store.as_identity("user:anna").thread("of-anna").put({"text": "hello"})
    dry = writable.change("POST", "/erasures", {"subject": "user:anna"}).json
    assert dry["dry_run"]
    assert writable.change("POST", "/erasures", {"subject": "user:anna", "dry_run": False}).status == 400
    assert writable.store.thread("of-anna").get().id
