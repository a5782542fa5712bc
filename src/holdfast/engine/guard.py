"""Guards check whether an identity may read or write the state of scopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError

if TYPE_CHECKING:
    from holdfast.engine.claims import Claim
    from holdfast.engine.context import EngineContext

T = TypeVar("T")

Action: TypeAlias = Literal["read", "write"]

Preconditions: TypeAlias = Callable[[bool], Awaitable[Sequence[Change]]]
"""Returns conditions of a change. Called at every attempt, with whether an earlier one has failed."""


def both_preconditions(one: Preconditions | None, other: Preconditions | None) -> Preconditions | None:
    """Combine two sets of conditions."""
    if one is None or other is None:
        return one or other

    async def guards(again: bool) -> list[Change]:
        return [*await one(again), *await other(again)]

    return guards


Visible: TypeAlias = Callable[[Sequence[Line]], Awaitable[Set[Line]]]
"""Returns those of some lines that may be read. Of the others nothing is listed or counted."""


async def filter_visible(visible: Visible | None, items: Sequence[T], line_of: Callable[[T], Line]) -> list[T]:
    """Return the items whose lines may be read; all, without a filter."""
    if visible is None:
        return list(items)
    lines = await visible(list(dict.fromkeys(map(line_of, items))))
    return [each for each in items if line_of(each) in lines]


class Permit(NamedTuple):
    """Permission to do something, as long as some conditions hold."""

    guards: Preconditions | None = None


UNCONDITIONAL = Permit()


class Guard:
    """Allows everything: the guard of the store's owner, who has no identity."""

    actor = ""
    """The name of the identity in events."""

    def scope(self, parts: Mapping[str, str | None] | Scope | str) -> Scope:
        """Return the scope that a caller names by its parts or its text. `InvalidError` if it is not one."""
        if isinstance(parts, Scope):
            return parts
        return Scope.of(**parts) if isinstance(parts, Mapping) else Scope.parse(parts)

    def key(self, where: Scope | str, text: object, what: str = "key") -> str:  # noqa: ARG002
        """Return the normal form of a key in a scope, or of another id. `InvalidError` if it is not valid."""
        return check_key(text, what)

    async def allow(self, action: Action, scope: Scope, keys: Sequence[str]) -> Permit:  # noqa: ARG002
        """Permit an action on these keys of a scope, or on the whole scope if there are none.

        `DeniedError` if it is not allowed; the attempt is recorded.
        """
        return UNCONDITIONAL

    async def allow_named(self, action: Action, scope: Scope, keys: Sequence[str], name: str) -> Permit:
        """Permit an action, by a name: the error reveals neither where the thing is nor whether it exists."""
        try:
            return await self.allow(action, scope, keys)
        except DeniedError as error:
            denied = error
        # Outside the except block, or the original error would be its context.
        raise DeniedError(denied.what, where=name, hint=denied.hint, code=denied.code)

    async def allow_change(self, scope: Scope, keys: Sequence[str]) -> None:
        """Permit a change that needs no right to write, such as that of a cursor of one's own. `DeniedError` if the
        handle only reads; the attempt is recorded."""

    async def require_active(self, action: str) -> None:
        """Raise `DeniedError` if the identity is frozen; the attempt is recorded."""

    async def visible(self, scopes: Sequence[Scope]) -> list[Scope]:
        """Return those of some scopes that may be read as a whole. Nothing is recorded."""
        return list(scopes)

    async def readable(self, keys: Sequence[tuple[Scope, str]]) -> list[tuple[Scope, str]]:
        """Return those of some keys that may be read; an empty key stands for the whole scope. Nothing is recorded."""
        return list(keys)

    async def allow_thread(
        self,
        right: str,  # noqa: ARG002
        line: Line,  # noqa: ARG002
        *,
        creates: bool = False,  # noqa: ARG002
        removes: bool = False,  # noqa: ARG002
    ) -> Permit:
        """Permit an action on a thread, or on a namespace of one, by the right that it needs. It may create the thread,
        or remove it as a whole.

        For who has no right to it, a thread does not exist: `NotFoundError`, as if it did not. An action that creates
        a thread is refused with `DeniedError`, since the name is not free. The attempt is recorded.
        """
        return UNCONDITIONAL

    async def saw_thread(self, line: Line) -> None:
        """Record that a thread was read, where reads are recorded. Raises if it is not allowed any more."""

    async def visible_threads(self, lines: Sequence[Line]) -> set[Line]:
        """Return those of some lines of threads that may be read. Nothing is recorded."""
        return set(lines)

    async def saw(self, scope: Scope, keys: Sequence[str]) -> None:
        """Record that keys were read, where reads are recorded. `DeniedError` if it is not allowed any more."""


# Acting under a permit ------------------------------------------------------------------------------------------

# A handle of an identity sets its authority for each of its operations on a thread, after the guard has permitted it.
# Whatever the operation saves or changes of a thread then has the conditions of the permit, however deep it is done.


class Authority(NamedTuple):
    """Who makes changes of threads, and on which conditions."""

    actor: str = ""
    """The identity; empty for the store's owner."""
    preconditions: Preconditions | None = None
    """The conditions of the permit."""
    claim: Claim | None = None
    """The claim of the run that makes them."""

    def conditions(self, context: EngineContext, line: Line) -> Preconditions | None:
        """Return the conditions of a change of a thread: those of the permit, and of the claim."""
        return both_preconditions(self.preconditions, self.conditions_of_run(context, line))

    def conditions_of_run(self, context: EngineContext, line: Line) -> Preconditions | None:
        """Return the condition of all that a run stores; None outside of a run, and for another store."""
        return self.claim.conditions if self.claim is not None and self.claim.covers(context, line) else None


OWNER = Authority()
"""The authority of the store's owner: it is subject to no condition."""

_current: ContextVar[Authority] = ContextVar("holdfast_authority", default=OWNER)


def current_authority() -> Authority:
    """Return the authority of changes that are made now."""
    return _current.get()


def enter_owner() -> None:
    """Make changes in this context as the store's owner from now on: for the context of a hook, which is its code."""
    _current.set(OWNER)


@contextmanager
def acting(authority: Authority) -> Iterator[None]:
    """Make changes in this block under an authority. What a run does stays under its claim."""
    claim = _current.get().claim
    token = _current.set(authority if claim is None or authority.claim else authority._replace(claim=claim))
    try:
        yield
    finally:
        _current.reset(token)
