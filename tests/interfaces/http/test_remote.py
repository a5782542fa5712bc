"""A served store as a `Store`: the same results, the same errors, and what it lacks says so by name."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.codec import OpaqueValue
from holdfast.errors import (
    ConfigError,
    ConflictError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.interfaces.http.transport import EXPECTED_SERVER_HEADER
from holdfast.state import AddToSet, Append, Increment, Max
from holdfast.store.call_values import ARGUMENTS
from holdfast.store.catalogue import catalogue
from tests.interfaces.http.kit import ServedStore

Read = Callable[[holdfast.Store], Any]


@pytest.fixture
def remote(writable: ServedStore) -> Iterator[holdfast.Store]:
    with holdfast.open(writable.url, token=writable.token) as store:
        yield store


READS: dict[str, Read] = {
    "store.get": lambda store: store.thread("chat").get(),
    "store.log": lambda store: store.thread("chat").log(limit=3),
    "store.threads": lambda store: store.threads(),
    "store.search": lambda store: store.search("kelp", limit=2),
    "store.scopes": lambda store: store.scopes(),
    "store.status": lambda store: replace(store.status(), url="", cache_hits=0, cache_misses=0, cache_bytes=0),
    "store.metrics": lambda store: type(store.maintenance.metrics()),
    "store.changes": lambda store: store.changes().threads,
    "thread.get": lambda store: store.thread("chat").get("good"),
    "thread.find": lambda store: store.thread("chat").find("HEAD~2"),
    "thread.log": lambda store: list(store.thread("chat").log(limit=3).all()),
    "thread.info": lambda store: store.thread("a/b c?#%/ü").info(),
    "thread.branches": lambda store: store.thread("chat").branches(),
    "thread.diff": lambda store: (store.thread("chat").diff().patch(), list(store.thread("chat").diff().lines())),
    "thread.blame": lambda store: store.thread("chat").blame("plan"),
    "thread.history": lambda store: store.thread("chat").history("count"),
    "thread.tags": lambda store: (store.thread("chat").tags(), store.thread("chat").labels()),
    "thread.pins": lambda store: (store.thread("chat").pins(), store.thread("chat").holds()),
    "thread.expires": lambda store: store.thread("chat").expires(),
    "thread.owner": lambda store: (store.thread("chat").owner(), store.thread("chat").pending_writes()),
    "lazy_state": lambda store: [
        store.thread("chat").get(lazy=True).state.names(),
        store.thread("chat").get(lazy=True).state["plan"],
        store.thread("chat").get(lazy=True).state.slice("messages", -2),
        store.thread("chat").get(lazy=True).state.outline("messages"),
    ],
    "state": lambda store: (dict(store.state(agent="writer")), len(store.state("agent:writer"))),
    "state.item": lambda store: store.state(agent="writer").item("draft"),
    "state.history": lambda store: store.state(agent="writer").history("draft"),
    "state.get_at": lambda store: store.state(agent="writer").get_at("draft", 1),
    "sessions": lambda store: [(each.id, each.user, each.scope, each.status) for each in store.sessions.list()],
    "artifacts": lambda store: [(each, store.artifacts.read(each.id)) for each in store.artifacts.list()],
    "agents": lambda store: store.agents.list(),
    "steps": lambda store: store.agents.steps("none").list(),
    "timers": lambda store: store.agents.timers("none").list(),
    "hooks": lambda store: (store.hooks.list(), store.hooks.history(), store.hooks.statistics()),
    "timeline": lambda store: store.timeline.query("kind:checkpoint"),
    "timeline.causes": lambda store: store.timeline.causes(store.timeline.query("kind:checkpoint")[0].id),
    "access": lambda store: (store.access.grants(), store.access.tokens(), store.access.roles()),
    "audit": lambda store: (list(store.audit.query()), store.audit.verify()),
    "erasure": lambda store: store.erasure.certificates(),
    "maintenance.heads": lambda store: replace(store.maintenance.heads(), time=""),
    "maintenance.verify": lambda store: replace(store.maintenance.verify(), seconds=0.0),
    "maintenance.prune": lambda store: store.maintenance.prune("chat", holdfast.Retention(keep_last=2), dry_run=True),
    "maintenance.delete_stale": lambda store: store.maintenance.delete_stale("updated<0s", dry_run=True),
    "maintenance.quota": lambda store: store.maintenance.quota(),
    "jobs": lambda store: store.jobs.list(),
    "runs": lambda store: store.runs.list(),
    "alerts": lambda store: store.alerts.list(),
    "redaction": lambda store: store.redaction.scan(),
}


def test_reads_are_as_in_the_process_of_the_store(remote: holdfast.Store, writable: ServedStore) -> None:
    for name, read in READS.items():
        here, there = read(writable.store), read(remote)
        assert there == here, name
        assert type(there) is type(here), name


def test_every_part_that_can_be_called_is_tried() -> None:
    assert {name.partition(".")[0] for name in READS} == {
        each.part.name for each in catalogue() if not each.declaration.not_remote
    } - {"encryption_keys"}  # the store is not encrypted


@dataclass
class Plan:
    """A class of the application, which the server does not rebuild."""

    goal: str


def test_changes_keep_types_and_classes_of_the_application(remote: holdfast.Store, writable: ServedStore) -> None:
    state = {"pair": (1, 2), "set": {3}, "plan": Plan("rest"), "bytes": b"\x00\xff", "big": 1 << 70}
    made = remote.thread("types").put(state, tag="first", metadata={"n": 1})
    assert remote.thread("types").get("first").state == state == writable.store.thread("types").get(made.id).state
    remote.thread("types").update({"plan": Plan("work")}, remove=["set"], ttl="30d")
    assert remote.thread("types").expires() == writable.store.thread("types").expires() is not None
    remote.thread("types").expire(None)
    assert writable.store.thread("types").expires() is None
    assert remote.thread("types").get().state["plan"] == Plan("work")
    remote.thread("turns").append("messages", {"role": "user"}, Plan("ask"), tag="asked")
    remote.thread("turns").append(("messages",), (1, 2))
    remote.thread("turns").increment("n", 2)
    remote.thread("turns").add_to_set("seen", "a", b"b")
    remote.thread("turns").max("top", 1 << 70)
    remote.thread("turns").update({"n": Increment(), "messages": Append("ho"), "seen": AddToSet(3), "top": Max(1)})
    assert writable.store.thread("turns").get().state == {
        "messages": [{"role": "user"}, Plan("ask"), (1, 2), "ho"],
        "n": 3,
        "seen": {"a", b"b", 3},
        "top": 1 << 70,
    }
    remote.thread("chat").fork("edited", at="c6", changes={"plan.goal": "work"})
    assert writable.store.thread("chat").get("edited").state["plan"] == {"goal": "work", "done": 2}
    remote.state(agent="a")["x"] = (1, 2)
    assert remote.state(agent="a").setdefault("x", 3) == (1, 2)
    assert remote.state(agent="a").increment("n", 2) == 2
    remote.state(agent="a").patch("dict", {"n": Increment(3), "log": Append((1, 2))})
    assert writable.store.state(agent="a").pop("dict") == {"n": 3, "log": [(1, 2)]}
    remote.state(agent="a").copy_to(remote.state(agent="b"))
    assert dict(writable.store.state(agent="b")) == {"x": (1, 2), "n": 2}
    with remote.sessions.start(user="bob") as session:
        session.state["seen"] = True
        assert writable.store.state(session.scope)["seen"]
    assert session.status == "ended"
    remote.artifacts.register(b"content", type="file", id="made")
    assert writable.store.artifacts.read("made") == b"content"
    assert remote.maintenance.prune("types", holdfast.Retention(keep_last=1, keep_tagged=False)).dropped == 1
    remote.thread("types").delete()
    with pytest.raises(NotFoundError):
        writable.store.thread("types").get()


@pytest.mark.parametrize("key", ["holdfast:state", "holdfast:value"])
def test_a_value_that_looks_like_a_state_is_a_value(remote: holdfast.Store, key: str) -> None:
    for value in ({key: "agent:x"}, {key: {key: 1}}, [{key: "agent:x"}]):
        remote.state().set("k", value)
        assert remote.state().get("k") == value
    remote.thread("t").put({key: "agent:x"})
    assert remote.thread("t").get().state == {key: "agent:x"}
    remote.state(agent="writer").copy_to(remote.state(agent="x"))  # and a state is one
    assert remote.state(agent="x").get("draft") == {"title": "Kelp"}


def test_a_server_does_not_rebuild_what_arguments_name(served: ServedStore) -> None:
    """Some classes of ours name files and keys. They are values to the server, and nothing else."""
    from holdfast.interfaces.http import calls
    from holdfast.security.encryption.provider import FileKeys
    from holdfast.store.call_values import CallCodec

    sent = CallCodec(holdfast.codec.default_codec).to_json([holdfast.Retention(keep_last=2), Plan("x")])
    retention, plan = calls._CODEC.from_json(sent)
    assert isinstance(retention, holdfast.Retention)
    assert isinstance(plan, OpaqueValue)
    assert FileKeys.__module__ + ":FileKeys" not in ARGUMENTS


def test_errors_are_those_of_a_store(remote: holdfast.Store) -> None:
    for call, kind, code in (
        (lambda: remote.thread("none").get(), NotFoundError, "not-found"),
        (lambda: remote.thread("chat").fork("what-if"), ConflictError, "conflict"),
        (lambda: remote.thread("chat").put([1]), InvalidError, "invalid"),
        (lambda: remote.state(agent="a")["none"], KeyError, ""),
        (lambda: remote.thread("chat").put({"text": "x" * (17 << 20)}), TooLargeError, "too-large"),
        (lambda: remote.state(agent="a").set("n", 1, expected=7), ConflictError, "version-mismatch"),
        (lambda: remote.thread("chat").log(wrong=1), TypeError, ""),  # type: ignore[call-arg]
    ):
        with pytest.raises(kind) as caught:
            call()
        if code:
            assert isinstance(caught.value, HoldfastError)
            assert caught.value.code == code


def test_what_a_served_store_lacks_says_so_by_name(remote: holdfast.Store, filled: holdfast.Store) -> None:
    for call, name in (
        (lambda: remote.maintenance.export("x"), "store.maintenance.export"),
        (lambda: remote.maintenance.import_("x"), "store.maintenance.import_"),
        (lambda: remote.maintenance.copy_to("x.db"), "store.maintenance.copy_to"),
        (lambda: remote.transaction(), "Store.transaction"),
        (lambda: remote.transaction(lambda together: None), "Store.transaction"),
        (lambda: remote.schemas, "Store.schemas"),
        (lambda: remote.sharing, "Store.sharing"),
        (lambda: remote.backups("x"), "Store.backups"),
        (lambda: remote.as_identity("user:a", mode="read-only"), "Store.as_identity"),
        (lambda: remote.agents.create("kind", "id"), "store.agents.create"),
        (lambda: remote.maintenance.repair("other.db"), "store.maintenance.repair"),
        (lambda: remote.state(agent="a").change("n", lambda value: value), "State.change"),
        (lambda: remote.thread("chat").merge("what-if", resolve=lambda *_: None), "a function"),
        (lambda: filled.maintenance.copy_to(remote), "not a served one"),
        (lambda: remote.jobs.add("x", "backup", settings={"repository": "/x"}), "'backup'"),
        (lambda: remote.artifacts.register("/etc/passwd", keep=False), "its bytes"),
        (lambda: remote.redaction.reveal("x", keys="file:/etc/passwd"), "own keys"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert name in caught.value.what
        assert caught.value.hint or name == "a function"


def test_a_scope_is_watched_from_afar(remote: holdfast.Store, writable: ServedStore) -> None:
    here, there = writable.store.state(agent="writer"), remote.state(agent="writer")
    with there.watch() as watch:
        assert watch.poll() == []
        here["draft"] = {"title": "Tides"}
        here.delete("draft")
        first = watch.poll("60s")
        found = first if len(first) == 2 else [*first, *watch.poll("60s")]
        assert [(str(each.scope), each.key, each.action) for each in found] == [
            ("agent:writer", "draft", "set"),
            ("agent:writer", "draft", "delete"),
        ]
        assert found[0].value == {"title": "Tides"}
        assert found[1].value is holdfast.MISSING
        assert found == here.watch(cursor="").poll()[-2:]  # as in the process of the store
    resumed = there.watch(cursor=found[0].cursor)  # after the first of them
    assert resumed.poll() == found[1:]
    later = threading.Timer(0.3, lambda: here.set("late", 1))
    later.start()
    assert next(resumed).key == "late"
    threading.Timer(0.3, resumed.close).start()
    assert list(resumed) == []
    nested = remote.state().watch("late", nested=True)
    nested.start()
    writable.store.state(agent="other")["late"] = 2
    assert [str(each.scope) for each in nested.poll("60s")] == ["agent:other"]
    with pytest.raises(InvalidError, match="cursor"):
        there.watch(cursor="nonsense").poll()


def test_a_large_state_is_sent_and_read(remote: holdfast.Store, writable: ServedStore) -> None:
    text = "kelp " * 1_000_000
    remote.thread("large").put({"text": text})
    assert remote.thread("large").get().state["text"] == text
    content = remote.artifacts.register(text.encode(), type="file").id
    assert remote.artifacts.read(content) == text.encode()
    answer = writable.get("/threads/large/checkpoints/HEAD/content?path=text", headers={"Range": "bytes=5-9"})
    assert (answer.status, answer.body) == (206, b"kelp ")


def test_a_served_store_is_not_for_asyncio() -> None:
    async def opened() -> None:
        await holdfast.aopen("https://127.0.0.1:1")

    with pytest.raises(UnsupportedError, match="asyncio"):
        asyncio.run(opened())


def test_what_is_not_in_the_table_is_not_called(writable: ServedStore) -> None:
    for path in (
        "/reads/store/export",
        "/reads/store/close",
        "/reads/store/_handle",
        "/reads/store/__class__",
        "/reads/thread/put",
        "/reads/maintenance/prune",
        "/reads/store/grants",
        "/changes/maintenance/repair",
        "/changes/store/get",
        "/reads/nothing/get",
        "/reads/backups/list",
    ):
        names = ["chat"] if "/thread/" in path else []
        answer = writable.change("POST", path, {"names": names, "options": {"dry_run": 1}})
        assert (answer.status, answer.json["code"]) == (422, "unsupported"), path
    for body in (
        {"names": ["chat", "more"]},
        {"names": [1]},
        {"names": ["chat"], "arguments": [1, 2, 3, 4, 5, 6, 7]},
        {"names": ["chat"], "options": {"none": 1}},
        {"names": ["chat"], "options": {"at": {"$no-such-mark": 1}}},
        {"names": ["chat"], "arguments": [{"$tuple": 1}]},
    ):
        answer = writable.change("POST", "/reads/thread/get", body)
        assert (answer.status, answer.json["code"]) == (400, "invalid"), (body, answer.text)


def test_a_token_decides_who_acts(filled: holdfast.Store) -> None:
    filled.as_identity("user:alice").thread("mine").put({"text": "of alice"})
    token = filled.access.issue_token("user:alice").secret
    read_only = filled.access.issue_token("user:alice", read_only=True).secret
    with ServedStore(filled, write=True) as served:
        with holdfast.open(served.url, token=token) as alice:
            assert [each.thread for each in alice.threads()] == ["mine"]
            assert alice.thread("mine").get(lazy=True).state["text"] == "of alice"
            alice.thread("mine").update({"text": "changed"})
            for denied in (
                lambda: alice.audit.query(),
                lambda: alice.access.issue_token(None),
                lambda: alice.maintenance.verify(),
                lambda: alice.status(),
                lambda: alice.jobs.list(),
                lambda: alice.encryption_keys.list(),
            ):
                with pytest.raises(DeniedError):
                    denied()
            for hidden in (
                lambda: alice.thread("chat").get(),
                lambda: alice.thread("chat").log(),
                lambda: alice.thread("chat").delete(),
            ):
                with pytest.raises((NotFoundError, DeniedError)):
                    hidden()
            with pytest.raises(DeniedError):
                alice.state(agent="writer").item("draft")
            with pytest.raises(DeniedError, match="act as another"):
                alice.as_identity("user:bob").threads()
        # A direct call acts as who makes it, and need not say who that is.
        for identity, status in (({}, 200), ({"identity": "user:alice"}, 200), ({"identity": "user:bob"}, 403)):
            answer = served.request("POST", "/api/v1/reads/store/threads", identity, token=token)
            assert answer.status == status
            assert "chat" not in answer.text
        with holdfast.open(served.url, token=served.token) as owner:
            acting = owner.as_identity("user:alice")
            assert [each.thread for each in acting.threads()] == ["mine"]
            with pytest.raises(NotFoundError):
                acting.thread("chat").get()
            with pytest.raises(AttributeError):
                acting.maintenance  # type: ignore[attr-defined] # noqa: B018
        with holdfast.open(served.url, token=read_only) as alice, pytest.raises(DeniedError):
            alice.thread("mine").update({"text": "again"})
        for wrong in ("hf_start_wrong", "x"):
            with pytest.raises(DeniedError) as caught:
                holdfast.open(served.url, token=wrong)
            assert caught.value.code == "unauthenticated"
        with pytest.raises(ConfigError, match="tenant"):
            holdfast.open(served.url, token=token, tenant="other")
    assert filled.thread("mine").get().state == {"text": "changed"}
    actors = {(each.actor, each.action) for each in filled.audit.query(actor="user:alice", limit=1000)}
    assert ("user:alice", "update") in actors


def test_a_store_that_is_only_read_refuses_changes(served: ServedStore) -> None:
    with holdfast.open(served.url, token=served.token) as store:
        with pytest.raises(DeniedError, match="read-only"):
            store.thread("chat").put({"n": 1})
        assert store.maintenance.prune("chat", holdfast.Retention(keep_last=2), dry_run=True).dropped > 0


@pytest.mark.nightly
def test_a_call_that_comes_too_soon_waits(filled: holdfast.Store) -> None:
    with ServedStore(filled, rate=2.0, burst=3) as served:
        with holdfast.open(served.url, token=served.token) as store:
            assert all(store.thread("chat").tags() for _ in range(6))
        assert any(served.get("/threads").status == 429 for _ in range(200))  # so the calls were limited, too


# Lost answers -----------------------------------------------------------------------------------------------------


class LossyProxy:
    """Passes requests to a server, and loses the answers to some of them."""

    def __init__(self, port: int, lose: int) -> None:
        self._port, self._lose, self.lost = port, lose, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while request := _message(client):
                server.sendall(request)
                answer = _message(server)
                if b"/changes/" in request.split(b"\r\n")[0] and self.lost < self._lose:
                    self.lost += 1
                    return
                client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def _message(connection: socket.socket) -> bytes:
    """Receive a request or a response; nothing at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    while length is not None and len(body) < int(length[1]):
        part = connection.recv(1 << 16)
        body, data = body + part, data + part
    return data


