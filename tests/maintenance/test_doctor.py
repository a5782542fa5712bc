"""The doctor finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.backends.interface import Delete, Put, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import HEADS, JOBS, QUARANTINE, REFS, WORDS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import index_key
from holdfast.errors import CorruptError
from holdfast.maintenance.doctor import environment, storage_path, store_checks
from holdfast.maintenance.doctor.result import CheckLevel, CheckResult
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.types import JobType
from holdfast.store.doctor import doctor
from holdfast.store.store import Store
from tests.maintenance.kit import DAY, HOUR, Clock, Watched, knows, timed
from tests.support.counting import CountingBackend


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def of(checks: Iterable[CheckResult], code: str) -> CheckResult:
    """The one check of a code; the worst, if there are several."""
    order = list(CheckLevel)
    return max((each for each in checks if each.code == code), key=lambda each: order.index(each.level))


def checked(store: Store) -> list[CheckResult]:
    return run(store_checks.checks(store._handle))


def test_a_store_in_order_is_found_in_order_and_left_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    with holdfast.open(url) as store:
        store.thread("t").put({"a": 1})
    before = (tmp_path / "agents.db").read_bytes()
    found = doctor(url)
    assert [each for each in found if not each.ok] == []
    codes = [each.code for each in found]
    assert codes[0] == "python"
    wanted = {"sqlite-release", "store-there", "store-permissions", "disk-space", "store-opens", "clock", "store-check"}
    assert wanted | {"jobs", "leases", "quarantine", "sqlite-vacuum", "store-log", "text-index"} <= set(codes)
    assert (tmp_path / "agents.db").read_bytes() == before


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found = doctor(f"sqlite:///{tmp_path}/none.db")
    assert of(found, "store-there").level is CheckLevel.PROBLEM
    assert "none.db" in of(found, "store-there").found
    assert not (tmp_path / "none.db").exists()
    assert found[-1].code == "store-there"


def test_all_parts_of_a_composition_are_looked_at(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db"):
        pass
    url = f"mirror:?local=sqlite:///{tmp_path}/a.db&remote=sqlite:///{tmp_path}/b.db"
    found = doctor(url)
    assert [each.ok for each in found if each.code == "store-there"] == [True, False]
    assert not (tmp_path / "b.db").exists()


def test_a_store_that_cannot_be_opened_is_the_finding(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(bytes(range(256)) * 10)
    found = of(doctor(f"sqlite:///{tmp_path}/other.db"), "store-opens")
    assert (found.level, "[corrupt]" in found.found) == (CheckLevel.PROBLEM, True)
    assert found.remedy
    unknown = of(doctor("nothing://x"), "store-opens")
    assert "no backend supports nothing: URLs" in unknown.found


def test_passwords_are_not_shown() -> None:
    found = doctor("postgresql://me:hunter2@127.0.0.1:1/db?timeout=0.2")
    assert of(found, "store-opens").level is CheckLevel.PROBLEM
    assert "hunter2" not in repr(found)


def test_no_store_named_is_a_finding() -> None:
    assert of(doctor(), "store-named").level is CheckLevel.PROBLEM


def test_a_damaged_file_is_found_by_its_own_check(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    with holdfast.open(url) as store:
        for number in range(200):
            store.thread("t").put({"a": os.urandom(500).hex(), "n": number})
    path = tmp_path / "agents.db"
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 2, len(data), 4096):
        data[place + 100] ^= 0xFF
    path.write_bytes(data)
    found = doctor(url)
    bad = [each for each in found if each.level is CheckLevel.PROBLEM]
    assert bad
    assert {each.code for each in bad} <= {"store-check", "store-opens", "leases", "jobs", "quarantine", "text-index"}


# On this machine ----------------------------------------------------------------------------------------------


def test_variables_that_nothing_reads_are_named_without_their_values() -> None:
    given = {"HOLDFAST_URL": "secret-1", "HOLDFAST_STOER": "secret-2", "HOLDFAST_X": "secret-3", "HOLDFAST_STORE": "s"}
    found = list(environment.variables(given))
    said = {each.found.split()[0]: each.remedy for each in found if not each.ok}
    assert said["HOLDFAST_URL"] == "Did you mean HOLDFAST_STORE?"
    assert said["HOLDFAST_STOER"] == "Did you mean HOLDFAST_STORE?"
    assert "HOLDFAST_CONFIG" in said["HOLDFAST_X"]
    assert found[-1].found == "set: HOLDFAST_STORE"
    assert "secret" not in repr(found)


def test_variables_that_the_settings_file_names_are_known(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('[stores.default]\nurl = "postgresql://me:${HOLDFAST_PASSWORD}@db/x"\n')
    assert all(each.ok for each in environment.variables({"HOLDFAST_PASSWORD": "x"}))


SETTINGS: list[tuple[str, CheckLevel, str]] = [
    ('[stores.default]\nurl = "sqlite:///a.db"\n', CheckLevel.OK, "stores default"),
    ("", CheckLevel.OK, "names no store"),
    ("[stores\n", CheckLevel.PROBLEM, "cannot be read"),
    ('[stores.a]\nkind = "nonsense"\n', CheckLevel.PROBLEM, "nonsense"),
    ('[stores.a]\nurl = "x://${NOT_SET_ANYWHERE}"\n', CheckLevel.PROBLEM, "NOT_SET_ANYWHERE"),
    ('[store]\nurl = "x"\n', CheckLevel.WARNING, "[store], which nothing reads"),
    ("[colours]\nx = 1\n", CheckLevel.WARNING, "[colours], which nothing reads"),
    ("stores = 7\n", CheckLevel.OK, "names no store"),
]


def test_the_settings_file(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, level, said in SETTINGS:
        with subtests.test(text=text):
            (tmp_path / "holdfast.toml").write_text(text)
            found = of(environment.settings_file(), "settings-file")
            assert found.level is level
            assert said in found.found


def test_a_password_in_a_settings_file_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('[stores.default]\nurl = "postgresql://me:hunter2@db/x"\n')
    path.chmod(0o644)
    (found,) = [each for each in environment.settings_file() if each.code == "settings-secret"]
    assert found.level is CheckLevel.WARNING
    assert "hunter2" not in repr(found)
    path.chmod(0o600)
    assert not [each for each in environment.settings_file() if each.code == "settings-secret"]


def test_drivers_that_are_missing_or_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"apsw": "3.40.0", "msgspec": "0.20", "psycopg": "3.2.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    wanted = [
        "apsw>=3.51.3",
        "msgspec>=0.20",
        "click>=8.2",
        "nothing-much",
        "old; python_version < '3.0'",
        'psycopg[binary]>=3.2; extra == "postgres"',
        'redis>=5.2; extra == "redis"',
        'holdfast[redis]; extra == "all"',
    ]
    monkeypatch.setattr(environment, "version", version)
    monkeypatch.setattr(environment, "requires", lambda name: wanted)
    found = list(environment.drivers())
    problems = [each.found for each in found if each.level is CheckLevel.PROBLEM]
    assert problems == [
        "apsw 3.40.0 does not satisfy >=3.51.3",
        "click is not installed",
        "nothing-much is not installed",
    ]
    assert [each.found for each in found if each.ok] == [
        "msgspec 0.20",
        "psycopg 3.2.1",
        "redis is not installed; if you need it: pip install 'holdfast[redis]'",
    ]


def test_a_package_that_is_not_installed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", missing)
    monkeypatch.setattr(environment, "requires", missing)
    assert "not installed as a package" in environment.python().found
    assert [each.found for each in environment.drivers()] == []


def test_an_old_sqlite_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: "3.45.0")
    monkeypatch.setattr("sqlite3.sqlite_version", "3.60.0")
    found = list(environment.sqlite_releases())
    assert [(each.code, each.level) for each in found] == [("sqlite-release", CheckLevel.PROBLEM)]
    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: "3.51.3")
    monkeypatch.setattr("sqlite3.sqlite_version", "3.40.1")
    assert [each.level for each in environment.sqlite_releases()] == [CheckLevel.OK, CheckLevel.NOTE]


# The place ----------------------------------------------------------------------------------------------------


def test_a_file_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    path.touch(0o600)
    assert of(storage_path.permissions(path), "store-permissions").level is CheckLevel.OK
    path.chmod(0o666)
    assert of(storage_path.permissions(path), "store-permissions").level is CheckLevel.WARNING
    path.chmod(0o600)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = of(storage_path.permissions(path), "store-permissions")
    assert found.level is CheckLevel.PROBLEM
    assert str(path) in found.found
    monkeypatch.setattr("os.access", lambda path, mode: True)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert path.stat().st_uid == 0 or of(storage_path.permissions(path), "store-permissions").level is CheckLevel.NOTE


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", CheckLevel.OK),
        ("nfs4", CheckLevel.PROBLEM),
        ("fuse.sshfs", CheckLevel.PROBLEM),
        ("9p", CheckLevel.PROBLEM),
    ],
)
def test_a_network_disk(tmp_path: Path, kind: str, level: CheckLevel) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nbroken\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\nproc /proc proc 0 0\n"
    )
    (found,) = storage_path.network_disk(tmp_path / "a.db", mounts)
    assert found.level is level
    assert kind in found.found
    assert list(storage_path.network_disk(tmp_path / "a.db", tmp_path / "none")) == []


class Usage(NamedTuple):
    free: int


@pytest.mark.parametrize(
    ("free", "level"),
    [(1 << 20, CheckLevel.PROBLEM), (100 << 20, CheckLevel.WARNING), (300 << 20, CheckLevel.OK)],
)
def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: CheckLevel) -> None:
    (tmp_path / "a.db").write_bytes(b"x" * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free))
    (found,) = storage_path.disk_space(tmp_path / "a.db")
    assert found.level is level
    assert "1,000" in found.found
    (whole,) = storage_path.disk_space(tmp_path)
    assert whole.level is level


def test_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert [each.level for each in storage_path.log_size(path)] == [CheckLevel.OK]
    with Path(f"{path}-wal").open("wb") as log:
        log.truncate(200 << 20)
    assert [each.level for each in storage_path.log_size(path)] == [CheckLevel.WARNING]


# The store ----------------------------------------------------------------------------------------------------


def test_a_clock_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("t").put({"a": 1})
    assert of(checked(store), "clock").level is CheckLevel.OK
    clock.now -= DAY
    found = of(checked(store), "clock")
    assert found.level is CheckLevel.WARNING
    assert "2026-11-14 12:00:00 UTC" in found.found


def test_jobs_that_are_late_failing_unknown_or_damaged() -> None:
    def fails(job: object) -> None:
        raise CorruptError("damaged")

    clock = Clock()
    store, kinds = timed(clock), knows(Watched().kind(), JobType("fails", "", fails))
    assert of(checked(store), "jobs").found == "no jobs"
    jobs = Jobs(store, kinds)
    jobs.add("late", "tidy", schedule="every 1h")
    jobs.add("paused", "tidy", schedule="every 1h", paused=True)
    assert of(checked(store), "jobs").found == "2 jobs, all OK"
    jobs.add("strange", "watched")
    jobs.add("bad", "fails")
    jobs.add("broken", "tidy")
    with pytest.raises(CorruptError):
        jobs.run("bad")
    job = jobs.get("broken")
    run(store._engine.context.backend.apply([Put(JOBS, Row(job.key, job.columns, b"nonsense"))]))
    clock.now += 3 * HOUR
    found = {each.code: each for each in checked(store) if each.code.startswith("jobs")}
    assert found.keys() == {"jobs-overdue", "jobs-failing", "jobs-unknown", "jobs-damaged"}
    assert "the job late was due at 2026-11-15 13:00 UTC" in found["jobs-overdue"].found
    assert "holdfast explain corrupt" in found["jobs-failing"].remedy
    assert found["jobs-damaged"].level is CheckLevel.PROBLEM


def test_leases_that_were_left() -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("t").put({"a": 1})
    rows = [
        Row(("", "t", "lease", "rewrite", ""), ("x", clock.now)),
        Row(("", "", "lease", "job a", ""), ("y", clock.now)),
    ]
    run(store._engine.context.backend.apply([Put(REFS, row) for row in rows]))
    assert of(checked(store), "leases").found == "2 held, none abandoned"
    clock.now += HOUR
    found = of(checked(store), "leases")
    assert found.level is CheckLevel.NOTE
    assert "job a, rewrite of 't'" in found.found


def test_rows_in_quarantine() -> None:
    store = timed(Clock())
    run(store._engine.context.backend.apply([Put(QUARANTINE, Row(("", "t", 0), ("steps", 1, "damaged"), b"x"))]))
    found = of(checked(store), "quarantine")
    assert found.level is CheckLevel.WARNING
    assert "1 damaged rows are quarantined, of 't'" in found.found


def test_readable_rows_that_are_behind() -> None:
    store = Store(Engine(EngineContext(MemoryBackend(), project=True)), "")
    store.thread("t").put({"a": 1})
    assert of(checked(store), "readable-rows").level is CheckLevel.OK
    run(store._engine.context.backend.apply([Delete(HEADS, ("", "t"))]))
    assert of(checked(store), "readable-rows").level is CheckLevel.WARNING


def test_an_index_of_words_that_is_not_complete(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db") as store:
        store.thread("t").put({"a": "hello"})
        assert of(checked(store), "text-index").level is CheckLevel.NOTE
        store.maintenance.build_index()
        assert of(checked(store), "text-index").level is CheckLevel.OK
        run(store._engine.context.backend.apply([Delete(WORDS, ("", "t"))]))
        assert "a search may miss some" in of(checked(store), "text-index").found
        run(store._engine.context.backend.apply([Put(REFS, Row(index_key(""), ("building", 0)))]))
        assert "not built completely" in of(checked(store), "text-index").found


def test_the_index_is_looked_at_without_reading_all_of_a_long_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.maintenance.doctor.store_checks.LATEST", 10)
    backend = CountingBackend(MemoryBackend())
    store = Store(Engine(EngineContext(backend)), "")
    for number in range(40):
        store.thread("t").put({"a": f"hello {number}"})
    store.maintenance.build_index()
    sample = run(store._engine.lines.list_threads("", "", "", 10))
    backend.reset()
    assert run(store_checks.text_index(store._handle, sample))[0].level is CheckLevel.OK
    assert backend.rows_read.total() < 30
    run(backend.apply([Delete(WORDS, ("", "t", 0, 35))]))
    assert run(store_checks.text_index(store._handle, sample))[0].level is CheckLevel.WARNING


class Telling(Wrapper):
    """A store that says of itself what a test wants."""

    def __init__(self, wrong: list[str] | None = None, size: int = 100, **status: int | float | str) -> None:
        super().__init__(MemoryBackend())
        self._wrong, self._size, self._status = wrong or [], size, status

    async def status(self) -> dict[str, int | float | str]:
        return dict(self._status)

    async def check(self) -> list[str]:
        return self._wrong

    async def size(self) -> int:
        return self._size


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        ({"lag_batches": 0, "trouble": ""}, CheckLevel.OK, "the copy is up to date"),
        ({"lag_batches": 2, "lag_bytes": 10, "lag_seconds": 1.0, "trouble": ""}, CheckLevel.OK, "2 batches"),
        ({"lag_batches": 2, "lag_seconds": 300.0}, CheckLevel.WARNING, "300.0 s behind"),
        ({"lag_batches": 2, "lag_seconds": 1.0, "trouble": "refused"}, CheckLevel.WARNING, "refused"),
        ({"local_lag_batches": 2, "local_lag_seconds": 300.0}, CheckLevel.WARNING, "300.0 s"),
        ({"unhealed": 3}, CheckLevel.PROBLEM, "3 damaged rows"),
    ],
)
def test_copies_that_are_behind(status: dict[str, Any], level: CheckLevel, said: str) -> None:
    store = timed(time.time_ns, Telling(**status))
    found = of(checked(store), "copies")
    assert found.level is level
    assert said in found.found


def test_what_the_stores_own_check_finds() -> None:
    store = timed(time.time_ns, Telling([f"page {n} is wrong" for n in range(8)]))
    found = [each for each in checked(store) if each.code == "store-check"]
    assert {each.level for each in found} == {CheckLevel.PROBLEM}
    assert [each.found for each in found] == [*(f"page {n} is wrong" for n in range(5)), "3 more findings"]
    large = timed(time.time_ns, Telling(["wrong"], size=10 << 30))
    assert of(checked(large), "store-check").level is CheckLevel.NOTE
    assert of(run(store_checks.checks(large._handle, full=True)), "store-check").level is CheckLevel.PROBLEM


def test_one_check_that_fails_does_not_keep_the_others_from_it() -> None:
    class Broken(Telling):
        async def check(self) -> list[str]:
            raise CorruptError("a page is damaged", where="page 7")

    found = checked(timed(time.time_ns, Broken()))
    assert of(found, "store-check").found == "a page is damaged (at page 7) [corrupt]"
    assert of(found, "quarantine").ok

    class Unreadable(Telling):
        async def read(self, queries: Any) -> Any:
            raise CorruptError("nothing can be read", hint="Repair it")

    found = checked(timed(time.time_ns, Unreadable()))
    assert [(each.code, each.level) for each in found] == [
        ("store-opens", CheckLevel.PROBLEM),
        ("store-check", CheckLevel.OK),
    ]


def test_a_sqlite_file_that_does_not_give_room_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        for number in range(40):
            store.thread(f"t{number}").put({"a": os.urandom(150_000)})
        for number in range(40):
            store.thread(f"t{number}").delete()
        (found,) = store_checks.sqlite_settings(tmp_path / "a.db")
        assert found.level is CheckLevel.NOTE
        assert "Return the space" in found.remedy
    import apsw

    apsw.Connection(str(tmp_path / "plain.db")).execute("create table t (a); insert into t values (1)")
    (found,) = store_checks.sqlite_settings(tmp_path / "plain.db")
    assert found.level is CheckLevel.WARNING
