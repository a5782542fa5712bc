"""The public names: the roots of packages, their docstrings, and the reference that lists them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import codec
from holdfast.backends.runtime.drivers import AsyncApi, Operation, Part, SyncApi, SyncOrAsync

PROJECT = Path(__file__).parent.parent
MODULES = (
    "holdfast",
    "holdfast.access",
    "holdfast.agent_framework",
    "holdfast.agents",
    "holdfast.backends",
    "holdfast.backends.postgres",
    "holdfast.codec",
    "holdfast.encryption",
    "holdfast.erasure",
    "holdfast.errors",
    "holdfast.google_adk",
    "holdfast.hooks",
    "holdfast.jobs",
    "holdfast.langchain",
    "holdfast.langgraph",
    "holdfast.metrics",
    "holdfast.openai_agents",
    "holdfast.pydantic_ai",
    "holdfast.redaction",
    "holdfast.replay",
    "holdfast.savers",
    "holdfast.schemas",
    "holdfast.scripts",
    "holdfast.snapshots",
    "holdfast.state",
    "holdfast.testing",
)
"""The modules whose names are public. All others are private."""

ELSEWHERE = ("holdfast.agent_framework", "holdfast.google_adk", "holdfast.pydantic_ai")
"""Those whose frameworks are installed in environments of their own: they cannot be imported here."""

FRAMEWORKS = ("holdfast.langchain", "holdfast.langgraph", "holdfast.openai_agents", *ELSEWHERE)
"""The modules for frameworks. Each has the classes that its framework asks for."""

RETURNED = (
    "holdfast.state.scope_state.State",
    "holdfast.store.identity_view.IdentityView",
    "holdfast.store.store.Transaction",
    "holdfast.state.sessions.api.Session",
    "holdfast.store.backups.Backups",
    "holdfast.history.diff_result.Diff",
    "holdfast.store.lazy_state.LazyState",
)
"""Classes of objects that operations return, which the reference describes."""

INTERNALS = {"states.md"}
"""Guides to the inside of the library, which show what is private."""


def source_of(root: str) -> ast.Module:
    """The source of a module that may not be importable here."""
    return ast.parse((PROJECT / "src" / root.replace(".", "/")).with_suffix(".py").read_text())


def names_of(root: str) -> list[str]:
    """The public names of a module."""
    if root not in ELSEWHERE:
        return list(importlib.import_module(root).__all__)
    assigned = [each for each in source_of(root).body if isinstance(each, ast.Assign)]
    found: list[str] = next(
        ast.literal_eval(each.value) for each in assigned if ast.unparse(each.targets[0]) == "__all__"
    )
    return found


def public_names() -> list[tuple[str, str, Any]]:
    """The root, the name and the object of every public name that can be imported."""
    return [
        (root, name, getattr(importlib.import_module(root), name))
        for root in MODULES
        if root not in ELSEWHERE
        for name in importlib.import_module(root).__all__
        if name != "__version__"
    ]


def test_there_are_few_names_and_each_has_one_address() -> None:
    names = vars(holdfast)["__all__"]
    assert dir(holdfast) == sorted(names)
    addresses: dict[int, list[str]] = {}
    for root, name, thing in public_names():
        addresses.setdefault(id(thing), []).append(f"{root}.{name}")
    assert [each for each in addresses.values() if len(each) > 1] == []
    adapters = [name for root, name, _ in public_names() if root in FRAMEWORKS and name != "HoldfastSaver"]
    adapters.append("ConversationSuite")
    assert 100 < len(public_names()) - len(adapters) <= 153
    adapters += [name for root in ELSEWHERE for name in names_of(root)]
    assert len(adapters) <= 14
    assert len(set(adapters)) == len(adapters)
    assert holdfast.codec.Codec is codec.Codec


def imported_names(text: str) -> Iterator[str]:
    """The names of this package that a program imports, or names as `holdfast.module.name`."""
    for each in ast.walk(ast.parse(text)):
        if isinstance(each, ast.ImportFrom) and each.module and each.module.partition(".")[0] == "holdfast":
            yield from (f"{each.module}.{alias.name}" for alias in each.names)
        elif isinstance(each, ast.Attribute) and re.fullmatch(r"holdfast(\.[a-z_]+)?", ast.unparse(each.value)):
            yield ast.unparse(each)


def test_guides_and_examples_use_public_names_only() -> None:
    public = {f"{root}.{name}" for root in MODULES for name in names_of(root)} | set(MODULES) | {"holdfast.__version__"}
    texts = [(path, path.read_text()) for path in (PROJECT / "examples").rglob("*.py")]
    pages = [PROJECT / "README.md", *(PROJECT / "docs" / "guides").glob("*.md")]
    for page in pages:
        if page.name not in INTERNALS:
            texts += [
                (page, block) for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S)
            ]
    used = {(str(path.relative_to(PROJECT)), name) for path, text in texts for name in imported_names(text)}
    assert len(used) > 100
    # Members of a public class or object, such as `holdfast.Retention.of`, are its own.
    private = {
        (path, name)
        for path, name in used
        if name not in public and name.rpartition(".")[0] not in public - set(MODULES)
    }
    assert private == set()


def test_guides_name_public_errors_only() -> None:
    every = {name for name, kind in vars(holdfast.errors).items() if isinstance(kind, type)}
    pages = [PROJECT / "README.md", *(PROJECT / "docs" / "guides").glob("*.md")]
    named = {(page.name, name) for page in pages for name in re.findall(r"\b[A-Z]\w*Error\b", page.read_text())}
    assert len(named) > 100
    assert {(page, name) for page, name in named if name in every - set(holdfast.errors.__all__)} == set()


def test_a_store_has_few_members() -> None:
    assert len([name for name in dir(holdfast.Store) if not name.startswith("_")]) <= 30, "a part may have it"


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'nonsense'"):
        holdfast.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The names under TYPE_CHECKING are those of the tables that are read at run time."""
    seen = 0
    for root in set(MODULES) - set(ELSEWHERE):
        module = importlib.import_module(root)
        tree = ast.parse(Path(str(module.__file__)).read_text())
        checked = [each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"]
        if not checked or not hasattr(module, "_MODULES"):
            continue
        seen += 1
        table: dict[str, tuple[str, ...]] = vars(module)["_MODULES"]
        found = {
            alias.asname: each.module
            for each in ast.walk(checked[0])
            if isinstance(each, ast.ImportFrom) and each.module != "holdfast"
            for alias in each.names
        }
        expected = {name: source for source, names in table.items() for name in names}
        assert found == expected, root
    assert seen >= 6


def test_no_two_public_classes_have_one_name() -> None:
    by_name: dict[str, set[int]] = {}
    for _, name, thing in public_names():
        if inspect.isclass(thing):
            by_name.setdefault(name, set()).add(id(thing))
    assert {name for name, things in by_name.items() if len(things) > 1} == set()


def test_every_public_name_has_a_docstring() -> None:
    missing: list[str] = []
    members = 0
    for root, name, thing in public_names():
        if not (inspect.isclass(thing) or inspect.isroutine(thing)) or not thing.__module__.startswith("holdfast"):
            continue
        if not thing.__dict__.get("__doc__", thing.__doc__):
            missing.append(f"{root}.{name}")
        if not isinstance(thing, type):
            continue
        for member, value in inspect.getmembers_static(thing):
            defined_in = next((each for each in thing.__mro__ if member in vars(each)), object)
            is_field = member in getattr(thing, "__dataclass_fields__", ())
            if is_field or member.startswith(("_", "test_")) or not defined_in.__module__.startswith("holdfast"):
                continue
            target = getattr(value, "__wrapped__", None) or getattr(value, "fget", None) or value
            target = getattr(target, "__func__", target)
            if callable(target) or isinstance(value, property):
                members += 1
                if not inspect.getdoc(getattr(thing, member, None)) and not inspect.getdoc(target):
                    missing.append(f"{root}.{name}.{member}")
    assert missing == []
    assert members > 200


def test_adapters_that_are_not_imported_here_have_docstrings() -> None:
    for root in ELSEWHERE:
        module = source_of(root)
        assert ast.get_docstring(module)
        for kind in [each for each in module.body if isinstance(each, ast.ClassDef) and each.name in names_of(root)]:
            functions = [each for each in kind.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            public = [kind, *(each for each in functions if not each.name.startswith("_"))]
            assert [each.name for each in public if not ast.get_docstring(each)] == []
            assert len(public) > 2


def test_operations_are_ordinary_functions() -> None:
    """So that `help()`, editors and tracebacks see what they see of other methods."""
    checked = 0
    for _, name, kind in public_names():
        if not isinstance(kind, type) or not issubclass(kind, SyncApi | AsyncApi):
            continue
        for member, value in inspect.getmembers_static(kind):
            assert not isinstance(value, Operation | SyncOrAsync), f"{name}.{member}"
            base = next((vars(each)[member] for each in kind.__mro__[::-1] if member in vars(each)), None)
            if isinstance(base, Operation):
                assert inspect.signature(value) == inspect.signature(base.__wrapped__), f"{name}.{member}"
                assert inspect.iscoroutinefunction(value) is issubclass(kind, AsyncApi), f"{name}.{member}"
                checked += 1
    assert checked > 60


def test_the_reference_lists_the_public_names_and_the_parts_of_a_store() -> None:
    page = (PROJECT / "docs" / "reference.md").read_text()
    listed = dict(re.findall(r"^::: (\S+)\n    options:\n      show_sub[^[]*members: \[(.*?)\]", page, re.M | re.S))
    assert sorted(listed) == sorted(MODULES)
    for root, members in listed.items():
        names = [name for name in names_of(root) if name != "__version__"]
        assert sorted(re.findall(r"\w+", members)) == sorted(names), root
    parts = {f"{part._module}.{part.class_name}" for kind in holdfast.Store.__mro__ for part in parts_of(kind)}
    assert set(re.findall(r"^::: (\S+)", page, re.M)) == parts | set(MODULES) | set(RETURNED)
    assert all(pydoc.locate(name) for name in RETURNED)
    assert len(parts) > 10


def parts_of(kind: type) -> list[Part[Any, Any]]:
    """The parts that a class declares."""
    return [each for each in vars(kind).values() if isinstance(each, Part)]


def test_what_is_registered_for_all_is_known_to_every_codec() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    holdfast.register(Celsius, lambda c: c.degrees, Celsius, name="tests: celsius")
    assert codec.Codec().unpack(codec.Codec().pack(Celsius(5.0))).degrees == 5.0