def test_a_change_whose_answer_was_lost_is_made_once(filled: holdfast.Store) -> None:
    with ServedStore(filled, write=True) as served:
        proxy = LossyProxy(served.port, lose=2)
        try:
            with holdfast.open(proxy.url, token=served.token) as store:
                assert store.state(agent="a").increment("n") == 1
        finally:
            proxy.close()
    assert proxy.lost == 2
    assert filled.state(agent="a")["n"] == 1


def test_a_change_that_another_run_of_the_server_may_have_made_is_not_made_again(writable: ServedStore) -> None:
    body = {"names": ["agent:a"], "arguments": ["n"]}
    headers = {"Idempotency-Key": "k", EXPECTED_SERVER_HEADER: "another"}
    answer = writable.change("POST", "/changes/state/increment", body, headers=headers)
    assert (answer.status, answer.json["code"]) == (504, "uncertain")
    assert issubclass(OutcomeUnknownError, holdfast.errors.ERRORS_BY_CODE["uncertain"])
    assert "n" not in writable.store.state(agent="a")
    headers[EXPECTED_SERVER_HEADER] = writable.change("POST", "/reads/store/threads", {}).headers["holdfast-server"]
    assert writable.change("POST", "/changes/state/increment", body, headers=headers).status == 200


def test_a_server_that_is_not_there_is_reported_at_once() -> None:
    with pytest.raises(UnavailableError) as caught:
        holdfast.open("http://127.0.0.1:9", token="hf_x")
    assert caught.value.code == "unreachable"


