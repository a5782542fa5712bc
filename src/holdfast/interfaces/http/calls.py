"""Calls of the Python API over HTTP, by which `holdfast.open("https://…")` is a store as any other.

The typed operations of the API are for programs in all languages and for browsers. A program in Python wants what the
library returns, of the same types: it names a part of the store, an operation and its arguments, and the server calls
just that, with the store as the caller may use it. The catalogue has every operation, and says which cannot be called:
what takes or returns code, or a path or URL, which the server would open in the place of the caller.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from holdfast.codec import default_codec
from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.hooks.api import Hooks
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.state.scope_state import State
from holdfast.store.call_values import ARGUMENTS, CallCodec
from holdfast.store.catalogue import (
    CataloguedOperation,
    StorePart,
    check_outside_arguments,
    find_operation,
    store_parts,
)
from holdfast.store.log_reader import branch_names, read_log_page, short_ids

CALLING = RouteTable()
_log = logging.getLogger("holdfast.http")


_WATCHED = ("key", "action", "before", "version", "value", "time", "actor", "correlation", "cause", "id")


def read_watch(
    state: State, pattern: str, cursor: str | None, nested: bool
) -> tuple[list[tuple[dict[str, Any], str]], str]:
    """Read what changed in a scope after a cursor: the fields of each change with the cursor after it, and the cursor
    after all. Without a cursor, nothing: the watch begins here."""
    watch = state.watch(pattern, cursor=cursor, nested=nested)
    if cursor is None:
        watch.start()
        return [], watch.cursor
    found = [({name: getattr(each, name) for name in _WATCHED}, each) for each in watch.poll()]
    return [({**fields, "scope": str(each.scope)}, each.cursor) for fields, each in found], watch.cursor


FUNCTIONS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "thread": {"branch_names": branch_names, "read_log_page": read_log_page, "short_ids": short_ids},
    "state": {"read_watch": read_watch},
    "hooks": {"list": Hooks.list},
}
"""Functions that read and are no operations, by the part that they are called with: a remote store needs them."""

_Items = Annotated[list[Any], msgspec.Meta(description="In the form of `Codec.to_json`.")]
_Names = Annotated[list[Any], msgspec.Meta(description="Of a thread, its name; of a state, the text of its scope.")]
_Options = Annotated[dict[str, Any] | None, msgspec.Meta(description="In the form of `Codec.to_json`.")]
_ActingAs = Annotated[
    str,
    msgspec.Meta(description="For the store's owner: the identity to act as; empty for who makes the call."),
]

_STATE_KEY = "holdfast:state"
_VALUE_KEY = "holdfast:value"
_CODEC = CallCodec(default_codec, ARGUMENTS)


def is_read(part: str, operation: str, options: Mapping[str, Any]) -> bool:
    """Whether a call changes nothing: it reads, or says what a change would do."""
    found = find_operation(part, operation)
    return found is None or found.reads(options)


@CALLING.post("/reads/{part}/{operation}", status=200, reads=True)
def call_read(
    call: Call,
    part: str,
    operation: str,
    *,
    names: _Names | None = None,
    arguments: _Items | None = None,
    options: _Options = None,
    identity: _ActingAs = "",
) -> models.CallResultModel:
    """Call an operation of the Python API that reads, or, with `dry_run`, one that says what it would change."""
    found = CalledOperation.find(part, operation)
    return found.call(call.acting_as(identity), names or [], arguments or [], options or {}, reads=True)


@CALLING.post("/changes/{part}/{operation}", status=200)
def call_change(
    call: Call,
    part: str,
    operation: str,
    *,
    names: _Names | None = None,
    arguments: _Items | None = None,
    options: _Options = None,
    identity: _ActingAs = "",
) -> models.CallResultModel:
    """Call an operation of the Python API that changes something. Conditions are among its arguments."""
    if call.if_match:
        raise InvalidError("If-Match has no effect here", hint="Give the condition as an argument of the operation")
    found = CalledOperation.find(part, operation)
    return found.call(call.acting_as(identity), names or [], arguments or [], options or {}, reads=False)


class CalledOperation(NamedTuple):
    """An operation or function that a request names."""

    part: StorePart
    name: str
    operation: CataloguedOperation | None
    """None for a function of `FUNCTIONS`."""

    @classmethod
    def find(cls, part: str, name: str) -> CalledOperation:
        """Return an operation that can be called. Raises `UnsupportedError`."""
        known = store_parts().get(part)
        if known is not None:
            found = known.operation(name)
            if name in FUNCTIONS.get(part, ()) or (found is not None and not found.declaration.not_remote):
                return cls(known, name, found)
        raise _not_callable(f"{part[:40]}.{name[:40]}")

    def call(
        self, call: Call, names: Sequence[Any], arguments: Sequence[Any], options: dict[str, Any], *, reads: bool
    ) -> models.CallResultModel:
        """Call it, either as one that reads or as one that changes something."""
        place = f"{self.part.name}.{self.name}"
        given, values = _list(names, "names"), _list(arguments, "arguments")
        options = _CODEC.from_json(options)
        if type(options) is not dict:
            raise InvalidError("options must be an object")
        changes = self.operation is not None and not self.operation.reads(options)
        if reads is changes:
            raise _not_callable(place)
        if changes and self.operation is not None and self.operation.declaration.confirm:
            call.require_confirmation()
        is_owners = self.operation is not None and self.operation.owner_only
        receiver = find_receiver(call, self.part, given, owner_only=is_owners)
        values = [_received(call, each) for each in values]
        options = {name: _received(call, value) for name, value in options.items()}
        if self.operation is None:
            called: Any = partial(FUNCTIONS[self.part.name][self.name], receiver)
        else:
            called = getattr(receiver, self.name, None)
        if called is None:  # only an identity has it
            raise _not_callable(place)
        try:
            bound = inspect.signature(called).bind(*values, **options)
        except TypeError as error:
            raise InvalidError(f"the arguments of {place} are wrong: {error}") from None
        try:
            check_outside_arguments(place, bound.arguments)
            result = called(*values, **options)
        except HoldfastError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            _log.warning("a call failed: %s", place, exc_info=True)
            raise InvalidError(f"the arguments of {place} are wrong: {type(error).__name__}") from error
        return models.CallResultModel(result=_CODEC.to_json(result))


def _not_callable(place: str) -> UnsupportedError:
    return UnsupportedError(f"{place} cannot be called here", hint="Call it on the machine of the store")


def _list(tree: Sequence[Any], what: str) -> list[Any]:
    found = _CODEC.from_json(tree)
    if type(found) is not list:
        raise InvalidError(f"{what} must be a list")
    return found


def find_receiver(call: Call, part: StorePart, names: Sequence[Any], *, owner_only: bool) -> Any:
    """Return what has the operations of a part, for the caller. Refuses identities what is the owner's."""
    if len(names) != len(part.names) or not all(isinstance(name, str) for name in names):
        raise InvalidError(f"{part.name} needs {len(part.names)} names")
    view = call.owned if owner_only or part.identity is None else call.store
    if part.name == "store":
        return view
    if part.name in ("thread", "state"):
        return getattr(view, part.name)(names[0])
    if part.name == "lazy_state":
        return view.thread(names[0]).get(names[1], lazy=True).state
    return getattr(view.agents, part.name)(names[0]) if names else getattr(view, part.name)


def sent_state(scope: str) -> dict[str, str]:
    """Return the state of a scope as it is sent as an argument."""
    return {_STATE_KEY: scope}


def sent_value(value: Any) -> Any:
    """Return a value as it is sent as an argument: one that looks like the state of a scope is wrapped."""
    return {_VALUE_KEY: value} if type(value) is dict and value.keys() <= {_STATE_KEY, _VALUE_KEY} and value else value


def _received(call: Call, value: Any) -> Any:
    """Return an argument as it was before it was sent."""
    if type(value) is not dict or len(value) != 1:
        return value
    if _STATE_KEY in value:
        return call.store.state(value[_STATE_KEY])
    return value.get(_VALUE_KEY, value)
