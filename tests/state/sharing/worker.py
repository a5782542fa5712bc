"""A process that takes part in what is shared, until it is killed or there is nothing left to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import astuple

import holdfast
from holdfast.store.store import Store

STAGES = ["fetch", "parse", "store"]
LEASE = 0.6


def tell(value: object) -> None:
    """Let the test know; nothing of it is lost when the process is killed."""
    os.write(1, f"{value}\n".encode())


def subscribe(store: Store, name: str, last: str) -> None:
    """Receive messages, and tell of each, up to the last one; or for ever, if there is none."""
    subscription = store.sharing.topic("news").subscribe(name, start="start")
    tell("ready")
    for message in subscription:
        tell(message.value)
        if str(message.value) == last:
            subscription.ack()
            return


def publish(store: Store, name: str, count: str) -> None:
    """Publish so many messages."""
    for number in range(int(count)):
        store.sharing.topic("news").publish([name, number])


def pipeline(store: Store, count: str) -> None:
    """Work at all stages, until there are so many results."""
    line = store.sharing.pipeline("ingest", STAGES, tries=1000)
    tell("ready")
    while line.stats().results < int(count):
        for stage in STAGES:
            line.work(stage, partial(_passed, stage), lease=LEASE, timeout=0.01, limit=4)


def _passed(stage: str, value: list[Any]) -> list[Any]:
    return [*value, stage]


def serve(store: Store, slow: str) -> None:
    """Answer requests; as one that is slow, tell of the first, and never answer it."""
    requests = store.sharing.requests("planner")
    tell("ready")
    if slow == "slow":
        request = requests.take(lease=LEASE, timeout=60)
        tell(request)
        sys.stdin.read()
    requests.serve(lambda value: value * 2, lease=LEASE)


def edit(store: Store, name: str, count: str) -> None:
    """Edit one document in both ways, so many times."""
    document = store.sharing.document("plan")
    for number in range(int(count)):
        mark = f"{name}-{number}"
        value, version = astuple(document.read())
        value["text"] += f"{mark}\n"
        value["list"].append(mark)
        value["dict"][mark] = number
        document.save(value, version)

        def count_up(value: Any) -> Any:
            return {**value, "count": value["count"] + 1}

        document.edit(count_up)


def main() -> None:
    """Do what the arguments say: the store, what to do, and with what."""
    url, what, *how = sys.argv[1:]
    roles: dict[str, Callable[..., None]] = {
        "subscribe": subscribe,
        "publish": publish,
        "pipeline": pipeline,
        "serve": serve,
        "edit": edit,
    }
    with holdfast.open(url) as store:
        roles[what](store, *how)


if __name__ == "__main__":
    main()
