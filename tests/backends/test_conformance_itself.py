"""The suite notices every promise that a backend breaks."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from holdfast.backends.conformance import child
from holdfast.backends.conformance.model import Model
from holdfast.backends.conformance.rows import column, row_of, step
from holdfast.backends.conformance.suite import ShortConformance
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS
from holdfast.testing import BackendConformance, Stores
from tests.backends.broken import BROKEN

pytest_plugins = ["pytester"]

FILE = """
import pytest
from holdfast.testing import BackendConformance, Stores
from tests.backends import broken

class TestBroken(BackendConformance):
    @pytest.fixture
    def stores(self, tmp_path):
        return {stores}
"""

ALL_BROKEN = """
import pytest
from holdfast.backends.conformance.kit import Suite
from holdfast.backends.conformance.suite import ShortConformance
from holdfast.testing import BackendConformance, Stores
from tests.backends.broken import BROKEN

class Chosen(Suite):
    histories, watched = ShortConformance.histories, ShortConformance.watched
    drive, handles = ShortConformance.drive, ShortConformance.handles
    test_it_claims_nothing_that_it_is_said_to_lack = None

    @pytest.fixture
    def stores(self):
        return Stores("memory://", wrap=self.wrap)

for name, (wrap, tests) in BROKEN.items():
    members = {test: getattr(BackendConformance, test) for test in tests}
    globals()[f"Test{name}"] = type(f"Test{name}", (Chosen,), {"wrap": staticmethod(wrap), **members})
