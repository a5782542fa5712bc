"""The audit: everything is in it, nothing can be taken out of it unseen, and others can check it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

import holdfast
from holdfast.backends.interface import Batch, Change, Delete, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.events import digest
from holdfast.engine.model.steps import Step, StubProof
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line, StepRef, open_step
from holdfast.errors import CorruptError, DeniedError, InvalidError, UnavailableError
from holdfast.security.audit import export, recorder
from holdfast.security.audit.recorder import AuditRecorder
from holdfast.security.audit.signature import public_key_of, sign
from holdfast.store.store import Store
from tests.agents.autosaved import until
from tests.state.kit import SECOND, Clock, store_on


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with store_on(MemoryBackend(), clock) as opened:
        yield opened


def use(store: Store, clock: Clock) -> None:
    """One of everything, a second apart."""
    a, b = store.as_identity(agent="a"), store.as_identity(agent="b")
    with holdfast.correlation("c1"):
        a.state(agent="a")["plan"] = 1
    clock.sleep(1)
    with pytest.raises(DeniedError):
        b.state(agent="a").get("plan")
    clock.sleep(1)
    a.grant("agent:b", "read", keys="pl*")
    clock.sleep(1)
    b.state(agent="a").get("plan")
    clock.sleep(1)
    with pytest.raises(InvalidError):
        b.state(agent="a").get("../x")
    clock.sleep(1)
    store.state(agent="a").batch({"plan": 2, "other": 3})
    clock.sleep(1)


def test_everything_is_in_it(store: Store, clock: Clock) -> None:
    use(store, clock)
    found = [(row.kind, row.actor, row.action, row.scope, row.key, row.outcome) for row in store.audit.query()]
    assert found == [
        ("read", "agent:b", "read", "agent:a", "plan", "ok"),  # written last, and yet when it was is told
        ("change", "", "set", "agent:a", "other", "ok"),
        ("change", "", "set", "agent:a", "plan", "ok"),
        ("denied", "agent:b", "name", "agent:a", "../x", "invalid"),
        ("access", "agent:a", "grant", "agent:a", "pl*", "ok"),
        ("denied", "agent:b", "read", "agent:a", "plan", "denied"),
        ("change", "agent:a", "set", "agent:a", "plan", "ok"),
    ]
    times = {row.kind: row.time for row in store.audit.query(actor="agent:b")}
    assert times["read"] == datetime(2023, 11, 14, 22, 13, 23, tzinfo=UTC)


def test_it_is_asked_in_many_ways(store: Store, clock: Clock) -> None:
    use(store, clock)

    def count(**question: Any) -> int:
        return len(store.audit.query(**question))

    assert count() == 7
    assert count(actor="agent:b") == 3
    assert count(actor="") == 2
    assert count(scope="agent:a") == 7
    assert count(scope="agent:b") == 0
    assert count(key="plan") == 4
    assert count(kind="denied") == 2
    assert count(outcome="invalid") == 1
    assert count(action="grant") == 1
    assert count(correlation="c1") == 1
    assert count(limit=2) == 2
    start = datetime.fromtimestamp(clock.now / SECOND, UTC) - timedelta(seconds=6)
    assert count(since=start + timedelta(seconds=3)) == 4
    assert count(until=start + timedelta(seconds=2, milliseconds=1)) == 3
    assert count(since="4s", until="2s") == 3
    wrong: dict[str, Any]
    for wrong in ({"cursor": "x"}, {"cursor": 5}, {"limit": -1}, {"scope": "nowhere"}, {"actor": "group:x"}):
        with pytest.raises(InvalidError):
            store.audit.query(**wrong)


def test_it_is_read_page_by_page(store: Store, clock: Clock) -> None:
    for number in range(9):
        for scope in ("agent:a", "agent:b", "agent:c", "user:d", "user:e/agent:f"):
            store.state(scope).batch({f"k{number}": 1, f"l{number}": 1})
        clock.sleep(number % 2)
    whole = store.audit.query(limit=1000)
    assert len(whole) == 90
    assert [row.id for row in whole] == sorted((row.id for row in whole), reverse=True)
    assert list(store.audit.query(limit=7).all()) == whole
    assert [row.key for row in store.audit.query(scope="user:d", limit=2)] == ["l8", "k8"]


def steps(store: Store) -> int:
    """How many times something was noted."""
    return len(run(store._engine.lines.history(Line("", AUDIT))))


def test_it_tells_where_things_are_that_are_no_scope(store: Store) -> None:
    store.access.join("editors", "agent:a")
    store.sharing.topic("news", agent="a").publish(1)
    store.sessions.start("s1")
    found = {(row.scope, row.action) for row in store.audit.query()}
    assert ("access", "join") in found
    assert ("sessions", "start") in found
    assert any(scope.startswith("agent:a/topic:news") for scope, _ in found)
    assert store.audit.verify().ok


# Reads ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def only_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written because a busy machine took too long: only the clock of the store tells what is due."""

    class Never(threading.Timer):
        def start(self) -> None:
            """Do not."""

    monkeypatch.setattr(threading, "Timer", Never)


