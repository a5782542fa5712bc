"""The guard of an identity: it permits access to what the identity owns or was granted, and records what it denies."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Create, Delete, Expect, Get, Put, Query, Row
from holdfast.backends.tables import LINES, LINKS, REFS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Action, Guard, Permit
from holdfast.engine.lines import LineTip
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.namespaces import ACCESS, missing_line_error, root_of, split_name
from holdfast.engine.patterns import KeyPattern
from holdfast.engine.row_format import Line, owner_key
from holdfast.errors import DeniedError, HoldfastError, InvalidError
from holdfast.security.access.identity import OWN_KINDS, Identity, require_scope
from holdfast.security.access.policy import OWNER_RIGHTS, GrantRecord, Policy
from holdfast.security.access.registry import AccessRegistry, IdentityRights
from holdfast.security.audit.recorder import WINDOW, AuditRecorder, escape

# Thread guard ---------------------------------------------------------------------------------------------------------
#
# Rights to threads: who owns one, and who else may do what with it.
#
# The owner of a thread is in a row of its own, under the thread's root line, so that it holds for all namespaces and
# moves with the thread. A thread without one belongs to the store's owner. The first identity that saves a thread
# which does not exist creates the row: the store lets only one create it.

_BATCH = 500


class ThreadOwnership(NamedTuple):
    """The stored owner of a thread."""

    root: Line
    owner: Row | None
    """The row of the owner; None if the thread belongs to the store's owner, or to nobody yet."""
    is_free: bool
    """Whether no thread has the name."""
    former: Row | None
    """The row of the owner whose thread somebody else deleted: the name stays reserved for that owner."""

    @property
    def name(self) -> str:
        """The identity that owns the thread, or for which its name is reserved; empty for none."""
        if self.owner is not None:
            return str(self.owner.columns[0])
        return str(self.former.columns[1]) if self.is_free and self.former is not None else ""

    @property
    def thread(self) -> str:
        """The name of the thread, as patterns match it: in the normal form that these have."""
        return unicodedata.normalize("NFC", split_name(self.root.name)[0] or self.root.name)

    def unchanged(self) -> list[Change]:
        """Return the conditions that all of this stays so."""
        changes: list[Change] = [Expect(REFS, owner_key(self.root), None if self.owner is None else self.owner.columns)]
        if self.owner is None:
            changes.append(Expect(LINKS, _former_key(self.root), None if self.former is None else self.former.columns))
        return changes

    def claim(self, actor: str, now: int) -> list[Change]:
        """Return the changes that make an identity the owner of a thread that does not exist yet."""
        claimed: list[Change] = [
            *self.unchanged()[1:],
            Create(REFS, Row(owner_key(self.root), (actor, now))),
            Expect(LINES, tuple(self.root), None),
        ]
        return claimed if self.former is None else [*claimed, Delete(LINKS, _former_key(self.root))]

    def reserve(self, now: int) -> list[Change]:
        """Return the change that reserves the name of a thread for its owner, when somebody else deletes it."""
        return [Put(LINKS, Row(_former_key(self.root), (now, self.name)))]


async def read_ownership(engine: Engine, line: Line) -> ThreadOwnership:
    """Read who owns a thread, by its line or that of a namespace."""
    return await _ownership(engine, line, ())


def _owner_query(line: Line) -> Query:
    return Get(REFS, [owner_key(root_of(line))])


async def _ownership(engine: Engine, line: Line, owners: Sequence[Row]) -> ThreadOwnership:
    """Return who owns a thread, given the row of its owner if that was read and there is one."""
    root, is_free = root_of(line), False
    former: Sequence[Row] = ()
    if not owners:
        owners, lines, former = await engine.context.backend.read(
            [_owner_query(line), Get(LINES, [tuple(root)]), Get(LINKS, [_former_key(root)])]
        )
        is_free = not owners and not lines and len(await engine.lines.family(root)) == 1
    return ThreadOwnership(root, owners[0] if owners else None, is_free, former[0] if former else None)


async def read_owners(engine: Engine, lines: Iterable[Line]) -> dict[Line, str]:
    """Return the owners of the threads of some lines; empty for the store's owner."""
    roots = {line: root_of(line) for line in lines}
    found: dict[Key, str] = {}
    keys = [owner_key(root) for root in dict.fromkeys(roots.values())]
    for start in range(0, len(keys), _BATCH):
        (rows,) = await engine.context.backend.read([Get(REFS, keys[start : start + _BATCH])])
        found |= {row.key: str(row.columns[0]) for row in rows}
    return {line: found.get(owner_key(root), "") for line, root in roots.items()}


