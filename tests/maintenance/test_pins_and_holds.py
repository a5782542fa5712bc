"""Pins and holds: what must not go does not, also if that is said at the last moment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.copy.within_store import LineCopier
from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.langgraph import HoldfastSaver
from tests.engine.lines import Backends, store_on
from tests.engine.pruned import dropping_ids, filled, prune, rows_of
from tests.maintenance.kit import copied
from tests.support.interference import InterferingBackend, Moment, at_every_moment


def test_pins(shared: Backend) -> None:
    store = filled(shared)
    assert store.thread("t").pin("1", reason="for the auditors") == "1"
    assert store.thread("t").pin("1", reason="for me") == "1"
    assert store.thread("t").pin("side") == "81"
    assert store.thread("t").pin("#0") == "0"
    found = {(pin.id, pin.reason) for pin in store.thread("t").pins()}
    assert found == {("1", "for the auditors"), ("1", "for me"), ("81", ""), ("0", "")}
    assert store.thread("t").unpin("1", reason="for me") == "1"
    store.maintenance.prune(keep_latest=True)
    assert [each.id for each in store.thread("t").log().all()] == ["81", "7", "1", "0"]
    store.thread("t").unpin("1")
    store.thread("t").unpin("0")
    store.maintenance.prune(keep_latest=True)
    assert [each.id for each in store.thread("t").log().all()] == ["81", "7"]
    with pytest.raises(NotFoundError, match="has no such pin"):
        store.thread("t").unpin("7")
    with pytest.raises(NotFoundError, match="has no such pin"):
        store.thread("t").unpin("81", reason="another")
    with pytest.raises(NotFoundError):
        store.thread("t").pin("1")
    with pytest.raises(NotFoundError):
        store.thread("none").pins()
    with pytest.raises(InvalidError):
        store.thread("t").pin(reason=3)  # type: ignore[arg-type]


def test_a_thread_is_deleted_with_its_namespaces(shared: Backend) -> None:
    store = store_on(shared)
    names = ("t", "t␟child", "t␟child|inner", "t␟␟other", "t0")
    for name in names:
        store.thread(name).put({"n": 1})
    store.thread("t␟child").hold()
    with pytest.raises(DeniedError):
        store.thread("t").delete()
    assert len(store.threads()) == 5
    store.thread("t␟child").release()
    assert store.thread("t").delete()
    assert [each.thread for each in store.threads()] == ["t0", "t␟␟other"]
    store.thread("t␟child").put({"n": 1})
    assert store.thread("t␟child").delete()
    assert not store.thread("t").delete()
    store.thread("t␟child").put({"n": 1})
    assert store.thread("t").delete(), "also where only namespaces are left"


def test_whoever_drops_steps_leaves_pinned_ones(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").pin("1")
    prune(store, dropping_ids("0", "1", "2"))
    assert [each.id for each in store.thread("t").log().all()][-2:] == ["3", "1"]
    prune(store, dropping_ids("1"))
    assert [each.id for each in store.thread("t").log().all()][-1] == "1"


def test_a_thread_with_pins_can_be_deleted(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").pin("1")
    assert store.thread("t").delete()
    assert rows_of(shared)["refs"] == []


def test_holds(shared: Backend) -> None:
    store = filled(shared)
    store.thread("u").put({})
    store.thread("t").hold(reason="case 17")
    store.thread("t").hold(reason="case 23")
    assert [(each.thread, each.reason) for each in store.maintenance.holds()] == [("t", "case 17"), ("t", "case 23")]
    assert store.thread("u").holds() == []
    for _ in range(2):
        with pytest.raises(DeniedError, match="case"):
            store.thread("t").delete()
        with pytest.raises(DeniedError, match="case"):
            store.maintenance.prune(keep_last=1, threads="t")
        with pytest.raises(DeniedError, match="case"):
            store.maintenance.prune(keep_last=1, threads="t", dry_run=True)
        assert store.maintenance.prune(keep_last=50, threads="t").kept == 10, "there is nothing to prune"
        store.thread("t").release(reason="case 17") if len(store.maintenance.holds()) == 2 else None
    report = store.maintenance.prune(keep_last=1)
    assert [(each.thread, each.code) for each in report.problems] == [("t", "denied")]
    store.thread("t").put({"still": "saved"})
    store.maintenance.compact("t")
    store.thread("t").release()
    assert store.thread("t").holds() == []
    assert store.maintenance.prune(keep_last=1, threads="t").dropped > 5
    assert store.thread("t").delete()
    with pytest.raises(NotFoundError, match="no such hold"):
        store.thread("u").release()
    with pytest.raises(NotFoundError):
        store.thread("none").hold()
    with pytest.raises(NotFoundError):
        store.thread("none").holds()


def test_a_hold_without_a_reason(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").hold()
    with pytest.raises(DeniedError, match="the thread is held"):
        store.thread("t").delete()
    store.thread("t").release(reason="")
    assert store.thread("t").delete()


def test_a_thread_holds_its_namespaces(shared: Backend) -> None:
    store = filled(shared)
    for name in ("t␟child", "t␟␟other"):
        for n in range(3):
            store.thread(name).put({"n": n})
    store.thread("t").hold(reason="case 17")
    with pytest.raises(DeniedError, match="case 17"):
        store.thread("t␟child").delete()
    with pytest.raises(DeniedError, match="case 17"):
        store.maintenance.prune(keep_last=1, threads="t␟child")
    assert store.thread("t␟␟other").delete()


def test_langgraph_respects_holds(shared: Backend) -> None:
    store = filled(shared)
    saver = HoldfastSaver(store)
    store.thread("t␟child").put({"n": 1})
    store.thread("t").hold(reason="case 17")
    with pytest.raises(DeniedError, match="case 17"):
        saver.delete_thread("t")
    with pytest.raises(DeniedError, match="case 17"):
        saver.prune(["t"])
    with pytest.raises(DeniedError, match="case 17"):
        saver.prune(["t"], strategy="delete")
    assert len(store.thread("t").log()) == 10
    store.thread("t").release()
    saver.delete_thread("t")
    assert store.threads() == []


@pytest.mark.parametrize("action", ["delete", "prune"])
def test_a_hold_set_meanwhile_counts(fresh: Backends, action: str) -> None:
    held: list[Moment] = []

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = copied(backend, filled, fold_every=3)
        other = store_on(backend.inner)

        def act() -> None:
            with suppress(NotFoundError):  # it is deleted already
                other.thread("t").hold(reason="just now")
                if len(other.thread("t").log()) == 10:
                    held.append(moment)

        with moment.interfere(backend, act):
            try:
                store.thread("t").delete() if action == "delete" else store.maintenance.prune(keep_last=1, threads="t")
            except DeniedError:
                assert moment in held
        assert len(other.thread("t").log()) == (10 if moment in held else 0 if action == "delete" else 2)

    at_every_moment(scenario)
    assert len(held) >= (2 if action == "delete" else 20), "held before it was over"


def test_both_are_copied_to_another_store(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db") as store, holdfast.open(f"sqlite:///{tmp_path}/b.db") as other:
        for n in range(3):
            store.thread("t").put({"n": n}, id=str(n))
        store.thread("t").pin("1", reason="why")
        store.thread("t").hold(reason="case 17")
        store.maintenance.copy_to(other)
        assert store.maintenance.copy_to(other).skipped == 2  # with the audit
        assert [(each.id, each.reason) for each in other.thread("t").pins()] == [("1", "why")]
        assert [each.reason for each in other.thread("t").holds()] == ["case 17"]
        store.thread("t").release()
        store.maintenance.copy_to(other)
        assert [each.reason for each in other.thread("t").holds()] == ["case 17"], "there, it is taken back there"
        other.thread("t").release()
        assert other.thread("t").holds() == []


def test_a_copy_under_another_name_is_not_held(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").pin("1", reason="why")
    store.thread("t").hold(reason="case 17")
    prune_nothing = LineCopier(store._engine).copy({store._handle.thread_line("t"): store._handle.thread_line("copy")})
    run(prune_nothing)
    assert store.thread("copy").holds() == []
    assert [each.id for each in store.thread("copy").pins()] == ["1"]
