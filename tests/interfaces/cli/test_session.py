"""`holdfast session`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def test_a_session_from_start_to_end(hf: Hf) -> None:
    assert hf("session").err == "There are no sessions.\n"
    started = hf("session", "start", "chat-1", "--user", "alice", "--meta", "channel=web", "--on-end", "archive")
    assert (started.code, started.out) == (0, "chat-1\n")
    assert "user:alice/session:chat-1" in started.err
    hf("state", "set", "user:alice/session:chat-1", "seen", "3")
    shown = hf("session", "show", "chat-1")
    assert "Status:   active" in shown.lines
    assert shown.lines[-1] == "seen: 3"
    ended = hf("session", "end", "chat-1", "-m", "user left")
    assert ended.err == "Ended chat-1; its state is archived.\n"
    assert hf("session", "end", "chat-1").code == 0
    shown = hf("session", "show", "chat-1", "--full")
    assert "Status:   archived" in shown.lines
    assert "Reason:   user left" in shown.lines
    assert shown.lines[-1] == "seen: 3"
    refused = hf("state", "set", "user:alice/session:chat-1", "seen", "4", "--json")
    assert (refused.code, refused.error["code"]) == (1, "session-ended")
    assert hf("session", "resume", "chat-1").err == "chat-1 is active.\n"
    assert hf("state", "get", "user:alice/session:chat-1", "seen").out == "3\n"
    assert hf("session", "touch", "chat-1").err == "Renewed chat-1.\n"


def test_the_same_as_json(hf: Hf) -> None:
    (made,) = hf("session", "start", "--agent", "a", "--meta", "n=1", "--idle", "30m", "--ttl", "8h", "--json").records
    assert (made["status"], made["metadata"], made["user"], made["on_end"]) == ("active", {"n": 1}, None, "delete")
    id = made["id"]
    assert made["scope"] == f"session:{id}/agent:a"
    hf("state", "set", made["scope"], "x", "[1]")
    (shown,) = hf("session", "show", id, "--json").records
    assert shown == {**made, "state": {"x": [1]}}
    (updated,) = hf("session", "update", id, "m=two", "--json").records
    assert updated["metadata"] == {"n": 1, "m": "two"}
    assert hf("session", "touch", id, "--json").records == [{"id": id, "touched": True}]
    (ended,) = hf("session", "end", id, "-m", "done", "--json").records
    assert (ended["status"], ended["reason"]) == ("ended", "done")
    gone = hf("session", "resume", id, "--json").error
    assert (gone["code"], "--on-end archive" in gone["hint"]) == ("not-found", True)
    (dry,) = hf("session", "delete", id, "--dry-run", "--json").records
    assert (dry["deleted"], dry["dry_run"]) == (False, True)
    assert hf("session", "delete", id, "--yes", "--json").records[0]["deleted"]
    assert hf("session", "show", id).code == 3


def test_sessions_are_listed(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        for number in range(5):
            store.sessions.start(f"s{number}", user="alice" if number % 2 else "bob", metadata={"n": number})
        store.sessions.end("s4")
    listed = hf("session").lines
    assert listed[0].split() == ["SESSION", "STATUS", "USER", "METADATA", "STARTED"]
    assert [line.split()[:2] for line in listed[1:]] == [*([f"s{n}", "active"] for n in range(4)), ["s4", "ended"]]

    def ids(*words: str) -> list[str]:
        return [each["id"] for each in hf("session", "list", *words, "--json").records]

    assert ids("--user", "alice") == ["s1", "s3"]
    assert ids("--status", "ended") == ["s4"]
    assert ids("--meta", "n=2") == ["s2"]
    assert ids("--after", "s1", "-n", "2") == ["s2", "s3"]
    assert "There are no such sessions" in hf("session", "list", "--user", "nobody").err


def test_more_sessions_than_a_page_has(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        for number in range(205):
            store.sessions.start(f"{number:04}")
    assert len(hf("session", "list").lines) == 206
    assert len(hf("session", "list", "--json", "-n", "203").records) == 203


def test_expired_sessions_are_collected(hf: Hf, url: str) -> None:
    from datetime import timedelta

    with holdfast.open(url) as store:
        store.sessions.start("old", ttl=timedelta(microseconds=1))
        store.sessions.start("new")
    planned = hf("session", "collect", "--dry-run")
    assert [line.split()[:2] for line in planned.lines[1:]] == [["old", "expired"]]
    done = hf("session", "collect")
    assert done.err.startswith("Ended 1 session, deleted 0")
    assert hf("session", "show", "old", "--json").records[0]["reason"] == "expired"
    assert hf("session", "show", "new", "--json").records[0]["status"] == "active"
    assert hf("session", "collect", "--json").records[0]["ended"] == 0


def test_deleting_asks(hf: Hf, url: str) -> None:
    hf("session", "start", "s1")
    assert hf("session", "delete", "s1").code == 2
    with kit.in_terminal("session", "delete", "s1", "--store", url) as terminal:
        terminal.expect("Delete the session s1 with all of its state? [y/N]:")
        assert terminal.interrupt() == 130
    assert hf("session", "show", "s1").code == 0
    assert hf("session", "delete", "s1", "--dry-run").err == "Would delete s1 with all of its state.\n"
    assert hf("session", "delete", "s1", "--yes").err == "Deleted s1 with all of its state.\n"
    assert hf("session", "delete", "s1", "--yes").code == 3


def test_an_identity_manages_its_own(hf: Hf) -> None:
    hf("session", "start", "mine", "--user", "alice", "--as", "user:alice")
    hf("session", "start", "other", "--user", "bob")
    assert "By:      user:alice" in hf("session", "show", "mine").lines
    assert [each["id"] for each in hf("session", "list", "--as", "user:alice", "--json").records] == ["mine"]
    for words in (["show"], ["end"], ["resume"], ["touch"], ["update", "a=1"], ["delete", "--yes"]):
        denied = hf("session", words[0], "other", *words[1:], "--as", "user:alice")
        assert (denied.code, "denied" in denied.err) == (1, True), words
    assert hf("session", "start", "x", "--user", "bob", "--as", "user:alice").code == 1
    assert hf("session", "end", "mine", "--as", "user:alice").code == 0
    assert hf("session", "show", "other", "--json").records[0]["status"] == "active"


WRONG: list[tuple[list[str], int, str]] = [
    (["start", "taken"], 4, "resume it"),
    (["start", "a/../b"], 2, "has a segment '..'"),
    (["start", "--idle", "often"], 2, "is not a valid duration"),
    (["start", "--meta", "x"], 2, "--meta takes KEY=VALUE"),
    (["start", "--on-end", "burn"], 2, "'delete', 'archive', 'keep'"),
    (["list", "--status", "asleep"], 2, "'active', 'expired'"),
    (["update", "taken", "x"], 2, "takes KEY=VALUE"),
    (["end", "nope"], 3, "holdfast session list"),
    (["touch", "nope"], 3, "there is no such session"),
    (["end", "taken", "-m", "expired"], 2, "Give another reason"),
    (["nope"], 2, "No such command"),
]


def test_wrong_use_is_told(hf: Hf, subtests: pytest.Subtests) -> None:
    for words, code, said in WRONG:
        with subtests.test(said=said):
            hf("session", "start", "taken")
            done = hf("session", *words)
            assert (done.code, done.out) == (code, "")
            assert said.lower() in done.err.lower()


def test_a_store_is_made_only_when_asked_for() -> None:
    assert kit.run("session", "start", store="new.db").code == 10
    assert kit.run("session", "start", "--create", store="new.db").code == 0
