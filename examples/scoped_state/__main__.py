"""Values by key, of users and agents: versions, history, conditions, transactions, and who may read what.

    python -m examples.scoped_state

It prints the history of a key, a conflict, a transaction that is not made, and what another agent may read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import DeniedError


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        plan = store.state(agent="researcher")
        plan["goal"] = "tides"
        plan["goal"] = "kelp"
        print("goal:", *(f"{each.action} at version {each.version}" for each in plan.history("goal")))
        plan.increment("calls", 2)
        plan.append("notes", "a holdfast grips the rock")
        print("calls:", plan["calls"], "notes:", len(plan["notes"]))

        try:
            with store.transaction() as transaction:
                transaction.state(agent="researcher").set("goal", "sand")
                transaction.state(user="ada").set("seen", 1)
                raise RuntimeError
        except RuntimeError:
            print("after a transaction that was given up:", plan["goal"], store.state(user="ada").get("seen"))

        writer = store.as_identity(agent="writer").state(agent="researcher")
        try:
            writer.get("goal")
        except DeniedError:
            print("the writer may not read it")
        store.access.grant("agent:writer", "read", "agent:researcher", keys="goal")
        print("the writer reads:", writer.get("goal"))


if __name__ == "__main__":
    main()
