"""The hook whose calls `benchmarks.replay` replays. A module of its own: what it imports is part of the time."""

from __future__ import annotations

from typing import Any

from holdfast import Store


def register(store: Store) -> None:
    """Register the hook."""

    @store.hooks.before("state.set", record=True)
    def limit(call: Any) -> int:
        return min(int(call.value), 500)