def set_owner_changes(root: Line, owner: str, now: int) -> Sequence[Change]:
    """Return the changes that give a thread an owner; the store's owner, if that is empty."""
    changes: list[Change] = [Delete(LINKS, _former_key(root))]
    if owner:
        return [*changes, Put(REFS, Row(owner_key(root), (owner, now)))]
    return [*changes, Delete(REFS, owner_key(root))]


def _former_key(root: Line) -> Key:
    return (root.tenant, ACCESS, "owner", root.name, "")


Mode: TypeAlias = Literal["strict", "read-only", "custom"]
MODES = ("strict", "read-only", "custom")

_MOST_KEYS = 8
"""An attempt at more keys than this is recorded for the whole scope."""


class GuardMode(NamedTuple):
    """The mode of a guard."""

    mode: Mode = "strict"
    policy: Policy | None = None
    """The policy of the mode `custom`."""
    role: str = ""
    """The stored role of the mode `custom`."""
    children: bool = True
    """Whether an authorisation to read children is used."""
    window: float = WINDOW
    may_block: bool = True
    """Whether calls may block, as those of sync programs."""


class DenialReason(NamedTuple):
    """The reason of a denial."""

    why: str
    hint: str
    code: str = ""


FROZEN = "identity-frozen"
"""The code of the errors of a frozen identity."""

_ONLY_READS = DenialReason("this handle only reads", "Act in another mode to write")
_ROLE_DENIES = DenialReason("a role denies it", "Roles are the store's owner's to change")
_NOT_GRANTED = DenialReason("it is not its own, and not granted", "Whoever owns it, or the store, can grant it")


