"""Packages from npm, as a lock in `requirements` has them: installed when they are first needed, into `build`."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.servers.processes import Missing

ROOT = Path(__file__).resolve().parents[2]


def node() -> Path:
    """Return Node. `Missing` if it or npm is not installed."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        raise Missing("node or npm is not installed (Debian, Ubuntu: apt-get install npm)")
    return Path(found).resolve()


def _files(lock: Path) -> list[Path]:
    return [lock / name for name in ("package.json", "package-lock.json", ".npmrc")]


def place(lock: Path, folder: Path) -> Path:
    """Return where the packages of a lock are installed, or would be."""
    return folder / hashlib.sha256(b"".join(each.read_bytes() for each in _files(lock))).hexdigest()[:12]


def install(lock: Path, folder: Path) -> Path:
    """Install the packages of a lock into a folder, unless they are there; only one process does so at a time. Returns
    where their `node_modules` are."""
    node()
    files, target = _files(lock), place(lock, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not target.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for each in files:
                shutil.copy(each, partial)
            done = subprocess.run(["npm", "ci", "--omit=dev"], cwd=partial, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Missing(f"npm could not install it: {' '.join(done.stderr.split())[-300:]}")
            partial.rename(target)
    return target
