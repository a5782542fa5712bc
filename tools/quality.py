"""The page of measured quality: `make nightly` writes docs/quality.md from what it has run."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tools import mutants
from tools.run_report import read_report

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quality.md"
"""It is also what a run that goes on reads: the steps that passed, with the files that they ran on."""
FIGURES = ROOT / "docs" / "figures.md"
"""What a run of the benchmarks writes."""

WRITTEN = ("docs/quality.md", "docs/figures.md")
"""No change of what a run depends on."""

_SHORT = 60
"""A step that took fewer seconds is repeated."""

_PAGE = """\
# Measured quality

`make nightly` writes this page: every test on every store and composition, with new random examples, coverage, \
deliberate changes of the source, the table of guarantees, the benchmarks with their bounds, and the everyday tests on \
other versions of Python. A step that has passed is not repeated while no file that it depends on changes (`files` is \
a digest of those), so that a run may be interrupted and go on, also elsewhere; the commit is that on which it ran.

| | |
|---|---|
{figures}

| step | result | minutes | found | files | commit |
|---|---|---|---|---|---|
{steps}

Left out: {left_out}.
"""


class Result(NamedTuple):
    """How a step ended."""

    name: str
    outcome: str
    """`passed`, `failed` or `not run`."""
    seconds: float = 0.0
    found: str = ""
    """What it measured."""
    files: str = ""
    """A digest of the files that it depends on."""
    commit: str = ""
    """The commit on which it ran."""

    @property
    def passed(self) -> bool:
        """Whether it ran, and nothing was wrong."""
        return self.outcome == "passed"


def tree_digest(excluded: Callable[[str], bool] | None = None) -> str:
    """Return a digest of the files that a run depends on: all that git does not ignore, but for the pages that the
    run writes, the fragments of release notes, and what is excluded by its path."""
    digest = hashlib.sha256(platform.python_version().encode())
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in sorted(filter(None, set(listed))):
        path = ROOT / name
        if (
            path not in (PAGE, FIGURES)
            and not name.startswith("changes/")
            and path.is_file()
            and not (excluded and excluded(name))
        ):
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def passed_step(name: str, files: str) -> Result | None:
    """Return the result of a long step that has passed on the same files."""
    for line in PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(Result._fields) and cells[0] == name and cells[1] == "passed":
            _, outcome, taken, found, kept, on = cells
            seconds = float(taken) * 60
            return Result(name, outcome, seconds, found, kept, on) if seconds >= _SHORT and kept == files else None
    return None


def write_page(results: Sequence[Result], left_out: Sequence[str]) -> None:
    """Write what a run has found so far."""
    outcomes = Counter(each.outcome for each in results)
    figures = {
        "run": ", ".join(f"{count} steps {outcome}" for outcome, count in outcomes.most_common()),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(),
        "machine": f"{platform.system()}, {platform.machine()}, Python {platform.python_version()}",
        **_totals(results),
    }
    page = _PAGE.format(
        figures="\n".join(f"| {name} | {value} |" for name, value in figures.items()),
        steps="\n".join(
            f"| {each.name} | {each.outcome} | {each.seconds / 60:.1f} | {each.found} | {each.files} | {each.commit} |"
            for each in results
        ),
        left_out="; ".join(left_out),
    )
    PAGE.write_text(page, encoding="utf-8")


def _totals(results: Sequence[Result]) -> dict[str, str]:
    """Return the sums of what the parts of the tests have found."""
    sums = Counter[str]()
    for number, what in re.findall(
        r"([\d,]+) (passed|failed|skipped|killed)", "; ".join(each.found for each in results)
    ):
        sums[what] += int(number.replace(",", ""))
    return {
        "tests passed": f"{sums['passed']:,}",
        "tests failed": f"{sums['failed']:,}",
        "tests skipped, each for another platform": f"{sums['skipped']:,}",
        "processes and servers killed in tests that passed": f"{sums['killed']:,}",
    }


def found_by_tests(path: Path) -> str:
    """Say what a part of the tests found, from the report of its run."""
    report = read_report(path)
    counts = [f"{report.outcomes[each]:,} {each}" for each in ("passed", "failed", "skipped")]
    return ", ".join([*counts, f"{report.kills:,} killed"])


def found_by_coverage() -> str:
    """Say how much of the source the everyday tests cover."""
    if not (mutants.EVERYDAY / "learned").exists():
        return "not measured"
    return f"{mutants.covered(mutants.EVERYDAY):.1f} % of lines and branches covered"


def found_by_mutants() -> str:
    """Say how many changes of the source the everyday tests found."""
    path = mutants.EVERYDAY / "outcomes.json"
    if not path.exists():
        return "not measured"
    outcomes: dict[str, int] = json.loads(path.read_text())
    return f"{outcomes.get('found', 0)} of {sum(outcomes.values())} found"


def commit() -> str:
    """Return the commit that was tested, and whether the files are its own, but for the pages that the run writes."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", *(f":!{page}" for page in WRITTEN))
    return (head or "unknown") + (", with changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
