"""What is shared works the same on every kind of store, between programs that each have opened it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.state.sharing import segmented_log
from tests.servers.places import place
from tests.support.nightly import mostly_nightly


@pytest.mark.parametrize(
    "kind", mostly_nightly(["file", "postgres", "mongodb", "redis", "s3"], daily=["file", "redis"])
)
def test_sharing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_log, "LENGTH", 4)
    url = place(kind, tmp_path)
    with holdfast.open(url) as one, holdfast.open(url) as two:
        # Broadcast
        subscription = two.sharing.topic("news").subscribe("a", start="start")
        for number in range(6):
            (one, two)[number % 2].sharing.topic("news").publish(number)
        found = [message.value for _ in range(2) for message in subscription.receive_many(timeout=60)]
        assert found == list(range(6))
        subscription.ack()
        assert one.sharing.topic("news").trim() == 4
        assert one.sharing.topic("news").subscribe("a").cursor == 6

        # Request and response
        server = threading.Thread(
            target=lambda: two.sharing.requests("planner").serve(lambda value: value + 1, limit=2)
        )
        server.start()
        assert [one.sharing.requests("planner").call(number, timeout=60) for number in range(2)] == [1, 2]
        server.join()

        # Pipeline
        stages = ["a", "b"]
        one.sharing.pipeline("p", stages).put_many(range(4))
        assert one.sharing.pipeline("p", stages).work("a", str, limit=2) == 2
        assert two.sharing.pipeline("p", stages).work("a", str, timeout=0) == 2
        assert two.sharing.pipeline("p", stages).work("b", int, timeout=0) == 4
        assert [result.value for result in one.sharing.pipeline("p", stages).results()] == [0, 1, 2, 3]

        # Collaboration
        version = one.sharing.document("plan").save({"text": "a\n"}, 0).version
        one.sharing.document("plan").save({"text": "a\nb\n"}, version)
        assert two.sharing.document("plan").save({"text": "a\n", "x": 1}, version).value == {"text": "a\nb\n", "x": 1}
        assert not one.maintenance.verify().findings

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            later = await store.sharing.topic("news").subscribe("a")
            await store.sharing.topic("news").publish("later")
            message = await later.receive(timeout=60)
            assert message is not None
            assert message.value == "later"

    asyncio.run(main())
