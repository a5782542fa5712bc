"""Values that hooks recorded: those about one person are gone, from the store and from what is restored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import holdfast
from holdfast import PersistentAgent
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
    store.erasure.assign("u-1", "agent:writer", kind="scope")
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
    store.put("own", {"text": "planted-theirs-thread"}, metadata=about)
    store.put("other", {"text": "planted-ours-thread"}, metadata={key: "u-2"})
    messages = []
    for user, word in (("u-2", "planted-ours-first"), ("u-1", "planted-theirs-message"), ("u-2", "planted-ours-last")):
        messages.append(word)
        store.put("group", {"messages": [*messages]}, metadata={key: user})
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
        assert kept >= {"planted-ours-first", "planted-ours-thread", "planted-ours-topic", "planted-ours-artifact"}
        assert store.audit.verify().findings == []
        assert store.maintenance.verify(level="decode").findings == []


def test_other_metadata_keys_hold_for_everything_and_for_later(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _hooked(store)
        _save(store, "user_id")
        store.export(tmp_path / "old.jsonl", kinds="all")
        store.copy_to(tmp_path / "copy.db")
        ours = {word for word in _words(store) if "ours" in word}
        store.erasure.erase("u-1", metadata_keys=["user_id"])
        assert _words(store) == ours
        store.import_(tmp_path / "old.jsonl", threads=["group"], as_thread="group again")
        assert store.get("group again").state == {"messages": ["planted-ours-first", "planted-ours-last"]}
        assert _words(store) == ours
        assert store.audit.verify().findings == []
        store.copy_to(tmp_path / "copy.db", threads=["other"])
        with holdfast.open(tmp_path / "copy.db") as copy:
            assert _words(copy) > ours  # the control
        store.copy_to(tmp_path / "copy.db")
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
