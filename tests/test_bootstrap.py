"""Setting up `.venv` says what to do when the system's Python cannot."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run, on a machine whose Python lacks ensurepip."""
    called: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        called.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return called


def test_a_user_is_told_which_package_to_install(
    bootstrap: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.ensure_venv_module()
    assert f"apt-get install {bootstrap.venv_package()}" in str(stopped.value)
    assert commands == []


def test_root_gets_the_package_installed(
    bootstrap: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    bootstrap.ensure_venv_module()
    assert [command[:2] for command in commands] == [["apt-get", "update"], ["apt-get", "install"]]
    assert commands[1][-1] == bootstrap.venv_package()


def test_a_whole_python_installs_nothing(
    bootstrap: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    bootstrap.ensure_venv_module()
    assert commands == []


def test_an_old_python_is_refused(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MINIMUM", (9, 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11"):
        bootstrap.main(["dev"])


@pytest.mark.parametrize("arguments", [[], ["all"], ["dev", ".venv", "more"]])
def test_a_wrong_call_is_explained(bootstrap: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=re.escape("usage: python tools/bootstrap.py demo|dev|servers")):
        bootstrap.main(arguments)


@pytest.fixture
def checkout(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A project with small locks. Sets up a level there, and gives what was installed: no real package is fetched."""
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "requirements").mkdir()
    for name in ("uv", "demo", "dev", "servers"):
        bootstrap.lock(name).write_text(f"{name}==1")
    installed: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        installed.extend(Path(each).stem for each in command if each.endswith(".txt"))
        if "venv" in command:
            python = bootstrap.Environment(Path(command[-1])).python
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
            installed.append("venv")
        if "--editable" in command:
            installed.append("package")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)

    def set_up(level: str) -> list[str]:
        installed.clear()
        bootstrap.main([level, "environment"])
        return installed.copy()

    return set_up


def test_a_level_is_installed_once(checkout: Callable[[str], list[str]]) -> None:
    assert checkout("demo") == ["venv", "uv", "uv", "demo", "package"]
    assert checkout("demo") == []
    assert checkout("servers") == ["uv", "dev", "servers", "package"]
    assert checkout("demo") == checkout("dev") == []  # the higher level has both


def test_what_changed_is_installed_again(
    checkout: Callable[[str], list[str]], bootstrap: ModuleType, tmp_path: Path
) -> None:
    checkout("dev")
    (tmp_path / "pyproject.toml").write_text("[project]\nname='other'")
    assert checkout("dev") == ["package"]
    bootstrap.lock("dev").write_text("dev==2")
    assert checkout("demo") == ["uv", "dev", "package"]
    bootstrap.lock("uv").write_text("uv==2")
    assert checkout("demo") == ["venv", "uv", "uv", "dev", "package"]


def test_an_interrupted_set_up_is_done_again(
    checkout: Callable[[str], list[str]], bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupt(level: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(bootstrap.Environment, "_install", fail)
            with pytest.raises(KeyboardInterrupt):
                checkout(level)

    interrupt("dev")
    assert checkout("demo") == ["uv", "demo", "package"]
    interrupt("servers")  # the package may be gone, and some of the servers there
    assert checkout("demo") == ["uv", "demo", "package"]


def test_pip_serves_where_uv_cannot(
    checkout: Callable[[str], list[str]], bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = bootstrap.Environment._uv

    def fail(self: Any, command: str, *arguments: str) -> None:
        if command == "sync":
            raise subprocess.CalledProcessError(2, ["uv"])
        uv(self, command, *arguments)

    monkeypatch.setattr(bootstrap.Environment, "_uv", fail)
    assert checkout("demo") == ["venv", "uv", "uv", "demo", "package"]


def test_the_index_of_pip_is_told_to_uv(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///packages")
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "file:///packages"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///others")
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "file:///others"
