"""The disk fails in the middle of saving: the error is ours, and what was acknowledged before is there afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import HoldfastError, TransientError, UnavailableError
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.vfs_faults import DiskFault, FaultyVFS, disk_full, read_error, sync_error, write_error

FAULTS: dict[str, Callable[[int], DiskFault]] = {
    "disk full": disk_full,
    "write error": write_error,
    "failed flush": sync_error,
    "read error": read_error,
}


def state_of(number: int) -> dict[str, object]:
    return {"messages": [f"message {n}" * 20 for n in range(number)], "number": number}


def save_until_it_fails(store: Store) -> tuple[list[str], HoldfastError | None]:
    """The ids that were acknowledged, and what went wrong."""
    saved: list[str] = []
    for number in range(12):
        try:
            saved.append(store.thread("t").put(state_of(number), id=f"{number:03}").id)
            if number == 8:
                store.maintenance.compact("t")
        except HoldfastError as error:
            return saved, error
    return saved, None


_STRIDES = {kind: 12 if kind in ("disk full", "write error") else 3 for kind in FAULTS}
"""Of the points at which a fault can strike, the ordinary run tries every third or twelfth."""


@pytest.mark.parametrize(
    ("kind", "stride"),
    mostly_nightly(
        [(kind, stride) for kind in FAULTS for stride in (1, _STRIDES[kind])],
        daily=list(_STRIDES.items()),
    ),
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str, stride: int) -> None:
    after_some = 0
    for nth in range(1, 1000, stride):
        url = f"sqlite:///{tmp_path}/{nth}.db"
        vfs = FaultyVFS([FAULTS[kind](nth)])
        try:
            saved = _one_run(url, vfs.name)
        finally:
            vfs.unregister()
        if not vfs.struck:
            break  # the fault lay beyond the end of the run
        after_some += bool(saved)
        store = store_on(run(SQLiteBackend.open(url)), fold_every=3)
        found = {each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()}
        assert set(saved) <= found.keys() <= {*saved, f"{len(saved):03}"}
        assert all(state == state_of(int(id)) for id, state in found.items())
        store.thread("t").put({"works": "again"}, id="~")
        assert run(store._engine.context.backend.check()) == []
        store.close()
    else:
        pytest.fail("the run never ended without a fault")
    assert after_some > 5


def _one_run(url: str, vfs: str) -> list[str]:
    """Save until the disk fails and once more, and return the ids that were acknowledged."""
    try:
        store = store_on(run(SQLiteBackend.open(url, vfs=vfs, exclusive=True)), fold_every=3)
    except HoldfastError:
        return []
    saved, error = save_until_it_fails(store)
    assert isinstance(error, TransientError | UnavailableError | None), error
    found = {each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()} if saved else {}
    assert set(saved) <= found.keys() <= {*saved, f"{len(saved):03}"}
    id, state = f"{len(saved):03}", state_of(len(saved))
    with contextlib.suppress(TransientError, UnavailableError):  # it may strike only now
        store.thread("t").put(state, id=id)
    saved.append(store.thread("t").put(state, id=id).id)
    with contextlib.suppress(UnavailableError):
        store.close()
    return saved
