"""What is released: the version from git, wheels and sdists that are the same each time, and what is in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tools.version import version

ROOT = Path(__file__).resolve().parent.parent


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *named, *arguments), cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def tracked() -> set[str]:
    """The files of this checkout, also those that are not committed yet."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name for name in listed if name and (ROOT / name).is_file()}


def test_the_version_is_that_of_the_tag(tmp_path: Path) -> None:
    assert version(tmp_path) == "0.0.0"  # no repository
    git(tmp_path, "init", "--quiet")
    assert version(tmp_path) == "0.0.0"  # no commit
    commit = ("commit", "--quiet", "--allow-empty", "--message", "x")
    git(tmp_path, *commit)
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert version(tmp_path) == f"0.1.0.dev1+g{head}"
    git(tmp_path, "tag", "v1.2.3")
    assert version(tmp_path) == "1.2.3"
    git(tmp_path, *commit)
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert version(tmp_path) == f"1.2.4.dev1+g{head}"
    git(tmp_path, "tag", "v2.0.0rc1")
    assert version(tmp_path) == "2.0.0rc1"
    git(tmp_path, *commit)
    assert version(tmp_path).startswith("2.0.0rc1.post0.dev1+g")
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: holdfast\nVersion: 3.1\n\nA text\n")
    assert version(tmp_path) == "3.1"


def copy(folder: Path) -> Path:
    """Copy this checkout to a folder."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def build(folder: Path, *kinds: str) -> dict[str, bytes]:
    """Build wheels or sdists in a folder, without the native core."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", "dist"]
    command += [part for kind in kinds for part in ("-t", kind)]
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environment = {**kept, "HOLDFAST_BUILD": "python"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


@pytest.mark.nightly
@pytest.mark.time_limit(600)
def test_builds_are_reproducible_and_have_what_they_should(tmp_path: Path) -> None:
    copied = copy(tmp_path / "one")
    again = shutil.copytree(copied, tmp_path / "elsewhere" / "two")
    first = build(copied, "sdist", "wheel")
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
    assert build(again, "wheel", "sdist") == first
    assert sorted(first) == ["holdfast-0.0.0-py3-none-any.whl", "holdfast-0.0.0.tar.gz"]

    with tarfile.open(tmp_path / "one" / "dist" / "holdfast-0.0.0.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(tmp_path / "unpacked", filter="data")
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    parts = [each.removeprefix("/") for each in included["include"]]
    wanted = {name for name in tracked() if name in parts or name.partition("/")[0] in parts}
    assert len(wanted) > 1500
    assert names == wanted | {"PKG-INFO", "pyproject.toml", ".gitignore"}
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = "holdfast-0.0.0-py3-none-any.whl"
    assert build(unpacked, "wheel")[wheel] == first[wheel]

    with zipfile.ZipFile(tmp_path / "one" / "dist" / wheel) as archive:
        found = set(archive.namelist())
        metadata = archive.read("holdfast-0.0.0.dist-info/METADATA").decode()
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/holdfast/")}
    assert {"holdfast/py.typed", "holdfast/__main__.py"} < package
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert found == package | {"holdfast/_version.py"} | {f"holdfast-0.0.0.dist-info/{name}" for name in about}
    core = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(core) == 6, "few core dependencies"


@pytest.mark.nightly
@pytest.mark.time_limit(600)
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    (wheel,) = build(copy(tmp_path / "source"), "wheel")
    environment = tmp_path / "environment"
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", str(environment)], check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", str(python), str(tmp_path / "source" / "dist" / wheel)]
    subprocess.run(install, check=True)
    program = """
import holdfast
with holdfast.open("agents.db") as store:
    store.thread("chat-1").put({"n": 1})
    assert store.thread("chat-1").get().state == {"n": 1}
    assert store.maintenance.verify().ok
print(holdfast.__version__)
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    for arguments, printed in (
        (["-W", "error", "-c", program], "0.0.0\n"),
        (["-m", "holdfast", "--version"], "holdfast 0.0.0\n"),
    ):
        done = subprocess.run([python, *arguments], cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
    subprocess.run([*uv, "pip", "check", "--python", str(python)], check=True)
