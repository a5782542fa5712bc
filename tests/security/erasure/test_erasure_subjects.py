"""Whose data something is: as programs write names, under policies, and where several persons write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from tests.security.erasure.people import Notes, opened_rows


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Store]:
    encryption: Encryption | Literal[False] = Encryption(LocalKeys(b"1" * 32)) if request.param else False
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as opened:
        yield opened


def remains(store: holdfast.Store, text: bytes) -> int:
    """How many rows have a text."""
    return sum(text in row for row in opened_rows(store))


@pytest.mark.parametrize(
    ("written", "name"),
    [("Jose\u0301", "Jos\u00e9"), ("Jos\u00e9", "Jose\u0301"), (1842, "1842"), (["u-1"], "u-1")],
    ids=ascii,
)
def test_a_name_is_found_however_it_is_written(written: Any, name: str, store: holdfast.Store) -> None:
    store.thread("t").put({"text": "planted"}, metadata={"subject": written})
    store.thread("other").put({"text": "stays"}, metadata={"subject": "u-2", "user": written})
    store.thread("by user").put({"text": "planted"}, metadata={"user": written})
    certificate = store.erasure.erase(name).certificate
    assert certificate is not None
    assert certificate.is_about(name)
    assert {each.thread for each in store.threads()} == {"other", "by user"}
    assert store.erasure.erase(name, metadata_keys=["subject", "user"]).erased == {"threads": 1}
    assert store.thread("other").get().state == {"text": "stays"}


def test_a_checkpoint_of_several_persons_is_erased_with_each(store: holdfast.Store) -> None:
    store.thread("t").put({"notes": ["of both"]}, metadata={"subject": ["u-1", "u-2"]})
    store.thread("t").put({"notes": ["of both", "mine"]}, metadata={"subject": "u-2"})
    assert store.erasure.erase("u-1").rewritten == {"threads": 1}
    assert store.thread("t").get().state == {"notes": ["mine"]}
    assert remains(store, b"of both") == 0


def test_a_thread_that_others_wrote_to_is_not_erased_with_the_one_that_it_names(store: holdfast.Store) -> None:
    store.thread("team").put({"notes": ["planted"]}, metadata={"subject": "u-1"})
    store.access.grant("user:u-2", ["read", "write"], thread="team")
    other = store.as_identity(user="u-2").thread("team")
    other.put({"notes": ["planted", "of the other"]})
    store.thread("team").put({"notes": ["planted", "of the other", "planted, too"]}, metadata={"subject": "u-1"})
    other.put({"notes": ["planted", "of the other", "planted, too", "more"]})
    assert remains(store, b"planted") > 0
    assert store.erasure.erase("u-1").rewritten == {"threads": 1}
    assert store.thread("team").get().state == {"notes": ["of the other", "more"]}
    assert remains(store, b"planted") == 0
    assert store.maintenance.verify(level="decode").findings == []


def test_the_name_of_a_channel_goes_with_it(store: holdfast.Store) -> None:
    store.thread("group").put({"a": 1}, metadata={"subject": "u-2"})
    store.thread("group").put({"a": 1, "planted diagnosis": "x"}, metadata={"subject": "u-1"})
    store.thread("group").put({"a": 2, "planted diagnosis": "x"}, metadata={"subject": "u-2"})
    store.thread("group").fork("draft", changes={"a": 3})
    assert remains(store, b"planted diagnosis") > 0
    store.erasure.erase("u-1")
    assert remains(store, b"planted diagnosis") == 0
    assert (store.thread("group").get().state, store.thread("group").get(at="draft").state) == ({"a": 2}, {"a": 3})
    assert store.maintenance.verify(level="decode").findings == []


def test_policies_leave_the_name_of_a_subject(tmp_path: Path) -> None:
    subject, address = {"subject": "ada@example.org"}, "bob@example.org"
    with holdfast.open(tmp_path / "a.db", encryption=False) as store:
        store.redaction.protect("tokenise", formats="personal", keys=LocalKeys(b"2" * 32))
        store.thread("t").put({"metadata": {"subject": address}}, metadata={**subject, "from": address})
        store.artifacts.register(b"x", id="a", metadata={**subject, "from": address})
        store.sessions.start("s", metadata={**subject, "from": address})
        agent = store.agents.create(Notes, "n")
        agent.metadata.update({**subject, "from": address})
        agent.save()
        assert b"bob@" not in b"".join(opened_rows(store)), "a policy protects all but the name of the subject"
        report = store.erasure.erase("ada@example.org")
        assert {"threads", "artifacts", "agents", "session records"} <= report.erased.keys()
        assert remains(store, b"ada@") == 0


@pytest.mark.parametrize("assigned", [True, False], ids=["set", "named in metadata"])
def test_an_agents_steps_signals_and_timers_are_its_subjects(store: holdfast.Store, assigned: bool) -> None:
    agent = Notes().attach(store, "ag-1")
    if not assigned:
        agent.metadata["subject"] = "u-1"
    agent.start()
    agent.once("k-1", lambda text: f"planted {text}", "argument")
    store.agents.signal("ag-1", "approval", "planted signal")
    agent.timers.set("later", "7d", value="planted timer")
    agent.stop()
    if assigned:
        store.erasure.set_subject("u-1", "ag-1", kind="agent")
    assert remains(store, b"planted") >= 3
    store.erasure.erase("u-1")
    assert remains(store, b"planted") == 0
    assert list(store.agents.steps("ag-1").signals()) == []
    again = Notes().attach(store, "ag-1")
    again.start()
    assert again.once("k-1", lambda text: f"new {text}", "argument") == "new argument"
    again.stop()
