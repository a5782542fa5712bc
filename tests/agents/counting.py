"""A process that counts on an agent that others use, too: `python -m tests.agents.counting URL COUNT`."""

from __future__ import annotations

import sys
from typing import Any

import holdfast
from tests.agents.greeters import Greeter


def added(base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What both sides counted since they had the same."""
    total = theirs["fields"]["count"] + mine["fields"]["count"] - base["fields"]["count"]
    return {**theirs, "fields": {**theirs["fields"], "count": total}}


def main(url: str, count: str) -> None:
    with holdfast.open(url) as store:
        agent = store.agents.restore("shared", on_conflict=added)
        assert isinstance(agent, Greeter)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(count)):
            agent.count += 1
            agent.conversation.append(number)
            agent.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
