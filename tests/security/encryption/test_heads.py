"""Heads of an encrypted store: exported by a job, encrypted, and what they find."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Delete, Put, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS, STEPS
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.maintenance.verify.heads import StoreHeads
from tests.security.encryption.planted import contents_of, find_planted

NAMES = {"thread": ["plantedthread"], "tag": ["plantedtag"]}


def test_a_job_finds_a_cut_off_end_and_a_store_that_was_rolled_back(tmp_path: Path, encryption: Encryption) -> None:
    path, folder = tmp_path / "a.db", tmp_path / "elsewhere"

    def put(number: int) -> None:
        with holdfast.open(path, encryption=encryption) as store:
            store.thread("plantedthread").put({"n": number})

    def compare() -> tuple[bool, str]:
        with holdfast.open(path, encryption=encryption) as store:
            done = store.jobs.run("heads")
            return done.ok, done.summary

    with holdfast.open(path, encryption=encryption) as store:
        store.thread("plantedthread").put({"n": 0}, tag="plantedtag")
        store.jobs.add("heads", "heads", settings={"folder": str(folder), "keep": 3})
        for wrong in ({}, {"folder": "x", "keep": 0}, {"folder": "x", "other": 1}):
            with pytest.raises(InvalidError):
                store.jobs.add("other", "heads", settings=wrong)
    assert compare()[0]
    shutil.copy(path, tmp_path / "old.db")
    for number in range(1, 5):
        put(number)
        assert compare()[0]
    files = sorted(folder.iterdir())
    assert len(files) == 3
    assert find_planted(NAMES, contents_of(folder)) == set()  # the file is encrypted
    shutil.copy(path, tmp_path / "now.db")
    raw = run(backend_for(f"sqlite:///{path}").open(f"sqlite:///{path}"))
    run(raw.apply([Delete(STEPS, ("", "plantedthread", 0, 4))]))
    run(raw.close())
    for _ in range(2):  # until somebody has looked at it
        ok, summary = compare()
        assert not ok
        assert "plantedthread" in summary
    assert sorted(folder.iterdir()) == files
    shutil.copy(tmp_path / "old.db", path)
    with holdfast.open(path, encryption=encryption) as store:
        assert store.maintenance.verify().ok  # it looks right, as it once was
    assert not compare()[0]
    shutil.copy(tmp_path / "now.db", path)
    assert compare()[0]


def test_files_of_heads_are_encrypted_and_authentic(tmp_path: Path, encryption: Encryption) -> None:
    file = tmp_path / "heads.json"
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        store.thread("plantedthread").put({"n": 0})
        heads = store.maintenance.heads()  # they have a time
        heads.save(file)
        assert store.maintenance.load_heads(file) == heads
        assert find_planted(NAMES, [file.read_bytes()]) == set()
        with pytest.raises(DeniedError) as missing:
            StoreHeads.load(file)
        assert missing.value.code == "key-missing"
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
        assert store.maintenance.verify(heads=store.maintenance.load_heads(file)).ok  # keys may change
        altered = json.loads(file.read_text())
        altered["sealed"] = altered["sealed"][:-8] + "AAAAAAA="
        file.write_text(json.dumps(altered))
        with holdfast.open(tmp_path / "plain.db") as plain:
            plain.thread("plantedthread").put({"n": 0})
            heads = plain.maintenance.heads()
            heads.save(tmp_path / "clear.json")
            assert find_planted(NAMES, [(tmp_path / "clear.json").read_bytes()])  # the control
            assert plain.maintenance.load_heads(tmp_path / "clear.json") == heads
        with holdfast.open(tmp_path / "b.db", encryption=Encryption(LocalKeys(generate_key()))) as other:
            other.maintenance.heads().save(tmp_path / "other.json")
        for bad in (file, tmp_path / "clear.json", tmp_path / "other.json"):
            with pytest.raises(CorruptError) as caught:
                store.maintenance.load_heads(bad)
            assert caught.value.code == "tampered"


def raw_refs(path: Path) -> list[Row]:
    """Return the tags and labels of the threads of a store, as they are stored."""
    raw = run(backend_for(f"sqlite:///{path}").open(f"sqlite:///{path}"))
    found = run(raw.read([Scan(REFS, ("",))]))[0]
    run(raw.close())
    return [row for row in found if row.key[2] in ("tag", "label")]


def replace_refs(path: Path, rows: list[Row]) -> None:
    """Put rows into the database in place of those that are there, as somebody does who has only the file."""
    raw = run(backend_for(f"sqlite:///{path}").open(f"sqlite:///{path}"))
    now = run(raw.read([Scan(REFS, ("",))]))[0]
    removed = [Delete(REFS, row.key) for row in now if row.key[2] in ("tag", "label")]
    run(raw.apply([*removed, *(Put(REFS, row) for row in rows)]))
    run(raw.close())


@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
def test_heads_find_an_old_tag_that_was_put_back(hidden: bool, tmp_path: Path) -> None:
    path, encryption = tmp_path / "a.db", Encryption(LocalKeys(b"t" * 32), hide_names=hidden)

    def codes(heads: StoreHeads) -> list[str]:
        with holdfast.open(path, encryption=encryption) as store:
            report = store.maintenance.verify(heads=heads)
            return [each.code.value for each in report.findings]

    with holdfast.open(path, encryption=encryption) as store:
        thread = store.thread("t")
        for number in range(3):
            thread.put({"n": number})
        thread.tag("approved", at=0)
        thread.label("draft", at=1)
        first = store.maintenance.heads()
    old = raw_refs(path)
    with holdfast.open(path, encryption=encryption) as store:
        store.thread("t").tag("approved", at=2, move=True)
        store.thread("t").unlabel("draft")
        second = store.maintenance.heads()
        second.save(tmp_path / "heads.json")
        second = store.maintenance.load_heads(tmp_path / "heads.json")
    new = raw_refs(path)
    assert codes(second) == []
    with holdfast.open(path, encryption=encryption) as store:
        store.thread("t").put({"n": 3}, tag="released")  # which only appends
    assert codes(second) == ["changed-names"]
    both = raw_refs(path)
    replace_refs(path, [*old, *(row for row in both if row not in new and row.key not in {each.key for each in old})])
    with holdfast.open(path, encryption=encryption) as store:
        assert store.maintenance.verify().ok, "it looks right, as it once was"
        assert store.thread("t").get("approved").state == {"n": 0}
    assert sorted(set(codes(second))) == ["changed-names", "replayed-name"]
    assert codes(second).count("replayed-name") == 2
    replace_refs(path, both)
    assert codes(second) == ["changed-names"]
    with holdfast.open(path, encryption=encryption) as store:
        store.thread("t").tag("approved", at=1, move=True)  # on purpose
    assert codes(second) == ["changed-names"]
    assert "replayed-name" not in codes(first), "the tag was moved since: it cannot be told"
