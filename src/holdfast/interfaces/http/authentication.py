"""Who makes a request: tokens in headers, and sessions of browsers, which a code or a token starts.

The token of the start is for the store's owner, and ends with the server. Others are stored, by their digests: see
`store.access.issue_token`. A code is for the owner, too, works once and for a minute, and is shown in the terminal: a
browser exchanges it for a cookie, so that no page and no address has a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from holdfast.backends.runtime.drivers import run
from holdfast.errors import DeniedError, HoldfastError
from holdfast.interfaces.http.service import Caller, unconfirmed
from holdfast.state.access_api import note_token_use
from holdfast.store.store import Store

CSRF_HEADER = "x-csrf-token"
CONFIRMATION_HEADER = "x-confirmation"
CODE_SECONDS = 60.0
"""How long a code works."""

_SYMBOLS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_CODE_LENGTH = 10
_LIFETIME = 12 * 3600.0
_MAX_SESSIONS = 1000
_USE_SECONDS = 300.0
"""How often it is stored, at most, that a token is used."""


class BrowserSession(NamedTuple):
    """A signed-in browser."""

    caller: Caller
    ends: float


def unauthenticated(what: str = "this needs a token") -> DeniedError:
    """Return the error for a request of nobody that is known."""
    return DeniedError(
        what,
        hint="Sign in with a code of the terminal, or send Authorization: Bearer with a token",
        code="unauthenticated",
    )


class Authenticator:
    """Finds out who makes requests."""

    def __init__(self, store: Store, *, start_token: bool = True) -> None:
        self._store = store
        self.start_token: str = f"hf_start_{secrets.token_urlsafe(32)}" if start_token else ""
        self._start_digest = _digest(self.start_token)
        self._sessions: dict[str, BrowserSession] = {}
        self._codes: dict[str, float] = {}
        self._uses: dict[str, float] = {}
        self._csrf_key = secrets.token_bytes(32)
        self._lock = threading.Lock()

    def forget_start_token(self) -> None:
        """Drop the text of the start's token, once it was written. Its digest stays."""
        self.start_token = ""

    def issue_code(self) -> str:
        """Return a new code of the store's owner, in two groups: `7KQ2M-94XTR`. It works once, and for a minute."""
        code = "".join(secrets.choice(_SYMBOLS) for _ in range(_CODE_LENGTH))
        with self._lock:
            now = time.monotonic()
            self._codes = {each: ends for each, ends in self._codes.items() if ends > now}
            self._codes[_digest(code)] = now + CODE_SECONDS
        return f"{code[:5]}-{code[5:]}"

    def _take_code(self, text: str) -> bool:
        """Whether a text is a code that works. It works no longer."""
        key = _digest(text.upper().replace("-", "").replace(" ", ""))
        with self._lock:
            return self._codes.pop(key, 0.0) > time.monotonic()

    def by_token(self, text: str) -> Caller:
        """Return who a token is for. Raises `DeniedError`."""
        if text.startswith("hf_start_"):
            if self._start_digest and hmac.compare_digest(_digest(text), self._start_digest):
                return Caller()
            raise unauthenticated("the token is not valid")
        try:
            token = self._store.access.find_token(text)
        except HoldfastError as error:
            raise unauthenticated("the token cannot be checked") from error
        if token is None:
            raise unauthenticated("the token is not valid, was revoked, or has expired")
        self._note_use(token.id)
        return Caller(token.identity, token.read_only, token.id)

    def _note_use(self, id: str) -> None:
        """Store that a token is used, unless that was stored a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._uses.get(id, -_USE_SECONDS) < _USE_SECONDS:
                return
            self._uses[id] = now
        with suppress(HoldfastError):  # the store is open for reading only, or cannot be written now
            run(note_token_use(self._store, id))

    def sign_in(self, text: str, *, token: bool = True) -> str:
        """Start a session of a browser with a code, or with a `token` where that may be one. Returns the value of its
        cookie."""
        if self._take_code(text):
            caller = Caller()
        elif token:
            caller = self.by_token(text)
        else:
            raise unauthenticated("the code is not valid, was used, or has expired")
        value = secrets.token_urlsafe(32)
        key = _digest(value)
        with self._lock:
            now = time.monotonic()
            self._sessions = {each: found for each, found in self._sessions.items() if found.ends > now}
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[key] = BrowserSession(caller._replace(session=key), now + _LIFETIME)
        return value

    def sign_out(self, value: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(_digest(value), None)

    def by_cookie(self, value: str) -> Caller:
        """Return who a cookie is for. Its token may have been revoked since. Raises `DeniedError`."""
        key = _digest(value)
        with self._lock:
            session = self._sessions.get(key)
        if session is None or session.ends < time.monotonic():
            raise unauthenticated("the session has ended")
        caller = session.caller
        if caller.token and all(each.id != caller.token for each in self._store.access.tokens()):
            raise unauthenticated("the token of the session was revoked, or has expired")
        return caller

    def ended(self, callers: Iterable[Caller]) -> set[Caller]:
        """Return those whose session has ended, or whose token was revoked or has expired, since they were found."""
        callers, now = set(callers), time.monotonic()
        with self._lock:
            sessions = {key for key, found in self._sessions.items() if found.ends > now}
        with_token = any(each.token for each in callers)
        tokens = {each.id for each in self._store.access.tokens()} if with_token else set()
        return {
            each
            for each in callers
            if (each.session and each.session not in sessions) or (each.token and each.token not in tokens)
        }

    def csrf_token(self, caller: Caller) -> str:
        """Return the text that a page of a session sends with every change."""
        return hmac.new(self._csrf_key, caller.session.encode(), hashlib.sha256).hexdigest() if caller.session else ""

    def check_csrf(self, caller: Caller, text: str) -> None:
        """Raise `DeniedError` if a change by a session does not have that text: another site may have sent it."""
        if caller.session and not hmac.compare_digest(self.csrf_token(caller).encode(), text.encode(errors="replace")):
            raise DeniedError(
                "a change by a browser needs the token of its page",
                hint="Load the page again",
                code="cross-site",
            )

    def confirm(self, caller: Caller, text: str) -> None:
        """Raise `DeniedError` if a text is neither a code that works nor a token that may do what the caller may."""
        if self._take_code(text):
            return
        try:
            found = self.by_token(text)
        except DeniedError:
            raise unconfirmed() from None
        if found.read_only or found.identity not in ("", caller.identity):
            raise unconfirmed()


def cookie_name(host: str) -> str:
    """Return the name of the cookie of a server. It has the port, which browsers do not tell apart."""
    port = host.rpartition(":")[2]
    return f"holdfast_{port}" if port.isdecimal() else "holdfast"


def cookie_value(header: str, host: str) -> str:
    """Return the session in a Cookie header; empty if there is none."""
    try:
        found = SimpleCookie(header).get(cookie_name(host))
    except CookieError:
        return ""
    return "" if found is None else found.value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if text else ""
