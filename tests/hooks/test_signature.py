"""A function that cannot be called as a hook is refused when it is registered, and the error shows how it should be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import InvalidError
from holdfast.hooks import AddAuditFields, HookContext, InvalidateCache
from tests.hooks.kit import store


class Methods:
    def one(self, call: HookContext) -> None: ...
    def two(self, call: HookContext, more: int) -> None: ...
    @staticmethod
    def none() -> None: ...
    @classmethod
    def of_class(cls, call: HookContext) -> None: ...
    async def awaited(self, call: HookContext) -> None: ...


class Callable1:
    def __call__(self, call: HookContext) -> None: ...


class Callable2:
    async def __call__(self, call: HookContext, more: int) -> None: ...


def one(call: Any) -> None: ...
def two(call: HookContext, more: int) -> None: ...
def none() -> None: ...
def default(call: HookContext, more: int = 0, *, flag: bool = False) -> None: ...
def keyword(call: HookContext, *, flag: bool) -> None: ...
def several(*args: Any, **options: Any) -> None: ...
def only_keywords(**options: Any) -> None: ...
async def awaited(call: HookContext) -> None: ...
async def awaited_two(call: HookContext, more: int) -> None: ...


def adds_an_argument(function: Callable[..., Any]) -> Callable[[HookContext], Any]:
    @functools.wraps(function)
    def wrapper(call: HookContext) -> Any:
        return function(call, 1)

    return wrapper


ACCEPTED: dict[str, Callable[..., Any]] = {
    "function": one,
    "lambda": lambda call: None,
    "defaults": default,
    "*args": several,
    "method": Methods().one,
    "class method": Methods.of_class,
    "partial by keyword": functools.partial(two, more=1),
    "partial of a keyword-only parameter": functools.partial(keyword, flag=True),
    "partial by position": functools.partial(several, 1),
    "nested partial": functools.partial(functools.partial(default, more=1), flag=True),
    "async function": awaited,
    "async method": Methods().awaited,
    "partial of an async function": functools.partial(awaited_two, more=1),
    "callable object": Callable1(),
    "class": list,
    "wrapper that adds an argument": adds_an_argument(two),
    "builtin without a signature": dict,
    "partial of a builtin without a signature": functools.partial(dict, a=1),
}

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "no parameter": (none, "too many positional arguments"),
    "two required parameters": (two, "'more'"),
    "required keyword": (keyword, "'flag'"),
    "only keywords": (only_keywords, "too many positional arguments"),
    "lambda": (lambda: None, "too many positional arguments"),
    "method": (Methods().two, "'more'"),
    "function that needs self": (Methods.one, "'call'"),
    "static method": (Methods.none, "too many positional arguments"),
    "callable object": (Callable2(), "'more'"),
    "async function": (awaited_two, "'more'"),
    "partial with too few": (functools.partial(two), "'more'"),
    "partial with the context already given": (functools.partial(one, call=None), "too many positional arguments"),
    "partial with a misspelt keyword": (functools.partial(two, mroe=1), "arguments of the partial"),  # type: ignore[call-arg]
    "partial with too many": (functools.partial(one, 1, 2, 3), "arguments of the partial"),  # type: ignore[call-arg]
}


def test_function_that_takes_the_context_is_accepted(subtests: pytest.Subtests) -> None:
    held = store()
    for number, (what, function) in enumerate(ACCEPTED.items()):
        with subtests.test(what):
            held.hooks.before("state.set", name=f"before {number}")(function)
            held.hooks.after("state.set", name=f"after {number}")(function)
    assert len(held.hooks.list()) == 2 * len(ACCEPTED)
    held.close()


def test_function_that_cannot_be_called_is_refused_with_the_expected_signature(subtests: pytest.Subtests) -> None:
    held = store()
    for what, (function, problem) in REFUSED.items():
        for register in (held.hooks.before, held.hooks.after):
            with subtests.test(what, phase=register.__name__):
                with pytest.raises(InvalidError) as caught:
                    register("state.set", name="mine")(function)
                assert problem in caught.value.what
                assert "(call: HookContext)" in caught.value.hint
                assert caught.value.where.startswith("mine(")
    assert held.hooks.list() == []
    held.state()["k"] = 1
    held.close()


def test_object_of_a_built_in_hook_is_checked_too() -> None:
    class Own:
        phase, inline, wants_value = "before", True, False

        def __call__(self) -> None: ...

    held = store()
    with pytest.raises(InvalidError, match=r"\(call: HookContext\)"):
        held.hooks.add(Own(), "state.set")  # type: ignore[arg-type]
    held.close()


def test_functions_of_built_in_hooks_are_checked() -> None:
    with pytest.raises(InvalidError, match=r"\(call: HookContext\)"):
        AddAuditFields(none)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"\(scope: str, key: str\)"):
        InvalidateCache(lambda scope: None)  # type: ignore[arg-type, misc]
    AddAuditFields(lambda call: {})
    InvalidateCache(lambda scope, key: None)
