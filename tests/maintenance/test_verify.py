"""Verifying finds every row that is missing, altered, exchanged or copied; against heads, also what no hash covers."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast._views import plain
from holdfast.backends.interface import Delete, Put, Query, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BRANCHES, HEADS, LINES, NODES, REFS, STEPS, TABLES, WORDS
from holdfast.backends.wrappers import Wrapper
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.checked_rows import CheckedBackend
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.verify import heads as heads_module
from holdfast.maintenance.verify.heads import (
    BranchHead,
    PackedHeads,
    StoreHeads,
    ThreadHead,
    compare_head,
    export_heads,
)
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.maintenance import damage
from tests.maintenance.damage import LINE, found_in, loaded, memory, small
from tests.support.nightly import by_day, mostly_nightly


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("level", list(VerifyLevel))
def test_nothing_is_found_in_a_sound_thread(pruned: bool, level: VerifyLevel) -> None:
    assert found_in(loaded(small(pruned=pruned)), level) == []


@pytest.mark.nightly  # by day, the test of what no hash covers tries the same of the pruned thread
@pytest.mark.parametrize("pruned", [False, True])
def test_every_missing_and_every_altered_row_is_found(pruned: bool) -> None:
    rows = small(pruned=pruned)
    for what, damaged in (*damage.missing(rows), *damage.altered(rows)):
        assert found_in(loaded(damaged)) or damage.named(what, rows) in damage.UNCOVERED, what


@pytest.mark.parametrize("pruned", [False, True])
def test_every_exchange_and_every_copy_of_rows_is_found(pruned: bool) -> None:
    rows = small(pruned=pruned)
    every = list(damage.exchanged(rows))
    for what, damaged in Random(1).sample(every, by_day(len(every), 50)):
        assert found_in(loaded(damaged)) or damage.named(what, rows) in damage.UNCOVERED, what


def test_what_no_hash_covers() -> None:
    """Exactly this, and the guide says so."""
    rows = small(pruned=True)
    every = [*damage.missing(rows), *damage.altered(rows)]
    every += [each for each in damage.exchanged(rows) if each[0][1] in (BRANCHES, REFS)]
    missed = {damage.named(what, rows) for what, damaged in every if not found_in(loaded(damaged))}
    assert missed == damage.UNCOVERED


@pytest.mark.parametrize("pruned", mostly_nightly([False, True], daily=[True]))
def test_against_heads_everything_is_found(pruned: bool) -> None:
    rows = small(pruned=pruned)
    heads = run(export_heads(loaded(rows), ""))
    every = [*damage.missing(rows), *damage.altered(rows), *Random(2).sample(list(damage.exchanged(rows)), 40)]
    for what, damaged in every:
        engine = loaded(damaged)
        found = run(compare_head(engine, heads, "t", {})) or found_in(engine)
        # A version that goes up is what an honest change makes of it.
        assert found or what[3] == "version", what


def test_findings_name_what_cannot_be_read() -> None:
    rows = small(pruned=False)
    key = (*LINE, 0, 1)
    body = bytearray(rows[STEPS, key].body)
    body[-1] ^= 1
    (finding,) = found_in(loaded({**rows, (STEPS, key): rows[STEPS, key]._replace(body=bytes(body))}))
    assert finding.code is FindingCode.DAMAGED_STEP
    assert (finding.checkpoint, finding.place, finding.affected, finding.affected_count) == ("1", (0, 1), ["1"], 1)
    sent = plain(finding)
    assert (sent["code"], sent["severity"], sent["place"]) == ("damaged-step", "damage", [0, 1])
    assert "checkpoint 1" in str(finding)


# The whole store ----------------------------------------------------------------------------------------------


def filled(path: Path, threads: int = 3) -> Store:
    store = holdfast.open(f"sqlite:///{path}/store.db")
    for number in range(threads):
        for turn in range(5):
            store.thread(f"thread {number}").put({"messages": [f"message {n}" for n in range(turn + 1)]})
    return store


def test_a_store_is_verified_in_parts(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        told: list[tuple[int, int | None, str]] = []
        first = store.maintenance.verify(limit=2, progress=lambda *seen: told.append(seen))
        assert (first.threads, first.next, first.ok) == (2, "thread 1", True)
        assert told == [(1, 3, "thread 0"), (2, 3, "thread 1")]
        rest = store.maintenance.verify(after="thread 1")
        assert (rest.threads, rest.next, rest.steps) == (1, None, 5)
        assert plain(rest)["ok"] is True


def test_wrong_questions(tmp_path: Path) -> None:
    with filled(tmp_path, 1) as store:
        with pytest.raises(NotFoundError):
            store.maintenance.verify("no such thread")
        with pytest.raises(InvalidError, match="level"):
            store.maintenance.verify(level="deep")
        with pytest.raises(InvalidError, match="tenant"):
            store.maintenance.verify(heads=StoreHeads("other", "", "", {}))


def test_rows_of_no_thread_are_told(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as store:
        backend = store._engine.context.backend
        run(backend.apply([Delete(LINES, ("", "thread 1"))]))
        (found,) = store.maintenance.verify().damage
        assert (found.code, found.thread) == (FindingCode.MISSING_THREAD, "thread 1")
        run(backend.apply([Delete(STEPS, ("", "thread 1"))]))
        run(backend.apply([Put(NODES, Row(("", "stray", 1, bytes(20)), (), b"body"))]))
        report = store.maintenance.verify()
        assert report.ok
        assert [each.code for each in report.findings] == [FindingCode.ORPHAN]


def test_readable_rows_and_words_are_compared_with_the_log(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", project=True) as store:
        for turn in range(4):
            store.thread("t").put({"messages": [{"role": "user", "content": f"message {n}"} for n in range(turn)]})
        store.maintenance.build_index()
        assert store.maintenance.verify(level="decode").findings == []
        backend = store._engine.context.backend
        (heads, words) = run(backend.read([Scan(HEADS, ("", "t")), Scan(WORDS, ("", "t"))]))
        run(backend.apply([Put(HEADS, heads[0]._replace(columns=("x", *heads[0].columns[1:])))]))
        run(backend.apply([Delete(WORDS, words[-1].key)]))
        report = store.maintenance.verify(level="decode")
        assert report.ok
        assert {each.code for each in report.findings} == {FindingCode.STALE_ROWS, FindingCode.STALE_WORDS}
        assert store.maintenance.repair().rebuilt == ["t"]
        assert store.maintenance.verify(level="decode").findings == []


def test_writers_at_work_cause_no_false_alarm(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as store:
        stop = threading.Event()

        def write() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                state = {"messages": [f"message {n}" for n in range(turn % 40)]}
                store.thread("thread 0").put(state, branch="side" if turn % 3 == 0 and turn > 6 else "main")
                if turn == 5:
                    store.thread("thread 0").fork("side")
                if turn % 20 == 0:
                    store.maintenance.compact("thread 0")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for level in ("structure", "hashes", "decode", "hashes"):
                assert store.maintenance.verify(level=level).findings == []
        finally:
            stop.set()
            writer.join()


# Heads --------------------------------------------------------------------------------------------------------


def test_heads_are_kept_in_a_file(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        heads = store.maintenance.heads()
        heads.save(tmp_path / "heads.json")
        assert StoreHeads.load(tmp_path / "heads.json") == heads
        assert store.maintenance.verify(heads=heads).findings == []
        text = (tmp_path / "heads.json").read_text()
        (tmp_path / "heads.json").write_text(text.replace('"length": 5', '"length": 4', 1))
        with pytest.raises(CorruptError):
            StoreHeads.load(tmp_path / "heads.json")
        (tmp_path / "heads.json").write_text("{}")
        with pytest.raises(InvalidError):
            StoreHeads.load(tmp_path / "heads.json")
        with pytest.raises(InvalidError):
            StoreHeads.load(tmp_path / "none.json")


def codes(found: list[Finding]) -> set[FindingCode]:
    return {each.code for each in found}


@pytest.mark.parametrize("hide_names", [None, False, True], ids=["clear", "encrypted", "hidden"])
def test_heads_of_many_lines(hide_names: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "_PART", 3)
    encryption = None if hide_names is None else Encryption(LocalKeys(b"m" * 32), hide_names=hide_names)
    file, names = tmp_path / "heads.json", [f"chat {number}" for number in (*range(10), "line\nbreak")]
    with holdfast.open("memory://", encryption=encryption) as store:
        for number, name in enumerate(reversed(names)):
            store.thread(name).put({"n": number}, tag=f"tag {number}")
        heads = store.maintenance.heads(kinds="thread")
        by_name = dict(heads.threads)
        assert sorted(heads.threads) == sorted(by_name) == sorted(names)
        assert heads.threads == by_name
        assert (len(heads.threads), by_name) == (11, {name: heads.threads[name] for name in reversed(names)})
        for absent in ("", "a", "chat 33", "zzz"):
            assert absent not in heads.threads
        heads.save(file)
        loaded = store.maintenance.load_heads(file)
        assert (loaded, loaded.threads["chat 7"]) == (heads, by_name["chat 7"])
        assert store.maintenance.verify(heads=loaded).findings == []
        store.thread("chat 7").delete()
        assert [each.thread for each in store.maintenance.verify(heads=loaded).findings] == ["chat 7"]
    if encryption is None:
        assert isinstance(loaded.threads, PackedHeads), "it was read line by line"
        file.write_text(json.dumps(json.loads(file.read_text()), indent=1))
        assert StoreHeads.load(file) == heads, "in another form, too"
        for old, new in (
            (', "chat 7"', ', "chat 8"'),
            ('"time"', '"then"'),
            ("}, ", ""),
            ('"length": 1', '"length": 2'),
        ):
            heads.save(file)
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new, 1))
            with pytest.raises((CorruptError, InvalidError)):
                StoreHeads.load(file)


def test_heads_of_a_million_lines_would_take_a_hundred_megabytes() -> None:
    def bytes_of(made: PackedHeads | dict[str, ThreadHead], count: int) -> float:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            steps, end = (hashlib.sha256(f"{number} {each}".encode()).hexdigest() for each in range(2))
            branch = BranchHead(0, "", 0, 0, 0, 2, end)
            head = ThreadHead(10**18 + number * 10**9, 1 << 60 | number, 1, (branch,), steps, "0" * 64, "0" * 64)
            made.add(f"chat-{number:07}", head) if isinstance(made, PackedHeads) else made.update({f"{number}": head})
        return (tracemalloc.get_traced_memory()[0] - before) / count

    tracemalloc.start()
    try:
        assert bytes_of(packed := PackedHeads(), 5000) < 130
        assert bytes_of(by_name := dict[str, ThreadHead](), 1000) > 500, "the control"
    finally:
        tracemalloc.stop()
    assert (len(packed), len(by_name)) == (5000, 1000)


def test_a_cut_off_end_is_found_and_honest_changes_are_told_apart(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        old = store.thread("thread 0").log()[2].id
        store.thread("thread 0").fork("side", at=old)
        store.thread("thread 0").put({"x": 1}, branch="side")
        heads = store.maintenance.heads()
        store.thread("thread 0").put({"messages": []})
        assert store.maintenance.verify(heads=heads).findings == []
        backend = store._engine.context.backend
        run(backend.apply([Delete(STEPS, ("", "thread 1", 0, 4))]))
        assert store.maintenance.verify("thread 1").ok
        (found,) = store.maintenance.verify(heads=heads).damage
        assert (found.code, found.thread) == (FindingCode.CUT_OFF, "thread 1")
        store.thread("thread 2").delete()
        report = store.maintenance.verify(heads=heads)
        assert FindingCode.GONE_THREAD in codes(report.findings)
        assert codes(report.damage) == {FindingCode.CUT_OFF}
        store.thread("thread 2").put({"made": "anew"})
        assert FindingCode.GONE_THREAD in codes(store.maintenance.verify("thread 2", heads=heads).findings)
        store.thread("thread 0").rename_branch("side", "other")
        store.thread("thread 0").tag("end")
        notices = store.maintenance.verify("thread 0", heads=heads).findings
        assert codes(notices) == {FindingCode.RENAMED_BRANCH, FindingCode.CHANGED_NAMES}
        assert all(each.severity is Severity.NOTICE for each in notices)
        store.maintenance.prune(keep_last=2, threads="thread 0")
        assert store.maintenance.verify("thread 0", heads=heads).ok


def test_a_rolled_back_thread_is_found() -> None:
    backend = memory()
    store = store_on(backend)
    for turn in range(3):
        store.thread("t").put({"turn": turn}, id=str(turn))
    before = damage.rows_of(backend)
    store.thread("t").fork("side", at="1")
    heads = run(export_heads(store._engine, ""))
    engine = loaded(before)
    (found,) = run(compare_head(engine, heads, "t", {}))
    assert found.code is FindingCode.ROLLED_BACK


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_against_heads_what_is_gone_is_found(kind: str, tmp_path: Path) -> None:
    """Branches and threads that went without anybody saying so, and files of yesterday."""
    (tmp_path / "today").mkdir()
    url = f"sqlite:///{tmp_path}/today/store.db" if kind == "sqlite" else f"file://{tmp_path}/today"
    with holdfast.open(url) as store:
        for turn in range(4):
            for thread in ("a", "b"):
                store.thread(thread).put({"turn": turn}, id=str(turn))
    shutil.copytree(tmp_path / "today", tmp_path / "yesterday")
    with holdfast.open(url) as store:
        store.thread("a").put({"turn": 4})
        store.thread("b").fork("side", at="2")
        store.thread("b").put({"side": 1}, branch="side")
        store.thread("c").put({"new": 1})
        heads = store.maintenance.heads()
        assert store.maintenance.verify(heads=heads).findings == []
        backend = store._engine.context.backend
        run(backend.apply([Delete(BRANCHES, ("", "b", 1)), Delete(STEPS, ("", "b", 1))]))
        run(backend.apply([Delete(space, ("", "c")) for space in TABLES]))
        assert store.maintenance.verify().ok
        report = store.maintenance.verify(heads=heads)
        assert [(each.thread, each.code) for each in report.findings] == [
            ("b", FindingCode.OTHER_HISTORY), ("c", FindingCode.GONE_THREAD),
        ]  # fmt: skip
    shutil.rmtree(tmp_path / "today")
    (tmp_path / "yesterday").rename(tmp_path / "today")
    with holdfast.open(url) as store:
        assert store.maintenance.verify().ok
        found = {(each.thread, each.code) for each in store.maintenance.verify(heads=heads).findings}
    assert found == {("a", FindingCode.CUT_OFF), ("b", FindingCode.ROLLED_BACK), ("c", FindingCode.GONE_THREAD)}


def test_what_is_gone_is_told_once_also_in_parts(tmp_path: Path) -> None:
    with filled(tmp_path, 5) as store:
        heads = store.maintenance.heads()
        for number in (0, 2, 4):
            store.thread(f"thread {number}").delete()
        gone: list[str] = []
        told: list[Finding] = []
        after: str | None = ""
        while after is not None:
            report = store.maintenance.verify(heads=heads, after=after, limit=1, each=told.append)
            gone += [each.thread for each in report.findings]
            after = report.next
        assert gone == [each.thread for each in told] == ["thread 0", "thread 2", "thread 4"]


def test_heads_do_not_depend_on_the_kind_of_store(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as store, holdfast.open("memory://") as memory:
        store.thread("thread 0").tag("end")
        store.maintenance.copy_to(memory)
        assert memory.maintenance.verify(heads=store.maintenance.heads()).findings == []
        assert store.maintenance.verify(heads=memory.maintenance.heads()).findings == []


def test_a_cut_off_end_is_told_though_names_cannot_be_read() -> None:
    class Unreadable(Wrapper):
        async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
            if any(query.space is REFS for query in queries):
                raise CorruptError("a page is damaged")
            return await self.inner.read(queries)

    backend = memory()
    store = store_on(backend)
    for turn in range(3):
        store.thread("t").put({"turn": turn})
    heads = store.maintenance.heads()
    run(backend.apply([Delete(STEPS, ("", "t", 0, 2))]))
    found = run(compare_head(store_on(CheckedBackend(Unreadable(backend)))._engine, heads, "t", {}))
    assert [each.code for each in found] == [FindingCode.CUT_OFF]


def test_a_long_thread_tells_how_far_it_has_got(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", synchronous="normal") as store:
        for _ in range(3):
            with store.transaction() as together:
                for turn in range(200):
                    together.put("t", {"turn": turn})
        told: list[tuple[int, int | None, str]] = []
        store.maintenance.verify(progress=lambda *seen: told.append(seen))
    assert told == [(0, 1, "t (1,000 rows)"), (1, 1, "t")]
