"""Migrations of all states: planned first, resumed after a kill, shared by processes, and taken back."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Backend, Batch, Change, Create
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.line_ends import LineEnd, LineEnds
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, TransientError
from holdfast.maintenance.migration import bulk, plan
from holdfast.maintenance.migration.heads import read_groups
from holdfast.schemas import Migration, SchemaSet, convert
from tests.damaged import flipped
from tests.engine.lines import store_on
from tests.migration.versions import CHAT_1, CHAT_2, ONE, THREE, TO_2, TWO, first, second
from tests.servers.places import KINDS, place
from tests.support.faults import Fault, Faults
from tests.support.kills import count_kill
from tests.support.nightly import by_day, mostly_nightly
from tests.support.sealing import CountingRows, XorSealer, assert_all_sealed, sealed_store

COUNT = 25


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 4)
    monkeypatch.setattr(plan, "PAGE", 4)


@pytest.fixture(params=mostly_nightly([kind for kind in KINDS if kind != "memory"], daily=("sqlite",)))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with holdfast.open(place(request.param, tmp_path)) as opened:
        yield opened


def fill(store: Store, count: int = COUNT) -> None:
    store.schemas.attach(ONE, threads="chat-*")
    for number in range(count):
        store.thread(f"chat-{number:02}").put(first(number))
    store.schemas.detach(threads="chat-*")
    store.thread("other").put({"not": "ours"})


def stored(store: Store, count: int = COUNT) -> list[dict[str, Any]]:
    return [dict(store.thread(f"chat-{number:02}").get().state) for number in range(count)]


def without_aside(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in state.items() if key != "__aside__"} for state in states]


FIRSTS, SECONDS = [[make(number) for number in range(COUNT)] for make in (first, second)]


def test_up_and_down(store: Store) -> None:
    fill(store)
    before = {each.thread: store.thread(each.thread).find().hash for each in store.threads()}
    planned = store.schemas.plan(TWO)
    assert (planned.ok, planned.pending, planned.states) == (True, COUNT, {"1.0.0": COUNT})
    assert planned.migrations == ["chat 1.0.0 -> 2.0.0"]
    assert (planned.samples[0].before, planned.samples[0].after) == (first(), second())
    assert stored(store) == FIRSTS, "nothing is written by a plan"
    seen: list[tuple[int, int | None, str]] = []
    report = store.schemas.up(TWO, progress=lambda *each: seen.append(each))
    assert (report.migrated, report.skipped, report.complete) == (COUNT, 0, True)
    assert seen[-1][0] == COUNT + 1
    assert without_aside(stored(store)) == SECONDS
    step = store.thread("chat-00").find()
    assert (step.kind, step.schema, step.metadata) == ("migrate", "chat@2.0.0", {"migrated": "chat@1.0.0"})
    assert store.thread("other").get().state == {"not": "ours"}
    assert store.schemas.up(TWO).skipped == COUNT
    assert store.schemas.registered().retired == {"chat@1.0.0"}
    report = store.schemas.down(TWO, to="1.0.0")
    assert (report.migrated, report.restored) == (COUNT, COUNT)
    assert stored(store) == FIRSTS
    for name, commit in before.items():
        assert store.thread(name).find(at="#0").hash == commit, "no old step changes"
    assert store.maintenance.verify().ok


def test_states_that_were_changed_since_are_downgraded_by_the_migrations(store: Store) -> None:
    fill(store, 3)
    store.schemas.up(TWO)
    store.schemas.attach(TWO, threads="chat-*")
    store.thread("chat-01").update({"count": "77", "plan": ["kept aside"]})
    report = store.schemas.down(TWO, to="1.0.0")
    assert (report.migrated, report.restored) == (3, 2)
    store.schemas.detach(threads="chat-*")
    down = store.thread("chat-01").get().state
    assert {key: value for key, value in down.items() if key != "__aside__"} == first(1) | {"count": 77}
    store.schemas.up(TWO)
    assert store.thread("chat-01").get().state["plan"] == ["kept aside"], (
        "what the downgrade had to drop is there again"
    )


def test_after_a_downgrade_the_newer_program_cannot_attach(store: Store) -> None:
    fill(store, 3)
    store.schemas.attach(TWO, threads="chat-*")
    store.thread("chat-00").put(second(5))
    store.schemas.down(TWO, to="1.0.0")
    with pytest.raises(ConflictError) as refused:
        store.thread("chat-00").put(second(6))
    assert refused.value.code == "schema-downgraded"
    store.schemas.attach(ONE, threads="chat-*")
    store.thread("chat-00").put(first(6))
    store.schemas.up(TWO)
    store.schemas.attach(TWO, threads="chat-*")
    store.thread("chat-00").put(second(7))


def test_over_two_versions(store: Store) -> None:
    fill(store, 3)
    store.schemas.up(THREE)
    expected = second(2)
    del expected["count"]
    assert without_aside([store.thread("chat-02").get().state]) == [expected]
    store.schemas.down(THREE, to="2.1.0")
    assert without_aside([store.thread("chat-02").get().state]) == [second(2)]
    store.schemas.down(THREE, to="1.0.0")
    assert store.thread("chat-02").get().state == first(2)


def test_branches_by_policy(store: Store) -> None:
    fill(store, 2)
    thread = store.thread("chat-00")
    start = thread.find()
    thread.fork("named", changes={"count": 10})
    thread.put(first(1))
    for number in (11, 12):  # each opens a branch without a name, and the last one is HEAD
        thread.put(first(number), parent=start)
    report = store.schemas.up(TWO, branches="newest")
    assert report.migrated == 2
    assert thread.get(at="named").state["count"] == 10
    assert not store.schemas.registered().retired, "others have the version still"
    assert store.schemas.up(TWO, branches="named").migrated == 2, "and main"
    assert thread.get(at="named").state["count"] == "10"
    head = thread.find().id
    assert store.schemas.up(TWO).migrated == 1
    assert thread.find().id == head, "HEAD stays where it is"
    assert {thread.get(at=each.head).schema for each in thread.branches() if each.head} == {"chat@2.0.0"}
    assert store.schemas.registered().retired == {"chat@1.0.0"}
    store.schemas.down(TWO, to="1.0.0")
    assert thread.get(at="named").state == first() | {"count": 10}
    assert store.maintenance.verify().ok


def failing(number: int) -> SchemaSet:
    def up(value: int) -> str:
        if value == number:
            raise ValueError("this one fails")
        return str(value)

    others = [each for each in TO_2.operations if each.kind != "convert"]
    return SchemaSet(CHAT_1, CHAT_2, Migration("chat", "1.0.0", "2.0.0", *others, convert("count", up, int)))


def test_a_plan_lists_what_does_not_fit_and_nothing_is_written(store: Store) -> None:
    fill(store, 10)
    planned = store.schemas.plan(failing(6))
    (unfit,) = planned.unfit
    assert (unfit.thread, unfit.step, unfit.code) == ("chat-06", 0, "migration-failed")
    with pytest.raises(ConflictError) as refused:
        store.schemas.up(failing(6))
    assert refused.value.code == "migration-unfit"
    assert "chat-06" in refused.value.where
    assert stored(store, 10) == FIRSTS[:10]


def test_a_stored_state_that_does_not_fit_its_own_version(store: Store) -> None:
    fill(store, 3)
    store.thread("chat-01").update({"msgs": [1]})
    (unfit,) = store.schemas.plan(TWO).unfit
    assert (unfit.thread, unfit.path, unfit.code) == ("chat-01", "msgs[0]", "schema-mismatch")


@pytest.mark.parametrize("on_error", ["stop", "skip", "rollback"])
def test_a_state_that_fails_later(store: Store, on_error: Any) -> None:
    fill(store, 10)
    if on_error == "skip":
        report = store.schemas.up(failing(6), on_error="skip")
        assert (report.migrated, report.complete) == (9, False)
        assert [(each.thread, each.step) for each in report.unfit] == [("chat-06", 0)]
    else:
        with pytest.raises(InvalidError) as failed:
            store.schemas.up(failing(6), on_error=on_error, check_first=False)
        assert "chat-06" in failed.value.where
        assert "convert count" in failed.value.where
    states = without_aside(stored(store, 10))
    expected = {
        "stop": SECONDS[:6] + FIRSTS[6:10],
        "skip": SECONDS[:6] + FIRSTS[6:7] + SECONDS[7:10],
        "rollback": FIRSTS[:10],
    }
    assert states == expected[on_error]
    assert store.maintenance.verify().ok
    if on_error != "rollback":
        with pytest.raises(ConflictError, match="edited"):
            store.schemas.up(TWO)
        assert store.schemas.up(TWO, accept_edited=True).complete, "the corrected migration goes on"
        assert without_aside(stored(store, 10)) == SECONDS[:10]


def test_writers_go_on_meanwhile(store: Store) -> None:
    """A step that is saved between reading and writing of a page is migrated, too, and never overwritten."""
    fill(store, 12)
    added: list[str] = []

    def write(done: int, total: int | None, name: str) -> None:
        del total, name
        for number in range(min(done, 11), 12):
            thread = f"chat-{number:02}"
            if thread not in added:
                store.thread(thread).put(store.thread(thread).get().state | {"count": 100 + number}, kind="meanwhile")
                added.append(thread)

    store.schemas.up(TWO, progress=write)
    assert added
    states = without_aside(stored(store, 12))
    for number in range(12):
        log = [each.kind for each in store.thread(f"chat-{number:02}").log()]
        count = states[number]["count"]
        if f"chat-{number:02}" in added and log[0] == "migrate":
            assert count == str(100 + number)


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_writer_between_reading_and_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_branches: bool
) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "a.db") as other:
        fill(store, 4)
        if has_branches:
            for number in range(4):
                store.thread(f"chat-{number:02}").fork("side")
        struck: list[bool] = []

        def interfere(line: Line) -> None:
            if line.name == "chat-02" and not struck:
                struck.append(True)
                other.thread("chat-02").put(first(2) | {"count": 99})

        build, prepare = bulk.BulkMigration._build, LineEnds.prepare

        async def build_one(self: Any, head: Any) -> Any:
            step = await build(self, head)
            interfere(head.line)
            return step

        def prepare_one(self: Any, end: LineEnd, *fields: Any) -> Any:
            assert not has_branches, "lines with branches are not short"
            interfere(end.line)
            return prepare(self, end, *fields)

        monkeypatch.setattr(bulk.BulkMigration, "_build", build_one)
        monkeypatch.setattr(LineEnds, "prepare", prepare_one)
        report = store.schemas.up(TWO)
        assert struck
        assert report.migrated == (8 if has_branches else 4), "the branches, too"
        assert without_aside(stored(store, 4)) == [second(number) for number in (0, 1)] + [
            second(2) | {"count": "99"},
            second(3),
        ]
        migrated = ["migrate"] * (2 if has_branches else 1)
        assert [each.kind for each in store.thread("chat-02").log()] == [*migrated, "save", "save"]


def test_on_a_sealed_store() -> None:
    """What is kept aside is sealed as everything is."""
    inner, rows = MemoryBackend(), CountingRows(XorSealer())
    store = sealed_store(inner, rows, fold_every=32)
    fill(store, 6)
    assert store.schemas.up(TWO).migrated == 6
    assert without_aside(stored(store, 6)) == SECONDS[:6]
    assert_all_sealed(inner, rows, ["hello"])  # shorter text may be in random bytes by chance
    assert store.schemas.down(TWO, to="1.0.0").restored == 6
    assert stored(store, 6) == FIRSTS[:6]
    assert store.maintenance.verify().ok


class Lying(Wrapper):
    """A store that acknowledges steps of migrations, and loses or alters them."""

    def __init__(self, inner: Backend, alter: bool) -> None:
        super().__init__(inner)
        self._alter = alter
        self.lies = 0

    async def apply(self, batch: Batch) -> int | None:
        changes: list[Change] = []
        for change in batch:
            if isinstance(change, Create) and change.space is STEPS and change.row.columns[5] == "migrate":
                self.lies += 1
                if self._alter:
                    changes.append(Create(STEPS, change.row._replace(body=flipped(change.row.body, -20))))
            else:
                changes.append(change)
        return await self.inner.apply(changes)


@pytest.mark.parametrize("alter", [False, True])
@pytest.mark.parametrize("has_branches", [False, True])
def test_what_was_written_is_read_again(alter: bool, has_branches: bool) -> None:
    inner = MemoryBackend()
    honest = store_on(inner)
    fill(honest, 3)
    if has_branches:
        for number in range(3):
            honest.thread(f"chat-{number:02}").fork("side")
    lying = Lying(inner, alter)
    with pytest.raises(CorruptError) as found:
        store_on(lying).schemas.up(TWO)
    assert lying.lies
    assert "chat-0" in found.value.where


# Kills ---------------------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    """The process is gone."""


def killed() -> HoldfastError:
    raise _Killed


@pytest.mark.parametrize(
    ("when", "way_back"),
    mostly_nightly(
        [*itertools.product(["before", "after"], [False, True])], daily=[("before", True), ("after", False)]
    ),
)
def test_a_run_that_is_killed_at_any_write_is_resumed_or_rolled_back(when: Any, way_back: bool) -> None:
    """At every write to the store, until there is none left to strike."""
    struck, stride = 0, by_day(1, 2)
    for nth in itertools.count(1, stride):
        inner = MemoryBackend()
        fill(store_on(inner), 9)
        faults = Faults(inner, [Fault("apply", nth, killed, when)])
        try:
            store_on(faults).schemas.up(TWO)
        except _Killed:
            struck += 1
        else:
            assert faults.applies < nth, "the fault was not struck, though there was a write for it"
            break
        again = store_on(inner)
        _expire_leases(again)
        if way_back:
            again.schemas.down(TWO, to="1.0.0")
            assert stored(again, 9) == FIRSTS[:9]
        else:
            assert again.schemas.up(TWO).complete
            assert without_aside(stored(again, 9)) == SECONDS[:9]
            again.schemas.down(TWO, to="1.0.0")
            assert stored(again, 9) == FIRSTS[:9]
        assert again.maintenance.verify().ok
    assert struck >= 8 // stride, "pages, leases, marks and the registry were all written"


def _expire_leases(store: Store) -> None:
    """Let a minute pass: nobody renews the leases of the killed process."""
    store._engine.context.clock.now += 10**12  # type: ignore[attr-defined]  # it is the test's own clock


CHILD = """
import sys
import holdfast
from holdfast.maintenance.migration import bulk, plan, shared_run
from holdfast.maintenance.migration.heads import read_groups
from tests.migration.versions import TWO
bulk.PAGE = plan.PAGE = int(sys.argv[2])
bulk.PAUSE_SECONDS = shared_run.PAUSE_SECONDS = 0.005
with holdfast.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    report = store.schemas.up(TWO, check_first=False, progress=lambda done, total, name: print(done, flush=True))
    print("migrated", report.migrated, flush=True)
