"""The table of guarantees says what was found, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from tests.servers.places import COMPOSED, EMULATED, KINDS
from tools import matrix
from tools.matrix import BEGIN, END, Results

CAPABILITIES = json.dumps({"durable": True, "fresh": False, "shared": True, "max_body": 64 << 20})


def report(
    test: str,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    file: str = "tools/matrix_suite.py",
    why: str | None = None,
    **said: object,
) -> pytest.TestReport:
    name = f"tools/matrix_suite.py::{test}"
    return pytest.TestReport(name, (file, 1, test), {}, outcome, why, "call", user_properties=list(said.items()))


def all_found(*others: pytest.TestReport) -> Results:
    results = Results()
    for kind in (*KINDS, *EMULATED, *COMPOSED):
        for each in (
            report(f"test_capabilities[{kind}]", capabilities=CAPABILITIES),
            report(f"TestConformance::test_a[{kind}-sync]", file="src/holdfast/backends/conformance/races.py"),
            report(f"test_clients_are_killed[{kind}]"),
            report(f"test_langgraph[{kind}]"),
        ):
            results.pytest_runtest_logreport(each)
    for each in others:
        results.pytest_runtest_logreport(each)
    return results


def cells_of(results: Results, store: str) -> dict[str, str]:
    (line,) = [line for line in matrix.table(results).splitlines() if line.startswith(f"| {store} |")]
    return dict(zip(matrix.HEAD, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def test_every_store_has_a_row() -> None:
    assert matrix.STORES.keys() == {*KINDS, *EMULATED, *COMPOSED}


def test_what_was_found() -> None:
    found = cells_of(all_found(), "SQLite")
    assert found["durable"] == found["suite"] == found["atomic batches"] == found["LangGraph's suite"] == "yes"
    assert found["fresh"] == "no"
    assert found["body up to"] == "64 MiB"
    assert found["server killed"] == "no server"


def test_what_failed_or_was_not_claimed() -> None:
    results = all_found(
        report("test_langgraph[s3]", "failed", why="wrong"),
        report("test_the_server_dies_in_the_middle_of_commits[s3]"),
        report("test_a_commit_is_cut_off[s3-before]", "skipped", why="SERVER MISSING: SeaweedFS"),
    )
    found = cells_of(results, "S3 (SeaweedFS)")
    assert found["LangGraph's suite"] == "FAILS"
    assert found["server killed"] == "yes"
    assert found["lost answers"] == "not claimed"
    assert len(results.bad) == 2
    assert cells_of(Results(), "files")["durable"] == "not tested"


def test_the_page_is_written_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "stores.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    others: list[pytest.TestReport] = []

    def run_tests(arguments: list[str], plugins: list[Results]) -> int:
        found = all_found(*others)
        plugins[0].__dict__.update(found.__dict__)
        return 1 if found.bad else 0

    monkeypatch.setattr(matrix, "PAGE", page)
    monkeypatch.setattr(pytest, "main", run_tests)
    assert matrix.main(["--check"]) == 1, "the page says nothing yet"
    assert matrix.main([]) == 0
    written = page.read_text()
    assert written.startswith(f"before\n{BEGIN}\n\n| store |")
    assert written.endswith(f"|\n\n{END}\nafter\n")
    assert matrix.main(["--check"]) == 0
    page.write_text(written.replace("| no |", "| yes |", 1))
    assert matrix.main(["--check"]) == 1, "somebody claimed more than was found"
    others.append(report("test_langgraph[s3]", "failed", why="wrong"))
    page.write_text(written)
    assert matrix.main([]) == 1
    assert page.read_text() == written, "what failed is not written down"
    page.write_text("no markers")
    assert matrix.main([]) == 2
    capsys.readouterr()
