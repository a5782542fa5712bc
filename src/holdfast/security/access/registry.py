"""The stored rights: grants, groups, roles, and who may read its children.

They are in one system line. Each check looks whether the line has changed since; a write that depends on rights has the
condition that it has not. So a revocation takes effect at once, for everybody.

Tokens: secrets by which a program on another machine proves that it acts for an identity.

A token is `hf_`, an id, and a secret of 256 random bits. The store has the id and a digest of the secret, so that who
reads the store learns no token. A digest of such a secret needs no salt and no slow function: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.append import AppendRequest
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.guard import Action, Preconditions
from holdfast.engine.lines import LineTip
from holdfast.engine.model.scopes import THREAD, Scope, quoted, unquoted
from holdfast.engine.namespaces import ACCESS
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.security.access.identity import EVERYONE, GROUP, Identity
from holdfast.security.access.policy import EndingRight, GrantRecord, Policy, load_policy, rights_of

_GRANT, _BY_HOLDER, MEMBER, ROLE, ASSIGNED, PARENT = "grant/", "held/", "member/", "role/", "assigned/", "parent/"
"""How the names of entries start: of grants, by their ids and by their holders; of members of groups, roles, those who
have them, and identities that may read their children's scopes."""

_FROZEN, _MARKER = "frozen/", "frozen"
"""The start of the names of entries of frozen identities; and the kind of their links, which have the reasons: nothing
is ever pruned of the line itself, and a reason may have to go."""


class IdentityRights(NamedTuple):
    """The rights that an identity has besides those of an owner."""

    grants: Mapping[str, Sequence[GrantRecord]] = {}
    """By the text of their scope. Ended ones too, to explain denials."""
    policies: tuple[Policy, ...] = ()
    """The policies of its roles."""
    reads_children: bool = False
    role: Policy | None = None
    """The policy of the role that was requested by name."""
    frozen: str | None = None
    """The reason why the identity is frozen; None if it is not."""

    def find_thread_grants(self, right: str, thread: str) -> list[GrantRecord]:
        """Return the grants of a right to threads with such a name, also those that have ended."""
        return [grant for grant in self.grants.get("", ()) if grant.names_thread(right, thread)]

    def find_grants(self, action: Action, scope: Scope) -> list[GrantRecord]:
        """Return the grants that concern a scope and an action, also those that have ended."""
        found = [grant for grant in self.grants.get(str(scope), ()) if action in rights_of(grant.right)]
        for length in range(len(scope.parts)):
            above = Scope(scope.parts[:length])
            found += (grant for grant in self.grants.get(str(above), ()) if grant.reaches_below(action, above, scope))
        return found


class GrantRequest(NamedTuple):
    """A grant to add."""

    to: str
    right: str
    scope: Scope | None
    keys: str
    below: str
    until: int
    thread: str = ""


