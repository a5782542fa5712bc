"""The API of access rights: `store.access`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeAlias, Unpack

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import check_name
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError
from holdfast.security.access.identity import EVERYONE, GROUP, Identity, check_group, parse_holder, parse_identity
from holdfast.security.access.identity_guard import GuardMode, IdentityGuard, read_ownership, set_owner_changes
from holdfast.security.access.policy import (
    BELOW_ALL,
    EndingRight,
    GrantRecord,
    Policy,
    Right,
    Rights,
    check_pattern,
    check_rights,
)
from holdfast.security.access.registry import (
    ASSIGNED,
    MEMBER,
    PARENT,
    ROLE,
    AccessRegistry,
    GrantRequest,
    TokenRecord,
    TokenRegistry,
    entry_name,
)
from holdfast.security.audit.recorder import AuditRecorder
from holdfast.security.audit.thread_audit import recorded
from holdfast.security.handle import HasHandle, ScopeParts, StoreHandle, owner_handle, parse_scope
from holdfast.time_parser import Duration, parse_deadline

_TOKENS = "The host gives out tokens: they are secrets."

Until: TypeAlias = "datetime | Duration | None"
"""When a grant expires: at a time, or after a duration: `timedelta(hours=1)`, `3600`, `"1h"`. None for never."""

Who: TypeAlias = "Identity | Scope | str"
"""An identity or its text; where groups are possible, also `group:` and a group."""


class Grant(msgspec.Struct, frozen=True):
    """A grant: who may do what, until when, and who granted it. `revoke` takes it or its `id`."""

    id: str
    to: str
    right: str
    """Rights, separated by commas: `read,write`."""
    scope: str
    keys: str
    """The pattern of the granted keys; empty for the whole scope."""
    below: Hidden[str]
    """`own` or `all`, if scopes below are granted too."""
    until: datetime | None
    by: str
    """Who granted it; empty for the store's owner."""
    given: Hidden[datetime]
    revoked: Hidden[datetime | None]
    revoked_by: Hidden[str]
    live: Hidden[bool]
    thread: Hidden[str] = ""
    """The pattern of names of threads, in a grant of threads, which has no scope."""


class Token(msgspec.Struct, frozen=True):
    """A token: who it acts for, and until when. `revoke_token` takes its `id`."""

    id: str
    identity: str
    """Empty for the store's owner."""
    read_only: bool
    name: str
    created: datetime
    until: datetime | None
    revoked: Hidden[datetime | None]
    live: Hidden[bool]
    secret: Hidden[str] = ""
    """The text that proves it, where it was just issued: it is stored nowhere."""
    used: Annotated[datetime | None, Label("last used")] = None
    """When a server last took it, to within a few minutes; None if none did, or none could store it."""

    def __repr__(self) -> str:
        return f"<Token {self.id} of {self.identity or 'the owner'}{'' if self.live else ', ended'}>"


_TIMES = ("created", "given", "until", "revoked")


def _public_fields(record: EndingRight, now: int) -> dict[str, Any]:
    """Return the fields of a stored right as its public form has them."""
    fields = record.to_dict()
    times = {name: to_datetime(fields[name]) if fields[name] else None for name in _TIMES if name in fields}
    return {**fields, **times, "live": record.is_live(now)}


def to_token(token: TokenRecord, now: int, secret: str = "", used: int = 0) -> Token:
    """Build the public form of a token."""
    fields = _public_fields(token, now)
    del fields["digest"]
    return Token(**fields, secret=secret, used=to_datetime(used) if used else None)


async def note_token_use(store: HasHandle | StoreHandle, id: str) -> None:
    """Store that a token is used now, for whoever serves the store."""
    handle = owner_handle(store)
    await TokenRegistry(handle.engine, handle.tenant).note_use(id)


def to_grant(grant: GrantRecord, now: int) -> Grant:
    """Build the public form of a grant."""
    return Grant(**_public_fields(grant, now))


def build_request(
    handle: StoreHandle, to: Who, right: Rights, scope: Scope, keys: str, below: str, until: Until
) -> GrantRequest:
    """Check the arguments of a grant."""
    pattern = check_pattern(keys, "keys of a grant") if keys else ""
    return GrantRequest(parse_holder(to), check_rights(right), scope, pattern, below, _expiry_time(handle, until))


