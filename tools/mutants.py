"""Change the source in small ways, one at a time, and count the changes that the tests find.

`python -m tools.mutants` draws a hundred changes with a seed, so that two runs, also of two versions of the tests, try
the same ones as long as the source is the same. First it runs the tests of `make test` once, or with `--nightly` those
that `make nightly` adds to them, to learn which of them reach which line, and keeps that in build/mutants. A change is
then tried only by those that reach it, the fastest first, as many as take `--seconds` together; when they take four
times that, it counts as found. `--only` takes the numbers of changes that an earlier run did not find. `--learn` only
runs the tests, and checks how much of the source they cover.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "mutants"
EVERYDAY = KEPT / "everyday"
COPIED = ("src", "tests", "tools", "examples", "docs", "benchmarks", "requirements", "changes")

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutant(NamedTuple):
    """A piece of source, and what takes its place."""

    file: str
    line: int
    start: int
    """The bytes of the piece in the file."""
    stop: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old[:50]!r} -> {self.new[:50]!r}"


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(_without_types(ast.parse(source))):
        for changed, new in _changes(node):
            start = starts[changed.lineno - 1] + changed.col_offset
            stop = starts[(changed.end_lineno or 0) - 1] + (changed.end_col_offset or 0)
            old = source[start:stop].decode()
            yield Mutant(path.relative_to(ROOT).as_posix(), changed.lineno, start, stop, old, new)


def _without_types(tree: ast.Module) -> ast.Module:
    """Leave out what is never run: annotations, overloads, what only a type checker imports."""

    class Stripped(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.annotation = None
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
            node.annotation = ast.Constant(None)
            return self.generic_visit(node) if node.value is not None else None

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
            node.returns = None
            return None if "overload" in map(ast.unparse, node.decorator_list) else self.generic_visit(node)

    stripped: ast.Module = Stripped().visit(tree)
    return stripped


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What may take the place of a node, or of a part of it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            yield node, ast.unparse(ast.Compare(left, [_COMPARED[type(op)]()], [right]))
        case ast.BoolOp(op=op, values=values):
            yield node, ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            other = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield node, f"({ast.unparse(ast.BinOp(left, other, right))})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Raise():
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


# Which tests reach which line -----------------------------------------------------------------------------------


class Reach:
    """The tests that reach a line, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        report = (folder / "report.jsonl").read_text().splitlines()
        self._seconds: dict[str, float] = dict(map(json.loads, report))
        self._files = {Path(name).relative_to(ROOT).as_posix(): name for name in self._data.measured_files()}

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """Those that reach a change, the fastest first, as many as take so long together.

        What runs on import is reached by all that reach the file.
        """
        if (name := self._files.get(mutant.file)) is None:
            return []
        by_line = self._data.contexts_by_lineno(name)
        found = {each for each in by_line.get(mutant.line, ()) if each}
        found = found or {each for contexts in by_line.values() for each in contexts if each}
        tests = {each.partition("|")[0] for each in found} & self._seconds.keys()
        fastest = sorted(tests, key=self._seconds.__getitem__)
        sums = accumulate(map(self._seconds.__getitem__, fastest))
        return [test for test, total in zip(fastest, sums, strict=True) if total <= seconds] or fastest[:1]


def learn(nightly: bool) -> Path:
    """Run the tests once, unless an earlier run has been through the same source and tests. Returns the folder of what
    was learned."""
    folder = KEPT / "nightly" if nightly else EVERYDAY
    learned, digest = folder / "learned", hashlib.sha256()
    for path in sorted(each for name in ("src", "tests") for each in (ROOT / name).rglob("*.py")):
        digest.update(path.read_bytes())
    if learned.exists() and learned.read_text() == digest.hexdigest():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.jsonl").unlink(missing_ok=True)
    expression = "nightly and not torture" if nightly else "not nightly and not torture"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--dist", "worksteal", "-m", expression]
    # Measuring more than doubles the time of a test.
    options = ["--cov", "--cov-context=test", "--cov-report=", "-p", "tools.mutants", "--time-limit=300"]
    files = {"COVERAGE_FILE": str(folder / "coverage"), "MUTANTS_REPORT": str(folder / "report.jsonl")}
    variables = {**os.environ, **files, "CI": "true"}
    if subprocess.run([*command, *options], cwd=ROOT, env=variables, check=False).returncode not in (0, 1):
        sys.exit("the tests did not run to their end, so nothing is known of what they reach")
    learned.write_text(digest.hexdigest())
    return folder


