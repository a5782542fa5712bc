"""Changes that pages offer: each with what will be true afterwards, the same as a command, and its request.

A page only shows the request: a script sends it to the API, with the checkpoint that was HEAD when the page was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast._views import size
from holdfast.engine.model.missing import MISSING
from holdfast.engine.types import Checkpoint
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.interfaces.cli.formatting import plural
from holdfast.interfaces.http import models
from holdfast.interfaces.http.admin_routes import prune
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import get_thread, to_diff
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.action_plan import (
    ActionField,
    ActionForm,
    ActionPlan,
    ActionTarget,
    ConflictRow,
    UnmetError,
    branch_field,
    build_request,
    require,
    require_new_branch,
)
from holdfast.interfaces.web.answer_plan import plan_answer
from holdfast.interfaces.web.edit_plan import plan_edit
from holdfast.interfaces.web.page_renderer import python_text, segment, shell_text

_SIDE = 2000
"""How many characters of a side of a conflict are shown."""

_STRATEGIES = ("ours", "theirs", "union")


# Forks ------------------------------------------------------------------------------------------------------------


def _plan_fork(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at, branch = target.at, form.text("branch")
    fields = [branch_field(form)]
    word = branch or "NAME"
    plan = ActionPlan(
        fields,
        "Fork",
        python=f"{target.python}.fork({python_text(word)}, {python_text(at.id)})",
        cli=f"holdfast fork {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}",
        effects=[
            f"A branch {branch or '…'} starts at #{at.step}, with the same state. Nothing is copied.",
            "HEAD stays where it is.",
        ],
    )
    require(plan, lambda: require_new_branch(target, branch))
    return plan._replace(
        request=build_request("POST", f"{target.address}/forks", {"branch": branch, "at": at.id}, "head")
    )


# Restoring and merging --------------------------------------------------------------------------------------------


def _plan_restore(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at, branch = target.at, form.text("branch", target.current)
    options = [(each.name, each.name) for each in target.detail.branches if each.name]
    plan = ActionPlan(
        [ActionField("branch", "Branch", branch, "select", options)],
        "Restore",
        python=f"{target.python}.restore({python_text(at.id)}, branch={python_text(branch)})",
        cli=f"holdfast restore {shell_text(target.name)} {shell_text(at.id)} --branch {shell_text(branch)}",
        effects=[
            f"A new step on {branch} has the state of #{at.step}.",
            "No step is removed: what is there now can be restored in the same way.",
        ],
    )
    diff = require(plan, lambda: to_diff(target.thread.diff(branch, at.id).without_internal()))
    if not diff.total:
        return plan._replace(effects=[f"The last step of {branch} has this state already."])
    request = build_request("POST", f"{target.address}/restores", {"at": at.id, "branch": branch}, "id")
    return plan._replace(request=request, diff=diff)


def _plan_merge(target: ActionTarget, form: ActionForm) -> ActionPlan:
    names = [each.name for each in target.detail.branches if each.name]
    into = form.text("into", target.current)
    own = next((each.name for each in target.detail.branches if each.branch == target.at.branch), "")
    theirs = form.text("theirs", own if own != into else next((each for each in names if each != into), ""))
    strategy = form.text("strategy")
    fields = [
        ActionField("theirs", "Branch to merge", theirs, "select", [(each, each) for each in names]),
        ActionField("into", "Into", into, "select", [(each, each) for each in names]),
        ActionField(
            "strategy",
            "Where both changed the same",
            strategy,
            "select",
            [("", "choose below"), *((each, {"union": "both, in lists"}.get(each, each)) for each in _STRATEGIES)],
        ),
    ]
    rules: dict[str, Any] = {path: how for path, how in form.named("resolve:").items() if how in _STRATEGIES}
    arguments = f", strategy={python_text(strategy)}" if strategy else ""
    arguments += f", resolve={rules!r}" if rules else ""
    options = f" --strategy {strategy}" if strategy else ""
    options += "".join(f" --resolve {shell_text(f'{path}={how}')}" for path, how in rules.items())
    plan = ActionPlan(
        fields,
        "Merge",
        python=f"{target.python}.merge({python_text(theirs)}, {python_text(into)}{arguments})",
        cli=f"holdfast merge {shell_text(target.name)} {shell_text(theirs)} --into {shell_text(into)}{options}",
    )
    if theirs == into or not theirs:
        return plan._replace(effects=["Choose two branches: a branch is not merged into itself."])
    plan = plan._replace(conflicts=require(plan, lambda: _conflicts(target, theirs, into, rules)))
    try:
        merged = require(plan, lambda: _dry_run(target, theirs, into, strategy, rules))
    except _UnresolvedError as unresolved:
        what = plural(unresolved.count, "value")
        return plan._replace(effects=[f"Both branches changed {what} differently. Choose a side for each."])
    diff = to_diff(target.thread.diff(merged.id, state=merged.state).without_internal())
    effects = [f"A new step on {into} has the changes of both. {theirs} stays as it is."]
    if not diff.total:
        effects = [f"The state of {into} stays as it is: it has all that {theirs} changed, or its own values win."]
    body = {"theirs": theirs, "into": into, "strategy": strategy or None, "resolve": rules}
    request = build_request("POST", f"{target.address}/merges", body, "id")
    return plan._replace(effects=effects, diff=diff, request=request)


class _UnresolvedError(Exception):
    """Conflicts are left, so many."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def _dry_run(target: ActionTarget, theirs: str, into: str, strategy: str, rules: Mapping[str, Any]) -> Checkpoint[Any]:
    try:
        return target.thread.merge(
            theirs, into, strategy=strategy or None, resolve={**rules} if rules else None, dry_run=True
        )
    except ConflictError as error:
        if error.conflicts:
            raise _UnresolvedError(len(error.conflicts)) from None
        raise


