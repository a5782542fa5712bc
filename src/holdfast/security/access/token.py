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

from msgspec.structs import replace

from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.tables import LINKS
from holdfast.engine.engine import Engine
from holdfast.engine.model.scopes import quoted
from holdfast.engine.record_table import RecordTable
from holdfast.engine.system_line import LineChange, SystemLineEntries
from holdfast.errors import InvalidError
from holdfast.security.access.policy import EndingRight
from holdfast.security.access.registry import AccessRegistry

PREFIX = "hf_"
_TEXT = re.compile(r"hf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_TOKEN = "token/"  # noqa: S105 - the name of an entry
_USED = "used"
"""The kind of the links that have when a token was last used: to write that changes no right."""


class TokenRecord(EndingRight, frozen=True, kw_only=True):
    """A stored token."""

    identity: str
    """Who it acts for; empty for the store's owner."""
    digest: str
    """SHA-256 of the secret."""
    read_only: bool
    name: str
    created: int


def new_token() -> tuple[str, str, str]:
    """Return the id of a new token, its text, and the digest of its secret."""
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return id, f"{PREFIX}{id}_{secret}", digest_of(secret)


def digest_of(secret: str) -> str:
    """Return the digest that is stored in place of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenRegistry(AccessRegistry):
    """Reads and changes the stored tokens, which are in the line of the rights."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        super().__init__(engine, tenant, actor)
        self._tokens = RecordTable(
            self._line, "token", TokenRecord.load, TokenRecord.to_dict, prefix=_TOKEN, hint="See access.tokens()"
        )

    async def issue(self, identity: str, until: int, *, read_only: bool, name: str) -> tuple[TokenRecord, str]:
        """Store a new token. Returns it with its text, which nobody can read again."""
        now = self._clock()
        if until and until <= now:
            raise InvalidError("a token must expire in the future, not in the past", hint="Give a time after now")
        id, text, digest = new_token()
        token = TokenRecord(
            id=id, identity=identity, digest=digest, read_only=read_only, name=name, created=now, until=until
        )

        async def edit(entries: SystemLineEntries) -> LineChange:
            gone = [_TOKEN + id for id, old in (await self._tokens.all(entries=entries)).items() if old.is_past(now)]
            return self._change("issue-token", token, gone)

        await self._line.change("issue-token", edit)
        return token, text

    async def revoke_token(self, id: str) -> TokenRecord:
        """Revoke a token. `NotFoundError` if there is none."""
        done: list[TokenRecord] = []

        async def edit(entries: SystemLineEntries) -> LineChange:
            token = await self._tokens.get(quoted(id), entries)
            done.append(token if token.revoked else replace(token, revoked=self._clock()))
            return self._change("revoke-token", done[-1])

        await self._line.change("revoke-token", edit)
        return done[-1]

    async def tokens(self, *, dead: bool = False) -> list[TokenRecord]:
        """List tokens, the oldest first; with `dead`, also those that were revoked or have expired recently."""
        now, found = self._clock(), (await self._tokens.all()).values()
        return sorted((each for each in found if dead or each.is_live(now)), key=lambda each: each.created)

    async def note_use(self, id: str) -> None:
        """Store that a token is used now."""
        row = Row((*self._line.line, _USED, id, ""), (self._clock(), ""))
        await self._line.engine.context.backend.apply([Put(LINKS, row)])

    async def uses(self) -> dict[str, int]:
        """Return when tokens were last used, by their ids."""
        (rows,) = await self._line.engine.context.backend.read([Scan(LINKS, (*self._line.line, _USED))])
        return {str(row.key[3]): int(row.columns[0]) for row in rows}

    async def find_token(self, text: str) -> TokenRecord | None:
        """Return the token with this text, if it is valid now."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        token = await self._tokens.find(match[1])
        # Compared in any case, so that the time does not tell which ids there are.
        same = hmac.compare_digest(digest_of(match[2]), "" if token is None else token.digest)
        return token if token is not None and same and token.is_live(self._clock()) else None

    def _change(self, action: str, token: TokenRecord, removed: Sequence[str] = ()) -> LineChange:
        # The digest is no secret, but nobody who reads the audit needs it.
        detail = {name: value for name, value in token.to_dict().items() if name != "digest"}
        event = self._event(action, token.identity or "owner", detail)
        return LineChange(self._tokens.pack({token.id: token}), removed, [event])
