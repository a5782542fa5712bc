"""The service: the store that is served, by which options, and the caller of a request with the view that it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.engine.types import Checkpoint
from holdfast.errors import DeniedError, InvalidError, UnavailableError, UnsupportedError
from holdfast.interfaces.http.models import ServiceInfoModel
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store

_MAX_VIEWS = 256
"""How many views of identities are cached."""


class ServiceOptions(NamedTuple):
    """How a store is served."""

    write: bool = False
    """Whether anybody may change the store."""
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    """The names by which the server is reached, without ports. Requests to others are refused: a page elsewhere may
    have its own name point here."""
    cookie_hosts: tuple[str, ...] = ()
    """The names by which browsers reach it, and sign in. Cookies count under no other name: a browser sends those of
    127.0.0.1 to every port, and so to programs of others."""
    origins: tuple[str, ...] = ()
    """The origins of pages of other sites that may use the server, with a token in a header: their cookies of ours
    count for nothing."""
    max_body: int = 16 << 20
    """The largest body of a request, in bytes. All bodies that are being received or worked on have at most four times
    as many."""
    rate: float = 100.0
    """How many requests a second a caller may make, on average."""
    burst: int = 400
    """How many of them at once."""
    timeout: float = 15.0
    """How many seconds a client may take for the next part of a request, or to take the next part of a response."""
    max_streams: int = 2000
    """How many streams of events may be open."""
    poll: float = 1.0
    """How many seconds pass between two looks for changes."""
    graph: str = ""
    """The graph that recorded threads are replayed with, as `module:name`; empty if the server does not know it."""
    hooks: str = ""
    """The function that registers the hooks that recorded calls are replayed with, as `module:function`."""
    private_webhooks: bool = False
    """Whether runs may call webhooks at addresses of this machine and of private networks."""
    grafana: str = ""
    """The address of the dashboards to which the page of metrics links; empty if there are none."""
    replay_timeout: float = 120.0
    """How many seconds a replay may take."""


class Caller(NamedTuple):
    """Who makes a request. `session` is empty where a token is in its header, and no cookie."""

    identity: str = ""
    """Empty for the store's owner."""
    read_only: bool = False
    token: str = ""
    """The id of the token; empty for that of the start."""
    session: str = ""

    @property
    def key(self) -> str:
        """The key that its requests are counted by."""
        return f"{self.identity}|{self.token}"


class Service:
    """A store that is served."""

    def __init__(self, store: Store, options: ServiceOptions | None = None) -> None:
        if type(store) is not Store:
            raise UnsupportedError(
                "a served store cannot be served again", hint="Open its own address, or serve it where it is"
            )
        self.store = store
        self.options: ServiceOptions = ServiceOptions() if options is None else options
        self._views: dict[tuple[str, bool], IdentityView] = {}
        self._lock = threading.Lock()
        self._replay = threading.Lock()

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Hold back other replays: each is a process of its own."""
        if not self._replay.acquire(blocking=False):
            raise UnavailableError("another replay is running", hint="Try again when it has ended")
        try:
            yield
        finally:
            self._replay.release()

    def view(self, caller: Caller) -> Store | IdentityView:
        """Return the store as a caller sees it."""
        if not caller.identity:
            return self.store
        key = (caller.identity, caller.read_only or not self.options.write)
        with self._lock:
            found = self._views.get(key)
            if found is None:
                if len(self._views) >= _MAX_VIEWS:
                    self._views.clear()
                found = self.store.as_identity(caller.identity, mode="read-only" if key[1] else "strict")
                self._views[key] = found
            return found

    def may_write(self, caller: Caller) -> bool:
        """Whether a caller may change the store at all."""
        return self.options.write and not caller.read_only


def unconfirmed() -> DeniedError:
    """Return the error for a change that a browser must confirm."""
    return DeniedError(
        "a browser must confirm this change with a new code",
        hint="Send X-Confirmation with a code: press Enter in the terminal of the server; or with the owner's token",
        code="unconfirmed",
    )


def _confirm_nothing() -> None:
    raise unconfirmed()


class Call:
    """A request to an operation of the API: who makes it, and the preconditions in its header."""

    def __init__(
        self,
        service: Service,
        caller: Caller,
        if_match: tuple[str, ...] = (),
        confirm: Callable[[], None] = _confirm_nothing,
    ) -> None:
        self.service = service
        self.caller = caller
        self._confirm = confirm
        self.if_match = if_match
        """The entity tags of which one must be the current one; none if there is no such condition."""
        self.checkpoints: dict[tuple[str, str], Checkpoint[Any]] = {}
        """What the request has read, by thread and revision."""

    def expected(self, current: Callable[[], str]) -> str:
        """Return what must be current for the change: of several, that which is; empty if there is no condition."""
        if len(self.if_match) > 1 and (found := current()) in self.if_match:
            return found
        return self.if_match[0] if self.if_match else ""

    @property
    def store(self) -> Store | IdentityView:
        """The store as the caller sees it."""
        return self.service.view(self.caller)

    def require_write(self) -> None:
        """Refuse a change where the caller may not make any."""
        if not self.service.options.write:
            raise DeniedError("the store is served read-only", hint="Start the server with --write to change it")
        if self.caller.read_only:
            raise DeniedError("this token can only read", hint="Use a token that was not issued as read-only")

    def refuse_condition(self) -> None:
        """Refuse a condition that would not be checked."""
        if self.if_match:
            raise InvalidError("If-Match has no effect here", hint="Send the request without it")

    def require_confirmation(self) -> None:
        """Refuse a change by a session of a browser that its user did not confirm: a cookie alone is not enough for
        what gives others access, or cannot be undone."""
        if self.caller.session:
            self._confirm()

    def acting_as(self, identity: str) -> Call:
        """Return the call as one of an identity; empty for who makes it. Only the store's owner can act as another."""
        if identity in ("", self.caller.identity):
            return self
        if self.caller.identity:
            raise DeniedError(
                f"{self.caller.identity} may not act as another identity", hint="Use a token of the identity to act as"
            )
        return Call(self.service, self.caller._replace(identity=identity), self.if_match, self._confirm)

    @property
    def owned(self) -> Store:
        """The store, for what only its owner may see."""
        if self.caller.identity:
            raise DeniedError(
                f"{self.caller.identity} may not see this: only the owner of the store may",
                hint="Use a token of the store's owner",
            )
        return self.service.store

    def info(self) -> ServiceInfoModel:
        """Describe the service to the caller."""
        store = self.service.store
        # A repr has the URL without its password.
        url = repr(store).partition(" ")[2].removesuffix(">").partition(", tenant ")[0]
        return ServiceInfoModel(
            version=__version__,
            store=url if not self.caller.identity else "",
            tenant=store.tenant,
            writable=self.service.may_write(self.caller),
            identity=self.caller.identity,
        )
