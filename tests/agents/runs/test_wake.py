"""Waking: a worker that would look in five minutes begins at once what is submitted, from this machine or another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs import wake
from tests import servers
from tests.agents.runs.graphs import chain, logging_nodes
from tests.support.nightly import mostly_nightly

_STARTS: dict[str, Callable[[], str]] = {
    "postgres": servers.postgres,
    "mongodb": servers.mongodb,
    "redis": servers.redis,
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on this machine is told directly, as if whoever submits were on another."""
    monkeypatch.setattr(wake, "_ring_here", lambda context: None)


def _is_done_soon(store: Store, thread: str) -> None:
    submitted = store.runs.submit(thread, {"log": []}, graph="chain")
    assert store.runs.wait(submitted.id, timeout=30).state == "done"


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("kind", mostly_nightly(_STARTS, daily=["postgres"]))
def test_a_worker_on_another_machine_is_woken(kind: str) -> None:
    url = _STARTS[kind]()
    with (
        holdfast.open(url) as store,
        holdfast.open(url) as submitting,
        store.worker(chain(*logging_nodes(1)), look_every=300),
    ):
        for number in range(3):
            _is_done_soon(submitting, f"t{number}")
        asked = submitting.runs.submit("later", {"log": []}, graph="chain", when="1h")
        submitting.runs.cancel(asked.id)
        submitting.runs.retry(asked.id)
        assert submitting.runs.wait(asked.id, timeout=30).state == "done"


@pytest.mark.usefixtures("elsewhere")
def test_a_worker_of_another_tenant_is_not_woken_and_an_asynchronous_one_is() -> None:
    url = servers.postgres()

    async def work() -> None:
        async with holdfast.aopen(url, tenant="a") as store, holdfast.aopen(url, tenant="b") as other:
            looks: list[float] = []
            idle = other.worker(chain(*logging_nodes(1)), look_every=300)
            look = idle.look

            async def counted() -> float:
                looks.append(time.monotonic())
                return await look()

            idle.look = counted  # type: ignore[method-assign]
            async with idle, store.worker(chain(*logging_nodes(1)), look_every=300):
                while not (settled := len(looks)) or time.monotonic() - looks[-1] < 0.5:
                    await asyncio.sleep(0.05)  # until it listens
                for number in range(3):
                    submitted = await store.runs.submit(f"t{number}", {"log": []}, graph="chain")
                    assert (await store.runs.wait(submitted.id, timeout=30)).state == "done"
                assert len(looks) == settled
                submitted = await other.runs.submit("t", {"log": []}, graph="chain")
                assert (await other.runs.wait(submitted.id, timeout=30)).state == "done"  # a control
                assert len(looks) > settled

    asyncio.run(work())


def test_a_worker_on_this_machine_is_woken_whatever_the_store(tmp_path: Path) -> None:
    with (
        holdfast.open(f"file://{tmp_path / 'files'}") as store,
        store.worker(chain(*logging_nodes(1)), look_every=300),
    ):
        _is_done_soon(store, "t")


@pytest.mark.usefixtures("elsewhere")
def test_a_worker_whom_nobody_wakes_looks(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, store.worker(chain(*logging_nodes(1)), look_every=0.05):
        _is_done_soon(store, "t")
