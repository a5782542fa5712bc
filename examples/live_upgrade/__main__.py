"""A release that changes the form of the state, while agents of the old release are at work.

    python -m examples.live_upgrade

It prints what each release reads and is refused, and how many a migration brings to the new form.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypedDict

import holdfast
from holdfast.errors import ConflictError
from holdfast.schemas import Migration, Schema, SchemaSet, add, rename


class Chat1(TypedDict):
    """The state of the first release."""

    msgs: list[str]


class Chat2(TypedDict):
    """The state of the second one."""

    messages: list[str]
    plan: list[str]


FIRST = SchemaSet(Schema("example-chat", "1.0.0", Chat1))
SECOND = SchemaSet(
    Schema("example-chat", "1.0.0", Chat1),
    Schema("example-chat", "2.0.0", Chat2),
    Migration("example-chat", "1.0.0", "2.0.0", rename("msgs", "messages"), add("plan", default=[])),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agents.db"
        with holdfast.open(path) as old, holdfast.open(path) as new:
            old.schemas.attach(FIRST, threads="chat-*")
            for number in range(3):
                old.thread(f"chat-{number}").put({"msgs": ["hello"]})

            new.schemas.attach(SECOND, threads="chat-*")  # the new release starts
            print("the new one reads", new.thread("chat-0").get().state)
            try:
                old.thread("chat-1").update({"msgs": ["hello", "again"]})
            except ConflictError as refused:
                print("the old one is refused:", refused.code)
            new.thread("chat-0").update({"plan": ["greet"]})
            print("stored as", [each.schema for each in new.thread("chat-0").log()])

            report = new.schemas.up(SECOND)  # the others, in bulk, while agents run
            print(f"migrated: {report.migrated}")
            print("verified:", new.maintenance.verify().ok)


if __name__ == "__main__":
    main()
