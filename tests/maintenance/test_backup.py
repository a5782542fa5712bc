"""Backups: made, shared, verified and restored."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Store
from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.store.backup_records import BackupInfo
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import mostly_nightly

LARGE = "long text " * 20_000
"""More than 64 KB: it is stored as a large value."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agents.db") as opened:
        yield opened


def fill(store: Store) -> None:
    """Threads with folds, tags, branches and large values, scopes, an agent's scope, a grant, and a job."""
    for number in range(70):
        store.thread("chat").put({"n": number, "messages": [f"message {each}" for each in range(number)]})
    store.thread("chat").tag("early", at=5)
    store.thread("chat").fork("draft", at=20)
    store.thread("chat").put({"n": "draft"}, branch="draft")
    store.thread("large").put({"text": LARGE})
    store.thread("other").put({"n": 1})
    store.state(agent="researcher")["goal"] = "find"
    store.access.grant("agent:writer", "read", agent="researcher")
    store.jobs.add("tidy", "tidy", schedule="every 1h")


def contents(store: Store) -> object:
    """Everything that a backup must bring back: heads of all lines, and states."""
    heads = store.maintenance.heads()
    states = {each.thread: store.thread(each.thread).get().state for each in store.threads().all()}
    return heads.threads, states


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def both_places(repository: Path, path: Path) -> tuple[Path, Path]:
    """Return the two places of an object that is stored twice, given the first."""
    return path, repository / "copies" / path.relative_to(repository)


def remove_both(repository: Path, path: Path) -> None:
    for each in both_places(repository, path):
        each.unlink()


def test_a_restored_store_is_the_same(store: Store, repository: Path, tmp_path: Path) -> None:
    fill(store)
    made = store.backups(repository).create(reason="test")
    expected = contents(store)
    store.thread("chat").put({"n": "later"})
    with holdfast.open(tmp_path / "new.db") as new:
        report = new.backups(repository).restore(made.id)
        assert contents(new) == expected
        assert new.state(agent="researcher")["goal"] == "find"
        assert new.maintenance.verify(level="decode").ok
        assert {each.action for each in report.lines} == {"create"}
        assert new.jobs.get("tidy").paused, "a job does not start to run because it was restored"
        again = new.backups(repository).restore(made.id)
        assert {each.action for each in again.lines} <= {"same", "left out"}
        assert not again.rows


def test_the_second_backup_costs_what_changed(store: Store, repository: Path) -> None:
    fill(store)
    backups = store.backups(repository)
    first = backups.create()
    before = files(repository)
    second = backups.create()
    assert second.added < first.added / 20
    assert second.lines == first.lines
    store.thread("other").put({"n": 2})
    third = backups.create()
    assert third.added < first.added / 5
    after = files(repository)
    assert {path: after.get(path) for path in before} == before, "nothing was overwritten or deleted"
    assert [(each.change, each.name, each.before, each.after) for each in backups.diff(first.id)] == [
        ("changed", "other", 1, 2)
    ]
    assert not backups.diff(first.id, second.id)


@pytest.mark.nightly
def test_changes_of_every_kind_are_in_the_next_backup(store: Store, repository: Path, tmp_path: Path) -> None:
    fill(store)
    backups = store.backups(repository)
    backups.create()
    changes: list[Callable[[], object]] = [
        lambda: store.thread("chat").tag("second", at=7),
        lambda: store.thread("chat").put({"n": "more"}, branch="draft"),
        lambda: store.thread("chat").switch("draft"),
        lambda: store.maintenance.prune("chat", keep_last=10),
        lambda: store.thread("other").delete(),
        lambda: store.thread("other").put({"n": "created again"}),
        lambda: store.thread("large").put({"text": LARGE[1:]}),
        lambda: store.maintenance.compact(),
        lambda: [store.thread("chat").put({"n": number}) for number in range(40)],
    ]
    for number, change in enumerate(changes):
        change()
        backups.create()
        with holdfast.open(tmp_path / f"new{number}.db") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store), f"change {number}"
    assert backups.verify(level="hashes").ok


