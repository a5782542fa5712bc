"""Puts `HoldfastSession` in the place of the SDK's `SQLiteSession`, for the SDK's own tests. Copied beside them."""

from __future__ import annotations

from typing import Any

import agents

import holdfast
from holdfast.openai_agents import HoldfastSession


class SQLiteSession(HoldfastSession):
    """A session by the path of its file, or in memory."""

    def __init__(self, session_id: str, db_path: Any = ":memory:", session_settings: Any = None) -> None:
        self._store = holdfast.open("memory://" if db_path == ":memory:" else db_path)
        super().__init__(session_id, self._store, session_settings)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


agents.SQLiteSession = SQLiteSession  # type: ignore[assignment,misc]
