"""Values that hooks recorded: those about one person are gone, from the store and from what is restored."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import PersistentAgent
from holdfast.errors import DeniedError
from holdfast.store.store import Store
from tests.security.encryption.planted import _expanded
from tests.security.erasure.people import opened_rows

_WORD = re.compile(rb"planted-(?:theirs|ours)-[a-z]+")


class _Notes(PersistentAgent, name="hook-notes"):
    """An agent with a field."""

    text: str = ""


def _words(store: Store) -> set[str]:
    return {word.decode() for each in opened_rows(store) for part in _expanded(each) for word in _WORD.findall(part)}


def _hooked(store: Store) -> None:
    store.hooks.after("*", record=True, name="after")(lambda _: None)
    store.hooks.before("*", record=True, inline=True, name="before")(lambda _: None)
    store.hooks.before("*", inline=True, name="note")(lambda call: call.note(value=repr(call.value)))


def _save(store: Store, key: str) -> None:
    """Save data of one person, who is named in metadata or by an assignment alone, and of others."""
    about: dict[str, Any] = {key: "u-1"}
    store.state(agent="writer")["note"] = "planted-theirs-scope"
    store.erasure.set_subject("u-1", "agent:writer", kind="scope")
    agent = _Notes().attach(store, "n1")
    agent.metadata[key] = "u-1"
    agent.text = "planted-theirs-agent"
    agent.save()
    for name, end in (("s1", False), ("s2", True)):
        session = store.sessions.start(name, metadata={**about, "about": "planted-theirs-session"})
        session.state["seen"] = "planted-theirs-sessionstate"
        if end:
            session.end()
    store.artifacts.register(b"planted-theirs-content", id="a1", metadata={**about, "x": "planted-theirs-artifact"})
    store.artifacts.register(b"planted-theirs-other", id="a2", metadata={**about, "x": "planted-theirs-deleted"})
    store.artifacts.delete("a2")
    store.artifacts.register(b"planted-ours-content", id="a3", metadata={"x": "planted-ours-artifact"})
    store.thread("own").put({"text": "planted-theirs-thread"}, metadata=about)
    store.thread("other").put({"text": "planted-ours-thread"}, metadata={key: "u-2"})
    messages = []
    for user, word in (("u-2", "planted-ours-first"), ("u-1", "planted-theirs-message"), ("u-2", "planted-ours-last")):
        messages.append(word)
        store.thread("group").put({"messages": [*messages]}, metadata={key: user})
    for user, word in (("u-1", "planted-theirs-topic"), ("u-2", "planted-ours-topic")):
        store.access.grant(f"user:{user}", ["read", "write"], custom="topic/news")
        store.as_identity(user=user).sharing.topic("news").publish(word)
        page = store.as_identity(user=user).state(custom="topic/news")
        page["page"] = f"{page.get('page', '')} {word.replace('topic', 'page')}"
    assert store.hooks.drain(30)


def test_hook_values_of_one_person_are_gone(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _hooked(store)
        _save(store, "subject")
        recorded = {
            word.decode() for each in store.hooks.history().all() for word in _WORD.findall(repr(each).encode())
        }
        assert len([word for word in recorded if "theirs" in word]) == 10  # the control
        theirs = {word for word in _words(store) if "theirs" in word}
        ours = _words(store) - theirs
        store.erasure.erase("u-1")
        assert _words(store) == ours
        told = repr([*store.audit.query().all(), *store.timeline.query().all()])
        assert "theirs" not in told
        assert "planted-ours-artifact" in told
        kept = {word.decode() for each in store.hooks.history().all() for word in _WORD.findall(repr(each).encode())}
        assert kept >= {"planted-ours-first", "planted-ours-thread", "planted-ours-artifact"}
        assert store.audit.verify().findings == []
        assert store.maintenance.verify(level="decode").findings == []


def test_other_metadata_keys_hold_for_everything_and_for_later(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _hooked(store)
        _save(store, "user_id")
        store.maintenance.export(tmp_path / "old.jsonl", kinds="all")
        store.maintenance.copy_to(tmp_path / "copy.db")
        ours = {word for word in _words(store) if "ours" in word}
        store.erasure.erase("u-1", metadata_keys=["user_id"])
        assert _words(store) == ours
        store.maintenance.import_(tmp_path / "old.jsonl", threads=["group"], as_thread="group again")
        assert store.thread("group again").get().state == {"messages": ["planted-ours-first", "planted-ours-last"]}
        assert _words(store) == ours
        assert store.audit.verify().findings == []
        store.maintenance.copy_to(tmp_path / "copy.db", threads=["other"])
        with holdfast.open(tmp_path / "copy.db") as copy:
            assert _words(copy) > ours  # the control
        store.maintenance.copy_to(tmp_path / "copy.db")
        with holdfast.open(tmp_path / "copy.db") as copy:
            assert _words(copy) == ours


def test_a_restored_backup_has_no_hook_values_of_an_erased_person(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _hooked(store)
        _save(store, "subject")
        ours = {word for word in _words(store) if "ours" in word}
        backups = store.backups(tmp_path / "backups")
        backups.create()
        store.erasure.erase("u-1")
        backups.create()
    with holdfast.open(tmp_path / "restored.db") as store:
        store.backups(tmp_path / "backups").restore()
        assert _words(store) == ours
        assert store.audit.verify().findings == []


_ATTEMPT = "planted-theirs-attempt"


def _share(store: Store) -> None:
    """Save as two users, each after the other, with a hook that notes what was there before."""
    store.hooks.before("*", inline=True, name="note")(lambda call: call.note(old=repr(call.old)))
    for name in ("topic/news", "notes", "deleted"):
        for user in ("u-1", "u-2"):
            store.access.grant(f"user:{user}", ["read", "write"], custom=name)
    for user, word in (("u-2", "planted-ours-first"), ("u-1", "planted-theirs-word"), ("u-2", "planted-ours-last")):
        view = store.as_identity(user=user)
        view.sharing.topic("news").publish(word)
        view.state(custom="notes")["text"] = word
        view.state(custom="deleted")["text"] = word
    store.state(custom="deleted").clear()
    with suppress(DeniedError):
        store.as_identity(user="u-1").state(user="u-2").get(_ATTEMPT)
    assert store.hooks.drain(30)


def test_notes_of_others_have_nothing_that_was_there_before(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _share(store)
        noted = {each.scope for each in store.audit.query(actor="user:u-2").all() if "theirs-word" in repr(each.detail)}
        assert noted == {"topic:news/link:000000000000", "custom:notes", "custom:deleted"}  # the control
        assert _ATTEMPT in {each.key for each in store.audit.query(actor="user:u-1").all()}
        store.erasure.erase("u-1")
        assert {word for word in _words(store) if "theirs" in word} == set()
        assert store.state(custom="notes")["text"] == "planted-ours-last"
        left = [each.value for each in store.sharing.topic("news").read()]
        assert left == ["planted-ours-first", "planted-ours-last"]
        store.erasure.export("u-2", tmp_path / "u-2.jsonl")
        exported = (tmp_path / "u-2.jsonl").read_text()
        assert "planted-ours-first" in exported
        assert "theirs" not in exported
        assert store.audit.verify().findings == []


class _Steps(PersistentAgent, name="hook-steps"):
    """An agent with durable steps."""


def test_keys_of_what_was_theirs_are_gone_from_the_audit(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.hooks.after("*", record=True, name="after")(lambda _: None)
        for user, whose in (("u-1", "theirs"), ("u-2", "ours")):
            store.state(user=user)[f"planted-{whose}-key"] = 1
            agent = _Steps().attach(store, f"steps {user}")
            agent.metadata["subject"] = user
            agent.start()
            agent.once(f"planted-{whose}-step", lambda: 1)
            store.agents.signal(f"steps {user}", f"planted-{whose}-signal", 1, id=f"planted-{whose}-id")
            agent.timers.set(f"planted-{whose}-timer", "7d")
            agent.stop()
        assert store.hooks.drain(30)
        store.backups(tmp_path / "backups").create()
        words = _words(store)
        assert {word for word in words if "theirs" in word} == {
            f"planted-theirs-{each}" for each in ("key", "step", "signal", "id", "timer")
        }
        store.erasure.erase("u-1")
        assert _words(store) == {word for word in words if "ours" in word}
        changed = {each.scope for each in store.audit.query(kind="change").all() if not each.key}
        assert changed >= {"user:u-1", "agent:steps u-1/steps:main"}  # who did what to it, and when, is still known
        assert store.audit.verify().findings == []
    with holdfast.open(tmp_path / "a.db") as store:
        store.backups(tmp_path / "backups").restore(in_place=True)
        assert _words(store) == {word for word in words if "ours" in word}
        assert store.audit.verify().findings == []


@pytest.mark.parametrize("ended", [True, False])
def test_the_reason_of_a_freeze_is_gone_and_the_freeze_stays(ended: bool, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.state(user="u-1")["a"] = 1
        for user, whose in (("u-1", "theirs"), ("u-2", "ours")):
            store.access.freeze(f"user:{user}/agent:x", reason=f"planted-{whose}-reason")
        store.access.grant("user:u-2", "read", thread="chat")
        if ended:
            store.access.unfreeze("user:u-1/agent:x")
        store.backups(tmp_path / "backups").create()
        assert _words(store) == {"planted-theirs-reason", "planted-ours-reason"}  # the control
        certificate = store.erasure.erase("u-1").certificate
        assert certificate is not None
        named = "rights that name the person: 1 grants, groups, roles and freezes"
        assert (named in certificate.retained) is not ended
        assert _words(store) == {"planted-ours-reason"}
        frozen = {} if ended else {"user:u-1/agent:x": ""}
        assert store.access.frozen() == {**frozen, "user:u-2/agent:x": "planted-ours-reason"}
        if not ended:
            with pytest.raises(DeniedError):
                store.as_identity(user="u-1", agent="x").state(user="u-1").get("a")
        assert [each.to for each in store.access.grants()] == ["user:u-2"]
        assert store.audit.verify().findings == []
        assert store.maintenance.verify(level="decode").findings == []
        store.backups(tmp_path / "backups").create()
    with holdfast.open(tmp_path / "restored.db") as store:
        store.backups(tmp_path / "backups").restore()
        assert _words(store) == {"planted-ours-reason"}
