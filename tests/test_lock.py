"""The development lock fits pyproject.toml, and is whole."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")


def locked() -> dict[str, list[tuple[str, str]]]:
    """Name -> the pinned versions (one per marker), each with the text that follows it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for match in re.finditer(r"^([\w.-]+)==(\S+)(.*?)(?=^\w|\Z)", LOCK, re.MULTILINE | re.DOTALL):
        found.setdefault(canonicalize_name(match[1]), []).append((match[2], match[3]))
    return found


def wanted() -> list[Requirement]:
    """Everything that pyproject.toml and dev.in ask for by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        lines += extra
    dev = (ROOT / "requirements" / "dev.in").read_text(encoding="utf-8")
    lines += [line for line in dev.splitlines() if line and not line.startswith("#")]
    return [r for r in map(Requirement, lines) if r.name != project["project"]["name"]]


def test_lock_holds_everything_asked_for() -> None:
    pins = locked()
    wrong = [
        str(requirement)
        for requirement in wanted()
        if not (versions := pins.get(canonicalize_name(requirement.name)))
        or not all(requirement.specifier.contains(version) for version, _ in versions)
    ]
    assert wrong == [], "run `make lock`"


def test_every_pin_has_hashes() -> None:
    pins = locked()
    assert pins
    bare = [name for name, versions in pins.items() for _, text in versions if "sha256:" not in text]
    assert bare == []


def test_lock_names_no_address() -> None:
    assert "://" not in LOCK
    options = [line for line in LOCK.splitlines() if line.lstrip().startswith("--")]
    assert all(line.lstrip().startswith("--hash=sha256:") for line in options)
