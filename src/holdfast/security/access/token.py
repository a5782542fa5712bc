"""Tokens: secrets by which a program on another machine proves that it acts for an identity.

A token is `hf_`, an id, and a secret of 256 random bits. The store has the id and a digest of the secret, so that who
reads the store learns no token. A digest of such a secret needs no salt and no slow function: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.model.scopes import quoted
from holdfast.engine.namespaces import ACCESS
from holdfast.engine.system_line import LineChange, SystemLineEntries
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.security.access.registry import RETENTION, AccessRegistry

PREFIX = "hf_"
_TEXT = re.compile(r"hf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_TOKEN = "token/"  # noqa: S105 - the name of an entry


class TokenRecord(NamedTuple):
    """A stored token."""

    id: str
    identity: str
    """Who it acts for; empty for the store's owner."""
    digest: str
    """SHA-256 of the secret."""
    read_only: bool
    name: str
    created: int
    until: int
    """When it expires, in nanoseconds since 1970; 0 for never."""
    revoked: int = 0

    def is_live(self, now: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return not self.revoked and not 0 < self.until <= now

    def end_time(self) -> int:
        """Return when it was revoked or expires; 0 for never."""
        return min(filter(None, (self.revoked, self.until)), default=0)

    @classmethod
    def load(cls, found: object) -> TokenRecord:
        """Build a token from its stored form. `CorruptError` if it is not one."""
        try:
            return cls(**found)  # type: ignore[arg-type]
        except TypeError as error:
            raise CorruptError(f"a stored token is none: {error}", where=ACCESS) from error


def new_token() -> tuple[str, str, str]:
    """Return the id of a new token, its text, and the digest of its secret."""
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return id, f"{PREFIX}{id}_{secret}", digest_of(secret)


def digest_of(secret: str) -> str:
    """Return the digest that is stored in place of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenRegistry(AccessRegistry):
    """Reads and changes the stored tokens, which are in the line of the rights."""

    async def issue(self, identity: str, until: int, *, read_only: bool, name: str) -> tuple[TokenRecord, str]:
        """Store a new token. Returns it with its text, which nobody can read again."""
        now = self._clock()
        if until and until <= now:
            raise InvalidError("a token expires in time to come, not in the past", hint="Give a time after now")
        id, text, digest = new_token()
        token = TokenRecord(id, identity, digest, read_only, name, now, until)

        async def work_out(entries: SystemLineEntries) -> LineChange:
            old = (TokenRecord.load(each) for each in (await entries.with_prefix(_TOKEN)).values())
            gone = [_TOKEN + each.id for each in old if 0 < each.end_time() < now - RETENTION]
            return self._change("issue-token", token, gone)

        await self._line.change("issue-token", work_out)
        return token, text

    async def revoke_token(self, id: str) -> TokenRecord:
        """Revoke a token. `NotFoundError` if there is none."""
        done: list[TokenRecord] = []

        async def work_out(entries: SystemLineEntries) -> LineChange:
            found = await entries.find(_TOKEN + quoted(id)) if id else None
            if found is None:
                raise NotFoundError("there is no such token", where=ascii(id)[:80], hint="See access.tokens()")
            token = TokenRecord.load(found)
            done.append(token if token.revoked else token._replace(revoked=self._clock()))
            return self._change("revoke-token", done[-1])

        await self._line.change("revoke-token", work_out)
        return done[-1]

    async def tokens(self, *, dead: bool = False) -> list[TokenRecord]:
        """List tokens, the oldest first; with `dead`, also those that were revoked or have expired recently."""
        found = await self._line.read(lambda entries: entries.with_prefix(_TOKEN))
        now = self._clock()
        tokens = sorted((TokenRecord.load(each) for each in found.values()), key=lambda each: each.created)
        return [each for each in tokens if dead or each.is_live(now)]

    async def find_token(self, text: str) -> TokenRecord | None:
        """Return the token with this text, if it is valid now."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        found = await self._line.read(lambda entries: entries.find(_TOKEN + match[1]))
        # Compared in any case, so that the time does not tell which ids there are.
        token = None if found is None else TokenRecord.load(found)
        same = hmac.compare_digest(digest_of(match[2]), "" if token is None else token.digest)
        return token if token is not None and same and token.is_live(self._clock()) else None

    def _change(self, action: str, token: TokenRecord, removed: Sequence[str] = ()) -> LineChange:
        put: dict[str, Any] = {_TOKEN + token.id: token._asdict()}
        # The digest is no secret, but nobody who reads the audit needs it.
        detail = {name: value for name, value in token._asdict().items() if name != "digest"}
        event = self._event(action, token.identity or "owner", detail)
        return LineChange(self._line.pack(put), removed, [event])
