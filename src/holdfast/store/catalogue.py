"""The catalogue of operations: those that a program can call by the name of a part of the store and of the operation.

It is read from the declarations at the operations. The remote store and its server, the OpenAPI document, the bindings
of scripts and the reference are made from it.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections import abc
from collections.abc import Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, get_type_hints

from holdfast._lazy import imported_names, load
from holdfast._named_tuple import NamedTuple
from holdfast.backends.runtime.drivers import Declaration, declaration_of, operations_of, parts_of
from holdfast.errors import UnsupportedError

_HANDLES = {
    "thread": ("holdfast.store.thread", "Thread", ("thread",)),
    "lazy_state": ("holdfast.store.lazy_state", "LazyState", ("thread", "checkpoint")),
    "state": ("holdfast.state.scope_state", "State", ("scope",)),
    "steps": ("holdfast.agents.steps.api", "Steps", ("id",)),
    "timers": ("holdfast.agents.steps.api", "Timers", ("id",)),
}
"""Parts that are found by names: the class, and what the names are."""


class StorePart(NamedTuple):
    """A part of a store that has operations, such as `store.audit`, or a thread."""

    name: str
    owner: type[Any]
    """The class that the store's owner uses."""
    identity: type[Any] | None
    """The class that an identity uses; None if only the owner has the part."""
    names: tuple[str, ...] = ()
    """What names lead to it, beside its own: a thread has one."""

    def operation(self, name: str) -> CataloguedOperation | None:
        """Return an operation by name; None if there is no such."""
        for kind in filter(None, (self.owner, self.identity)):
            declared = declaration_of(kind, name)
            if declared is not None:
                function = inspect.getattr_static(kind, name)
                has_identity = self.identity is not None and declaration_of(self.identity, name) is not None
                return CataloguedOperation(self, name, function.__wrapped__, declared, not has_identity)
        return None

    def operations(self) -> Iterator[CataloguedOperation]:
        """Yield the operations in the order of their names."""
        names = {*operations_of(self.owner), *(() if self.identity is None else operations_of(self.identity))}
        yield from filter(None, map(self.operation, sorted(names)))


class CataloguedOperation(NamedTuple):
    """An operation of a part of a store."""

    part: StorePart
    name: str
    function: Any
    """The coroutine function, which has the signature and the docstring."""
    declaration: Declaration
    owner_only: bool
    """Whether no identity can call it."""

    @property
    def rights(self) -> tuple[str, ...]:
        """The rights that an identity needs."""
        if self.owner_only:
            return ()
        usual = "write" if self.declaration.changes else "read"
        return (usual,) if self.declaration.rights is None else self.declaration.rights

    @property
    def has_dry_run(self) -> bool:
        """Whether it can say what it would change, and not change it."""
        return self.declaration.changes and "dry_run" in inspect.signature(self.function).parameters

    def reads(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these options changes nothing."""
        return not self.declaration.changes or (options.get("dry_run") is True and self.has_dry_run)


@cache
def store_parts() -> Mapping[str, StorePart]:
    """Return the parts of a store by name. `store` is the store itself."""
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

    found = {"store": StorePart("store", Store, IdentityView)}
    for name, (module, kind, names) in _HANDLES.items():
        handle = load(module, kind)
        found[name] = StorePart(name, handle, handle, names)
    of_identity = parts_of(IdentityView)
    for name, part in parts_of(Store).items():
        identity = of_identity[name].load_class() if name in of_identity else None
        found[name] = StorePart(name, part.load_class(), identity)
    return found


def catalogue() -> Iterator[CataloguedOperation]:
    """Yield all operations of all parts."""
    for part in store_parts().values():
        yield from part.operations()


def find_operation(part: str, name: str) -> CataloguedOperation | None:
    """Return an operation by the names of its part and its own; None if there is no such."""
    found = store_parts().get(part)
    return None if found is None else found.operation(name)


def resolve_annotation(annotation: Any, function: Any) -> Any:
    """Return the type that an annotation of an operation means. Raises `NameError` if it cannot be resolved."""
    return _evaluate(annotation, _Names(inspect.unwrap(function).__globals__))


class _Names(dict[str, Any]):
    """The names in annotations: those of a module, also those that it imports for type checkers only."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        declared = imported_names(self._module["__name__"]).get(name)
        found = self._module.get(name) or (load(*declared) if declared else None)
        found = found or next((getattr(each, name) for each in (abc, typing) if name in each.__all__), None)
        if found is None:
            raise KeyError(name)
        if isinstance(found, str):  # an alias that is written as text, with the names of its module
            return _evaluate(found, _Names(vars(sys.modules[declared[0]]) if declared else self._module))
        return found


def _evaluate(annotation: Any, names: _Names) -> Any:
    stub: Any = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(stub, {}, names)["it"]


def check_outside_arguments(operation: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a caller outside of this process, such as a script, that name files, keys or addresses, which
    would be opened here, or classes that are not known here."""
    if operation == "jobs.add" and _reaches_out(arguments["kind"]):
        what = f"a job of the type {str(arguments['kind'])[:40]!r} names files or addresses of the host"
    elif operation == "artifacts.register" and not isinstance(arguments["source"], bytes):
        what = "an artifact is registered with its bytes: files are the host's"
    elif operation == "redaction.reveal" and arguments.get("keys") is not None:
        what = "a store reveals with its own keys"
    elif operation == "steps.resolve" and not isinstance(arguments.get("error"), str | None):
        what = "the error of a step is text"
    else:
        return
    raise UnsupportedError(what, hint="Do it on the machine of the store")


def _reaches_out(kind: object) -> bool:
    from holdfast.maintenance.jobs.builtin import JobTypes  # with all that jobs do

    return JobTypes().reaches_out(kind)