class IdentityGuard(Guard):
    """Checks every access of an identity to the state of scopes."""

    def __init__(
        self, engine: Engine, tenant: str, identity: Identity, guard_mode: GuardMode, notes: AuditRecorder
    ) -> None:
        self.identity = identity
        self.guard_mode = guard_mode
        self.actor: str = str(identity)
        self._own = identity.scope.parts
        self._length = len(self._own)
        self.engine = engine
        self._access = AccessRegistry(engine, tenant, self.actor)
        self._clock = engine.context.clock
        self._recorder = notes
        self._cached_rights: tuple[bytes, IdentityRights] = (b"", IdentityRights())

    # Names ----------------------------------------------------------------------------------------------------

    def scope(self, parts: Mapping[str, str | None] | Scope | str) -> Scope:
        """Return the scope that is named. An invalid name is recorded."""
        try:
            if isinstance(parts, Scope):
                return Scope.of(**dict(require_scope(parts).parts))
            return Scope.of(**parts) if isinstance(parts, Mapping) else Scope.parse(parts)
        except InvalidError as error:
            self._recorder.invalid_name(
                self.actor, _describe_scope(parts), "", error.what, wait=self.guard_mode.may_block
            )
            raise

    def key(self, where: Scope | str, text: object, what: str = "key") -> str:
        """Return the key or the id that is named. An invalid name is recorded."""
        try:
            return check_key(text, what)
        except InvalidError as error:
            self._recorder.invalid_name(
                self.actor, escape(str(where)), text, error.what, wait=self.guard_mode.may_block
            )
            raise

    # Rights ---------------------------------------------------------------------------------------------------

    def owns(self, scope: Scope) -> bool:
        """Whether the identity owns a scope."""
        parts = require_scope(scope).parts
        if parts == self._own:
            return True
        return parts[: self._length] == self._own and all(part.kind in OWN_KINDS for part in parts[self._length :])

    async def allow(self, action: Action, scope: Scope, keys: Sequence[str]) -> Permit:
        """Permit an action, or record it and raise `DeniedError`. A permit has the condition that the identity is not
        frozen; one that depends on grants, that these were not revoked."""
        if action == "write":
            await self.allow_change(scope, keys)
        depends, asked = self._depends_on_rights(scope), tuple(keys)
        if depends:
            tip = await self._access.tip()
            rights, conditions = await self._rights(tip), self._access.tip_unchanged(tip)
        else:
            frozen = await self._access.is_frozen(self.identity)
            rights = await self._rights(await self._access.tip()) if frozen else IdentityRights()
            conditions = [self.frozen_condition()]
        refusal = self.refuse(rights, action, require_scope(scope), keys)
        if refusal is not None:
            raise await self.denied_error(action, scope, keys, refusal)

        async def conditions_now(again: bool) -> Sequence[Change]:
            """Return the conditions at the first attempt, and check the action by the current rights at later ones."""
            if not again:
                return conditions
            checked = await self.recheck(action, scope, asked)
            return checked if depends else conditions

        return Permit(conditions_now)

    async def require_active(self, action: str) -> None:
        """Raise `DeniedError` if the identity is frozen."""
        refusal = _frozen(await self._rights(await self._access.tip()))
        if refusal is not None:
            raise await self.denied_error(action, self.identity.scope, (), refusal)

    async def allow_change(self, scope: Scope, keys: Sequence[str]) -> None:
        """Refuse a change by a handle that only reads."""
        if self.guard_mode.mode == "read-only":
            raise await self.denied_error("write", scope, keys, _ONLY_READS)

    async def visible(self, scopes: Sequence[Scope]) -> list[Scope]:
        """Return the scopes that may be read as a whole. Nothing is recorded."""
        rights = await self._rights(await self._access.tip())
        return [each for each in scopes if self.refuse(rights, "read", require_scope(each), ()) is None]

    async def readable(self, keys: Sequence[tuple[Scope, str]]) -> list[tuple[Scope, str]]:
        """Return the keys that may be read. Nothing is recorded."""
        rights = await self._rights(await self._access.tip())
        return [
            (scope, key)
            for scope, key in keys
            if self.refuse(rights, "read", require_scope(scope), (key,) if key else ()) is None
        ]

    async def saw(self, scope: Scope, keys: Sequence[str]) -> None:
        """Record that keys were read. `DeniedError` if the right was revoked meanwhile, or the identity frozen."""
        if self._depends_on_rights(scope) or await self._access.is_frozen(self.identity):
            refusal = self.refuse(await self._rights(await self._access.tip()), "read", scope, keys)
            if refusal is not None:
                raise await self.denied_error("read", scope, keys, refusal)
        await self._recorder.read(self.actor, scope, keys, self.guard_mode.window)

    # Threads --------------------------------------------------------------------------------------------------

    async def allow_thread(self, right: str, line: Line, *, creates: bool = False, removes: bool = False) -> Permit:
        """Permit an action on a thread. The permit has the conditions that its owner and the rights stay so; the first
        save of a thread makes the identity its owner."""
        conditions = _ThreadConditions(self, right, line, creates=creates, removes=removes)
        await conditions.check()
        return Permit(conditions)

    async def saw_thread(self, line: Line) -> None:
        """Record that a thread was read. Raises if the right was revoked meanwhile."""
        await _ThreadConditions(self, "read", line).check()
        await self._recorder.read(self.actor, Scope.of_thread(root_of(line).name), (), self.guard_mode.window)

    async def visible_threads(self, lines: Sequence[Line]) -> set[Line]:
        """Return the lines of threads that may be read. Nothing is recorded."""
        rights = await self._rights(await self._access.tip())
        owners = await read_owners(self.engine, lines)
        names = {line: ThreadOwnership(root_of(line), None, False, None).thread for line in lines}
        return {line for line in lines if self.refuse_thread(rights, "read", names[line], owners[line]) is None}

    def refuse_thread(self, rights: IdentityRights, right: str, thread: str, owner: str) -> DenialReason | None:
        """Return why a right to a thread with this owner is not given; None if it is."""
        mode = self.guard_mode
        if rights.frozen is not None:
            return _frozen(rights)
        if mode.mode == "read-only" and right != "read":
            return _ONLY_READS
        if mode.mode == "custom":
            policy = mode.policy or rights.role
            return self._no_role() if policy is None else _policy_refusal(policy.thread_verdict(right, thread))
        if owner == self.actor and right in OWNER_RIGHTS:
            return None
        verdicts = [policy.thread_verdict(right, thread) for policy in rights.policies]
        if False in verdicts:
            return _ROLE_DENIES
        if True in verdicts:
            return None
        now, named = self._clock(), rights.find_thread_grants(right, thread)
        if any(grant.is_live(now) and grant.covers_thread(right, thread, owner) for grant in named):
            return None
        # Whoever owns the thread, and whether it exists or not: the explanation tells nothing of that.
        ended = [grant for grant in named if not grant.is_live(now)]
        dead = max(ended, key=lambda one: one.end_time(), default=None)
        return _NOT_GRANTED if dead is None else _ended(dead)

    async def deny_thread(self, right: str, line: Line, refusal: DenialReason, *, hides: bool) -> HoldfastError:
        """Record a denied action on a thread, and return its error, which may hide whether the thread exists."""
        place = str(Scope.of_thread(root_of(line).name))
        await self._recorder.denied(self.actor, right, place, (), refusal.why)
        if hides and refusal.code != FROZEN:
            missing = missing_line_error(line)  # as if it did not exist
            missing.hint += f"; {refusal.why}" if refusal.code else ""
            return missing
        what = f"{self.actor} may not {right} this: {refusal.why}"
        return DeniedError(what, where=f"thread {line}", hint=refusal.hint, code=refusal.code)

    async def read_thread(self, line: Line) -> tuple[ThreadOwnership, IdentityRights, list[Change]]:
        """Return who owns a thread, and the current rights with the conditions that they stay so."""
        tip, (owners,) = await self._access.tip_and(_owner_query(line))
        found = await _ownership(self.engine, line, owners)
        return found, await self._rights(tip), self._access.tip_unchanged(tip)

    def frozen_condition(self) -> Change:
        """Return the condition that the identity is not frozen."""
        return self._access.not_frozen(self.identity)

    def _depends_on_rights(self, scope: Scope) -> bool:
        """Whether stored rights decide on a scope: not on the identity's own ones, and not where a policy was given."""
        return self.guard_mode.policy is None and (self.guard_mode.mode == "custom" or not self.owns(scope))

    def refuse(self, rights: IdentityRights, action: Action, scope: Scope, keys: Sequence[str]) -> DenialReason | None:
        """Return why an action is not allowed; None if it is."""
        guard_mode = self.guard_mode
        if rights.frozen is not None:
            return _frozen(rights)
        if guard_mode.mode != "custom" and self.owns(scope):
            return None
        if guard_mode.policy is not None:
            return check_policy(guard_mode.policy, action, scope, keys)
        return self.decide(rights, action, scope, keys)

    def decide(self, rights: IdentityRights, action: Action, scope: Scope, keys: Sequence[str]) -> DenialReason | None:
        """Return why stored rights do not allow an action on a scope of somebody else; None if they do."""
        refusal = self._decide(rights, action, scope, keys)
        if refusal is not None and len(keys) > 1:
            # One key may be allowed by one right, and another by another.
            refusals = (self._decide(rights, action, scope, (key,)) for key in keys)
            return next((each for each in refusals if each is not None), None)
        return refusal

    def _decide(self, rights: IdentityRights, action: Action, scope: Scope, keys: Sequence[str]) -> DenialReason | None:
        if self.guard_mode.mode == "custom":
            return self._no_role() if rights.role is None else check_policy(rights.role, action, scope, keys)
        verdicts = [policy.verdict(action, scope, keys) for policy in rights.policies]
        if False in verdicts:
            return _ROLE_DENIES
        if True in verdicts:
            return None
        if (
            action == "read"
            and rights.reads_children
            and self.guard_mode.children
            and self.identity.is_parent_of(scope)
        ):
            return None
        return self._by_grants(rights, action, scope, keys)

    def _no_role(self) -> DenialReason:
        return DenialReason(f"there is no role {self.guard_mode.role!r}", "The store's owner can define it")

    def _by_grants(
        self, rights: IdentityRights, action: Action, scope: Scope, keys: Sequence[str]
    ) -> DenialReason | None:
        now = self._clock()
        reaching = rights.find_grants(action, scope)
        live = [grant for grant in reaching if grant.is_live(now)]
        if any(not grant.keys for grant in live):
            return None
        for key in keys or (None,):
            if any(grant.covers(key) for grant in live):
                continue
            dead = max((grant for grant in reaching if grant.covers(key)), key=lambda one: one.end_time(), default=None)
            if dead is not None:
                return _ended(dead)
            if (key is None or isinstance(key, KeyPattern)) and live:
                return DenialReason(
                    "only some keys of the scope are granted", "Name the keys, or their pattern, or ask for the scope"
                )
            break
        else:
            return None
        return _NOT_GRANTED

    async def denied_error(self, action: str, scope: Scope, keys: Sequence[str], refusal: DenialReason) -> DeniedError:
        """Record a denied action, and return its error."""
        recorded = keys if len(keys) <= _MOST_KEYS else ()
        await self._recorder.denied(self.actor, action, str(scope), recorded, refusal.why)
        where = f"key {keys[0]!r} of {scope}" if len(keys) == 1 else str(scope)
        what = f"{self.actor} may not {action} this: {refusal.why}"
        return DeniedError(what, where=where, hint=refusal.hint, code=refusal.code)

    async def _rights(self, tip: LineTip | None) -> IdentityRights:
        """Return the rights as of a tip of the line; cached until it changes."""
        if tip is None or tip.point is None:
            return IdentityRights()
        known, rights = self._cached_rights
        if known != tip.point.hash:
            rights = await self._access.rights(tip, self.identity, self.guard_mode.role)
            self._cached_rights = (tip.point.hash, rights)
        return rights

    async def recheck(self, action: Action, scope: Scope, keys: tuple[str, ...]) -> list[Change]:
        """Check an action again by the current rights, and return the conditions that they stay so."""
        tip = await self._access.tip()
        refusal = self.refuse(await self._rights(tip), action, scope, keys)
        if refusal is not None:
            raise await self.denied_error(action, scope, keys, refusal)
        return self._access.tip_unchanged(tip)


