"""Run the suites over every store and composition, and write what each was found to guarantee into the documents.

`python -m tools.matrix` writes the table in docs/guides/stores.md, between its markers. With `--check` it writes
nothing, and fails if the table there says anything else. A test that fails, or a server that is missing, fails both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "stores.md"
BEGIN, END = "<!-- from here on by tools/matrix.py -->", "<!-- until here -->"

STORES = {
    "memory": "memory",
    "sqlite": "SQLite",
    "file": "files",
    "postgres": "PostgreSQL",
    "pgbouncer": "PostgreSQL through PgBouncer",
    "mongodb": "MongoDB",
    "redis": "Valkey, `appendfsync always`",
    "s3": "S3 (SeaweedFS)",
    "azure": "Azure Blob Storage (Azurite)",
    "gcs": "Google Cloud Storage (emulated)",
    "retry": "`retry` on SQLite",
    "cache": "`cache` in Valkey of PostgreSQL",
    "write-behind": "`write-behind`: SQLite, then PostgreSQL",
    "mirror": "`mirror`: SQLite and MongoDB",
    "tiered": "`tiered`: PostgreSQL, then S3",
}

_ONCE = ("test_a_commit_is_cut_off", "test_connections_are_cut_and_refused", "test_some_answers_are_wrong")
_KILLED = ("test_the_server_dies_in_the_middle_of_commits", "test_a_pooler_is_restarted")
_BATCHES = ("/writes.py", "/races.py", "/histories.py")

FILES = ("tools/matrix_suite.py", "tests/backends/test_server_faults.py", "tests/backends/test_server_faults_s3.py")


class Result(NamedTuple):
    """What became of a test."""

    test: str
    file: str
    outcome: str


class Results:
    """A plugin of pytest that keeps what became of each test, by store."""

    def __init__(self) -> None:
        self.of: defaultdict[str, list[Result]] = defaultdict(list)
        self.properties: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.bad: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        if report.when != "call" and report.outcome == "passed":
            return
        file, _, test = report.nodeid.partition("::")
        words = f"-{test.partition('[')[2].removesuffix(']')}-"
        kind = next((kind for kind in STORES if f"-{kind}-" in words), "s3" if "_s3" in file else "")
        reason = str(report.longrepr)
        if report.outcome == "failed" or "SERVER MISSING" in reason:
            self.bad.append(report.nodeid)
        self.of[kind].append(Result(test.rpartition("::")[2].partition("[")[0], report.location[0], report.outcome))
        self.properties[kind].update(dict(report.user_properties))


def row(kind: str, results: Results) -> list[str]:
    """What was found out about a store."""
    found = results.of[kind]
    said = json.loads(results.properties[kind].get("capabilities", "{}"))
    trips = results.properties[kind].get("round trips")
    return [
        STORES[kind],
        _claim(said, "durable"),
        _claim(said, "fresh"),
        _claim(said, "shared"),
        f"{said['max_body'] >> 20:,} MiB" if said else "not tested",
        _verdict(each for each in found if "conformance" in each.file),
        _verdict(each for each in found if each.file.endswith(_BATCHES)),
        _verdict(each for each in found if each.test == "test_clients_are_killed"),
        _verdict((each for each in found if each.test in _KILLED), "no server"),
        _verdict((each for each in found if each.test in _ONCE), "no server"),
        _verdict(each for each in found if each.test == "test_langgraph"),
        "none" if trips is None else f"{trips:g}",
    ]


HEAD = [
    "store",
    "durable",
    "fresh",
    "shared",
    "body up to",
    "suite",
    "atomic batches",
    "client killed",
    "server killed",
    "lost answers",
    "LangGraph's suite",
    "round trips a step",
]


def table(results: Results) -> str:
    """All of it, as Markdown."""
    rows = [row(kind, results) for kind in STORES]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows))


def _claim(said: dict[str, Any], name: str) -> str:
    return "not tested" if name not in said else "yes" if said[name] else "no"


def _verdict(results: Any, otherwise: str = "not tested") -> str:
    outcomes = {each.outcome for each in results}
    if "failed" in outcomes:
        return "FAILS"
    if outcomes == {"skipped"}:
        return "not claimed"
    return "yes" if outcomes else otherwise


def main(arguments: list[str]) -> int:
    """Run the suites; returns what the process ends with."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table says anything else")
    parser.add_argument("-n", default="auto", metavar="PROCESSES", help="how many test processes to use")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only these tests, to try it out")
    given = parser.parse_args(arguments)
    results = Results()
    options = ["-q", "-n", given.n, "-k", given.k, "-m", "not torture", "--no-cov", "-r", "N"]
    options += ["-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    code = pytest.main([*options, *(str(ROOT / file) for file in FILES)], plugins=[results])
    made = table(results)
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{PAGE} has lost its markers {BEGIN} and {END}", file=sys.stderr)
        return 2
    if results.bad or code != pytest.ExitCode.OK or given.k:
        why = "nothing is written: not all tests were run, or some failed, or a server is missing"
        print(made, *results.bad, why, sep="\n")
        return 1
    if given.check:
        if old.strip() == made:
            return 0
        print(f"{PAGE} does not say what was found; run python -m tools.matrix:", made, sep="\n")
        return 1
    PAGE.write_text(f"{before}{begin}\n\n{made}\n\n{end}{after}", encoding="utf-8")
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
