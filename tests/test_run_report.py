"""What a run of the tests says of itself."""

from __future__ import annotations

from pathlib import Path

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