"""


def start(url: str, page: int = 4) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, url, str(page)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("seed", mostly_nightly(range(10), daily=(0, 1)))
def test_a_process_that_is_killed(tmp_path: Path, seed: int) -> None:
    """Whoever comes next sees that it is dead, and waits for no lease."""
    threads = by_day(200, 120)
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        fill(store, threads)
    process = start(url, 8)
    go(process)
    assert process.stdout is not None
    for _ in range(random.Random(seed).randrange(1, 12)):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    count_kill(process.returncode == -signal.SIGKILL)
    with holdfast.open(url) as store:
        left = store.schemas.plan(TWO).states
        assert left.get("2.0.0"), "it had begun"
        assert left.get("1.0.0"), "it had not ended"
        if seed % 2:
            assert store.schemas.down(TWO, to="1.0.0").migrated == left["2.0.0"]
            assert stored(store, threads) == [first(number) for number in range(threads)]
        else:
            assert store.schemas.up(TWO).complete
            assert without_aside(stored(store, threads)) == [second(number) for number in range(threads)]
            lengths = [len(store.thread(f"chat-{number:02}").log()) for number in range(threads)]
            assert lengths == [2] * threads, "none was migrated twice"
        assert store.maintenance.verify().ok


@pytest.mark.nightly
def test_two_processes_share_a_run(tmp_path: Path) -> None:
    for attempt in range(10):  # until both did some: one may be done before the other has begun
        url = f"sqlite:///{tmp_path}/{attempt}.db"
        with holdfast.open(url) as store:
            fill(store, 200)
        processes = [start(url), start(url)]
        for process in processes:
            go(process)
        counts = []
        for process in processes:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            counts.append(int(out.splitlines()[-1].split()[1]))
        assert sum(counts) == 200
        with holdfast.open(url) as store:
            assert without_aside(stored(store, 200)) == [second(number) for number in range(200)]
        if min(counts) > 0:
            return
    raise AssertionError("both never did some")


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_process_that_was_presumed_dead_leaves_the_page_to_the_other(
    has_branches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept for longer than its lease is valid, in the middle of a page; meanwhile another one did the work."""
    inner = MemoryBackend()
    store = store_on(inner)
    fill(store, 4)
    if has_branches:
        for number in range(4):
            store.thread(f"chat-{number:02}").fork("side")
    struck: list[int] = []

    async def sleep(*arguments: Any) -> Any:
        async for group in read_groups(*arguments):
            if not struck:
                struck.append(0)
                other = store_on(inner)
                for each in (other, store):
                    _expire_leases(each)
                struck[0] = other.schemas.up(TWO, check_first=False).migrated
            yield group

    monkeypatch.setattr(bulk, "read_groups", sleep)
    report = store.schemas.up(TWO, check_first=False)
    assert struck == [8 if has_branches else 4]
    assert report.migrated == 0
    assert without_aside(stored(store, 4)) == SECONDS[:4]
    for number in range(4):
        kinds = [each.kind for each in store.thread(f"chat-{number:02}").log()]
        assert kinds.count("migrate") == (2 if has_branches else 1), "none was migrated twice"


def test_a_store_that_answers_late_is_tried_again() -> None:
    """An error of the store ends the run; what was migrated stays, and the run continues."""
    inner: Backend = MemoryBackend()
    fill(store_on(inner), 9)
    faults = Faults(inner, [Fault("apply", 5, lambda: TransientError("busy"), times=50)])
    with pytest.raises(TransientError):
        store_on(faults).schemas.up(TWO)
    again = store_on(inner)
    _expire_leases(again)
    assert again.schemas.up(TWO).complete
