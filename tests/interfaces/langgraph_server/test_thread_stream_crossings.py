"""Streams of threads beside identities, tenants, freezes, erasure, encryption, policies and other stores."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.graph import START, StateGraph
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.interfaces.langgraph_server import thread_events
from tests import servers
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Chat, Clients, logged, serving, support
from tests.interfaces.langgraph_server.test_parts import leaky, working
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly

GIVEN = {"messages": [{"role": "user", "content": "hello"}]}
ALL = ["values", "updates", "messages", "lifecycle", "custom", "checkpoints", "tasks", "input", "tools"]


def command(clients: Clients, token: str, thread: str, method: str, **params: Any) -> httpx.Response:
    """Send a command."""
    headers, body = {"x-api-key": token}, {"id": 7, "method": method, "params": params}
    return httpx.post(f"{clients.served.url}/threads/{thread}/commands", json=body, headers=headers, timeout=SECONDS)


def start(clients: Clients, token: str, thread: str, graph: str = "support", given: Any = GIVEN) -> str:
    """Begin a run, and return its id."""
    answer = command(clients, token, thread, "run.start", assistant_id=graph, input=given).json()
    assert answer["type"] == "success", answer
    return str(answer["result"]["run_id"])


def follow(clients: Clients, token: str, thread: str, **wanted: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a thread until a run ends, or the stream does."""
    headers = {"x-api-key": token}
    url, body = f"{clients.served.url}/threads/{thread}/stream/events", {"channels": ALL, **wanted}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=SECONDS) as response:
        response.read() if response.status_code != 200 else None
        assert response.status_code == 200, response.text
        for line in response.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                yield event
                if is_end(event):
                    return


def is_end(event: dict[str, Any]) -> bool:
    """Whether a run ends with an event."""
    if event["type"] == "error":
        return True
    params = event["params"]
    return event["method"] == "lifecycle" and not params["namespace"] and params["data"]["event"] != "running"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Clients]:
    """A store of one test, with its graphs."""
    with holdfast.open(tmp_path / "a.db") as store, serving(store) as clients:
        yield clients


