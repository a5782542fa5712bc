"""Type checkers on a user's program: it passes in strict mode, and every typo of a public name is an error."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_api import ELSEWHERE, MODULES, RETURNED, public_names

PROJECT = Path(__file__).parent.parent
PROGRAM = Path(__file__).parent / "typing" / "program.py"


def errors_of_mypy(file: Path) -> dict[int, str]:
    """The first error in each line of a file, in strict mode."""
    cache = PROJECT / ".mypy_cache" / "typing"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={cache}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, env=_environment(), check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(rf"{re.escape(file.name)}:(\d+): error: (.*)", line.removeprefix(f"{file.parent}/"))
        assert match or " note: " in line, line
        if match:
            found.setdefault(int(match[1]), match[2])
    return found


def errors_of_pyright(file: Path) -> dict[int, str]:
    """The first error in each line of a file, in strict mode."""
    config = file.parent / "pyrightconfig.json"
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(PROJECT / "src")], "include": [str(file)]}
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            found.setdefault(each["range"]["start"]["line"] + 1, each["message"])
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(PROJECT / "src")}


CHECKERS = pytest.mark.parametrize(
    "errors_of",
    [
        pytest.param(errors_of_mypy, id="mypy"),
        pytest.param(errors_of_pyright, id="pyright"),
    ],
)


@pytest.mark.nightly  # by day, mypy checks the examples in strict mode
@CHECKERS
def test_a_users_program_passes_in_strict_mode(errors_of: type, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.read_text())
    assert errors_of(file) == {}


@pytest.mark.nightly
@CHECKERS
def test_every_typo_of_a_public_name_is_an_error(errors_of: type, tmp_path: Path) -> None:
    roots = [root for root in MODULES if root not in ELSEWHERE]
    lines = ["from typing import Any", *(f"import {root}" for root in roots)]
    expected: list[int] = []
    for root in roots:
        module = importlib.import_module(root)
        for name in module.__all__:
            lines.append(f"{root}.{name}_x")
            expected.append(len(lines))
            thing = getattr(module, name)
            if not inspect.isclass(thing):
                continue
            members = [each for each in dir(thing) if not each.startswith("_")]
            lines.append(f"def use_{len(lines)}(thing: {root}.{name}) -> None:  # type: ignore")
            for member in members or ["anything"]:
                lines.append(f"    thing.{member}_x")
                expected.append(len(lines))
    file = tmp_path / "typos.py"
    file.write_text("\n".join(lines) + "\n")
    found = errors_of(file)
    missed = [lines[number - 1].strip() for number in expected if number not in found]
    assert len(expected) > 500
    assert not missed, missed[:20]


DERIVED = {
    "HoldfastSaver": (
        "made by `make_both`",
        "put put_writes get_tuple get_delta_channel_history delete_thread delete_for_runs copy_thread prune close "
        "aput aput_writes aget_tuple aget_delta_channel_history adelete_thread adelete_for_runs acopy_thread aprune "
        "aclose",
    ),
    "HoldfastSession": ("its parameter is annotated", "session_settings"),
    "HoldfastStore": (
        "made by `make_both`, or annotated where it is set",
        "close aclose sweep_ttl asweep_ttl embeddings",
    ),
    "api": ("made by `_async`", "asnapshot arestore"),
    "snapshots": ("made by `_async`", "asnapshot arestore"),
    "holdfast": ("methods of the default registry", "allow register"),
    "ChangeFeed": ("a fixture of another suite", "handles"),
    "SecuritySuite": ("a function of the module", "check_isolation"),
}
"""Public members without an annotation of their own, whose type follows from something that has one: by class or
module, the reason and the names."""


@pytest.mark.nightly
def test_no_type_of_a_public_name_is_unknown(tmp_path: Path) -> None:
    """Of public names, and of the members of public classes and of their bases, all are annotated, except those in
    `DERIVED`; and apart from these and their classes, no type is unknown, also not in part: what an annotation names,
    public or private, is annotated, too."""
    # It looks for the package with the interpreter on the path, and passes over the links of an editable install.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PROJECT / "src")}
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "holdfast", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    symbols = {each["name"]: each for each in json.loads(done.stdout)["typeCompleteness"]["symbols"]}
    names = {f"{root}.{name}" for root, name, _ in public_names()}
    assert names <= symbols.keys()
    things = [thing for _, _, thing in public_names()]
    returned = [each.rpartition(".") for each in RETURNED]
    things += [getattr(importlib.import_module(module), name) for module, _, name in returned]
    owners = {f"{each.__module__}.{each.__qualname__}" for thing in things for each in _own_classes(thing)}
    names |= {f"{each.__module__}.{each.__qualname__}" for each in things if inspect.isfunction(each)} | owners
    public = [each for name, each in symbols.items() if name in names or name.rpartition(".")[0] in owners]
    assert len(public) > 1000
    inferred = {
        tuple(each["name"].split(".")[-2:])
        for each in public
        for found in each["diagnostics"]
        if found["message"].startswith(("Type is missing type annotation", "Ambiguous base class override"))
    }
    derived = {(owner, name) for owner, (_, members) in DERIVED.items() for name in members.split()}
    assert inferred == derived
    unknown = [each["name"] for each in public if not each["isTypeKnown"]]
    owners_of_derived = {owner for owner, _ in derived} | {"BackendConformance"}  # inherits `ChangeFeed`
    passed_over = owners_of_derived | {"import_threads", "export_threads"}  # take a `HoldfastSaver`
    unexpected = [
        name
        for name in unknown
        if tuple(name.split(".")[-2:]) not in derived and name.rpartition(".")[2] not in passed_over
    ]
    assert unexpected == []


def _own_classes(thing: object) -> list[type]:
    """A class and its bases of this package; none if it is no class."""
    return (
        [each for each in type.mro(thing) if each.__module__.startswith("holdfast")] if inspect.isclass(thing) else []
    )