@pytest.mark.usefixtures("only_clock")
def test_reads_are_written_together_and_counted(store: Store, clock: Clock) -> None:
    state = store.as_identity(agent="a").state(agent="a")
    state.batch({"k": 1, "l": 2})
    for _ in range(5):
        assert state["k"] == 1
        clock.sleep(0.1)
    assert list(state.items()) == [("k", 1), ("l", 2)]
    assert steps(store) == 0
    clock.sleep(6)
    assert state["l"] == 2  # it is time
    assert steps(store) == 1
    rows = store.audit.query(kind="read")
    told = {row.key: dict(row.detail) for row in rows}
    assert told["k"]["times"] >= 5
    assert "l" in told
    assert "" in told
    assert steps(store) == 1
    store.state(agent="a").get("k")  # those of the owner are not noted
    assert len(store.audit.query(kind="read")) == len(rows)


@pytest.mark.usefixtures("only_clock")
def test_many_reads_are_written_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_READS", 10)
    state = store.as_identity(agent="a").state(agent="a")
    for number in range(25):
        state.get(f"k{number}")
    assert steps(store) == 2
    assert len(store.audit.query(kind="read")) == 25


def test_without_a_window_a_read_is_noted_before_it_is_handed_out(store: Store) -> None:
    state = store.as_identity(agent="a", read_window=0).state(agent="a")
    state.get("k")
    assert steps(store) == 1


@pytest.mark.usefixtures("only_clock")
def test_a_shorter_window_counts_for_all(store: Store, clock: Clock) -> None:
    store.as_identity(agent="a", read_window=100).state(agent="a").get("k")
    other = store.as_identity(agent="b", read_window=1).state(agent="b")
    other.get("k")
    clock.sleep(2)
    other.get("l")
    assert steps(store) == 1


def test_reads_are_written_when_nothing_more_happens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store, holdfast.open(url) as other:
        store.as_identity(agent="a", read_window=0.05).state(agent="a").get("k")
        until(lambda: len(other.audit.query(kind="read")) == 1, 60)


class _Failing(Wrapper):
    fails = False

    async def apply(self, batch: Batch) -> int | None:
        if self.fails:
            raise UnavailableError("the disk is gone")
        return await super().apply(batch)


def test_what_could_not_be_written_is_kept(clock: Clock) -> None:
    backend = _Failing(MemoryBackend())
    store = store_on(backend, clock)
    state = store.as_identity(agent="a").state(agent="a")
    state.get("k")
    backend.fails = True
    notes = store._recorder()
    notes._flush_in_timer()  # a thread of its own: nobody is there to be told
    state.get("k")
    with pytest.raises(UnavailableError):
        store.audit.query()
    with pytest.raises(UnavailableError):  # a try that cannot be noted is not merely denied
        state.get("../x")
    backend.fails = False
    (row,) = store.audit.query(kind="read")
    assert row.detail["times"] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_write_what_its_parent_read(store: Store) -> None:
    store.as_identity(agent="a").state(agent="a").get("k")
    notes = store._recorder()
    notes._process = 0  # as if this were the child
    notes.reinit_locks()
    assert store.audit.query(kind="read") == []


