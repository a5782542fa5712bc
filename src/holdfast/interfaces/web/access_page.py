"""The data of the pages of access: who has which rights, tokens, and what the store has of a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from holdfast._fields import Label
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.action_plan import ActionField, ActionForm
from holdfast.interfaces.web.download import Download, new_download
from holdfast.interfaces.web.operation_form import Given, OperationForm, fill_form
from holdfast.interfaces.web.page_renderer import segment
from holdfast.security.access.identity import EVERYONE, GROUP
from holdfast.security.access.policy import Policy
from holdfast.state.access_api import Grant, Token

_THREAD = "thread:"
_NAMES = 500
"""How many names of what an erasure would delete are shown."""

_RIGHTS = (
    ("read", "read"),
    ("read,write", "read and write"),
    ("write", "write"),
    ("read,write,delete", "read, write and delete"),
    ("read,write,delete,erase", "read, write, delete and erase"),
    ("keys", "see what is redacted"),
    ("admin", "hold and release"),
)


class IdentityRow(NamedTuple):
    """What an identity, or a group, has been given."""

    identity: str
    grants: int
    roles: str
    groups: str
    tokens: int
    frozen: str
    """Why it is frozen; `-` if no reason was given, and empty if it is not."""


class RoleRow(NamedTuple):
    """A role, with a rule a line, and who has it."""

    role: str
    rules: str
    holders: Annotated[str, Label("who has it")]


class GroupRow(NamedTuple):
    """A group with its members."""

    group: str
    members: str


# Pages ------------------------------------------------------------------------------------------------------------


def access_values(call: Call, tab: str = "") -> dict[str, Any]:
    """Return what the page of access shows: identities, or one of the other parts."""
    access = call.owned.access
    values: dict[str, Any] = {"tab": tab, "changeable": call.service.may_write(call.caller)}
    if tab == "":
        return {**values, "items": _identities(call)}
    if tab == "grants":
        return {**values, "items": access.grants(dead=True)[::-1]}
    if tab == "tokens":
        return {**values, "items": access.tokens(dead=True)[::-1]}
    if tab == "roles":
        holders: dict[str, list[str]] = {}
        for who, roles in access.assignments().items():
            for each in roles:
                holders.setdefault(each, []).append(who)
        rows = [
            RoleRow(name, "\n".join(map(_rule, policy.to_list())), ", ".join(holders.get(name, ())))
            for name, policy in access.roles().items()
        ]
        groups = [GroupRow(name, ", ".join(members)) for name, members in access.groups().items()]
        return {**values, "items": rows, "groups": groups}
    raise NotFoundError("there is no page at this address", hint="Go to the access rights")


def _rule(rule: Mapping[str, str]) -> str:
    keys = "" if rule["keys"] == "**" else f", keys {rule['keys']}"
    return f"{rule['effect']} {rule['right']} {rule['scope']}{keys}"


def _identities(call: Call) -> list[IdentityRow]:
    """List everybody that the rights name."""
    access = call.owned.access
    grants, tokens, roles, frozen = access.grants(), access.tokens(), access.assignments(), access.frozen()
    groups: dict[str, list[str]] = {}
    for group, members in access.groups().items():
        for each in members:
            groups.setdefault(each, []).append(group)
    known = {*(each.to for each in grants), *(each.identity for each in tokens), *roles, *groups, *frozen}
    return [
        IdentityRow(
            who,
            sum(each.to == who for each in grants),
            ", ".join(roles.get(who, ())),
            ", ".join(groups.get(who, ())),
            sum(each.identity == who for each in tokens),
            (frozen[who] or "-") if who in frozen else "",
        )
        for who in sorted(filter(None, {*known, *access.parents()}))
    ]


def identity_values(call: Call, who: str) -> dict[str, Any]:
    """Return what the page of an identity or a group shows: what it was given, and what it has itself."""
    access = call.owned.access
    is_group = who.startswith(GROUP)
    grants: Sequence[Grant] = access.grants(who, dead=True)[::-1]
    tokens: Sequence[Token] = [each for each in access.tokens(dead=True) if each.identity == who][::-1]
    groups = access.groups()
    return {
        "who": who,
        "is_group": is_group,
        "grants": grants,
        "tokens": tokens,
        "roles": access.assignments().get(who, []),
        "groups": [] if is_group else [EVERYONE, *(name for name, members in groups.items() if who in members)],
        "members": groups.get(who.removeprefix(GROUP), []) if is_group else [],
        "frozen": access.frozen().get(who),
        "parent": who in access.parents(),
        "person": who.partition("/")[0].removeprefix("user:") if who.startswith("user:") else "",
        "changeable": call.service.may_write(call.caller),
    }


def person_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of a person shows: what an erasure would delete; and all certificates."""
    erasure = call.owned.erasure
    subject = params.get("subject", "").strip()
    values: dict[str, Any] = {"subject": subject, "report": None, "problem": None, "names": [], "more": 0}
    values |= {"changeable": call.service.may_write(call.caller), "certificates": erasure.certificates()[::-1]}
    if not subject:
        return values
    try:
        report = erasure.erase(subject, dry_run=True)
    except HoldfastError as error:
        return {**values, "problem": to_problem(error)}
    names = [(*each.split(" ", 2), _address(*each.split(" ", 2)[1:])) for each in report.names[:_NAMES]]
    return {**values, "report": report, "names": names, "more": len(report.names) - len(names)}


