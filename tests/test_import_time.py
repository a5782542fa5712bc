"""`import holdfast` is cheap: under 60 ms, and none of the heavy libraries come along. Nor do they for a command."""

import json
import math
import os
import resource
import subprocess
import sys

import pytest

from holdfast.interfaces.cli.main import COMMANDS

LIMIT_SECONDS = 0.06
ROUNDS = 7
HEAVY = ("asyncio", "attr", "langchain_core", "langgraph", "numpy", "pandas", "pydantic")


def run(code: str) -> str:
    """Run code in a new interpreter that measures no coverage."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_"))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(code: str) -> float:
    """How long an interpreter is at work to start, run code and end; not how long it waits for others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_takes_less_than_60_ms() -> None:
    run("import holdfast")  # compiles the byte code once
    # Turn about, so that a slow moment of the machine hits both; the best of each counts.
    bare = with_holdfast = math.inf
    for _ in range(ROUNDS):
        bare, with_holdfast = min(bare, seconds("pass")), min(with_holdfast, seconds("import holdfast"))
        if with_holdfast - bare < LIMIT_SECONDS:
            return
    pytest.fail(f"it took {with_holdfast - bare:.3f} s")


@pytest.mark.parametrize("module", ["holdfast", "holdfast.codec", "holdfast.engine.model"])
def test_import_loads_nothing_heavy(module: str) -> None:
    # What the interpreter loads by itself (.pth files of the environment) is not ours.
    code = (
        "import json, sys; before = set(sys.modules);"
        f"import {module};"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = set(json.loads(run(code)))
    assert module in loaded
    assert loaded.isdisjoint(HEAVY)


LOAD = """
import json, os, sys
before = set(sys.modules)
from holdfast.interfaces.cli.main import main
out, loaded = os.dup(1), []
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for arguments in {commands!r}:
    code = main(list(arguments))
    assert code == 0, (code, arguments)
    loaded.append(sorted(set(sys.modules) - before))
sys.stdout.flush()
os.dup2(out, 1)
print(json.dumps(loaded))
"""


def loaded_by(commands: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], set[str]]]:
    """Commands, each with the modules that it and those before it load beyond those of a bare interpreter."""
    loaded = json.loads(run(LOAD.format(commands=commands)))
    return list(zip(commands, map(set, loaded), strict=True))


# What takes long to load, and no command that only looks needs.
SLOW = {
    *HEAVY,
    *{"email", "importlib.metadata", "importlib.resources", "multiprocessing", "sqlite3", "ssl", "subprocess"},
    *{"tempfile", "tomllib", "difflib", "unittest", "zipfile", "orjson", "cryptography", "psycopg", "pymongo", "redis"},
    *{"rich", "logging", "concurrent.futures", "shutil", "bz2", "lzma", "zoneinfo", "fractions"},
}

# What reads a store. Rows are packed with msgspec: there is no reading without it.
READERS = {"apsw", "msgspec", "holdfast.codec", "holdfast.backends.interface", "holdfast.store.store"}

HELP = {"shutil", "bz2", "lzma"}
"""Click measures the terminal with `shutil`, before it writes a help text."""


def test_help_loads_neither_a_store_nor_a_command() -> None:
    for arguments, loaded in loaded_by([("--version",), ("--help",)]):
        assert not loaded & (SLOW - HELP | READERS | {"holdfast.interfaces.cli.threads"}), arguments
        assert {name for name in loaded if name.startswith("holdfast.")} - {"holdfast._version"} == {
            "holdfast._lazy",
            "holdfast.errors",
            "holdfast.interfaces",
            "holdfast.interfaces.cli",
            *(f"holdfast.interfaces.cli.{name}" for name in ("main", "base", "exit_codes", "output", "formatting")),
        }, arguments


def test_no_command_loads_a_store_before_it_runs() -> None:
    commands = [name for names in COMMANDS.values() for name in names]
    for arguments, loaded in loaded_by([(name, "--help") for name in commands]):
        assert sorted(loaded & (SLOW - HELP | READERS)) == [], arguments
    ((_, loaded),) = loaded_by([("explain", "no-store")])
    assert not loaded & READERS


# What changes a store, and makes the rows that go with a change.
WRITERS = {
    "holdfast.engine.save",
    "holdfast.engine.rewrite.rewriter",
    "holdfast.engine.projection.projector",
    "holdfast.engine.text_index.indexer",
    "holdfast.engine.text_index.tokenize",
    "holdfast.engine.copy.between_stores",
}

