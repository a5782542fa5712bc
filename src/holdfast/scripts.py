"""Scripts in Lua and JavaScript: sandboxes in which the API has the names, arguments and errors of Python."""

from __future__ import annotations

from holdfast.interfaces.scripting.sandbox import Sandbox, ScriptHook

__all__ = ["Sandbox", "ScriptHook"]