def _address(kind: str, name: str = "") -> str:
    """Return the page of something that an erasure names; empty if it has none."""
    pages = {"thread": "threads", "agent": "agents", "session": "sessions", "artifact": "artifacts", "scope": "state"}
    return f"/{pages[kind]}/{segment(name)}" if kind in pages and name else ""


# Forms ------------------------------------------------------------------------------------------------------------


def access_form_values(call: Call, action: str, form: ActionForm) -> dict[str, Any]:
    """Return what a form of access rights shows; and do it, if it was sent to be done."""
    call.owned  # noqa: B018 - refuses identities
    chosen = FORMS.get(action)
    if chosen is None:
        raise NotFoundError("there is no page at this address", hint="Go to the access rights")
    filled = fill_form(call, chosen, form)
    secret = filled.result.secret if isinstance(filled.result, Token) and filled.result.live else ""
    report = filled.result if action == "erase" else None
    return {"form": chosen, "filled": filled, "plan": filled.plan, "secret": secret, "report": report}


def export_person(call: Call, subject: str) -> Download:
    """Return everything of a person as a file."""
    with new_download(f"{subject}.jsonl.gz") as made:
        call.owned.erasure.export(subject, made.path)
        return made


def _place(text: str) -> dict[str, Any]:
    """Return the arguments that name a scope, or threads by `thread:` and a pattern."""
    if text.startswith(_THREAD):
        return {"thread": text.removeprefix(_THREAD)}
    return {"scope": text}


def _several(text: str) -> list[str]:
    found = [each.strip() for each in text.replace("\n", ",").split(",") if each.strip()]
    if not found:
        raise InvalidError("nobody is named")
    return found


def _policy(text: str) -> Policy:
    try:
        return Policy.of(json.loads(text))
    except ValueError as error:
        raise InvalidError(f"the rules are not JSON: {error}") from None


def _grant_arguments(given: Given) -> tuple[Sequence[Any], Mapping[str, Any]]:
    named = {name: given[name] for name in ("keys", "until") if given[name]}
    below = {"below": True} if given["below"] else {}
    return [given["to"], given["right"]], {**_place(given["place"]), **named, **below}


def _grant_effects(given: Given) -> list[str]:
    who, what = given["to"] or "…", given["place"] or "…"
    place = f"threads named {what.removeprefix(_THREAD)}" if what.startswith(_THREAD) else what
    keys = f"keys {given['keys']} of " if given["keys"] else ""
    ends = f"It ends {given['until']} from now, or at that time." if given["until"] else "It ends when it is revoked."
    return [f"{who} may {given['right'].replace(',', ', ')} {keys}{place}, at once and in every process.", ends]