class _ThreadConditions:
    """The conditions of a permit to do something with a thread, which are read again at later attempts."""

    def __init__(
        self, guard: IdentityGuard, right: str, line: Line, *, creates: bool = False, removes: bool = False
    ) -> None:
        self._guard = guard
        self._creates = creates
        self._removes = removes
        self._right = right
        self._line = line
        self._conditions: list[Change] = []

    async def check(self) -> None:
        """Read the owner and the rights, and raise if they do not permit it."""
        guard, right = self._guard, self._right
        found, rights, unchanged = await guard.read_thread(self._line)
        owner, now = found.name, guard.engine.context.clock()
        # Nobody owns a thread that does not exist: whoever saves it first does.
        is_first = found.is_free and self._creates
        is_new = is_first and owner in ("", guard.actor)
        refusal = guard.refuse_thread(rights, right, found.thread, guard.actor if is_new else owner)
        if refusal is not None:
            sees = not found.is_free and guard.refuse_thread(rights, "read", found.thread, owner) is None
            raise await guard.deny_thread(right, self._line, refusal, hides=not (sees or self._creates))
        is_own = guard.guard_mode.mode != "custom" and right in OWNER_RIGHTS and (is_new or guard.actor == owner)
        conditions = [guard.frozen_condition()] if is_own else unchanged
        # A name that is reserved for its former owner gives the thread to that one, whoever saves it.
        conditions += found.claim(owner or guard.actor, now) if is_first else found.unchanged()
        if self._removes and owner not in ("", guard.actor):
            await guard.engine.lines.ensure_row(Line(self._line.tenant, ACCESS))
            conditions += found.reserve(now)
        self._conditions = conditions

    async def __call__(self, again: bool) -> Sequence[Change]:
        if again:
            await self.check()
        return self._conditions


