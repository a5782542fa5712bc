"""Checks of this machine, without a store: versions, drivers, settings."""

from __future__ import annotations

import os
import platform
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from holdfast import _core
from holdfast.backends.config import find_file, store_url
from holdfast.errors import ConfigError
from holdfast.maintenance.doctor.result import CheckResult, note, ok, problem, warning

VARIABLES = (
    "HOLDFAST_STORE",
    "HOLDFAST_CONFIG",
    "HOLDFAST_ENCRYPTION",
    "HOLDFAST_KEY",
    "HOLDFAST_PAGER",
    "HOLDFAST_REDACTION",
    "HOLDFAST_REDACTION_KEYS",
    "HOLDFAST_BACKUPS",
    "HOLDFAST_BACKUP_KEYS",
    "HOLDFAST_TOKEN",
    "HOLDFAST_CORE",
)
"""The environment variables that are read."""

_OLD_VARIABLES = {"HOLDFAST_URL": "HOLDFAST_STORE"}
_PREFIX = "HOLDFAST_"

_SAFE_SQLITE = Version("3.51.3")
"""Before this release, two connections to one file could corrupt its write-ahead log."""

_NO_DRIVERS = ("all", "testing")
"""Extras that bring no driver of their own."""


def checks() -> Iterator[CheckResult]:
    """Run all checks."""
    yield python()
    yield from drivers()
    yield from sqlite_releases()
    yield from settings_file()
    yield from variables(os.environ)


def python() -> CheckResult:
    """Report the versions of the interpreter and of this package, and which core the codec has."""
    machine = f"{platform.system()} {platform.machine()}"
    core = "core in Python" if _core.native is None else "native core"
    return ok("python", f"Python {platform.python_version()} on {machine}, holdfast {_own_version()}, {core}")


def _own_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "(not installed as a package)"


def drivers() -> Iterator[CheckResult]:
    """Check the dependencies of this package and of its extras, one by one. Nothing is imported."""
    for requirement, extra in _requirements():
        name, package = requirement.name, f"holdfast[{extra}]" if extra else "holdfast"
        try:
            installed = version(name)
        except PackageNotFoundError:
            if extra:
                yield note("extras", f"{name} is not installed; if you need it: pip install '{package}'")
            else:
                yield problem("drivers", f"{name} is not installed", "Install holdfast again: pip install holdfast")
            continue
        if requirement.specifier.contains(installed, prereleases=True):
            yield ok("drivers", f"{name} {installed}")
        else:
            yield problem(
                "drivers",
                f"{name} {installed} does not satisfy {requirement.specifier}",
                f"Update it: pip install --upgrade '{package}'",
            )


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """Yield the requirements that apply on this machine, each with its extra, or none. A package comes once."""
    try:
        found = [Requirement(each) for each in requires("holdfast") or []]
        extras = metadata("holdfast").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return
    seen = {"holdfast"}
    for extra in ("", *(each for each in extras if each not in _NO_DRIVERS)):
        for each in found:
            if each.name not in seen and (each.marker is None or each.marker.evaluate({"extra": extra})):
                seen.add(each.name)
                yield each, extra


def sqlite_releases() -> Iterator[CheckResult]:
    """Check the SQLite that stores use, which comes with apsw, and the one that comes with Python."""
    import apsw

    release = apsw.sqlite_lib_version()
    if Version(release) < _SAFE_SQLITE:
        yield problem(
            "sqlite-release",
            f"SQLite {release}, in which two connections can corrupt a write-ahead log",
            "Update apsw: pip install --upgrade apsw",
        )
    else:
        yield ok("sqlite-release", f"SQLite {release}, with apsw {apsw.apsw_version()}")
    import sqlite3

    if Version(sqlite3.sqlite_version) < _SAFE_SQLITE:
        yield note(
            "python-sqlite",
            f"Python's own sqlite3 is {sqlite3.sqlite_version}, and may corrupt the log of a file that it writes to",
            "Stores do not use it. Do not write to a store's file with it; reading is safe",
        )


def settings_file() -> Iterator[CheckResult]:
    """Check `holdfast.toml`, if there is one."""
    path = find_file()
    if path is None:
        yield ok("settings-file", "no holdfast.toml here or above, and none is needed")
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield problem(
            "settings-file", f"{path} cannot be read: {error}", "Correct it, or name another in HOLDFAST_CONFIG"
        )
        return
    unknown = sorted(found.keys() - {"alerts", "schemas", "stores"})
    if unknown:
        near = get_close_matches(unknown[0], ["stores"], 1)
        yield warning(
            "settings-file",
            f"{path} has [{unknown[0]}], which nothing reads",
            "Write [stores.NAME]" if near else "Remove it, or check its spelling",
        )
    stores = found.get("stores", {})
    for name in stores if isinstance(stores, Mapping) else ():
        try:
            store_url(f"stores.{name}")
        except ConfigError as error:
            yield problem("settings-file", f"{path}: {error.what}", error.hint or "Correct the file")
    names = ", ".join(sorted(stores)) if isinstance(stores, Mapping) else ""
    yield ok("settings-file", f"{path}: stores {names}" if names else f"{path} names no store")
    yield from _readable_by_others(path, path.read_text(encoding="utf-8"))


def _readable_by_others(path: Path, text: str) -> Iterator[CheckResult]:
    # A password is between a colon and an @ of an address, and not a ${VARIABLE}.
    if os.name == "posix" and re.search(r"://[^/\s:@\"]+:(?!\$\{)[^@\s\"]+@", text) and path.stat().st_mode & 0o044:
        yield warning(
            "settings-secret",
            f"{path} seems to contain a password, and other users may read it",
            "Write ${VARIABLE} instead, or make the file private: chmod 600",
        )


def variables(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the environment variables that start with HOLDFAST_. Values are not shown."""
    used = _variables_of_file()
    names = sorted(name for name in environment if name.startswith(_PREFIX) and name not in used)
    for name in names:
        if name in VARIABLES:
            continue
        similar = _OLD_VARIABLES.get(name) or _similar(name)
        yield warning(
            "settings-variables",
            f"{name} is set, and nothing reads it",
            f"Did you mean {similar}?" if similar else f"There are {', '.join(VARIABLES)}",
        )
    known = [name for name in names if name in VARIABLES]
    yield ok("settings-variables", f"set: {', '.join(known)}" if known else "no HOLDFAST_ variable is set")


def _similar(name: str) -> str:
    """Return a variable with a similar name, not counting the prefix, which all have."""
    ends = {each.removeprefix(_PREFIX): each for each in VARIABLES}
    return next((ends[each] for each in get_close_matches(name.removeprefix(_PREFIX), ends, 1)), "")


def _variables_of_file() -> set[str]:
    path = find_file()
    if path is None or not path.is_file():
        return set()
    return set(re.findall(r"\$\{([^}]*)\}", path.read_text(encoding="utf-8", errors="replace")))
