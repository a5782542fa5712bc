"""A process that works in sessions while others collect them."""

from __future__ import annotations

import json
import random
import sys
import time

import holdfast
from holdfast.errors import DeniedError
from holdfast.store.store import Store

IDLE = 0.03
SESSIONS = 6


def work(store: Store, worker: str, seconds: float) -> dict[str, int]:
    """Count up in sessions for a while, and resume those that were ended meanwhile. Returns what was acknowledged."""
    chance, done = random.Random(worker), dict.fromkeys(map(str, range(SESSIONS)), 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        id = str(chance.randrange(SESSIONS))
        state = store.state(session=id, agent=worker) if chance.random() < 0.5 else store.state(session=id)
        try:
            state.change(f"count/{worker}", lambda value: value + 1, 0)
            done[id] += 1
        except DeniedError as refused:
            if refused.code != "session-ended":
                raise
            store.sessions.resume(id)
        time.sleep(chance.choice([0, 0, 0, IDLE * 2]))
    return done


def main() -> None:
    """Work, as the arguments say: the store, a name, how long."""
    url, worker, seconds = sys.argv[1:]
    with holdfast.open(url) as store:
        json.dump(work(store, worker, float(seconds)), sys.stdout)


if __name__ == "__main__":
    main()
