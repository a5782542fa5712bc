"""The layers hold: who may import whom, and what no source file may do.

The order of the layers is the import-linter contract in pyproject.toml. The rules that
import-linter cannot express (purity, dynamic imports, file size) are read off the syntax tree
here; nothing is imported to check it.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.support.cases import case
from tools import import_graph

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"
MAX_LINES = 1000

# Packages that do no I/O, read no clock and no environment, and import nothing by name.
PURE = ("codec/", "engine/model/")

# These run code found in data, or import by name. No source file may use them.
BANNED_MODULES = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
BANNED_CALLS = {"__import__", "compile", "eval", "exec", "importlib.import_module"}
BANNED_METHODS = {"read_pickle", "to_pickle"}

IMPURE_MODULES = {
    # input and output
    *{"apsw", "sqlite3", "dbm", "mmap", "fcntl", "shutil", "tempfile", "glob", "fileinput"},
    *{
        "socket",
        "ssl",
        "select",
        "selectors",
        "socketserver",
        "http",
        "urllib",
        "ftplib",
        "smtplib",
    },
    *{"asyncio", "subprocess", "multiprocessing", "concurrent", "signal"},
    # clock and chance
    *{"time", "sched", "random", "secrets"},
    # environment
    *{"os", "platform", "getpass", "pwd", "locale"},
    # imports by name, and memory by address
    *{"importlib", "pkgutil", "runpy", "imp", "zipimport", "ctypes"},
}
IMPURE_CALLS = {"breakpoint", "input", "io.open", "open", "print", "uuid.uuid1", "uuid.uuid4"}
IMPURE_METHODS = {
    *{"now", "utcnow", "today"},
    *{"read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "unlink", "mkdir"},
    *{"is_dir", "is_file", "expanduser"},
}

# Only what people touch may use the facade, `import holdfast`; the rest would run in a circle.
ABOVE_THE_FACADE = {"interfaces", "langgraph", "testing"}


def dotted(node: ast.expr) -> str:
    """`a.b.c` for an attribute chain on a name, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def imports(nodes: list[ast.AST]) -> Iterator[tuple[int, str, list[str]]]:
    """Line, module and imported names of every import statement, wherever it stands."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module, [alias.name for alias in node.names]


def aliases(nodes: list[ast.AST]) -> dict[str, str]:
    """What a local name stands for: `import importlib as i` makes i mean importlib."""
    known: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return known


def uses(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is called, or named without a call (`f = eval`)."""
    known = aliases(nodes)
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = dotted(node) or f"?.{node.attr if isinstance(node, ast.Attribute) else ''}"
            first, _, rest = name.partition(".")
            first = known.get(first, first)
            yield node.lineno, f"{first}.{rest}" if rest else first


def facade_use(module: str, names: list[str], source: Path) -> bool:
    """Whether an import takes the package's front door instead of one of its rooms."""
    if module != "holdfast":
        return False
    rooms = {path.stem for path in source.iterdir()}
    return not names or any(name not in rooms for name in names)


def mentions(text: str, *names: Iterable[str]) -> bool:
    """Whether a source has one of the names anywhere, imports the facade, or has the argument that allows pickle."""
    return _pattern(frozenset(chain(*names))).search(text) is not None


@cache
def _pattern(names: frozenset[str]) -> re.Pattern[str]:
    last = sorted({name.rpartition(".")[2] for name in names})
    return re.compile(rf"\b({'|'.join(last)}|allow_pickle)\b|\b(from|import)\b.*\bholdfast\b(?!\.)")