"""
"""Runs against each broken backend the tests that have to fail, with as little as the short suite has."""

LOST = ("test_what_a_killed_process_was_acknowledged_is_there_and_whole",)

QUIET = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-p", "no:langsmith_plugin", "-q", "--tb=no")


def run_file(pytester: pytest.Pytester, text: str, *options: str) -> dict[tuple[str, str], set[str]]:
    """How the tests of a file end, by class and name: "passed", "failed" or "skipped", for each of their cases."""
    pytester.makepyfile(text)
    found: dict[tuple[str, str], set[str]] = {}
    for report in pytester.inline_run(*options, *QUIET).getreports("pytest_runtest_logreport"):
        assert isinstance(report, pytest.TestReport)
        if report.when == "call" or not report.passed:
            kind, _, test = report.location[2].partition(".")
            found.setdefault((kind, test.partition("[")[0]), set()).add(report.outcome)
    return found


def outcomes(pytester: pytest.Pytester, stores: str, tests: tuple[str, ...]) -> dict[str, set[str]]:
    """How tests of the suite end for a backend."""
    found = run_file(pytester, FILE.format(stores=stores), "-k", f"({' or '.join(tests)}) and not async")
    return {test: ends for (_, test), ends in found.items()}


@pytest.fixture(autouse=True)
def without_shrinking() -> Iterator[None]:
    """A backend that fails is enough here; the smallest history that makes it fail would take long to find."""
    before = settings.get_current_profile_name()
    settings.register_profile("itself", deadline=None, phases=[Phase.generate], database=None, derandomize=True)
    settings.load_profile("itself")
    yield
    settings.load_profile(before)


@pytest.mark.nightly
def test_every_broken_backend_fails(pytester: pytest.Pytester) -> None:
    found = run_file(pytester, ALL_BROKEN)
    expected = {(f"Test{name}", test) for name, (_, tests) in BROKEN.items() for test in tests}
    assert found.keys() == expected
    assert [test for test, ends in found.items() if "failed" not in ends] == []


def test_the_short_suite_finds_every_broken_backend() -> None:
    """Of the tests that have to fail, at least one is in the short suite."""
    missed = {name for name, (_, tests) in BROKEN.items() if not any(hasattr(ShortConformance, test) for test in tests)}
    assert missed == set()
    assert hasattr(ShortConformance, LOST[0])
    assert ShortConformance.kills < BackendConformance.kills, "so only the whole suite is sure to find halves"


def test_a_backend_that_takes_anything_fails(pytester: pytest.Pytester) -> None:
    tests = ("test_a_bad_url_is_refused", "test_an_unknown_option_is_refused")
    found = outcomes(pytester, 'Stores("memory://", kind=broken.Obliging)', tests)
    assert found == {test: {"failed"} for test in tests}


def test_a_backend_whose_new_handles_are_behind_fails(pytester: pytest.Pytester) -> None:
    """Histories of one handle do not notice it."""
    tests = ("test_a_backend_answers_as_the_model_does", "test_every_handle_answers_as_the_model_does")
    found = outcomes(pytester, 'Stores(f"sqlite:///{tmp_path}/store.db", wrap=broken.FirstReadIsEmpty)', tests)
    assert found == {tests[0]: {"passed"}, tests[1]: {"failed"}}


@pytest.mark.parametrize("name", ["early", "halves"])
def test_a_backend_that_loses_what_it_acknowledged_fails(pytester: pytest.Pytester, name: str) -> None:
    stores = f'Stores(f"sqlite:///{{tmp_path}}/store.db", command=broken.command({name!r}))'
    assert outcomes(pytester, stores, LOST) == {LOST[0]: {"failed"}}


def test_tests_of_what_is_not_claimed_are_skipped(pytester: pytest.Pytester) -> None:
    tests = (
        "test_everything_is_there_after_opening_again",
        "test_what_a_killed_process_was_acknowledged_is_there_and_whole",
        "test_of_processes_that_create_one_key_one_wins",
    )
    assert outcomes(pytester, 'Stores("memory://")', tests) == {test: {"skipped"} for test in tests}


def test_a_process_that_cannot_open_the_store_says_why(pytester: pytest.Pytester) -> None:
    stores = 'Stores(f"sqlite:///{tmp_path}/store.db", command=["false"])'
    assert outcomes(pytester, stores, LOST) == {LOST[0]: {"failed"}}


def test_a_suite_without_stores_says_what_is_missing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FILE.partition("class")[0] + "class TestIt(BackendConformance): ...")
    result = pytester.inline_run("-k", "test_closing_again", *QUIET[:-1])
    failures = [str(report.longrepr) for report in result.getfailures()]
    assert len(failures) == 2
    assert all("has to provide the fixture `stores`" in failure for failure in failures)


@pytest.mark.nightly
@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_pytest_the_error_names_the_extra(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import holdfast.backends.conformance.model, holdfast.backends.conformance.child
from holdfast.errors import ConfigError
try:
    import holdfast.testing
    holdfast.testing.BackendConformance
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"needs {missing}" in done.stdout
    assert ".[testing]" in done.stdout


# What other processes do


def tell(task: str, url: str, *arguments: str, said: str = "") -> list[str]:
    lines: list[str] = []
    child.main([task, url, json.dumps({}), *arguments], io.StringIO(said), lines.append)
    return lines


def test_a_child_streams_claims_and_echoes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    assert tell("stream", url, "w", "3", "2") == ["ready", "0", "1", "2"]
    assert tell("claim", url, "a", "2", said="go\n") == ["ready", "0", "1"]
    assert tell("claim", url, "b", "4", said="go\n") == ["ready", "2", "3"]
    assert tell("echo", url, "c", said="7\n9\n") == ["ready", "7", "9"]
    with pytest.raises(AssertionError, match="refused"):
        tell("stream", url, "w", "1", "1")
    with pytest.raises(AssertionError, match="taken"):
        tell("echo", url, "d", said="7\n")
    backend = run(Stores(url).open())
    steps, nodes = run(backend.read([Scan(STEPS, ()), Scan(NODES, ())]))
    run(backend.close())
    assert [(row.key[3], column(STEPS, row, "kind")) for row in steps] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
        (7, "c"),
        (9, "c"),
    ]
    assert len(nodes) == 3 * child.WIDTH
    child.main(["claim", url, "{}", "e", "0"], io.StringIO("go\n"))
    assert capsys.readouterr().out == "ready\n"


# What backends are compared with


def test_the_model_is_as_plain_as_it_looks() -> None:
    model = Model()
    first, second, third = (step(seq, id=name) for seq, name in ((2, "a"), (10, "b"), (1, "b")))
    assert model.apply([Create(STEPS, first), Put(STEPS, second), Ensure(STEPS, third)]) == []
    assert model.read(Scan(STEPS, ())) == [third, first, second]
    assert model.read(Scan(STEPS, (), by="id")) == [first, third, second]
    assert model.read(Scan(STEPS, ("tenant", "line", 0), start=(2,), stop=(10,))) == [first]
    assert model.read(Scan(STEPS, (), reverse=True, limit=1)) == [second]
    assert model.read(Scan(STEPS, ("other",))) == []
    assert model.read(Get(STEPS, [first.key, row_of(STEPS, "no").key])) == [first]
    changed = step(2, id="c")
    refused: list[Change] = [Put(STEPS, changed), Create(STEPS, second)]
    refused += [Expect(STEPS, first.key, first.columns), Expect(LINES, ("x",), ())]
    assert model.apply(refused) == [1, 2, 3]
    assert model.apply([Expect(STEPS, first.key, None), Ensure(STEPS, changed)]) == [0]
    assert model.read(Scan(STEPS, ())) == [third, first, second]
    assert model.apply([Ensure(STEPS, changed), Delete(STEPS, second.key), Expect(STEPS, second.key, None)]) == []
    assert model.read(Scan(STEPS, ())) == [third, first]


def test_rows_have_the_columns_of_their_space() -> None:
    assert column(STEPS, step(1, id="x", size=7), "size") == 7
    with pytest.raises(TypeError, match="steps has no column 'colour'"):
        step(1, colour="red")
