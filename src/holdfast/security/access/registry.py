"""The stored rights: grants, groups, roles, and who may read its children.

They are in one system line. Each check looks whether the line has changed since; a write that depends on rights has the
condition that it has not. So a revocation takes effect at once, for everybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.append import AppendRequest
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.guard import Action, Preconditions
from holdfast.engine.lines import LineTip
from holdfast.engine.model.scopes import THREAD, Scope, check_key, quoted, unquoted
from holdfast.engine.namespaces import ACCESS
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.security.access.grant import GrantRecord
from holdfast.security.access.identity import EVERYONE, GROUP, Identity
from holdfast.security.access.policy import Policy, load_policy, rights_of

RETENTION = 30 * 86400 * 10**9
"""How long a grant that was revoked or has expired is retained, in nanoseconds."""

# Names of entries. What a name is made of is quoted: no slash is left in it.
_GRANT, _BY_HOLDER, _MEMBER, _ROLE, _ASSIGNED, _PARENT = "grant/", "held/", "member/", "role/", "assigned/", "parent/"
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
        self._codec = engine.context.codec
        self._clock = engine.context.clock
        self._actor = actor

    # Looking --------------------------------------------------------------------------------------------------

    async def tip(self) -> LineTip | None:
        """Return the current tip of the line."""
        return await self._line.tip()

    def tip_unchanged(self, tip: LineTip | None) -> list[Change]:
        """Return the conditions that the line still has this tip."""
        return self._line.tip_unchanged(tip)

    async def rights(self, tip: LineTip | None, identity: Identity, role: str = "") -> IdentityRights:
        """Return the rights of an identity as of a tip."""

        async def look(entries: SystemLineEntries) -> IdentityRights:
            me = str(identity)
            holders = [me, *(GROUP + group for group in await _groups_of(entries, me))]
            grants: dict[str, list[GrantRecord]] = {}
            roles: dict[str, Policy] = {}
            for each in holders:
                held = await entries.with_prefix(_BY_HOLDER + quoted(each) + "/")
                for found in held.values():
                    grant = GrantRecord.load(found, ACCESS)
                    grants.setdefault(grant.scope, []).append(grant)
                for name in await entries.with_prefix(_ASSIGNED + quoted(each) + "/"):
                    rules = await entries.find(_ROLE + name)
                    if rules is not None:
                        roles[name] = load_policy(rules, f"role {name!r}")
            named = await entries.find(_ROLE + quoted(role)) if role else None
            return IdentityRights(
                grants,
                tuple(roles.values()),
                await entries.find(_PARENT + quoted(me)) is not None,
                None if named is None else load_policy(named, f"role {role!r}"),
                "" if await entries.has(_FROZEN + quoted(me)) else None,
            )

        found = await self._line.read_at(None if tip is None else tip.point, look)
        return found if found.frozen is None else found._replace(frozen=await self._reason(identity))

    async def grants(self, to: str = "", scope: Scope | None = None, *, dead: bool = False) -> list[GrantRecord]:
        """List grants, the oldest first: those of a holder, those of a scope; with `dead`, also those that were revoked
        or have expired recently."""
        prefix = _BY_HOLDER + (quoted(to) + "/" if to else "")
        found = await self._line.read(lambda entries: entries.with_prefix(prefix))
        grants = sorted((GrantRecord.load(each, ACCESS) for each in found.values()), key=lambda grant: grant.given)
        now, text = self._clock(), "" if scope is None else str(scope)
        return [each for each in grants if (dead or each.is_live(now)) and text in ("", each.scope)]

    async def groups(self) -> dict[str, list[str]]:
        """Return the groups and their members."""
        found: dict[str, list[str]] = {}
        for member in await self._line.read(lambda entries: entries.with_prefix(_MEMBER)):
            identity, group = map(unquoted, member.split("/"))
            found.setdefault(group, []).append(identity)
        return {group: sorted(found[group]) for group in sorted(found)}

    async def roles(self) -> dict[str, Policy]:
        """Return the roles and their policies."""
        found = await self._line.read(lambda entries: entries.with_prefix(_ROLE))
        return {unquoted(name): load_policy(rules, f"role {name!r}") for name, rules in found.items()}

    async def assignments(self) -> dict[str, list[str]]:
        """Return the roles of identities and groups."""
        found: dict[str, list[str]] = {}
        for each in await self._line.read(lambda entries: entries.with_prefix(_ASSIGNED)):
            to, role = map(unquoted, each.split("/"))
            found.setdefault(to, []).append(role)
        return found

    async def parents(self) -> list[str]:
        """List the identities that may read their children's scopes."""
        return [unquoted(name) for name in await self._line.read(lambda entries: entries.with_prefix(_PARENT))]

    async def frozen(self) -> dict[str, str]:
        """Return the identities that are frozen, and why."""
        return {str(row.key[3]): str(row.columns[1]) for row in sorted(await self._markers())}

    async def _markers(self) -> list[Row]:
        (rows,) = await self._line.engine.context.backend.read([Scan(LINKS, (*self._line.line, _MARKER))])
        return rows

    # Changing -------------------------------------------------------------------------------------------------

    async def freeze(self, identity: Identity, reason: str) -> None:
        """Deny an identity everything, also what it owns."""
        put = {_FROZEN + quoted(str(identity)): True}
        marker = Put(LINKS, Row(self._marker(identity), (self._clock(), reason)))
        await self._put("freeze", put, str(identity), {"reason": reason}, [marker])

    async def unfreeze(self, identity: Identity) -> None:
        """End that. `NotFoundError` if it is not frozen."""
        marker = Delete(LINKS, self._marker(identity))
        await self._remove("unfreeze", [_FROZEN + quoted(str(identity))], str(identity), None, [marker])

    async def is_frozen(self, identity: Identity) -> bool:
        """Return whether an identity is frozen. Reads one row."""
        return await self._reason(identity) is not None

    async def _reason(self, identity: Identity) -> str | None:
        (rows,) = await self._line.engine.context.backend.read([Get(LINKS, [self._marker(identity)])])
        return str(rows[0].columns[1]) if rows else None

    async def rewrite_reasons(self, rewrite: Callable[[str, str], str]) -> int:
        """Rewrite the reasons why identities are frozen, given both. Returns how many changed."""
        count = 0
        for row in await self._markers():
            old = str(row.columns[1])
            new = rewrite(str(row.key[3]), old)
            if new != old:
                put = Put(LINKS, row._replace(columns=(row.columns[0], new)))
                count += (
                    await self._line.engine.context.backend.apply([Expect(LINKS, row.key, row.columns), put]) is None
                )
        return count

    def not_frozen(self, identity: Identity) -> Change:
        """Return the condition that an identity is not frozen. It does not depend on other changes of rights."""
        return Expect(LINKS, self._marker(identity), None)

    def _marker(self, identity: Identity) -> Key:
        """Return the key of the row that a frozen identity has."""
        return (*self._line.line, _MARKER, str(identity), "")

    async def _check_actor(self, entries: SystemLineEntries) -> None:
        """Raise `DeniedError` if an identity that changes rights was frozen meanwhile."""
        if self._actor and await entries.has(_FROZEN + quoted(self._actor)):
            raise DeniedError(f"{self._actor} is frozen", code="identity-frozen")

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
                "a grant expires in time to come, not in the past", hint="Give a time after now, or none"
            )
        grant = GrantRecord(
            secrets.token_hex(8),
            request.to,
            request.right,
            "" if request.scope is None else str(request.scope),
            request.keys,
            request.below,
            request.until,
            self._actor,
            now,
            thread=request.thread,
        )
        prefix = _BY_HOLDER + quoted(grant.to) + "/"

        async def work_out(entries: SystemLineEntries) -> LineChange:
            await self._check_actor(entries)
            old = await entries.with_prefix(prefix)
            gone = [id for id, each in old.items() if 0 < GrantRecord.load(each, ACCESS).end_time() < now - RETENTION]
            removed = [prefix + id for id in gone] + [_GRANT + id for id in gone]
            put = {prefix + grant.id: grant.to_dict(), _GRANT + grant.id: grant.to}
            return LineChange(self._line.pack(put), removed, [self._grant_event("grant", grant)])

        return grant, self._line.request("grant", work_out)

    async def revoke(self, id: str, check: Callable[[GrantRecord], None] = lambda _: None) -> GrantRecord:
        """Revoke a grant. `NotFoundError` if there is none; `check` may raise an objection."""
        done: list[GrantRecord] = []

        async def work_out(entries: SystemLineEntries) -> LineChange:
            await self._check_actor(entries)
            to = await entries.find(_GRANT + quoted(id)) if id else None
            found = None if to is None else await entries.find(f"{_BY_HOLDER}{quoted(to)}/{id}")
            if found is None:
                raise NotFoundError("there is no such grant", where=ascii(id)[:80], hint="See access.grants()")
            grant = GrantRecord.load(found, ACCESS)
            check(grant)
            return self._revoke_change([grant], done)

        await self._line.change("revoke", work_out)
        return done[-1]

    def revoke_request(self, to: str, id: str, permit: Preconditions | None) -> AppendRequest:
        """Return the request that revokes a grant if it exists, to be saved with others that were permitted."""

        async def work_out(entries: SystemLineEntries) -> LineChange:
            if permit is not None:
                await permit(True)
            found = await entries.find(f"{_BY_HOLDER}{quoted(to)}/{id}")
            return self._revoke_change([] if found is None else [GrantRecord.load(found, ACCESS)], [])

        return self._line.request("revoke", work_out)

    async def cut_off(self, to: str) -> int:
        """Remove all rights of an identity or a group at once: grants, roles, groups, access to its children.

        It still owns its own scopes. Returns the number of rights removed.
        """
        taken: list[int] = []

        async def work_out(entries: SystemLineEntries) -> LineChange:
            held = await entries.with_prefix(_BY_HOLDER + quoted(to) + "/")
            now = self._clock()
            live = [grant for each in held.values() if (grant := GrantRecord.load(each, ACCESS)).is_live(now)]
            revoked = self._revoke_change(live, [])
            gone = []
            for prefix in (_ASSIGNED, _MEMBER):
                start = prefix + quoted(to) + "/"
                gone += [start + name for name in await entries.with_prefix(start)]
            if await entries.find(_PARENT + quoted(to)) is not None:
                gone.append(_PARENT + quoted(to))
            taken.append(len(live) + len(gone))
            events = [*revoked.events, Event("access", self._actor, "cut-off", to)]
            return LineChange(revoked.put, [*revoked.removed, *gone], events)

        await self._line.change("cut-off", work_out)
        return taken[-1]

    def _revoke_change(self, grants: Iterable[GrantRecord], done: list[GrantRecord]) -> LineChange:
        put: dict[str, Any] = {}
        events = []
        for grant in grants:
            # One that is dead already keeps the time at which it died.
            last = grant if grant.revoked else grant._replace(revoked=self._clock(), revoked_by=self._actor)
            put[f"{_BY_HOLDER}{quoted(grant.to)}/{grant.id}"] = last.to_dict()
            events.append(self._grant_event("revoke", last))
            done.append(last)
        return LineChange(self._line.pack(put), (), events)

    async def join(self, group: str, identities: Sequence[str]) -> None:
        """Add identities to a group."""
        if group == EVERYONE:
            raise InvalidError(f"everybody is in the group {EVERYONE!r} already")
        await self._put("join", {_member_name(each, group): True for each in identities}, f"{GROUP}{group}", identities)

    async def leave(self, group: str, identities: Sequence[str]) -> None:
        """Remove identities from a group. `NotFoundError` if one is not in it."""
        await self._remove("leave", [_member_name(each, group) for each in identities], f"{GROUP}{group}", identities)

    async def define(self, role: str, policy: Policy) -> None:
        """Store or replace the policy of a role."""
        name = check_key(role, "name of a role")
        await self._put("define", {_ROLE + quoted(name): policy.to_list()}, f"role:{name}", policy.to_list())

    async def undefine(self, role: str) -> None:
        """Delete a role; it gives its holders nothing any more. `NotFoundError` if there is none."""
        name = check_key(role, "name of a role")
        await self._remove("undefine", [_ROLE + quoted(name)], f"role:{name}", None)

    async def assign(self, role: str, to: str) -> None:
        """Assign a role. `NotFoundError` if there is none."""
        name = check_key(role, "name of a role")

        async def work_out(entries: SystemLineEntries) -> LineChange:
            if await entries.find(_ROLE + quoted(name)) is None:
                raise NotFoundError("there is no such role", where=f"role {name!r}", hint="Define it first")
            event = self._event("assign", to, {"role": name})
            put = self._line.pack({f"{_ASSIGNED}{quoted(to)}/{quoted(name)}": True})
            return LineChange(put, events=[event])

        await self._line.change("assign", work_out)

    async def unassign(self, role: str, to: str) -> None:
        """Remove the assignment of a role. `NotFoundError` if there is none."""
        name = check_key(role, "name of a role")
        await self._remove("unassign", [f"{_ASSIGNED}{quoted(to)}/{quoted(name)}"], to, {"role": name})

    async def authorize(self, identity: Identity) -> None:
        """Allow an identity to read the scopes of its children."""
        await self._put("authorize", {_PARENT + quoted(str(identity)): True}, str(identity), None)

    async def unauthorize(self, identity: Identity) -> None:
        """Revoke that. `NotFoundError` if it was not allowed."""
        await self._remove("unauthorize", [_PARENT + quoted(str(identity))], str(identity), None)

    async def _put(
        self, action: str, put: dict[str, Any], target: str, detail: object, rows: Sequence[Change] = ()
    ) -> None:
        async def work_out(entries: SystemLineEntries) -> LineChange:  # noqa: ARG001
            return LineChange(self._line.pack(put), (), [self._event(action, target, detail)], rows)

        await self._line.change(action, work_out)

    async def _remove(
        self, action: str, removed: Sequence[str], target: str, detail: object, rows: Sequence[Change] = ()
    ) -> None:
        async def work_out(entries: SystemLineEntries) -> LineChange:
            for name in removed:
                if await entries.find(name) is None:
                    raise NotFoundError("there is nothing of the kind to take away", where=f"{action} {target}"[:120])
            return LineChange({}, removed, [self._event(action, target, detail)], rows)

        await self._line.change(action, work_out)

    def _grant_event(self, action: str, grant: GrantRecord) -> Event:
        place = f"{THREAD}:{grant.thread}" if grant.thread else grant.scope
        return self._event(action, f"{place}{BETWEEN}{grant.keys}", grant.to_dict())

    def _event(self, action: str, target: str, detail: object) -> Event:
        packed = self._codec.pack(detail if isinstance(detail, dict) else {"of": detail}) if detail else b""
        return Event("access", self._actor, action, target, detail=packed)


async def _groups_of(entries: SystemLineEntries, identity: str) -> list[str]:
    return [EVERYONE, *map(unquoted, await entries.with_prefix(_MEMBER + quoted(identity) + "/"))]


def _member_name(identity: str, group: str) -> str:
    return f"{_MEMBER}{quoted(identity)}/{quoted(group)}"