def violations(source: Path) -> list[str]:
    """Everything under the package directory that breaks a rule, as `file:line: what`."""
    found = []
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        package = relative.parts[0].removesuffix(".py")
        text = path.read_text(encoding="utf-8")
        pure = relative.as_posix().startswith(PURE)
        modules = BANNED_MODULES | (IMPURE_MODULES if pure else set())
        calls = BANNED_CALLS | (IMPURE_CALLS if pure else set())
        methods = BANNED_METHODS | (IMPURE_METHODS if pure else set())

        def add(line: int, what: str, where: Path = relative) -> None:
            found.append(f"{where.as_posix()}:{line}: {what}")

        # A file that mentions none of the names breaks no rule about them; to parse all of them takes seconds.
        nodes = list(ast.walk(ast.parse(text, filename=str(path)))) if mentions(text, modules, calls, methods) else []
        for line, module, names in imports(nodes):
            if module.partition(".")[0] in modules:
                add(line, f"imports {module}")
            if package not in ABOVE_THE_FACADE and facade_use(module, names, source):
                add(line, "imports the facade `holdfast`: name the module that defines it")
        for line, name in uses(nodes):
            if relative.name == "_lazy.py" and name == "importlib.import_module":
                continue  # over tables of constants
            if name in calls or ("." in name and name.rpartition(".")[2] in methods):
                add(line, f"uses {name}")
        for node in nodes:
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                    add(node.value.lineno, "allows pickle")
        if (count := len(text.splitlines())) > MAX_LINES:
            add(count, f"has {count} lines, more than {MAX_LINES}: split it by its ideas")
    return found


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of pyproject.toml on the `holdfast` found in a directory."""
    entry = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", entry]
    command += ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


# Packages that a contract names must be there.
CONTRACTED = dict.fromkeys(
    (
        "__init__.py",
        "errors.py",
        *(f"{name}/__init__.py" for name in ("agents", "backends", "engine", "engine/model", "interfaces")),
    ),
    "",
)


def write_package(directory: Path, files: dict[str, str]) -> Path:
    """A synthetic `holdfast` with the given files, importable from a directory."""
    package = directory / "holdfast"
    for name, text in {**CONTRACTED, **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return package


def test_sources_keep_the_rules() -> None:
    assert violations(SOURCE) == []


@pytest.mark.nightly  # by day, the linters run it beside the tests
def test_layers_hold() -> None:
    result = lint_imports(SOURCE.parent)
    assert result.returncode == 0, result.stdout + result.stderr


def around_the_api(folder: Path) -> list[str]:
    """Where an interface uses what is private to a store."""
    return [
        f"{path.name}:{node.lineno}: uses {node.attr}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("_engine", "_handle", "_line")
    ]


def test_interfaces_use_the_api() -> None:
    interfaces = [path for path in (SOURCE / "interfaces").iterdir() if (path / "__init__.py").exists()]
    assert {path.name for path in interfaces} >= {"cli", "langgraph"}
    assert [each for path in interfaces for each in around_the_api(path)] == []


def test_ways_around_the_api_are_found(tmp_path: Path) -> None:
    write_package(tmp_path, {"interfaces/cli/a.py": "from holdfast import open\nx = store._engine\n"})
    assert around_the_api(tmp_path / "holdfast" / "interfaces" / "cli") == ["a.py:2: uses _engine"]


def test_layers_may_look_down(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        {
            "interfaces/cli/main.py": "from holdfast.state import x\nfrom holdfast.codec import y\n",
            "state/__init__.py": "import holdfast.security\nimport holdfast.engine\n",
            "security/__init__.py": "from holdfast.engine import z\n",
            "engine/__init__.py": "from holdfast import backends, codec, errors; from holdfast.engine import model\n",
            "engine/model/__init__.py": "from holdfast.codec import a\n",
            "codec/__init__.py": "from holdfast import errors\n",
            "backends/__init__.py": "from holdfast.errors import b\n",
            "testing/__init__.py": "import holdfast.engine\nimport holdfast.backends\n",
        },
    )
    result = lint_imports(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_layers_catch_arrows_that_point_up(tmp_path: Path) -> None:
    arrows = [
        ("codec", "engine"),
        ("codec", "backends"),
        ("engine.model", "backends"),
        ("backends", "codec"),
        ("backends", "engine"),
        ("engine", "security"),
        ("engine", "testing"),
        ("security", "state"),
        ("state", "agents"),
        ("state", "interfaces"),
        ("interfaces.cli", "interfaces.web"),
        ("interfaces.http", "interfaces.web"),
        ("interfaces.langgraph", "interfaces.cli"),
    ]
    files = {f"{name.replace('.', '/')}/__init__.py": "" for arrow in arrows for name in arrow}
    for number, (importer, imported) in enumerate(arrows):
        # Inside a function: postponing an import doesn't make it point down.
        text = f"def f():\n    from holdfast.{imported} import x\n"
        files[f"{importer.replace('.', '/')}/up_{number}.py"] = text
    files["errors.py"] = "import holdfast.codec\n"
    write_package(tmp_path, files)
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    missed = [
        (importer, imported)
        for number, (importer, imported) in enumerate(arrows)
        if f"holdfast.{importer}.up_{number} -> holdfast.{imported}" not in result.stdout
    ]
    assert missed == []
    assert "holdfast.errors -> holdfast.codec" in result.stdout


def test_layers_catch_a_package_that_has_no_place(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        {
            "codec/__init__.py": "",
            "backends/__init__.py": "",
            "new.py": "",
        },
    )
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "new" in result.stdout


BROKEN_RULES = [
    ("engine/a.py", "import pickle", "imports pickle"),
    ("engine/a.py", "def f():\n    from pickle import loads", "imports pickle"),
    ("engine/a.py", "eval('1')", "uses eval"),
    ("engine/a.py", "f = exec", "uses exec"),
    ("engine/a.py", "__import__('os')", "uses __import__"),
    (
        "engine/a.py",
        "import importlib\nimportlib.import_module('x')",
        "importlib.import_module",
    ),
    ("engine/a.py", "import importlib as i\ni.import_module('x')", "importlib.import_module"),
    ("engine/a.py", "from importlib import import_module as m\nm('x')", "import_module"),
    ("engine/a.py", "import pandas\npandas.read_pickle('x')", "read_pickle"),
    ("engine/a.py", "load(x, allow_pickle=True)", "allows pickle"),
    ("engine/a.py", "import holdfast", "facade"),
    ("engine/a.py", "from holdfast import open", "facade"),
    ("engine/a.py", "x = 1\n" * (MAX_LINES + 1), f"{MAX_LINES + 1} lines"),
    ("codec/a.py", "import os", "imports os"),
    ("codec/a.py", "from os import environ", "imports os"),
    ("codec/a.py", "import os.path", "imports os.path"),
    ("codec/a.py", "import sqlite3", "imports sqlite3"),
    ("codec/a.py", "def f():\n    import asyncio", "imports asyncio"),
    ("codec/a.py", "from time import monotonic", "imports time"),
    ("codec/a.py", "from importlib import metadata", "imports importlib"),
    ("codec/a.py", "open('x')", "uses open"),
    ("engine/model/a.py", "import socket", "imports socket"),
    ("engine/model/a.py", "import datetime as dt\ndt.datetime.now()", "datetime.datetime.now"),
    ("engine/model/a.py", "from uuid import uuid4\nuuid4()", "uses uuid.uuid4"),
    ("engine/model/a.py", "path.joinpath('x').read_text()", "read_text"),
]


def test_checker_catches(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, text, what) in enumerate(BROKEN_RULES):
        with case(subtests, name, text[:80]):
            found = violations(write_package(tmp_path / str(number), {name: text}))
            assert found
            assert found[0].startswith(name)
            assert any(what in line for line in found)


ALLOWED = [
    ("engine/a.py", "import os, time, asyncio\nopen('x')\ntime.time()"),
    ("engine/a.py", "import re\nre.compile('x')"),
    ("engine/a.py", "from holdfast import errors\nfrom holdfast.errors import ConflictError"),
    ("engine/a.py", "load(x, allow_pickle=False)"),
    ("engine/a.py", "x = 1\n" * MAX_LINES),
    ("interfaces/cli/a.py", "import holdfast"),
    (
        "codec/a.py",
        "import sys\nimport datetime\nsys.modules.get('x')\ndatetime.datetime(1, 1, 1)",
    ),
    ("engine/model/a.py", "from . import b\nfrom holdfast.codec import msgpack"),
]


def test_checker_allows(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, text) in enumerate(ALLOWED):
        with case(subtests, name, text[:80]):
            assert violations(write_package(tmp_path / str(number), {name: text})) == []


def test_the_drawing_of_the_imports_is_current() -> None:
    page = import_graph.PAGE.read_text(encoding="utf-8")
    assert ("engine", "backends") in import_graph.arrows()
    assert import_graph.draw(page) == page, "run python tools/import_graph.py"


PROJECT_WIDE = {"examples", "fuzz", "golden", "import_time", "layers", "lock", "package", "typing"}
"""Subjects of tests of the project as a whole."""


def subjects() -> set[str]:
    """The names of modules, packages and documents, which test files are named after."""
    project = Path(__file__).parent.parent
    found = set(PROJECT_WIDE)
    for folder in ("src", "tools", "examples", "benchmarks", "tests/support", "tests/servers"):
        found |= {path.stem.strip("_") for path in (project / folder).rglob("*.py")}
        found |= {path.parent.name for path in (project / folder).rglob("*.py")}
    return found | {path.stem.replace("-", "_") for path in (project / "docs").rglob("*.md")}


def is_named_after(name: str, known: set[str]) -> bool:
    """Whether the name of a test file begins with a subject: `postgres_locks` with `postgres`."""
    words = name.split("_")
    starts = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    return any({start, f"{start}s", start.removesuffix("s")} & known for start in starts)


def test_test_files_are_named_after_a_module_or_a_guide() -> None:
    known = subjects()
    files = [path for path in Path(__file__).parent.rglob("test_*.py") if path.parent.name != "docs"]
    assert len(files) > 400
    assert [path.name for path in files if not is_named_after(path.stem.removeprefix("test_"), known)] == []
    assert not is_named_after("nonsense_kills", known)
