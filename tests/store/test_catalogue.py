"""The catalogue of operations: each is declared, and a new one is in every interface without another line."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from holdfast._views import fields_of, is_record
from holdfast.backends.runtime.drivers import (
    Declaration,
    Operation,
    SyncApi,
    class_declaration,
    declaration_of,
    operation,
    operations_of,
)
from holdfast.interfaces.scripting.functions import python_class
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.security.access.policy import RIGHTS
from holdfast.store.catalogue import CataloguedOperation, catalogue, find_operation, resolve_annotation, store_parts
from tests.test_api import public_names
from tools import operation_reference

PROJECT = Path(__file__).resolve().parents[2]


def find(part: str, name: str) -> CataloguedOperation:
    found = find_operation(part, name)
    assert found is not None
    return found


def api_classes() -> set[type]:
    """The classes of the package whose operations wait in the calling thread."""
    found = {part.owner for part in store_parts().values()} | {python_class(name) for name in OBJECT_TYPES}
    left = [SyncApi]
    while left:
        left += (each := left.pop()).__subclasses__()
        found.add(each)
    return {
        each
        for each in found
        if each.__module__.startswith("holdfast.") and ".http." not in each.__module__ and issubclass(each, SyncApi)
    }


def undeclared(cls: type) -> list[str]:
    """The public coroutine functions of a class that are no operations."""
    members = [(name, value) for base in cls.__mro__ for name, value in vars(base).items()]
    return [name for name, value in members if name[0] != "_" and inspect.iscoroutinefunction(value)]


def test_every_operation_is_declared() -> None:
    class Forgotten(SyncApi):
        async def forget(self) -> None: ...

    assert undeclared(Forgotten) == ["forget"]
    assert {cls.__name__: undeclared(cls) for cls in api_classes() if undeclared(cls)} == {}
    assert sum(len(operations_of(cls)) for cls in api_classes()) > 300


def test_every_operation_can_be_reached_or_says_why_not() -> None:
    parts = {cls for part in store_parts().values() for cls in (part.owner, part.identity)}
    types = {python_class(name) for name in OBJECT_TYPES}
    for cls in api_classes():
        for name in operations_of(cls):
            declared = declaration_of(cls, name)
            assert declared is not None
            assert declared.not_remote or cls in parts, f"{cls.__name__}.{name} is in no part of a store"
            assert declared.not_in_scripts or any(issubclass(cls, each) for each in types - {object}), (cls, name)


def test_rights_are_those_that_there_are() -> None:
    for each in catalogue():
        assert set(each.rights) <= set(RIGHTS), each
        assert not (each.owner_only and each.rights), each
    assert find("thread", "hold").rights == ("admin",)  # which the function checks
    assert find("thread", "merge").rights == ("read", "write")
    assert find("erasure", "erase").rights == ("erase",)
    assert find("audit", "query").owner_only


def returned_types() -> dict[type, str]:
    """The classes of this package in the results of the public API, and in their fields; each with where it is."""
    found: dict[type, str] = {}

    def add(kind: Any, where: str) -> None:
        for argument in get_args(kind):
            add(argument, where)
        kind = get_origin(kind) or kind
        if not isinstance(kind, type) or not kind.__module__.startswith("holdfast.") or kind in found:
            return
        found[kind] = where
        for base in getattr(kind, "__orig_bases__", ()):
            add(base, kind.__name__)
        if is_record(kind) and issubclass(kind, msgspec.Struct):
            for field in fields_of(kind):
                add(field.type, f"{kind.__name__}.{field.name}")

    classes = api_classes() | {thing for _, _, thing in public_names() if isinstance(thing, type)}
    functions = [(thing, f"{root}.{name}") for root, name, thing in public_names() if inspect.isroutine(thing)]
    functions += [(function, f"{cls.__name__}.{function.__name__}") for cls in classes for function in methods(cls)]
    for function, where in functions:
        result = inspect.signature(function).return_annotation
        if function.__module__.startswith("holdfast.") and not str(result).startswith("asyncio."):
            add(resolve_annotation(result, function), where)
    return found


def methods(cls: type) -> Iterator[Any]:
    """The functions behind the public methods and properties of a class and of its bases in this package."""
    for base in cls.__mro__:
        if base.__module__.startswith("holdfast.") and ".conformance." not in base.__module__:
            for name, value in vars(base).items():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                function = inspect.unwrap(function) if callable(function) else None
                if not name.startswith("_") and inspect.isfunction(function):
                    yield function


VALUES = {
    **dict.fromkeys(("Distribution", "SaveCounts"), "counters, which grow"),
    **dict.fromkeys(
        ("Tool", "Spec", "Transition", "JobType", "Operation", "Encryption"), "definitions, which programs make"
    ),
    **dict.fromkeys(("Row", "Changes", "WordMatches"), "rows of backends, one for each row that is read"),
    **dict.fromkeys(
        ("PackedMessages", "MessageParts", "MessageLoan", "Registration"), "inside the codec, at each message"
    ),
    "Identity": "a key of rows, which is sorted",
    "SensitiveSpan": "a position in a text, which is sorted",
}
"""Returned classes that are no records, with the reason."""


def test_what_the_public_api_returns_are_frozen_records() -> None:
    """Operations, and all other methods and functions of public names."""
    records = {kind: where for kind, where in returned_types().items() if is_record(kind)}
    assert len(records) > 120
    assert VALUES.keys() <= {kind.__name__ for kind in records}
    for kind, where in records.items():
        if kind.__name__ not in VALUES:
            assert issubclass(kind, msgspec.Struct), f"{kind.__name__} of {where} is not a struct"
            assert kind.__struct_config__.frozen, f"{kind.__name__} of {where} is not frozen"
            assert not hasattr(kind, "__iter__"), f"{kind.__name__} of {where} can be unpacked"
            assert not hasattr(kind, "__getitem__"), f"{kind.__name__} of {where} can be indexed"


def test_a_dry_run_reads() -> None:
    prune, delete = find("maintenance", "prune"), find("thread", "delete")
    assert prune.reads({"dry_run": True})
    assert not prune.reads({"dry_run": 1})
    assert not prune.reads({})
    assert not delete.reads({"dry_run": True})


def test_a_class_declares_for_all_of_its_operations() -> None:
    keys = store_parts()["encryption_keys"].owner
    assert class_declaration(keys).confirm
    rotate, listed = find("encryption_keys", "rotate").declaration, find("encryption_keys", "list").declaration
    assert (rotate.confirm, listed.confirm) == (True, False)
    assert rotate.not_in_scripts == listed.not_in_scripts != ""
    assert declaration_of(keys, "nothing") is None


def test_a_replica_answers_only_what_changes_nothing() -> None:
    found = {
        cls.__name__: {name for name, each in operations_of(cls).items() if each.declaration.may_lag}
        for cls in api_classes()
    }
    assert {name for name, operations in found.items() if operations} == {
        *("Thread", "Store", "IdentityView", "Timeline", "Audit")
    }
    assert found["Store"] == {"threads", "search", "usage"}
    assert {"get", "log", "diff"} < found["Thread"]
    for cls in api_classes():
        for name, each in operations_of(cls).items():
            assert not (each.declaration.may_lag and each.declaration.changes), (cls, name)


def test_local_is_a_reason_for_both() -> None:
    @operation(local="It is here.", changes=True)
    async def work(self: Any) -> None: ...

    assert isinstance(work, Operation)
    assert work.declaration == Declaration(changes=True, not_remote="It is here.", not_in_scripts="It is here.")


def test_the_page_of_operations_is_current() -> None:
    assert operation_reference.PAGE.read_text(encoding="utf-8") == operation_reference.reference(), (
        "run `python -m tools.operation_reference`"
    )


METHOD = '''
    @operation
    async def shout(self, word: str, *, times: int = 1) -> str:
        """Return a word in capitals."""
        return word.upper() * times

'''

USES = """
import holdfast
from holdfast.scripts import Sandbox
from tests.interfaces.http.kit import DOCUMENT, ServedStore
from tools import operation_reference, script_reference