def test_a_connection_that_the_server_closed_is_opened_again(remote: holdfast.Store) -> None:
    vars(remote)["_connection"].client._connect().sock.close()  # as if it had been idle for too long
    assert remote.thread("chat").tags()


# The token --------------------------------------------------------------------------------------------------------


def test_the_token_is_in_no_log_and_no_message(
    writable: ServedStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HOLDFAST_TOKEN", writable.token)
    texts = []
    with holdfast.open(writable.url) as store:
        store.thread("seen").put({"n": 1})
        texts += [repr(store), repr(store.thread("chat")), repr(vars(store)["_connection"].client)]
        with pytest.raises(HoldfastError) as caught:
            store.thread("none").get()
        texts.append(str(caught.value))
        with pytest.raises(HoldfastError) as caught:
            store.thread("chat").put({"n": object()})
        texts.append(str(caught.value))
    for url in (f"http://u:{writable.token}@127.0.0.1:{writable.port}", f"{writable.url}/?token={writable.token}"):
        with pytest.raises(ConfigError) as refused:
            holdfast.open(url)
        texts.append(str(refused.value))
    assert all(writable.token not in text for text in [*texts, caplog.text])


def test_a_token_is_not_sent_so_that_others_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="insecure"):
        holdfast.open("http://agents.example.org", token="hf_x")
    with pytest.raises(ConfigError, match="HOLDFAST_TOKEN"):
        holdfast.open("https://agents.example.org")
    with pytest.raises(ConfigError, match="option"):
        holdfast.open("http://127.0.0.1:9", token="hf_x", wal=True)


def test_a_server_of_another_version_is_refused(writable: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.http.service.__version__", "7.1.0")
    with pytest.raises(UnsupportedError, match=r"7\.1\.0"):
        holdfast.open(writable.url, token=writable.token)


def test_a_remote_store_that_is_closed_refuses_calls(writable: ServedStore) -> None:
    remote = holdfast.open(writable.url, token=writable.token)
    chat = remote.thread("chat")
    remote.close()
    remote.close()
    for call in (remote.threads, chat.get, lambda: chat.put({"a": 1})):
        with pytest.raises(holdfast.errors.UnavailableError) as refused:
            call()
        assert refused.value.code == "closed"
