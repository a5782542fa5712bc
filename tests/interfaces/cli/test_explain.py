"""`holdfast explain`."""

from __future__ import annotations

from pathlib import Path

from holdfast.maintenance.explain.explanations import explanations
from tests.interfaces.cli import kit


def test_a_code_is_explained() -> None:
    done = kit.run("explain", "busy")
    assert done.code == 0
    assert done.lines[0] == "busy  (errors)"
    assert {"Usual causes", "What to do"} <= set(done.lines)
    assert done.lines[-1].startswith("Exit code 1: ")
    (record,) = kit.run("explain", "cut-off", "--json").records
    assert (record["code"], record["kind"], record["exit_code"]) == ("cut-off", "finding", 6)


def test_all_codes_are_listed() -> None:
    done = kit.run("explain")
    assert [line for line in done.lines if line and not line.startswith(" ")] == [
        "Errors",
        "Findings of verify",
        "Checks of the doctor",
    ]
    listed = [line.split()[0] for line in done.lines if line.startswith("  ")]
    assert listed == list(explanations())
    assert [each["code"] for each in kit.run("explain", "--json").records] == listed


def test_near_codes_are_suggested() -> None:
    done = kit.run("explain", "bsy")
    assert done.code == 3
    assert "Did you mean busy" in done.err


def test_the_code_of_every_error_that_is_told_can_be_looked_up(tmp_path: Path) -> None:
    failed = kit.run("threads", "--json", store=f"sqlite:///{tmp_path}/none.db")
    code = failed.error["code"]
    explained = kit.run("explain", code, "--json").records[0]
    assert explained["exit_code"] == failed.code == 10


def test_codes_are_completed() -> None:
    assert (
        "jobs-failing" in kit.completed(_HOLDFAST_COMPLETE="bash_complete", HOLDFAST_LINE="holdfast explain jobs-f").out
    )
