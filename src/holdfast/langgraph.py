"""LangGraph on Holdfast: `HoldfastSaver`, a checkpointer for sync and async graphs, and `HoldfastStore`, its long-term
memory."""

from __future__ import annotations

from holdfast.interfaces.langgraph.item_store import HoldfastStore
from holdfast.interfaces.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver", "HoldfastStore"]
