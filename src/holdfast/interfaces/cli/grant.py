"""`holdfast grant`: rights to the state of scopes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, CliGroup, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.completion_types import GRANT, GROUP, KEY, ROLE, SCOPE
from holdfast.interfaces.cli.exit_codes import ERROR
from holdfast.interfaces.cli.formatting import ago, clock, plural, safe
from holdfast.interfaces.cli.scope_args import as_option

if TYPE_CHECKING:
    from holdfast.security.access.policy import Policy, Right
    from holdfast.state.access_api import Grant, StoreAccess
    from holdfast.store.identity_view import IdentityView

_THREAD = "thread:"
"""The start of a pattern of threads, in place of a scope."""


class GrantGroup(CliGroup):
    """`holdfast grant agent:b read agent:a` is `holdfast grant give agent:b read agent:a`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Identities and groups have a colon, and no command has one.
        if args[0] not in self.commands and ":" not in args[0] and not args[0].startswith("-"):
            raise click.UsageError(
                f"{args[0]!r} is neither a command nor an identity or group, such as agent:b or group:editors", ctx
            )
        return super().resolve_command(ctx, ["give", *args] if ":" in args[0] else args)


@group("grant", cls=GrantGroup, default="list")
def grant(session: CliContext) -> None:
    """Grant, list and revoke the rights of identities; manage groups and roles.

    An identity is written like a scope: agent:b, user:alice/agent:writer. A group is group:editors; group:everyone
    includes all identities.

    holdfast grant agent:b read agent:a            let agent b read the state of agent a
    holdfast grant group:editors read,write agent:a --keys 'draft/*' --until 2h
    holdfast grant user:bob read 'thread:support-*' let bob read these threads
    holdfast grant list
    holdfast grant revoke ID
    """


@command("give", to=SCOPE, scope=SCOPE)
@click.argument("right", metavar="RIGHT[,RIGHT]…")
@click.option("--keys", default="", metavar="PATTERN", help="Only keys that match: plan/*.")
@click.option("--below", is_flag=True, help="Also all scopes below it.")
@click.option("--until", "end", metavar="WHEN", help="When it expires: after a duration (2h, 30d), or at a time.")
@as_option
def give(session: CliContext, to: str, right: str, scope: str, keys: str, below: bool, end: str | None) -> None:
    """Grant an identity or a group rights to a scope, or to threads. Prints the id of the grant.

    Rights are read, write, delete, erase, keys and admin; several are separated by commas. In place of a scope, thread:
    and a pattern names threads. With --as, an identity grants rights to what is its own.

    holdfast grant give agent:b read agent:a
    holdfast grant give agent:b write agent:a --keys 'inbox/*' --until 2026-12-31
    """
    rights, granter = cast("list[Right]", right.split(",")), _granter(session, session.identity)
    if scope.startswith(_THREAD):
        pattern = scope.removeprefix(_THREAD)
        granted = granter.grant(to, rights, thread=pattern, keys=keys, below=below, until=end)
    else:
        granted = granter.grant(to, rights, scope, keys=keys, below=below, until=end)
    session.report(granted.id, granted)
    may = granted.right.replace(",", " and ")
    what = f"{scope}{' and all below it' if below else ''}{f', keys {keys}' if keys else ''}"
    session.note(f"{granted.to} may {may} {what}{f', until {clock(granted.until)}' if granted.until else ''}.")


@command("list")
@click.option("--to", type=SCOPE, metavar="WHO", help="Only grants to this identity or group.")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only grants for this scope.")
@click.option("--dead", is_flag=True, help="Also those that were recently revoked or expired.")
@as_option
def list_(session: CliContext, to: str | None, scope: str | None, dead: bool) -> None:
    """List the grants, the oldest first. With --as: those for its own scopes, and those to it.

    holdfast grant list --to agent:b
    holdfast grant list --scope agent:a --dead
    """
    store = session.open(write=session.identity is not None)
    if session.identity is None:
        found = store.access.grants(to, scope, dead=dead)
    else:
        mine = store.as_identity(session.identity)
        every = {each.id: each for each in (*mine.grants(dead=dead), *mine.granted(dead=dead))}
        found = [each for each in every.values() if to in (None, each.to) and scope in (None, each.scope)]
    none = "There are no such grants." if to or scope or session.identity else "There are no grants."
    session.list(found, none=none, scope=_place, until=_format_end)


def _granter(session: CliContext, identity: str | None) -> StoreAccess | IdentityView:
    """Return what grants and revokes: the store's owner, or an identity, for its own scopes."""
    store = session.open(write=True)
    return store.access if identity is None else store.as_identity(identity)


def _place(grant: Grant) -> str:
    return (f"{_THREAD}{grant.thread}" if grant.thread else grant.scope) + "/**" * bool(grant.below)


