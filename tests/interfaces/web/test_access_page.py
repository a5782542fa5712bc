"""The pages of access: rights, tokens and persons, as they are sent, and the forms that change them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

import holdfast
from holdfast.interfaces.http import authentication
from holdfast.interfaces.web.access_page import FORMS
from holdfast.interfaces.web.pages import page_routes
from holdfast.store.catalogue import store_parts
from tests.interfaces.http.kit import Answer, ServedStore
from tests.interfaces.web.kit import HOSTILE, fill_access, fill_odd
from tests.interfaces.web.test_actions import post
from tests.interfaces.web.test_pages import get, read


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    """A store with rights of several kinds, that may be changed."""
    with holdfast.open(tmp_path / "a.db") as store:
        fill_access(store)
        with ServedStore(store, page_routes, write=True) as served:
            yield served


def send(served: ServedStore, action: str, code: str | None = None, **fields: str) -> Answer:
    """Send a form to be done, with a new code."""
    code = served.authenticator.issue_code() if code is None else code
    return post(served, f"/access/actions/{action}", [*fields.items(), ("do", "1"), ("code", code)])


def test_rights_are_given_and_taken_by_forms(served: ServedStore) -> None:
    access = served.store.access
    shown = get(served, "/access/actions/grant?to=user%3Adan&place=thread%3Akelp-*&right=read&until=7d")
    python = "store.access.grant('user:dan', 'read', thread='kelp-*', until='7d')"
    assert python.replace("'", "&#39;") in shown.text
    assert "holdfast grant give user:dan read &#39;thread:kelp-*&#39; --until 7d" in shown.text
    assert not access.may("user:dan", "read", thread="kelp-1"), "nothing is given by looking"
    assert send(served, "grant", to="user:dan", place="thread:kelp-*", right="read", until="7d").status == 303
    assert access.may("user:dan", "read", thread="kelp-1")
    assert "kelp-*" in get(served, "/access/identities/user%3Adan").text
    (grant,) = access.grants("user:dan")
    assert send(served, "revoke", grant=grant.id).status == 303
    assert not access.may("user:dan", "read", thread="kelp-1")
    assert send(served, "freeze", who="user:dan", reason="case 18").status == 303
    assert "case 18" in get(served, "/access").text
    assert send(served, "unfreeze", who="user:dan").status == 303
    assert send(served, "join", group="staff", members="user:dan, user:eve").status == 303
    assert access.groups()["staff"] == ["user:dan", "user:eve"]
    assert send(served, "leave", group="staff", members="user:eve").status == 303
    rules = '[{"effect": "allow", "right": "read", "scope": "agent:*"}]'
    assert send(served, "define-role", role="reader", rules=rules).status == 303
    assert send(served, "assign", role="reader", to="group:staff").status == 303
    assert "group:staff" in get(served, "/access/roles").text
    assert send(served, "unassign", role="reader", to="group:staff").status == 303
    refused = send(served, "drop-role", role="reader")
    assert "typed again" in refused.text
    assert send(served, "drop-role", role="reader", typed="reader").status == 303
    assert send(served, "cut-off", who="user:bob", typed="user:bob").status == 303
    assert access.grants("user:bob") == []
    assert sorted(access.frozen()) == ["user:eve"]


def test_a_cookie_alone_gives_nobody_access(served: ServedStore) -> None:
    before = served.store.access.grants(dead=True), served.store.access.tokens()
    for action, fields in (
        ("grant", {"to": "user:dan", "place": "user:alice"}),
        ("issue-token", {"identity": "owner"}),
        ("freeze", {"who": "user:alice"}),
        ("erase", {"subject": "alice", "typed": "alice"}),
    ):
        for code in ("", "AAAAA-AAAAA"):
            answer = send(served, action, code, **fields)
            assert (answer.status, "must confirm" in answer.text) == (200, True), action
            assert "A code of the terminal" in answer.text
    assert (served.store.access.grants(dead=True), served.store.access.tokens()) == before
    assert served.store.access.frozen() == {"user:eve": "case 17"}
    assert served.store.thread("visit-of-alice").get().state
    assert post(served, "/access/actions/freeze", [("who", "user:alice"), ("do", "1")], csrf="0" * 64).status == 403
    assert send(served, "freeze", who="user:alice").status == 303, "the control: with a code it is done"


def test_every_form_names_an_operation_that_a_browser_must_confirm() -> None:
    for name, form in FORMS.items():
        part, _, operation = form.operation.partition(".")
        found = store_parts()[part].operation(operation)
        assert found is not None, name
        assert (found.declaration.confirm, found.declaration.changes) == (True, True), name


def test_a_token_is_shown_once_and_when_it_was_used(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = send(served, "issue-token", identity="user:dan", until="8h", name="phone", read_only="1")
    (secret,) = re.findall(r"hf_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", answer.text)
    assert secret not in get(served, "/access/tokens").text

    def used() -> datetime | None:
        (found,) = (each for each in served.store.access.tokens() if each.identity == "user:dan")
        assert (found.name, found.read_only) == ("phone", True)
        return found.used

    assert used() is None
    grants = served.store.access.grants(dead=True)
    assert served.get("/threads", token=secret).status == 200
    first = used()
    assert first is not None
    assert datetime.now(UTC) - first < timedelta(minutes=1)
    assert served.get("/threads", token=secret).status == 200
    assert used() == first, "it is not stored each time"
    monkeypatch.setattr(authentication, "_USE_SECONDS", 0.0)
    assert served.get("/threads", token=secret).status == 200
    later = used()
    assert later is not None
    assert later > first
    assert served.store.access.grants(dead=True) == grants
    assert served.store.audit.verify().ok
    assert served.store.maintenance.verify().ok
    token = next(each.id for each in served.store.access.tokens() if each.identity == "user:dan")
    assert send(served, "revoke-token", token=token).status == 303
    assert served.get("/threads", token=secret).status == 401
    assert "revoked" in get(served, "/access/tokens").text


def test_a_person_is_found_exported_and_erased(served: ServedStore) -> None:
    store = served.store
    store.state(user="alice")["language"] = "en"
    shown = get(served, "/access/persons?subject=alice")
    assert 'href="/threads/visit-of-alice"' in shown.text
    assert store.thread("visit-of-alice").get().state, "to look erases nothing"
    export = get(served, "/access/persons/alice/export")
    assert export.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in export.headers["content-security-policy"]
    assert "good tide" in gzip.decompress(export.body).decode()
    assert "typed again" in send(served, "erase", subject="alice", typed="bob").text
    assert store.thread("visit-of-alice").get().state
    done = send(served, "erase", subject="alice", typed="alice")
    (certificate,) = store.erasure.certificates()
    assert certificate.id in done.text
    assert certificate.id in get(served, "/access/persons").text
    assert not store.erasure.erase("alice", dry_run=True).names
    store.thread("held").put({"a": 1}, metadata={"subject": "bob"})
    store.thread("held").hold(reason="case 19")
    assert "A legal hold" in get(served, "/access/persons?subject=bob").text
    assert "hold" in send(served, "erase", subject="bob", typed="bob").text
    assert store.thread("held").get().state


def test_nobody_but_the_owner_sees_access_and_nothing_changes_where_it_is_read(tmp_path: Path) -> None:
    paths = ["/access", "/access/grants", "/access/persons?subject=alice", "/access/persons/alice/export"]
    with holdfast.open(tmp_path / "a.db") as store:
        fill_access(store)
        token = store.access.issue_token("user:alice").secret
        with ServedStore(store, page_routes, write=True) as served:
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            for path in [*paths, "/access/actions/grant"]:
                assert served.request("GET", path, token=None, headers=cookie).status == 403, path
                assert get(served, path).status == 200, path
            assert "/access" not in served.request("GET", "/", token=None, headers=cookie).text
        with ServedStore(store, page_routes) as served:
            assert "/access/actions" not in "".join(get(served, each).text for each in paths[:3])
            assert get(served, "/access/actions/grant").status == 403
            assert send(served, "freeze", who="user:alice").status == 403
        assert "user:alice" not in store.access.frozen()


def test_markup_in_rights_is_text(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        fill_odd(store)
        with ServedStore(store, page_routes, write=True) as served:
            who = quote(f"user:{quote(HOSTILE, safe='')}", safe="")
            names = ("to", "place", "who", "subject", "role", "identity", "group", "members", "rules", "reason")
            fields = "&".join(f"{name}={quote(HOSTILE)}" for name in names)
            for path in (
                *("/access", "/access/grants", "/access/roles", "/access/tokens", f"/access/identities/{who}"),
                f"/access/persons?subject={quote(HOSTILE)}",
                *(f"/access/actions/{name}?{fields}" for name in FORMS),
            ):
                answer = get(served, path)
                assert answer.status == 200, path
                assert read(answer).suspicious == [], path
                assert "<script>document" not in answer.text, path
            assert "&lt;script&gt;document" in get(served, "/access/grants").text, "the control: it is there"
