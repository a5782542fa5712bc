"""An agent that greets. It is here so that another process can restore it without loading LangChain."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from holdfast.agents import PersistentAgent

VALUES = {1: (Decimal("1.10"), {2, 3}), "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "lc": 1, "$tuple": [1]}


class Greeter(PersistentAgent, name="tests.snapshots.greeter"):
    greeted: list[str] = []
    weights: dict[Any, Any] = {}

    def greet(self, name: str) -> str:
        self.greeted.append(name)
        said = f"{self.configuration['greeting']}, {name}, as number {len(self.greeted)}"
        self.conversation.append({"role": "assistant", "content": said})
        return said