def _format_end(grant: Grant) -> str:
    if grant.revoked is not None:
        return f"revoked {ago(grant.revoked)}"
    if grant.until is None:
        return ""
    return clock(grant.until) if grant.until > datetime.now(UTC) else f"expired {ago(grant.until)}"


@command("revoke")
@click.argument("ids", nargs=-1, required=True, type=GRANT, metavar="ID...")
@as_option
def revoke(session: CliContext, ids: tuple[str, ...]) -> None:
    """Revoke grants, with immediate effect, also in running programs.

    holdfast grant revoke ID
    """
    granter = _granter(session, session.identity)
    for id in ids:
        revoked = granter.revoke(id)
        session.tell(f"Revoked the grant {id} to {revoked.to}.", revoked)


@command("cut-off", who=SCOPE)
@dry_run_option
@yes_option
def cut_off(session: CliContext, who: str) -> None:
    """Revoke everything of an identity or a group: grants, roles, groups, access to its children.

    It keeps its own scopes.

    holdfast grant cut-off agent:b --yes
    """
    access = session.open(write=not session.dry_run).access
    if session.dry_run:
        grants, roles = len(access.grants(who)), len(access.assignments().get(who, ()))
        groups = [name for name, members in access.groups().items() if who in members]
        count = grants + roles + len(groups) + (who in access.parents())
    else:
        session.confirm(f"Revoke all rights of {who}?")
        count = access.cut_off(who)
    text = f"{'Would revoke' if session.dry_run else 'Revoked'} {plural(count, 'right')} of {who}."
    session.tell(text, {"who": who, "rights": count, "dry_run": session.dry_run})


@command("freeze", who=SCOPE)
@click.option("-m", "--reason", default="", metavar="TEXT", help="The reason, which its errors give.")
def freeze(session: CliContext, who: str, reason: str) -> None:
    """Deny an identity everything at once, also in its own scopes, until it is unfrozen.

    holdfast grant freeze agent:b -m "case 17"
    """
    session.open(write=True).access.freeze(who, reason=reason)
    session.tell(f"{who} is frozen.", {"who": who, "frozen": True, "reason": reason})


@command("unfreeze", who=SCOPE)
def unfreeze(session: CliContext, who: str) -> None:
    """Give a frozen identity its rights back.

    holdfast grant unfreeze agent:b
    """
    session.open(write=True).access.unfreeze(who)
    session.tell(f"{who} is no longer frozen.", {"who": who, "frozen": False})


@command("frozen")
def frozen(session: CliContext) -> None:
    """List the frozen identities, with the reasons.

    holdfast grant frozen
    """
    found = session.open().access.frozen()
    session.list(({"who": who, "reason": reason} for who, reason in found.items()), none="No identity is frozen.")


@command("check", who=SCOPE, right=click.Choice(("read", "write")), scope=SCOPE, key=KEY)
def check(session: CliContext, who: str, right: Literal["read", "write"], scope: str, key: str | None) -> None:
    """Check whether an identity may read or write a scope, or a key of it. The exit code is 0 for yes and 1 for no.

    holdfast grant check agent:b read agent:a plan
    """
    may = session.open().access.may(who, right, scope, key)
    answer = session.out.style("yes", "green") if may else session.out.style("no", "red")
    session.report((answer,), {"who": who, "right": right, "scope": scope, "key": key, "may": may})
    session.exit_if(not may, ERROR)


# Groups ---------------------------------------------------------------------------------------------------------


@command("groups")
def groups(session: CliContext) -> None:
    """List the groups and their members.

    holdfast grant groups
    """
    session.list(
        ({"group": name, "members": members} for name, members in session.open().access.groups().items()),
        none="There are no groups. `holdfast grant join GROUP WHO` creates one.",
    )


@command("join", group=GROUP)
@click.argument("members", nargs=-1, required=True, type=SCOPE, metavar="WHO...")
def join(session: CliContext, group: str, members: tuple[str, ...]) -> None:
    """Add identities to a group, which is created if needed.

    holdfast grant join editors agent:b user:alice
    """
    session.open(write=True).access.join(group, *members)
    session.tell(f"{', '.join(members)} joined {group}.", {"group": group, "joined": list(members)})


@command("leave", group=GROUP)
@click.argument("members", nargs=-1, required=True, type=SCOPE, metavar="WHO...")
def leave(session: CliContext, group: str, members: tuple[str, ...]) -> None:
    """Remove identities from a group.

    holdfast grant leave editors agent:b
    """
    session.open(write=True).access.leave(group, *members)
    session.tell(f"{', '.join(members)} left {group}.", {"group": group, "left": list(members)})


