"""Explanations of every code: of errors, of findings of verify, of checks of the doctor.

The texts are in `errors.toml`, `findings.toml` and `checks.toml` beside this module. `holdfast explain CODE` shows one,
and `docs/guides/troubleshooting.md` lists them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from holdfast.errors import NotFoundError

_FILES = {"error": ("errors.toml", 1), "finding": ("findings.toml", 6), "check": ("checks.toml", 6)}
"""The file of each kind, and the exit code of a command that meets one."""


class Explanation(NamedTuple):
    """The meaning of a code, its usual causes, and the remedy."""

    code: str
    kind: str
    """`error`, `finding` (of verify) or `check` (of the doctor)."""
    meaning: str
    causes: tuple[str, ...]
    remedy: str
    exit_code: int
    """The exit code of a command that meets it."""


@cache
def explanations() -> Mapping[str, Explanation]:
    """Return all explanations by code: errors first, then findings, then checks."""
    found: dict[str, Explanation] = {}
    for kind, (name, exit_code) in _FILES.items():
        for code, entry in tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8")).items():
            causes = tuple(entry.get("causes", ()))
            end = entry.get("exit_code", exit_code)
            found[code] = Explanation(code, kind, entry["meaning"], causes, entry["remedy"], end)
    return found


def explain(code: str) -> Explanation:
    """Explain a code. `NotFoundError` suggests similar ones."""
    known = explanations()
    name = code.strip().lower().replace("_", "-")
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 3, 0.7) or [each for each in known if name and name in each][:3]
    hint = f"Did you mean {', '.join(near)}?" if near else "`holdfast explain` lists all"
    raise NotFoundError(f"there is no code {code!r}", hint=hint)