def thread_request(
    handle: StoreHandle,
    to: Who,
    right: Rights,
    thread: str,
    until: Until,
    scope: object,
    parts: ScopeParts,
    keys: str,
    *,
    below: bool,
) -> GrantRequest:
    """Check the arguments of a grant of threads."""
    if scope is not None or parts or keys or below:
        raise InvalidError("a grant must be of a scope or of threads, not both", where=f"thread {thread!r}"[:80])
    pattern = check_pattern(thread, "thread of a grant")
    return GrantRequest(parse_holder(to), check_rights(right), None, "", "", _expiry_time(handle, until), pattern)


def _expiry_time(handle: StoreHandle, until: Until) -> int:
    if until is None:
        return 0
    return to_time(parse_deadline(until, to_datetime(handle.now()).astimezone()))


def grant_id(grant: Grant | str) -> str:
    """Return the id of a grant that is named by itself or by its id."""
    id = grant.id if isinstance(grant, Grant) else grant
    if not isinstance(id, str):
        raise InvalidError(f"a grant must be given by its id, not by {type(id).__name__}")
    return id


@declare(confirm=True)
class AccessOperations:
    """Operations of `store.access`, for the store's owner."""

    def __init__(self, handle: StoreHandle, notes: AuditRecorder) -> None:
        self._handle = owner_handle(handle)
        self._recorder = notes
        self._access = AccessRegistry(handle.engine, handle.tenant)
        self._tokens = TokenRegistry(handle.engine, handle.tenant)

    @operation(changes=True)
    async def grant(
        self,
        to: Who,
        right: Rights = "read",
        scope: Scope | str | None = None,
        *,
        thread: str | None = None,
        keys: str = "",
        below: bool = False,
        until: Until = None,
        **parts: Unpack[ScopeParts],
    ) -> Grant:
        """Allow an identity or a group to read or write a scope, or both; or give it a right to threads.

        `to` is an identity (`"agent:writer"`) or a group (`"group:editors"`; all identities are in `"group:everyone"`).
        The scope is named as in `Store.state`. With `keys`, only keys that match the pattern are granted; with `below`,
        all scopes below, too; with `until`, the grant expires. In place of a scope, `thread` is a pattern of names of
        threads, `"support-*"`; it covers those that exist and those to come, whoever owns them.
        """
        if thread is not None:
            asked = thread_request(self._handle, to, right, thread, until, scope, parts, keys, below=below)
            return to_grant(await self._access.grant(asked), self._handle.now())
        found = parse_scope(self._handle, scope, parts)
        asked = build_request(self._handle, to, right, found, keys, BELOW_ALL if below else "", until)
        return to_grant(await self._access.grant(asked), self._handle.now())

    @operation(changes=True)
    async def revoke(self, grant: Grant | str) -> Grant:
        """Revoke a grant, by itself or by its id. It takes effect at once, also for open handles. Raises
        `NotFoundError`."""
        return to_grant(await self._access.revoke(grant_id(grant)), self._handle.now())

    @operation
    async def grants(
        self,
        to: Who | None = None,
        scope: Scope | str | None = None,
        *,
        dead: bool = False,
        **parts: Unpack[ScopeParts],
    ) -> list[Grant]:
        """List grants, the oldest first: all, those of a holder, those of a scope. With `dead`, also those that were
        revoked or have expired in the last weeks."""
        at = None if scope is None and not parts else parse_scope(self._handle, scope, parts)
        found = await self._access.grants("" if to is None else parse_holder(to), at, dead=dead)
        return [to_grant(each, self._handle.now()) for each in found]

    @operation(changes=True)
    async def cut_off(self, who: Who) -> int:
        """Remove all rights of an identity or a group: grants, roles, groups, access to its children.

        It is one change, and takes effect at once. The identity still owns its own scopes. Returns the number of rights
        removed.
        """
        return await self._access.cut_off(parse_holder(who))

    @operation(changes=True)
    async def freeze(self, who: Who, *, reason: str = "") -> None:
        """Deny an identity everything until it is unfrozen: it reads and writes nothing, also in scopes that it owns.

        It takes effect at once, in every process and for open handles. Its rights and its state stay as they are.
        Identities below it, such as `user:alice/agent:writer` below `user:alice`, are not frozen with it.
        """
        await self._access.freeze(parse_identity(who), check_name(reason, "reason"))

    @operation(changes=True)
    async def unfreeze(self, who: Who) -> None:
        """Give a frozen identity its rights back. Raises `NotFoundError` if it is not frozen."""
        await self._access.unfreeze(parse_identity(who))

    @operation
    async def frozen(self) -> dict[str, str]:
        """Return the frozen identities, and the reasons."""
        return await self._access.frozen()

    @operation
    async def may(
        self,
        who: Who,
        action: Right,
        scope: Scope | str | None = None,
        key: str | None = None,
        *,
        thread: str | None = None,
        **parts: Unpack[ScopeParts],
    ) -> bool:
        """Whether an identity in strict mode may do this with a key or the whole scope, or has this right to a thread.
        Nothing is recorded."""
        identity = parse_identity(who)
        guard = IdentityGuard(self._handle.engine, self._handle.tenant, identity, GuardMode(), self._recorder)
        rights = await self._access.rights(await self._access.tip(), identity)
        if thread is not None:
            if scope is not None or parts or key is not None:
                raise InvalidError("a right is one to a scope or to a thread: give one of them")
            check_rights(action)
            found = await read_ownership(self._handle.engine, self._handle.thread_line(thread))
            is_new = found.is_free and action == "write" and not found.name
            return guard.refuse_thread(rights, action, found.thread, str(identity) if is_new else found.name) is None
        if action not in ("read", "write"):
            raise InvalidError(f"the action must be 'read' or 'write', not {action!r}")
        at = parse_scope(self._handle, scope, parts)
        keys = () if key is None else (self._handle.guard.key(at, key),)
        return guard.refuse(rights, action, at, keys) is None

    @operation(changes=True)
    async def set_owner(self, thread: str, who: Who | None) -> None:
        """Give a thread, with its namespaces, to an identity; None for the store's owner. Raises `NotFoundError`."""
        engine, root = self._handle.engine, root_of(self._handle.thread_line(thread))
        owner = "" if who is None else str(parse_identity(who))
        apply = recorded(engine, root, "set-owner", {"owner": owner})
        while True:
            info = await engine.lines.info(root)
            changes = [*engine.lines.new_version(root, info), *set_owner_changes(root, owner, self._handle.now())]
            if await apply(changes) is None:
                engine.context.cache.drop(("line", root))
                return

    # Tokens ---------------------------------------------------------------------------------------------------

    @operation(changes=True, not_in_scripts=_TOKENS)
    async def issue_token(
        self, who: Who | None, *, until: Until = None, read_only: bool = False, name: str = ""
    ) -> Token:
        """Issue a token, by which a program that reaches the store over HTTP acts for an identity, or, with None, for
        the store's owner. Its `secret` is returned once, and stored nowhere.

        With `until` it expires; with `read_only` it changes nothing. The rights are those that the identity has when
        the token is used. It is valid for this tenant only.
        """
        identity = "" if who is None else str(parse_identity(who))
        token, text = await self._tokens.issue(
            identity, _expiry_time(self._handle, until), read_only=bool(read_only), name=check_name(name, "name")
        )
        return to_token(token, self._handle.now(), text)

    @operation(changes=True, not_in_scripts=_TOKENS)
    async def revoke_token(self, token: Token | str) -> Token:
        """Revoke a token, by itself or by its id. It takes effect at once. Raises `NotFoundError`."""
        id = token.id if isinstance(token, Token) else check_name(token, "id of a token")
        return to_token(await self._tokens.revoke_token(id), self._handle.now())

    @operation(not_in_scripts=_TOKENS)
    async def tokens(self, *, dead: bool = False) -> list[Token]:
        """List tokens, the oldest first; with `dead`, also those that were revoked or have expired in the last
        weeks."""
        found, used = await self._tokens.tokens(dead=dead), await self._tokens.uses()
        return [to_token(each, self._handle.now(), used=used.get(each.id, 0)) for each in found]

    @operation(not_remote="It takes a secret.", not_in_scripts=_TOKENS)
    async def find_token(self, secret: str) -> Token | None:
        """Return the token with this secret; None if there is none, or if it was revoked or has expired."""
        found = await self._tokens.find_token(check_name(secret, "secret of a token"))
        return None if found is None else to_token(found, self._handle.now())

    # Children, groups, roles ----------------------------------------------------------------------------------

    @operation(changes=True)
    async def allow_children(self, who: Who) -> None:
        """Allow an identity to read the scopes of its children: those below its own that may be identities themselves,
        as `user:alice/agent:writer` is below `user:alice`."""
        name = str(parse_identity(who))
        await self._access.put("authorize", {entry_name(PARENT, name): True}, name)

    @operation(changes=True)
    async def forbid_children(self, who: Who) -> None:
        """Revoke that. Raises `NotFoundError` if it was not allowed."""
        name = str(parse_identity(who))
        await self._access.remove("unauthorize", [entry_name(PARENT, name)], name)

    @operation
    async def parents(self) -> list[str]:
        """List the identities that may read their children's scopes."""
        return [identity for (identity,) in await self._access.names(PARENT)]

    @operation(changes=True)
    async def join(self, group: str, *members: Who) -> None:
        """Add identities to a group, which is created if needed."""
        name, identities = check_group(group), _members(members)
        if name == EVERYONE:
            raise InvalidError(f"everybody is in the group {EVERYONE!r} already")
        put = {entry_name(MEMBER, each, name): True for each in identities}
        await self._access.put("join", put, f"{GROUP}{name}", identities)

    @operation(changes=True)
    async def leave(self, group: str, *members: Who) -> None:
        """Remove identities from a group. Raises `NotFoundError` if one is not in it."""
        name, identities = check_group(group), _members(members)
        removed = [entry_name(MEMBER, each, name) for each in identities]
        await self._access.remove("leave", removed, f"{GROUP}{name}", identities)

    @operation
    async def groups(self) -> dict[str, list[str]]:
        """Return the groups and their members."""
        found = _grouped((group, identity) for identity, group in await self._access.names(MEMBER))
        return {group: sorted(found[group]) for group in sorted(found)}

    @operation(changes=True, not_in_scripts="It takes a policy, which is an object of Python.")
    async def define_role(self, role: str, policy: Policy) -> None:
        """Store or replace the policy of a role. It takes effect at once."""
        if not isinstance(policy, Policy):
            raise InvalidError(
                f"a role must be a Policy, not {type(policy).__name__}", hint='Such as Policy().allow("read")'
            )
        name, rules = check_key(role, "name of a role"), policy.to_list()
        await self._access.put("define", {entry_name(ROLE, name): rules}, f"role:{name}", rules)

    @operation(changes=True)
    async def drop_role(self, role: str) -> None:
        """Delete a role. Raises `NotFoundError`."""
        name = check_key(role, "name of a role")
        await self._access.remove("undefine", [entry_name(ROLE, name)], f"role:{name}")

    @operation
    async def roles(self) -> dict[str, Policy]:
        """Return the roles and their policies."""
        return await self._access.roles()

    @operation(changes=True)
    async def assign(self, role: str, to: Who) -> None:
        """Assign a role to an identity or a group. Raises `NotFoundError` if there is no such role."""
        await self._access.assign(check_key(role, "name of a role"), parse_holder(to))

    @operation(changes=True)
    async def unassign(self, role: str, to: Who) -> None:
        """Remove a role from an identity or a group. Raises `NotFoundError` if it does not have it."""
        name, holder = check_key(role, "name of a role"), parse_holder(to)
        await self._access.remove("unassign", [entry_name(ASSIGNED, holder, name)], holder, {"role": name})

    @operation
    async def assignments(self) -> dict[str, list[str]]:
        """Return the roles of identities and groups."""
        return _grouped(await self._access.names(ASSIGNED))


class StoreAccess(SyncApi, AccessOperations):
    """`store.access` of a `Store`."""


class AsyncStoreAccess(AsyncApi, AccessOperations):
    """`store.access` of an `AsyncStore`: operations are awaited."""


def _grouped(pairs: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        found.setdefault(first, []).append(second)
    return found


def _members(members: tuple[Who, ...]) -> list[str]:
    if not members:
        raise InvalidError("a group is joined or left by an identity at least")
    return [str(parse_identity(each)) for each in members]
