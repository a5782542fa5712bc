"""Calls of the Python API over HTTP, by which `holdfast.open("https://…")` is a store as any other.

The typed operations of the API are for programs in all languages and for browsers. A program in Python wants what the
library returns, of the same types: it names a part of the store, an operation and its arguments, and the server calls
just that, with the store as the caller may use it. `CALLS` has every operation that can be called. What is not in it
cannot: what takes or returns code, or a path or URL, which the server would open in the place of the caller.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from holdfast.codec import default_codec
from holdfast.errors import DeniedError, HoldfastError, InvalidError, UnsupportedError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.jobs import JobTypes
from holdfast.state import State
from holdfast.store import ARGUMENTS, CallCodec, branch_names, read_log_page, short_ids

CALLING = RouteTable()
_log = logging.getLogger("holdfast.http")


class PartCalls(NamedTuple):
    """The operations of a part of the store that can be called."""

    reads: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def _part(reads: str = "", changes: str = "") -> PartCalls:
    return PartCalls(tuple(reads.split()), tuple(changes.split()))


CALLS: Mapping[str, PartCalls] = {
    "store": _part(
        "capabilities changes get log metrics scopes search stats status threads grants granted",
        "put update delete grant revoke",
    ),
    "thread": _part(
        "blame branches diff expires get history holds info labels log owner pending_writes pins resolve tags"
        " branch_names read_log_page short_ids",
        "delete delete_branch expire fork hold label merge pin put release rename_branch restore switch tag unlabel"
        " unpin untag update",
    ),
    "lazy_state": _part("names value has outline keys_at length slice"),
    "state": _part(
        "at diff get_at history item list_items list_keys read_watch",
        "add_to_set append batch clear copy_to delete expire increment max move_to patch rollback set",
    ),
    "sessions": _part("archived get list", "collect delete end resume start touch update"),
    "artifacts": _part("changes get list of read verify", "delete register"),
    "agents": _part(
        "diff exists export history list load machine messages transfers transitions unsaved",
        "delete import_ prune_steps record_transition resolve rollback save_state signal transfer transfer_many",
    ),
    "steps": _part("get list signals", "resolve"),
    "timers": _part("list", "cancel set"),
    "hooks": _part("get history list statistics undelivered", "discard retry retry_failed"),
    "timeline": _part("causes effects query"),
    "access": _part(
        "assignments frozen grants groups may parents roles tokens",
        "allow_children assign cut_off define_role drop_role forbid_children freeze grant issue_token join leave revoke"
        " revoke_token set_owner unassign unfreeze",
    ),
    "audit": _part("query verify"),
    "keys": _part("check list", "cancel destroy reencrypt rotate"),
    "erasure": _part("certificates subject", "assign erase mark_mixed public_key unassign"),
    "maintenance": _part(
        "doctor heads holds quarantine quota verify",
        "build_index compact delete delete_stale drop_index hold project prune release set_quota sweep_orphans",
    ),
    "jobs": _part("due get list", "add pause remove resume run"),
    "alerts": _part("list", "silence"),
    "sensitive": _part("credentials reveal scan", "redact"),
}
"""The operations that can be called, by the part of the store that has them."""

_OWNED = frozenset({"hooks", "access", "audit", "keys", "maintenance", "jobs", "alerts"})
"""Parts that only the store's owner has."""

_CONFIRMED = (
    *((part, operation) for part in ("access", "keys", "erasure") for operation in CALLS[part].changes),
    ("store", "grant"),
    ("store", "revoke"),
    ("sensitive", "redact"),
)
"""Changes that a browser must confirm."""

_DRY_RUNS = frozenset(
    {
        ("thread", "delete_branch"),
        ("erasure", "erase"),
        ("maintenance", "delete"),
        ("maintenance", "delete_stale"),
        ("maintenance", "prune"),
        ("maintenance", "sweep_orphans"),
    }
)
"""Changes that read, and change nothing, with `dry_run`."""

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


_FUNCTIONS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("thread", "branch_names"): branch_names,
    ("thread", "read_log_page"): read_log_page,
    ("thread", "short_ids"): short_ids,
    ("state", "read_watch"): read_watch,
}
"""Operations that are functions, and not methods."""

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