with holdfast.open("memory://") as store, ServedStore(store, write=False) as served:
    assert store.artifacts.shout("a", times=2) == "AA"
    answer = served.request("POST", "/api/v1/reads/artifacts/shout", {"arguments": ["b"], "options": {"times": 3}})
    assert answer.json == {"result": "BBB"}, answer
    with holdfast.open(served.url, token=served.token) as remote:
        assert remote.artifacts.shout("c") == "C"
        assert remote.as_identity("user:alice").artifacts.shout("d") == "D"
    for language, source in (
        ("lua", "return store.artifacts:shout('e', {times = 2})"),
        ("javascript", "return await store.artifacts.shout('e', {times: 2})"),
    ):
        with Sandbox(language, store) as sandbox:
            assert sandbox.run(source) == "EE", language
assert DOCUMENT["paths"]["/api/v1/reads/artifacts/shout"]["post"]["summary"] == "Return a word in capitals."
assert "### Artifacts.shout" in script_reference.reference()
assert "`shout(word, times)`" in operation_reference.reference()
print("done")
"""


@pytest.mark.time_limit(180)
def test_one_method_is_all_that_an_operation_needs(tmp_path: Path) -> None:
    package = shutil.copytree(PROJECT / "src" / "holdfast", tmp_path / "holdfast")
    module = package / "state" / "artifacts" / "api.py"
    before, mark, after = module.read_text(encoding="utf-8").partition("    @operation(changes=True)\n")
    assert "class ArtifactsOperations" in before
    module.write_text(before + METHOD.lstrip("\n") + mark + after, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", USES]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stderr
