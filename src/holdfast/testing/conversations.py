"""Tests of an adapter that stores the conversations of a framework in threads: `ConversationSuite`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError
from holdfast.store.opener import open as open_store


class ConversationSuite:
    """Tests of an adapter for conversations. Derive a class for pytest, and say how the adapter is used::

        class TestMySession(ConversationSuite):
            def add(self, store, name, texts): ...      # adds messages to the conversation of this name
            def read(self, store, name): ...            # returns the texts of all messages
            def clear(self, store, name): ...           # removes all messages
            framework = "my-framework"                  # how checkpoints of the adapter are marked, if they are

    Each gets an open `Store`, or the view of an identity.
    """

    framework: str = ""
    """What the metadata of checkpoints say under `framework`, so that lists and pages show where a thread is from."""

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        """Add messages with these texts to a conversation."""
        raise NotImplementedError

    def read(self, store: Any, name: str) -> list[str]:
        """Return the texts of the messages of a conversation; none if there is no such conversation."""
        raise NotImplementedError

    def clear(self, store: Any, name: str) -> None:
        """Remove all messages of a conversation."""
        raise NotImplementedError

    def test_messages_are_read_in_order_by_another_process(self, tmp_path: Path) -> None:
        """Messages are stored when they were added, each conversation for itself."""
        with open_store(tmp_path / "a.db") as store:
            assert self.read(store, "chat") == []
            self.add(store, "chat", ["one", "two"])
            self.add(store, "chat", ["three ü 日本"])
            self.add(store, "other", ["else"])
        with open_store(tmp_path / "a.db") as store:
            assert self.read(store, "chat") == ["one", "two", "three ü 日本"]
            assert self.read(store, "other") == ["else"]
            assert {info.thread for info in store.threads()} == {"chat", "other"}

    def test_what_was_cleared_is_in_the_history(self, tmp_path: Path) -> None:
        """Clearing removes messages from the conversation, and not from its history."""
        with open_store(tmp_path / "a.db") as store:
            self.clear(store, "chat")
            self.add(store, "chat", ["one"])
            before = store.thread("chat").get().id
            self.clear(store, "chat")
            assert self.read(store, "chat") == []
            store.thread("chat").restore(before)
            assert self.read(store, "chat") == ["one"]
            self.add(store, "chat", ["two"])
            assert self.read(store, "chat") == ["one", "two"]

    def test_no_message_is_lost_when_several_are_added_at_a_time(self, tmp_path: Path) -> None:
        """Writers do not overwrite each other."""
        with open_store(tmp_path / "a.db") as store:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: self.add(store, "chat", [str(number)]), range(20)))
            assert sorted(map(int, self.read(store, "chat"))) == list(range(20))

    def test_conversations_of_an_identity_are_its_own(self, tmp_path: Path) -> None:
        """Another identity can neither read nor continue a conversation."""
        with open_store(tmp_path / "a.db") as store:
            self.add(store.as_identity(user="alice"), "chat", ["one"])
            assert store.thread("chat").owner() == "user:alice"
            with suppress(DeniedError):
                assert self.read(store.as_identity(user="bob"), "chat") == []
            with pytest.raises(DeniedError):
                self.add(store.as_identity(user="bob"), "chat", ["two"])
            assert self.read(store.as_identity(user="alice"), "chat") == ["one"]
            store.erasure.erase("alice")
            assert self.read(store, "chat") == []

    def test_conversations_are_in_copies_and_survive_pruning(self, tmp_path: Path) -> None:
        """Maintenance knows the threads."""
        with open_store(tmp_path / "a.db") as store, open_store(tmp_path / "b.db") as other:
            for number in range(10):
                self.add(store, "chat", [str(number)])
            store.maintenance.prune(keep_last=1)
            assert self.read(store, "chat") == [str(number) for number in range(10)]
            store.maintenance.copy_to(other)
            assert self.read(other, "chat") == [str(number) for number in range(10)]
            assert other.maintenance.verify().ok

    def test_conversations_are_seen_like_other_threads(self, tmp_path: Path) -> None:
        """Lists, search, diff, encryption, backups and restores know the threads, and where they are from."""
        encryption = Encryption(LocalKeys(b"k" * 32))
        with open_store(tmp_path / "a.db", encryption=encryption) as store:
            self.add(store, "chat", ["kelp"])
            self.add(store, "chat", ["holdfast"])
            (info,) = store.threads(preview=True)
            assert info.framework == self.framework
            assert "holdfast" in info.message
            assert [hit.thread for hit in store.search("holdfast")] == [info.thread]
            assert "holdfast" in store.thread(info.thread).diff("HEAD~1", "HEAD").text()
            store.backups(tmp_path / "backups").create()
            self.add(store, "chat", ["later"])
        with open_store(tmp_path / "b.db", encryption=encryption) as other:
            other.backups(tmp_path / "backups").restore()
            assert self.read(other, "chat") == ["kelp", "holdfast"]
            self.clear(other, "chat")
            assert self.read(other, "chat") == []
