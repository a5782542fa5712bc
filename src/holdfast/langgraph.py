"""LangGraph on Holdfast: `HoldfastSaver`, a checkpointer for sync and async graphs, `HoldfastStore`, its long-term
memory, and the way from and to its other savers."""

from __future__ import annotations

from holdfast.interfaces.langgraph.item_store import HoldfastStore
from holdfast.interfaces.langgraph.node_cache import HoldfastCache
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.interfaces.langgraph.transfer import export_threads, import_threads

__all__ = ["HoldfastCache", "HoldfastSaver", "HoldfastStore", "export_threads", "import_threads"]
