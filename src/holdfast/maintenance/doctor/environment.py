"""What the doctor looks at on this machine, without a store: versions, drivers, settings."""

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

from holdfast.backends.config import find_file, resolve
from holdfast.errors import ConfigError
from holdfast.maintenance.doctor.result import CheckResult, note, ok, problem, warning

VARIABLES = ("HOLDFAST_STORE", "HOLDFAST_CONFIG", "HOLDFAST_PAGER")
"""The variables of the environment that are read."""

_OLD_VARIABLES = {"HOLDFAST_URL": "HOLDFAST_STORE"}
_PREFIX = "HOLDFAST_"

_SAFE_SQLITE = Version("3.51.3")
"""Before this release, two connections to one file could spoil its write-ahead log."""

_SUMS = ("all", "testing")
"""Extras that bring no driver of their own."""


def checks() -> Iterator[CheckResult]:
    """All of them."""
    yield python()
    yield from drivers()
    yield from sqlite_releases()
    yield from settings_file()
    yield from variables(os.environ)


def python() -> CheckResult:
    """The interpreter, and this package."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, holdfast {_own_version()}"
    return ok("python", found)


def _own_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "(not installed as a package)"


def drivers() -> Iterator[CheckResult]:
    """What this package needs, and what its extras bring. Nothing is imported."""
    installed, missing = [], []
    for requirement, extra in _requirements():
        name = requirement.name
        try:
            here = version(name)
        except PackageNotFoundError:
            if extra:
                missing.append(f"{name} (extra {extra})")
            else:
                yield problem("drivers", f"{name} is not installed", "Install holdfast anew: pip install holdfast")
            continue
        installed.append(f"{name} {here}")
        if not requirement.specifier.contains(here, prereleases=True):
            package = f"holdfast[{extra}]" if extra else "holdfast"
            yield problem(
                "drivers",
                f"{name} {here} does not satisfy {requirement.specifier}",
                f"Update it: pip install --upgrade '{package}'",
            )
    yield ok("drivers", f"installed: {', '.join(installed) or 'none'}")
    if missing:
        yield note("extras", f"not installed: {', '.join(missing)}", "If you need one: pip install 'holdfast[EXTRA]'")


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """The requirements that apply on this machine, each with the extra that it is of, or none."""
    try:
        found = [Requirement(each) for each in dict.fromkeys(requires("holdfast") or [])]
        extras = metadata("holdfast").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return
    for each in found:
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            yield each, ""
            continue
        for extra in extras:
            if extra not in _SUMS and each.marker.evaluate({"extra": extra}):
                yield each, extra
                break


def sqlite_releases() -> Iterator[CheckResult]:
    """The SQLite that stores use, which comes with apsw, and the one that Python carries."""
    import apsw

    here = apsw.sqlite_lib_version()
    if Version(here) < _SAFE_SQLITE:
        yield problem(
            "sqlite-release",
            f"SQLite {here}, in which two connections can spoil a write-ahead log",
            "Update apsw: pip install --upgrade apsw",
        )
    else:
        yield ok("sqlite-release", f"SQLite {here}, with apsw {apsw.apsw_version()}")
    import sqlite3

    if Version(sqlite3.sqlite_version) < _SAFE_SQLITE:
        yield note(
            "python-sqlite",
            f"Python's own sqlite3 is {sqlite3.sqlite_version}, and may spoil the log of a file that it writes to",
            "Stores do not use it. Do not write to a store's file with it; reading is safe",
        )


def settings_file() -> Iterator[CheckResult]:
    """`holdfast.toml`, if there is one."""
    path = find_file()
    if path is None:
        yield ok("settings-file", "no holdfast.toml here or above, and none is needed")
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield problem("settings-file", f"{path} cannot be read: {error}", "Mend it, or name another in HOLDFAST_CONFIG")
        return
    unknown = sorted(found.keys() - {"stores"})
    if unknown:
        near = get_close_matches(unknown[0], ["stores"], 1)
        yield warning(
            "settings-file",
            f"{path} has [{unknown[0]}], which nothing reads",
            "Write [stores.NAME]" if near else "Remove it, or look whether it is misspelt",
        )
    stores = found.get("stores", {})
    for name in stores if isinstance(stores, Mapping) else ():
        try:
            resolve(f"stores.{name}")
        except ConfigError as error:
            yield problem("settings-file", f"{path}: {error.what}", error.hint or "Mend the file")
    names = ", ".join(sorted(stores)) if isinstance(stores, Mapping) else ""
    yield ok("settings-file", f"{path}: stores {names}" if names else f"{path} names no store")
    yield from _readable_by_others(path, path.read_text(encoding="utf-8"))


def _readable_by_others(path: Path, text: str) -> Iterator[CheckResult]:
    # A password stands between a colon and an @ of an address, and is no ${VARIABLE}.
    if os.name == "posix" and re.search(r"://[^/\s:@\"]+:(?!\$\{)[^@\s\"]+@", text) and path.stat().st_mode & 0o044:
        yield warning(
            "settings-secret",
            f"{path} seems to hold a password, and other users may read it",
            "Write ${VARIABLE} in its place, or take their right to read: chmod 600",
        )


def variables(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """The variables of the environment that start as ours do. Values are not shown."""
    used = _variables_of_file()
    given = sorted(name for name in environment if name.startswith(_PREFIX) and name not in used)
    for name in given:
        if name in VARIABLES:
            continue
        meant = _OLD_VARIABLES.get(name) or _near(name)
        yield warning(
            "settings-variables",
            f"{name} is set, and nothing reads it",
            f"Did you mean {meant}?" if meant else f"There are {', '.join(VARIABLES)}",
        )
    known = [name for name in given if name in VARIABLES]
    yield ok("settings-variables", f"set: {', '.join(known)}" if known else "no HOLDFAST_ variable is set")


def _near(name: str) -> str:
    """The variable that may be meant. What all have in common says nothing."""
    ends = {each.removeprefix(_PREFIX): each for each in VARIABLES}
    return next((ends[each] for each in get_close_matches(name.removeprefix(_PREFIX), ends, 1)), "")


def _variables_of_file() -> set[str]:
    path = find_file()
    if path is None or not path.is_file():
        return set()
    return set(re.findall(r"\$\{([^}]*)\}", path.read_text(encoding="utf-8", errors="replace")))
