"""Webhooks of runs: who may be called, and that they are called although somebody dies."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.errors import BadRequestError

import holdfast
from holdfast.errors import InvalidError, TransientError
from holdfast.interfaces.langgraph_server import webhooks
from holdfast.interfaces.langgraph_server.background import client_work
from holdfast.interfaces.langgraph_server.graphs import load_graphs
from holdfast.interfaces.langgraph_server.webhooks import is_public, post
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import approval, serving, support

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
BOTH = {"support": support, "approval": approval}


class Receiver:
    """A server that takes what webhooks are sent, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.answers: list[int] = []
        self._more = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(answer)
                if answer == 302:
                    self.send_header("location", f"{receiver.url}/elsewhere")
                self.end_headers()
                with receiver._more:
                    receiver.got.append((self.headers["idempotency-key"], {**body, "path": self.path}))
                    receiver._more.notify_all()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait(self, count: int) -> list[tuple[str, Any]]:
        """Wait until so many calls came."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.got) >= count, SECONDS), self.got
            return list(self.got)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def until(true: Callable[[], Any]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_webhook_of_a_run_is_called_until_it_takes_it(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [500, 302]
    with holdfast.open(tmp_path / "a.db") as store, serving(store, BOTH, private_webhooks=True) as clients:
        runs, thread = clients.owner.runs, clients.owner.threads.create()["thread_id"]
        made = runs.create(thread, "support", input=HELLO, metadata={"n": 1}, webhook=f"{receiver.url}/hook?a=1")
        (key, first), (_, second), (_, third) = receiver.wait(3)
        assert {each for each, _ in receiver.got} == {key}  # by which the receiver knows a repetition
        assert first["path"] == "/hook?a=1" == second["path"] == third["path"]  # a redirection is not followed
        assert (third["run_id"], third["status"], third["metadata"]) == (made["run_id"], "success", {"n": 1})
        assert third["values"]["log"] == ["planned plainly", "replied"]
        assert third["run_ended_at"]
        assert third["webhook_sent_at"]
        until(lambda: [each.state for each in store.runs.list(graph=webhooks.WEBHOOK)] == ["done"])
        assert len(clients.owner.threads.search()) == 1  # the thread of the call is none for clients


def test_questions_failures_and_ends_are_told_once(tmp_path: Path, receiver: Receiver) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, BOTH, private_webhooks=True) as clients:
        runs, thread = clients.owner.runs, clients.owner.threads.create()["thread_id"]
        runs.wait(thread, "approval", input=HELLO, webhook=receiver.url)
        assert receiver.wait(1)[0][1]["status"] == "interrupted"
        runs.wait(thread, "approval", command={"resume": "Ada"}, webhook=receiver.url)
        assert receiver.wait(2)[1][1]["status"] == "success"
        runs.create(thread, "support", input={"messages": 5}, webhook=receiver.url)
        told = receiver.wait(3)[2][1]
        assert (told["status"], told["values"]) == ("error", None)
        assert told["error"]["error"]
        later = runs.create(thread, "support", input=HELLO, after_seconds=3600, webhook=receiver.url)
        runs.cancel(thread, later["run_id"])
        assert receiver.wait(4)[3][1]["status"] == "interrupted"
        values: Any = runs.wait(None, "support", input=HELLO, webhook=receiver.url)
        assert receiver.wait(5)[4][1]["values"] == values
        until(lambda: not store.runs.list(state="running"))
        assert len(receiver.got) == 5  # the question was told, and is not when another run takes its place


def test_a_webhook_is_called_after_all_processes_died(tmp_path: Path, receiver: Receiver) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        graphs = load_graphs(store, [("support", "kit:support", support())])
        with serving(store, {"support": support}, work=False, private_webhooks=True) as clients:
            thread = clients.owner.threads.create()["thread_id"]
            made = clients.owner.runs.create(thread, "support", input=HELLO, webhook=receiver.url)
            store.worker(**graphs).run_due()  # a worker elsewhere, which calls no webhooks
        assert store.runs.get(made["run_id"]).state == "done"
        assert receiver.got == []
        with client_work(store, graphs, private_webhooks=True):
            assert receiver.wait(1)[0][1]["run_id"] == made["run_id"]


def test_what_an_identity_may_not_read_is_sent_nowhere(tmp_path: Path, receiver: Receiver) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, BOTH, private_webhooks=True) as clients:
        ada, ben = clients.of("user:ada"), store.as_identity("user:ben")
        thread = ada.threads.create()["thread_id"]
        made = ada.runs.create(thread, "support", input=HELLO, webhook=receiver.url)
        receiver.wait(1)
        own = ben.runs.submit("of-ben", [made["run_id"]], graph=webhooks.WEBHOOK)
        ended = store.runs.wait(own.id, timeout=SECONDS)
        assert ended.result == "the run is not there any more"
        store.access.freeze("user:ada")
        assert len(receiver.got) == 1


# Who may be called ------------------------------------------------------------------------------------------------

PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
    *(
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
    ),
    *("::127.0.0.1", "255.255.255.255", "ff02::1"),
)
PUBLIC = ("93.184.215.14", "2606:4700::1111", "::ffff:93.184.215.14")


def test_addresses_that_are_not_public() -> None:
    assert [each for each in PRIVATE if is_public(each)] == []
    assert [each for each in PUBLIC if not is_public(each)] == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "[::1]", "2130706433", "0x7f.1", "10.0.0.1", "[::ffff:a00:1]"]
)
def test_private_webhooks_are_refused_unless_they_are_allowed(tmp_path: Path, host: str) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"support": support}, work=False) as clients:
        thread = clients.owner.threads.create()["thread_id"]
        with pytest.raises(BadRequestError, match="private network"):
            clients.owner.runs.create(thread, "support", input=HELLO, webhook=f"http://{host}/hook")
        for wrong in (
            "ftp://example.org/",
            "example.org",
            "http://",
            "http://a:b/",
            f"https://example.org/{'a' * 3000}",
        ):
            with pytest.raises(BadRequestError):
                clients.owner.runs.create(thread, "support", input=HELLO, webhook=wrong)
        assert clients.owner.runs.list(thread) == []


def test_a_name_that_leads_elsewhere_when_it_is_called(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    resolved = socket.getaddrinfo

    def rebound(host: str, *options: Any, **named: Any) -> Any:
        return resolved("127.0.0.1" if host == "rebound.example" else host, *options, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    url = f"http://rebound.example:{receiver.server.server_port}/"
    with pytest.raises(InvalidError):
        post(url, b"{}", "key", private=False)
    assert receiver.got == []
    post(url, b"{}", "key", private=True)  # the control: it leads there
    assert receiver.wait(1)


def test_public_webhooks_are_called_with_tls(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    monkeypatch.setattr(webhooks, "is_public", lambda _: True)
    post(receiver.url, b"{}", "key", private=False)
    assert receiver.wait(1)
    with pytest.raises(TransientError, match="SSLError"):  # it speaks none
        post(receiver.url.replace("http:", "https:"), b"{}", "key", private=False)
