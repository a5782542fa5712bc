"""The page of measured quality: `make nightly` writes docs/quality.md from what it has run."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tools import mutants
from tools.run_report import RunReport

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quality.md"
STEPS = ROOT / "build" / "nightly.json"
"""The steps that passed, with the files that they ran on: they are not repeated on the same files."""

_SHORT = 60
"""A step that took fewer seconds is repeated."""

_PAGE = """\
# Measured quality

`make nightly` wrote this page at the end of a whole run: every test on every store and composition, with new random \
examples, coverage, deliberate changes of the source, the table of guarantees, the benchmarks with their bounds, and \
the everyday tests on other versions of Python. A page written by a run that failed says so. A step that has passed is \
not repeated while no file that it depends on changes; the commit is that on which it ran.

| | |
|---|---|
{figures}

| step | result | minutes | commit |
|---|---|---|---|
{steps}

Left out: {left_out}.
"""


class Result(NamedTuple):
    """How a step ended."""

    name: str
    passed: bool
    seconds: float
    commit: str = ""
    """The commit on which it ran."""


def tree_digest(excluded: Callable[[str], bool] | None = None) -> str:
    """Return a digest of the files that a run depends on: all that git does not ignore, but for the page that the run
    writes, the fragments of release notes, and what is excluded by its path."""
    digest = hashlib.sha256(platform.python_version().encode())
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in sorted(filter(None, set(listed))):
        path = ROOT / name
        if path != PAGE and not name.startswith("changes/") and path.is_file() and not (excluded and excluded(name)):
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def passed_step(name: str, digest: str) -> Result | None:
    """Return the result of a long step that has passed on the same files."""
    kept = _kept_steps().get(name)
    return Result(name, True, kept["seconds"], kept["commit"]) if kept and kept["digest"] == digest else None


def keep_step(result: Result, digest: str) -> None:
    """Keep the result of a long step that has passed."""
    if result.passed and result.seconds >= _SHORT:
        kept = {"digest": digest, "seconds": result.seconds, "commit": result.commit}
        STEPS.parent.mkdir(exist_ok=True)
        STEPS.write_text(json.dumps({**_kept_steps(), result.name: kept}, indent=1))


def _kept_steps() -> dict[str, dict[str, Any]]:
    steps: dict[str, dict[str, Any]] = json.loads(STEPS.read_text()) if STEPS.exists() else {}
    return steps


def write_page(
    tests: RunReport, results: Sequence[Result], left_out: Sequence[str], vulnerabilities: Sequence[str] | None
) -> None:
    """Write what a run has found."""
    figures = {
        "run": f"{'passed' if all(each.passed for each in results) else '**failed**'}, {datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(),
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
            f"| {each.name} | {'passed' if each.passed else '**failed**'} | {each.seconds / 60:.1f} | {each.commit} |"
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


def commit() -> str:
    """Return the commit that was tested, and whether the files are its own, but for the page itself."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return (head or "unknown") + (", with changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
