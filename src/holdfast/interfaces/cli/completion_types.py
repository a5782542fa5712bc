"""Types of arguments that a shell completes from the store, and for which errors suggest similar names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext
from holdfast.interfaces.cli.formatting import near

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.store.store import Store

_SECONDS = 3.0
"""The longest time that completion waits for a store."""

_MANY = 200
_RECENT = 50


class _StoreTimeout(Exception):
    """The store did not answer in time."""


def from_store(session: CliContext, read: Callable[[Store], Iterable[str]]) -> list[str]:
    """Read names from the store. Empty if that fails or takes long: completion reports no errors."""
    import signal

    from holdfast.store.opener import open_existing  # noqa: F401 - loaded before the clock starts, which is for the store

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


class StoredNameType(click.ParamType[str]):
    """A name that is in the store. `read` lists such names, of a thread or scope where they belong to one; at least
    those with a start."""

    def __init__(self, name: str, read: Callable[[Store, str, str], Iterable[str]]) -> None:
        self.name = name
        self.names = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        session = ctx.ensure_object(CliContext)
        found = self._names(session, _first(ctx), incomplete)
        return [CompletionItem(name) for name in dict.fromkeys(found) if name.startswith(incomplete)]

    def similar_names(self, context: click.Context, parameter: click.Parameter, message: str) -> list[str]:
        """Return names that are similar to the given one, if a message says that there is no such name."""
        session, first = context.ensure_object(CliContext), _first(context)
        given = context.params.get(parameter.name or "")
        for name in given if isinstance(given, tuple) else (given,):
            if isinstance(name, str) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message):
                names = [each for start in (name[:1], "") for each in self._names(session, first, start)]
                # Of a revision such as draft~2, the name may be right, and the rest is what is wrong.
                if name not in names and re.split(r"[~^@#]", name)[0] not in names:
                    return near(name, dict.fromkeys(names))
        return []

    def _names(self, session: CliContext, thread: str, start: str) -> list[str]:
        return from_store(session, lambda store: self.names(store, thread, start))


def _branches(store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG001
    from holdfast.store.log_reader import branch_names

    return [name for name in branch_names(store.thread(thread)).values() if name]


def _revisions(store: Store, thread: str, start: str) -> Iterable[str]:
    yield "HEAD"
    yield from _branches(store, thread, start)
    yield from store.thread(thread).tags()
    yield from (checkpoint.id for checkpoint in store.thread(thread).log(limit=_RECENT))


def _threads(store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG001
    return [each.thread for each in store.threads(prefix=start, limit=_MANY)]


def _scopes(store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG001
    return [str(each.scope) for each in store.scopes(start, limit=_MANY)]


def _keys(store: Store, scope: str, start: str) -> Iterable[str]:
    return store.state(scope).list_keys(start, limit=_MANY)


def _agents(store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG001
    return [each.id for each in store.agents.list(prefix=start, limit=_MANY)]


THREAD = StoredNameType("thread", _threads)
BRANCH = StoredNameType("branch", _branches)
REVISION = StoredNameType("revision", _revisions)
TAG = StoredNameType("tag", lambda store, thread, _: store.thread(thread).tags())
LABEL = StoredNameType("label", lambda store, thread, _: store.thread(thread).labels())
SCOPE = StoredNameType("scope", _scopes)
KEY = StoredNameType("key", _keys)
SESSION = StoredNameType("id", lambda store, *_: [each.id for each in store.sessions.list(limit=_MANY)])
AGENT = StoredNameType("id", _agents)
GRANT = StoredNameType("id", lambda store, *_: [each.id for each in store.access.grants()])
GROUP = StoredNameType("group", lambda store, *_: store.access.groups())
ROLE = StoredNameType("role", lambda store, *_: store.access.roles())
JOB = StoredNameType("job", lambda store, *_: [job.name for job in store.jobs.list()])
RUN = StoredNameType("run", lambda store, *_: [run.id for run in store.runs.list(limit=_MANY)])
"""Types for `click.argument` and `click.option`. The parameter of a thread is `thread`, that of a scope `scope`."""
