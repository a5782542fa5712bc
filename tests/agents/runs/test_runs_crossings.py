"""A run beside what else is done to its thread or its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs import table
from holdfast.agents.runs.record import Run
from holdfast.agents.runs.table import RunTable
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, LINES, REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ClaimLostError, ConflictError, DeniedError, InvalidError
from tests.agents.runs.graphs import asking, chain, logging_nodes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


class _Held:
    """A run that a worker has, in its second node, until the test goes on."""

    def __init__(self, store: Store) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()

        def around(name: str) -> None:
            if name == "n1":
                self._reached.set()
                assert self._go_on.wait(50)

        self.run = store.runs.submit("t", {"log": ["secret"]}, graph="chain")
        self.worker = store.worker(chain(*logging_nodes(3, around))).start()
        assert self._reached.wait(50)

    def go_on(self) -> None:
        self._go_on.set()
        self.worker.stop()


def rows_of_thread(store: Store) -> list[object]:
    queries = [Scan(LINES, ("", "t")), Scan(REFS, ("", "t")), Scan(JOBS, ("",))]
    return [row.key for rows in run(store._handle.engine.context.backend.read(queries)) for row in rows]


def test_a_thread_that_is_deleted_while_it_is_run_stays_deleted(store: Store) -> None:
    held = _Held(store)
    assert rows_of_thread(store)
    store.thread("t").delete()
    held.go_on()
    assert rows_of_thread(store) == []
    assert store.threads() == []
    assert store.runs.list() == []


def test_a_thread_that_is_pruned_while_it_is_run_goes_on(store: Store) -> None:
    held = _Held(store)
    removed = store.maintenance.prune(keep_last=1)
    assert removed.dropped > 0
    held.go_on()
    store.worker(chain(*logging_nodes(3))).run_due()
    assert store.runs.get(held.run.id).state == "done"
    assert store.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]
    assert store.maintenance.verify().found == 0


def test_a_worker_works_for_its_tenant_only(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "a.db", tenant="one") as one,
        holdfast.open(tmp_path / "a.db", tenant="two") as two,
    ):
        mine, other = (each.runs.submit("t", {"log": []}, graph="chain") for each in (one, two))
        one.worker(chain(*logging_nodes(1))).run_due()
        assert one.runs.get(mine.id).state == "done"
        assert two.runs.get(other.id).state == "queued"
        assert [each.id for each in one.runs.list()] == [mine.id]


def test_the_version_of_the_code_that_began_a_run_is_told(store: Store) -> None:
    held = _Held(store)
    held.go_on()
    assert store.runs.get(held.run.id).state == "queued"
    store.worker(chain(*logging_nodes(3)), code="2.0").run_due()
    ended = store.runs.get(held.run.id)
    assert (ended.state, ended.code, ended.attempts) == ("done", "2.0", 2)


def test_a_graph_that_a_program_runs_is_not_run_by_it_twice(store: Store) -> None:
    held = _Held(store)
    assert store.thread("t").status().status == "running"
    with pytest.raises(ConflictError), store.thread("t").running():
        pass
    held.go_on()
    assert store.thread("t").status().status == "unfinished"


def test_a_restored_thread_goes_on_by_a_new_run(store: Store, tmp_path: Path) -> None:
    held = _Held(store)
    backups = store.backups(tmp_path / "backups")
    backups.create()
    held.go_on()
    with holdfast.open(tmp_path / "restored.db") as restored:
        restored.backups(tmp_path / "backups").restore()
        assert restored.runs.list() == []
        assert restored.thread("t").status().status == "unfinished"
        again = restored.runs.submit("t", graph="chain")
        restored.worker(chain(*logging_nodes(3))).run_due()
        assert restored.runs.get(again.id).state == "done"
        assert restored.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]


def test_a_person_is_erased_while_their_thread_is_run(store: Store) -> None:
    pytest.importorskip("cryptography")
    held = _Held(store)
    other = store.runs.submit("of another", {"log": ["kept"]}, graph="chain")
    store.erasure.set_subject("u-1", "t")
    report = store.erasure.erase("u-1")
    assert report.erased == {"threads": 1}
    held.go_on()
    assert rows_of_thread(store) != []  # of the run of another, and what is kept of names that were erased
    assert not any("secret" in repr(row) for row in all_rows(store))
    assert [each.id for each in store.runs.list()] == [other.id]
    store.worker(chain(*logging_nodes(3))).run_due()
    assert store.runs.get(other.id).state == "done"


def all_rows(store: Store) -> list[object]:
    queries = [Scan(table, ("",)) for table in (LINES, REFS, JOBS)]
    return [row for rows in run(store._handle.engine.context.backend.read(queries)) for row in rows]


def test_what_a_run_stores_is_encrypted_with_its_thread(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    secret = "a secret of the customer"

    @holdfast.step
    def tell(what: str) -> str:
        return f"told {what}"

    @holdfast.workflow
    def talk(what: str) -> str:
        return tell(what)

    def stored(path: Path, **options: Any) -> bytes:
        with holdfast.open(path, **options) as store:
            ended = store.runs.submit("t", [secret], graph=talk)
            store.worker(talk).run_due()
            assert store.runs.get(ended.id).result == f"told {secret}"
            assert store.runs.get(ended.id).input == [secret]
            assert [each.result for each in store.runs.steps(ended.id)] == [f"told {secret}"]
            return b"".join(row.body or b"" for row in all_rows(store))  # type: ignore[attr-defined]

    assert secret.encode() in stored(tmp_path / "plain.db")  # the control
    stored(tmp_path / "encrypted.db", encryption=Encryption(LocalKeys(b"m" * 32)))
    found = b"".join(each.read_bytes() for each in tmp_path.glob("encrypted.db*") if each.is_file())
    assert len(found) > 10_000
    assert secret.encode() not in found


def test_a_frozen_identity_is_refused_in_a_run_that_goes_on(store: Store) -> None:
    seen: list[str] = []

    @holdfast.workflow
    def act() -> None:
        store.as_identity(agent="a").state(agent="a").set("k", len(seen))
        seen.append("saved")

    first = store.runs.submit(None, None, graph=act)
    store.worker(act).run_due()
    store.access.freeze("agent:a")
    second = store.runs.submit(None, None, graph=act, attempts=1)
    store.worker(act).run_due()
    assert [store.runs.get(each.id).state for each in (first, second)] == ["done", "failed"]
    assert store.runs.get(second.id).error_code == "identity-frozen"
    assert seen == ["saved"]


def test_a_store_is_restored_in_place_while_a_thread_is_run(store: Store, tmp_path: Path) -> None:
    held = _Held(store)
    backups = store.backups(tmp_path / "backups")
    backups.create()
    restored = backups.restore(threads=["t"], in_place=True)
    assert restored is not None
    held.go_on()
    store.worker(chain(*logging_nodes(3))).run_due()
    assert store.runs.get(held.run.id).state == "done"
    assert store.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]
    assert store.maintenance.verify().found == 0


def test_steps_that_are_recorded_stay_so_when_the_store_is_restored_in_place(store: Store, tmp_path: Path) -> None:
    made, attempts = list[int](), list[int]()

    @holdfast.step
    def make(number: int) -> int:
        made.append(number)
        return number

    @holdfast.workflow
    def walk() -> int:
        total = make(1) + make(2)
        attempts.append(total)
        if len(attempts) == 1:
            backups.restore(in_place=True)
            raise ConnectionError("the first attempt ends here")
        return total + make(3)

    store.thread("t").put({"n": 1})
    backups = store.backups(tmp_path / "backups")
    backups.create()
    store.thread("t").put({"n": 2})
    submitted = store.runs.submit("t", graph=walk)
    with store.worker(walk):
        assert store.runs.wait(submitted.id, timeout=50).result == 6
    assert made == [1, 2, 3]
    assert store.thread("t").get().state == {"n": 1}
    assert store.maintenance.verify().found == 0


def test_keys_are_rotated_while_a_thread_is_run(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    keys = Encryption(LocalKeys(b"m" * 32), hide_names=True)
    with holdfast.open(tmp_path / "a.db", encryption=keys) as store:
        held = _Held(store)
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
        held.go_on()
        store.worker(chain(*logging_nodes(3))).run_due()
        assert store.runs.get(held.run.id).state == "done"
        assert store.runs.get(held.run.id).input == {"log": ["secret"]}
        assert store.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]
        assert store.maintenance.verify().found == 0


def test_a_run_is_done_by_two_versions_of_its_code(store: Store) -> None:
    held = _Held(store)
    held.go_on()  # handed over before its third node, by code of three nodes
    store.worker(chain(*logging_nodes(4)), code="2").run_due()
    ended = store.runs.get(held.run.id)
    assert (ended.state, ended.code) == ("done", "2")
    assert store.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2", "n3"]


def test_an_input_that_a_policy_protects_is_refused(store: Store) -> None:
    store.redaction.protect("redact", formats="personal")
    with pytest.raises(DeniedError):
        store.runs.submit("t", {"log": ["anna@example.org"]}, graph="chain")
    store.runs.submit("t", {"log": ["nobody"]}, graph="chain")
    assert [each.input for each in store.runs.list()] == [{"log": ["nobody"]}]


def test_a_hook_sees_the_saves_of_a_run(store: Store) -> None:
    seen: list[object] = []
    store.hooks.after("checkpoint.save", name="see")(lambda event: seen.append(event))
    store.runs.submit("t", {"log": []}, graph="chain")
    store.worker(chain(*logging_nodes(2))).run_due()
    store.hooks.drain(10)
    assert len(seen) == len(store.thread("t").log()) == 4


def test_failed_runs_are_counted_and_alerted(store: Store) -> None:
    def fail(name: str) -> None:
        raise ValueError(name)

    store.alerts.evaluate()
    store.runs.submit("t", {"log": []}, graph="chain", attempts=1)
    store.worker(chain(*logging_nodes(1, fail))).run_due()
    store.alerts.evaluate()
    (alert,) = [each for each in store.alerts.list() if each.rule == "run-failed"]
    assert (alert.state, alert.message) == ("firing", "1 runs failed: holdfast runs list --state failed")


def test_workers_that_die_are_counted_and_alerted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_DEATHS", 2)
    store.alerts.evaluate()
    submitted, runs, ended = store.runs.submit("t", {"log": []}, graph="chain"), RunTable(store._handle), list[Run]()

    def die() -> None:
        seen = run(runs.look(["chain"], 10, ""))
        (found,) = seen.due or seen.busy
        assert run(runs.begin(found, 0.0, "", is_graph=True)) is not None

    def alerted(rule: str) -> list[str]:
        store.alerts.evaluate()
        return [each.message for each in store.alerts.list() if each.rule == rule and each.state == "firing"]

    die()
    assert alerted("worker-died") == []
    die()  # one takes it over, and dies
    assert alerted("worker-died") == ["1 runs were taken over from workers that died: holdfast runs list"]
    assert alerted("run-failed") == []
    worker = store.worker(chain(*logging_nodes(1)), lease=0.05, look_every=0.02, on_end=ended.append)
    with worker:
        assert store.runs.wait(submitted.id, timeout=30).error_code == "workers-died"
    assert [each.state for each in ended] == ["failed"]
    assert alerted("run-failed") == ["1 runs failed: holdfast runs list --state failed"]


@pytest.mark.parametrize("action", ["redact", "refuse"])
def test_policies_for_sensitive_data_cover_results_and_errors_of_runs_and_steps(store: Store, action: Any) -> None:
    secret = "ada.lovelace@example.org"

    @holdfast.step
    def tell() -> str:
        return secret

    @holdfast.workflow
    def give() -> str:
        with suppress(InvalidError):
            tell()
        return secret

    @holdfast.workflow
    def fail() -> None:
        raise ValueError(secret)

    ids = [store.runs.submit(None, [], graph=each, attempts=1).id for each in (give, fail)]
    store.worker(give, fail).run_due()
    found = store.redaction.scan(formats="personal").findings
    assert {each.path.rpartition(".")[2] for each in found} == {"result", "error"}, "without a policy, as a control"
    for id in ids:
        store.runs.delete(id)
    store.redaction.protect(action, formats="personal")
    ids = [store.runs.submit(None, [], graph=each, attempts=1).id for each in (give, fail)]
    store.worker(give, fail).run_due()
    assert store.redaction.scan(formats="personal").findings == []
    assert secret not in repr([store.runs.get(id) for id in ids] + list(store.runs.steps(ids[0])))
    if action == "redact":
        assert store.runs.get(ids[0]).result == "[redacted:email]"
    else:
        assert store.runs.get(ids[0]).error_code == "redaction-refused"
        assert [each.state for each in store.runs.steps(ids[0])] == ["failed"]


def test_a_run_that_has_lost_its_claim_changes_no_runs(store: Store) -> None:
    asked = store.runs.submit("asks", {"log": []}, graph="asking").id
    other = store.runs.submit("other", {"log": []}, graph="nobody").id
    store.worker(asking()).run_due()
    refused: list[str] = []

    def work(state: Any) -> dict[str, Any]:
        assert store.runs.submit("before", None, graph="nobody").state == "queued"
        store.runs.cancel(own)
        for change in (
            lambda: store.runs.submit("sub", None, graph="nobody"),
            lambda: store.runs.answer(asked, "stale"),
            lambda: store.thread("asks").answer("stale"),
            lambda: store.runs.cancel(other),
        ):
            with pytest.raises(ClaimLostError):
                change()
            refused.append("refused")
        return {"log": []}

    worker = store.worker(chain(work))
    own = store.runs.submit("t", {"log": []}, graph="chain").id
    worker.run_due()
    assert (len(refused), store.runs.get(own).state) == (4, "cancelled")
    assert [store.runs.get(each).state for each in (asked, other)] == ["waiting", "queued"]
