"""The power fails in the middle of changes of state: what was acknowledged is there, and no batch by halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import EVENTS
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.powercut import Labels, Log, check_cuts, record
from tests.support.sqlite.recording import Recorder

SCOPES = ("agent:a", "agent:b")
Model = dict[str, dict[str, Any]]


def play(store: Store, mark: Callable[[Any], None]) -> None:
    """Sets, patches, batches, deletions and transactions, in two scopes; each with what it makes of them."""
    model: Model = {scope: {} for scope in SCOPES}

    def do(act: Callable[[], object], **after: dict[str, Any]) -> None:
        new = {scope: after.get(scope[-1], content) for scope, content in model.items()}
        mark(("begins", new))
        act()
        model.update(new)
        mark(("done", new))

    a, b = (store.state(scope) for scope in SCOPES)
    for n in range(8):
        do(lambda n=n: a.set("n", n), a={**model["agent:a"], "n": n})  # type: ignore[misc]
        both = {"x": n, "y": n, "big": "text " * 200 * n}
        do(lambda both=both: b.batch(both), b={**model["agent:b"], **both})  # type: ignore[misc]
    do(lambda: a.patch("map", {"k": 1}), a={**model["agent:a"], "map": {"k": 1}})

    def transfer() -> None:
        with store.transaction() as together:
            together.state("agent:a")["sum"] = together.state("agent:b")["x"]
            together.state("agent:b")["x"] = 0

    do(transfer, a={**model["agent:a"], "sum": 7}, b={**model["agent:b"], "x": 0})
    do(lambda: a.move_to(b), a={}, b={**model["agent:b"], **model["agent:a"]})
    do(b.clear, b={})


def recorded(synchronous: str) -> Log:
    def workload(folder: Path, recorder: Recorder) -> None:
        backend = run(
            SQLiteBackend.open(
                f"sqlite:///{folder}/store.db", vfs=recorder.vfs, exclusive=True, synchronous=synchronous
            )
        )
        play(store_on(backend, Clock()), recorder.mark)
        run(backend.close())

    return record(workload)


def verify(folder: Path, labels: Labels) -> None:
    """All that was acknowledged, with or without the whole of what was under way; with an event for each change."""
    allowed: list[Model] = [{scope: {} for scope in SCOPES}]
    for when, content in labels:
        allowed = [content] if when == "done" else [*allowed[:1], content]
    backend = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
    store = store_on(backend, Clock())
    try:
        assert {scope: dict(store.state(scope)) for scope in SCOPES} in allowed
        for scope in SCOPES:
            changes = store.state(scope).history(limit=1000)
            (events,) = run(backend.read([Scan(EVENTS, ("", f"␞{scope}"))]))
            assert sorted((past.id, past.key) for past in changes) == sorted(
                (str(row.key[2]), str(row.columns[4])) for row in events
            )
        store.state("agent:a")["goes"] = "on"
        assert store.state("agent:a")["goes"] == "on"
    finally:
        run(backend.close())


@pytest.mark.parametrize(("seed", "cuts"), mostly_nightly([(0, 40), (0, 200), (1, 200)], daily=[(0, 40)]))
def test_nothing_acknowledged_is_lost_by_a_power_cut(seed: int, cuts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.writer.FOLD_EVERY", 4)
    assert check_cuts(recorded("full"), verify, cuts=cuts, seed=seed) == cuts


def test_the_cuts_would_show_it() -> None:
    """Without flushing before acknowledging, changes do get lost: this test sees it."""
    with pytest.raises((AssertionError, HoldfastError)):
        check_cuts(recorded("off"), verify, cuts=200)
