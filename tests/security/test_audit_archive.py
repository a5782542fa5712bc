"""The archived audit: old records leave the store in segments, and everything still verifies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.access import check_audit
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.security.audit import export as archive
from holdfast.security.audit.archive_records import ArchiveRecords
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on

KEYS = LocalKeys(b"a" * 32)


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with store_on(MemoryBackend(), clock) as opened:
        yield opened


def use(store: Store, clock: Clock, number: int) -> None:
    """Changes, a denied attempt, a hook, and a session whose state is removed."""
    writer, other = store.as_identity(agent="writer"), store.as_identity(agent="other")
    writer.state(agent="writer")["plan"] = number
    with pytest.raises(DeniedError):
        other.state(agent="writer").get("plan")
    session = store.sessions.start(f"s{number}", on_end="delete")
    session.state["step"] = number
    session.end()
    clock.sleep(60)


def rows_of(store: Store) -> set[tuple[Any, ...]]:
    (rows,) = run(store._engine.context.stored.read([Scan(EVENTS, ("",))]))
    return {row.key for row in rows}


def test_segments_form_a_chain_and_the_audit_still_verifies(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock, 1)
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    before = rows_of(store)
    plan = store.audit.archive(first, older_than="30s", dry_run=True)
    assert (plan.dry_run, first.exists(), rows_of(store)) == (True, False, before)
    every = store.audit.export(tmp_path / "all.jsonl")
    before = rows_of(store)
    done = store.audit.archive(first, older_than="30s")
    assert (done.segment, done.rows) == (1, plan.rows)
    assert done.rows > 3
    left = rows_of(store)
    assert len(before - left) == done.rows
    assert store.audit.query(kind="denied") == []
    assert [each.action for each in store.audit.query(action="remove")] == ["remove"], "which a verification needs"
    report = store.audit.verify(every.heads)
    assert report.findings == []
    assert report.archived > 2
    assert store.maintenance.verify(level="decode").findings == []
    use(store, clock, 2)
    later = store.audit.archive(second, older_than="30s")
    assert later.segment == 2
    checked = check_audit(first)
    assert (checked.findings, checked.segment) == ([], 1)
    assert checked.rows >= done.rows
    checked = check_audit(second, checked.heads)
    assert (checked.findings, checked.segment) == ([], 2)
    assert checked.heads == later.heads
    assert store.audit.verify(checked.heads).findings == [], "the store continues from the segment"
    with pytest.raises(InvalidError, match="exists"):
        store.audit.archive(second, older_than="0s")
    last = store.audit.export(tmp_path / "rest.jsonl")
    checked = check_audit(tmp_path / "rest.jsonl", every.heads)
    assert checked.findings == []
    assert checked.archived == store.audit.verify().archived
    assert last.steps == checked.steps
    wrong = check_audit(first, later.heads)
    assert wrong.findings, "an older segment does not continue from a newer one"


def test_what_is_missing_for_another_reason_is_found(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock, 1)
    store.audit.archive(tmp_path / "1.jsonl", older_than="30s")
    use(store, clock, 2)
    assert store.audit.verify().ok
    backend, keys = store._engine.context.backend, sorted(rows_of(store))
    retained = {each for range_ in run(ArchiveRecords(store._engine, "").ranges()) for each in range_.retained}
    stayed, new = (next(key for key in keys if (key[2] in retained) == which) for which in (True, False))
    for key in (stayed, new):
        (rows,) = run(backend.read([Scan(EVENTS, key[:3])]))
        run(backend.apply([Delete(EVENTS, key[:3])]))
        assert not store.audit.verify().ok, key
        if key is new:
            with pytest.raises(CorruptError, match="nothing is archived"):
                store.audit.archive(tmp_path / "2.jsonl", older_than="0s")
        run(backend.apply([Put(EVENTS, row) for row in rows]))
    assert store.audit.verify().ok
    assert [each.name for each in tmp_path.iterdir()] == ["1.jsonl"]


def test_a_segment_that_was_changed_is_detected(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock, 1)
    path = tmp_path / "1.jsonl"
    store.audit.archive(path, older_than="0s")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"denied", b"granted", 1))
    with pytest.raises(CorruptError):
        check_audit(path)
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(CorruptError):
        check_audit(path)


def test_archiving_that_was_interrupted_is_continued(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after some batches: what was removed is in the file, and the rest is in the next one."""
    for number in range(3):
        use(store, clock, number)
    heads = store.audit.export(tmp_path / "all.jsonl").heads
    moved, struck = ArchiveRecords.move, [0]

    async def move(self: ArchiveRecords, *args: Any) -> None:
        if struck[0] == 2:
            raise KeyboardInterrupt
        struck[0] += 1
        await moved(self, *args)

    monkeypatch.setattr(archive, "_AT_ONCE", 1)
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveRecords, "move", move)
        with pytest.raises(KeyboardInterrupt):
            store.audit.archive(tmp_path / "1.jsonl", older_than="0s")
    assert struck == [2]
    assert store.audit.verify(heads).findings == []
    store.audit.archive(tmp_path / "2.jsonl", older_than="0s")
    assert store.audit.verify(heads).findings == []
    assert store.audit.verify().archived > 3
    first = check_audit(tmp_path / "1.jsonl")
    assert (first.findings, check_audit(tmp_path / "2.jsonl", first.heads).findings) == ([], [])


def test_a_segment_of_an_encrypted_store_is_encrypted_and_backups_agree(tmp_path: Path) -> None:
    path, repository = tmp_path / "1.jsonl", tmp_path / "repository"
    options: dict[str, Any] = {"encryption": Encryption(KEYS)}
    with holdfast.open(tmp_path / "a.db", **options) as store:
        store.state(user="planted-user")["plan"] = 1
        store.backups(repository).create()
        job = store.jobs.add("archive", "archive-audit", settings={"folder": str(tmp_path / "f"), "older_than": "1d"})
        assert store.jobs.run(job.name).ok
        done = store.audit.archive(path, older_than="0s")
        assert done.rows
        assert b"planted-user" not in path.read_bytes()
        assert check_audit(path, keys=KEYS).ok
        store.backups(repository).create()
        assert store.backups(repository).verify(level="decode").ok
        report = store.erasure.erase("planted-user")
        assert report.certificate is not None
        assert any("archived segments" in each for each in report.certificate.unreachable)
    for name, backup in (("new", "latest"), ("old", "1")):
        with holdfast.open(tmp_path / f"{name}.db", **options) as restored:
            restored.backups(repository).restore(backup)
            assert restored.audit.verify().findings == []


def test_a_legal_hold_keeps_records_where_they_are(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock, 1)
    store.maintenance.hold("agent:writer", kind="scope", reason="case 7")
    done = store.audit.archive(tmp_path / "1.jsonl", older_than="0s")
    assert done.held == ("agent:writer",)
    assert "set" in [each.action for each in store.audit.query(scope="agent:writer", kind="change")]
    assert store.audit.verify().ok
