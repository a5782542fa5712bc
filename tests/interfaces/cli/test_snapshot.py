"""`holdfast snapshot`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

import holdfast
from holdfast import snapshots
from holdfast.agents import PersistentAgent
from holdfast.agents.snapshots.header import SnapshotInfo
from holdfast.interfaces.cli import exit_codes
from tests.interfaces.cli import kit

Run = Callable[..., kit.Result]


class Counter(PersistentAgent, name="tests.interfaces.cli.counter"):
    count: int = 0


@pytest.fixture
def counter(url: str) -> None:
    """An agent `c1` of two versions at least, in the store."""
    with holdfast.open(url) as store:
        agent = Counter(step=2).attach(store, "c1")
        agent.start()
        agent.count = 7
        agent.conversation.append({"role": "user", "content": "more"})
        agent.save()


@pytest.mark.usefixtures("counter")
class TestAgents:
    def test_an_agent_goes_into_a_file_and_into_another_store(self, hf: Run, tmp_path: Path) -> None:
        made = hf("snapshot", "create", "c1", "c1.hfsnap", "-m", "before the move", "--json")
        assert made.code == 0, made.err
        assert made.records[0]["kind"] == "persistent"
        assert made.records[0]["description"] == "before the move"
        done = kit.run("snapshot", "restore", "c1.hfsnap", "--create", store="sqlite:///other.db")
        assert done.code == 0, done.err
        assert "Restored c1" in done.err
        with holdfast.open("sqlite:///other.db") as store:
            assert store.agents.load("c1").fields["count"] == 7

    def test_under_another_id(self, hf: Run, url: str) -> None:
        hf("snapshot", "create", "c1", "c1.hfsnap")
        taken = hf("snapshot", "restore", "c1.hfsnap", "--json")
        assert (taken.code, taken.error["code"]) == (exit_codes.CONFLICT, "snapshot-exists")
        done = hf("snapshot", "restore", "c1.hfsnap", "--id", "c2", "--json")
        assert done.records[0]["id"] == "c2"
        with holdfast.open(url) as store:
            assert store.agents.load("c2").fields == store.agents.load("c1").fields

    def test_an_older_version(self, hf: Run) -> None:
        assert hf("snapshot", "create", "c1", "c1.hfsnap", "--version", "1").code == 0
        assert hf("snapshot", "create", "c1", "c1.hfsnap", "--version", "99").code == exit_codes.NOT_FOUND
        assert hf("snapshot", "create", "nobody", "x.hfsnap").code == exit_codes.NOT_FOUND
        again = hf("snapshot", "create", "c1", "c1.hfsnap", "--json")
        assert (again.code, again.error["code"]) == (exit_codes.CONFLICT, "snapshot-exists")
        assert hf("snapshot", "create", "c1", "c1.hfsnap", "--overwrite").code == 0

    def test_an_identity_has_its_rights(self, hf: Run) -> None:
        denied = hf("snapshot", "create", "c1", "c1.hfsnap", "--as", "agent:c2", "--json")
        assert denied.error["code"] == "denied"
        assert hf("snapshot", "create", "c1", "c1.hfsnap", "--as", "agent:c1").code == 0


def messages(path: Path) -> SnapshotInfo:
    return snapshots.snapshot([HumanMessage("hello")], path, description="a \x1b[31mgreeting\x1b[0m")


def test_show_tells_what_is_in_a_snapshot_without_thawing_it(tmp_path: Path) -> None:
    info = messages(tmp_path / "m.hfsnap")
    shown = kit.run("snapshot", "show", "m.hfsnap")
    assert shown.code == 0
    assert shown.lines[0] == f"snapshot {info.id}"
    assert f"SHA-256:     {info.sha256}" in shown.lines
    assert "Description: a \\x1b[31mgreeting\\x1b[0m" in shown.lines
    assert not any(line.startswith("Tools") for line in shown.lines)
    record = kit.run("snapshot", "show", "m.hfsnap", "--json").records[0]
    assert record["id"] == info.id
    assert record["versions"]["holdfast"] == holdfast.__version__
    assert kit.run("snapshot", "show", "no.hfsnap").code == exit_codes.NOT_FOUND


def test_what_is_langchains_is_not_thawed_here(tmp_path: Path) -> None:
    messages(tmp_path / "m.hfsnap")
    done = kit.run("snapshot", "restore", "m.hfsnap", "--json", store="sqlite:///x.db")
    assert done.error["code"] == "snapshot-unsupported"
    assert "program" in done.error["hint"]


def test_verify(tmp_path: Path) -> None:
    messages(tmp_path / "good.hfsnap")
    assert kit.run("snapshot", "verify", "good.hfsnap").lines == ["OK good.hfsnap"]
    data = bytearray((tmp_path / "good.hfsnap").read_bytes())
    data[-9] ^= 1
    (tmp_path / "bad.hfsnap").write_bytes(data)
    alone = kit.run("snapshot", "verify", "bad.hfsnap", "--json")
    assert (alone.code, alone.error["code"]) == (exit_codes.INTEGRITY, "snapshot-corrupt")
    both = kit.run("snapshot", "verify", "good.hfsnap", "bad.hfsnap", "missing.hfsnap", "--json")
    assert both.code == exit_codes.INTEGRITY
    assert [(each["file"], each["ok"]) for each in both.records] == [
        ("good.hfsnap", True),
        ("bad.hfsnap", False),
        ("missing.hfsnap", False),
    ]
    assert "holdfast repair" not in alone.error["hint"]  # which is for stores
    elsewhere = kit.run("snapshot", "verify", "ftp://host/x.hfsnap", "good.hfsnap", "--json")
    assert [each["ok"] for each in elsewhere.records] == [False, True]
    told = kit.run("snapshot", "verify", "good.hfsnap", "bad.hfsnap")
    assert told.lines[0] == "OK good.hfsnap"
    assert told.lines[1].startswith("DAMAGED bad.hfsnap: ")
    assert "1 of 2 snapshots" in told.err


def test_list(tmp_path: Path) -> None:
    assert "no snapshots" in kit.run("snapshot", "list").err
    for name in ("a", "b", "c"):
        messages(tmp_path / f"{name}.hfsnap")
    (tmp_path / "d\x1b.hfsnap").write_text("no snapshot")
    (tmp_path / "e.txt").write_text("something else")
    listed = kit.run("snapshot", "list")
    assert listed.lines[0].split() == ["SNAPSHOT", "SIZE", "KIND", "AGENT", "CREATED", "DESCRIPTION"]
    assert len(listed.lines) == 5
    assert "\x1b" not in listed.out
    assert "cannot be read" in listed.lines[4]
    records = kit.run("snapshot", "list", tmp_path, "--json").records
    assert [(each["name"], bool(each["problem"])) for each in records] == [
        ("a.hfsnap", False),
        ("b.hfsnap", False),
        ("c.hfsnap", False),
        ("d\x1b.hfsnap", True),
    ]
    page = kit.run("snapshot", "list", "--after", "a.hfsnap", "-n", "1", "--json").records
    assert [each["name"] for each in page] == ["b.hfsnap"]
    assert kit.run("snapshot", "list", "nowhere").code == exit_codes.NOT_FOUND


def test_delete(tmp_path: Path) -> None:
    for name in ("a", "b"):
        messages(tmp_path / f"{name}.hfsnap")
    (tmp_path / "bad.hfsnap").write_text("no snapshot")
    (tmp_path / "notes.txt").write_text("precious")
    assert "Would delete" in kit.run("snapshot", "delete", "a.hfsnap", "--dry-run").err
    asked = kit.run("snapshot", "delete", "a.hfsnap")
    assert asked.code == exit_codes.USAGE
    assert kit.run("snapshot", "delete", "a.hfsnap", "bad.hfsnap", "--yes").code == exit_codes.INTEGRITY
    assert kit.run("snapshot", "delete", "notes.txt", "--force", "--yes").code == exit_codes.ERROR
    assert kit.run("snapshot", "delete", "missing.hfsnap", "--force", "--yes").code == exit_codes.NOT_FOUND
    assert len(list(tmp_path.iterdir())) == 4
    done = kit.run("snapshot", "delete", "a.hfsnap", "b.hfsnap", "--yes", "--json")
    assert [(each["file"], each["deleted"]) for each in done.records] == [("a.hfsnap", True), ("b.hfsnap", True)]
    assert kit.run("snapshot", "delete", "bad.hfsnap", "--yes", "--force").code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
