"""The records of durable steps, signals and timers are protected and moved as other state is."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import HoldfastError
from holdfast.jobs import JobRunner
from tests.agents.steps.desk import ID, desk_of

SECRET = "ghp_x7Kq2mWv9bT4nYc8LdR1sZf6JhP3gA5eU0iQ"
NAME = "Ada of the crossroads"


def bytes_of(folder: Path) -> bytes:
    """Return all that is stored."""
    return b"".join(each.read_bytes() for each in folder.iterdir())


def test_policies_for_sensitive_data_apply_to_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(bytes(32)).decode())
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect("redact")
        desk, id = desk_of(store), "0123456789abcdef0123456789abcdef"
        assert desk.once("result", lambda: {"key": SECRET}) == {"key": SECRET}, "who runs it has it"
        record = desk.steps.get("result")
        assert "[redacted:" in desk.once("result", lambda: {"key": SECRET})["key"]
        with pytest.raises(ValueError, match="ghp_"):
            desk.once("error", lambda: int(SECRET))
        store.agents.signal(ID, "signal", SECRET, id=id)
        desk.timers.set("timer", 0.001, value=SECRET)
        time.sleep(0.002)
        JobRunner(store).run_due()
        for name in ("signal", "timer"):
            got = desk.wait_for(name, key=name, timeout=0)
            assert got is not None
            assert "[redacted:" in got.value
        secrets = [desk.once("password reset", lambda: {"password": "hunter2 of the user"}) for _ in range(2)]
        assert "[redacted:" in secrets[1]["password"], "by its name"
        assert desk.steps.get("password reset").state == "done"
        assert (len(record.idempotency_key), len(record.digest)) == (32, 40), "the store's own are as they were"
        assert desk.steps.get("result") == record
        assert not store.agents.signal(ID, "signal", SECRET, id=id)
        assert store.maintenance.verify(level="decode").findings == []
        store.redaction.protect("refuse", formats="card")
        for _ in range(2):
            with pytest.raises(HoldfastError) as raised:
                desk.once("card", lambda: "4111 1111 1111 1111")
            assert raised.value.code == "step-result"
    assert SECRET.encode() not in bytes_of(tmp_path)


def test_of_an_encrypted_store_nothing_of_them_can_be_read_and_timers_work(tmp_path: Path) -> None:
    for encryption in (None, Encryption(LocalKeys(generate_key()))):
        folder = tmp_path / str(encryption is None)
        folder.mkdir()
        with holdfast.open(folder / "a.db", encryption=encryption) as store:
            desk = desk_of(store)
            desk.timers.set(NAME, "1h", value=SECRET)
            desk.timers.set("soon", 0.001)
            store.agents.signal(ID, "signal", SECRET)
            time.sleep(0.002)
            JobRunner(store).run_due()
            assert [each.name for each in desk.steps.signals()] == ["signal", "soon"]
        stored = bytes_of(folder)
        assert {text.encode() in stored for text in (NAME, SECRET)} == {encryption is None}, "one is the control"


def test_an_agent_is_exported_imported_and_copied_with_its_steps(tmp_path: Path) -> None:
    calls = []

    def charge() -> str:
        calls.append(1)
        return "paid"

    with holdfast.open(tmp_path / "a.db") as store:
        desk_of(store).once("charge", charge)
        desk_of(store).timers.set("t", 0.001)
        store.maintenance.export(tmp_path / "all.hfx", kinds="all")
        store.maintenance.export(tmp_path / "agent.hfx", threads=[ID], kinds="agent")
        with holdfast.open(tmp_path / "copy.db") as copy:
            store.maintenance.copy_to(copy)
    for name in ("all", "agent"):
        with holdfast.open(tmp_path / f"{name}.db") as other:
            other.maintenance.import_(tmp_path / f"{name}.hfx")
    time.sleep(0.002)
    for name in ("all", "agent", "copy"):
        with holdfast.open(tmp_path / f"{name}.db") as other:
            assert desk_of(other).once("charge", charge) == "paid"
            got = desk_of(other).wait_for("t", timeout=0)
            assert got is not None, "an agent delivers its own timers, whatever became of their rows"
    assert calls == [1]


def test_what_was_done_since_a_backup_stays_done_after_a_restore_in_place(tmp_path: Path) -> None:
    calls = []

    def charge() -> str:
        calls.append(1)
        return "paid"

    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        desk.once("before", abs, -1)
        for name in ("delivered", "cancelled"):
            desk.timers.set(name, 0.001)
        store.backups(tmp_path / "backups").create()
        desk.once("charge", charge)
        desk.timers.cancel("cancelled")
        desk.context["since"] = 1
        desk.save()
        time.sleep(0.002)
        JobRunner(store).run_due()
        assert desk.wait_for("delivered", timeout=0) is not None
        store.backups(tmp_path / "backups").restore(in_place=True)
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        assert "since" not in desk.context, "a control: the agent was set back"
        assert desk.once("charge", charge) == "paid"
        JobRunner(store).run_due()
        assert (calls, desk.steps.signals(), desk.timers.list()) == ([1], [], [])


def test_a_step_in_a_transaction_that_is_given_up_is_recorded(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)

        def give_up() -> None:
            with store.transaction() as work:
                work.state(agent=ID)["paid"] = desk.once("charge", lambda: 1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            give_up()
        assert desk.once("charge", lambda: 2) == 1
        assert "paid" not in store.state(agent=ID)
