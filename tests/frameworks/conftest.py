"""Tests of adapters whose frameworks do not get along with other packages here: `make adapters` runs them, each in an
environment of its own. Elsewhere they are left out."""

from __future__ import annotations

from importlib.util import find_spec

MODULES = {
    "agent_framework": "agent_framework",
    "google_adk": "google.adk",
    "langgraph_server": "langgraph_api",
    "pydantic_ai": "pydantic_ai",
}
"""The frameworks of the files of tests."""


def is_installed(module: str) -> bool:
    """Return whether there is a module, which may be in a package that is not there."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


collect_ignore = [f"test_{name}.py" for name, module in MODULES.items() if not is_installed(module)]
