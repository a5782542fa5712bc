"""Credentials that are stored are noticed by a job that goes on where it was; and replaced, if somebody wants that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

import holdfast
from holdfast.backends.interface import Get, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError, HoldfastError, UnavailableError
from holdfast.jobs import JobRunner
from holdfast.maintenance.jobs import builtin as credentials_job
from holdfast.security.sensitive import credential_check
from holdfast.security.sensitive.credential_check import CredentialCheck
from holdfast.security.sensitive.scan import SensitiveScan
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.doctor import doctor
from holdfast.store.store import Store
from tests.interfaces.cli import kit
from tests.maintenance.kit import HOUR, Clock, timed
from tests.security.sensitive.samples import github_token, private_key, stripe_key
from tests.support.kills import kill, run_in_child

KEY = github_token(Random("noticed"))
OTHER = stripe_key(Random("noticed"))
ENCRYPTED: Encryption | Literal[False] = Encryption(LocalKeys(b"1" * 32))
PLAIN: Encryption | Literal[False] = False


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as store:
        yield store


def notice(store: Store) -> None:
    """Run what is due in every store."""
    JobRunner(store).run_due()
    store.jobs.run("credentials")


def places(store: Store) -> list[tuple[str, str, str]]:
    """Return where credentials are, by what is stored alone."""
    (rows,) = run(store._handle.engine.context.backend.read([Get(REFS, [(store.tenant, "", "credentials", "", "")])]))
    found = json.loads(str(rows[0].columns[0])).get("places", []) if rows else []
    return [(line, path, format_) for line, _, path, format_, *_ in found]


def reported(store: Store) -> list[tuple[str, str]]:
    return [(each.scope, each.path) for each in store.redaction.credentials().findings]


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_a_runner_notices_credentials_wherever_they_enter(store: Store) -> None:
    call = {"role": "assistant", "tool_calls": [{"name": "curl", "args": {"header": f"Bearer {KEY}"}}]}
    store.thread("chat").put({"messages": ["hello"]})
    JobRunner(store).run_due()
    assert places(store) == []
    store.thread("chat").put({"messages": ["hello", call]}, metadata={"note": OTHER})
    store.thread("plain").put({"messages": ["an ordinary message"] * 9})
    store.state(user="alice").set("aws", {"secret_access_key": "k3y-of-the-service"})
    checkpointer = Checkpointer(store)
    checkpointer.put("graph", {"n": 1}, id="1")
    checkpointer.put_writes("graph", "1", [("answer", private_key(Random(1)))], task_id="task")
    notice(store)
    assert set(places(store)) == {
        ("chat", "metadata.note", "stripe-key"),
        ("chat", "messages[1].tool_calls[0].args.header", "github-token"),
        ("\u241euser:alice", "aws.secret_access_key", "field"),
        ("graph", "answer", "private-key"),
    }
    assert (
        sorted(each.checkpoint for each in store.redaction.credentials().findings if each.scope == "thread:chat")
        == [store.thread("chat").get().id] * 2
    )


def test_nothing_of_a_credential_is_stored_about_it(store: Store) -> None:
    store.thread("chat").put({"keys": {KEY: "by its value"}, "text": f"use {KEY}", "password": "correct horse 9"})
    before = {row.key for row in _refs(store)}
    notice(store)
    new = [row for row in _refs(store) if row.key not in before]
    text = repr(new) + repr(store.jobs.list())
    assert len(places(store)) == 3
    assert "chat" in text  # the control
    assert not [at for at in range(len(KEY) - 6) if KEY[at : at + 6] in text]
    assert "horse" not in text


def _refs(store: Store) -> list[Any]:
    return run(store._handle.engine.context.backend.read([Scan(REFS, ())]))[0]


def _searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    search = CredentialCheck._search

    async def counted(self: CredentialCheck, line: Any, since: int) -> None:
        names.append(line.name)
        await search(self, line, since)

    monkeypatch.setattr(CredentialCheck, "_search", counted)
    return names


def test_it_goes_on_where_it_was_also_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = _searched(monkeypatch)
    with holdfast.open(tmp_path / "a.db") as store:
        for number in range(5):
            store.thread(f"chat-{number}").put({"n": number})
        notice(store)
        assert sorted(set(names)) == [f"chat-{number}" for number in range(5)]
    with holdfast.open(tmp_path / "a.db") as store:
        names.clear()
        store.thread("chat-3").put({"n": OTHER})
        store.jobs.run("credentials")
        assert names == ["chat-3"]
        assert places(store) == [("chat-3", "n", "stripe-key")]
        names.clear()
        store.jobs.run("credentials")
        assert names == []


def test_only_what_was_saved_since_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = timed(clock)
    for number in range(300):
        store.thread("chat").put({"messages": [f"message {each}" for each in range(number)]})
    clock.now += HOUR
    notice(store)
    steps: list[object] = []
    step = SensitiveScan.step

    async def counted(self: SensitiveScan, line: Any, row: Any) -> Any:
        steps.append(row)
        return await step(self, line, row)

    monkeypatch.setattr(SensitiveScan, "step", counted)
    store.thread("chat").put({"messages": [f"message {each}" for each in range(299)], "more": KEY})
    store.jobs.run("credentials")
    assert len(steps) == 1
    assert places(store) == [("chat", "more", "github-token")]


def test_a_check_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_job, "_STORED_AFTER", 1)
    with holdfast.open(tmp_path / "a.db") as store:
        for number in range(6):
            store.thread(f"chat-{number}").put({"text": KEY})
    struck = 0
    for number in (2, 4):

        def work(report: Any, last: str = f"thread:chat-{number}") -> None:
            def progress(done: int, total: int | None, what: str) -> None:
                report(what)
                if what == last:
                    kill()

            with holdfast.open(tmp_path / "a.db") as store:
                JobRunner(store, progress=progress).run_due()

        lines, killed = run_in_child(work)
        struck += killed
        assert lines[-1] == f"thread:chat-{number}"
        assert lines[0] == f"thread:chat-{0 if number == 2 else 3}"
    assert struck == 2
    with holdfast.open(tmp_path / "a.db") as store:
        assert [line for line, *_ in places(store)] == [f"chat-{number}" for number in range(5)]
        assert len(reported(store)) == 6


def test_what_is_deleted_or_overwritten_and_pruned_is_not_reported(store: Store) -> None:
    store.thread("deleted").put({"text": KEY})
    for text in (KEY, "nothing", "any more"):
        store.thread("overwritten").put({"text": text})
    for number in range(3):
        store.thread("kept").put({"text": KEY, "number": number})
    notice(store)
    assert [line for line, *_ in places(store)] == ["deleted", "kept", "overwritten"]
    store.thread("deleted").delete()
    store.maintenance.prune(keep_last=1)
    kept = [("thread:kept", "text")]
    for _ in range(2):
        assert reported(store) == kept  # its first checkpoint has gone, and the text has not
        store.jobs.run("credentials")
        assert [line for line, *_ in places(store)] == ["kept"]


def test_an_erasure_removes_the_names_of_places_too(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat of u-1").put({"text": KEY}, metadata={"subject": "u-1"})
        store.thread("chat of u-2").put({"text": OTHER}, metadata={"subject": "u-2"})
        notice(store)
        assert len(places(store)) == 2
        store.erasure.erase("u-1")
        assert [line for line, *_ in places(store)] == ["chat of u-2"]
        assert reported(store) == [("thread:chat of u-2", "text")]
        assert "chat of u-1" not in repr(_refs(store)) + repr(store.jobs.list())


def test_an_erasure_meanwhile_is_noticed_when_places_are_stored(store: Store) -> None:
    store.thread("chat of u-1").put({"text": KEY}, metadata={"subject": "u-1"})
    engine = store._handle.engine
    check = run(CredentialCheck.open(engine, ""))

    async def report(done: int, what: str) -> None:
        pass

    run(check.run(report))
    assert [each.line for each in check.progress.places] == ["chat of u-1"]
    original = engine.context.backend.apply

    async def apply(batch: Any) -> int | None:
        engine.context.backend.apply = original  # type: ignore[method-assign]
        store.erasure.erase("u-1")
        return await original(batch)

    engine.context.backend.apply = apply  # type: ignore[method-assign]
    run(check.store())
    assert engine.context.backend.apply == original  # it came to that
    assert places(store) == []


def test_an_encrypted_store_has_the_places_encrypted(tmp_path: Path) -> None:
    for name, encryption in {"plain": PLAIN, "encrypted": ENCRYPTED}.items():
        folder = tmp_path / name
        folder.mkdir()
        with holdfast.open(folder / "a.db", encryption=encryption) as store:
            store.thread("chat").put({"settings-of-billing": {"token": KEY}})
            notice(store)
            assert places(store) == [("chat", "settings-of-billing.token", "field")]
        assert (b"settings-of-billing" in stored_bytes(folder)) == (name == "plain")
        with holdfast.open(folder / "a.db", encryption=encryption) as store:
            assert reported(store) == [("thread:chat", "settings-of-billing.token")]


def test_tenants_and_identities(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", tenant="one") as one, holdfast.open(tmp_path / "a.db", tenant="two") as two:
        one.thread("chat").put({"text": KEY})
        two.thread("chat").put({"text": "nothing"})
        for store in (one, two):
            notice(store)
        assert (len(reported(one)), reported(two)) == (1, [])
        two.thread("other").put({"text": KEY})
        assert reported(two) == [("thread:other", "text")]
        with pytest.raises(AttributeError):
            one.as_identity(user="alice").sensitive.credentials()  # type: ignore[attr-defined]
        with pytest.raises(DeniedError):
            holdfast.jobs.Jobs(one.as_identity(user="alice"))  # type: ignore[arg-type]


def test_other_copies_are_searched_anew(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "b.db") as copy:
        store.thread("chat").put({"text": KEY})
        notice(store)
        store.maintenance.copy_to(copy)
        assert places(copy) == []
        assert reported(copy) == [("thread:chat", "text")]
        store.backups(tmp_path / "backups").create()
        with holdfast.open(tmp_path / "c.db") as restored:
            restored.backups(tmp_path / "backups").restore()
            assert places(restored) == []
            assert reported(restored) == [("thread:chat", "text")]


def test_history_that_is_imported_is_searched(tmp_path: Path) -> None:
    clock = Clock()
    store, other = timed(clock), timed(clock)
    for text in (KEY, "nothing"):
        other.thread("chat").put({"text": text})
    other.maintenance.export(tmp_path / "chat.jsonl")
    clock.now += HOUR
    store.thread("own").put({"n": 1})
    notice(store)
    store.maintenance.import_(tmp_path / "chat.jsonl")
    store.jobs.run("credentials")
    assert places(store) == [("chat", "text", "github-token")]


def test_more_places_than_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_check, "MOST_PLACES", 3)
    for number in range(5):
        store.thread(f"chat-{number}").put({"text": KEY})
    notice(store)
    found = store.redaction.credentials()
    assert (len(found.findings), found.more) == (3, True)
    assert found.describe().startswith(
        "credentials in clear at 3 places or more: github-token at text of thread:chat-0"
    )
    for number in (0, 1, 2):
        store.thread(f"chat-{number}").delete()
    store.jobs.run("credentials")
    assert [line for line, *_ in places(store)] == ["chat-3", "chat-4"]
    assert not store.redaction.credentials().more


def test_what_a_policy_allows_is_not_reported(store: Store) -> None:
    store.thread("chat").put({"text": KEY})
    store.state(agent="vault").set("key", KEY)
    assert len(reported(store)) == 2
    store.redaction.protect("allow", scope="agent:vault")
    store._handle.engine.context.noticed.clear()
    assert reported(store) == [("thread:chat", "text")]


def test_the_job_can_be_paused_and_one_is_enough(store: Store) -> None:
    store.jobs.add("secrets", "credentials", schedule="every 1h", paused=True)
    store.thread("chat").put({"text": KEY})
    for _ in range(2):
        JobRunner(store).run_due()
    assert [(job.name, job.runs) for job in store.jobs.list()] == [("secrets", ())]
    assert places(store) == []
    assert reported(store) == [("thread:chat", "text")]  # whoever asks is told


def test_doctor_and_alert_have_a_line_to_protect_and_one_to_redact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "a.db")

    def result() -> Any:
        return next(each for each in doctor(url) if each.code == "credentials")

    with holdfast.open(url) as store:
        store.thread("chat").put({"n": 1})
    assert result().ok
    with holdfast.open(url) as store:
        store.thread("chat").put({"text": f"use {KEY}"})
    found = result()
    assert (found.level, found.found) == (
        "warning",
        "credentials in clear at 1 place: github-token at text of thread:chat",
    )
    for line in ("HOLDFAST_REDACTION=redact", "holdfast redaction redact"):
        assert line in found.remedy
    assert KEY not in repr(found)
    with holdfast.open(url) as store:
        assert "credentials" not in [each.rule for each in store.alerts.evaluate().alerts if each.state == "firing"]
        notice(store)
        (alert,) = [each for each in store.alerts.evaluate().alerts if each.rule == "credentials"]
        assert alert.state == "firing"
        for line in ("HOLDFAST_REDACTION=redact", "holdfast redaction redact"):
            assert line in alert.message
    # The two lines, as they are told.
    done = kit.run("redaction", "redact", "--yes", store=url)
    assert (done.code, done.err.splitlines()[0]) == (0, "Replaced in 1 line; 1 checkpoint pruned.")
    monkeypatch.setenv("HOLDFAST_REDACTION", "redact")
    kit.run("state", "set", "user:alice", "note", f"use {KEY}", "--text", store=url)
    with holdfast.open(url) as store:
        assert store.state(user="alice").get("note") == "use [redacted:github-token]"
        notice(store)
        assert [each.state for each in store.alerts.evaluate().alerts if each.rule == "credentials"] == ["resolved"]
    assert result().ok
    assert KEY.encode() not in stored_bytes(tmp_path)


@pytest.mark.parametrize(("error", "is_found"), [(UnavailableError, True), (CorruptError, False)])
def test_a_line_that_could_not_be_read_is_searched_again(
    store: Store, error: type[HoldfastError], is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: SensitiveScan, line: object) -> None:
        raise error("not now")

    store.thread("chat").put({"text": f"use {KEY}"})
    with monkeypatch.context() as patch:
        patch.setattr(SensitiveScan, "whole", fail)
        JobRunner(store).run_due()
        assert places(store) == []
    store.jobs.run("credentials")
    assert bool(places(store)) is is_found
