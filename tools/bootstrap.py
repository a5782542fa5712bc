"""Set up the environment of a make target: `python tools/bootstrap.py demo|dev|servers [FOLDER]`.

Each level holds the one before it: `demo` is the package and LangGraph, `dev` the tools and libraries of a developer,
`servers` the database servers that tests start. What is installed already is left alone, so that this may be called
before every command. Uses nothing but the standard library until uv is there; uv installs the rest.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MINIMUM = (3, 11)
ROOT = Path(__file__).resolve().parents[1]
LOCKS = {"demo": ("demo",), "dev": ("dev",), "servers": ("dev", "servers"), "peers": ("dev", "servers", "peers")}
"""The locks of each level, lowest level first."""


def venv_package() -> str:
    """The Debian package that completes this interpreter's `venv` module."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


def ensure_venv_module() -> None:
    """Install what `python -m venv` lacks on Debian and Ubuntu, or say what to do and stop."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    package = venv_package()
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and shutil.which("apt-get"):
        report(f"{sys.executable} has no ensurepip: installing {package}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(install, env=quiet, check=False, stdout=sys.stderr).returncode == 0:
            return
    sys.exit(
        f"{sys.executable} cannot make virtual environments: its ensurepip module is missing.\n"
        f"On Debian and Ubuntu, run:  sudo apt-get install {package}\n"
        "or name another Python:      make PYTHON=/path/to/python"
    )


class Environment:
    """A virtual environment, and a record in it of what was installed from which locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self._record = folder / ".installed.json"

    def set_up(self, level: str) -> None:
        """Install what is missing for a level. A higher level that is there already is kept."""
        start = time.monotonic()
        installed = self._installed()
        level = max(level, installed.get("level", level), key=list(LOCKS).index)
        locks = [lock("uv"), *map(lock, LOCKS[level])]
        wanted = {
            "level": level,
            "uv": digest(locks[:1]),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "locks": digest(locks),
            "package": digest([ROOT / "pyproject.toml"]),
            "core": core_digest(),
        }
        if installed == wanted:
            return
        if any(installed.get(name) != wanted[name] for name in ("uv", "python")):
            self._create()
        # If this is cut short, the next call has to go through it again.
        self._record.write_text(json.dumps({name: wanted[name] for name in ("uv", "python")}))
        if installed.get("locks") != wanted["locks"]:
            self._install(locks)
        report("installing the package, in editable form")
        self._uv("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        self._record.write_text(json.dumps(wanted))
        report(f"{self.folder.name} is ready for `{level}` after {time.monotonic() - start:.0f} s")

    def _installed(self) -> dict[str, str]:
        """What the record says. Nothing where the environment was made by something else, or is gone."""
        if not (self._record.exists() and self.python.exists()):
            return {}
        try:
            record: dict[str, str] = json.loads(self._record.read_text())
        except ValueError:
            return {}
        return record

    def _create(self) -> None:
        """Make the environment from scratch, with uv in it."""
        ensure_venv_module()
        report(f"creating {self.folder.name} with Python {sys.version.split()[0]}, and uv in it")
        # The interpreter of the environment itself, where make runs this with it, is about to be removed.
        python = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([python, "-m", "venv", "--clear", str(self.folder)], check=True)
        self._pip([lock("uv")])

    def _install(self, locks: Sequence[Path]) -> None:
        """Install exactly what the locks say, and remove anything else."""
        packages = {line.partition("==")[0] for each in locks for line in each.read_text().splitlines() if "==" in line}
        report(f"installing up to {len(packages)} packages from {', '.join(each.name for each in locks)}")
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        try:
            self._uv("sync", *quiet, "--require-hashes", *map(str, locks))
        except subprocess.CalledProcessError:
            report("uv failed; trying pip, which has settings of its own and takes some minutes")
            self._pip(locks)

    def _uv(self, command: str, *arguments: str) -> None:
        uv = [str(self.python), "-m", "uv", "pip", command, "--python", str(self.python)]
        subprocess.run([*uv, *arguments], check=True, env=uv_environment())

    def _pip(self, locks: Sequence[Path]) -> None:
        pip = [str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-input"]
        files = [part for each in locks for part in ("--requirement", str(each))]
        subprocess.run([*pip, "--require-hashes", *files], check=True)


def uv_environment() -> dict[str, str]:
    """The variables for uv, which is told of another package index as pip is."""
    index = os.environ.get("PIP_INDEX_URL")
    named = "UV_DEFAULT_INDEX" in os.environ or "UV_INDEX_URL" in os.environ
    return {**os.environ, "UV_DEFAULT_INDEX": index} if index and not named else dict(os.environ)


def lock(name: str) -> Path:
    """The lock file of a name."""
    return ROOT / "requirements" / f"{name}.txt"


def digest(files: Sequence[Path]) -> str:
    """A digest of what files contain: a checkout sets new times on files that did not change."""
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def core_digest() -> str:
    """A digest of what the native core is built of and by, which it is built anew for."""
    files = sorted(
        each for each in (ROOT / "native").glob("**/*") if each.is_file() and not {"target", "fuzz"} & {*each.parts}
    )
    return digest(files) + (shutil.which("cargo") or "") + os.environ.get("HOLDFAST_BUILD", "")


def report(text: str) -> None:
    """Say what is being done, where it does not mix with a command's output."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> None:
    """Set up a level in `.venv`, or in the folder that is named."""
    if sys.version_info < MINIMUM:
        sys.exit(f"Holdfast needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
    level, *folder = arguments or [""]
    if level not in LOCKS or len(folder) > 1:
        sys.exit(f"usage: python tools/bootstrap.py {'|'.join(LOCKS)} [FOLDER]")
    Environment(ROOT.joinpath(*folder or [".venv"])).set_up(level)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as failure:
        sys.exit(f"set-up failed ({failure.returncode}): {' '.join(failure.cmd)}")
