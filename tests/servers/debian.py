"""Programs that are in no package index for Python, or only without TLS.

One of the machine is used; else the packages of Debian are unpacked under `build/`, for which nobody needs to be root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.servers.processes import Missing, usable

_BUILD = Path(__file__).resolve().parents[2] / "build"
_FOLDERS = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


class Program(NamedTuple):
    """A program of the machine, or of an unpacked package."""

    path: Path
    libraries: str
    """Where its libraries are, unless the system has them."""

    def environment(self) -> dict[str, str]:
        """What it needs to find in its environment."""
        return {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}


def find_program(name: str, *packages: str) -> Program:
    """Find a program on the PATH, or in these packages of Debian."""
    installed = shutil.which(name, path=_FOLDERS)
    return Program(usable(Path(installed)), "") if installed else _unpacked(name, packages)


def find_postgres(oldest: int = 15) -> Program:
    """Find the newest PostgreSQL server of the machine, or that of Debian."""
    found = {path.parents[1].name: path for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")}
    numbers = [int(each) for each in found if each.isdigit() and int(each) >= oldest]
    if numbers:
        return Program(usable(found[str(max(numbers))]), "")
    if shutil.which("apt-cache") is None:
        raise Missing(f"there is no PostgreSQL {oldest} or newer in /usr/lib/postgresql, and no apt to get one")
    newest = next((each for each in _dependencies("postgresql") if each.startswith("postgresql-")), "postgresql")
    return _unpacked("postgres", (newest,))


def _unpacked(name: str, packages: tuple[str, ...]) -> Program:
    cache = _BUILD / packages[0]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes look for it at the same time
        if not (cache / "complete").exists():
            _unpack(name, packages, cache)
            (cache / "complete").touch()
    libraries = {str(each.parent) for each in (cache / "root").rglob("*.so*")}
    return Program(usable(_located(name, cache)), ":".join(sorted(libraries)))


def _unpack(name: str, packages: tuple[str, ...], cache: Path) -> None:
    for tool in ("apt-get", "apt-cache", "dpkg", "ldd"):
        if shutil.which(tool) is None:
            raise Missing(f"there is no {name} on the PATH, and no apt to get one; install it")
    _download(packages, cache)
    if "not found" in _output("ldd", str(_located(name, cache))):
        needed = {each for package in packages for each in _dependencies(package) if each.startswith(("lib", "lua"))}
        _download(sorted(each for each in needed if not _installed(each)), cache)


def _located(name: str, cache: Path) -> Path:
    found = [each for each in (cache / "root").rglob(name) if each.parent.name in ("bin", "sbin") and each.is_file()]
    if not found:
        raise Missing(f"there is no {name} in the packages of Debian")
    return found[0]  # as it is named, which tells some programs what they are


def _dependencies(package: str) -> list[str]:
    lines = _output("apt-cache", "depends", "--important", package).splitlines()
    return [line.split(": ")[1] for line in lines if "Depends: " in line]


def _installed(package: str) -> bool:
    asked = ("dpkg-query", "--show", "--showformat=${Status}", package)
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.endswith(" installed")


def _download(packages: tuple[str, ...] | list[str], cache: Path) -> None:
    got = cache / "packages"
    got.mkdir(exist_ok=True)
    _output("apt-get", "download", *packages, cwd=got)
    for package in got.glob("*.deb"):
        _output("dpkg", "-x", str(package), str(cache / "root"))


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise Missing(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
