"""What a run of the tests says of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import quality
from tools.quality import Result, keep_steps, passed_steps
from tools.run_report import grown_files, read_report

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
    assert read_report(tmp_path / "none.xml").outcomes == {}


def test_a_file_has_grown_if_the_slower_machine_does_not_explain_it() -> None:
    before = {f"tests/test_{number}.py": 10.0 for number in range(5)}
    slower = {file: 2 * seconds for file, seconds in before.items()}
    assert grown_files(slower, before) == ["no file grew; this machine takes 2.0 times as long for each"]
    assert grown_files({**slower, "tests/test_3.py": 35.0, "tests/test_new.py": 4.0}, before) == [
        "tests/test_3.py grew by 15.0 s to 35.0 s",
        "tests/test_new.py grew by 4.0 s to 4.0 s",
    ]


def test_a_long_step_that_passed_is_kept_for_the_same_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "quality.md"
    page.parent.mkdir()
    for name, path in {"ROOT": tmp_path, "PAGE": page, "STEPS": tmp_path / "build" / "nightly.json"}.items():
        monkeypatch.setattr(quality, name, path)

    def git(*arguments: str) -> None:
        subprocess.run(("git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments), cwd=tmp_path, check=True)

    long = Result("long", True, 100.0)
    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("build\n")
    for content in ("1", "2"):
        page.write_text(content)
        git("add", "--all")
        git("commit", "--quiet", "--message", content)
        assert passed_steps() == {}, "nothing ran on this commit"
        keep_steps([long, Result("short", True, 1.0), Result("failed", False, 100.0)])
        assert passed_steps() == {"long": long}
    page.write_text("the page of a run is no change")
    assert passed_steps() == {"long": long}
    (tmp_path / "file").touch()
    keep_steps([long])
    assert passed_steps() == {}, "other files than those of a commit may change again"
