"""Who may use a served store, and from where: tokens, sessions, other sites, sizes, rates, slow clients."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import select
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

import holdfast
from holdfast.interfaces.http import server as server_module
from holdfast.interfaces.http.protection import ProtectedApp
from holdfast.interfaces.http.service import ServiceOptions
from tests.interfaces.http.kit import SECONDS, Answer, ServedStore

READ = "/threads"


def refused(answer: Answer, status: int, code: str) -> bool:
    """Whether a request was refused so, and nothing of the store was sent."""
    assert (answer.status, answer.json["code"]) == (status, code), answer.text
    return b"chat" not in answer.body


# Tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", [None, "x", "hf_start_wrong", "hf_0000000000000000_" + "a" * 43, "hf_" + "0" * 16, "\xe4" * 20]
)
def test_without_a_valid_token_nothing_is_read(served: ServedStore, token: str | None) -> None:
    assert refused(served.get(READ, token=token), 401, "unauthenticated")
    assert served.get(READ).status == 200


def test_expired_and_revoked_tokens_are_refused(filled: holdfast.Store) -> None:
    store = filled
    with ServedStore(store) as served:
        revoked = store.access.issue_token(None)
        assert served.get(READ, token=revoked.secret).status == 200
        store.access.revoke_token(revoked)
        assert refused(served.get(READ, token=revoked.secret), 401, "unauthenticated")
        short = store.access.issue_token(None, until=0.5)
        until = time.monotonic() + SECONDS
        seen = set()
        while time.monotonic() < until and 401 not in seen:
            seen.add(served.get(READ, token=short.secret).status)
        assert 401 in seen
        assert refused(served.get(READ, token=short.secret), 401, "unauthenticated")


def test_a_token_has_the_rights_of_its_identity(filled: holdfast.Store) -> None:
    store = filled
    store.as_identity("user:alice").thread("mine").put({"text": "of alice"})
    token = store.access.issue_token("user:alice").secret
    with ServedStore(store, write=True) as served:
        assert [each["thread"] for each in served.get(READ, token=token).json["items"]] == ["mine"]
        for path in ("", "/log", "/diff", "/branches", "/blame?path=count", "/history?path=count"):
            answer = served.get(f"/threads/chat{path}", token=token)
            assert (answer.status, answer.json["code"]) == (404, "not-found"), path
        for path in ("", "/value", "/messages", "/value?path=count", "/content?path=count"):
            answer = served.get(f"/threads/chat/checkpoints/c9{path}", token=token)
            assert (answer.status, answer.json["code"]) == (404, "not-found"), path
        assert served.get("/search?query=kelp", token=token).json["items"] == []
        for path in ("/status", "/audit", "/verify", "/jobs"):
            assert refused(served.get(path, token=token), 403, "denied")
        assert served.get("/threads/mine/checkpoints/HEAD/value", token=token).json["items"][0]["key"] == "text"
        assert served.change("PUT", "/threads/mine/tags/v1", {}, token=token).status == 200
        assert served.change("PUT", "/threads/chat/tags/v1", {}, token=token).status == 404
        # A grant takes effect at once, and so does its end; a frozen identity has nothing.
        grant = store.access.grant("user:alice", "read", thread="chat")
        assert served.get("/threads/chat", token=token).status == 200
        assert served.change("PUT", "/threads/chat/tags/v1", {}, token=token).status == 403
        store.access.revoke(grant)
        assert served.get("/threads/chat", token=token).status == 404
        store.access.freeze("user:alice")
        assert served.get("/threads/mine", token=token).status == 403
    reads = {(each.actor, each.kind, each.thread) for each in store.audit.query(actor="user:alice")}
    assert {("user:alice", "read", "mine"), ("user:alice", "read", "chat")} <= reads


def test_a_read_only_token_changes_nothing(filled: holdfast.Store) -> None:
    store = filled
    for who in (None, "user:alice"):
        token = store.access.issue_token(who, read_only=True).secret
        with ServedStore(store, write=True) as served:
            refused = served.change("PUT", "/threads/chat/tags/v1", {}, token=token)
            assert (refused.status, refused.json["detail"]) == (403, "this token can only read")
            assert refused.json["hint"] == "Use a token that was not issued as read-only"
            assert served.get(READ, token=token).status == 200


def test_a_token_of_another_tenant_is_none(tmp_path: Path) -> None:
    url = tmp_path / "a.db"
    with holdfast.open(url, tenant="one") as one, holdfast.open(url, tenant="two") as two:
        one.thread("secret").put({"text": "of one"})
        two.thread("chat").put({"text": "of two"})
        token = two.access.issue_token(None).secret
        with ServedStore(one) as served_one, ServedStore(two) as served_two:
            assert served_two.get(READ, token=token).json["items"][0]["thread"] == "chat"
            answer = served_one.get(READ, token=token)
            assert (answer.status, answer.json["code"]) == (401, "unauthenticated")
            assert served_one.get(READ, token=served_two.token).status == 401


def test_only_digests_of_tokens_are_stored(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        token = store.access.issue_token("user:alice", name="in-the-file")
        secret = token.secret.split("_", 2)[2]
        digest = hashlib.sha256(secret.encode()).hexdigest()
        assert store.access.find_token(token.secret) == replace(token, secret="")
        assert token.secret not in repr(token)
        records = [repr(each) for each in store.audit.query(kind="access")]
        store.maintenance.export(tmp_path / "all.jsonl", kinds="all", format="json")
    data = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert digest.encode() in data  # so a secret would be found, too
    assert secret.encode() not in data
    assert any("in-the-file" in each for each in records)
    assert not any(secret in each or digest in each for each in records)


def test_many_wrong_tokens_have_to_wait(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store) as served:
        statuses = [served.get(READ, token=f"wrong{number}").status for number in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        # Whoever has a right one is not kept out by others on the same machine.
        assert served.get(READ).status == 200


def test_wrong_tokens_are_counted_whatever_address_is_said(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store) as served:
        found = [
            served.get(READ, token="wrong", headers={"X-Forwarded-For": f"10.0.0.{number}"}).status
            for number in range(70)
        ]
        assert found[:50] == [401] * 50
        assert 429 in found
        assert served.get(READ, headers={"X-Forwarded-For": "10.0.0.1"}).status == 200


def test_too_many_requests_have_to_wait(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, rate=0.001, burst=5) as served:
        statuses = [served.get(READ).status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        assert "retry-after" in served.get(READ).headers


# Other sites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "localhost.:1"])
def test_a_name_that_points_here_is_refused(served: ServedStore, host: str) -> None:
    """DNS rebinding: a page of evil.example lets its name point to this machine."""
    given = host.format(port=served.port)
    assert refused(served.get(READ, headers={"Host": given}), 421, "wrong-host")
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert served.get(READ, headers={"Host": f"{name}:{served.port}"}).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_requests_of_other_sites_are_refused(served: ServedStore, origin: str) -> None:
    assert refused(served.get(READ, headers={"Origin": origin}), 403, "cross-site")
    assert served.get(READ, headers={"Origin": served.url}).status == 200
    site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert refused(served.get(READ, headers=site), 403, "cross-site")
    assert "access-control-allow-origin" not in served.get(READ, headers={"Origin": served.url}).headers


def test_a_session_needs_the_token_of_its_page_to_change(writable: ServedStore) -> None:
    cookie = f"holdfast_{writable.port}={writable.authenticator.sign_in(writable.token)}"
    own = {"Cookie": cookie, "Origin": writable.url}
    caller = writable.authenticator.by_cookie(cookie.partition("=")[2])
    right = {**own, "X-CSRF-Token": writable.authenticator.csrf_token(caller)}

    def tag(headers: dict[str, str]) -> Answer:
        return writable.change("PUT", "/threads/chat/tags/v1", {"move": True}, token=None, headers=headers)

    assert writable.get(READ, token=None, headers={"Cookie": cookie}).status == 200
    assert refused(tag(own), 403, "cross-site")
    assert refused(tag({**right, "X-CSRF-Token": "0" * 64}), 403, "cross-site")
    assert refused(tag({**right, "Origin": "https://evil.example"}), 403, "cross-site")
    without_origin = {name: value for name, value in right.items() if name != "Origin"}
    assert refused(tag(without_origin), 403, "cross-site")
    # A form of another site can send this type without being asked.
    answer = writable.change(
        "PUT", "/threads/chat/tags/v1", b"{}", token=None, headers={**right, "Content-Type": "text/plain"}
    )
    assert answer.status == 400
    assert tag(right).status == 200
    # The token of one session is not that of another.
    other = f"holdfast_{writable.port}={writable.authenticator.sign_in(writable.token)}"
    assert refused(tag({**right, "Cookie": other}), 403, "cross-site")


CONFIRMED: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/changes/access/issue_token", {"names": [], "arguments": [None], "options": {}}),
    ("POST", "/changes/access/grant", {"names": [], "arguments": ["user:eve", "read"], "options": {"thread": "chat"}}),
    ("POST", "/changes/store/grant", {"names": [], "arguments": ["user:eve", "read"], "options": {"thread": "chat"}}),
    ("POST", "/changes/encryption_keys/rotate", {"names": [], "arguments": [], "options": {}}),
    ("POST", "/changes/erasure/erase", {"names": [], "arguments": ["alice"], "options": {}}),
    ("POST", "/encryption-keys/rotations", None),
    ("POST", "/erasures", {"subject": "alice", "confirm": "alice", "dry_run": False}),
)


@pytest.mark.parametrize(("method", "path", "body"), CONFIRMED)
def test_a_session_confirms_what_gives_access_or_erases(
    writable: ServedStore, method: str, path: str, body: Any
) -> None:
    store, authenticator = writable.store, writable.authenticator
    value = authenticator.sign_in(authenticator.issue_code())
    caller = authenticator.by_cookie(value)
    own = {"Cookie": f"holdfast_{writable.port}={value}", "Origin": writable.url}
    own["X-CSRF-Token"] = authenticator.csrf_token(caller)

    def send(confirmation: str) -> Answer:
        headers = {**own, "X-Confirmation": confirmation} if confirmation else own
        return writable.change(method, path, body, token=None, headers=headers)

    reader, other = store.access.issue_token(None, read_only=True), store.access.issue_token("user:eve")
    before = ([each.id for each in store.access.tokens()], store.access.grants(), len(store.erasure.certificates()))
    for wrong in ("", "AAAAA-AAAAA", "hf_start_x", reader.secret, other.secret):
        assert refused(send(wrong), 403, "unconfirmed")
    assert (
        [each.id for each in store.access.tokens()],
        store.access.grants(),
        len(store.erasure.certificates()),
    ) == before
    code = authenticator.issue_code()
    for right in (code, writable.token):
        assert send(right).json.get("code") != "unconfirmed"
    assert refused(send(code), 403, "unconfirmed")  # it works once
    # A token in the header is confirmation enough.
    assert writable.change(method, path, body).json.get("code") != "unconfirmed"


def test_a_session_need_not_confirm_a_dry_run(writable: ServedStore) -> None:
    authenticator = writable.authenticator
    value = authenticator.sign_in(authenticator.issue_code())
    own = {"Cookie": f"holdfast_{writable.port}={value}", "Origin": writable.url}
    own["X-CSRF-Token"] = authenticator.csrf_token(authenticator.by_cookie(value))
    body = {"subject": "alice", "dry_run": True}
    assert writable.change("POST", "/erasures", body, token=None, headers=own).status == 200
    called = {"names": [], "arguments": ["alice"], "options": {"dry_run": True}}
    assert writable.change("POST", "/reads/erasure/erase", called, token=None, headers=own).status == 200


def test_a_session_ends_with_its_token(writable: ServedStore) -> None:
    store, name = writable.store, f"holdfast_{writable.port}"
    token = store.access.issue_token(None)
    value = writable.authenticator.sign_in(token.secret)
    headers = {"Cookie": f"{name}={value}"}
    assert writable.get(READ, token=None, headers=headers).status == 200
    store.access.revoke_token(token)
    assert refused(writable.get(READ, token=None, headers=headers), 401, "unauthenticated")
    start = writable.authenticator.sign_in(writable.token)
    assert writable.get(READ, token=None, headers={"Cookie": f"{name}={start}"}).status == 200
    writable.authenticator.sign_out(start)
    assert refused(writable.get(READ, token=None, headers={"Cookie": f"{name}={start}"}), 401, "unauthenticated")


# Sizes, paths, times ----------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused(filled: holdfast.Store) -> None:
    store = filled
    with ServedStore(store, write=True, max_body=10_000) as served:
        body = b'{"branch": "' + b"x" * 20_000 + b'"}'
        answer = served.change("POST", "/threads/chat/forks", body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.json["code"]) == (413, "too-large")
        assert "--max-body" in answer.json["hint"]
        # In pieces, without a length.
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
            head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {served.host}\r\n"
            head += f"Authorization: Bearer {served.token}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
            connection.sendall(piece * 4)
            assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
        assert served.get(READ).status == 200


def test_many_large_bodies_at_once_are_refused(filled: holdfast.Store) -> None:
    with ServedStore(filled, write=True, max_body=10_000) as served:
        head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {served.host}\r\nContent-Length: 10000\r\n"
        head += "Content-Type: application/json\r\n"
        own = f"{head}Authorization: Bearer {served.token}\r\n\r\n".encode()
        connections = [socket.create_connection(("127.0.0.1", served.port), SECONDS) for _ in range(6)]
        for each in connections:
            each.sendall(own + b"x" * 9000)  # and never the rest
        refused = select.select(connections, [], [], SECONDS)[0]
        assert refused
        assert b" 429 " in refused[0].recv(4096).split(b"\r\n")[0]
        for each in connections:
            each.close()
        until = time.monotonic() + SECONDS  # they are counted no longer
        while served.change("POST", "/threads/chat/forks", {"branch": "x" * 9000}).status == 429:
            assert time.monotonic() < until
        # Of somebody without a token, nothing is received.
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
            connection.sendall(f"{head}\r\n".encode())
            assert b" 401 " in connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/threads/..%2fetc",
        "/threads/%00",
        "/threads/%ff%fe",
        "//",
    ],
)
def test_tricks_with_paths_find_nothing(served: ServedStore, path: str) -> None:
    answer = served.request("GET", "/api/v1" + path if not path.startswith("/..") else path)
    assert answer.status in (400, 404)
    assert b"root:" not in answer.body


def test_clients_that_are_slow_to_send_are_dropped(filled: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_HEADER_SECONDS", 0.3)
    store = filled
    with ServedStore(store, write=True, timeout=0.3) as served:
        connections = [socket.create_connection(("127.0.0.1", served.port), SECONDS) for _ in range(50)]
        for each in connections:
            each.sendall(b"GET /api/v1/threads HTTP/1.1\r\nHost: ")
        assert served.get(READ).status == 200  # meanwhile
        for each in connections:
            assert each.recv(100) == b""
            each.close()
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
            head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {served.host}\r\n"
            head += f"Authorization: Bearer {served.token}\r\nContent-Length: 100\r\n\r\n{{"
            connection.sendall(head.encode())
            assert b" 504 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_trickles_is_ended(filled: holdfast.Store) -> None:
    with (
        ServedStore(filled, write=True, timeout=0.5) as served,
        socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection,
    ):
        head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {served.host}\r\nContent-Length: 100000\r\n"
        connection.sendall(f"{head}Authorization: Bearer {served.token}\r\n\r\n".encode())
        sent, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until:  # each piece comes in time
            if select.select([connection], [], [], 0.02)[0]:
                break
            connection.sendall(b"x")
            sent += 1
        assert b" 504 " in connection.recv(4096).split(b"\r\n")[0]
        assert sent > 5


def test_connections_of_strangers_make_room(filled: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_STRANGERS_EACH", 5)
    with ServedStore(filled) as served:
        known = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        headers = {"Authorization": f"Bearer {served.token}"}

        def read() -> int:
            known.request("GET", "/api/v1/threads", headers=headers)
            response = known.getresponse()
            response.read()
            return response.status

        assert read() == 200
        connection = known.sock
        strangers = [socket.create_connection(("127.0.0.1", served.port), SECONDS) for _ in range(9)]
        closed = set[socket.socket]()
        until = time.monotonic() + SECONDS
        while len(closed) < 4:
            assert time.monotonic() < until
            closed |= {each for each in select.select(strangers, [], [], 1)[0] if _is_closed(each)}
        assert closed == set(strangers[:4])  # the oldest
        assert served.get(READ).status == 200
        assert read() == 200
        assert known.sock is connection  # whoever is known stays
        known.close()
        for each in strangers:
            each.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_request_with_two_lengths_is_refused_and_the_connection_closed(writable: ServedStore) -> None:
    head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {writable.host}\r\n"
    head += f"Authorization: Bearer {writable.token}\r\nContent-Type: application/json\r\n"
    body = b'13\r\n{"branch": "twice"}\r\n0\r\n\r\n'
    for lengths, status in (("Content-Length: 4\r\n", b" 400 "), ("", b" 201 ")):
        with socket.create_connection(("127.0.0.1", writable.port), SECONDS) as connection:
            connection.sendall(f"{head}{lengths}Transfer-Encoding: chunked\r\n\r\n".encode() + body)
            answer = connection.recv(65536)
            while lengths and (more := connection.recv(65536)):  # until the server closes it
                answer += more
            assert status in answer.split(b"\r\n")[0]
            assert (b"cannot have both" in answer) == bool(lengths)


def test_a_request_that_is_given_up_is_one_line_in_the_log(
    writable: ServedStore, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /api/v1/threads/chat/forks HTTP/1.1\r\nHost: {writable.host}\r\nContent-Length: 100\r\n"
    with caplog.at_level("INFO"):
        with socket.create_connection(("127.0.0.1", writable.port), SECONDS) as connection:
            connection.sendall(f"{head}Authorization: Bearer {writable.token}\r\n\r\n{{".encode())
        until = time.monotonic() + SECONDS
        while "ended its request" not in caplog.text:
            assert time.monotonic() < until
    found = [each for each in caplog.records if each.name.startswith(("holdfast", "uvicorn"))]
    assert [each.exc_info for each in found] == [None]


def test_clients_that_are_slow_to_receive_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"data": bytes(30 << 20)})
        with ServedStore(store, timeout=0.3) as served:
            with socket.create_connection(("127.0.0.1", served.port), SECONDS) as connection:
                path = "/api/v1/threads/t/checkpoints/HEAD/content?path=data"
                head = f"GET {path} HTTP/1.1\r\nHost: {served.host}\r\nAuthorization: Bearer {served.token}\r\n\r\n"
                with caplog.at_level("INFO", "holdfast.http"):
                    connection.sendall(head.encode())
                    assert connection.recv(10)
                    assert served.get(READ).status == 200  # meanwhile
                    until = time.monotonic() + SECONDS
                    while "did not take" not in caplog.text and time.monotonic() < until:
                        assert served.get(READ).status == 200
                size = 0
                try:
                    while received := connection.recv(1 << 20):
                        size += len(received)
                except ConnectionError:
                    pass
                assert size < 30 << 20
            assert served.get(READ).status == 200


class CountedBytes(bytes):
    """Bytes that count what slices of them copy."""

    copied = 0

    def __getitem__(self, part: Any) -> Any:
        found = CountedBytes(super().__getitem__(part))
        CountedBytes.copied += len(found)
        return found


def test_a_large_response_is_sent_in_pieces_and_copied_once() -> None:
    body, sent = CountedBytes(os.urandom(1 << 20) * 3 + b"end"), list[bytes]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def take(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            assert message.get("more_body", False) == (sum(map(len, sent)) < len(body))

    async def nothing() -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    asyncio.run(ProtectedApp(app, ServiceOptions())(scope, nothing, take))
    assert b"".join(sent) == bytes(body)
    assert max(map(len, sent)) <= 64 << 10
    assert CountedBytes.copied <= len(body)


HOSTILE = "<script>alert(1)</script>\"'&</title>\r\nSet-Cookie: x=1"


def test_stored_markup_is_only_ever_data(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        name = HOSTILE.replace("\r\n", "")
        state = {"messages": [{"role": HOSTILE, "content": HOSTILE}], name: {HOSTILE: HOSTILE}}
        store.thread(name).put(state, metadata={HOSTILE: HOSTILE}, id="c1")
        thread = store.thread(name)
        thread.tag("<b>tag", "c1")
        thread.label(name, "c1")
        thread.fork("<i>branch", at="c1")
        with ServedStore(store) as served:
            path = f"/threads/{quote(name, safe='')}"
            for further in (
                "",
                "/log",
                "/diff",
                "/checkpoints/c1",
                "/checkpoints/c1/value",
                "/checkpoints/c1/messages",
            ):
                answer = served.get(path + further)
                assert answer.status == 200
                assert answer.headers["content-type"] == "application/json"
                assert "set-cookie" not in answer.headers
            svg = served.get(f"{path}/checkpoints/c1/content?path=messages")
            assert svg.headers["content-disposition"] == "attachment"
            assert svg.headers["content-security-policy"].startswith("sandbox")


ELSEWHERE = "https://shop.example"


def test_pages_of_a_known_origin_use_the_server_with_a_token(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"n": 1})
        with ServedStore(store, write=True, origins=(ELSEWHERE,)) as served:
            sent = {"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
            asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key,content-type"}
            told = httpx.options(f"{served.url}/api/v1/threads", headers=sent | asks)
            assert told.status_code == 200
            assert told.headers["access-control-allow-origin"] == ELSEWHERE
            assert told.headers["access-control-allow-headers"] == "x-api-key,content-type"
            assert "access-control-allow-credentials" not in told.headers
            found = served.request("GET", "/api/v1/threads", headers=sent)
            assert (found.status, found.headers["access-control-allow-origin"]) == (200, ELSEWHERE)
            refused = served.request("GET", "/api/v1/threads", token=None, headers=sent)
            assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, ELSEWHERE)
            for other in ("https://shop.example.evil", "http://shop.example", "null"):
                answer = served.request("GET", "/api/v1/threads", headers=sent | {"Origin": other})
                assert (answer.status, answer.json["code"]) == (403, "cross-site")
                assert "access-control-allow-origin" not in answer.headers


def test_the_cookie_of_a_session_counts_for_nothing_from_another_origin(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, write=True, origins=(ELSEWHERE,)) as served:
        value = served.authenticator.sign_in(served.authenticator.issue_code())
        cookie = {"Cookie": f"holdfast_{served.port}={value}"}
        own = {**cookie, "Origin": served.url}
        assert served.request("GET", "/api/v1/threads", token=None, headers=own).status == 200, "the cookie is right"
        sent = {**cookie, "Origin": ELSEWHERE, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
        assert served.request("GET", "/api/v1/threads", token=None, headers=sent).status == 401