@pytest.mark.parametrize("ending", ["store.close()", "pass", "os._exit(0)"], ids=["closed", "left open", "killed"])
def test_reads_at_the_end_of_a_program(tmp_path: Path, ending: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    program = f"""
import os, holdfast
store = holdfast.open({url!r})
store.state(agent="a")["k"] = 1
store.as_identity(agent="a").state(agent="a").get("k")
{ending}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with holdfast.open(url) as store:
        assert len(store.audit.query(kind="read")) == (
            0 if "_exit" in ending else 1
        )  # what is lost is what is said to be
        assert store.audit.verify().ok


# Tampering --------------------------------------------------------------------------------------------------------


def rows_of(store: Store, line: str) -> list[Row]:
    (found,) = run(store._engine.context.backend.read([Scan(EVENTS, ("", line))]))
    return found


def test_what_was_tampered_with_is_named(store: Store, clock: Clock) -> None:
    use(store, clock)
    report = store.audit.verify()
    assert (report.ok, report.lines, report.rows) == (True, 3, 7)
    backend, line = store._engine.context.backend, "␞agent:a"

    def found(*changes: Any) -> list[str]:
        saved = rows_of(store, line) + rows_of(store, AUDIT)
        run(backend.apply(list(changes)))
        told = [each.what for each in store.audit.verify().findings]
        lines = {row.key[:2] for row in saved}
        run(backend.apply([Delete(EVENTS, key) for key in lines]))
        run(backend.apply([Put(EVENTS, row) for row in saved]))
        assert store.audit.verify().ok
        return told

    first, *_, last = rows_of(store, line)
    (told,) = found(Delete(EVENTS, first.key))
    assert told == "the row of the change of 'plan' is missing"
    (told,) = found(Put(EVENTS, first._replace(columns=(*first.columns[:2], "agent:z", *first.columns[3:]))))
    assert told == "the row of the change of 'plan' names another actor"
    (told,) = found(Put(EVENTS, first._replace(columns=(*first.columns[:6], "c2", *first.columns[7:]))))
    assert "correlation" in told
    (told,) = found(Put(EVENTS, first._replace(columns=(1, *first.columns[1:]))))
    assert told.startswith("its rows are not those")
    added = first._replace(columns=(*first.columns[:4], "forged", *first.columns[5:]))
    (told,) = found(Put(EVENTS, added._replace(key=(*first.key[:3], 7))))[:1]
    assert told == "a row was added that tells of a change of 'forged'"
    (told,) = found(Put(EVENTS, first._replace(key=(*first.key[:2], "0", 0))))
    assert told == "row 0 was added: there is no such step"
    denied = next(row for row in rows_of(store, AUDIT) if row.columns[5] == "denied")
    (told,) = found(Delete(EVENTS, denied.key))
    assert told.startswith("its rows are not those")
    (told,) = found(Put(EVENTS, denied._replace(body=last.body or b"x")))
    assert told.startswith("the details of a row")
    two = rows_of(store, line)[1:]
    assert "row 0 is missing" in found(Delete(EVENTS, min(row.key for row in two)))


def test_a_step_that_was_taken_out_is_missed(store: Store, clock: Clock) -> None:
    use(store, clock)
    backend = store._engine.context.backend
    (steps,) = run(backend.read([Scan(STEPS, ("", AUDIT, 0))]))
    run(backend.apply([Delete(STEPS, steps[0].key)]))
    whats = [each.what for each in store.audit.verify().findings]
    assert "steps 0 to 0 are missing" in whats
    assert "row 0 was added: there is no such step" in whats
    run(backend.apply([Put(STEPS, steps[0]._replace(body=steps[0].body[:-1]))]))
    assert len(store.audit.verify().findings) == 1


# For others to check ----------------------------------------------------------------------------------------------


def test_a_third_party_can_check_it(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock)
    path = tmp_path / "audit.jsonl"
    before = store.audit.export(path)
    store.state(agent="a")["more"] = 1
    done = store.audit.export(path)
    assert (done.lines, done.rows) == (3, 9)
    checked = holdfast.access.check_audit(path, before.heads)
    assert (checked.ok, checked.rows, checked.heads) == (True, 9, dict(done.heads))
    heads = store.maintenance.heads()
    for line, (length, commit) in done.heads.items():
        (main,) = heads.threads[line].branches
        assert (main.length, main.hash) == (length, commit)
    # An older file is not what went on from newer heads.
    store.state(agent="a")["yet more"] = 1
    later = store.audit.export(tmp_path / "later.jsonl")
    (finding,) = holdfast.access.check_audit(path, later.heads).findings
    assert finding.what == "step 3 is not the one that the heads say"


def written(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def rewritten(path: Path, change: Any) -> Path:
    """The file with a line changed, by somebody who knows how the digest at its end is made."""
    import hashlib

    documents = [json.loads(line) for line in path.read_text().splitlines()][:-1]
    change(documents)
    lines = list(map(written, documents))
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    other = path.with_name("other.jsonl")
    other.write_text("".join(lines) + written({"digest": digest}))
    return other


def test_a_file_that_was_altered_is_found_out(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock)
    path = tmp_path / "audit.jsonl"
    store.audit.export(path)

    def step(documents: list[dict[str, Any]]) -> dict[str, Any]:
        return next(each for each in documents if each.get("line") == "␞agent:a" and each["seq"] == 1)

    def spoiled(what: str) -> Any:
        def change(documents: list[dict[str, Any]]) -> None:
            found = step(documents)
            if what == "gone":
                documents.remove(found)
            elif what == "row":
                found["rows"].pop()
            elif what == "about":
                found["about"]["actor"] = "agent:z"
            elif what == "unreadable":
                found["metadata"] = "?"
            elif what == "damaged":
                found["damaged"] = "it was damaged"
            elif what == "heads":
                documents[-1]["heads"].pop("␞agent:a")
            else:
                found[what] = found[what][:-1] if isinstance(found[what], list) else "00" * 32

        return change

    expected = {
        "gone": "the ends of the lines are not those that the file says",
        "row": "the row of the change of 'other' is missing",
        "about": "what it says about itself is not its metadata",
        "hash": "its hash is not that of its content",
        "parents": "it does not follow the step before it",
        "operations": "its hash is not that of its content",
        "unreadable": "the line of the file cannot be read",
        "damaged": "it was damaged",
        "heads": "the ends of the lines are not those that the file says",
    }
    assert holdfast.access.check_audit(rewritten(path, lambda _: None)).ok
    for what, told in expected.items():
        checked = holdfast.access.check_audit(rewritten(path, spoiled(what)))
        assert not checked.ok
        assert any(each.what.startswith(told) for each in checked.findings), (what, checked.findings)
    whole = path.read_text()
    for broken in (whole[:-70], whole.replace("agent:a", "agent:z", 1), whole[:200] + "\n5\n", "[]\n", "{\n"):
        path.write_text(broken)
        with pytest.raises(CorruptError):
            list(export._documents(path))
    path.write_text(whole)
    assert holdfast.access.check_audit(path).ok
    for other_end in (whole[:-1], whole[:-1] + " ", whole[:-1] + "\t\n", whole[:-2] + " }\n"):
        path.write_text(other_end)
        with pytest.raises(CorruptError):
            holdfast.access.check_audit(path)
    for added in ("\n", whole.splitlines()[1], '{"line": "x"}\n'):
        path.write_text(whole + added)
        with pytest.raises(CorruptError, match="after the end"):
            holdfast.access.check_audit(path)
    path.write_text('{"kind": "else"}\n')
    with pytest.raises(InvalidError):
        holdfast.access.check_audit(path)


def test_exchanged_bodies_are_found_also_of_rows_without_details() -> None:
    """A body without details is a checksum of its row, so an exchange of two changes nothing that a digest covers."""
    with holdfast.open("memory://") as store:
        for number in range(2):
            store.state(agent="a")["k"] = number
            store.sessions.start(f"s{number}")
            store.access.grant("agent:b", "read", "agent:a", keys=f"k{number}")
        stored = store._engine.context.stored
        (rows,) = run(stored.read([Scan(EVENTS, ("",))]))
        exchanged = [pair for pair in combinations(rows, 2) if pair[0].body != pair[1].body]
        assert any(len(one.body) == len(other.body) for one, other in exchanged)
        assert store.audit.verify().ok
        for one, other in exchanged:
            swapped = one._replace(body=other.body), other._replace(body=one.body)
            run(stored.apply([Put(EVENTS, row) for row in swapped]))
            found = {each.step for each in store.audit.verify().findings}
            assert {str(row.key[2]) for row in swapped} <= found, (one, other)
            run(stored.apply([Put(EVENTS, one), Put(EVENTS, other)]))
        assert store.audit.verify().ok


def signed_again(path: Path, key: Ed25519PrivateKey) -> Path:
    """The file with its digest signed with another key, by somebody who knows how that is done."""
    *lines, end = path.read_text().splitlines(keepends=True)
    digest = json.loads(end)["digest"]
    signature = {"public_key": public_key_of(key), "signature": sign(f"holdfast audit 1 {digest}".encode(), key)}
    other = path.with_name("signed.jsonl")
    other.write_text("".join(lines) + written({"digest": digest} | signature))
    return other


@pytest.mark.parametrize("archived", [False, True], ids=["export", "segment"])
def test_an_export_is_signed_with_the_key_of_the_store(
    store: Store, clock: Clock, tmp_path: Path, archived: bool
) -> None:
    use(store, clock)
    path = tmp_path / "audit.jsonl"
    public_key = store.audit.export(path).public_key
    assert public_key == store.erasure.public_key()
    if archived:
        path = tmp_path / "segment.jsonl"
        assert store.audit.archive(path, older_than="0s").public_key == public_key
    check = partial(holdfast.access.check_audit, public_key=public_key.upper())
    assert (check(path).findings, check(path).public_key) == ([], public_key)

    def rename(documents: list[dict[str, Any]]) -> None:
        documents[0]["tenant"] = "other"  # which no hash of a step covers

    *lines, end = path.read_text().splitlines(keepends=True)
    zeros = b64encode(bytes(64)).decode()
    unsigned = rewritten(path, rename)
    assert holdfast.access.check_audit(unsigned).ok, "nobody can see it without the key"
    with pytest.raises(CorruptError, match="not signed"):
        check(unsigned)
    own = Ed25519PrivateKey.generate()
    resigned = signed_again(unsigned, own)
    assert holdfast.access.check_audit(resigned).public_key == public_key_of(own)
    with pytest.raises(CorruptError, match="signed with another key"):
        check(resigned)
    *changed, changed_end = unsigned.read_text().splitlines(keepends=True)
    signed = json.loads(end)
    for text, document in (
        (changed, signed | json.loads(changed_end)),  # with the signature of what it was
        *((lines, signed | more) for more in ({"signature": zeros}, {"signature": 5}, {"public_key": 5}, {"more": 1})),
    ):
        path.write_text("".join(text) + written(document))
        for verify in (check, holdfast.access.check_audit):
            with pytest.raises(CorruptError):
                verify(path)
    with pytest.raises(InvalidError, match="64 hex digits"):
        holdfast.access.check_audit(path, public_key="5f")


def test_an_export_of_a_store_that_is_only_read_is_signed_if_it_has_a_key(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.state(agent="a")["k"] = 1
    path = tmp_path / "audit.jsonl"
    reading = partial(holdfast.open, tmp_path / "a.db", read_only=True)
    with reading() as store:
        assert store.audit.export(path).public_key == ""
        assert holdfast.access.check_audit(path).ok
    with holdfast.open(tmp_path / "a.db") as store:
        public_key = store.erasure.public_key()
    with reading() as store:
        assert store.audit.export(path).public_key == public_key
        assert holdfast.access.check_audit(path, public_key=public_key).ok


def stub_of(store: Store, line: str, seq: int, *, proven: bool = True) -> Change:
    """Turn a step into the stub that pruning it would leave; or into one that proves nothing."""
    (rows,) = run(store._engine.context.backend.read([Scan(STEPS, ("", line, 0), (seq,), (seq + 1,))]))
    step = open_step(Line("", line), rows[0], 1 << 20)
    salt = run(store._engine.lines.salt(Line("", line)))
    proof = StubProof.of(step.header, step.digests(salt)) if proven else None
    return Put(STEPS, StepRef.of(rows[0]).stub((), proof).row(Line("", line), b""))


def check_both(store: Store, path: Path) -> tuple[list[str], list[str]]:
    """What the store finds, and what a third party finds."""
    store.audit.export(path)
    found = [each.what for each in store.audit.verify().findings]
    return found, [each.what for each in holdfast.access.check_audit(path).findings]


def test_rows_stay_proven_when_their_steps_are_pruned(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        store.state(agent="a")["k"] = number
    store.maintenance.prune("agent:a", kinds="scope", keep_last=1)
    backend, path, line = store._engine.context.backend, tmp_path / "audit.jsonl", "␞agent:a"
    report = store.audit.verify()
    assert (report.ok, report.pruned, report.unproven, report.rows) == (True, 3, 0, 5)
    assert sorted(each.action for each in store.audit.query()) == ["prune", *["set"] * 4]
    done = store.audit.export(path)
    checked = holdfast.access.check_audit(path, done.heads)
    assert (checked.ok, checked.pruned, checked.rows) == (True, 3, 6)  # and that of the key which signed it
    assert store.maintenance.verify().findings == []
    first, *_ = rows = rows_of(store, line)
    altered = "its rows are not those that it was written with: altered, missing at the end, or added"
    for change in (
        Put(EVENTS, first._replace(columns=(*first.columns[:2], "agent:z", *first.columns[3:]))),
        Put(EVENTS, first._replace(columns=(1, *first.columns[1:]))),
        Put(EVENTS, first._replace(key=(*first.key[:3], 1))),
        Delete(EVENTS, first.key),
    ):
        run(backend.apply([change]))
        assert check_both(store, path) == ([altered], [altered])
        run(backend.apply([Delete(EVENTS, ("", line)), *(Put(EVENTS, row) for row in rows)]))
        assert check_both(store, path) == ([], [])
    run(backend.apply([Put(EVENTS, first._replace(key=(*first.key[:2], f"{first.key[2]!s}0", 0)))]))
    assert check_both(store, path)[0] == ["row 0 was added: there is no such step"]


def test_a_step_that_was_made_a_stub_hides_nothing(store: Store, tmp_path: Path) -> None:
    """Somebody who can write to the store makes a step look as if it had been pruned."""
    for number in range(3):
        store.state(agent="a")["k"] = number
        store.access.grant("agent:b", "read", "agent:a")
    heads, path = store.maintenance.heads(), tmp_path / "audit.jsonl"
    backend = store._engine.context.backend
    kept = run(backend.read([Scan(STEPS, ("",)), Scan(EVENTS, ("",))]))

    def restore() -> None:
        changes = [Delete(STEPS, ("",)), Delete(EVENTS, ("",))]
        tables = zip((STEPS, EVENTS), kept, strict=True)
        run(backend.apply([*changes, *(Put(table, row) for table, rows in tables for row in rows)]))
        assert (check_both(store, path), store.audit.verify(heads).ok) == (([], []), True)

    never, nothing = "nothing is ever pruned here", "nothing proves which records it had"
    for line, proven, told in (("␞access", True, never), ("␞access", False, never), ("␞agent:a", False, nothing)):
        run(backend.apply([stub_of(store, line, 1, proven=proven)]))
        for (found,) in check_both(store, path):
            assert told in found
        restore()
    (row, *_) = rows_of(store, "␞agent:a")
    run(backend.apply([stub_of(store, "␞agent:a", 0), Delete(EVENTS, row.key)]))
    for (found,) in check_both(store, path):
        assert found.startswith("its rows are not those")
    restore()
    # With another digest of its rows, it is not the step that the next one follows.
    step = stub_of(store, "␞agent:a", 0)
    assert isinstance(step, Put)
    stub = StepRef.of(step.row)
    assert stub.proof is not None
    forged = stub._replace(metadata="").stub((), stub.proof._replace(events=digest([])))
    run(backend.apply([Put(STEPS, forged.row(Line("", "␞agent:a"), b"")), Delete(EVENTS, row.key)]))
    for (found,) in check_both(store, path):
        assert "is not that of the step" in found
    assert store.maintenance.verify(kinds="scope").damage
    restore()


def test_a_cut_off_end_is_seen_with_heads(store: Store, clock: Clock, tmp_path: Path) -> None:
    use(store, clock)
    heads, exported = store.maintenance.heads(), store.audit.export(tmp_path / "audit.jsonl").heads
    with pytest.raises(DeniedError):
        store.as_identity(agent="b").state(agent="z").get("k")
    for each in (heads, exported, store.maintenance.heads()):
        report = store.audit.verify(each)
        assert (report.ok, report.compared) == (True, 3)
    later = store.maintenance.heads()
    backend = store._engine.context.backend
    (steps,) = run(backend.read([Scan(STEPS, ("", AUDIT, 0))]))
    id = str(steps[-1].columns[0])
    run(backend.apply([Delete(STEPS, steps[-1].key), Delete(EVENTS, ("", AUDIT, id))]))
    report = store.audit.verify()
    assert (report.ok, report.compared) == (True, None), "nothing shows it without heads"
    assert store.audit.verify(heads).ok, "they are older"
    (finding,) = store.audit.verify(later).findings
    assert (finding.line, finding.what) == (AUDIT, f"step {len(steps) - 1} is not the one that the heads say")


def test_an_erasure_removes_the_salts(store: Store) -> None:
    def proofs() -> list[StubProof | None]:
        (rows,) = run(store._engine.context.backend.read([Scan(STEPS, ("", "␞agent:a", 0))]))
        return [point.proof for point in map(StepRef.of, rows) if point.pruned]

    def content(proof: StubProof, step: Step) -> bytes:
        """What the stub would have, if this had been the step."""
        salt = run(store._engine.lines.salt(Line("", "␞agent:a")))
        return StubProof.of(step.header._replace(salt=proof.salt or b"?"), step.digests(salt)).content

    store.state(agent="a")["k"] = "yes"
    (steps,) = run(store._engine.context.backend.read([Scan(STEPS, ("", "␞agent:a", 0))]))
    guess = open_step(Line("", "␞agent:a"), steps[0], 1 << 20)
    store.state(agent="a")["k"] = "no"
    store.state(agent="a")["k"] = "perhaps"
    store.maintenance.prune("agent:a", kinds="scope", keep_last=2)
    (proof,) = proofs()
    assert proof is not None
    assert content(proof, guess) == proof.content, "who knows the content can prove it"
    store.maintenance.prune("agent:a", kinds="scope", keep_last=1, erase=True)
    erased = proofs()
    assert [each is not None and not each.salt for each in erased] == [True, True], "also of those pruned before"
    assert erased[0] is not None
    assert content(erased[0], guess) != erased[0].content
    assert store.audit.verify().ok
    assert store.maintenance.verify().findings == []
    store.state(agent="a")["k"] = "last"
    store.maintenance.prune("agent:a", kinds="scope", keep_last=1)
    assert [bool(each and each.salt) for each in proofs()] == [False, False, True]
    store.maintenance.prune("agent:a", kinds="scope", keep_last=1, erase=True)
    assert [bool(each and each.salt) for each in proofs()] == [False, False, False], (
        "where nothing else is removed, too"
    )


def test_names_that_are_none_are_noted_without_harm() -> None:
    assert recorder.escape("a\nb\0" + "x" * 900)[:8] == "a\\nb\\x00"
    assert len(recorder.escape("\U0001f600" * 900)) <= 200
    assert recorder.escape(b"bytes") == "<bytes>"


def test_notes_are_of_one_store(clock: Clock) -> None:
    one, other = store_on(MemoryBackend(), clock), store_on(MemoryBackend(), clock)
    assert isinstance(one._recorder(), AuditRecorder)
    assert one._recorder() is one._recorder()
    assert one._recorder() is not other._recorder()
    assert replace(one._handle, tenant="x") != one._handle
