"""An agent in a process of its own, to be killed: it reports each turn when it is done."""

from __future__ import annotations

import json
import sys
import time

import holdfast
from holdfast.agents.definition.options import Autosave
from tests.agents.autosaved import Noter


def main(url: str, settings: str, beat: str) -> None:
    """Take turns until somebody ends it."""
    store = holdfast.open(url)
    agent = Noter().attach(store, "a", autosave=Autosave(**json.loads(settings)))
    agent.start()
    number = len(agent.conversation)
    while True:
        agent.conversation.append({"role": "user", "content": str(number)})
        print(number, time.time(), flush=True)
        number += 1
        time.sleep(float(beat))


if __name__ == "__main__":
    main(*sys.argv[1:])
