"""The connection of a remote store: sends a call, repeats it safely, and rebuilds what it returns."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from copy import copy
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from holdfast.codec import Codec
from holdfast.engine.pages import Page
from holdfast.errors import ConfigError, UnsupportedError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.calls import is_read, sent_state, sent_value
from holdfast.interfaces.http.transport import MAX_ANSWER, HttpTransport, no_answer
from holdfast.state.scope_state import State
from holdfast.state.sessions.api import Session
from holdfast.store.call_values import CallCodec


class Connection:
    """A connection to a server, for the calls of a remote store."""

    def __init__(
        self,
        url: str,
        token: str,
        codec: Codec,
        timeout: float,
        *,
        insecure: bool = False,
        max_answer: int = MAX_ANSWER,
        session: Callable[..., Session],
    ) -> None:
        parts = urlsplit(url)
        self.address: str = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "the address of a served store has no user, password or query",
                where=self.address,
                hint="Give the token as HOLDFAST_TOKEN, with --token, or as the option token",
            )
        if not token:
            raise ConfigError(
                "a served store needs a token",
                where=self.address,
                hint="Set HOLDFAST_TOKEN, or give --token; `holdfast token issue` makes one where the store is",
            )
        if parts.scheme == "http" and not insecure and not _is_local(parts.hostname or ""):
            raise ConfigError(
                "http:// would send the token unencrypted",
                where=self.address,
                hint="Use https://, or the option insecure=True on a network that you trust",
            )
        self.client: HttpTransport = HttpTransport(url, token, timeout=timeout, max_answer=max_answer)
        self.identity = ""
        """The identity to act as, if the token is the owner's; empty for who the token is for."""
        self._codec, self._session = codec, session
        self.codec: CallCodec = CallCodec(codec, session=lambda *parts: session(self, *parts))

    def as_identity(self, identity: str) -> Connection:
        """Return the same connection for calls as an identity."""
        other = copy(self)
        other.identity = identity
        other.codec = CallCodec(self._codec, session=lambda *parts: self._session(other, *parts))
        return other

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def call(self, part: str, names: tuple[str, ...], operation: str, arguments: Any, options: Any) -> Any:
        """Call an operation on the server. A change that may have been lost on the way is sent again, and made once."""
        request = {
            "names": list(names),
            "arguments": self.codec.to_json([_sent(each) for each in arguments]),
            "options": self.codec.to_json({name: _sent(value) for name, value in options.items()}),
            "identity": self.identity,
        }
        reads = is_read(part, operation, options)
        path = f"/{'reads' if reads else 'changes'}/{part}/{operation}"
        key = "" if reads else secrets.token_hex(16)
        found = self.client.send("POST", path, models.CallResultModel, request, key=key)
        try:
            return self.codec.from_json(found.result)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise no_answer(error, self.address) from None


class Caller:
    """Calls the operations of a part of a served store."""

    def __init__(self, connection: Connection, part: str, names: tuple[str, ...]) -> None:
        self._connection = connection
        self._part = part
        self.names = names

    def call(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call an operation, and return its result."""
        found = self._connection.call(self._part, self.names, operation, arguments, options)
        if isinstance(found, Page) and found.next is not None:

            async def read(cursor: str) -> Page[Any]:
                page: Page[Any] = self.call(operation, *arguments, **{**options, "cursor": cursor})
                return page

            found._read = read
        return found


def _sent(value: Any) -> Any:
    """Return an argument as it is sent."""
    if isinstance(value, State):
        return sent_state(str(value.scope))
    if isinstance(value, set | frozenset | tuple | list | dict | str | bytes) or not callable(value):
        return sent_value(value)
    raise UnsupportedError("a function cannot be sent to a served store", where=repr(value)[:80])


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
