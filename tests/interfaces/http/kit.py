"""A store that is served by a real server, and requests to it whose responses are checked against the document."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import jsonschema_rs

import holdfast
from holdfast.interfaces.http.app import ROUTES, Server, build_app
from holdfast.interfaces.http.authentication import Authenticator
from holdfast.interfaces.http.openapi import openapi_document
from holdfast.interfaces.http.server import HttpServer, bind_loopback
from holdfast.interfaces.http.service import Service, ServiceOptions

SECONDS = 60.0
"""How long a test waits for what must come. Only a failure takes as long."""

DOCUMENT = openapi_document(ROUTES)


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def fill(store: holdfast.Store) -> None:
    """A thread `chat` of ten steps on main, three on `what-if` from the fifth on, with a tag, a label and a pin; one
    with an odd name; an agent's scope, a session and an artifact."""
    said: list[dict[str, Any]] = []
    for n in range(10):
        said.append({"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n} about kelp"})
        store.thread("chat").put(
            {"messages": list(said), "count": n, "plan": {"goal": "rest", "done": n // 3}}, id=f"c{n}"
        )
    thread = store.thread("chat")
    thread.fork("what-if", at="c4")
    for n in range(3):
        store.thread("chat").put({"messages": said[:5], "count": 100 + n}, id=f"w{n}", branch="what-if")
    thread.tag("good", "c3")
    thread.label("seen", "c4")
    thread.pin("c5", reason="proof")
    store.thread("a/b c?#%/ü").put({"text": "odd"})
    store.state(agent="writer")["draft"] = {"title": "Kelp"}
    store.sessions.start(user="alice")
    store.artifacts.register(b"bytes", type="file", producer="test", name="a.txt")


class ServedStore:
    """A store behind a server of its own, on a free port of this machine."""

    def __init__(self, store: holdfast.Store, further: Any = None, *, name: str = "", **options: Any) -> None:
        self.store = store
        name = name or ("127.0.0.1" if further is None else f"{secrets.token_hex(12)}.localhost")
        options = {"rate": 10_000.0, "burst": 10_000, "poll": 0.05, "cookie_hosts": (name,), **options}
        self.service = Service(store, ServiceOptions(**options))
        self.authenticator = Authenticator(store)
        self.token = self.authenticator.start_token
        self._bound = bind_loopback(0)
        self.port = self._bound[0].getsockname()[1]
        self.host = f"{name}:{self.port}"
        self.url = f"http://{self.host}"
        started = threading.Event()

        def routes(server: Server) -> Any:
            self.hub = server.hub
            return () if further is None else further(server)

        app = build_app(self.service, self.authenticator, routes)
        self._server = HttpServer(app, 4000, started.set)
        self._thread = threading.Thread(target=self._server.run_bound, args=self._bound, daemon=True)
        self._thread.start()
        assert started.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def sign_in(self, context: Any) -> None:
        """Sign a context of a browser in as the owner, without a page."""
        value = self.authenticator.sign_in(self.authenticator.issue_code())
        cookie = {"name": f"holdfast_{self.port}", "value": value, "url": self.url, "sameSite": "Strict"}
        context.add_cookies([{**cookie, "httpOnly": True}])

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; with the token of the start, another, or none. Responses of the API are checked."""
        sent = {"Host": self.host, **(headers or {})}
        if "Cookie" in sent:
            sent = {"Sec-Fetch-Site": "same-origin", **sent}
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self.token}"
        content = body
        if body is not None and not isinstance(body, bytes):
            content, sent = json.dumps(body).encode(), {"Content-Type": "application/json", **sent}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if content is not None and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        finally:
            connection.close()
        check(method, path, answer)
        return answer

    def get(self, path: str, **options: Any) -> Answer:
        """Read from the API."""
        return self.request("GET", "/api/v1" + path, **options)

    def change(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Change something by the API."""
        return self.request(method, "/api/v1" + path, body, **options)


def thread_path(name: str) -> str:
    """The path of a thread."""
    return f"/threads/{quote(name, safe='')}"


checked: set[tuple[str, str]] = set()
"""The operations whose responses were checked, to see that none is left out."""

_VALIDATORS: dict[str, Any] = {}


def check(method: str, path: str, answer: Answer) -> None:
    """Check that the document describes a response, and that it has the headers of all."""
    assert answer.headers["x-content-type-options"] == "nosniff", answer.headers
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    if not path.startswith(("/api/v1", "/health")):
        return
    if answer.headers.get("content-type") == "application/problem+json":
        problem = answer.json
        _validate({"$ref": "#/components/schemas/Problem"}, problem)
        assert problem["status"] == answer.status
        return
    template, operation = _operation(method, path.partition("?")[0])
    response = operation["responses"].get(str(answer.status))
    assert response is not None, (method, path, answer)
    if answer.headers.get("content-type") == "application/json" and "application/json" in response.get("content", {}):
        _validate(response["content"]["application/json"]["schema"], answer.json)
        checked.add((method, template))


def _operation(method: str, path: str) -> tuple[str, dict[str, Any]]:
    for template, operations in DOCUMENT["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            return template, operations[method.lower()]
    if path == "/api/v1/openapi.json":
        return path, {"responses": {"200": {}}}
    raise AssertionError(f"the document does not have {method} {path}")


def _validate(schema: dict[str, Any], value: Any) -> None:
    key = json.dumps(schema)
    if key not in _VALIDATORS:
        whole = {**schema, "components": DOCUMENT["components"]}
        _VALIDATORS[key] = jsonschema_rs.validator_for(whole, validate_formats=True)
    _VALIDATORS[key].validate(value)
