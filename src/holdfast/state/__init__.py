"""Scoped state, sessions, artifacts and sharing: the changes that a key of `store.state` can merge."""

from __future__ import annotations

from holdfast.engine.model.operators import AddToSet, Append, Increment, Max

__all__ = ["AddToSet", "Append", "Increment", "Max"]
