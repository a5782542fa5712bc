"""Run the checks of the project: `python -m tools.suite test`, or `nightly`, `lint`, `lint-daily`, `record`.

`test` runs the linters beside the everyday tests; mypy alone takes a minute when it starts cold. `record` does the same
and keeps how long each file took, for later runs to be compared with. `nightly` runs everything except `make torture`,
one step after the other, continues after a failure, and writes to docs/quality.md what each has found. It repeats no
long step that has passed on the same files, so that a run that was interrupted, or mended, can go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools import browser, native_build
from tools.audit import known_vulnerabilities
from tools.quality import (
    Result,
    commit,
    found_by_coverage,
    found_by_mutants,
    found_by_tests,
    passed_step,
    tree_digest,
    write_page,
)
from tools.run_report import RunReport, grown_files, read_report, record_times, recorded_times

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
OTHER_PYTHONS = ("3.12", "3.13", "3.14")

LIMIT = 7 * 60
"""How many seconds the linters and the everyday tests should take on two cores that do nothing else."""

MOST_SKIPS = 20
"""How many tests may be skipped where every server and the browser are there: those for another platform."""

WORKERS = str((os.cpu_count() or 1) * 3 // 2)
"""More than processors: tests wait for servers, timers and other processes."""

REPORT = ROOT / "build" / "tests.xml"
PARTS = {
    "engine": ("codec", "engine", "history", "migration", "schemas"),
    "backends": ("backends", "servers"),
    "state and agents": ("agents", "recording", "snapshots", "state", "store"),
    "security": ("hooks", "security"),
    "maintenance": ("maintenance",),
    "interfaces": ("interfaces",),
    "the rest": (),
}
"""The folders of the tests that run together by night. The last part has all that the others leave."""
PATCHES = ROOT / ".hypothesis" / "patches"
PYTEST = (sys.executable, "-m", "pytest", "-n", WORKERS, "--dist", "worksteal", "-o", "junit_family=xunit1")
EVERY_TEST = ("-m", "not torture", "--hypothesis-profile=nightly", "--time-limit=900")
LINTERS = (
    (sys.executable, "-m", "ruff", "check", *FOLDERS),
    (sys.executable, "-m", "ruff", "format", "--check", *FOLDERS),
    (str(Path(sys.executable).with_name("lint-imports")), "--no-logo"),
)
MYPY = (sys.executable, "-m", "mypy")
TYPED_BY_DAY = ("src", "examples", "tools")
"""The folders whose types `make test` checks: those of the tests take as long again, and `make lint` checks all."""


def main(arguments: Sequence[str]) -> int:
    """Run what is named. Returns the exit code."""
    command, *options = arguments or [""]
    if command not in COMMANDS or (options and command != "nightly"):
        sys.exit(f"usage: python -m tools.suite {'|'.join(COMMANDS)} [words of the steps of the night to run]")
    os.chdir(ROOT)
    results = nightly(" ".join(options)) if options else COMMANDS[command]()
    return 0 if all(each.passed for each in results) else 1


def lint(folders: Sequence[str] = FOLDERS) -> list[Result]:
    """Style, formatting, types and layers."""
    return [timed("lint", partial(run_linters, folders))]


def test() -> list[Result]:
    """The linters beside the everyday tests."""
    return check(record=False)


def check(*, record: bool) -> list[Result]:
    """Run the linters beside the everyday tests, and keep the times of the files if asked to and all is well."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        linters = subprocess.Popen(
            (sys.executable, "-m", "tools.suite", "lint-daily"),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to be stopped with all that it started
        )
        try:
            report("the linters run in the background; what they say follows after the tests")
            compile_tests()
            pages = browser.ensure()
            if not pages:
                report(f"{browser.MISSING}; install one: {browser.command_to_install()}")
            tests = timed("tests", partial(run_tests, REPORT))
            passed = linters.wait() == 0
        finally:
            if linters.poll() is None:
                os.killpg(linters.pid, signal.SIGKILL)
                linters.wait()
        output.seek(0)
        sys.stdout.write(output.read())
    seconds = time.monotonic() - start
    run_report = read_report(REPORT)
    results = [
        tests,
        Result("linters", outcome_of(passed), seconds),
        Result("skips", outcome_of(few_skips(run_report)), seconds),
    ]
    if record and all(each.passed for each in results):
        record_times(run_report.seconds)
    report(f"{'passed' if tests.passed else 'FAILED'}: tests; {'passed' if passed else 'FAILED'}: linters")
    report(f"{minutes(seconds)} of the {minutes(LIMIT)} minutes that they should take together on two cores")
    if seconds > LIMIT:
        for line in grown_files(run_report.seconds, recorded_times()):
            report(line)
    if not pages:
        report(f"the pages were NOT tested: {browser.MISSING}; install one: {browser.command_to_install()}")
    return results