LOOKING = [
    *[("threads",), ("threads", "--json"), ("log", "t"), ("show", "t"), ("tag", "t"), ("status",)],
    *[("state", "list"), ("state", "get", "agent:a", "plan")],
]
COMPARING = [("diff", "t"), ("blame", "t", "a"), ("session", "list"), ("audit",)]
"""These compare texts, or read what is sealed."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('start')}/agents.db"
    run(
        f"import holdfast; store = holdfast.open({url!r}); chat = store.thread('t');"
        "chat.put({'a': 1}); chat.put({'a': 2});"
        "store.state(agent='a')['plan'] = 1; store.close()"
    )
    return url


def test_commands_that_look_load_nothing_slow(url: str) -> None:
    for arguments, loaded in loaded_by([(*arguments, "--store", url) for arguments in LOOKING]):
        assert sorted(loaded & (SLOW | WRITERS | {"secrets", "hmac", "locale"})) == [], arguments
        assert loaded >= READERS
        if arguments[0] == "threads":  # these come first
            # What saves, searches or compares, or reads a state, has no business here.
            assert not loaded & {"holdfast.engine.append", "holdfast.engine.state_loader", "json", "base64"}
            assert not [name for name in loaded if name.startswith(("holdfast.history.", "holdfast.maintenance."))]
            assert len(loaded) < 215
        if arguments[0] in ("threads", "log"):
            assert "holdfast.engine.model.fold" not in loaded
    for arguments, loaded in loaded_by([(*arguments, "--store", url) for arguments in COMPARING]):
        assert sorted(loaded & (SLOW | WRITERS) - {"difflib"}) == [], arguments


def test_commands_that_write_load_what_the_others_do_not(url: str) -> None:
    ((_, loaded),) = loaded_by([("tag", "t", "first", "--store", url)])
    assert loaded >= {"shutil", "bz2", "lzma", "concurrent.futures", "logging", "holdfast.engine.save"}


CREATED = """
import json, sys, dataclasses, typing
names = {{"dataclass": [], "NamedTuple": []}}
process, new = dataclasses._process_class, typing.NamedTupleMeta.__new__
def process_class(cls, *options):
    if cls.__module__.startswith("holdfast"):
        names["dataclass"].append(f"{{cls.__module__}}.{{cls.__qualname__}}")
    return process(cls, *options)
def create(meta, name, bases, namespace):
    if namespace["__module__"].startswith("holdfast"):
        names["NamedTuple"].append(f"{{namespace['__module__']}}.{{name}}")
    return new(meta, name, bases, namespace)
dataclasses._process_class, typing.NamedTupleMeta.__new__ = process_class, create
{more}
from holdfast.interfaces.cli.main import main
sys.stdout, out = open(os.devnull, "w"), sys.stdout
assert main({arguments!r}) == 0
print(json.dumps(names), file=out)
"""


def created_by(arguments: tuple[str, ...], more: str = "import os") -> dict[str, list[str]]:
    """The classes that a command creates by ways that take long: 0.2 ms for a class of `typing.NamedTuple`, 1 ms for a
    dataclass."""
    created: dict[str, list[str]] = json.loads(run(CREATED.format(arguments=arguments, more=more)))
    return created


@pytest.mark.nightly
def test_commands_create_few_classes_that_take_long(url: str) -> None:
    created = created_by(("threads", "--store", url))
    assert created == {
        "dataclass": ["holdfast.engine.model.steps.Step"],
        "NamedTuple": [],
    }
    also = created_by(("threads", "--store", url), "import os, holdfast.engine.append, holdfast.history.query")
    assert len(also["dataclass"]) > 1
    assert len(also["NamedTuple"]) > 1


def test_a_program_that_ends_looks_for_no_garbage() -> None:
    code = (
        "import gc, sys; sys.argv = ['holdfast', '--version']; from holdfast.__main__ import main;"
        "assert main() == 0; print(gc.get_freeze_count() > 1000)"
    )
    assert run(code).splitlines()[-1] == "True"
    called = (
        "import gc; before = gc.get_freeze_count(); from holdfast.interfaces.cli.main import main;"
        "main(['--version']); print(gc.get_freeze_count() - before)"
    )
    assert run(called).splitlines()[-1] == "0"


def test_a_plain_store_is_served_without_the_extra_for_encryption() -> None:
    modules = "holdfast.jobs, holdfast.interfaces.web.pages, holdfast.interfaces.http.remote"
    program = f"import sys; sys.modules['cryptography'] = None; import {modules}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