def _conflicts(target: ActionTarget, theirs: str, into: str, rules: Mapping[str, str]) -> list[ConflictRow]:
    """List all conflicts of a merge, those that were resolved, too."""
    try:
        target.thread.merge(theirs, into, dry_run=True)
    except ConflictError as error:
        if not error.conflicts:
            raise
        return [
            ConflictRow(
                each.where,
                _side_text(each.base),
                _side_text(each.ours),
                _side_text(each.theirs),
                rules.get(each.where, ""),
                isinstance(each.ours, list) and isinstance(each.theirs, list),
            )
            for each in error.conflicts
        ]
    return []


def _side_text(value: Any) -> str:
    if value is MISSING:
        return "(nothing)"
    text, complete = long_text(value, _SIDE)
    return text if complete else f"{text}…"


# Tags, labels, pins, pruning --------------------------------------------------------------------------------------


def _plan_tag(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at, tag = target.at, form.text("tag")
    other = target.detail.tags.get(tag)
    moves = other is not None and other != at.id
    word, force = tag or "TAG", " --force" if moves else ""
    plan = ActionPlan(
        [ActionField("tag", "Tag", tag, hint="v1, asked, before-refund")],
        "Move the tag" if moves else "Tag",
        python=f"{target.python}.tag({python_text(word)}, {python_text(at.id)}{', move=True' if moves else ''})",
        cli=f"holdfast tag{force} {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}",
    )
    if not tag:
        return plan._replace(effects=["A tag names one checkpoint of the thread, and keeps it from being pruned."])
    if other == at.id:
        return plan._replace(effects=[f"#{at.step} has this tag already."])
    effects = [f"{tag} names #{at.step}, which pruning keeps."]
    if moves:
        effects.append(f"It no longer names {target.step(str(other))}.")
    address = f"{target.address}/tags/{segment(tag)}"
    return plan._replace(effects=effects, request=build_request("PUT", address, {"at": at.id, "move": moves}))


def _plan_untag(target: ActionTarget, form: ActionForm) -> ActionPlan:
    tags = [tag for tag, id in target.detail.tags.items() if id == target.at.id]
    tag = form.text("tag", tags[0] if tags else "")
    plan = ActionPlan(
        [ActionField("tag", "Tag", tag, "select", [(each, each) for each in tags])],
        "Remove the tag",
        python=f"{target.python}.untag({python_text(tag)})",
        cli=f"holdfast tag {shell_text(target.name)} --delete {shell_text(tag)}",
    )
    if tag not in tags:
        return plan._replace(effects=[f"#{target.at.step} has no such tag."])
    effects = [f"{tag} names nothing any more. #{target.at.step} stays, and pruning may remove it."]
    return plan._replace(
        effects=effects, request=build_request("DELETE", f"{target.address}/tags/{segment(tag)}", None)
    )


def _plan_label(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at, label = target.at, form.text("label")
    word = label or "LABEL"
    plan = ActionPlan(
        [ActionField("label", "Label", label, hint="reviewed, good answer")],
        "Label",
        python=f"{target.python}.label({python_text(word)}, {python_text(at.id)})",
        cli=f"holdfast label {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}",
    )
    if not label:
        return plan._replace(effects=["A label may be on many checkpoints, and keeps them from being pruned."])
    others = [id for id in target.detail.labels.get(label, ()) if id != at.id]
    if at.id in target.detail.labels.get(label, ()):
        return plan._replace(effects=[f"#{at.step} has this label already."])
    effects = [f"{label} is on #{at.step}, which pruning keeps."]
    effects += [f"{plural(len(others), 'other step')} of the thread have it, too."] if others else []
    address = f"{target.address}/labels/{segment(label)}"
    return plan._replace(effects=effects, request=build_request("PUT", address, {"at": at.id}))


def _plan_unlabel(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at = target.at
    labels = [label for label, ids in target.detail.labels.items() if at.id in ids]
    label = form.text("label", labels[0] if labels else "")
    plan = ActionPlan(
        [ActionField("label", "Label", label, "select", [(each, each) for each in labels])],
        "Remove the label",
        python=f"{target.python}.unlabel({python_text(label)}, {python_text(at.id)})",
        cli=f"holdfast label {shell_text(target.name)} {shell_text(label)} {shell_text(at.id)} --delete",
    )
    if label not in labels:
        return plan._replace(effects=[f"#{at.step} has no such label."])
    address = f"{target.address}/labels/{segment(label)}?at={segment(at.id)}"
    effects = [f"{label} is no longer on #{at.step}, and stays on all other steps that have it."]
    return plan._replace(effects=effects, request=build_request("DELETE", address, None))


def _plan_pin(target: ActionTarget, form: ActionForm) -> ActionPlan:
    at, reason = target.at, form.text("reason")
    return ActionPlan(
        [ActionField("reason", "Reason", reason, hint="case 17, audit 2026")],
        "Pin",
        python=f"{target.python}.pin({python_text(at.id)}, reason={python_text(reason)})",
        cli=f"holdfast pin {shell_text(target.name)} {shell_text(at.id)} --reason {shell_text(reason)}",
        effects=[f"No pruning removes #{at.step} until it is unpinned."],
        request=build_request("POST", f"{target.address}/pins", {"at": at.id, "reason": reason}),
    )


def _plan_unpin(target: ActionTarget, form: ActionForm) -> ActionPlan:  # noqa: ARG001
    at = target.at
    pins = [each for each in target.detail.pins if each.id == at.id]
    plan = ActionPlan(
        [],
        "Unpin",
        python=f"{target.python}.unpin({python_text(at.id)})",
        cli=f"holdfast pin {shell_text(target.name)} {shell_text(at.id)} --delete",
    )
    if not pins:
        return plan._replace(effects=[f"#{at.step} is not pinned."])
    effects = [f"Pruning may remove #{at.step}."] + [f"The reason was: {each.reason}" for each in pins if each.reason]
    return plan._replace(
        effects=effects, request=build_request("DELETE", f"{target.address}/pins?at={segment(at.id)}", None)
    )


def _plan_prune(target: ActionTarget, form: ActionForm) -> ActionPlan:
    last, within = form.text("keep_last", "100"), form.text("keep_within")
    fields = [
        ActionField("keep_last", "Keep the last", last, "number", hint="100"),
        ActionField("keep_within", "Keep those of the last", within, hint="30d, 12h"),
    ]
    arguments = [f"keep_last={last}"] if last else []
    arguments += [f"keep_within={python_text(within)}"] if within else []
    options = f" --keep-last {shell_text(last)}" if last else ""
    options += f" --keep-within {shell_text(within)}" if within else ""
    plan = ActionPlan(
        fields,
        "Prune",
        python=f"store.maintenance.prune({python_text(target.name)}{''.join(f', {each}' for each in arguments)})",
        cli=f"holdfast prune {shell_text(target.name)}{options}",
        confirm=target.name,
    )
    body = {"threads": [target.name], "keep_last": require(plan, lambda: _count(last)), "keep_within": within or None}
    found = require(plan, lambda: prune(target.call, **body, dry_run=True))  # type: ignore[arg-type]
    if not found.dropped:
        return plan._replace(effects=[f"Nothing would be removed: all {plural(found.kept, 'step')} are kept."])
    effects = [
        f"{plural(found.dropped, 'step')} are removed for good, about {size(max(0, found.bytes))}. "
        f"{plural(found.kept, 'step')} are kept.",
        "The last step of each branch, tagged, labelled and pinned steps are always kept.",
    ]
    return plan._replace(effects=effects, request=build_request("POST", "/api/v1/prunes", {**body, "dry_run": False}))


def _count(text: str) -> int | None:
    if text and not text.isdecimal():
        raise InvalidError("the number of steps to keep must be a number")
    return int(text) if text else None


# All of them ------------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """An action on a checkpoint, or on its thread."""

    name: str
    title: str
    plan: Callable[[ActionTarget, ActionForm], ActionPlan]
    owner_only: bool = False
    of_step: bool = True
    """Whether it is about the step, and not about the thread."""


ACTIONS = {
    each.name: each
    for each in (
        Action("answer", "Answer", plan_answer, of_step=False),
        Action("fork", "Fork here", _plan_fork),
        Action("edit", "Edit and fork", plan_edit),
        Action("restore", "Restore", _plan_restore),
        Action("merge", "Merge a branch", _plan_merge, of_step=False),
        Action("tag", "Tag", _plan_tag),
        Action("untag", "Remove a tag", _plan_untag),
        Action("label", "Label", _plan_label),
        Action("unlabel", "Remove a label", _plan_unlabel),
        Action("pin", "Pin", _plan_pin),
        Action("unpin", "Unpin", _plan_unpin),
        Action("prune", "Prune the thread", _plan_prune, owner_only=True, of_step=False),
    )
}


def may_change(call: Call, name: str) -> bool:
    """Whether the caller may change a thread."""
    if not call.service.may_write(call.caller):
        return False
    identity = call.caller.identity
    return not identity or call.service.store.access.may(identity, "write", thread=name)


def offered(call: Call, found: models.CheckpointDetailModel, branches: Iterable[str]) -> list[Action]:
    """Return the actions that the caller can choose for a checkpoint. Those that it cannot are absent."""
    if not may_change(call, found.checkpoint.thread):
        return []
    absent = {"answer"}  # it is on the page, with the question
    absent |= {"untag"} if not found.tags else set()
    absent |= {"unlabel"} if not found.labels else set()
    absent |= {"unpin"} if not found.pins else set()
    absent |= {"merge"} if len(list(branches)) < 2 else set()
    return [
        each for each in ACTIONS.values() if each.name not in absent and not (each.owner_only and call.caller.identity)
    ]


def action_values(call: Call, name: str, at: str, action: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form of an action shows, with what it would do."""
    known = ACTIONS.get(action)
    if known is None:
        raise NotFoundError(f"there is no action {action!r}", hint=f"There are {', '.join(ACTIONS)}")
    if not may_change(call, name):
        raise DeniedError("this thread is only read here", hint="Start the server with --write, with a right to write")
    thread = call.store.thread(name)
    detail = get_thread(call, name)
    chosen = thread.find(at)
    # Of a thread whose HEAD is damaged, a step that can be read is forked, without a comparison with HEAD.
    head = chosen if detail.head is None else thread.find()
    target = ActionTarget(call, name, thread, chosen, head, detail)
    try:
        plan = known.plan(target, form)
    except UnmetError as unmet:
        plan = unmet.plan
    seen = "" if detail.head is None else form.text("accept") or form.text("seen") or head.id
    return {
        "name": name,
        "at": target.at.id,
        "step": target.at.step,
        "action": known,
        "plan": plan,
        "seen": seen,
        "head": target.head,
        "stale": _stale(target, seen),
        "typed": form.text("typed"),
    }


def _stale(target: ActionTarget, seen: str) -> models.DiffModel | None:
    """Return what changed since the form was opened; None if nothing did."""
    if seen in ("", target.head.id):
        return None
    try:
        return to_diff(target.thread.diff(seen, target.head.id).without_internal())
    except NotFoundError:  # it was pruned
        return models.DiffModel(old=None, new=None, summary=[], changes=[], total=0)
