"""Look for flaws in the source and for known ones in the dependencies: `python -m tools.audit [bandit|sbom|pip-audit]`.

`bandit` reads the source. Every finding is in `EXCEPTIONS`, with the reason why it is none, or fails the check; so does
an exception that nothing needs any more. `sbom` writes what the package and its locked dependencies are to
`build/sbom.json`, in the format of CycloneDX. `pip-audit` compares the locks with the published vulnerabilities, which
takes access to their database on the network. The programs are those of `requirements/audit.txt`, in an environment of
their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "audit"
LOCKS = ("demo", "dev")
"""What users install, and all extras with the tools of developers."""


class Accepted(NamedTuple):
    """Findings that are none, by the id of the check and the files below `src/holdfast`."""

    check: str
    files: tuple[str, ...]
    reason: str


EXCEPTIONS = (
    Accepted("B101", ("*",), "asserts say what holds already; input is checked by errors, which ruff's S101 sees to"),
    Accepted(
        "B608",
        ("backends/postgres/*", "backends/sqlite/*", "backends/tables.py"),
        "names of tables and columns are constants of the source; values are parameters",
    ),
    Accepted(
        "B311",
        ("agents/runs/worker.py", "agents/runtime/*", "backends/*", "engine/rng.py", "testing/security/archives.py"),
        "delays, samples and names of temporary files; keys, nonces and tokens are from the operating system",
    ),
    Accepted(
        "B404",
        ("backends/conformance/processes.py", "interfaces/scripting/process.py", "store/replay/process.py"),
        "the suite runs stores in processes; scripts and replays run in one of their own",
    ),
    Accepted(
        "B603",
        ("backends/conformance/processes.py", "interfaces/scripting/process.py", "store/replay/process.py"),
        "a list of arguments without a shell: this Python, and a module of Holdfast",
    ),
    Accepted(
        "B404",
        ("maintenance/monitoring/alerts.py",),
        "alerts are sent by a command that the program or its settings name; nothing in a store does",
    ),
    Accepted(
        "B603", ("maintenance/monitoring/alerts.py",), "a list of arguments without a shell; the alert is on its input"
    ),
    Accepted(
        "B105",
        (
            *("interfaces/cli/base.py", "interfaces/http/*", "interfaces/web/*"),
            *("security/access/registry.py", "security/sensitive/credential_check.py"),
            *("security/sensitive/formats.py", "testing/security/*"),
        ),
        "empty texts, prefixes of names and patterns of secrets; in the kit, what is to be stolen",
    ),
    Accepted(
        "B106", ("maintenance/backup/repository.py", "state/artifacts/content.py"), "empty texts: there is no token"
    ),
    Accepted(
        "B107",
        ("agents/runs/record.py", "state/access_api.py"),
        "an empty text: no worker has the run; there is no token",
    ),
    Accepted("B604", ("interfaces/cli/meta.py",), "the type of an argument that names a shell"),
    Accepted(
        "B704",
        ("interfaces/web/markdown_text.py", "interfaces/web/thread_page.py"),
        "it is escaped before, or rendered by rules that escape",
    ),
    Accepted("B108", ("testing/migrations.py",), "an example of a path, at which nothing is opened"),
)


def main(arguments: Sequence[str]) -> int:
    """Run what is named, or all. Returns the exit code."""
    names = list(arguments) or list(COMMANDS)
    if unknown := [name for name in names if name not in COMMANDS]:
        sys.exit(f"usage: python -m tools.audit [{'|'.join(COMMANDS)}]; there is no {unknown[0]}")
    failed = [name for name in names if not COMMANDS[name]()]
    for name in names:
        print(f"{'FAILED' if name in failed else 'passed'}  {name}", file=sys.stderr)
    return 1 if failed else 0


def program(name: str) -> str:
    """Return the path of a program, and install all of them if the lock has changed."""
    lock, record = ROOT / "requirements" / "audit.txt", FOLDER / ".installed"
    folder = FOLDER / ("Scripts" if sys.platform == "win32" else "bin")
    if not record.exists() or record.read_bytes() != lock.read_bytes():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(FOLDER)], check=True)
        install = ["pip", "install", "--quiet", "--require-hashes", "--python", str(folder / "python"), "-r", str(lock)]
        subprocess.run([*uv, *install], check=True)
        record.write_bytes(lock.read_bytes())
    return str(folder / name)


def check_source() -> bool:
    """Run bandit over the source; report findings without a reason, and reasons without a finding."""
    done = subprocess.run(
        [program("bandit"), "--quiet", "--recursive", "--format", "json", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    problems = unexplained(found["results"])
    problems += [f"{error['filename']}: cannot be read: {error['reason']}" for error in found["errors"]]
    for problem in problems:
        print(problem)
    return not problems


def unexplained(results: Sequence[dict[str, Any]], exceptions: Sequence[Accepted] = EXCEPTIONS) -> list[str]:
    """Return the findings that no exception explains, and the exceptions that explain none."""
    used: set[tuple[str, str]] = set()
    problems = []
    for result in results:
        path = Path(result["filename"]).as_posix().rpartition("src/holdfast/")[2]
        reasons = [
            (each.check, pattern)
            for each in exceptions
            for pattern in each.files
            if each.check == result["test_id"] and fnmatch(path, pattern)
        ]
        used.update(reasons)
        if not reasons:
            problems.append(f"{path}:{result['line_number']}: {result['test_id']} {result['issue_text']}")
    needless = [(each.check, pattern) for each in exceptions for pattern in each.files]
    problems += [
        f"tools/audit.py: nothing needs {check} in {name}" for check, name in needless if (check, name) not in used
    ]
    return problems


def write_sbom() -> bool:
    """Write the list of what is shipped and what it depends on."""
    target = ROOT / "build" / "sbom.json"
    target.parent.mkdir(exist_ok=True)
    command = [program("cyclonedx-py"), "requirements", "requirements/demo.txt", "--pyproject", "pyproject.toml"]
    command += ["--output-reproducible", "--of", "JSON", "-o", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:])
        return False
    parts = json.loads(target.read_text(encoding="utf-8"))["components"]
    print(f"{target.relative_to(ROOT)}: {len(parts)} components", file=sys.stderr)
    return bool(parts)


def known_vulnerabilities() -> list[str] | None:
    """Compare the locks with the published vulnerabilities. Returns those found; None if their database cannot be
    reached, or does not know a dependency."""
    found: set[str] = set()
    for lock in LOCKS:
        command = [program("pip-audit"), "--strict", "--disable-pip", "--require-hashes", "--format", "json"]
        done = subprocess.run(
            [*command, "-r", f"requirements/{lock}.txt"], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
        )
        try:
            packages = json.loads(done.stdout)["dependencies"]
        except ValueError:
            return None
        found |= {f"{each['name']} {each['version']}: {flaw['id']}" for each in packages for flaw in each["vulns"]}
    return sorted(found)


def check_dependencies() -> bool:
    """Fail if a dependency has a known vulnerability, or if that could not be checked."""
    found = known_vulnerabilities()
    for each in found or ():
        print(each)
    if found is None:
        print("the database of vulnerabilities cannot be reached, or does not know a dependency: nothing was checked")
    return found == []


COMMANDS = {"bandit": check_source, "sbom": write_sbom, "pip-audit": check_dependencies}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
