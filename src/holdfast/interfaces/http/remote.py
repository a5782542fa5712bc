"""A served store as a `Store`: `holdfast.open("https://agents.example.org")`.

Each class here is a class of the library whose operations are calls to the server. What cannot be called raises
`UnsupportedError` with its name.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial, wraps
from http.client import HTTPException
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from msgspec.structs import replace

from holdfast import __version__
from holdfast.agents.api.agents import Agents
from holdfast.agents.steps.api import Steps, Timers
from holdfast.backends.runtime.drivers import Part, class_declaration, declaration_of
from holdfast.codec import Codec, default_codec
from holdfast.engine.model.scopes import Scope
from holdfast.engine.paths import Path, parse_path, path_text
from holdfast.engine.state_reader import ValueOutline
from holdfast.engine.types import Checkpoint
from holdfast.errors import ConfigError, HoldfastError, NotFoundError, UnsupportedError
from holdfast.interfaces.http.calls import FUNCTIONS
from holdfast.interfaces.http.models import ServiceInfoModel, StoreChangesModel
from holdfast.interfaces.http.transport import MAX_ANSWER, Caller, Connection, HttpTransport
from holdfast.maintenance.verify.heads import StoreHeads
from holdfast.security.access.identity import Identity
from holdfast.state.artifacts.api import Artifacts
from holdfast.state.reader import StateItem
from holdfast.state.scope_state import State
from holdfast.state.sessions.api import Session
from holdfast.state.watcher import Watch, WatchedChange
from holdfast.store.identity_view import IdentityView
from holdfast.store.lazy_state import LazyState
from holdfast.store.maintenance import Maintenance
from holdfast.store.store import Store
from holdfast.store.thread import Thread
from holdfast.time_parser import Duration, parse_seconds

_OWNERS = {"store": "Store", "thread": "Thread", "state": "State", "steps": "Steps", "timers": "Timers"}
"""The classes of parts that are no members of a store."""


_INSTEAD = {
    "transaction": "Change several keys of a scope at once by State.batch; for more, do it where the store is",
    "backups": "See /api/v1/backups, or `holdfast backup` where the store is",
}
"""What to do in place of some functions that are no operations."""


def _unsupported(part: str, name: str, reason: str = "") -> UnsupportedError:
    owner = _OWNERS.get(part, f"store.{part}")
    return UnsupportedError(
        f"{owner}.{name} is not possible on a served store",
        hint=reason or _INSTEAD.get(name) or "Do it where the store is: it needs its files or code",
    )


class RemotePart:
    """A part of a served store, by the names that lead to it."""

    _part: ClassVar[str] = ""

    def __init__(self, connection: Connection, *names: str) -> None:
        self._connection = connection
        self._caller = Caller(connection, self._part, names)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._caller.names))
        return f"<{type(self).__name__}{' ' + names if names else ''} at {self._connection.address}>"

    if TYPE_CHECKING:
        _handle: Any
    else:

        @property
        def _handle(self):
            raise UnsupportedError(
                "this needs a local store, not a served one", hint="Do it on the machine of the store"
            )


_CALLBACKS = ("progress", "each", "stop")
"""Functions that an operation calls as it proceeds. A server has none of them; `each` is called at the end."""


def _operation(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls an operation on the server."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(self: RemotePart, *arguments: Any, **options: Any) -> Any:
        signature.bind(self, *arguments, **options)  # a TypeError, as for any method
        each = options.get("each")
        for callback in _CALLBACKS:
            if callable(options.get(callback)):
                del options[callback]
        result = self._caller.call(name, *arguments, **options)
        if each is not None:
            for item in _reported(result):
                each(item)
        return result

    # Nothing is awaited: the mark of a coroutine function would be wrong.
    del call.__wrapped__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _reported(report: Any) -> list[Any]:
    """Return what a report lists, which the function `each` of the caller gets."""
    found = getattr(report, "findings", None)
    return list(getattr(report, "threads", ()) if found is None else found)


def _refusal(part: str, name: str, member: object, reason: str) -> Any:
    """Return a member that cannot be used."""

    def refuse(self: RemotePart, *arguments: Any, **options: Any) -> Any:  # noqa: ARG001
        raise _unsupported(part, name, reason)

    is_value = isinstance(member, property | Part) or not (callable(member) or hasattr(member, "__wrapped__"))
    return property(refuse) if is_value else refuse


def _served(part: str, base: type[Any]) -> Callable[[type[Any]], Any]:
    """Make a class the form of `base` whose operations are called on the server. Members of its own stay."""

    def decorate(cls: type[Any]) -> Any:
        own = {name for each in cls.__mro__ if issubclass(each, RemotePart) for name in vars(each)}
        for name in dir(base):
            if name in own or name.startswith("__"):
                continue
            member = inspect.getattr_static(base, name)
            function = getattr(member, "__wrapped__", member)
            declared = declaration_of(base, name)
            if name in FUNCTIONS.get(part, ()) or (declared is not None and not declared.not_remote):
                setattr(cls, name, _operation(name, function))
            elif isinstance(member, Part):
                setattr(cls, name, _remote_member(part, name, member))
            elif inspect.iscoroutinefunction(function) or (not name.startswith("_") and not _is_derived(base, member)):
                reason = "" if declared is None else declared.not_remote
                setattr(cls, name, _refusal(part, name, member, reason))
        cls._part = part
        return cls

    return decorate


def _remote_member(part: str, name: str, member: Part[Any, Any]) -> property:
    """Return a part of a store as a property: a class like that of the part whose operations are called on the server,
    made when it is first used."""

    def get(self: RemotePart) -> Any:
        base: Any = member.load_class()
        reason = class_declaration(base).not_remote
        if reason:
            raise _unsupported(part, name, reason)
        kind = _REMOTE.get(name) or _make_class(name, base)
        return kind(self._connection)

    return property(get, doc=member.__doc__)


@cache
def _make_class(name: str, base: type[Any]) -> type[Any]:
    """Return a class like one of a part, whose operations are called on the server."""
    made = type(f"Remote{base.__name__}", (RemotePart, base), {"__doc__": base.__doc__, "__module__": __name__})
    found: type[Any] = _served(name, base)(made)
    return found


_MAPPINGS = (State, LazyState)


def _is_derived(base: type[Any], member: object) -> bool:
    """Whether a member only uses operations: the methods of mappings do."""
    return issubclass(base, _MAPPINGS) and inspect.isfunction(member)


@_served("lazy_state", LazyState)
class RemoteLazyState(RemotePart, LazyState):
    """A state of a served store, each part loaded when it is accessed."""


class WholeState(LazyState):
    """A state that was read as a whole, for those that read parts."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def names(self) -> list[str]:
        """Return the names of the channels, in order."""
        return list(self._state)

    def value(self, path: Path) -> Any:
        """Return the value at a path. Raises `NotFoundError`."""
        keys = parse_path(path) if isinstance(path, str) else tuple(path)
        value: Any = self._state
        try:
            for key in keys:
                value = value[key]
        except (LookupError, TypeError):
            raise NotFoundError("there is nothing at this path", where=path_text(keys)) from None
        return value

    def has(self, path: Path) -> bool:
        """Return whether there is a value at a path."""
        try:
            self.value(path)
        except NotFoundError:
            return False
        return True

    def outline(self, path: Path) -> ValueOutline:
        """Return what kind of value is at a path, and how large it is."""
        value = self.value(path)
        if isinstance(value, list | dict):
            return ValueOutline("list" if isinstance(value, list) else "dict", len(value))
        return ValueOutline("value", bytes=len(default_codec.pack(value)))

    def keys_at(self, path: Path) -> list[Any]:
        """Return the keys of the dict at a path, in order."""
        return list(self._container(path, dict))

    def length(self, path: Path) -> int:
        """Return the length of the list at a path."""
        return len(self._container(path, list))

    def slice(self, path: Path, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return items of the list at a path."""
        items: list[Any] = self._container(path, list)[start:stop]
        return items

    def _container(self, path: Path, kind: type[Any]) -> Any:
        value = self.value(path)
        if not isinstance(value, kind):
            raise NotFoundError(f"there is no {kind.__name__} at this path", where=str(path)[:80])
        return value


@_served("thread", Thread)
class RemoteThread(RemotePart, Thread[Any]):
    """The handle of a thread of a served store."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self._name = name

    name = Thread.name

    def get(self, at: Any = "HEAD", *, lazy: bool = False, migrate: bool = True) -> Checkpoint[Any]:
        """Read a checkpoint with its state: `Thread.get`."""
        if not lazy or self._connection.identity:
            whole: Checkpoint[Any] = self._caller.call("get", at, migrate=migrate)
            # An identity reads a state as a whole: its right is checked once, and the read recorded once.
            return replace(whole, state=WholeState(whole.state)) if lazy else whole
        found = self._caller.call("find", at)
        state = RemoteLazyState(self._connection, *self._caller.names, found.id)
        return cast("Checkpoint[Any]", replace(found, state=state))


@_served("state", State)
class RemoteState(RemotePart, State):
    """The state of a scope of a served store, as a mapping."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self.scope = Scope.parse(name)

    def watch(self, pattern: str = "**", *, cursor: str | None = None, nested: bool = False) -> Watch:
        """Return the changes of the scope as they are made: `State.watch`."""
        return RemoteWatch(self._caller, self._connection.client, self.scope, pattern, cursor, nested)

    def _find(self, key: str) -> StateItem | None:
        try:
            return self.item(key)
        except NotFoundError:
            return None

    def _count(self) -> int:
        return sum(1 for _ in self.list_keys(limit=1000).all())


class RemoteSession(RemotePart, Session):
    """A session of a served store."""

    def __init__(self, connection: Connection, id: str, record: Any, status: Any) -> None:
        RemotePart.__init__(self, connection)
        self._id, self._record, self._status = id, record, status

    @property
    def state(self) -> State:
        """The state of its scope."""
        return RemoteState(self._connection, str(self.scope))

    def touch(self) -> None:
        """Mark the session as active."""
        Caller(self._connection, "sessions", ()).call("touch", self.id)

    def end(self, reason: str = "") -> None:
        """End the session."""
        ended = Caller(self._connection, "sessions", ()).call("end", self.id, reason)
        self._record, self._status = ended._record, ended.status


@_served("artifacts", Artifacts)
class RemoteArtifacts(RemotePart, Artifacts):
    """The artifacts of a served store. Files are read and written here."""

    def register(self, source: Any, **options: Any) -> Any:
        """Register an artifact: `Artifacts.register`."""
        if hasattr(source, "read"):
            source = source.read()
        elif not isinstance(source, bytes) and options.get("keep", True):
            file = FilePath(source)
            options = {"name": file.name, **options}
            source = file.read_bytes()
        return self._caller.call("register", source, **options)

    def open(self, id: str) -> Any:
        """Return the content as a file."""
        return io.BytesIO(self.read(id))

    def save(self, id: str, path: Any) -> None:
        """Write the content to a file."""
        FilePath(path).write_bytes(self.read(id))


@_served("agents", Agents)
class RemoteAgents(RemotePart, Agents):
    """The agents of a served store, without their code."""

    def steps(self, id: str) -> Steps:
        """Return the durable steps of an agent."""
        return cast(Steps, _make_class("steps", Steps)(self._connection, id))

    def timers(self, id: str) -> Timers:
        """Return the timers of an agent."""
        return cast(Timers, _make_class("timers", Timers)(self._connection, id))


@_served("maintenance", Maintenance)
class RemoteMaintenance(RemotePart, Maintenance):
    """Maintenance of a served store."""

    def load_heads(self, path: Any) -> StoreHeads:
        """Read heads that were exported to a file here. Those of an encrypted store need its key."""
        return StoreHeads.load(path)


_REMOTE: Mapping[str, type[RemotePart]] = {
    "agents": RemoteAgents,
    "artifacts": RemoteArtifacts,
    "maintenance": RemoteMaintenance,
}
"""Parts of a store that do more than call the server."""


class _RemoteMembers(RemotePart):
    """The members that a served store, and the view of an identity, have without a call."""

    def thread(self, name: str, schema: type[Any] | None = None) -> Any:  # noqa: ARG002
        """Return the handle of a thread."""
        return RemoteThread(self._connection, name)

    def state(self, scope: Scope | str | None = None, /, **parts: Any) -> Any:
        """Return the state of a scope."""
        named = Scope.of(**parts) if scope is None else scope if isinstance(scope, Scope) else Scope.parse(scope)
        return RemoteState(self._connection, str(named))


@_served("store", IdentityView)
class RemoteIdentityView(_RemoteMembers, IdentityView):
    """A served store as an identity sees it."""

    @property
    def identity(self) -> Any:
        """The identity."""
        return Identity.parse(self._connection.identity)


@_served("store", Store)
class RemoteStore(_RemoteMembers, Store):
    """A served store. Its token decides who acts, and for which tenant."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        try:
            self._info: ServiceInfoModel = connection.client.send("GET", "", ServiceInfoModel)
            if _series(self._info.version) != _series(__version__):
                raise UnsupportedError(
                    f"the server has Holdfast {self._info.version}, and this is {__version__}",
                    where=connection.address,
                    hint="Use the same version on both sides, or the HTTP API, which stays as it is",
                )
        except BaseException:
            connection.close()
            raise
        connection.identity = self._info.identity

    @property
    def tenant(self) -> str:
        """The tenant that is served."""
        return self._info.tenant

    def as_identity(self, identity: Any = None, /, **options: Any) -> Any:
        """Return the store as an identity sees it. Only with a token of the store's owner."""
        parts = {name: options.pop(name) for name in list(options) if name in _SCOPE_PARTS}
        if options:
            raise _unsupported("store", f"as_identity({min(options)}=…)")
        who = Identity.of(**parts) if identity is None else identity
        return RemoteIdentityView(self._connection.as_identity(str(who)))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self


_SCOPE_PARTS = frozenset(("user", "session", "workflow", "agent", "step", "tool", "hook", "custom", "items"))


def _series(version: str) -> list[str]:
    return version.split(".")[:2]


def open_remote(url: str, tenant: str, codec: Codec, options: dict[str, Any]) -> Store:
    """Open a served store. Its token is the option `token`, or `$HOLDFAST_TOKEN`."""
    token = options.pop("token", None) or os.environ.get("HOLDFAST_TOKEN", "")
    timeout = options.pop("timeout", 60.0)
    insecure = options.pop("insecure", False)
    max_answer = options.pop("max_answer", MAX_ANSWER)
    if type(max_answer) is not int or max_answer <= 0:
        raise ConfigError(f"max_answer must be a number of bytes, not {max_answer!r}", where=url)
    options.pop("read_only", None)  # the server decides
    if options:
        raise ConfigError(f"a served store has no option {min(options)!r}", where=url)
    connection = Connection(url, token, codec, timeout, insecure=insecure, max_answer=max_answer, session=RemoteSession)
    store = RemoteStore(connection)
    if tenant and tenant != store.tenant:
        store.close()
        raise ConfigError(
            f"the server does not serve the tenant {tenant!r}",
            where=connection.address,
            hint="A token is for one tenant: leave the tenant out, or open another address",
        )
    return cast(Store, store)


# Watching a scope of a served store: server-sent events tell when to read, and the server reads what changed ---------


_LONGEST = 2.0
"""After so many seconds it is read again without an event: no event tells that a key has expired."""

_PAUSE = 1.0
"""How many seconds pass before a stream that ended is opened again."""


class RemoteWatch(Watch):
    """The changes of a scope of a served store. Ends when it is closed."""

    def __init__(
        self, caller: Caller, client: HttpTransport, scope: Scope, pattern: str, cursor: str | None, nested: bool
    ) -> None:
        self._caller = caller
        self._scope = scope
        self._pattern, self._is_nested = pattern, nested
        self._position = cursor
        self._read_so_far: str | None = None
        self._found: deque[WatchedChange] = deque()
        self._signal = ChangeSignal(client, scope, nested=nested)

    @property
    def cursor(self) -> str:
        """The position after what was reported so far; empty before the watch has begun."""
        return self._read_so_far if self._read_so_far is not None else self._position or ""

    def start(self) -> None:
        """Begin here, unless the watch has begun: changes from now on are reported."""
        if self._position is None:
            self._read()

    def poll(self, timeout: Duration = 0) -> list[WatchedChange]:
        """Return the changes since the last call, in order; waits for the first one, at most until the timeout."""
        found = list(self._found) or self._wait_for(parse_seconds(timeout, "timeout"))
        self._found.clear()
        self._read_so_far = None
        return found

    def close(self) -> None:
        """End the watch, and all iterations over it, in any thread."""
        self._signal.close()

    def __next__(self) -> WatchedChange:
        if not self._found and not self._signal.closed:
            self._found += self._wait_for(None)
        if self._signal.closed:
            raise StopIteration
        found = self._found.popleft()
        self._read_so_far = found.cursor if self._found else None
        return found

    def _wait_for(self, timeout: float | None) -> list[WatchedChange]:
        end = None if timeout is None else time.monotonic() + timeout
        self.start()
        while not self._signal.closed:
            left = _LONGEST if end is None else min(_LONGEST, end - time.monotonic())
            if left > 0:
                self._signal.open()  # before the read: what changes after it is not missed
            found = self._read()
            if found or left <= 0:
                return found
            self._signal.wait(left)
        return []

    def _read(self) -> list[WatchedChange]:
        changes, self._position = self._caller.call("read_watch", self._pattern, self._position, self._is_nested)
        return list(_changes(changes))


def _changes(found: list[tuple[dict[str, Any], str]]) -> Iterator[WatchedChange]:
    for fields, cursor in found:
        yield WatchedChange(**{**fields, "scope": Scope.parse(fields["scope"])}, _cursor=partial(str, cursor))


class ChangeSignal:
    """Tells when something in a scope may have changed, by the stream of events of a server."""

    def __init__(self, client: HttpTransport, scope: Scope, *, nested: bool) -> None:
        self._client = client
        self._scope, self._nested = scope, nested
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def open(self) -> None:
        """Follow the stream, unless that is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="holdfast-watch", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until something may have changed, or the time has passed."""
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self) -> None:
        """End the stream, and all waiting."""
        self._closed.set()
        self._changed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _follow(self) -> None:
        last = ""
        while not self._closed.is_set():
            with contextlib.suppress(OSError, HTTPException, HoldfastError), self._client.open_events(last) as stream:
                self._socket = stream.socket
                for id, changes in stream.events():
                    last = id
                    if self._concerns(changes):
                        self._changed.set()
            self._changed.set()  # what changed meanwhile is read, or why it cannot be
            self._closed.wait(_PAUSE)

    def _concerns(self, changes: StoreChangesModel) -> bool:
        if not changes.complete:
            return True
        scopes = map(Scope.parse, changes.scopes)
        return any(self._scope.contains(each) if self._nested else each == self._scope for each in scopes)