def _frozen(rights: IdentityRights) -> DenialReason | None:
    """Return why a frozen identity is denied everything; None if it is not frozen."""
    if rights.frozen is None:
        return None
    because = f": {rights.frozen}" if rights.frozen else ""
    return DenialReason(f"it is frozen{because}", "The store's owner can unfreeze it", code=FROZEN)


def check_policy(policy: Policy, action: Action, scope: Scope, keys: Sequence[str]) -> DenialReason | None:
    """Return why a policy does not allow an action; None if it does."""
    return _policy_refusal(policy.verdict(action, scope, keys))


def _policy_refusal(verdict: bool | None) -> DenialReason | None:
    if verdict:
        return None
    return DenialReason(
        "a rule of the policy denies it" if verdict is False else "no rule of the policy allows it",
        "The store's owner sets the policy",
    )


def _ended(grant: GrantRecord) -> DenialReason:
    """Return why a grant that was revoked or has expired allows nothing."""
    if grant.revoked:
        why = f"the grant {grant.id} was revoked at {_format_time(grant.revoked)}"
        return DenialReason(why, "Ask for another", code="grant-revoked")
    why = f"the grant {grant.id} expired at {_format_time(grant.until)}"
    return DenialReason(why, "Ask for another", code="grant-expired")


def _describe_scope(parts: object) -> str:
    """Return what a caller gave for a scope, for the record."""
    if isinstance(parts, Mapping):
        return escape("/".join(f"{kind}:{escape(name)}" for kind, name in parts.items()))
    return escape(parts)


def _format_time(time: int) -> str:
    return datetime.fromtimestamp(time / 1e9, UTC).isoformat(timespec="seconds")
