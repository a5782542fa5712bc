"""Run the tests of frameworks over Holdfast's adapters: `python -m tools.adapters [NAME …]`, by the names of locks.
`python -m tools.adapters versions` writes the table of the versions that are tested into the guide.

Each framework has a lock of its own in `requirements/adapters`, since their pins may exclude each other; its tests come
from its source distributions, in the versions of the lock. A plugin in `tools/adapter_plugins` puts the adapter in the
place of the framework's own class. Tests that cannot pass are listed here, and must fail. Of a framework whose
distributions have no tests, those in `tests/frameworks` are run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.postgresql import PostgresServer
from tools.bootstrap import uv_environment

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "adapters"


@dataclass(frozen=True)
class Suite:
    """Tests of a framework's distribution, and those that cannot pass, with the reasons in the guide; or our own tests,
    if the package is not named."""

    name: str
    lock: str
    package: str
    files: tuple[str, ...]
    cannot_pass: frozenset[str] = field(default_factory=frozenset)
    has_postgres: bool = False
    """Whether the tests get a database in HOLDFAST_TEST_POSTGRES_URL."""


SUITES = (
    Suite("langgraph-memory", "langgraph", "langgraph-checkpoint", ("test_store.py", "embed_test_utils.py")),
    Suite(
        "langgraph-sqlite",
        "langgraph",
        "langgraph-checkpoint-sqlite",
        ("test_store.py", "test_async_store.py", "test_ttl.py"),
        frozenset(
            {
                "tests/test_async_store.py::test_no_running_loop[file]",
                "tests/test_async_store.py::test_no_running_loop[memory]",
                "tests/test_store.py::test_nonnull_migrations",
                "tests/test_store.py::test_sql_injection_vulnerability[file]",
                "tests/test_store.py::test_sql_injection_vulnerability[memory]",
                "tests/test_store.py::test_vector_store_initialization",
            }
        ),
    ),
    Suite(
        "openai-sessions",
        "openai",
        "openai-agents",
        ("test_session.py", "test_session_limit.py", "fake_model.py", "test_responses.py"),
        frozenset({"tests/test_session.py::test_sqlite_session_file_lock_is_shared_across_instances"}),
    ),
    Suite("langgraph-server", "langgraph-server", "", ("test_langgraph_server.py",)),
    Suite("pydantic-ai", "pydantic", "", ("test_pydantic_ai.py",)),
    Suite("google-adk", "adk", "", ("test_google_adk.py",), has_postgres=True),
    Suite("agent-framework", "agent-framework", "", ("test_agent_framework.py",)),
)


GUIDE = ROOT / "docs" / "guides" / "frameworks.md"
FRAMEWORKS = {
    "LangGraph": ("langgraph", ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite"), "langgraph"),
    "`langgraph dev`": ("langgraph-server", ("langgraph-api", "langgraph-cli"), "langgraph"),
    "OpenAI Agents SDK": ("openai", ("openai-agents",), "openai"),
    "Pydantic AI": ("pydantic", ("pydantic-ai-slim",), "pydantic-ai"),
    "Google ADK": ("adk", ("google-adk",), "adk"),
    "Microsoft Agent Framework": ("agent-framework", ("agent-framework-core",), "agent-framework"),
}
"""The lock, the packages and the extra of each framework."""


def versions() -> str:
    """Return the table of the versions that are tested, as the guide has it."""
    lines = ["| framework | tested | tests | install |", "|---|---|---|---|"]
    for framework, (lock, packages, extra) in FRAMEWORKS.items():
        tested = ", ".join(f"{package} {pinned(lock, package)}" for package in packages)
        own = any(suite.lock == lock and suite.package for suite in SUITES)
        lines.append(f"| {framework} | {tested} | {'its own, and ours' if own else 'ours'} | `holdfast[{extra}]` |")
    return "\n".join(lines)


def with_versions(page: str) -> str:
    """Return the guide with the table in the place of the one that it has."""
    return re.sub(r"\| framework \| tested .*?(?=\n\n)", lambda _: versions(), page, flags=re.DOTALL)


def python_of(lock: str) -> Path:
    """Set up the environment of a lock, with the package in editable form; return its interpreter."""
    folder = FOLDER / lock
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    if not python.exists():
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", str(python)]
    requirements = ROOT / "requirements" / "adapters" / f"{lock}.txt"
    subprocess.run([*install, "--require-hashes", "-r", str(requirements)], check=True, env=uv_environment())
    if not any(folder.rglob("holdfast-*.dist-info")):  # it would build the native core again
        subprocess.run([*install, "--no-deps", "--editable", str(ROOT)], check=True, env=uv_environment())
    return python


def pinned(lock: str, package: str) -> str:
    """Return the version of a package in a lock."""
    for line in (ROOT / "requirements" / "adapters" / f"{lock}.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version.split()[0]
    sys.exit(f"{package} is not in the lock {lock}")


def unpacked(suite: Suite) -> Path:
    """Fetch the source distribution that a suite is from; return the folder with its tests."""
    version = pinned(suite.lock, suite.package)
    stem = f"{suite.package.replace('-', '_')}-{version}"
    archive = FOLDER / f"{stem}.tar.gz"
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--no-build-isolation"]
        from_source = ["--no-binary", ":all:", "--dest", str(FOLDER), f"{suite.package}=={version}"]
        subprocess.run([*pip, *from_source], check=True)
    folder = FOLDER / suite.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tests").mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for name in ("__init__.py", *suite.files):
            content = tar.extractfile(f"{stem}/tests/{name}")
            (folder / "tests" / name).write_bytes(b"" if content is None else content.read())
    shutil.copy(ROOT / "tools" / "adapter_plugins" / f"{suite.lock}.py", folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")  # and not the settings of this project
    return folder


def run_suite(suite: Suite) -> bool:
    """Run a suite; return whether exactly the tests fail that cannot pass."""
    python = python_of(suite.lock)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if suite.package:
        folder = unpacked(suite)
        command.append("tests")
    else:
        folder = ROOT
        (FOLDER / "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    error\n")
        command += ["--noconftest", "-c", str(FOLDER / "pytest.ini"), "--rootdir", str(ROOT)]
        command += ["--import-mode=importlib", *(f"tests/frameworks/{name}" for name in suite.files)]
    command += ["-rfE", "--tb=short"]
    with PostgresServer().start() if suite.has_postgres else nullcontext() as server:
        environment = dict(os.environ) if server is None else {**os.environ, "HOLDFAST_TEST_POSTGRES_URL": server.url}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    lines = done.stdout.splitlines()
    failed = {line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))}
    wrong = sorted(failed ^ suite.cannot_pass)
    print(f"{suite.name}: {lines[-1] if lines else 'nothing ran'}; {len(suite.cannot_pass)} cannot pass", flush=True)
    if wrong or done.returncode not in (0, 1):
        print(done.stdout, done.stderr, *(f"not as expected: {each}" for each in wrong), sep="\n", flush=True)
        return False
    return True


def main(names: Sequence[str]) -> None:
    """Run the suites of some locks, or all; or write the table of versions."""
    if names == ["versions"]:
        GUIDE.write_text(with_versions(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = [run_suite(suite) for suite in SUITES if not names or suite.lock in names]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