def test_a_stream_goes_on_after_any_event(served: Clients) -> None:
    token = served.served.token
    start(served, token, "t")
    first = list(follow(served, token, "t"))
    start(served, token, "t", given=GIVEN)
    second = list(follow(served, token, "t"))
    assert not {each["seq"] for each in first} & {each["seq"] for each in second}  # it began with the second run
    whole = first + second
    assert [each["seq"] for each in whole] == sorted({each["seq"] for each in whole})
    for index in {0, len(first) // 2, len(first) - 2, len(first) - 1, len(first), len(whole) - 2}:
        following = follow(served, token, "t", since=whole[index]["seq"])
        assert next(following) == whole[index + 1]
    header = {"x-api-key": token, "last-event-id": str(first[2]["event_id"])}
    url = f"{served.served.url}/threads/t/stream/events"
    with httpx.stream("POST", url, json={"channels": ALL}, headers=header, timeout=SECONDS) as response:
        line = next(each for each in response.iter_lines() if each.startswith("data: "))
        assert json.loads(line.removeprefix("data: ")) == first[3]


def test_channels_and_namespaces_are_chosen(served: Clients) -> None:
    token = served.served.token
    start(served, token, "t", "nested")
    events = list(follow(served, token, "t"))
    inner = [each for each in events if each["params"]["namespace"]]
    assert {each["method"] for each in inner} >= {"values", "updates", "tasks", "lifecycle", "input.requested"}
    chosen = list(follow(served, token, "t", channels=["updates", "lifecycle"], namespaces=[["inner"], []], depth=0))
    assert {each["method"] for each in chosen} == {"updates", "lifecycle"}
    assert any(each["params"]["namespace"] for each in chosen)
    root = list(follow(served, token, "t", namespaces=[[]], depth=0))
    assert not any(each["params"]["namespace"] for each in root)


def test_threads_of_others_do_not_exist(served: Clients) -> None:
    ada = served.store.access.issue_token("user:ada").secret
    bob = served.store.access.issue_token("user:bob").secret
    start(served, ada, "hers")
    assert list(follow(served, ada, "hers"))[-1]["params"]["data"]["event"] == "completed"  # the control
    headers = {"x-api-key": bob}
    url = f"{served.served.url}/threads/hers/stream"
    assert httpx.post(f"{url}/events", json={"channels": ALL}, headers=headers).status_code == 404
    assert httpx.get(url, headers=headers).status_code == 404
    answer = command(served, bob, "hers", "state.get").json()
    assert (answer["type"], answer["error"]) == ("error", "no_such_run")
    answer = command(served, bob, "hers", "run.start", assistant_id="support", input=GIVEN).json()
    assert answer["type"] == "error"
    with connect(f"{url}/events".replace("http", "ws", 1), additional_headers=headers) as socket:
        socket.send(json.dumps({"id": 1, "method": "subscription.subscribe", "params": {"channels": ALL}}))
        assert json.loads(socket.recv(SECONDS))["type"] == "success"  # as for a thread that is yet to be made
        with pytest.raises(TimeoutError):
            socket.recv(1.0)


def test_who_has_no_token_is_refused(served: Clients) -> None:
    url = f"{served.served.url}/threads/t/stream/events"
    assert httpx.post(url, json={"channels": ALL}).status_code == 401
    assert httpx.post(f"{served.served.url}/threads/t/commands", json={"id": 1, "method": "x"}).status_code == 401
    for headers in ({}, {"x-api-key": "hf_start_wrong"}, {"x-api-key": served.served.token, "origin": "http://x.test"}):
        with pytest.raises(InvalidStatus), connect(url.replace("http", "ws", 1), additional_headers=headers):
            pass
    reader = served.store.access.issue_token("user:ada", read_only=True).secret
    answer = command(served, reader, "t", "run.start", assistant_id="support", input=GIVEN).json()
    assert (answer["type"], answer["error"]) == ("error", "permission_denied")


def test_a_stream_ends_with_its_token(served: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_events, "_HEARTBEAT", 0.2)
    token = served.store.access.issue_token("user:ada")
    start(served, token.secret, "t")
    events = follow(served, token.secret, "t", channels=["values"])
    assert next(events)["method"] == "values"
    served.store.access.revoke_token(token.id)
    assert all(each["method"] == "values" for each in events)  # and it ends


@pytest.mark.parametrize("end", ["delete", "erase"])
def test_a_stream_ends_with_its_thread(served: Clients, end: str) -> None:
    token = served.store.access.issue_token("user:ada").secret
    start(served, token, "t")
    events = follow(served, token, "t", channels=["values"])
    next(events)
    if end == "delete":
        served.store.thread("t").delete()
    else:
        served.store.erasure.erase("ada")
    last = list(events)[-1]
    assert (last["type"], last["error"]) == ("error", "no_such_run")


def test_nothing_is_streamed_for_who_is_frozen(served: Clients) -> None:
    token = served.store.access.issue_token("user:ada").secret
    id = start(served, token, "t", given={"log": ["hers"], "pause": 1.5})
    events = follow(served, token, "t", channels=["custom", "updates", "lifecycle"])
    assert next(events)["method"] == "lifecycle"
    served.store.access.freeze("user:ada")
    *before, last = events
    assert not any(is_end(each) for each in before)
    assert (last["type"], last["error"]) == ("error", "permission_denied")
    assert served.store.runs.wait(id, timeout=SECONDS).state == "failed"
    url = f"{served.served.url}/threads/t/stream/events"
    assert httpx.post(url, json={"channels": ALL}, headers={"x-api-key": token}).status_code in (401, 403)


def test_tenants_are_apart(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "a.db", tenant="one") as one,
        holdfast.open(tmp_path / "a.db", tenant="two") as two,
        serving(one, {"support": support}) as first,
        serving(two, {"support": support}) as second,
    ):
        start(first, first.served.token, "t")
        assert list(follow(first, first.served.token, "t"))
        url = f"{second.served.url}/threads/t/stream/events"
        headers = {"x-api-key": second.served.token}
        assert httpx.post(url, json={"channels": ALL}, headers=headers).status_code == 404


