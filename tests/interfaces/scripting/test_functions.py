"""The table of functions: it has every public function of Python or says why not, and the reference is made of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from holdfast import replay
from holdfast.errors import InvalidError
from holdfast.interfaces.scripting.functions import (
    ABSENT,
    excluded_names,
    script_type,
    type_name_of,
    type_names,
)
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.interfaces.scripting.values import RECORDS
from tests.support.cases import case
from tools import script_reference


def test_every_public_name_is_in_the_table_or_excluded(subtests: pytest.Subtests) -> None:
    for name, declared in ((name, type_names(name)) for name in OBJECT_TYPES):
        known = script_type(name)
        if known.is_callable:
            continue
        with case(subtests, name):
            public = {each for each in dir(known.python) if not each.startswith("_")}
            if declared["module"] == "replay":
                public = {each for each in replay.__all__ if inspect.isfunction(getattr(replay, each))}
            if name in RECORDS:  # their fields come along
                public = {each for each in public if callable(getattr(known.python, each))} | {*known.members}
            table = {*declared["functions"], *declared["properties"], *declared["members"]}
            excluded = set(excluded_names(name))
            assert public - table - excluded == set(), "say in object_types.py whether scripts have these"
            assert excluded - public == set(), "there is no such name"
            assert excluded & table == set()


def test_the_table_says_what_the_classes_have(subtests: pytest.Subtests) -> None:
    for name, declared in ((name, type_names(name)) for name in OBJECT_TYPES):
        known = script_type(name)
        with case(subtests, name):
            assert list(known.functions) == declared["functions"]
            assert list(known.members) == list(declared["members"])
            assert all(function.doc for function in known.functions.values() if name != "Workflow")
            if not known.is_callable:
                assert type_name_of(known.python) == name
    assert type_name_of(dict) == ""


def test_the_reference_is_current() -> None:
    assert script_reference.PAGE.read_text(encoding="utf-8") == script_reference.reference(), (
        "run `python tools/script_reference.py`"
    )


def bind(function: str, *arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    kind, _, name = function.partition(".")
    return script_type(kind).functions[name].bind(list(arguments))


def test_arguments_are_bound_as_in_python(subtests: pytest.Subtests) -> None:
    for given, expected in (
        (("State.set", "k", {"ttl": 5}), {"key": "k", "value": {"ttl": 5}}),  # a value, not options
        (("State.set", "k", 1, {"ttl": 5}), {"key": "k", "value": 1, "ttl": 5}),
        (("State.set", "k", 1, {}), {"key": "k", "value": 1}),
        (("State.get", "k", {"a": 1}), {"key": "k", "default": {"a": 1}}),
        (("State.get", "k", ABSENT), {"key": "k"}),
        (("State.list_keys", {"limit": 5}), {"limit": 5}),
        (("State.list_keys", "a", {"limit": 5, "cursor": ABSENT}), {"prefix": "a", "limit": 5}),
        (("Thread.get",), {}),
        (("Thread.get", {"at": 3}), {"at": 3}),
        (("Thread.fork", "b", ABSENT, {"remove": []}), {"branch": "b", "remove": []}),
        (("Thread.diff", 1, 2), {"a": 1, "b": 2}),
        (("Thread.diff", {"state": {}}), {"state": {}}),
        (("Sessions.update", "s", {"a": 1}), {"id": "s", "metadata": {"a": 1}}),
    ):
        with case(subtests, given):
            assert bind(*given) == ([], expected)
    assert bind("State.append", "k", {"a": 1}, None) == (["k", {"a": 1}, None], {})
    assert bind("Agents.create", "kind", "id", {"a": 1}) == (["kind", "id"], {"a": 1})
    assert bind("Tools.allow", "a", "b", {"tool": "t"}) == (["a", "b"], {"tool": "t"})
    assert bind("HookContext.note", {"a": 1}) == ([], {"a": 1})


def test_arguments_that_do_not_fit(subtests: pytest.Subtests) -> None:
    for given in (
        ("State.set", "k"),
        ("State.set",),
        ("State.set", ABSENT, 1),
        ("State.get", "k", 1, 2),
        ("State.set", "k", 1, {"nothing": 1}),
        ("State.list_keys", "a", {"prefix": "b"}),
        ("State.append",),
        ("Agents.create", "kind"),
        ("Thread.get", {"lazy": True}),
        ("Artifacts.register", b"", {"keep": False}),
    ):
        with case(subtests, given), pytest.raises(InvalidError, match="cannot be called with these arguments"):
            bind(*given)


def test_signatures_are_written_as_in_python() -> None:
    function = script_type("Thread").functions["get"]
    assert function.text == '(at: Revision = "HEAD", *, migrate: bool = True) -> Checkpoint'
    assert isinstance(function.signature, inspect.Signature)


def test_a_sandbox_loads_what_its_script_uses() -> None:
    code = """
import sys, holdfast
from holdfast.scripts import Sandbox
with holdfast.open("memory://") as store, Sandbox("lua", store) as sandbox:
    sandbox.run("store:thread('t'):put({a = 1})")
    assert "holdfast.agents.api.agents" not in sys.modules
    sandbox.run("store.agents:list()")
    assert "holdfast.agents.api.agents" in sys.modules
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
