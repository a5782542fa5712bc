"""Scripts in Lua and JavaScript: sandboxes in which the API has the names, arguments and errors of Python."""

from __future__ import annotations

from holdfast.errors import ScriptError
from holdfast.interfaces.scripting import Language, ReturnedFunction, Sandbox, ScriptHook

__all__ = ["Language", "ReturnedFunction", "Sandbox", "ScriptError", "ScriptHook"]
