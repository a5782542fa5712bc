"""What a run of the tests says of itself: counts, skips, the time of each file, and the processes that it killed."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "tests" / "file_times.json"
"""Seconds of each file in a run that passed. `python -m tools.suite record` writes it."""


class RunReport(NamedTuple):
    """A run, from the report that pytest writes with `--junitxml`."""

    outcomes: Counter[str]
    """How many tests passed, failed (with errors) and were skipped."""
    skips: list[str]
    """Each skipped test with its reason."""
    seconds: dict[str, float]
    """The time of each file, all processes together."""
    kills: int
    """How many processes were killed in tests that passed."""


def read_report(*paths: Path) -> RunReport:
    """Read the reports of a run. Empty, if the run did not get to write any."""
    outcomes, seconds, skips, kills = Counter[str](), defaultdict[str, float](float), list[str](), 0
    for case in chain.from_iterable(ET.parse(path).iter("testcase") for path in paths if path.exists()):
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        outcomes["failed" if failed else "passed" if skipped is None else "skipped"] += 1
        seconds[_file_of(case)] += float(case.get("time", 0))
        if skipped is not None:
            skips.append(f"{_file_of(case)}::{case.get('name')}: {skipped.get('message')}")
        if not failed:
            kills += sum(int(each.get("value", 0)) for each in case.iter("property") if each.get("name") == "kills")
    return RunReport(outcomes, skips, seconds, kills)


def _file_of(case: ET.Element) -> str:
    """Return the file that a test was collected from; one that it inherits is written in another."""
    modules = takewhile(lambda part: not part.startswith("Test"), case.get("classname", "").split("."))
    return f"{'/'.join(modules)}.py"


def grown_files(now: dict[str, float], before: dict[str, float]) -> list[str]:
    """Return a line for each file that takes more of the run than it did, the one that grew most first.

    A machine may be slower as a whole: a file has grown if it takes longer than the median of all files explains.
    """
    ratios = [now[file] / before[file] for file in now.keys() & before.keys() if before[file] > 0.5]
    pace = statistics.median(ratios) if ratios else 1.0
    growth = {file: seconds - pace * before.get(file, 0.0) for file, seconds in now.items()}
    grown = sorted((file for file, more in growth.items() if more > 2.0), key=growth.__getitem__, reverse=True)
    if not grown:
        return [f"no file grew; this machine takes {pace:.1f} times as long for each"]
    return [f"{file} grew by {growth[file]:.1f} s to {now[file]:.1f} s" for file in grown[:15]]


def recorded_times() -> dict[str, float]:
    """Return the recorded times, by file."""
    recorded: dict[str, float] = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    return recorded


def record_times(seconds: dict[str, float]) -> None:
    """Keep the times of a run for later ones to be compared with."""
    rounded = {file: round(seconds[file], 1) for file in sorted(seconds)}
    TIMES.write_text(json.dumps(rounded, indent=1) + "\n")
