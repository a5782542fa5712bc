"""Changing a store over HTTP: branches, tags, pins, pruning, deletion; preconditions, and changes sent again."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import NotFoundError, OutcomeUnknownError
from holdfast.interfaces.http.app import RepeatedChanges
from tests.interfaces.http.kit import DOCUMENT, ServedStore, checked

CHANGES = (
    ("POST", "/threads/chat/forks", {"branch": "edited", "at": "c6", "changes": {"plan.goal": "work"}}),
    ("POST", "/threads/chat/merges", {"theirs": "edited", "strategy": "theirs", "resolve": {"count": "ours"}}),
    ("POST", "/threads/chat/restores", {"at": "c2"}),
    ("POST", "/threads/chat/switches", {"branch": "what-if"}),
    ("PUT", "/threads/chat/tags/v1", {"at": "c7"}),
    ("DELETE", "/threads/chat/tags/v1", None),
    ("PUT", "/threads/chat/labels/liked", {"at": "c7"}),
    ("DELETE", "/threads/chat/labels/liked?at=c7", None),
    ("POST", "/threads/chat/pins", {"at": "c8", "reason": "case 17"}),
    ("DELETE", "/threads/chat/pins?at=c8", None),
    ("DELETE", "/threads/chat/branches/edited?force=true", None),
    ("POST", "/prunes", {"threads": ["chat"], "keep_last": 3}),
    ("PUT", "/alerts/store-down/silence", {"duration": "1h"}),
    ("POST", "/threads/chat/checkpoints", {"state": {"count": 1}, "tag": "saved", "ttl": "30d"}),
    ("POST", "/threads/chat/updates", {"changes": {"plan.goal": "work"}, "metadata": {"n": 1}}),
    ("PUT", "/scopes/agent:writer/keys/mood", {"value": {"is": "good"}, "ttl": "1h"}),
    ("DELETE", "/scopes/agent:writer/keys/mood", None),
    ("POST", "/sessions", {"session": "s-1", "user": "bob"}),
    ("POST", "/sessions/s-1/end", {"reason": "done"}),
    ("POST", "/erasures", {"subject": "nobody"}),
    ("POST", "/changes/state/increment", {"names": ["agent:writer"], "arguments": ["n"]}),
    ("DELETE", "/threads/chat?confirm=chat", None),
)

ELSEWHERE = {
    ("POST", "/api/v1/agents/{id}/resolutions"),
    ("POST", "/api/v1/agents/{id}/signals"),
    ("PUT", "/api/v1/agents/{id}/state"),
    ("POST", "/api/v1/agents/{id}/transitions"),
    ("POST", "/api/v1/agents/{id}/steps/{key}/resolutions"),
    ("PUT", "/api/v1/agents/{id}/timers/{name}"),
    ("DELETE", "/api/v1/agents/{id}/timers/{name}"),
    ("POST", "/api/v1/backups/{name}"),
    ("POST", "/api/v1/backups/{name}/drills"),
    ("POST", "/api/v1/backups/{name}/repairs"),
    ("POST", "/api/v1/hooks/executions/{reference}/replays"),
    ("POST", "/api/v1/hooks/undelivered/{reference}/retries"),
    ("POST", "/api/v1/hooks/undelivered/retries"),
    ("DELETE", "/api/v1/hooks/undelivered/{reference}"),
    ("POST", "/api/v1/jobs/{name}/runs"),
    ("PUT", "/api/v1/jobs/{name}/pause"),
    ("DELETE", "/api/v1/jobs/{name}/pause"),
    ("POST", "/api/v1/encryption-keys/rotations"),
    ("POST", "/api/v1/threads/{thread}/replays"),
    ("POST", "/api/v1/threads/{thread}/answers"),
}
"""Operations that `test_agent_steps.py`, `test_answers.py`, `test_recordings.py`, `test_records.py` and
`test_remote.py` try."""


def test_every_change_is_made_and_fits_the_document(writable: ServedStore) -> None:
    thread = writable.store.thread("chat")
    for method, path, body in CHANGES:
        answer = writable.change(method, path, body)
        assert answer.status in (200, 201), (method, path, answer.text)
        if path.endswith("/forks"):
            assert thread.get("edited").state["plan"] == {"goal": "work", "done": 2}
        if path.endswith("/restores"):
            assert thread.get().state == thread.get("c2").state
        if path.endswith("/checkpoints"):
            assert thread.expires() == thread.get("saved").time + timedelta(days=30)
        if path == "/prunes":
            assert answer.json["dry_run"]
            assert answer.json["dropped"] > 0
            assert thread.get("c0").id
    with pytest.raises(NotFoundError):
        thread.get()
    changing = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "get" and not path.startswith(("/api/v1/reads/", "/api/v1/changes/"))  # which a remote store calls
    }
    assert changing - checked <= ELSEWHERE
    assert changing >= ELSEWHERE


def test_a_store_that_is_only_read_refuses_every_change(served: ServedStore) -> None:
    before = served.store.changes().token
    for method, path, body in CHANGES:
        answer = served.change(method, path, body)
        assert (answer.status, answer.json["code"]) == (403, "denied"), path
        assert "--write" in answer.json["hint"]
    assert not served.store.changes(before).threads


def test_a_stale_change_is_refused_with_what_changed(writable: ServedStore) -> None:
    writable.store.thread("chat").update({"count": 77})
    answer = writable.change("PUT", "/threads/chat/tags/v1", {}, headers={"If-Match": '"c9"'})
    assert (answer.status, answer.json["code"]) == (412, "version-mismatch")
    assert answer.json["diff"]["changes"][0]["path"] == "count"
    current = answer.json["current"]
    assert writable.change("PUT", "/threads/chat/tags/v1", {}, headers={"If-Match": f'"{current}"'}).status == 200
    assert writable.store.thread("chat").tags()["v1"] == current


def test_one_of_several_preconditions_is_enough(writable: ServedStore) -> None:
    several, stale = {"If-Match": '"c2", W/"c9"'}, {"If-Match": '"c2","c3"'}
    for method, path, body in (
        ("PUT", "/threads/chat/tags/v1", {}),
        ("POST", "/threads/chat/updates", {"changes": {"count": 1}}),
    ):
        assert writable.change(method, path, body, headers=stale).status == 412
        assert writable.change(method, path, body, headers=several).status in (200, 201)
    key = "/scopes/agent:writer/keys/draft"
    assert writable.change("PUT", key, {"value": 1}, headers={"If-Match": '"8", "9"'}).status in (409, 412)
    assert writable.change("PUT", key, {"value": 1}, headers={"If-Match": '"8", "1"'}).status == 200
    call = {"names": ["chat"], "arguments": ["v2"], "options": {}}
    assert writable.change("POST", "/changes/thread/tag", call, headers={"If-Match": '"c2"'}).status == 400
    assert "v2" not in writable.store.thread("chat").tags()


def test_a_change_that_is_sent_again_is_made_once(writable: ServedStore) -> None:
    thread, key = writable.store.thread("chat"), {"Idempotency-Key": "abc"}
    steps = thread.info().steps
    first = writable.change("POST", "/threads/chat/restores", {"at": "c2"}, headers=key)
    again = writable.change("POST", "/threads/chat/restores", {"at": "c2"}, headers=key)
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    assert thread.info().steps == steps + 1
    other = writable.change("POST", "/threads/chat/restores", {"at": "c3"}, headers=key)
    assert (other.status, other.json["code"]) == (409, "conflict")
    # Without a key, it is another change.
    writable.change("POST", "/threads/chat/restores", {"at": "c2"})
    assert thread.info().steps == steps + 2


def test_a_key_is_of_one_method_and_one_precondition(writable: ServedStore) -> None:
    key = {"Idempotency-Key": "k"}
    assert writable.change("PUT", "/threads/chat/tags/v1", {}, headers=key).status == 200
    for method, body, more in (("DELETE", None, {}), ("PUT", {}, {"If-Match": '"c9"'})):
        answer = writable.change(method, "/threads/chat/tags/v1", body, headers=key | more)
        assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert "v1" in writable.store.thread("chat").tags()
    longer = writable.change("PUT", "/threads/chat/tags/v2", {}, headers={"Idempotency-Key": "k" * 201})
    assert (longer.status, longer.json["code"]) == (400, "invalid")


def test_results_of_changes_are_kept_while_there_is_room() -> None:
    changes, made = RepeatedChanges(), list[int]()

    def change(number: int, size: int) -> bytes:
        def run() -> bytes:
            made.append(number)
            return bytes(size)

        return changes.once(("", str(number)), b"digest", run)

    for number in range(10):
        change(number, 12 << 20)
        assert changes.size <= 64 << 20
    assert change(9, 12 << 20) == bytes(12 << 20)
    with pytest.raises(OutcomeUnknownError, match="was made"):
        change(0, 12 << 20)
    change(10, 17 << 20)
    with pytest.raises(OutcomeUnknownError, match="was made"):
        change(10, 17 << 20)
    assert made == list(range(11))
    for number in range(11, 10_020):
        change(number, 1)
    change(0, 1)  # it is forgotten
    assert made[-1] == 0


def test_of_changes_sent_at_once_with_a_key_one_is_made(writable: ServedStore) -> None:
    thread, statuses = writable.store.thread("chat"), []
    steps = thread.info().steps

    def send() -> None:
        answer = writable.change("POST", "/threads/chat/restores", {"at": "c2"}, headers={"Idempotency-Key": "x"})
        statuses.append(answer.status)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert 201 in statuses
    assert set(statuses) <= {201, 409}  # 409: it was under way
    assert thread.info().steps == steps + 1


WRONG: tuple[tuple[str, Any, int, str], ...] = (
    ("/threads/chat/forks", {"branch": "what-if"}, 409, "conflict"),
    ("/threads/chat/forks", {"branch": "x", "at": "none"}, 404, "not-found"),
    ("/threads/chat/forks", {}, 400, "invalid"),
    ("/threads/chat/forks", {"branch": "x", "more": 1}, 400, "invalid"),
    ("/threads/chat/forks", b"{", 400, "invalid"),
    ("/threads/chat/forks", b'{"branch": "\xff"}', 400, "invalid"),
    ("/threads/chat/merges", {"theirs": "what-if"}, 409, "conflict"),
    ("/prunes", {"threads": ["chat"]}, 400, "invalid"),
    ("/threads/chat/checkpoints", b'{"state": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "invalid"),
    ("/changes/jobs/add", {"arguments": ["name", ["kind"]]}, 400, "invalid"),
    ("/changes/jobs/add", {"arguments": ["name", "verify"]}, 200, ""),
)


def test_wrong_changes_are_refused(writable: ServedStore) -> None:
    for path, body, status, code in WRONG:
        answer = writable.change("POST", path, body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.json.get("code", "")) == (status, code), answer.text


def test_a_deletion_needs_the_name_again(writable: ServedStore) -> None:
    assert writable.change("DELETE", "/threads/chat?confirm=chet").status == 400
    assert writable.store.thread("chat").get().id
