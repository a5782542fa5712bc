"""`holdfast grant`: rights given, looked at and taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]

RULES = [
    {"effect": "deny", "right": "read,write", "scope": "**", "keys": "secret/**"},
    {"effect": "allow", "right": "read", "scope": "agent:*", "keys": "**"},
]


@pytest.fixture
def shared(hf: Hf, url: str) -> Hf:
    """A store in which agent a has a plan and a secret."""
    with holdfast.open(url) as store:
        store.state(agent="a").batch({"plan": 1, "secret/key": 2})
    return hf


def may(hf: Hf, who: str, right: str, scope: str, *key: str) -> bool:
    """Whether somebody may do something; by what is said and by the exit code."""
    done = hf("grant", "check", who, right, scope, *key)
    assert (done.out, done.code) in (("yes\n", 0), ("no\n", 1))
    return done.code == 0


def test_a_grant_is_given_used_and_revoked(shared: Hf) -> None:
    assert shared("grant").err == "There are no grants.\n"
    assert shared("state", "get", "agent:a", "plan", "--as", "agent:b").code == 1
    given = shared("grant", "agent:b", "read", "agent:a")
    assert (given.code, given.err) == (0, "agent:b may read agent:a.\n")
    id = given.out.strip()
    assert shared("state", "get", "agent:a", "plan", "--as", "agent:b").out == "1\n"
    assert shared("state", "set", "agent:a", "plan", "2", "--as", "agent:b").code == 1
    listed = shared("grant", "list").lines
    assert listed[0].split() == ["ID", "TO", "RIGHT", "SCOPE", "KEYS", "UNTIL", "BY"]
    assert listed[1].split() == [id, "agent:b", "read", "agent:a"]
    assert shared("grant", "revoke", id).err == f"Revoked the grant {id} to agent:b.\n"
    revoked = shared("state", "get", "agent:a", "plan", "--as", "agent:b", "--json")
    assert (revoked.code, revoked.error["code"]) == (1, "grant-revoked")
    assert shared("grant", "list").out == ""
    assert "revoked" in shared("grant", "list", "--dead").out


def test_the_long_form_with_all_it_takes(shared: Hf) -> None:
    (given,) = shared(
        *(
            "grant",
            "give",
            "group:editors",
            "read,write",
            "agent:a",
            "--keys",
            "draft/*",
            "--below",
            "--until",
            "2h",
            "--json",
        )
    ).records
    assert (given["to"], given["right"], given["keys"], given["below"]) == (
        "group:editors",
        "read,write",
        "draft/*",
        "all",
    )
    assert given["until"].endswith("Z")
    told = shared(
        "grant", "group:editors", "read,write", "agent:a", "--keys", "x/*", "--below", "--until", "2999-01-01"
    )
    assert told.err.startswith("group:editors may read and write agent:a and all below it, keys x/*, until 2999-01-01")
    assert [each["keys"] for each in shared("grant", "list", "--to", "group:editors", "--json").records] == [
        "draft/*",
        "x/*",
    ]
    assert "agent:a/**" in shared("grant", "list", "--scope", "agent:a").out
    assert "There are no such grants" in shared("grant", "list", "--scope", "agent:z").err


def test_groups(shared: Hf) -> None:
    assert "There are no groups" in shared("grant", "groups").err
    assert shared("grant", "join", "editors", "agent:b", "user:alice").err == "agent:b, user:alice joined editors.\n"
    shared("grant", "group:editors", "write", "agent:a")
    assert may(shared, "agent:b", "write", "agent:a", "plan")
    assert shared("grant", "groups").lines[1].split(maxsplit=1) == ["editors", "agent:b, user:alice"]
    assert shared("grant", "leave", "editors", "agent:b", "--json").records == [
        {"group": "editors", "left": ["agent:b"]}
    ]
    assert not may(shared, "agent:b", "write", "agent:a", "plan")
    assert shared("grant", "groups", "--json").records == [{"group": "editors", "members": ["user:alice"]}]
    assert shared("grant", "leave", "editors", "agent:b").code == 3


def test_roles(shared: Hf, tmp_path: Path) -> None:
    assert "There are no roles" in shared("grant", "roles").err
    defined = shared("grant", "define", "auditor", "-", typed=json.dumps(RULES))
    assert defined.err == "The role auditor has 2 rules.\n"
    assert shared("grant", "assign", "auditor", "agent:c").err == "agent:c has the role auditor.\n"
    assert may(shared, "agent:c", "read", "agent:a", "plan")
    assert not may(shared, "agent:c", "read", "agent:a", "secret/key")
    assert shared("grant", "roles").lines == [
        "auditor: agent:c",
        "    deny read,write **, keys secret/**",
        "    allow read agent:*",
    ]
    assert shared("grant", "roles", "--json").records == [{"role": "auditor", "rules": RULES, "holders": ["agent:c"]}]
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(RULES[1:]))
    assert shared("grant", "define", "auditor", rules, "--json").records[0]["rules"] == RULES[1:]
    assert may(shared, "agent:c", "read", "agent:a", "secret/key")
    assert shared("grant", "unassign", "auditor", "agent:c", "--json").records[0]["assigned"] is False
    assert not may(shared, "agent:c", "read", "agent:a", "plan")
    assert shared("grant", "unassign", "auditor", "agent:c").code == 3
    assert shared("grant", "drop", "auditor").code == 2
    assert shared("grant", "drop", "auditor", "--dry-run").err == "Would delete the role auditor.\n"
    assert shared("grant", "drop", "auditor", "--yes").err == "Deleted the role auditor.\n"
    assert shared("grant", "drop", "auditor", "--yes").code == 3
    assert shared("grant", "assign", "auditor", "agent:c").code == 3


def test_children(shared: Hf) -> None:
    shared("state", "set", "user:alice/agent:w", "x", "1")
    assert shared("grant", "parents").out == ""
    assert shared("state", "get", "user:alice/agent:w", "x", "--as", "user:alice").code == 1
    assert shared("grant", "allow-children", "user:alice").err == "user:alice may read the scopes of its children.\n"
    assert shared("state", "get", "user:alice/agent:w", "x", "--as", "user:alice").out == "1\n"
    assert shared("grant", "parents").lines == ["user:alice"]
    assert shared("grant", "parents", "--json").records == [{"who": "user:alice"}]
    assert shared("grant", "forbid-children", "user:alice").code == 0
    assert shared("state", "get", "user:alice/agent:w", "x", "--as", "user:alice").code == 1
    assert shared("grant", "forbid-children", "user:alice").code == 3


def test_somebody_is_cut_off(shared: Hf, url: str) -> None:
    shared("grant", "agent:b", "read,write", "agent:a")
    shared("grant", "join", "editors", "agent:b")
    shared("grant", "define", "auditor", "-", typed=json.dumps(RULES))
    shared("grant", "assign", "auditor", "agent:b")
    shared("grant", "allow-children", "agent:b")
    (planned,) = shared("grant", "cut-off", "agent:b", "--dry-run", "--json").records
    assert shared("grant", "cut-off", "agent:b").code == 2
    assert may(shared, "agent:b", "write", "agent:a", "plan")
    with kit.in_terminal("grant", "cut-off", "agent:b", "--store", url) as terminal:
        terminal.expect("Revoke all rights of agent:b? [y/N]:")
        terminal.send("y\r")
        assert terminal.wait() == 0
    assert f"Revoked {planned['rights']} rights of agent:b." in terminal.plain
    assert planned["rights"] == 4
    assert not may(shared, "agent:b", "read", "agent:a", "plan")


def test_an_identity_grants_its_own_and_nothing_else(shared: Hf) -> None:
    id = shared("grant", "agent:b", "read", "agent:a", "--as", "agent:a").out.strip()
    assert shared("state", "get", "agent:a", "plan", "--as", "agent:b").out == "1\n"
    forwarded = shared("grant", "agent:c", "read", "agent:a", "--as", "agent:b")
    assert (forwarded.code, "not its own" in forwarded.err) == (1, True)
    assert shared("grant", "revoke", id, "--as", "agent:b").code == 3
    (mine,) = shared("grant", "list", "--as", "agent:a", "--json").records
    assert (mine["id"], mine["by"]) == (id, "agent:a")
    assert [each["id"] for each in shared("grant", "list", "--as", "agent:b", "--json").records] == [id]
    assert shared("grant", "list", "--as", "agent:b", "--to", "agent:z").out == ""
    assert shared("grant", "revoke", id, "--as", "agent:a").code == 0
    assert shared("state", "get", "agent:a", "plan", "--as", "agent:b").code == 1


def test_an_expired_grant_is_shown_as_such(shared: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        granted = store.access.grant("agent:b", "read", "agent:a", until=0.1)
        while store.access.may("agent:b", "read", "agent:a"):
            pass
    assert shared("grant", "list").out == ""
    shown = shared("grant", "list", "--dead").lines[1]
    assert shown.startswith(granted.id)
    assert "expired" in shown


WRONG: list[tuple[list[str], int, str]] = [
    (["agentb", "read", "agent:a"], 2, "'agentb' is neither a command nor an identity or group"),
    (["agent:b", "raed", "agent:a"], 2, "one of read, write, delete"),
    (["agent:b", "read", "a"], 2, "Such as agent:researcher"),
    (["agent:b", "read", "agent:a", "--until", "2020-01-01"], 2, "in the past"),
    (["agent:b", "read", "agent:a", "--until", "someday"], 2, "is not a time"),
    (["agent:b", "read", "agent:a", "--until", "2020-01-01"], 2, "in the past"),
    (["agent:b", "read", "agent:a", "--keys", "*" * 17], 2, "at most 16 stars"),
    (["agent:b"], 2, "Missing argument"),
    (["--nope"], 2, "No such option"),
    (["revoke", "nope"], 3, "holdfast grant list"),
    (["join", "editors"], 2, "Missing argument"),
    (["join", "editors", "group:others"], 2, "group"),
    (["check", "group:editors", "read", "agent:a"], 2, "group"),
    (["define", "r", "nope.json"], 3, "there is no such file"),
    (["define", "r", "."], 2, "the file cannot be read"),
    (["define", "r", "-"], 2, "the file is not JSON"),
]


def test_wrong_use_is_told(shared: Hf, subtests: pytest.Subtests) -> None:
    for words, code, said in WRONG:
        with subtests.test(said=said):
            done = shared("grant", *words)
            assert (done.code, done.out) == (code, "")
            assert said in done.err
            assert shared("grant", "list", "--json").out == ""


def test_a_policy_that_is_none(shared: Hf) -> None:
    done = shared("grant", "define", "r", "-", typed='[{"effect": "maybe", "right": "read"}]')
    assert (done.code, "'allow' or 'deny'" in done.err) == (2, True)
    assert shared("grant", "define", "r", "-", typed='{"effect": "allow"}').code == 2


def test_threads_are_granted_and_audited(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.as_identity(user="alice").thread("chat-1").put({"n": 1})
        told = hf("grant", "user:bob", "read,delete", "thread:chat-*")
        assert told.err.startswith("user:bob may read and delete thread:chat-*")
        assert "thread:chat-*" in hf("grant", "list", "--to", "user:bob").out
        assert store.as_identity(user="bob").thread("chat-1").get().state == {"n": 1}
    (record,) = hf("audit", "--thread", "chat-1", "--kind", "thread", "--json").records
    assert (record["actor"], record["action"], record["scope"]) == ("user:alice", "save", "thread:chat-1")
