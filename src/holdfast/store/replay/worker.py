"""The process of a replay: hands the orders of the host to the replayer of its subject.

It has what the host sends, and no way to reach the store. The host starts it with `python -m`, and names the subject.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn, Protocol

from holdfast._lazy import load
from holdfast.errors import HoldfastError
from holdfast.store.replay.isolation import confine
from holdfast.store.replay.process import Host

_REPLAYERS = {
    "threads": ("holdfast.interfaces.langgraph.replayer", "ThreadReplayer"),
    "agents": ("holdfast.store.replay.agent_replayer", "AgentReplayer"),
    "hooks": ("holdfast.store.replay.hook_replayer", "HookReplayer"),
}
"""The class for each subject, which is made with the host."""


class Replayer(Protocol):
    """Replays what is recorded of one subject."""

    def replay(self, order: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Execute an order of the host, and return the answer."""
        ...


def serve(subject: str) -> NoReturn:
    """Execute what the host orders, until it ends."""
    host = Host()
    replayer: Replayer = load(*_REPLAYERS[subject])(host)
    confine()
    while (message := host.receive()) is not None:
        try:
            found = replayer.replay(*message)
        except HoldfastError as error:
            found = {"error": {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}}
        host.send(found)
    os._exit(0)  # without waiting for threads of the code


if __name__ == "__main__":
    serve(sys.argv[1])
