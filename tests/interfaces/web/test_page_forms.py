"""Every page that takes a form: sent by another site, and by those who only read. And the owner's pages, for others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import holdfast
from holdfast.interfaces.web.access_page import FORMS
from holdfast.interfaces.web.pages import _RAIL, PAGES, page_routes
from tests.interfaces.http.kit import Answer, ServedStore
from tests.interfaces.web.test_pages import signed_in

_NAMES: dict[str, tuple[str, ...]] = {
    "thread": ("chat",),
    "at": ("HEAD",),
    "name": ("nightly",),
    "id": ("one",),
    "key": ("step",),
    "reference": ("0",),
    "change": ("run", "pause", "resume", "cancel", "retry", "discard"),
}
"""What stands in the addresses for their parts."""

_ACTIONS = {
    "/bulk/": ("delete", "tag", "export", "prune"),
    "/access/": tuple(FORMS),
    "/threads/": ("fork", "edit", "restore", "merge", "tag", "pin", "prune", "answer"),
}

_FIELDS = {
    "thread": "chat",
    "typed": "delete 1",
    "tag": "x",
    "do": "1",
    "schedule": "",
    "branch": "b",
    "theirs": "b",
    "who": "user:bob",
    "to": "user:bob",
    "place": "thread:chat",
    "identity": "user:bob",
    "subject": "ada",
    "role": "r",
    "group": "g",
    "members": "user:bob",
    "rules": "[]",
    "how": "retry",
    "value": "1",
    "keep_last": "1",
}


def form_addresses() -> Iterator[str]:
    """The addresses of every page that takes a form, with everything that it may do."""
    for path, _, values in PAGES:
        if "form" not in signature(values).parameters:
            continue
        actions = next((found for start, found in _ACTIONS.items() if path.startswith(start)), ())
        names = re.findall(r"\{(\w+)\}", path)
        for parts in product(*({**_NAMES, "action": actions}[name] for name in names)):
            yield path.format(**dict(zip(names, parts, strict=True)))


def snapshot(store: holdfast.Store) -> list[Any]:
    """What forms could have changed."""
    access = store.access
    return [
        [(each.thread, each.steps, store.thread(each.thread).tags()) for each in store.threads()],
        [(each.name, each.schedule, each.paused, each.runs) for each in store.jobs.list()],
        [access.grants(dead=True), access.tokens(), access.roles(), access.groups(), access.frozen()],
        [(each.id, each.state) for each in store.runs.list()],
        store.erasure.certificates(),
    ]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    """A store with something for the forms, which may be changed."""
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"n": 1}, metadata={"subject": "ada"})
        store.thread("chat").put({"n": 2})
        store.thread("chat").fork("b", "HEAD~1")
        store.jobs.add("nightly", "verify", schedule="0 3 * * *")
        store.runs.submit("chat", [1], graph="draft")
        store.access.grant("user:bob", "read", thread="*")
        with ServedStore(store, page_routes, write=True) as served:
            yield served


def send(served: ServedStore, path: str, cookie: dict[str, str], csrf: str, origin: str) -> Answer:
    """Send a form with every field."""
    headers = {**cookie, "Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
    return served.request("POST", path, urlencode({**_FIELDS, "csrf": csrf}).encode(), token=None, headers=headers)


def csrf_of(served: ServedStore, cookie: dict[str, str]) -> str:
    """The text that only pages of a session have."""
    found = re.findall(r'data-csrf="([0-9a-f]+)"', served.request("GET", "/", token=None, headers=cookie).text)
    return str(found[0])


def test_no_form_of_another_site_does_anything(served: ServedStore) -> None:
    cookie = signed_in(served)
    csrf, before = csrf_of(served, cookie), snapshot(served.store)
    paths = list(form_addresses())
    assert len(paths) > 30
    for path in paths:
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{served.port}"):
            assert send(served, path, cookie, csrf, origin).status == 403, (path, origin)
    assert snapshot(served.store) == before
    assert send(served, "/jobs/nightly/run", cookie, csrf, served.url).status == 303, "the control: our own form does"
    assert snapshot(served.store) != before


def test_no_form_of_a_reader_does_anything(served: ServedStore) -> None:
    store = served.store
    secrets = [
        store.access.issue_token("user:bob", until="1h").secret,
        store.access.issue_token(None, until="1h", read_only=True).secret,
    ]
    before = snapshot(store)
    for secret in secrets:
        cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(secret)}"}
        csrf = csrf_of(served, cookie)
        for path in form_addresses():
            send(served, path, cookie, csrf, served.url)
    after = snapshot(store)
    after[2][1] = before[2][1]  # tokens say when they were used
    assert after == before


def test_an_identity_has_no_page_of_the_owner(served: ServedStore) -> None:
    secret = served.store.access.issue_token("user:bob", until="1h").secret
    cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(secret)}"}
    home = served.request("GET", "/", token=None, headers=cookie).text
    for address, _, of_owner in _RAIL:
        status = served.request("GET", address, token=None, headers=cookie).status
        assert (status == 403) is of_owner, address
        assert (f'<a href="{address}"' in home.partition("<main")[0]) is not of_owner or address == "/", address
    shown = served.request("GET", f"/threads/{quote('chat')}?tab=metadata", token=None, headers=cookie).text
    assert "/audit?" not in shown
    assert "data-act=" not in shown, "actions are absent"
