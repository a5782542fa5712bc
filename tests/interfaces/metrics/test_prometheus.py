"""Metrics for Prometheus: the text is what Prometheus' own parser reads, and the figures are those of what was done."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import hooks
from holdfast.backends.runtime.metric_families import FAMILIES
from holdfast.errors import VetoError
from holdfast.langgraph import HoldfastSaver
from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot
from holdfast.metrics import to_prometheus
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.metrics.kit import parse, value


def test_operations_are_counted_timed_and_told_apart_by_their_errors() -> None:
    with holdfast.open("memory://") as store:
        thread = store.thread("secret-name")
        for n in range(3):
            thread.put({"n": n})
        with pytest.raises(holdfast.errors.NotFoundError):
            store.thread("nobody").get()
        found = store.maintenance.metrics()
        text = to_prometheus(found)
    values = parse(text)
    assert value(values, "operation_seconds_count", operation="thread.put") == 3
    assert value(values, "operation_seconds_count", operation="thread.get", error="not-found") == 1
    assert value(values, "operation_seconds_bucket", operation="thread.put", le="+Inf") == 3
    assert value(values, "backend_bytes_count", request="write") >= 4
    assert value(values, "backend_bytes_sum", request="write") > 100
    assert value(values, "up") == 1
    assert "secret-name" not in text
    assert found.value("operation_seconds", operation="thread.put") == 3


def test_an_async_store_counts_as_a_sync_one_does() -> None:
    async def use() -> MetricsSnapshot:
        async with holdfast.aopen("memory://") as store:
            await asyncio.gather(*(store.thread(f"t{n}").put({"n": n}) for n in range(20)))
            return await store.maintenance.metrics()

    assert asyncio.run(use()).value("operation_seconds", operation="thread.put") == 20


def test_threads_at_once_lose_no_count(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db", synchronous="normal") as store:

        def work(name: str) -> None:
            for n in range(50):
                store.thread(name).put({"n": n})

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found = store.maintenance.metrics()
    assert found.value("operation_seconds", operation="thread.put") == 400
    values = parse(to_prometheus(found))
    batches = value(values, "commit_group_batches_sum")
    assert batches >= 400
    assert 0 < value(values, "commit_group_batches_count") <= batches
    assert value(values, "storage_bytes") > 10_000


def test_hooks_agents_and_jobs_are_in_the_same_registry() -> None:
    with holdfast.open("memory://") as store:

        @store.hooks.before("state.set", name="broken")
        def broken(call: hooks.HookContext) -> None:
            raise RuntimeError("it fails")

        store.hooks.add(hooks.Validate({"type": "integer"}), "state.set", name="whole")
        store.state()["n"] = 1
        with pytest.raises(VetoError):
            store.state()["n"] = "one"
        store.jobs.add("tidy", "tidy", schedule="hourly")
        store.jobs.run("tidy")
        found = store.maintenance.metrics()
    assert found.value("hook_calls_total", hook="broken") == found.value("hook_failures_total", hook="broken") == 2
    assert found.value("hook_vetoes_total", hook="whole") == 1
    assert found.value("validation_failures_total", kind="hook") == 1
    assert found.value("job_runs_total", type="tidy", outcome="ok") == 1
    assert found.value("job_last_success_timestamp_seconds", job="tidy") > 1.7e9


def test_savers_and_agents_are_measured_too() -> None:
    with holdfast.open("memory://") as store:
        saver = HoldfastSaver(store)
        assert saver.get_tuple({"configurable": {"thread_id": "chat"}}) is None

        class Counter(holdfast.agents.PersistentAgent, name="metrics-counter"):
            n: int = 0
            _handle: str = "of the program"

        agent = Counter().attach(store, "a")
        agent.start()
        agent.save()
        found = store.maintenance.metrics()
    assert found.value("operation_seconds", operation="saver.get_tuple") == 1
    assert found.value("agent_saves_total", outcome="done") == 2


def test_several_stores_have_labels_and_one_that_is_open_twice_is_added_up(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "a.db") as one,
        holdfast.open(tmp_path / "a.db") as same,
        holdfast.open("memory://", tenant='x"\\\n') as other,
    ):
        for each in (one, same, other):
            each.thread("t").put({"n": 1})
        values = parse(
            to_prometheus(one.maintenance.metrics(), same.maintenance.metrics(), other.maintenance.metrics())
        )
    assert value(values, "operation_seconds_count", operation="thread.put") == 3
    assert value(values, "operation_seconds_count", operation="thread.put", tenant='x"\\\n', store="memory://") == 1


def test_every_family_is_documented_and_well_named() -> None:
    for name, family in FAMILIES.items():
        assert family.about.endswith(".")
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert bool(family.bounds) == (family.kind == "histogram"), name
        assert not {"thread", "agent", "id", "le"} & set(family.labels), name


def test_a_served_store_has_its_metrics_for_its_owner_only(served: ServedStore) -> None:
    answer = served.request("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = parse(answer.text)
    assert value(values, "up") == 1
    assert value(values, "storage_bytes") > 0
    token = served.store.access.issue_token("user:alice", until="1h")
    assert served.request("GET", "/metrics", token=token.secret).status == 403
    assert served.request("GET", "/metrics", token=None).status == 401
