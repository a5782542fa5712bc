"""What each code means: of errors, of what verifying finds, of the doctor's checks.

`holdfast explain CODE` shows these texts, and `docs/guides/troubleshooting.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from holdfast.errors import NotFoundError
from holdfast.maintenance.explain.checks import CHECKS
from holdfast.maintenance.explain.errors import ERRORS
from holdfast.maintenance.explain.findings import FINDINGS

EXIT_FINDINGS = 6


class Explanation(NamedTuple):
    """What a code means, where it usually comes from, and what to do."""

    code: str
    kind: str
    """`error`, `finding` (of verify) or `check` (of the doctor)."""
    meaning: str
    causes: tuple[str, ...]
    remedy: str
    exit_code: int
    """How a command ends that meets it."""


def explanations() -> Mapping[str, Explanation]:
    """All of them, by code: errors first, then findings, then checks."""
    found = {each.code: Explanation(each.code, "error", *each[1:]) for each in ERRORS}
    for code, (meaning, remedy) in FINDINGS.items():
        found[code.value] = Explanation(code.value, "finding", meaning, (), remedy, EXIT_FINDINGS)
    for name, (meaning, causes, remedy) in CHECKS.items():
        found[name] = Explanation(name, "check", meaning, causes, remedy, EXIT_FINDINGS)
    return found


def explain(code: str) -> Explanation:
    """What a code means. `NotFoundError` names near ones."""
    known = explanations()
    wanted = code.strip().lower().replace("_", "-")
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, 3) or [each for each in known if wanted and wanted in each][:3]
    hint = f"Did you mean {', '.join(near)}?" if near else "`holdfast explain` lists all"
    raise NotFoundError(f"there is no code {code!r}", hint=hint)
