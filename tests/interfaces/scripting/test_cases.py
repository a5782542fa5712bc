"""Every function of scripts does in Lua and JavaScript what it does in Python: one table of cases, three languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import errors, replay, state
from holdfast.agents.api.conversation import Conversation
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime import drivers
from holdfast.backends.runtime.drivers import operations_of
from holdfast.interfaces.scripting import calls
from holdfast.interfaces.scripting.functions import python_class, type_name_of, type_names
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.interfaces.scripting.values import MARK, Encoder
from holdfast.scripts import Sandbox
from holdfast.state.scope_state import State
from tests.interfaces.scripting.cases import cases
from tests.interfaces.scripting.translate import SETUP, translate
from tests.store.test_replays import KIND, REGISTER, make_clerk
from tests.support.cases import case
from tests.support.nightly import mostly_nightly

_UNIQUE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}|[0-9a-f]{32,}|\b(?:[0-9a-f]{8}){2,3}\b|\d{4}-\d\d-\d\dT[0-9:.]+(\+00:00|Z)?"
)


class _Unused:
    """Stands for the objects of a sandbox, where none are encoded."""

    def add(self, value: object) -> int:
        return 0


def outcome(value: Any) -> Any:
    """A result without what differs from store to store: ids, times, durations."""
    return _plain(Encoder(_Unused()).encode(value))  # type: ignore[arg-type]


def _plain(tree: Any) -> Any:
    if isinstance(tree, str):
        return _UNIQUE.sub("…", tree)
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if MARK in tree:
        kind, *rest = tree[MARK]
        return _plain({"page": lambda: rest[0], "record": lambda: rest[1]}.get(kind, lambda: None)())
    if tree.keys() & {"$datetime", "$float"} and len(tree) == 1:
        return next(iter(tree))
    if tree.keys() == {"$tuple"}:
        return _plain(tree["$tuple"])
    hidden = ("duration", "cursor", "token", "elapsed", "seconds", "average", "worst", "started", "bytes")
    return {_UNIQUE.sub("…", key): _plain(item) for key, item in tree.items() if key not in hidden and item is not None}


def run_in_python(line: str, names: dict[str, Any]) -> tuple[Any, str]:
    """The result of a line, and the code of its error."""
    target, _, expression = line.partition(" = ") if re.match(r"\w+ = ", line) else ("", "", line)
    try:
        value = eval(expression, names)
    except holdfast.errors.HoldfastError as error:
        return None, error.code
    except LookupError:
        return None, "not-found"
    if target:
        names[target] = value
        return True, ""
    return outcome(value), ""


def run_in_sandbox(line: str, sandbox: Sandbox) -> tuple[Any, str]:
    try:
        return outcome(sandbox.run(translate(line, sandbox.language))), ""
    except holdfast.errors.HoldfastError as error:
        return None, error.code if not isinstance(error, errors.ScriptError) else f"{error} {error.trace}"


class ChangingOperations:
    """Notes which operations write to a store in memory, by the names of their functions."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._open: ContextVar[str] = ContextVar("operation", default="")
        run, apply, make = drivers.run, MemoryBackend.apply, MemoryBackend.__init__
        own = set[int]()
        """The stores in memory that an operation made for its own use."""

        def noted_run(coroutine: Any) -> Any:
            token = self._open.set(self._open.get() or coroutine.__qualname__)
            try:
                return run(coroutine)
            finally:
                self._open.reset(token)

        def noted_make(backend: MemoryBackend, *arguments: Any, **options: Any) -> None:
            make(backend, *arguments, **options)
            (own.add if self._open.get() else own.discard)(id(backend))

        async def noted_apply(backend: MemoryBackend, batch: Any) -> int | None:
            if id(backend) not in own and any(
                "audit" not in str(each) for each in batch
            ):  # which notes what identities read
                self.names.add(self._open.get())
            return await apply(backend, batch)

        patch.setattr(drivers, "run", noted_run)
        patch.setattr(MemoryBackend, "apply", noted_apply)
        patch.setattr(MemoryBackend, "__init__", noted_make)


@pytest.fixture(scope="module")
def changing() -> Iterator[ChangingOperations]:
    with pytest.MonkeyPatch.context() as patch:
        yield ChangingOperations(patch)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, changing: ChangingOperations) -> Iterator[list[tuple[Any, str]]]:
    def fail(problem: Exception) -> None:
        raise problem

    names: dict[str, Any] = {name: getattr(state, name) for name in ("Increment", "Append", "AddToSet", "Max")}
    names |= {name: value for name, value in vars(errors).items() if name.endswith("Error")} | {
        "MISSING": holdfast.MISSING,
        "fail": fail,
    }
    names["replay"] = replay
    with pytest.MonkeyPatch.context() as patch, holdfast.open("memory://") as store:
        # As of an AsyncState: in a Store it is a mapping instead.
        patch.setattr(State, "has", State.__contains__, raising=False)
        patch.setattr(State, "count", State.__len__, raising=False)
        patch.setattr(State, "save", State.set, raising=False)
        patch.setattr(State, "load", State.get, raising=False)
        patch.setattr(Conversation, "count", Conversation.__len__, raising=False)
        patch.chdir(tmp_path_factory.mktemp("python"))  # where the repository is
        names["store"] = store
        make_clerk(store, "clerk-1")
        yield [run_in_python(line, names) for line, _ in cases()]


def test_what_is_declared_to_read_changes_nothing(
    expected: list[tuple[Any, str]], changing: ChangingOperations
) -> None:
    classes = [python_class(name) for name in OBJECT_TYPES]
    declared = {
        each.__wrapped__.__qualname__: each.declaration for cls in classes for each in operations_of(cls).values()
    }
    assert expected
    assert {name for name in changing.names if name in declared and not declared[name].changes} == set()
    assert len({name for name in changing.names if name in declared}) > 80  # of changes


@pytest.mark.parametrize("language", mostly_nightly(["lua", "javascript"], daily=["lua"]))
def test_languages_agree(
    language: Any,
    expected: list[tuple[Any, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    called: set[tuple[str, str]] = set()
    original_call, original_resolve = calls.Calls._call, calls.Calls.resolve

    def call(self: calls.Calls, found: Any, name: str, *rest: Any) -> Any:
        called.add((type_name_of(type(found)) or "HookRegistration", name.removeprefix(".")))
        return original_call(self, found, name, *rest)

    def resolve(self: calls.Calls, target: Any) -> Any:
        for number in range(len(target[1])):
            part = original_resolve(self, [target[0], target[1][:number]])
            called.add((type_name_of(type(part)), target[1][number][0]))
        return original_resolve(self, target)

    monkeypatch.setattr(calls.Calls, "_call", call)
    monkeypatch.setattr(calls.Calls, "resolve", resolve)
    with (
        holdfast.open("memory://") as store,
        Sandbox(
            language,
            store,
            timeout=60,
            backups={"main": store.backups(tmp_path)},
            code={name: name for name in (REGISTER, KIND)},
        ) as sandbox,
    ):
        make_clerk(store, "clerk-1")
        sandbox.run(SETUP[language])
        for (line, code), in_python in zip(cases(), expected, strict=True):
            with case(subtests, line):
                assert run_in_sandbox(line, sandbox) == in_python
                assert in_python[1] == code
    every = {
        (name, each)
        for name, declared in ((name, type_names(name)) for name in OBJECT_TYPES)
        for each in (*declared["functions"], *declared["properties"], *declared["members"])
    } | {("HookRegistration", "()")}
    assert every - called == set(), "functions that no case calls"