def test_events_are_encrypted_and_without_sensitive_data(tmp_path: Path) -> None:
    secret, mark = "kelp-and-barnacles", "ada@example.org"
    folder = tmp_path / "sealed"
    folder.mkdir()
    graphs = {"support": support, "leaky": leaky}
    with (
        holdfast.open(folder / "a.db", encryption=Encryption(LocalKeys(b"k" * 32))) as store,
        serving(store, graphs) as clients,
    ):
        token = clients.served.token
        start(clients, token, "t", given={"messages": [{"role": "user", "content": secret}]})
        assert secret in str(list(follow(clients, token, "t")))
        start(clients, token, "plain", "leaky", {"log": ["x"]})
        assert mark in str(list(follow(clients, token, "plain", channels=["custom", "lifecycle"])))  # the control
        store.redaction.protect("redact", formats="personal")
        start(clients, token, "told", "leaky", {"log": ["x"]})
        told = list(follow(clients, token, "told", channels=["custom", "lifecycle"]))
        assert [each["method"] for each in told] == ["lifecycle", "custom", "lifecycle"]
        assert mark not in str(told)
    assert not any(secret.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.time_limit(300)
@pytest.mark.parametrize("kind", mostly_nightly(["memory", "files", "postgres"], daily=["memory"]))
def test_events_are_the_same_on_every_store(tmp_path: Path, kind: str) -> None:
    urls = {"memory": lambda: "memory://", "files": lambda: f"file://{tmp_path}/files", "postgres": servers.postgres}
    with holdfast.open(urls[kind]()) as store, serving(store, {"support": support}) as clients:
        token = clients.served.token
        start(clients, token, "t")
        events = list(follow(clients, token, "t"))
        assert list(follow(clients, token, "t", since=events[3]["seq"])) == events[4:]
        assert {each["method"] for each in events} >= {"values", "updates", "messages", "lifecycle", "custom"}


@pytest.mark.nightly
@pytest.mark.time_limit(300)
def test_streams_go_on_when_a_worker_is_killed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, serving(store, {"support": support}, work=False) as clients:
        token = clients.served.token

        def one(number: int) -> list[dict[str, Any]]:
            start(clients, token, f"t{number}", given={**GIVEN, "pause": 3.0})
            return list(follow(clients, token, f"t{number}"))

        with ThreadPoolExecutor(20) as pool, working(tmp_path) as first, working(tmp_path):
            begun = [pool.submit(one, number) for number in range(20)]
            while len(list(store.runs.list(state="running"))) < 20:
                time.sleep(0.05)
            first.send_signal(signal.SIGKILL)
            count_kill()
            found = [each.result() for each in begun]
        assert max(run.attempts for run in store.runs.list()) > 1  # the control: some were taken up
        for number, events in enumerate(found):
            assert events[-1]["params"]["data"]["event"] == "completed"
            last = [each["params"]["data"] for each in events if each["method"] == "values"][-1]
            assert last["messages"][-1]["content"] == "You said hello"
            assert list(follow(clients, token, f"t{number}", since=0)) == events  # none is lost, none came twice


def test_what_is_wrong_is_refused(served: Clients) -> None:
    token = served.served.token
    start(served, token, "t")
    list(follow(served, token, "t"))
    url, headers = f"{served.served.url}/threads/t/stream/events", {"x-api-key": token}
    bodies: list[dict[str, Any]] = [
        {},
        {"channels": []},
        {"channels": ["none"]},
        {"channels": ALL, "since": -1},
        {"channels": ALL, "x": 1},
    ]
    for body in bodies:
        assert httpx.post(url, json=body, headers=headers).status_code == 400, body
    assert httpx.post(url, json={"channels": ALL}, headers={**headers, "last-event-id": "x"}).status_code == 400
    assert (
        httpx.get(f"{served.served.url}/threads/t/stream?stream_mode=state_update", headers=headers).status_code == 422
    )
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("none", {}, "unknown_command"),
        ("input.inject", {}, "not_supported"),
        ("agent.getTree", {}, "not_supported"),
        ("subscription.subscribe", {}, "not_supported"),
        ("run.start", {}, "invalid_argument"),
        ("run.start", {"assistant_id": "none"}, "no_such_run"),
        ("run.start", {"assistant_id": "support", "langsmith_tracer": {"project_name": "x"}}, "not_supported"),
        ("input.respond", {}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "x", "response": 1}, "invalid_argument"),
    ]
    for method, params, code in wrong:
        assert command(served, token, "t", method, **params).json()["error"] == code, method
    start(served, token, "asks", "approval")
    list(follow(served, token, "asks"))
    answer = command(served, token, "asks", "input.respond", interrupt_id="x", response=1).json()
    assert answer["error"] == "no_such_interrupt"


