"""Runs on the servers: the same rows, whatever has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests import servers
from tests.agents.runs.graphs import buying, chain, logging_nodes
from tests.support.nightly import mostly_nightly

_STARTS: dict[str, Callable[[], str]] = {
    "postgres": servers.postgres,
    "mongodb": servers.mongodb,
    "redis": servers.redis,
}


@pytest.mark.time_limit(300)
@pytest.mark.parametrize("kind", mostly_nightly(_STARTS, daily=["postgres"]))
def test_runs_are_done_on_a_server(kind: str, tmp_path: Path) -> None:
    buy, graph = buying(tmp_path / "ledger"), chain(*logging_nodes(2))
    with holdfast.open(_STARTS[kind]()) as store, holdfast.open(store._handle.engine.context.backend.url) as other:
        one = store.runs.submit("t", ["o"], graph="buy", idempotency_key="k")
        two = store.runs.submit("t", ["p"], graph="buy")
        three = store.runs.submit("g", {"log": ["x"]}, graph="chain")
        assert store.runs.submit("t", ["o"], graph="buy", idempotency_key="k").id == one.id
        assert [each.id for each in other.runs.list(state="queued")] == [three.id, two.id, one.id]
        other.worker(buy, graph).run_due()
        assert [store.runs.get(each.id).state for each in (one, two, three)] == ["done"] * 3
        assert store.thread("g").get().state["log"] == ["x", "n0", "n1"]
        assert [each.kind for each in store.runs.follow(three.id)] == ["checkpoint"] * 4 + ["done"]
        large = store.runs.submit("large", ["x" * 3_000_000], graph="nobody")
        assert len(other.runs.get(large.id).input[0]) == 3_000_000
        assert other.runs.cancel(large.id).state == "cancelled"
        with other.worker(buy):
            late = store.runs.submit("t", ["late"], graph="buy")
            assert store.runs.wait(late.id, timeout=60).state == "done"
        for thread in ("t", "g", "large"):
            store.thread(thread).delete()
        assert store.runs.list() == []
    assert len((tmp_path / "ledger").read_text().split()) == 3 * 5 * 2
