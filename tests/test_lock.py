"""The locks fit pyproject.toml and one another, and are whole."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import adapters

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
LOCKS = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.txt")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

Pins = dict[str, list[tuple[str, str]]]


def pins(lock: str) -> Pins:
    """Name -> the pinned versions (one per marker), each with the text that follows it."""
    found: Pins = {}
    for match in re.finditer(r"^([\w.-]+)==(\S+)(.*?)(?=^\w|\Z)", LOCKS[lock], re.MULTILINE | re.DOTALL):
        found.setdefault(canonicalize_name(match[1]), []).append((match[2], match[3]))
    return found


def requirements(name: str) -> list[str]:
    """What a file of requirements asks for, and those that it includes."""
    found: list[str] = []
    for line in (FOLDER / f"{name}.in").read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found += requirements(line.removeprefix("-r ").removesuffix(".in"))
        elif line and not line.startswith("#"):
            found.append(line)
    return found


def wanted(lock: str) -> list[Requirement]:
    """Everything that a lock has to hold by name."""
    lines = requirements(lock)
    if lock in ("demo", "dev"):
        lines += [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    if lock == "dev":
        extras = PROJECT["project"]["optional-dependencies"]
        for extra in Requirement(extras["all"][0]).extras:  # others have locks of their own, in requirements/adapters
            lines += extras[extra]
    return [each for each in map(Requirement, lines) if each.name != PROJECT["project"]["name"]]


def test_the_guide_has_the_versions_of_frameworks_that_are_tested() -> None:
    page = adapters.GUIDE.read_text(encoding="utf-8")
    assert page.count(adapters.versions()) == 1
    assert adapters.with_versions(page) == page
    assert {lock for lock, _, _ in adapters.FRAMEWORKS.values()} == {suite.lock for suite in adapters.SUITES}
    assert {extra for _, _, extra in adapters.FRAMEWORKS.values()} < PROJECT["project"]["optional-dependencies"].keys()


def test_locks_hold_everything_asked_for() -> None:
    assert (
        LOCKS.keys()
        == {path.stem for path in FOLDER.glob("*.in")}
        == {"audit", "demo", "dev", "peers", "servers", "uv"}
    )
    wrong = [
        f"{lock}: {requirement}"
        for lock in LOCKS
        for requirement in wanted(lock)
        if not (versions := pins(lock).get(canonicalize_name(requirement.name)))
        or not all(requirement.specifier.contains(version) for version, _ in versions)
    ]
    assert wrong == [], "run `make lock`"


def test_one_environment_can_hold_all_locks() -> None:
    versions = {name: {version for version, _ in found} for name, found in pins("dev").items()}
    other = {
        f"{lock}: {name}=={version}"
        for lock in LOCKS
        for name, found in pins(lock).items()
        for version, _ in found
        if version not in versions.get(name, {version})
    }
    assert other == set(), "run `make lock`"
    assert pins("demo").keys() | pins("uv").keys() <= pins("dev").keys()


def test_the_demo_needs_little() -> None:
    """No server and no tool of a developer: it is what a newcomer waits for."""
    assert len(pins("demo")) < 70
    assert not pins("demo").keys() & (pins("servers").keys() - pins("dev").keys())
    assert not pins("demo").keys() & {"mypy", "pytest", "ruff", "pandas", "numpy"}


def test_every_pin_has_hashes() -> None:
    for lock in LOCKS:
        assert pins(lock)
        assert [name for name, found in pins(lock).items() for _, text in found if "sha256:" not in text] == []


@pytest.mark.parametrize("name", ["azurite", "langgraph-js"])
def test_locks_of_npm_are_whole_and_name_no_registry(name: str) -> None:
    asked = json.loads((FOLDER / name / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((FOLDER / name / "package-lock.json").read_text(encoding="utf-8"))
    packages = lock["packages"]
    assert packages.pop("")["dependencies"] == asked["dependencies"]
    pinned = {name.removeprefix("node_modules/"): package["version"] for name, package in packages.items()}
    wanted = {name: each.rpartition("@")[2] for name, each in asked["dependencies"].items()} | asked.get(
        "overrides", {}
    )
    assert {name: pinned[name] for name in wanted} == wanted, "run `make lock`"
    assert [name for name, package in packages.items() if not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_locks_name_no_address() -> None:
    for text in LOCKS.values():
        assert "://" not in text
        options = [line for line in text.splitlines() if line.lstrip().startswith("--")]
        assert all(line.lstrip().startswith("--hash=sha256:") for line in options)