def _token_arguments(given: Given) -> tuple[Sequence[Any], Mapping[str, Any]]:
    until = None if given["until"] in ("", "never") else given["until"]
    options = {"until": until, "read_only": bool(given["read_only"]), "name": given["name"]}
    return [None if given["identity"] == "owner" else given["identity"]], {k: v for k, v in options.items() if v}


def _one(*names: str) -> Any:
    """Return the arguments of an operation that takes these fields by position."""
    return lambda given: ([given[name] for name in names], {})


_WHO = ActionField("who", "Who", "", hint="user:alice")


def _form_of_one(
    title: str, operation: str, back: str, field: ActionField, words: str, *effects: str, confirm: bool = False
) -> OperationForm:
    """Return a form of one field. `words` are those of the command, and what stands for an empty field; the effects
    have `{}` for it."""
    *command, placeholder = words.split()
    return OperationForm(
        title,
        operation,
        title.split()[0],
        back,
        [field],
        field.name,
        _one(field.name),
        lambda given: [each.format(given[field.name] or "…") for each in effects],
        lambda given: [*command, given[field.name] or placeholder],
        confirm=field.name if confirm else "",
    )


def _members_form(
    title: str, operation: str, button: str, verb: str, hints: tuple[str, str] = ("", "")
) -> OperationForm:
    """Return the form that adds members to a group, or removes them."""
    return OperationForm(
        title,
        f"access.{operation}",
        button,
        "/access/roles",
        [ActionField("group", "Group", "", hint=hints[0]), ActionField("members", "Who", "", hint=hints[1])],
        "group members",
        lambda given: ([given["group"], *_several(given["members"])], {}),
        lambda given: [f"{given['members'] or '…'} {verb} what the group {given['group'] or '…'} has."],
        lambda given: [
            *("grant", operation, given["group"] or "GROUP"),
            *(given["members"] or "WHO").replace(",", " ").split(),
        ],
    )


def _role_form(title: str, operation: str, who: str, verb: str, hints: tuple[str, str] = ("", "")) -> OperationForm:
    """Return the form that assigns a role, or takes it away."""
    return OperationForm(
        title,
        f"access.{operation}",
        title.replace(" a role", ""),
        "/access/roles",
        [ActionField("role", "Role", "", hint=hints[0]), ActionField("to", who, "", hint=hints[1])],
        "role to",
        _one("role", "to"),
        lambda given: [f"{given['to'] or '…'} {verb} the rights of the role {given['role'] or '…'}."],
        lambda given: ["grant", operation, given["role"] or "ROLE", given["to"] or "WHO"],
    )