# Roles ----------------------------------------------------------------------------------------------------------


@command("roles")
def roles(session: CliContext) -> None:
    """List the roles: their rules, in order, and their holders.

    holdfast grant roles
    """
    access = session.open().access
    policies, assignments = access.roles(), access.assignments()
    if not policies:
        session.note("There are no roles. `holdfast grant define ROLE FILE` creates one.")
    for name, policy in policies.items():
        holders, rules = [who for who, names in assignments.items() if name in names], policy.to_list()
        lines = [session.out.style(safe(name), "yellow") + safe(f": {', '.join(holders)}" if holders else "")]
        for rule in rules:
            keys = "" if rule["keys"] == "**" else f", keys {rule['keys']}"
            lines.append(f"    {safe(rule['effect'])} {rule['right']} {safe(rule['scope'])}{safe(keys)}")
        session.report(lines, {"role": name, "rules": rules, "holders": holders})


@command("define", role=ROLE, file=click.Path())
def define(session: CliContext, role: str, file: str) -> None:
    """Define a role by a JSON file of rules, of which the first that matches decides; - is standard input.

    A rule is an object with an effect (allow or deny), rights (read, or several: read,write), and patterns
    of scopes and keys, by default **. The scope of a thread is thread: and its name.

    \b
    echo '[{"effect": "deny", "right": "read,write", "keys": "secret/**"},
           {"effect": "allow", "right": "read", "scope": "agent:*"}]' | holdfast grant define auditor -
    """
    policy = _policy(file)
    session.open(write=True).access.define_role(role, policy)
    session.tell(f"The role {role} has {plural(len(policy.rules), 'rule')}.", {"role": role, "rules": policy.to_list()})


def _policy(file: str) -> Policy:
    import json

    from holdfast.security.access.policy import Policy

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except (OSError, UnicodeError) as error:
        raise InvalidError(f"the file cannot be read: {error}", where=file) from None
    try:
        return Policy.of(json.loads(text))
    except ValueError as error:
        raise InvalidError(f"the file is not JSON: {error}", where=file) from None


@command("drop", role=ROLE)
@dry_run_option
@yes_option
def drop(session: CliContext, role: str) -> None:
    """Delete a role. Its rules no longer apply to its holders.

    holdfast grant drop auditor --yes
    """
    access = session.open(write=not session.dry_run).access
    if role not in access.roles():
        raise NotFoundError(f"there is no role {role!r}", hint="See holdfast grant roles")
    holders = [who for who, names in access.assignments().items() if role in names]
    if not session.dry_run:
        session.confirm(f"Delete the role {role} of {plural(len(holders), 'holder')}?")
        access.drop_role(role)
    text = f"{'Would delete' if session.dry_run else 'Deleted'} the role {role}."
    session.tell(text, {"role": role, "holders": holders, "dry_run": session.dry_run})


@command("assign", role=ROLE, to=SCOPE)
def assign(session: CliContext, role: str, to: str) -> None:
    """Assign a role to an identity or a group.

    holdfast grant assign auditor agent:b
    """
    session.open(write=True).access.assign(role, to)
    session.tell(f"{to} has the role {role}.", {"role": role, "to": to, "assigned": True})


@command("unassign", role=ROLE, to=SCOPE)
def unassign(session: CliContext, role: str, to: str) -> None:
    """Remove a role from an identity or a group.

    holdfast grant unassign auditor agent:b
    """
    session.open(write=True).access.unassign(role, to)
    session.tell(f"{to} no longer has the role {role}.", {"role": role, "to": to, "assigned": False})


# Children -------------------------------------------------------------------------------------------------------


@command("parents")
def parents(session: CliContext) -> None:
    """List the identities that may read the scopes of their children.

    holdfast grant parents
    """
    for who in session.open().access.parents():
        session.report(who, {"who": who})


@command("allow-children", who=SCOPE)
def allow_children(session: CliContext, who: str) -> None:
    """Allow an identity to read the scopes of its children: user:alice/agent:writer is a child of user:alice.

    holdfast grant allow-children user:alice
    """
    session.open(write=True).access.allow_children(who)
    session.tell(f"{who} may read the scopes of its children.", {"who": who, "children": True})


@command("forbid-children", who=SCOPE)
def forbid_children(session: CliContext, who: str) -> None:
    """Forbid an identity to read the scopes of its children.

    holdfast grant forbid-children user:alice
    """
    session.open(write=True).access.forbid_children(who)
    session.tell(f"{who} may no longer read the scopes of its children.", {"who": who, "children": False})


grant.add(give, list_, revoke, cut_off, check, groups, join, leave, roles, define, drop, assign, unassign)
grant.add(freeze, unfreeze, frozen, parents, allow_children, forbid_children)