def is_dry_run(part: str, operation: str, options: Mapping[str, Any]) -> bool:
    """Whether a call says what a change would do, and does not make it."""
    return options.get("dry_run") is True and (part, operation) in _DRY_RUNS


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
    """Call an operation of the Python API that reads."""
    dry = (part, operation) in _DRY_RUNS
    if operation not in CALLS.get(part, PartCalls()).reads and not dry:
        raise _not_callable(part, operation)
    return _call(call.acting_as(identity), part, operation, names or [], arguments or [], options or {}, dry=dry)


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
    if operation not in CALLS.get(part, PartCalls()).changes:
        raise _not_callable(part, operation)
    return _call(call.acting_as(identity), part, operation, names or [], arguments or [], options or {})


def _not_callable(part: str, operation: str) -> UnsupportedError:
    return UnsupportedError(f"{part[:40]}.{operation[:40]} cannot be called here", hint="Call it where the store is")


def _call(
    call: Call,
    part: str,
    operation: str,
    names: Sequence[Any],
    arguments: Sequence[Any],
    options: dict[str, Any],
    *,
    dry: bool = False,
) -> models.CallResultModel:
    """Call an operation; one that would change something only as a `dry` run."""
    given, values = _list(names, "names"), _list(arguments, "arguments")
    options = _CODEC.from_json(options)
    if type(options) is not dict:
        raise InvalidError("options are an object")
    if dry and not is_dry_run(part, operation, options):
        raise _not_callable(part, operation)
    if (part, operation) in _CONFIRMED and not is_dry_run(part, operation, options):
        call.require_confirmation()
    receiver = _receiver(call, part, given)
    values = [_received(call, each) for each in values]
    options = {name: _received(call, value) for name, value in options.items()}
    function: Any = getattr(receiver, operation, None)
    if (named := _FUNCTIONS.get((part, operation))) is not None:
        function = partial(named, receiver)
    if function is None and not call.caller.identity:
        raise _not_callable(part, operation)
    if function is None:
        raise DeniedError(
            f"{call.caller.identity} may not call {part}.{operation}: it is the store owner's",
            hint="Use a token of the store's owner",
        )
    if not callable(function):
        return models.CallResultModel(result=_CODEC.to_json(function))
    try:
        bound = inspect.signature(function).bind(*values, **options)
    except TypeError as error:
        raise InvalidError(f"the arguments of {part}.{operation} are wrong: {error}") from None
    try:
        _check_arguments(f"{part}.{operation}", bound.arguments)
        result = function(*values, **options)
    except HoldfastError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        _log.warning("a call failed: %s.%s", part, operation, exc_info=True)
        raise InvalidError(f"the arguments of {part}.{operation} are wrong: {type(error).__name__}") from error
    return models.CallResultModel(result=_CODEC.to_json(result))


def _check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that name files, keys or addresses, which the server would open, or classes that it lacks."""
    if name == "jobs.add" and JobTypes().reaches_out(arguments["kind"]):
        what = f"a job of the type {str(arguments['kind'])[:40]!r} cannot be added to a served store"
    elif name == "artifacts.register" and not isinstance(arguments["source"], bytes):
        what = "an artifact of a served store is registered with its bytes"
    elif name == "sensitive.reveal" and arguments.get("keys") is not None:
        what = "a served store reveals with its own keys"
    elif name == "steps.resolve" and not isinstance(arguments.get("error"), str | None):
        what = "the error of a step of a served store is text"
    else:
        return
    raise UnsupportedError(what, hint="Do it where the store is")


def _list(tree: Sequence[Any], what: str) -> list[Any]:
    found = _CODEC.from_json(tree)
    if type(found) is not list:
        raise InvalidError(f"{what} are a list")
    return found


def _receiver(call: Call, part: str, names: list[Any]) -> Any:
    """Return what has the operation, for the caller."""
    expected = {"thread": 1, "state": 1, "lazy_state": 2, "steps": 1, "timers": 1}.get(part, 0)
    if len(names) != expected or not all(isinstance(name, str) for name in names):
        raise InvalidError(f"{part} is named by {expected} texts")
    if part == "store":
        return call.store
    if part == "thread":
        return call.store.thread(names[0])
    if part == "state":
        return call.store.state(names[0])
    if part == "lazy_state":
        return call.store.thread(names[0]).get(names[1], lazy=True).state
    if part in ("steps", "timers"):
        return getattr(call.store.agents, part)(names[0])
    if part in _OWNED:
        return getattr(call.owned, part)
    return getattr(call.store, part)


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