FORMS: Mapping[str, OperationForm] = {
    "grant": OperationForm(
        "Give access",
        "access.grant",
        "Give access",
        "/access/grants",
        [
            ActionField("to", "To", "", hint="user:bob, agent:writer or group:editors"),
            ActionField("right", "The right to", "read", "select", _RIGHTS),
            ActionField("place", "To what", "", hint="thread:support-*, agent:writer or user:alice"),
            ActionField("until", "Until", "", hint="7d, or 2027-01-31; empty for ever"),
            ActionField("keys", "Only keys that match", "", hint="plan/*"),
            ActionField("below", "And all scopes below it", "", "check"),
        ],
        "to place",
        _grant_arguments,
        _grant_effects,
        lambda given: [
            *("grant", "give", given["to"] or "WHO", given["right"], given["place"] or "SCOPE"),
            *(("--keys", given["keys"]) if given["keys"] else ()),
            *(("--until", given["until"]) if given["until"] else ()),
            "--below" if given["below"] else "",
        ],
    ),
    "revoke": _form_of_one(
        "Revoke a grant",
        "access.revoke",
        "/access/grants",
        ActionField("grant", "Grant", "", hint="its id"),
        "grant revoke ID",
        "Who has it loses the right at once, in every process and for open handles.",
    ),
    "issue-token": OperationForm(
        "Issue a token",
        "access.issue_token",
        "Issue",
        "/access/tokens",
        [
            ActionField("identity", "For", "", hint="user:alice, or owner for everything"),
            ActionField("until", "Until", "30d", hint="30d, or never"),
            ActionField("name", "What it is for", "", hint="laptop"),
            ActionField("read_only", "It changes nothing", "", "check"),
        ],
        "identity",
        _token_arguments,
        lambda given: [
            "Who has the token acts for "
            + ("the owner, and may do everything." if given["identity"] == "owner" else f"{given['identity'] or '…'}."),
            "Its text is shown once, and stored nowhere.",
        ],
        lambda given: [
            *("token", "issue", "--owner" if given["identity"] == "owner" else given["identity"] or "WHO"),
            *("--until", given["until"] or "never"),
            *(("--name", given["name"]) if given["name"] else ()),
            "--read-only" if given["read_only"] else "",
        ],
    ),
    "revoke-token": _form_of_one(
        "Revoke a token",
        "access.revoke_token",
        "/access/tokens",
        ActionField("token", "Token", "", hint="its id"),
        "token revoke ID",
        "Programs that use it are refused at once, and browsers that signed in with it.",
    ),
    "freeze": OperationForm(
        "Freeze an identity",
        "access.freeze",
        "Freeze",
        "/access",
        [_WHO, ActionField("reason", "Reason", "", hint="case 17")],
        "who",
        lambda given: ([given["who"]], {"reason": given["reason"]} if given["reason"] else {}),
        lambda given: [
            f"{given['who'] or '…'} reads and writes nothing, at once and in every process, until it is unfrozen.",
            "Its rights and its state stay as they are.",
        ],
        lambda given: [
            *("grant", "freeze", given["who"] or "WHO"),
            *(("--reason", given["reason"]) if given["reason"] else ()),
        ],
    ),
    "unfreeze": _form_of_one(
        *("Unfreeze an identity", "access.unfreeze", "/access", _WHO, "grant unfreeze WHO"),
        "{} has its rights again.",
    ),
    "cut-off": _form_of_one(
        *("Remove all rights", "access.cut_off", "/access", _WHO, "grant cut-off WHO"),
        "{} loses its grants, roles, groups and access to its children, in one change.",
        "It still owns its own scopes. Its tokens stay: freeze it, or revoke them, to stop it altogether.",
        confirm=True,
    ),
    "join": _members_form("Add to a group", "join", "Add", "has", hints=("editors", "user:alice, agent:writer")),
    "leave": _members_form("Remove from a group", "leave", "Remove", "loses"),
    "define-role": OperationForm(
        "Define a role",
        "access.define_role",
        "Define",
        "/access/roles",
        [
            ActionField("role", "Role", "", hint="auditor"),
            ActionField(
                *("rules", "Rules as JSON; the first that matches decides"),
                *('[{"effect": "allow", "right": "read", "scope": "agent:*"}]', "long"),
            ),
        ],
        "role rules",
        lambda given: ([given["role"], _policy(given["rules"])], {}),
        lambda given: [f"Whoever has the role {given['role'] or '…'} has these rights at once."],
        lambda given: ["grant", "define", given["role"] or "ROLE", "FILE"],
    ),
    "drop-role": _form_of_one(
        *("Delete a role", "access.drop_role", "/access/roles", ActionField("role", "Role", ""), "grant drop ROLE"),
        "Whoever has the role {} loses its rights at once.",
        confirm=True,
    ),
    "assign": _role_form("Assign a role", "assign", "To", "has", hints=("auditor", "user:bob or group:editors")),
    "unassign": _role_form("Take a role away", "unassign", "From", "loses"),
    "erase": _form_of_one(
        "Erase a person",
        "erasure.erase",
        "/access/persons",
        ActionField("subject", "Person", "", hint="u-1842"),
        "erase --subject NAME",
        "Threads, agents, scopes, sessions and artifacts of {} are deleted, with their keys; from what others share,"
        " the person's steps are removed.",
        "It cannot be undone. A signed certificate says what was erased.",
        confirm=True,
    ),
}
"""The forms, by their addresses below `/access/actions`."""
