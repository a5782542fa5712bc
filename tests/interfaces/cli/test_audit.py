"""`holdfast audit`: looking at the record, and checking it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


@pytest.fixture
def noted(hf: Hf, url: str) -> Hf:
    """A store in which agent a works, and agent b tries to."""
    with holdfast.open(url) as store:
        with holdfast.correlation("run-1"):
            store.as_identity(agent="a").state(agent="a")["plan"] = 1
        store.state(agent="a")["note"] = "by the owner"
        with pytest.raises(holdfast.errors.DeniedError):
            store.as_identity(agent="b").state(agent="a")["plan"] = 2
        assert store.as_identity(agent="a", read_window=0).state(agent="a")["plan"] == 1
    return hf


def alter(url: str) -> None:
    """Have a row of the audit name somebody else."""
    with holdfast.open(url) as store:
        backend = store._engine.context.backend
        (rows,) = run(backend.read([Scan(EVENTS, ("", "␞agent:a"))]))
        columns = list(rows[0].columns)
        columns[2] = "agent:mallory"
        run(backend.apply([Put(EVENTS, Row(rows[0].key, tuple(columns), rows[0].body))]))


def test_the_audit_is_shown_the_newest_first(noted: Hf) -> None:
    lines = noted("audit").lines
    assert lines[0].split() == ["TIME", "KIND", "ACTOR", "ACTION", "SCOPE", "KEY", "OUTCOME"]
    assert [line.split()[2:] for line in lines[1:]] == [
        ["read", "agent:a", "read", "agent:a", "plan", "ok"],
        ["denied", "agent:b", "write", "agent:a", "plan", "denied"],
        ["change", "owner", "set", "agent:a", "note", "ok"],
        ["change", "agent:a", "set", "agent:a", "plan", "ok"],
    ]


CHOSEN: list[tuple[list[str], list[str]]] = [
    (["--actor", "agent:b"], ["write"]),
    (["--actor", "owner"], ["set"]),
    (["--kind", "change"], ["set", "set"]),
    (["--outcome", "denied"], ["write"]),
    (["--action", "read"], ["read"]),
    (["--key", "note"], ["set"]),
    (["--scope", "agent:a", "--kind", "denied"], ["write"]),
    (["--scope", "agent:z"], []),
    (["--correlation", "run-1"], ["set"]),
    (["--since", "1h"], ["read", "write", "set", "set"]),
    (["--until", "1h"], []),
    (["-n", "2"], ["read", "write"]),
]


def test_rows_are_chosen(noted: Hf, subtests: pytest.Subtests) -> None:
    for words, keys in CHOSEN:
        with subtests.test(words=words):
            assert [each["action"] for each in noted("audit", *words, "--json").records] == keys


def test_it_goes_on_after_a_cursor(noted: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        for number in range(210):
            store.state()[f"k{number}"] = number
    every = noted("audit", "-n", "1000", "--json").records
    assert len(every) == 214
    assert noted("audit", "--after", every[99]["cursor"], "-n", "50", "--json").records == every[100:150]
    assert len(noted("audit", "-n", "205").lines) == 206


def test_nothing_is_recorded(hf: Hf) -> None:
    assert "There are no such records" in hf("audit").err
    assert hf("audit", "--json").out == ""


def test_verify(noted: Hf, url: str) -> None:
    sound = noted("audit", "verify")
    assert sound.code == 0
    assert sound.out.startswith("OK (")
    assert noted("audit", "verify", "--json").records[0]["ok"]
    alter(url)
    found = noted("audit", "verify")
    assert found.code == 5
    assert "agent:a" in found.out
    assert "another actor" in found.out
    assert "NOT AS WRITTEN: 1 finding" in found.out
    (told,) = noted("audit", "verify", "--json").records
    assert (told["ok"], len(told["findings"])) == (False, 1)


def test_an_export_is_checked_without_the_store(noted: Hf, url: str, tmp_path: Path) -> None:
    done = noted("audit", "export", "audit.jsonl")
    assert (done.code, len(done.out.strip())) == (0, 64)
    checked = kit.run("audit", "check", "audit.jsonl")
    assert (checked.code, checked.out.startswith("OK (")) == (0, True)
    assert kit.run("audit", "check", "audit.jsonl", "--json").records[0]["ok"]
    (again,) = noted("audit", "export", "second.jsonl", "--json").records
    assert again["digest"] == done.out.strip()
    public_key = noted("erase", "key").out.strip()
    assert public_key == again["public_key"]
    assert public_key in checked.err, "to be compared"
    told = kit.run("audit", "check", "audit.jsonl", "--public-key", public_key)
    assert (told.code, public_key in told.err) == (0, False)
    other = kit.run("audit", "check", "audit.jsonl", "--public-key", "5f" * 32)
    assert (other.code, "signed with another key" in other.err) == (5, True)

    noted("heads", "heads.json")
    assert kit.run("audit", "check", "audit.jsonl", "--heads", "heads.json").code == 0
    noted("state", "set", "agent:a", "more", "1")
    noted("heads", "later.json")
    cut_off = kit.run("audit", "check", "audit.jsonl", "--heads", "later.json")
    assert (cut_off.code, "is not the one that the heads say" in cut_off.out) == (6, True)

    file = tmp_path / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"agent:b", b"agent:c"))
    assert kit.run("audit", "check", file).code == 5
    file.write_bytes(file.read_bytes()[:200])
    assert kit.run("audit", "check", file).code == 5


def test_an_export_of_an_altered_audit_tells(noted: Hf, url: str) -> None:
    alter(url)
    noted("audit", "export", "audit.jsonl")
    checked = kit.run("audit", "check", "audit.jsonl")
    assert (checked.code, "another actor" in checked.out) == (6, True)
    assert kit.run("audit", "check", "audit.jsonl", "--json").records[0]["findings"]


WRONG: list[tuple[list[str], int, str]] = [
    (["--kind", "nope"], 2, "'change', 'hook'"),
    (["--actor", "b"], 2, "Such as agent:researcher"),
    (["--since", "someday"], 2, "is not a time"),
    (["--after", "nonsense"], 2, "cursor"),
    (["--actor", "agent:b", "verify"], 2, "--actor is an option of the list: verify uses"),
    (["check", "nope.jsonl"], 3, "there is no such file"),
    (["check", "plain.json/x"], 2, "cannot be read"),
    (["check", "."], 2, "is a directory"),
    (["check", "plain.json"], 2, "holdfast audit export"),
    (["check", "plain.json", "--heads", "plain.json"], 2, "contains no heads"),
    (["export", "no/such/folder.jsonl"], 3, "there is no such directory"),
    (["nope"], 2, "No such command"),
]


def test_wrong_use_is_told(noted: Hf, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for words, code, said in WRONG:
        with subtests.test(said=said):
            (tmp_path / "plain.json").write_text(json.dumps({"a": 1}) + "\n")
            done = noted("audit", *words)
            assert (done.code, done.out) == (code, "")
            assert said in done.err


def test_looking_changes_nothing(noted: Hf, tmp_path: Path) -> None:
    noted("erase", "key")  # which creates it
    before = noted("audit", "--json").out
    noted("audit", "verify")
    noted("audit", "export", "audit.jsonl")
    noted("state", "list")
    assert noted("audit", "--json").out == before
