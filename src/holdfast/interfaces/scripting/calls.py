"""Calls of scripts: an object of the API by its path, its function, and the arguments, checked against the table."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from re import Pattern
from typing import Any

from holdfast.codec import default_codec
from holdfast.engine.model.missing import MISSING
from holdfast.errors import DeniedError, InvalidError, NotFoundError, ScriptError, TooLargeError, UnsupportedError
from holdfast.interfaces.scripting.functions import (
    ABSENT,
    ScriptFunction,
    ScriptType,
    excluded_names,
    script_type,
    type_name_of,
    type_names,
)
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.interfaces.scripting.replay import Replay
from holdfast.interfaces.scripting.values import RECORDS, Decoder, Encoder, field_names
from holdfast.store.catalogue import check_outside_arguments
from holdfast.time_parser import parse_seconds


def read_value(known: ScriptType, found: Any, name: str) -> Any:
    """Return a property of an object, or a field of an agent."""
    if name in known.properties:
        return getattr(found, name)
    if known.name in RECORDS and name in field_names(type(found)):
        return MISSING  # a field with a value came with the record
    fields = _read_fields(known, found)
    if name not in fields:
        raise unknown_name_error(known, name, fields)
    return fields[name]


def write_value(known: ScriptType, found: Any, name: str, values: list[Any]) -> None:
    """Set a field of an agent to a value; or make the changes that a script made to its copy of a field or a live
    property: `values` are the copy before and after them."""
    if not known.live:
        raise InvalidError(f"{name[:40]!r} of {known.name} cannot be set", hint="Call its functions")
    if len(values) not in (1, 2) or ABSENT in values:
        raise InvalidError(f"{name[:40]!r} of {known.name} is set to a value", hint="Use null for None")
    persister = found.persister
    with persister.lock:
        if name in known.live and len(values) == 2:
            _merge(getattr(found, name), *values)
        else:
            fields = _read_fields(known, found)
            if name in (*known.properties, *known.functions, *known.members):
                raise InvalidError(
                    f"{name!r} of {known.name} cannot be set",
                    hint=f"Change its entries: {name}.entry = …" if name in known.live else "Call its functions",
                )
            if name not in fields and name not in persister.spec.fields:
                raise unknown_name_error(known, name, fields)
            fields[name] = values[0] if len(values) == 1 else _merge(fields.get(name), *values)
            persister.spec.set_field(persister.agent, name, fields)
    persister.mark_changed()


def unknown_name_error(known: ScriptType, name: str, fields: dict[str, Any] | None = None) -> UnsupportedError:
    """Return the error for a name that an object does not have in scripts: it says why, or which name is nearest."""
    names = [*known.functions, *known.members, *known.properties, *(fields or ())]
    near = get_close_matches(name[:80], names, 1)
    reason = excluded_names(known.name).get(name) or (f"The nearest is {near[0]!r}" if near else "")
    return UnsupportedError(f"{known.name} has no {name[:40]!r} in scripts", hint=reason)


def _read_fields(known: ScriptType, found: Any) -> dict[str, Any]:
    """Return the fields of an agent; of other objects, none."""
    if not known.live:
        return {}
    fields: dict[str, Any] = found.persister.spec.persist(found.persister.agent)
    return fields


def _merge(live: Any, before: Any, after: Any) -> Any:
    """Make the changes between two copies to the live value, as far as it can be changed, and return the result. What
    did not change stays as it is: objects that scripts cannot make, and what the host changed meanwhile."""
    if _is_same(before, after):
        return live
    if type(before) is dict and type(after) is dict and isinstance(live, dict):
        for key in before.keys() - after.keys():
            live.pop(key, None)
        for key, value in after.items():
            if key not in before or not _is_same(before[key], value):
                live[key] = _merge(live.get(key), before.get(key), value)
        return live
    if type(before) is list and type(after) is list and isinstance(live, list) and len(live) == len(before):
        common = min(len(before), len(after))
        live[:common] = [_merge(*each) for each in zip(live[:common], before, after, strict=False)]
        live[common:] = after[common:]
        return live
    return after


def _is_same(one: Any, other: Any) -> bool:
    return default_codec.pack(one) == default_codec.pack(other)


MAX_OBJECTS = 1000
"""How many objects of a sandbox are remembered: transactions, agents, differences. The oldest are forgotten."""

MAX_LIMIT = 10_000
"""How many items a page of a script has at most: the host holds them all."""

_MAX_STEPS = 8
_MAX_KEY = 1000
"""How long a path may be that is remembered: all of them together are to stay small."""
_MAX_FUNCTIONS = 10_000
_MAX_NAME = 80

FunctionOf = Callable[[int, str], Callable[..., Any]]


class Calls:
    """Executes the calls of one sandbox on its store."""

    def __init__(self, store: Any, function_of: FunctionOf, backups: Mapping[str, Any], replay: Replay) -> None:
        self._store = store
        self._backups = backups
        self._modules = {"replay": replay}
        self._objects: OrderedDict[int, Any] = OrderedDict()
        self._numbers: dict[int, int] = {}
        self._handles: dict[str, Any] = {}
        """Objects by their path from the store. They have no state of their own."""
        self._last = 0
        self._function_of = function_of
        self._functions: dict[int, Callable[..., Any]] = {}
        self._new_functions: list[int] = []
        self._decoder = Decoder(self)
        self.registered: list[tuple[Any, Any]] = []
        """The hooks that the script registered, each with the hooks it is one of."""

    @property
    def root(self) -> str:
        """The type of the store."""
        return type_name_of(type(self._store))

    def execute(self, message: Any, seconds: float) -> Any:
        """Execute a call, and return its result as JSON. What waits in it waits no longer than so many seconds."""
        if not (type(message) is list and len(message) == 3 and type(message[1]) is str and type(message[2]) is list):
            raise InvalidError("this is not a call")
        target, name, arguments = message
        if target == "?":
            if name not in OBJECT_TYPES:
                raise InvalidError("there is no such type", where=name[:40])
            return type_names(name)
        outer, self._new_functions = self._new_functions, []
        try:
            return self.encode(self._call(self.resolve(target), name, arguments, seconds))
        finally:
            if name != "()":  # a function lasts as long as the call that it is an argument of, unless it is a hook
                for number in self._new_functions:
                    self._functions.pop(number, None)
            self._new_functions = outer

    def encode(self, value: Any) -> Any:
        """Convert a value for the script."""
        return Encoder(self).encode(value)

    def decode(self, tree: Any) -> Any:
        """Convert a value of the script."""
        return self._decoder.decode(tree)

    # Objects ------------------------------------------------------------------------------------------------------

    def add(self, value: object) -> int:
        """Return the number of an object, which stays valid until many others were added."""
        number = self._numbers.get(id(value))
        if number is None:
            self._last += 1
            number = self._last
            self._objects[number], self._numbers[id(value)] = value, number
            if len(self._objects) > MAX_OBJECTS:
                _, oldest = self._objects.popitem(last=False)
                del self._numbers[id(oldest)]
        return number

    def get(self, number: int | str) -> Any:
        """Return an object by its number; 0 is the store. A module has its name in place of a number."""
        if number == 0:
            return self._store
        if type(number) is str and number in self._modules:
            return self._modules[number]
        if type(number) is not int or number not in self._objects:
            raise NotFoundError("this object is no longer available", hint="Ask for it again")
        self._objects.move_to_end(number)
        return self._objects[number]

    def forget(self, value: object) -> None:
        """Make an object unavailable to the script."""
        number = self._numbers.pop(id(value), None)
        if number is not None:
            del self._objects[number]

    def function(self, number: int, name: str) -> Callable[..., Any]:
        """Return a function of the script: the same object each time, so that a hook can be removed by it."""
        found = self._functions.get(number)
        if found is None:
            if len(self._functions) >= _MAX_FUNCTIONS:
                raise TooLargeError(f"a script gives its host at most {_MAX_FUNCTIONS} functions")
            found = self._functions[number] = self._function_of(number, name[:_MAX_NAME])
            self._new_functions.append(number)
        return found

    def resolve(self, target: Any) -> Any:
        """Return the object that a path names: an object by its number, and functions of it that return others."""
        try:
            number, steps = target
            steps = [(name, arguments) for name, arguments in steps]
        except (TypeError, ValueError):
            raise InvalidError("this is not an object of the API", where=repr(target)[:80]) from None
        if len(steps) > _MAX_STEPS:
            raise InvalidError("this is not an object of the API", where=repr(target)[:80])
        if number == 0 and steps:
            key = repr(steps)
            if len(key) > _MAX_KEY:
                return self._walk(self._store, steps)
            if key not in self._handles:
                if len(self._handles) >= MAX_OBJECTS:
                    self._handles.clear()
                self._handles[key] = self._walk(self._store, steps)
            return self._handles[key]
        return self._walk(self.get(number), steps)

    def _walk(self, found: Any, steps: list[tuple[Any, Any]]) -> Any:
        for name, arguments in steps:
            member = self._type(found).members.get(name) if type(name) is str else None
            if member is None:
                raise InvalidError("this is not an object of the API", where=repr(name)[:80])
            _, function = member
            value = self._find_backups if name == "backups" else getattr(found, name)
            found = value if function is None else self._apply(value, function, arguments)
        return found

    def _find_backups(self, repository: object) -> Any:
        """Return the backups in a repository that the host named: a script reaches no other."""
        found = self._backups.get(repository) if isinstance(repository, str) else None
        if found is None:
            raise DeniedError(
                "the script was given no repository of this name",
                where=f"repository {str(repository)[:80]!r}",
                hint=f"It has {', '.join(map(repr, self._backups)) or 'none'}; the host names them by `backups`",
            )
        return found

    # Functions ----------------------------------------------------------------------------------------------------

    def _call(self, found: Any, name: str, arguments: list[Any], seconds: float) -> Any:
        if name == "()":
            return self._register(found, arguments)
        known = self._type(found)
        if name.startswith("."):
            return read_value(known, found, name[1:])
        if name.startswith("="):
            return write_value(known, found, name[1:], [self.decode(each) for each in arguments])
        function = known.functions.get(name)
        if function is None:
            raise unknown_name_error(known, name)
        adapter = function.adapter
        called = partial(adapter, found) if adapter else getattr(found, name)
        return self._apply(called, function, arguments, f"{known.name}.{name}", seconds)

    def _apply(
        self,
        called: Callable[..., Any],
        function: ScriptFunction,
        arguments: list[Any],
        name: str = "",
        seconds: float = 0.0,
    ) -> Any:
        """Call a function, which is given so many seconds. `name` has the type in front: `Jobs.add`."""
        values, options = function.bind([self.decode(each) for each in arguments])
        check_outside_arguments(name.lower(), options)
        _check_options(options)
        if "timeout" in function.signature.parameters and name not in _NOT_WAITING:
            timeout = options.get("timeout", function.signature.parameters["timeout"].default)
            most = max(seconds, 0.0)
            is_endless = timeout is None or timeout == math.inf
            options["timeout"] = most if is_endless else min(parse_seconds(timeout), most)
        if "progress" in function.options:
            options["progress"] = _Deadline(seconds, options.get("progress"))
        return called(*values, **options)

    def _register(self, found: Any, arguments: list[Any]) -> None:
        """Register a hook: what `before` and `after` return is called with a function of the script."""
        values = [self.decode(each) for each in arguments]
        if type_name_of(type(found)) or not callable(found) or len(values) != 1 or not callable(values[0]):
            raise InvalidError("a hook is registered with one function")
        if len(self.registered) >= MAX_OBJECTS:
            raise TooLargeError(f"a script registers at most {MAX_OBJECTS} hooks")
        found(values[0])
        self.registered.append((self._store.hooks, values[0]))

    @staticmethod
    def _type(found: Any) -> ScriptType:
        name = type_name_of(type(found))
        if not name:
            raise InvalidError("this is not an object of the API")
        return script_type(name)


class _Deadline:
    """Reports the progress of long work to a script, and ends the work when the time of the script has ended."""

    def __init__(self, seconds: float, report: Callable[..., Any] | None) -> None:
        self._end = time.monotonic() + seconds
        self._report = report

    def __call__(self, *progress: Any) -> None:
        if time.monotonic() > self._end:
            raise ScriptError(
                "the time of the script ended before the work did",
                hint="Do less at a time, raise timeout, or add a job that does it",
                code="script-timeout",
            )
        if self._report is not None:
            self._report(*progress)


_NOT_WAITING = ("Requests.ask",)
"""Functions whose `timeout` is not how long they wait."""


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments by which a script could occupy the host."""
    limit = options.get("limit")
    if type(limit) is int and limit > MAX_LIMIT:
        raise TooLargeError(f"the limit of a script must be at most {MAX_LIMIT}, not {limit}", hint="Read page by page")
    if isinstance(options.get("text"), Pattern):
        raise UnsupportedError("a script searches for text: an expression could keep the host busy")
