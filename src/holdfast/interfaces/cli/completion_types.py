"""Types of arguments that a shell completes from the store, and for which errors suggest similar names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.store import Store

_SECONDS = 3.0
"""The longest time that completion waits for a store."""

_MANY = 200
_RECENT = 50


class _StoreTimeout(Exception):
    """The store did not answer in time."""


def from_store(session: CliContext, read: Callable[[Store], Iterable[str]]) -> list[str]:
    """Read names from the store. Empty if that fails or takes long: completion reports no errors."""
    import signal

    from holdfast.store import open_existing  # noqa: F401 - loaded before the clock starts, which is for the store

    def give_up(*_: object) -> None:
        raise _StoreTimeout

    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        return [name for name in read(session.open()) if name.isprintable()]
    except Exception:  # noqa: BLE001 - completion reports no errors
        return []
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _first(context: click.Context) -> str:
    """Return the thread or the scope that was given before."""
    # Where the last word is an option without its value yet, click leaves all arguments as they are.
    return str(context.params.get("thread") or context.params.get("scope") or next(iter(context.args), ""))


class _FromStore(click.ParamType[str]):
    """A name that is in the store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        session = ctx.ensure_object(CliContext)
        found = from_store(session, self.candidates(_first(ctx), incomplete))
        return [CompletionItem(name) for name in dict.fromkeys(found) if name.startswith(incomplete)]

    def similar_names(self, context: click.Context, parameter: click.Parameter, message: str) -> list[str]:
        """Return names that are similar to the given one, if a message says that there is no such name."""
        from difflib import get_close_matches

        session, first = context.ensure_object(CliContext), _first(context)
        given = context.params.get(parameter.name or "")
        for name in given if isinstance(given, tuple) else (given,):
            if isinstance(name, str) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message):
                starts = (name[:1], "")
                names = [each for start in starts for each in from_store(session, self.candidates(first, start))]
                if name not in names:
                    return get_close_matches(name, dict.fromkeys(names), 3)
        return []

    def candidates(self, thread: str, start: str) -> Callable[[Store], Iterable[str]]:
        """Return a function that lists the names in a store."""
        return lambda store: self.names(store, thread, start)

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:
        """List the names, of a thread where they belong to one; at least those with this start."""
        raise NotImplementedError


class ThreadNameType(_FromStore):
    """The name of a thread."""

    name = "thread"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [each.thread for each in store.threads(prefix=start, limit=_MANY)]


class BranchNameType(_FromStore):
    """The name of a branch of the thread that precedes it."""

    name = "branch"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        from holdfast.store import branch_names

        return [name for name in branch_names(store.thread(thread)).values() if name]


class TagNameType(_FromStore):
    """A tag in the thread that precedes it."""

    name = "tag"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.thread(thread).tags()


class LabelNameType(_FromStore):
    """A label in the thread that precedes it."""

    name = "label"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.thread(thread).labels()


class RevisionType(_FromStore):
    """A checkpoint of the thread that precedes it: `HEAD`, a branch, a tag, the start of an id, `HEAD~2`."""

    name = "revision"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:
        yield "HEAD"
        yield from BranchNameType().names(store, thread, start)
        yield from store.thread(thread).tags()
        yield from (checkpoint.id for checkpoint in store.log(thread, limit=_RECENT))


class ScopeNameType(_FromStore):
    """A scope, as in `agent:researcher`."""

    name = "scope"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [str(each.scope) for each in store.scopes(start, limit=_MANY)]


class KeyNameType(_FromStore):
    """A key of the scope that precedes it."""

    name = "key"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:
        return store.state(thread).list_keys(start, limit=_MANY)


class SessionIdType(_FromStore):
    """The id of a session."""

    name = "id"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [each.id for each in store.sessions.list(limit=_MANY)]


class AgentIdType(_FromStore):
    """The id of an agent."""

    name = "id"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [each.id for each in store.agents.list(prefix=start, limit=_MANY)]


class GrantIdType(_FromStore):
    """The id of a grant."""

    name = "id"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [each.id for each in store.access.grants()]


class GroupNameType(_FromStore):
    """The name of a group of identities."""

    name = "group"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.access.groups()


class RoleNameType(_FromStore):
    """The name of a role."""

    name = "role"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.access.roles()


THREAD, BRANCH, REVISION = ThreadNameType(), BranchNameType(), RevisionType()
TAG, LABEL = TagNameType(), LabelNameType()
SCOPE, KEY, SESSION, GRANT, GROUP, ROLE = (
    ScopeNameType(),
    KeyNameType(),
    SessionIdType(),
    GrantIdType(),
    GroupNameType(),
    RoleNameType(),
)
AGENT = AgentIdType()
"""Types for `click.argument` and `click.option`. The parameter of a thread is `thread`, that of a scope `scope`."""
