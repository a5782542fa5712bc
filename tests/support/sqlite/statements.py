"""Counting what SQLite does: an operation may return few rows and yet have looked at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw


class Statements:
    """What the connections that were opened meanwhile have done."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again at nothing."""
        self.count = 0
        self.steps = 0
        """Instructions of SQLite's virtual machine: a few for each row that it looks at, returned or not."""

    def note(self, event: dict[str, Any]) -> None:
        """Note a statement that has ended."""
        self.count += 1
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


@contextmanager
def counted_statements() -> Iterator[Statements]:
    """Count the statements of connections that are opened in a `with` block."""
    found = Statements()

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, found.note, id=found)

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)
