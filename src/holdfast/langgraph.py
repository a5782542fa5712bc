"""LangGraph on Holdfast: `HoldfastSaver`, a checkpointer for sync and async graphs."""

from __future__ import annotations

from holdfast.interfaces.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
