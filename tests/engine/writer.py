"""A process that saves until it is killed, and says what was acknowledged: `python -m tests.engine.writer URL NAME`."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from typing import Any

from msgspec.structs import force_setattr

import holdfast
from holdfast.engine import leases
from holdfast.errors import ConflictError


def state_of(writer: str, number: int) -> dict[str, Any]:
    """The state that a writer saves as its so-manieth, from which it can be told."""
    return {
        "messages": [f"{writer} {n}" for n in range(max(0, number - 40), number)],
        "by": writer,
        "number": number,
        "large": f"{writer} {number} " * 8000 if number % 17 == 0 else "",
    }


def main(url: str, writer: str) -> None:
    """Save to a thread of one's own and to one that all share; now and then compact, and delete a third."""
    store = holdfast.open(url)
    force_setattr(store._engine.context, "fold_every", 4)  # so that there is much to interrupt
    leases._LIFE_NS = 50_000_000  # so that the living, too, are taken for dead
    for number in itertools.count():
        for thread in (writer, "shared", f"{writer} for a while"):
            saved = store.thread(thread).put(state_of(writer, number), metadata={"number": number})
            say(f"saved\t{thread}\t{saved.id}\t{writer}\t{number}\n")
        if number % 9 == 8:
            with contextlib.suppress(ConflictError):  # a lease outlives whoever was killed with it
                store.maintenance.compact(writer)
        if number % 11 == 10:
            say(f"deleting\t{writer} for a while\n")
            store.thread(f"{writer} for a while").delete()
            say(f"deleted\t{writer} for a while\n")


def say(line: str) -> None:
    """In one piece, and at once."""
    os.write(1, line.encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