@pytest.mark.nightly
def test_many_backups_of_a_thread_are_merged(store: Store, repository: Path, tmp_path: Path) -> None:
    backups = store.backups(repository)
    for number in range(30):
        store.thread("chat").put({"n": number})
        if number % 20 == 10:
            store.maintenance.prune("chat", keep_last=5)
        backups.create()
    with holdfast.open(tmp_path / "new.db") as new:
        new.backups(repository).restore()
        assert contents(new) == contents(store)
    assert backups.verify(level="decode").ok


ACCOUNTS, WRITERS = 6, 8


def move_amounts(store: Store, writer: int, stop: threading.Event, failures: list[BaseException]) -> None:
    """Move amounts between threads, in transactions, and create threads now and then."""
    random = Random(writer)
    balances = dict.fromkeys(range(ACCOUNTS), 0)
    try:
        while not stop.is_set():
            one, other = random.sample(range(ACCOUNTS), 2)
            amount = random.randint(1, 5)
            balances[one] -= amount
            balances[other] += amount
            with store.transaction() as together:
                for account in (one, other):
                    together.update(f"account-{account}", {f"writer-{writer}": balances[account]})
            if random.random() < 0.1:
                store.thread(f"new-{writer}-{random.randrange(10**9)}").put({"n": 1})
            stop.wait(0.005)  # the less time backups get, the more there is for them to do
    except BaseException as error:
        failures.append(error)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *COMPOSED], daily=["sqlite"]))
