"""Requests whose caller is gone: their errors are nobody's, and asyncio does not log them as lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.object_store.local import DirectoryStorage
from holdfast.backends.object_store.request_storage import RequestStorage
from holdfast.backends.runtime.drivers import arun
from holdfast.backends.runtime.group_queue import GroupQueue, QueuedBatch
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.errors import OutcomeUnknownError


@pytest.mark.parametrize("own_thread", [False, True])
def test_a_request_that_fails_when_its_caller_is_cancelled(
    own_thread: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thread = LoopThread("test-requests") if own_thread else None
    failed = False

    async def main() -> None:
        loop, started = asyncio.get_running_loop(), asyncio.Event()

        async def request() -> None:
            nonlocal failed
            loop.call_soon_threadsafe(started.set)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                failed = True
                raise ServerInterrupted("cut off", sent=True) from None

        storage = RequestStorage(DirectoryStorage(tmp_path, False), "the service", "s3://bucket", 30.0, thread)
        caller = asyncio.create_task(arun(storage._send(request)))
        await started.wait()
        caller.cancel()
        with suppress(asyncio.CancelledError, OutcomeUnknownError):
            await caller

    asyncio.run(main())
    if thread is not None:
        thread.stop()
    gc.collect()
    assert failed
    assert "never retrieved" not in caplog.text


def test_what_follows_a_group_fails(caplog: pytest.LogCaptureFixture) -> None:
    failed = False

    async def main() -> None:
        async def commit(batches: list[Any], slot: int, deadline: float) -> list[None]:
            return [None] * len(batches)

        def after() -> Coroutine[Any, Any, None]:
            return fail()

        async def fail() -> None:
            nonlocal failed
            failed = True
            raise ServerInterrupted("cut off", sent=True)

        queue = GroupQueue(commit, after=after)
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        queue.add(QueuedBatch([object()], 1, answer, 60.0))  # type: ignore[list-item]
        assert await answer is None
        await queue.drain()

    asyncio.run(main())
    gc.collect()
    assert failed
    assert "never retrieved" not in caplog.text
