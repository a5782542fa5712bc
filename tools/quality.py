"""The page of measured quality: `make nightly` writes docs/quality.md from what it has run."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tools import mutants
from tools.run_report import RunReport

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quality.md"
STEPS = ROOT / "build" / "nightly.json"
"""The steps that passed, for a run that was interrupted to go on after them."""

CHANGED = ", with changes"
_SHORT = 60
"""A step that took fewer seconds is repeated."""

_PAGE = """\
# Measured quality

`make nightly` wrote this page at the end of a whole run: every test on every store and composition, with new random \
examples, coverage, deliberate changes of the source, the table of guarantees, the benchmarks with their bounds, and \
the everyday tests on other versions of Python. A page written by a run that failed says so. A run that was \
interrupted goes on, on the same commit, after the steps that have passed.

| | |
|---|---|
{figures}

| step | result | minutes |
|---|---|---|
{steps}

Left out: {left_out}.
"""


class Result(NamedTuple):
    """How a step ended."""

    name: str
    passed: bool
    seconds: float


def passed_steps() -> dict[str, Result]:
    """Return the long steps that have passed on the same commit, by their names."""
    commit = _commit()
    kept = json.loads(STEPS.read_text()) if STEPS.exists() else {}
    if kept.get("commit") != commit or CHANGED in commit:
        return {}
    return {name: Result(name, True, seconds) for name, seconds in kept["steps"].items()}


def keep_steps(results: Sequence[Result]) -> None:
    """Keep the long steps that have passed."""
    steps = {each.name: each.seconds for each in results if each.passed and each.seconds >= _SHORT}
    STEPS.parent.mkdir(exist_ok=True)
    STEPS.write_text(json.dumps({"commit": _commit(), "steps": steps}))


def write_page(
    tests: RunReport, results: Sequence[Result], left_out: Sequence[str], vulnerabilities: Sequence[str] | None
) -> None:
    """Write what a run has found."""
    figures = {
        "run": f"{'passed' if all(each.passed for each in results) else '**failed**'}, {datetime.now(UTC):%Y-%m-%d}",
        "commit": _commit(),
        "machine": f"{platform.system()}, {platform.machine()}, Python {platform.python_version()}",
        "tests passed": f"{tests.outcomes['passed']:,}",
        "tests failed": f"{tests.outcomes['failed']:,}",
        "tests skipped, each for another platform": f"{tests.outcomes['skipped']:,}",
        "processes and servers killed in tests that passed": f"{tests.kills:,}",
        "lines and branches covered by the everyday tests": _coverage(),
        "deliberate changes of the source that the everyday tests found": _found(),
        "known vulnerabilities of the locked dependencies": (
            "not checked: their database could not be reached" if vulnerabilities is None else f"{len(vulnerabilities)}"
        ),
    }
    page = _PAGE.format(
        figures="\n".join(f"| {name} | {value} |" for name, value in figures.items()),
        steps="\n".join(
            f"| {each.name} | {'passed' if each.passed else '**failed**'} | {each.seconds / 60:.1f} |"
            for each in results
        ),
        left_out="; ".join(left_out),
    )
    PAGE.write_text(page, encoding="utf-8")


def _coverage() -> str:
    return f"{mutants.covered(mutants.EVERYDAY):.1f} %" if (mutants.EVERYDAY / "learned").exists() else "not measured"


def _found() -> str:
    path = mutants.EVERYDAY / "outcomes.json"
    if not path.exists():
        return "not measured"
    outcomes: dict[str, int] = json.loads(path.read_text())
    return f"{outcomes.get('found', 0)} of {sum(outcomes.values())}"


def _commit() -> str:
    """Return the commit that was tested, and whether the files are its own, but for the page itself."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return (commit or "unknown") + (CHANGED if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