def test_a_backup_is_of_one_moment_under_load(kind: str, repository: Path, tmp_path: Path) -> None:
    stop, failures, made = threading.Event(), list[BaseException](), list[BackupInfo]()
    with holdfast.open(place(kind, tmp_path)) as store:
        for number in range(ACCOUNTS):
            store.thread(f"account-{number}").put({"start": 100})
        writers = [
            threading.Thread(target=move_amounts, args=(store, number, stop, failures)) for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            made = [store.backups(repository).create() for _ in range(3)]
        finally:
            stop.set()
            for writer in writers:
                writer.join()
    assert not failures
    steps = []
    for backup in made:
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(backup.id)
            check_sum(new)
            steps.append(sum(each.steps for each in new.threads().all()))
    assert steps == sorted(steps)
    assert steps[0] < steps[-1], "there were changes between the backups"


def check_sum(store: Store) -> None:
    assert sum(sum(store.thread(f"account-{each}").get().state.values()) for each in range(ACCOUNTS)) == 100 * ACCOUNTS


HIDING = Encryption(LocalKeys(b"h" * 32), hide_names=True)


def opened_on(backend: Backend, encryption: Encryption | Literal[False]) -> Store:
    """Return a store on a backend, encrypted or not."""
    rows = EncryptedRows(encryption) if encryption else CHECKSUMS
    context = EngineContext(backend, rows=rows)
    run(context.rows.check_store(context.stored, ""))
    return Store(Engine(context), "")


BOTH_WAYS = pytest.mark.parametrize(
    "encryption", [False, pytest.param(HIDING, marks=pytest.mark.nightly)], ids=["clear", "hidden"]
)


@BOTH_WAYS
def test_a_backup_is_of_one_moment_whatever_happens_between_its_reads(
    encryption: Encryption | Literal[False], repository: Path
) -> None:
    backend = InterferingBackend()
    store, random = opened_on(backend, encryption), Random(1)
    balances = dict.fromkeys(range(ACCOUNTS), 0)
    for number in range(ACCOUNTS):
        store.thread(f"account-{number}").put({"start": 100})
    new = 0

    def move() -> None:
        nonlocal new
        one, other = random.sample(range(ACCOUNTS), 2)
        balances[one] -= 1
        balances[other] += 1
        with store.transaction() as together:
            for account in (one, other):
                together.update(f"account-{account}", {"moved": balances[account]})
        if new < 10:
            new += 1
            store.thread(f"new-{new}").put({"n": 1})

    struck = 0
    for _ in range(2):
        with backend.interfere(move, "read", times=None) as interference:
            made = store.backups(repository).create()
        struck += interference.struck
        with holdfast.open("memory://", encryption=encryption) as restored:
            restored.backups(repository).restore(made.id)
            check_sum(restored)
    assert struck > 20


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_backup_ends_though_threads_come_and_go_in_every_read(repository: Path, after: bool) -> None:
    backend = InterferingBackend()
    store = Store(Engine(EngineContext(backend)), "")
    store.thread("bank").put({"amount": 100})
    number = 0

    def move() -> None:
        nonlocal number
        number += 1
        with store.transaction() as together:
            together.update("bank", {"amount": 98 if number > 1 else 99})
            together.put(f"new-{number}", {"amount": 1})
            if number > 2:
                together.update(f"new-{number - 2}", {"amount": 0})
        if number > 2:
            store.thread(f"new-{number - 2}").delete()

    with backend.interfere(move, "read", times=None, after=after, where=lambda queries: len(queries) > 1) as struck:
        made = [store.backups(repository).create() for _ in range(2)]
    assert struck.struck > 10
    for backup in made:
        assert not backup.damaged
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(backup.id)
            assert sum(new.thread(each.thread).get().state["amount"] for each in new.threads()) == 100
            assert len(new.threads()) == 3


def test_a_thread_that_is_gone_whenever_it_is_read_is_reported(repository: Path) -> None:
    backend = InterferingBackend()
    store = Store(Engine(EngineContext(backend)), "")
    store.thread("chat").put({"n": 1})
    number = 0

    def replace() -> None:
        nonlocal number
        number += 1
        store.thread(f"new-{number}").put({"n": number})
        if number > 1:
            store.thread(f"new-{number - 1}").delete()

    with backend.interfere(replace, "read", times=None):
        made = store.backups(repository).create()
    assert made.damaged
    assert all(name.startswith("new-") for name in made.damaged)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.thread("chat").get().state == {"n": 1}
    assert not store.backups(repository).create().damaged


@pytest.mark.nightly
def test_a_backup_ends_though_a_thread_is_rewritten_in_every_read(repository: Path) -> None:
    backend = InterferingBackend()
    store = Store(Engine(EngineContext(backend)), "")
    for number in range(10):
        store.thread("chat").put({"n": number})

    def rewrite() -> None:
        store.thread("chat").put({"n": 11})
        store.maintenance.prune("chat", keep_last=3)

    with backend.interfere(rewrite, "read", times=None):
        made = store.backups(repository).create()
    assert not made.damaged
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.thread("chat").get().state == {"n": 11}
        assert new.maintenance.verify(level="decode").ok


ACTS: dict[str, Callable[[Store], object]] = {
    "prune": lambda store: store.maintenance.prune("chat", keep_last=3),
    "delete": lambda store: (store.thread("chat").delete(), store.thread("chat").put({"n": "again"})),
    "fork": lambda store: (
        store.thread("chat").fork("side", at=3),
        store.thread("chat").put({"n": "x"}, branch="side"),
    ),
}


@pytest.mark.nightly
@BOTH_WAYS
@pytest.mark.parametrize("what", ACTS)
def test_threads_are_rewritten_and_deleted_meanwhile(
    what: str, encryption: Encryption | Literal[False], tmp_path: Path
) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store = opened_on(backend, encryption)
        for each in range(40):
            store.thread("chat").put({"n": each})
        before = contents(store)
        repository = tmp_path / f"{moment.kind}-{moment.at}"
        with moment.interfere(backend, lambda: ACTS[what](store)):
            made = store.backups(repository).create()
        with holdfast.open("memory://", encryption=encryption) as new:
            new.backups(repository).restore(made.id)
            assert contents(new) in (before, contents(store))
            assert new.maintenance.verify(level="decode").ok

    at_every_moment(scenario, ["read"], at_least=8)


def test_recovery_to_a_step_a_tag_a_time_and_under_another_name(store: Store, repository: Path) -> None:
    fill(store)
    backups = store.backups(repository)
    first = backups.create()
    store.thread("chat").put({"n": "later"})
    backups.create()
    report = backups.restore(threads=["chat"], at="early", as_thread="old chat")
    assert [each.name for each in report.lines] == ["old chat"]
    old = store.thread("old chat")
    assert old.get().state["n"] == 5
    assert len(old.log(limit=1000)) == 6, "nothing after the checkpoint"
    assert store.thread("chat").get().state["n"] == "later"
    backups.restore(first.time, threads=["chat"], as_thread="chat of the first")
    assert store.thread("chat of the first").get().hash == store.thread("chat").get(at="HEAD~1").hash
    with pytest.raises(NotFoundError):
        backups.restore("2020-01-01T00:00:00Z")
    assert store.maintenance.verify().ok


def test_restoring_in_place(store: Store, repository: Path) -> None:
    fill(store)
    backups = store.backups(repository)
    made = backups.create()
    wanted = store.thread("chat").get()
    later = store.thread("chat").put({"n": "later"})
    store.thread("other").delete()
    store.access.revoke(store.access.grants()[0])
    with pytest.raises(ConflictError):
        backups.restore(made.id)
    assert "other" not in [each.thread for each in store.threads().all()], "nothing was restored"
    planned = backups.restore(made.id, in_place=True, dry_run=True)
    assert store.thread("chat").get().id == later.id
    report = backups.restore(made.id, in_place=True)
    assert report.lines == tuple(replace(each, changes=()) for each in planned.lines)
    actions = {each.name: each.action for each in report.lines if each.kind == "thread"}
    assert actions == {"chat": "switch", "large": "same", "other": "create"}
    assert store.thread("chat").get().state == wanted.state
    assert store.thread("chat").get(at="main").id == later.id
    assert store.thread("other").get().state == {"n": 1}
    with pytest.raises(DeniedError):
        store.as_identity("agent:writer").state(agent="researcher")["goal"]
    assert store.maintenance.verify().ok


def test_several_stores_share_a_repository(store: Store, repository: Path, tmp_path: Path) -> None:
    fill(store)
    store.backups(repository).create()
    with holdfast.open(tmp_path / "second.db") as second:
        second.thread("theirs").put({"n": 1})
        second.backups(repository).create()
        assert len(second.backups(repository).list()) == 2
        assert [each.name for each in second.backups(repository).show()[1]] == ["theirs"]
    with holdfast.open(tmp_path / "third.db") as third, pytest.raises(NotFoundError, match="2 stores"):
        third.backups(repository).restore()


@pytest.mark.parametrize("sample", mostly_nightly([2, 12], daily=[2]))
def test_every_flipped_byte_is_found(store: Store, repository: Path, sample: int) -> None:
    store.thread("chat").put({"n": 1})
    store.thread("other").put({"n": 2})
    backups = store.backups(repository)
    backups.create()
    store.thread("chat").put({"n": 2})
    backups.create()
    assert backups.verify().ok
    found = 0
    random = Random(1)
    for path, data in files(repository).items():
        for at in sorted(random.sample(range(len(data)), min(sample, len(data)))):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
            try:
                report = backups.verify()
            except (CorruptError, holdfast.errors.UnsupportedError):
                found += 1
            else:
                if path.parent.parent.name != "locks":
                    assert not report.ok, f"{path.name} at {at}"
                found += not report.ok
        path.write_bytes(data)
    assert found > 4 * sample
    assert backups.verify().ok


@pytest.mark.nightly
def test_a_damaged_pack_costs_what_is_in_it(store: Store, repository: Path, tmp_path: Path) -> None:
    store.thread("chat").put({"n": 1})
    backups = store.backups(repository)
    backups.create()
    before = {*files(repository)}
    store.thread("other").put({"n": random.Random(1).randbytes(5000).hex()})  # larger than the list of threads
    for number in range(3):
        store.thread("chat").put({"n": number})
    backups.create()
    packs = sorted(
        (path for path in files(repository) if path not in before and "packs" in path.parts),
        key=lambda p: p.stat().st_size,
    )
    data = bytearray(packs[-1].read_bytes())
    data[60] ^= 1
    packs[-1].write_bytes(data)
    report = backups.verify()
    damaged = {each.thread: each.steps for each in report.findings if each.thread}
    assert damaged.keys() == {"chat", "other"}
    with holdfast.open(tmp_path / "new.db") as new:
        with pytest.raises(CorruptError, match="damaged"):
            new.backups(repository).restore()
        assert not new.threads(), "nothing was restored"
        new.backups(repository).restore("1")
        assert new.thread("chat").get().state == {"n": 1}


def test_a_removed_backup_is_noticed(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    last = [backups.create() for _ in range(3)][-1]
    manifests = sorted(path for path in files(repository) if path.relative_to(repository).parts[0] == "backups")
    kept = manifests[1].read_bytes()
    remove_both(repository, manifests[1])
    assert [each.code for each in backups.verify().findings] == ["missing-backup"]
    for each in both_places(repository, manifests[1]):
        each.write_bytes(kept)
    assert backups.verify().ok
    newest = manifests[2].read_bytes()
    remove_both(repository, manifests[2])
    with pytest.raises(CorruptError, match=f"last backup of this store, {last.id}"):
        backups.create()
    assert [each.code for each in backups.verify().findings] == ["backups-removed"]
    manifests[2].write_bytes(newest)
    assert backups.create().number == 4, "one of the two copies is enough"


def test_an_old_or_another_repository_in_its_place_is_noticed(store: Store, repository: Path, tmp_path: Path) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    backups.create()
    shutil.copytree(repository, tmp_path / "old")
    store.thread("chat").put({"n": 2})
    backups.create()
    shutil.rmtree(repository)
    shutil.copytree(tmp_path / "old", repository)
    with pytest.raises(CorruptError) as rolled_back:
        backups.create()
    assert rolled_back.value.code == "backups-removed"
    shutil.rmtree(repository)
    with pytest.raises(CorruptError, match="replaced by another one"):
        backups.create()
    assert backups.create(accept_loss=True).number == 1
    assert backups.create().number == 2


def test_bad_input(store: Store, repository: Path, tmp_path: Path) -> None:
    backups = store.backups(repository)
    with pytest.raises(NotFoundError, match="no repository"):
        backups.list()
    assert not repository.exists()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a backup repository"):
        store.backups(foreign).create()
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    store.thread("chat").put({"n": 1})
    backups.create()
    for bad in ("9", "abcdef12.1", "2020-01-01"):
        with pytest.raises(NotFoundError):
            backups.restore(bad)
    for worse in ("", "tomorrow or so", 3):
        with pytest.raises(InvalidError):
            backups.restore(worse)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="does not have 'nothing'"):
        backups.restore(threads=["nothing"])
    with pytest.raises(ConfigError):
        store.backups("postgresql://host/db").list()
    mark = repository / "holdfast-backups"
    data = bytearray(mark.read_bytes())
    for version, code in ((1, "older-format"), (3, "newer-format")):
        data[5] = version
        for each in both_places(repository, mark):
            each.write_bytes(data)
        with pytest.raises(holdfast.errors.UnsupportedError, match=f"format {version}") as refused:
            backups.create()
        assert refused.value.code == code


def test_backups_of_a_plain_store_need_no_extra(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["cryptography"] = None
import holdfast
with holdfast.open(sys.argv[1]) as store:
    store.thread("chat").put({"n": 1})
    backups = store.backups(sys.argv[2])
    backups.create()
    assert backups.verify().ok
    assert backups.drill().ok
with holdfast.open("memory://") as new:
    new.backups(sys.argv[2]).restore()
    print(new.thread("chat").get().state)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a.db"), str(tmp_path / "repository")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "{'n': 1}\n"
