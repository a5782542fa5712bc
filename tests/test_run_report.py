"""What a run of the tests says of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import quality
from tools.quality import Result, found_by_tests, passed_step, write_page
from tools.run_report import ROOT, grown_files, read_report
from tools.suite import PARTS, part_digest, part_paths

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one" time="1.5"><properties><property name="kills" value="3"/>
</properties></testcase>
<testcase classname="tests.test_a" name="test_two" time="0.5"><properties><property name="kills" value="5"/>
</properties><failure message="x"/></testcase>
<testcase classname="tests.test_b.TestB" name="test_three" time="0.25"><skipped message="no Windows here"/></testcase>
<testcase classname="tests.test_b.TestB" name="test_four" time="0.25"><error message="x"/></testcase>
</testsuite></testsuites>"""


def test_a_report_has_outcomes_skips_times_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "tests.xml"
    path.write_text(REPORT)
    report = read_report(path)
    assert report.outcomes == {"passed": 1, "failed": 2, "skipped": 1}
    assert report.skips == ["tests/test_b.py::test_three: no Windows here"]
    assert report.seconds == {"tests/test_a.py": 2.0, "tests/test_b.py": 0.5}
    assert report.kills == 3, "those of a test that failed count for nothing"
    assert read_report(path, path).outcomes == {"passed": 2, "failed": 4, "skipped": 2}
    assert read_report(tmp_path / "none.xml").outcomes == {}


def test_a_file_has_grown_if_the_slower_machine_does_not_explain_it() -> None:
    before = {f"tests/test_{number}.py": 10.0 for number in range(5)}
    slower = {file: 2 * seconds for file, seconds in before.items()}
    assert grown_files(slower, before) == ["no file grew; this machine takes 2.0 times as long for each"]
    assert grown_files({**slower, "tests/test_3.py": 35.0, "tests/test_new.py": 4.0}, before) == [
        "tests/test_3.py grew by 15.0 s to 35.0 s",
        "tests/test_new.py grew by 4.0 s to 4.0 s",
    ]


def test_a_long_step_that_passed_is_kept_while_its_files_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, tests = tmp_path / "docs" / "quality.md", tmp_path / "tests"
    page.parent.mkdir()
    (tests / "maintenance").mkdir(parents=True)
    (tmp_path / "changes").mkdir()
    monkeypatch.setattr(quality, "ROOT", tmp_path)
    monkeypatch.setattr(quality, "PAGE", page)
    subprocess.run(("git", "init", "--quiet"), cwd=tmp_path, check=True)

    def kept() -> list[str]:
        return [part for part in PARTS if passed_step(part, part_digest(part)) is not None]

    def result(part: str, outcome: str = "passed", seconds: float = 120.0) -> Result:
        return Result(part, outcome, seconds, "1,002 passed, 0 failed, 3 skipped, 40 killed", part_digest(part), "abc")

    def run() -> None:
        write_page([result(part) for part in PARTS], ["what is left out"])

    assert kept() == []
    write_page([result("engine", seconds=1.0), result("security", "failed"), Result("backends", "not run")], [])
    assert kept() == [], "one is short, one failed, and one did not run"
    run()
    assert kept() == list(PARTS)
    assert passed_step("engine", part_digest("engine")) == result("engine")
    assert f"| tests passed | {len(PARTS) * 1002:,} |" in page.read_text()
    assert f"| run | {len(PARTS)} steps passed |" in page.read_text()
    page.write_text(f"{page.read_text()} the page of a run is no change")
    (tmp_path / "changes" / "a.fixed.md").write_text("neither is a note on a change")
    assert kept() == list(PARTS)
    (tests / "maintenance" / "test_backup.py").write_text("of one part")
    assert kept() == [part for part in PARTS if part != "maintenance"]
    (tests / "test_layers.py").write_text("of the rest")
    assert kept() == [part for part in PARTS if part not in ("maintenance", "the rest")]
    (tests / "maintenance" / "kit.py").write_text("tests of other folders may import this")
    assert kept() == []
    run()
    (tmp_path / "source.py").touch()
    assert kept() == []


def test_a_part_of_the_night_says_how_many_tests_passed_and_what_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "tests.xml"
    path.write_text(REPORT)
    assert found_by_tests(path) == "1 passed, 2 failed, 1 skipped, 3 killed"


def test_the_parts_of_the_night_are_all_tests() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    named = [folder for part in PARTS.values() for folder in part]
    assert set(named) <= folders
    assert len(named) == len(set(named))
    assert part_paths("the rest") == ["tests", *(f"--ignore=tests/{folder}" for folder in named)]