class AccessRegistry:
    """Reads and changes the stored rights. `actor` is who changes them; empty for the store's owner."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._line = SystemLine(engine, Line(tenant, ACCESS), actor)
        self._grants = RecordTable(
            self._line, "grant", GrantRecord.load, GrantRecord.to_dict, prefix=_BY_HOLDER, hint="See access.grants()"
        )
        self._roles = RecordTable(self._line, "role", load_policy, Policy.to_list, prefix=ROLE, hint="Define it first")
        self._codec = engine.context.codec
        self._clock = engine.context.clock
        self._actor = actor

    # Looking --------------------------------------------------------------------------------------------------

    async def tip(self) -> LineTip | None:
        """Return the current tip of the line."""
        return await self._line.tip()

    async def tip_and(self, *others: Query) -> tuple[LineTip | None, list[list[Row]]]:
        """Return the current tip of the line, and of the same request the answers to other queries."""
        return await self._line.tip_and(*others)

    def tip_unchanged(self, tip: LineTip | None) -> list[Change]:
        """Return the conditions that the line still has this tip."""
        return self._line.tip_unchanged(tip)

    async def rights(self, tip: LineTip | None, identity: Identity, role: str = "") -> IdentityRights:
        """Return the rights of an identity as of a tip."""

        async def look(entries: SystemLineEntries) -> IdentityRights:
            me = str(identity)
            groups = [EVERYONE, *map(unquoted, await entries.with_prefix(entry_name(MEMBER, me, "")))]
            grants: dict[str, list[GrantRecord]] = {}
            names: list[str] = []
            for holder in (me, *(GROUP + group for group in groups)):
                for grant in (await self._grants.all(entry_name("", holder, ""), entries)).values():
                    grants.setdefault(grant.scope, []).append(grant)
                names += await entries.with_prefix(entry_name(ASSIGNED, holder, ""))
            return IdentityRights(
                grants,
                tuple((await self._roles.get_many(names, entries)).values()),
                await entries.has(entry_name(PARENT, me)),
                await self._roles.find(quoted(role), entries) if role else None,
                "" if await entries.has(entry_name(_FROZEN, me)) else None,
            )

        found = await self._line.read_at(None if tip is None else tip.point, look)
        return found if found.frozen is None else found._replace(frozen=await self._reason(identity))

    async def grants(self, to: str = "", scope: Scope | None = None, *, dead: bool = False) -> list[GrantRecord]:
        """List grants, the oldest first: those of a holder, those of a scope; with `dead`, also those that were revoked
        or have expired recently."""
        grants = (await self._grants.all(entry_name("", to, "") if to else "")).values()
        now, text = self._clock(), "" if scope is None else str(scope)
        found = [each for each in grants if (dead or each.is_live(now)) and text in ("", each.scope)]
        return sorted(found, key=lambda grant: grant.given)

    async def roles(self) -> dict[str, Policy]:
        """Return the roles and their policies."""
        return {unquoted(name): policy for name, policy in (await self._roles.all()).items()}

    async def names(self, prefix: str) -> list[list[str]]:
        """Return the parts of the names of entries that start with a prefix."""
        found = await self._line.read(lambda entries: entries.with_prefix(prefix))
        return [[*map(unquoted, name.split("/"))] for name in found]

    # Frozen identities ----------------------------------------------------------------------------------------

    async def frozen(self) -> dict[str, str]:
        """Return the identities that are frozen, and why."""
        return {str(row.key[3]): str(row.columns[1]) for row in sorted(await self._markers())}

    async def _markers(self) -> list[Row]:
        (rows,) = await self._line.engine.context.backend.read([Scan(LINKS, (*self._line.line, _MARKER))])
        return rows

    async def freeze(self, identity: Identity, reason: str) -> None:
        """Deny an identity everything, also what it owns."""
        marker = Put(LINKS, Row(self._marker(identity), (self._clock(), reason)))
        await self.put("freeze", {entry_name(_FROZEN, identity): True}, str(identity), {"reason": reason}, [marker])

    async def unfreeze(self, identity: Identity) -> None:
        """End that. `NotFoundError` if it is not frozen."""
        marker = Delete(LINKS, self._marker(identity))
        await self.remove("unfreeze", [entry_name(_FROZEN, identity)], str(identity), rows=[marker])

    async def is_frozen(self, identity: Identity) -> bool:
        """Return whether an identity is frozen. Reads one row."""
        return await self._reason(identity) is not None

    async def _reason(self, identity: Identity) -> str | None:
        (rows,) = await self._line.engine.context.backend.read([Get(LINKS, [self._marker(identity)])])
        return str(rows[0].columns[1]) if rows else None

    async def rewrite_reasons(self, rewrite: Callable[[str, str], str], until: int | None = None) -> int:
        """Rewrite the reasons why identities are frozen, given both; without those that were given after a time, in
        nanoseconds since 1970. Returns how many changed."""
        count, backend = 0, self._line.engine.context.backend
        for row in await self._markers():
            old = str(row.columns[1])
            new = rewrite(str(row.key[3]), old) if until is None or int(row.columns[0]) <= until else old
            if new != old:
                put = Put(LINKS, row._replace(columns=(row.columns[0], new)))
                count += await backend.apply([Expect(LINKS, row.key, row.columns), put]) is None
        return count

    def not_frozen(self, identity: Identity) -> Change:
        """Return the condition that an identity is not frozen. It does not depend on other changes of rights."""
        return Expect(LINKS, self._marker(identity), None)

    def _marker(self, identity: Identity) -> Key:
        """Return the key of the row that a frozen identity has."""
        return (*self._line.line, _MARKER, str(identity), "")

    async def _check_actor(self, entries: SystemLineEntries) -> None:
        """Raise `DeniedError` if an identity that changes rights was frozen meanwhile."""
        if self._actor and await entries.has(entry_name(_FROZEN, self._actor)):
            raise DeniedError(f"{self._actor} is frozen", code="identity-frozen")

    # Grants ---------------------------------------------------------------------------------------------------

    async def grant(self, request: GrantRequest) -> GrantRecord:
        """Add a grant."""
        grant, saving = self.grant_request(request)
        await self._line.engine.writer.save(saving)
        return grant

    def grant_request(self, request: GrantRequest) -> tuple[GrantRecord, AppendRequest]:
        """Return a grant, and the request that adds it, to be saved alone or with others."""
        now = self._clock()
        if request.until and request.until <= now:
            raise InvalidError(
                "a grant must expire in the future, not in the past", hint="Give a time after now, or none"
            )
        asked = {**request._asdict(), "scope": "" if request.scope is None else str(request.scope)}
        grant = GrantRecord(id=secrets.token_hex(8), by=self._actor, given=now, **asked)
        holder = entry_name("", grant.to, "")

        async def edit(entries: SystemLineEntries) -> LineChange:
            await self._check_actor(entries)
            gone = [id for id, old in (await self._grants.all(holder, entries)).items() if old.is_past(now)]
            removed = [name for id in gone for name in (_BY_HOLDER + holder + id, _GRANT + id)]
            put = {**self._grants.pack({holder + grant.id: grant}), **self._line.pack({_GRANT + grant.id: grant.to})}
            return LineChange(put, removed, [self._grant_event("grant", grant)])

        return grant, self._line.request("grant", edit)

    async def revoke(self, id: str) -> GrantRecord:
        """Revoke a grant. `NotFoundError` if there is none."""
        done: list[GrantRecord] = []

        async def edit(entries: SystemLineEntries) -> LineChange:
            await self._check_actor(entries)
            to = await entries.find(_GRANT + quoted(id)) if id else None
            found = None if to is None else await self._grants.find(entry_name("", to, id), entries)
            if found is None:
                raise self._grants.missing_error(id)
            return self._revoke_change([found], done)

        await self._line.change("revoke", edit)
        return done[-1]

    def revoke_request(self, to: str, id: str, permit: Preconditions | None) -> AppendRequest:
        """Return the request that revokes a grant if it exists, to be saved with others that were permitted."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            if permit is not None:
                await permit(True)
            return self._revoke_change((await self._grants.get_many([entry_name("", to, id)], entries)).values(), [])

        return self._line.request("revoke", edit)

    async def cut_off(self, to: str) -> int:
        """Remove all rights of an identity or a group at once: grants, roles, groups, access to its children.

        It still owns its own scopes. Returns the number of rights removed.
        """
        taken = 0

        async def edit(entries: SystemLineEntries) -> LineChange:
            nonlocal taken
            now = self._clock()
            live = [
                each for each in (await self._grants.all(entry_name("", to, ""), entries)).values() if each.is_live(now)
            ]
            gone = [entry_name(PARENT, to)] if await entries.has(entry_name(PARENT, to)) else []
            for start in (entry_name(ASSIGNED, to, ""), entry_name(MEMBER, to, "")):
                gone += [start + name for name in await entries.with_prefix(start)]
            taken, revoked = len(live) + len(gone), self._revoke_change(live, [])
            return LineChange(revoked.put, gone, [*revoked.events, Event("access", self._actor, "cut-off", to)])

        await self._line.change("cut-off", edit)
        return taken

    def _revoke_change(self, grants: Iterable[GrantRecord], done: list[GrantRecord]) -> LineChange:
        # One that is dead already keeps the time at which it died.
        last = [
            grant if grant.revoked else replace(grant, revoked=self._clock(), revoked_by=self._actor)
            for grant in grants
        ]
        done += last
        put = self._grants.pack({entry_name("", grant.to, grant.id): grant for grant in last})
        return LineChange(put, events=[self._grant_event("revoke", grant) for grant in last])

    # Groups, roles, parents -----------------------------------------------------------------------------------

    async def assign(self, role: str, to: str) -> None:
        """Assign a role. `NotFoundError` if there is none."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            await self._roles.get(quoted(role), entries)
            put = self._line.pack({entry_name(ASSIGNED, to, role): True})
            return LineChange(put, events=[self._event("assign", to, {"role": role})])

        await self._line.change("assign", edit)

    async def put(
        self, action: str, put: Mapping[str, Any], target: str, detail: object = None, rows: Sequence[Change] = ()
    ) -> None:
        """Store entries, by their names. `target` and `detail` are those of the event."""

        async def edit(entries: SystemLineEntries) -> LineChange:  # noqa: ARG001
            return LineChange(self._line.pack(put), (), [self._event(action, target, detail)], rows)

        await self._line.change(action, edit)

    async def remove(
        self, action: str, removed: Sequence[str], target: str, detail: object = None, rows: Sequence[Change] = ()
    ) -> None:
        """Remove entries, by their names. `NotFoundError` if one does not exist."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            for name in removed:
                if not await entries.has(name):
                    raise NotFoundError("there is no such right to revoke", where=f"{action} {target}"[:120])
            return LineChange({}, removed, [self._event(action, target, detail)], rows)

        await self._line.change(action, edit)

    def _grant_event(self, action: str, grant: GrantRecord) -> Event:
        place = f"{THREAD}:{grant.thread}" if grant.thread else grant.scope
        return self._event(action, f"{place}{BETWEEN}{grant.keys}", grant.to_dict())

    def _event(self, action: str, target: str, detail: object) -> Event:
        packed = self._codec.pack(detail if isinstance(detail, dict) else {"of": detail}) if detail else b""
        return Event("access", self._actor, action, target, detail=packed)


def entry_name(prefix: str, *parts: object) -> str:
    """Return the name of an entry: a prefix and its parts, which are quoted, so that no slash is left in them. An empty
    last part makes the start of names."""
    return prefix + "/".join(quoted(str(part)) for part in parts)


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