def covered(folder: Path) -> float:
    """Return how many percent of the lines and branches the tests covered that a run learned of."""
    measured = coverage.Coverage(data_file=str(folder / "coverage"))
    measured.load()
    with Path(os.devnull).open("w") as nowhere:
        return measured.report(file=nowhere)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how long a test took, where this module is a plugin of pytest."""
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["MUTANTS_REPORT"]).open("a") as file:
            file.write(json.dumps([report.nodeid, report.duration]) + "\n")


# Trying ---------------------------------------------------------------------------------------------------------


def try_out(mutant: Mutant, tests: Sequence[str], folder: Path, limit: float) -> str:
    """Make a change in a copy of the project and run the tests there. Returns what became of it."""
    if not tests:
        return "not reached"
    path = folder / mutant.file
    source = path.read_bytes()
    write_source(path, source[: mutant.start] + mutant.new.encode() + source[mutant.stop :])
    try:
        failed = run_tests(tests, folder, limit)
    finally:
        write_source(path, source)
    if not failed:
        return "survived"
    # A test that fails without the change, too, has found nothing.
    return "unclear" if run_tests(failed, folder, limit) else "found"


def write_source(path: Path, source: bytes) -> None:
    """Replace a file, and remove its byte code: Python would take that for current if time and size are the same."""
    path.write_bytes(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def run_tests(tests: Sequence[str], folder: Path, limit: float) -> list[str]:
    """Run tests in a copy of the project until one fails. Returns it, or all of them if they hang or do not start."""
    chosen = folder / "build" / "chosen.txt"
    chosen.parent.mkdir(exist_ok=True)
    chosen.write_text("\n".join(tests))
    options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", "not torture"]
    command = [sys.executable, "-m", "pytest", *options, f"@{chosen}"]
    variables = {**os.environ, "CI": "true", "PYTHONPATH": str(folder / "src")}
    with (folder / "build" / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(60 + 4 * limit)
        except subprocess.TimeoutExpired:
            return list(tests[:1])
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        text = output.read()
    if code == 0:
        return []
    if "not found: " in text or code == 5:
        sys.exit(f"a test that was to be run is not there:\n{text[-2000:]}")
    failed = [line.split()[1] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [test for test in tests if test in failed] or list(tests[:1])


def main() -> None:
    """Draw, try and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each change (%(default)s)")
    parser.add_argument("--nightly", action="store_true", help="with the tests that `make nightly` adds")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the changes to try")
    parser.add_argument("--learn", action="store_true", help="only run the tests, and check their coverage")
    options = parser.parse_args()

    folder = learn(options.nightly)
    if options.learn:
        percent, least = covered(folder), coverage.Coverage().get_option("report:fail_under")
        print(f"{percent:.2f} % of the lines and branches are covered; {least} % have to be")
        sys.exit(percent < float(str(least)))
    outcome_file = folder / "outcomes.json"
    outcome_file.unlink(missing_ok=True)
    reach = Reach(folder)
    every = [each for path in sorted((ROOT / "src").rglob("*.py")) for each in mutants(path)]
    drawn = list(enumerate(random.Random(options.seed).sample(every, options.count)))
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    for number, mutant in drawn:
        if options.only is None or number in options.only:
            waiting.put((number, mutant))
    outcomes: Counter[str] = Counter()

    def work(folder: Path) -> None:
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, folder)
        while True:
            try:
                number, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = try_out(mutant, reach.tests(mutant, options.seconds), folder, options.seconds)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - told, and the others are tried
                print(error, file=sys.stderr)
                outcome = "not tried"
            outcomes[outcome] += 1
            print(f"{number:4}  {outcome:11}  {mutant}", flush=True)

    print(f"{len(every)} changes are possible; trying {waiting.qsize()} drawn with seed {options.seed}", flush=True)
    workers = [
        threading.Thread(target=work, args=(KEPT / f"copy-{n}",), daemon=True) for n in range(os.cpu_count() or 1)
    ]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    outcome_file.write_text(json.dumps(outcomes))
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    sys.exit(outcomes["not tried"] > 0)


if __name__ == "__main__":
    main()
