"""Arguments a shell can complete from the store: threads, checkpoints, branches; agents; scopes, keys, sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.store.store import Store

_SECONDS = 3.0
"""How long somebody who pressed Tab is kept waiting for a store."""

_MANY = 200
_RECENT = 50


class _TookTooLong(Exception):
    """Nobody waits for this any longer."""


def from_store(session: CliContext, ask: Callable[[Store], Iterable[str]]) -> list[str]:
    """What a store says, or nothing: whoever presses Tab wants no error, and not to wait."""

    import signal

    import holdfast.store.opener  # noqa: F401 - loaded before the time runs: it is the store that is not waited for

    def give_up(*_: object) -> None:
        raise _TookTooLong

    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        return [name for name in ask(session.open()) if name.isprintable()]
    except Exception:  # noqa: BLE001 - there is nobody to tell, and nothing was asked for
        return []
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)


def branch_names(store: Store, thread: str) -> dict[int, str]:
    """The names of a thread's branches by their numbers. Reads nothing else of them."""
    from holdfast.backends.runtime.drivers import run
    from holdfast.engine.lines import MAIN
    from holdfast.engine.row_format import Line

    line = Line(store.tenant, thread)
    run(store._engine.lines.info(line))  # says so if there is no such thread
    others = {branch.branch: branch.name for branch in run(store._engine.lines.branches(line))}
    return {0: "" if MAIN.name in others.values() else MAIN.name, **others}


class _FromStore(click.ParamType[str]):
    """Text, for which the store knows what there is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        session = ctx.ensure_object(CliContext)
        # Where the last word is an option that waits for its value, click leaves all arguments as they are.
        first = str(ctx.params.get("thread") or ctx.params.get("scope") or next(iter(ctx.args), ""))
        found = from_store(session, lambda store: self.names(store, first, incomplete))
        return [CompletionItem(name) for name in dict.fromkeys(found) if name.startswith(incomplete)]

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:
        """What may stand here."""
        raise NotImplementedError


class ThreadNameType(_FromStore):
    """The name of a thread."""

    name = "thread"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [each.thread for each in store.threads(prefix=start, limit=_MANY)]


class BranchNameType(_FromStore):
    """The name of a branch of the thread that was named before it."""

    name = "branch"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [name for name in branch_names(store, thread).values() if name]


class TagNameType(_FromStore):
    """A tag in the thread that was named before it."""

    name = "tag"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.thread(thread).tags()


class LabelNameType(_FromStore):
    """A label in the thread that was named before it."""

    name = "label"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return store.thread(thread).labels()


class RevisionType(_FromStore):
    """A checkpoint of the thread that was named before it: `HEAD`, a branch, a tag, the start of an id, `HEAD~2`."""

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
    """A key of the scope that was named before it."""

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
"""Types for `click.argument` and `click.option`. The thread's parameter is called `thread`, that of a scope `scope`."""
