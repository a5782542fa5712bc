"""Scripts in Lua and JavaScript. `holdfast.scripts` is what programs import."""

from __future__ import annotations

from holdfast.interfaces.scripting.process import Language, find_language
from holdfast.interfaces.scripting.sandbox import ReturnedFunction, Sandbox, ScriptHook

__all__ = ["Language", "ReturnedFunction", "Sandbox", "ScriptHook", "find_language"]
