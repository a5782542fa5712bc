"""Large batches on stores behind a network: they are given longer, and are not sent with many others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.backends import async_backend
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Put
from holdfast.backends.runtime import group_queue
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import METADATA
from holdfast.errors import OutcomeUnknownError
from tests.backends.test_async_backend import SERVERS, Near


@pytest.fixture
def near(request: pytest.FixtureRequest) -> Iterator[Near]:
    """A store that gives up after half a second."""
    url = f"near://{request.node.nodeid}"
    store = run(Near.open(url, timeout=0.5))
    yield store
    run(store.close())
    SERVERS.pop(url)


def entries(count: int, thread: str = "l") -> list[Put]:
    return [Put(METADATA, row_of(METADATA, "t", thread, f"{number:06}", "key")) for number in range(count)]


@pytest.mark.nightly
def test_a_large_batch_may_take_longer(near: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_backend, "PACE", 1_000 * group_queue._ROW_BYTES // 60)  # a minute for a thousand rows
    near.server.pause = 1.0
    with pytest.raises(OutcomeUnknownError):
        run(near.apply(entries(1)))
    assert run(near.apply(entries(1_000, "large"))) is None


def test_rows_without_bodies_fill_a_group_too(near: Near) -> None:
    many = group_queue.MAX_BYTES // group_queue._ROW_BYTES // 2

    async def at_once() -> None:
        near.server.open = False
        waiting = [asyncio.ensure_future(arun(near.apply(entries(many, f"{number}")))) for number in range(6)]
        await asyncio.sleep(0.05)
        near.server.open = True
        await asyncio.gather(*waiting)

    asyncio.run(at_once())
    assert sum(near.server.groups) == 6
    assert max(near.server.groups) <= 2