def test_a_socket_takes_commands(served: Clients) -> None:
    url = f"{served.served.url}/threads/t/stream/events".replace("http", "ws", 1)
    with connect(url, additional_headers={"x-api-key": served.served.token}) as socket:

        def send(id: int, method: str, **params: Any) -> None:
            socket.send(json.dumps({"id": id, "method": method, "params": params}))

        def receive() -> Any:
            return json.loads(socket.recv(SECONDS))

        send(1, "subscription.subscribe", channels=["lifecycle"])
        first = receive()
        send(2, "run.start", assistant_id="support", input=GIVEN)
        got = [receive() for _ in range(3)]
        assert {each.get("id") for each in got} == {None, 2}
        assert [each["params"]["data"]["event"] for each in got if "params" in each] == ["running", "completed"]
        send(3, "subscription.subscribe", channels=["updates"])
        assert receive()["id"] == 3
        assert [receive()["params"]["node"] for _ in range(2)] == ["plan", "reply"]  # gone through again for it
        send(4, "subscription.unsubscribe", subscription_id=first["result"]["subscription_id"])
        assert receive()["type"] == "success"
        send(5, "subscription.unsubscribe", subscription_id="none")
        assert receive()["error"] == "no_such_subscription"
        send(6, "subscription.subscribe", channels=["none"])
        assert receive()["error"] == "invalid_argument"
        socket.send("[")
        assert receive()["id"] is None
    with connect(url, additional_headers={"x-api-key": served.served.token}) as socket:
        socket.send("x" * (17 << 20))
        with pytest.raises(ConnectionClosed):
            socket.recv(SECONDS)


def test_the_runs_of_a_thread_are_joined(served: Clients) -> None:
    client = served.owner
    thread = client.threads.create()["thread_id"]
    client.runs.wait(thread, "support", input=logged("x"))
    told: list[tuple[str, str]] = []

    def join() -> None:
        for each in client.threads.join_stream(thread, stream_mode="run_modes"):
            told.append((each.event, str(each.id)))
            if [event for event, _ in told].count("run_done") == 2:
                return

    joined = threading.Thread(target=join)
    joined.start()
    until = time.monotonic() + SECONDS
    while not told and time.monotonic() < until:
        time.sleep(0.01)
    client.runs.create(thread, "support", input=logged("y"), stream_mode=["updates"])
    joined.join(SECONDS)
    assert [event for event, _ in told] == ["metadata", "run_done", "metadata", "updates", "updates", "run_done"]
    for number, (event, id) in enumerate(told[:-1]):
        following = next(iter(client.threads.join_stream(thread, last_event_id=id)))
        assert (following.event, str(following.id)) == told[number + 1], event


def awaited() -> Any:
    """A graph of a coroutine function, which fails when it is told to."""

    async def tell(state: Chat) -> dict[str, Any]:
        if state["log"] == ["fail"]:
            raise ValueError("as it was told")
        return {"log": ["awaited"]}

    builder: Any = StateGraph(Chat)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")
    return builder.compile(name="awaited")


def test_coroutine_functions_and_failures(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"awaited": awaited}) as clients:
        token = clients.served.token
        start(clients, token, "t", "awaited", {"log": ["x"]})
        events = list(follow(clients, token, "t"))
        assert [each["params"]["node"] for each in events if each["method"] == "updates"] == ["tell"]
        assert events[-1]["params"]["data"]["event"] == "completed"
        start(clients, token, "bad", "awaited", {"log": ["fail"]})
        last = list(follow(clients, token, "bad"))[-1]["params"]["data"]
        assert last["event"] == "failed"
        assert "as it was told" in last["error"]
