"""Sensitive data over HTTP: the server sends tokens, and what they stand for only to who has the right. All of that is
in the audit."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.http.kit import ServedStore

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
READS = (
    "/threads/chat/checkpoints/HEAD/value?path=messages",
    "/threads/chat/checkpoints/HEAD/value?path=messages%5B0%5D.content",
    "/threads/chat/checkpoints/HEAD/messages?limit=5",
    "/threads/chat/checkpoints/HEAD/content?path=messages",
)


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedStore]:
    """A thread of Alice with a credential in it, of which the store has a token."""
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(b"k" * 32).decode())
    with holdfast.open(tmp_path / "agents.db") as store:
        store.redaction.protect()
        said = [{"role": "user", "content": f"my token is {SECRET}"}]
        store.as_identity("user:alice").thread("chat").put({"messages": said})
        with ServedStore(store, write=True) as served:
            yield served


def test_clear_values_are_sent_only_to_those_with_the_right(protected: ServedStore) -> None:
    store = protected.store
    owner, alice, eve = (store.access.issue_token(who).secret for who in (None, "user:alice", "user:eve"))
    store.access.grant("user:eve", "read", thread="chat")
    for path in READS:
        for token in (owner, alice, eve):
            found = protected.get(path, token=token)
            assert (found.status, SECRET in found.text) == (200, False), path
        # Alice owns the thread, and Eve may read it: neither may read what the tokens stand for.
        for token in (alice, eve):
            denied = protected.get(f"{path}&reveal=true", token=token)
            assert (denied.status, SECRET in denied.text) == (403, False), path
        clear = protected.get(f"{path}&reveal=true", token=owner)
        assert (clear.status, SECRET in clear.text, clear.headers["cache-control"]) == (200, True, "no-store"), path
    store.access.grant("user:alice", "keys", thread="chat")
    assert SECRET in protected.get(f"{READS[0]}&reveal=true", token=alice).text
    assert protected.get(f"{READS[0]}&reveal=true", token=eve).status == 403
    # Nothing else has it: not the log, the differences, a search, nor what changed.
    for path in ("/log", "/diff", "/blame?path=messages", "/history?path=messages", "/checkpoints/HEAD"):
        assert SECRET not in protected.get(f"/threads/chat{path}").text
    assert SECRET not in protected.get("/search?query=token").text


def test_the_same_for_a_remote_store(protected: ServedStore) -> None:
    token = protected.store.access.issue_token("user:alice").secret
    with holdfast.open(protected.url, token=token) as alice:
        state = alice.thread("chat").get().state
        assert SECRET not in repr(state)
        with pytest.raises(holdfast.errors.DeniedError):
            alice.redaction.reveal(state, thread="chat")
        protected.store.access.grant("user:alice", "keys", thread="chat")
        assert SECRET in repr(alice.redaction.reveal(state, thread="chat"))


def test_reads_and_reveals_are_in_the_audit(protected: ServedStore) -> None:
    store = protected.store
    token = store.access.issue_token("user:eve").secret
    store.access.grant("user:eve", ["read", "keys"], thread="chat")
    protected.get(READS[0], token=token)
    protected.get(f"{READS[0]}&reveal=true", token=token)
    protected.change("POST", "/reads/thread/get", {"names": ["chat"]}, token=token)
    protected.change("POST", "/reads/thread/get", {"names": ["other"]}, token=token)
    records = list(store.audit.query(actor="user:eve", limit=1000))
    seen = [(each.kind, each.action, each.thread, each.outcome) for each in records]
    assert sum(kind == "read" and thread == "chat" for kind, _, thread, _ in seen) >= 1
    assert any(action == "reveal" for _, action, _, _ in seen), seen
    assert SECRET not in repr(records)