def run_tests(path: Path, *options: str) -> bool:
    """Run the tests, and have pytest write a report."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    return run((*PYTEST, f"--junitxml={path}", *options))


def run_on(python: str, environment: str) -> bool:
    """Run the everyday tests on another Python, in an environment of its own. What the linters say is the same."""
    set_up = (python, "tools/bootstrap.py", "servers", environment)
    return run(set_up) and run((f"{environment}/bin/python", *PYTEST[1:]))


def compile_tests() -> None:
    """Import the tests once in a fresh clone: else each process of pytest would compile all that they import."""
    if not any((ROOT / "tests" / "__pycache__").glob("*-pytest-*")):
        report("compiling the tests, and what they import")
        run(
            (*PYTEST[:3], "--collect-only", "-qq", "--no-header", "--no-summary", "-p", "tools.import_only"),
            output=subprocess.DEVNULL,
        )


def few_skips(run_report: RunReport) -> bool:
    """Return whether no more tests were skipped than may be. Only CI has to have every server, and the browser."""
    if len(run_report.skips) <= MOST_SKIPS or not os.environ.get("CI"):
        return True
    report(f"{len(run_report.skips)} tests were skipped, and {MOST_SKIPS} may be, each for another platform")
    for skip in run_report.skips:
        report(f"skipped: {skip}")
    return False


class Step(NamedTuple):
    """A step of the night."""

    name: str
    files: str
    """A digest of the files that it depends on."""
    run: Callable[[], bool]
    found: Callable[[], str] = str
    """Says what it measured."""


def nightly(selected: str = "") -> list[Result]:
    """Everything except the runs that take as long as they are given, or the steps with these words in their names."""
    left_out = ["the long fault and fuzzing runs (make torture)", "macOS and Windows (the workflow runs them)"]
    browser.ensure()
    steps = list(nightly_steps(left_out))
    results = [passed_step(step.name, step.files) or Result(step.name, "not run") for step in steps]
    for number, step in enumerate(steps):
        if not results[number].passed and selected in step.name:
            ended = timed(step.name, step.run)
            results[number] = ended._replace(found=step.found(), files=step.files, commit=commit())
            write_page(results, left_out)
    for each in results:
        report(f"{each.outcome}  {minutes(each.seconds)}  {each.name}  {each.found}")
    for missing in left_out:
        report(f"left out: {missing}")
    return results


def nightly_steps(left_out: list[str]) -> Iterator[Step]:
    """Yield the steps of the night. Adds what cannot be run here to what is left out."""
    whole = tree_digest()
    vulnerabilities: list[str] | None = None

    def check_dependencies() -> bool:
        nonlocal vulnerabilities
        vulnerabilities = known_vulnerabilities()
        return not vulnerabilities

    def dependencies_found() -> str:
        if vulnerabilities is None:
            return "not checked: their database could not be reached"
        return f"{len(vulnerabilities)} vulnerabilities"

    yield Step("lint", whole, run_linters)
    for part in PARTS:
        found = partial(found_by_tests, part_report(part))
        yield Step(f"all tests, with new examples: {part}", part_digest(part), partial(run_part, part), found)
    learn = partial(run_tool, "tools.mutants", "--learn")
    yield Step("the everyday tests, with coverage", whole, learn, found_by_coverage)
    try_changes = partial(run_tool, "tools.mutants")
    yield Step("changes of the source that the everyday tests find", whole, try_changes, found_by_mutants)
    yield Step("what each store guarantees", whole, partial(run_tool, "tools.matrix", "--check"))
    yield Step("known vulnerabilities of the dependencies", whole, check_dependencies, dependencies_found)
    yield Step("tests of frameworks over the adapters", whole, partial(run_tool, "tools.adapters"))
    yield Step("benchmarks", whole, partial(run_tool, "benchmarks.run", "--check"))
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in OTHER_PYTHONS:
        if version == here:
            continue
        if python := find_python(version):
            run_there = partial(run_on, python, f"build/python{version}")
            yield Step(f"the everyday tests on Python {version}", whole, run_there)
        else:
            left_out.append(f"Python {version}, which is not installed, or without ensurepip")


def run_part(part: str) -> bool:
    """Run the tests of day and night in the folders of a part, with new random examples."""
    paths = part_paths(part)
    passed = run_tests(part_report(part), *EVERY_TEST, *paths)
    if not passed:
        keep_examples(paths)
    return passed


def part_paths(part: str) -> list[str]:
    """Return the arguments by which pytest runs a part."""
    if PARTS[part]:
        return [f"tests/{folder}" for folder in PARTS[part]]
    return ["tests", *(f"--ignore=tests/{folder}" for folders in PARTS.values() for folder in folders)]


def part_report(part: str) -> Path:
    """Return the path of the report of a part."""
    return ROOT / "build" / f"nightly-{part.replace(' ', '-')}.xml"


def part_digest(part: str) -> str:
    """Return a digest of all that a part depends on: everything but the files of tests of the other parts."""
    others = {folder for name, folders in PARTS.items() if name != part for folder in folders}

    def belongs_to_another(path: str) -> bool:
        top, _, rest = path.partition("/")
        if top != "tests" or not Path(path).name.startswith("test_"):
            return False
        folder = rest.partition("/")[0]
        return folder in others or (folder not in PARTS[part] and PARTS[part] != ())

    return tree_digest(belongs_to_another)


def keep_examples(paths: Sequence[str]) -> None:
    """Run the tests that failed once more, with the examples that failed, and write these into the tests.

    Hypothesis keeps the examples in .hypothesis, and writes a patch where a test runs in the process of pytest itself.
    """
    before = set(PATCHES.glob("*"))
    # The plugin of Schemathesis has Hypothesis leave out the values of an example.
    again = (
        *PYTEST[:3],
        "-p",
        "no:schemathesis",
        "--last-failed",
        "--last-failed-no-failures=none",
        *EVERY_TEST,
        *paths,
    )
    report(f"the tests that failed, once more: {' '.join(again)}")
    run(again)
    for patch in sorted(set(PATCHES.glob("*")) - before):
        if run(("git", "apply", str(patch))):
            report(f"{patch} put failing examples into the tests; import `example` where it is missing, and commit")
        else:
            report(f"put the failing examples into the tests by hand: {patch}")


def run_tool(module: str, *arguments: str) -> bool:
    """Run a module of the project."""
    return run((sys.executable, "-m", module, *arguments))


def run_linters(folders: Sequence[str] = FOLDERS) -> bool:
    """Run all of them, also after one has failed. The types of these folders are checked."""
    results = [run(command) for command in (*LINTERS, (*MYPY, *folders))]
    return all([*results, *map(run, native_linters())])


def native_linters() -> Iterator[Sequence[str]]:
    """Yield the linters of the native core, where they are installed and it was built."""
    if not native_build.LIBRARY.exists():
        return
    manifest = f"--manifest-path={native_build.CRATE / 'Cargo.toml'}"
    for tool, options in (
        ("fmt", ("--check",)),
        ("clippy", ("--release", "--locked", "--quiet", "--", "-D", "warnings")),
    ):
        if shutil.which(f"cargo-{tool}"):
            yield ("cargo", tool, manifest, *options)


def find_python(version: str) -> str | None:
    """A Python of a version that works: on the path, or among those of pyenv, whose shims may lead nowhere."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    for python in filter(None, candidates):
        if subprocess.run((python, "-c", "import ensurepip"), capture_output=True, check=False).returncode == 0:
            return python
    return None


def run(command: Sequence[str], output: int | None = None) -> bool:
    """Whether a command ended well. It gets the time to sum up when it is interrupted, as this process is."""
    with subprocess.Popen(command, stdout=output) as process:
        try:
            return process.wait() == 0
        except KeyboardInterrupt:
            process.wait()
            raise


def timed(name: str, step: Callable[[], bool]) -> Result:
    """Run a step, and measure it."""
    report(name)
    start = time.monotonic()
    return Result(name, outcome_of(step()), time.monotonic() - start)


def outcome_of(passed: bool) -> str:
    """Say how something ended."""
    return "passed" if passed else "failed"


def minutes(seconds: float) -> str:
    """Minutes and seconds, as a clock shows them."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def report(text: str) -> None:
    """Print a line that stands out from the output of the tools."""
    print(f"== {text}", flush=True)


COMMANDS: dict[str, Callable[[], list[Result]]] = {
    "test": test,
    "record": partial(check, record=True),
    "nightly": nightly,
    "lint": lint,
    "lint-daily": partial(lint, TYPED_BY_DAY),
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
