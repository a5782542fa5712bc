"""Changes that pages offer: each with what will be true afterwards, the same as a command, and its request.

A page only shows the request: a script sends it to the API, with the checkpoint that was HEAD when the page was made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast import MISSING
from holdfast.errors import ConflictError, DeniedError, HoldfastError, InvalidError, NotFoundError
from holdfast.history import Change, parse_path, path_text
from holdfast.interfaces.cli.formatting import plural, size
from holdfast.interfaces.http import inputs, models
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import get_thread, get_value, to_change, to_diff
from holdfast.interfaces.http.thread_writes import prune
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.page_renderer import python_text, segment, shell_text
from holdfast.store import Checkpoint, Thread

_SIDE = 2000
"""How many characters of a side of a conflict are shown."""

T = TypeVar("T")
_STRATEGIES = ("ours", "theirs", "union")


class ActionField(NamedTuple):
    """A field of the form of an action."""

    name: str
    label: str
    value: str
    kind: str = "text"
    options: Sequence[tuple[str, str]] = ()
    hint: str = ""


class EditRow(NamedTuple):
    """A value to change: its path, and its new value as JSON; an empty one removes it."""

    path: str
    value: str
    problem: str = ""


class ConflictRow(NamedTuple):
    """A conflict of a merge, with its sides as text, and the side that was chosen."""

    path: str
    base: str
    ours: str
    theirs: str
    chosen: str
    combines: bool


class ActionRequest(NamedTuple):
    """The request that makes a change. `then` is the field of the response with the checkpoint to show next."""

    method: str
    address: str
    body: str
    then: str = ""


class ActionPlan(NamedTuple):
    """What an action would do. Without a request, it cannot be made: `problem` or `effects` say why."""

    fields: Sequence[ActionField]
    button: str
    request: ActionRequest | None = None
    effects: Sequence[str] = ()
    diff: models.DiffModel | None = None
    conflicts: Sequence[ConflictRow] = ()
    rows: Sequence[EditRow] = ()
    problem: models.Problem | None = None
    python: str = ""
    cli: str = ""
    confirm: str = ""
    """The name to type before it can be made; empty if that is not needed."""


class ActionForm:
    """What was filled in: fields by name, some of them more than once."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """Return a field without the space around it; the default if it is not there."""
        found = self._fields.get(name)
        return found[0].strip() if found else default

    def texts(self, name: str) -> Sequence[str]:
        """Return all fields of a name."""
        return self._fields.get(name, ())

    def named(self, start: str) -> dict[str, str]:
        """Return the fields whose names start so, by the rest of their names."""
        return {name.removeprefix(start): values[0] for name, values in self._fields.items() if name.startswith(start)}


class _Target(NamedTuple):
    """The checkpoint that an action is about."""

    call: Call
    name: str
    thread: Thread[Any]
    at: Checkpoint[Any]
    head: Checkpoint[Any]
    detail: models.ThreadDetailModel

    @property
    def address(self) -> str:
        return f"/api/v1/threads/{segment(self.name)}"

    @property
    def python(self) -> str:
        return f"store.thread({python_text(self.name)})"

    @property
    def current(self) -> str:
        """The name of the branch of HEAD."""
        return next((each.name for each in self.detail.branches if each.current and each.name), "main")

    def step(self, id: str) -> str:
        """Return how a checkpoint is called in texts: by its number."""
        found = self.thread.resolve(id)
        return f"#{found.step}"


def _request(method: str, address: str, body: Mapping[str, Any] | None, then: str = "") -> ActionRequest:
    return ActionRequest(method, address, "" if body is None else json.dumps(body, ensure_ascii=False), then)


def _branch_field(form: ActionForm) -> ActionField:
    return ActionField("branch", "Name of the branch", form.text("branch"), hint="what-if, shorter, retry-2")


def _require_new_branch(target: _Target, branch: str) -> None:
    if not branch:
        raise InvalidError("the branch has no name yet", hint="Name it: what-if, shorter, retry-2")
    if any(each.name == branch for each in target.detail.branches):
        raise ConflictError(f"there is a branch {branch} already", hint="Choose another name")


# Forks ------------------------------------------------------------------------------------------------------------


def _plan_fork(target: _Target, form: ActionForm) -> ActionPlan:
    at, branch = target.at, form.text("branch")
    fields = [_branch_field(form)]
    word = branch or "NAME"
    plan = ActionPlan(
        fields,
        "Fork",
        python=f"{target.python}.fork({python_text(word)}, {python_text(at.id)})",
        cli=f"holdfast fork {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}",
        effects=[
            f"A branch {branch or '…'} starts at #{at.step}, with the same state. Nothing is copied.",
            f"HEAD stays where it is, at #{target.head.step}.",
        ],
    )
    _require(plan, lambda: _require_new_branch(target, branch))
    return plan._replace(request=_request("POST", f"{target.address}/forks", {"branch": branch, "at": at.id}, "head"))


def _plan_edit(target: _Target, form: ActionForm) -> ActionPlan:
    at, branch, paths = target.at, form.text("branch"), [path.strip() for path in form.texts("path")]
    given = list(form.texts("value"))
    rows = [EditRow(path, given[number] if number < len(given) else _current_json(target, path))
            for number, path in enumerate(paths)]  # fmt: skip
    if form.text("more") or not rows:
        rows.append(EditRow("", ""))
    changes: dict[str, Any] = {}
    remove: list[str] = []
    shown: list[models.ChangeModel] = []
    checked: list[EditRow] = []
    for row in rows:
        try:
            change = _edited(target, row)
        except HoldfastError as error:
            checked.append(row._replace(problem=error.what))
            continue
        checked.append(row)
        if change is None:
            continue
        shown.append(to_change(change))
        if change.kind == "remove":
            remove.append(row.path)
        else:
            changes[row.path] = change.new
    word = branch or "NAME"
    sets = "".join(f" --set {shell_text(f'{path}={_json(value)}')}" for path, value in changes.items())
    removes = "".join(f" --remove {shell_text(path)}" for path in remove)
    arguments = f", changes={changes!r}" if changes else ""
    arguments += f", remove={remove!r}" if remove else ""
    plan = ActionPlan(
        [_branch_field(form)],
        "Fork with these values",
        rows=checked,
        python=f"{target.python}.fork({python_text(word)}, {python_text(at.id)}{arguments})",
        cli=f"holdfast fork {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}{sets}{removes}",
        effects=[f"A branch {branch or '…'} starts at #{at.step}, with one step that changes these values."],
        diff=_edit_diff(shown) if shown else None,
    )
    if any(row.problem for row in checked):
        return plan
    if not shown:
        return plan._replace(effects=[*plan.effects, "No value differs from the checkpoint yet."])
    _require(plan, lambda: _require_new_branch(target, branch))
    body = {"branch": branch, "at": at.id, "changes": changes, "remove": remove}
    return plan._replace(request=_request("POST", f"{target.address}/forks", body, "head"))


def _current_json(target: _Target, path: str) -> str:
    """Return the value at a path as JSON, to be edited; empty for one that is not there, or is large."""
    try:
        part = get_value(target.call, inputs.ValueParams(thread=target.name, at=target.at.id, path=path))
    except HoldfastError:
        return ""
    return "" if part.value is None and part.node.kind != "null" else _json(part.value, indent=2)


def _edited(target: _Target, row: EditRow) -> Change | None:
    """Return the change that a row makes; None if it is not filled in, or changes nothing."""
    if not row.path:
        if row.value.strip():
            raise InvalidError("a value needs a path, such as plan.goal or messages[0].content")
        return None
    path, old = parse_path(row.path), _value_at(target, row.path)
    if not row.value.strip():
        if old is MISSING:
            raise NotFoundError("there is nothing to remove")
        return Change("remove", path, path, old=old)
    try:
        new = json.loads(row.value)
    except ValueError:
        raise InvalidError('the value is not JSON: a text needs quotes, as in "rest"') from None
    if old is MISSING:
        for end in range(len(path) - 1, 0, -1):
            inside = _value_at(target, path_text(path[:end]))
            if inside is not MISSING and not isinstance(inside, dict):
                raise InvalidError(f"{path_text(path[:end])} is no object, and has no keys to set")
        return Change("add", path, path, new=new)
    return None if _json(old) == _json(new) else Change("change", path, path, old=old, new=new)


def _value_at(target: _Target, path: str) -> Any:
    """Return the value at a path as plain JSON; a large one only by its kind. `MISSING` if there is none."""
    try:
        part = get_value(target.call, inputs.ValueParams(thread=target.name, at=target.at.id, path=path, limit=1))
    except NotFoundError:
        return MISSING
    if part.value is None and part.node.kind != "null":
        return {"object": {}, "array": []}.get(part.node.kind, f"({part.node.kind}, too large to show)")
    return part.value


def _edit_diff(changes: list[models.ChangeModel]) -> models.DiffModel:
    return models.DiffModel(old=None, new=None, summary=[], changes=changes, total=len(changes))


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


# Restoring and merging --------------------------------------------------------------------------------------------


def _plan_restore(target: _Target, form: ActionForm) -> ActionPlan:
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
    diff = _require(plan, lambda: to_diff(target.thread.diff(branch, at.id).without_internal()))
    if not diff.total:
        return plan._replace(effects=[f"The last step of {branch} has this state already."])
    request = _request("POST", f"{target.address}/restores", {"at": at.id, "branch": branch}, "id")
    return plan._replace(request=request, diff=diff)


def _plan_merge(target: _Target, form: ActionForm) -> ActionPlan:
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
    plan = plan._replace(conflicts=_require(plan, lambda: _conflicts(target, theirs, into, rules)))
    try:
        merged = _require(plan, lambda: _dry_run(target, theirs, into, strategy, rules))
    except _UnresolvedError as unresolved:
        what = plural(unresolved.count, "value")
        return plan._replace(effects=[f"Both branches changed {what} differently. Choose a side for each."])
    diff = to_diff(target.thread.diff(merged.id, state=merged.state).without_internal())
    effects = [f"A new step on {into} has the changes of both. {theirs} stays as it is."]
    if not diff.total:
        effects = [f"The state of {into} stays as it is: it has all that {theirs} changed, or its own values win."]
    body = {"theirs": theirs, "into": into, "strategy": strategy or None, "resolve": rules}
    request = _request("POST", f"{target.address}/merges", body, "id")
    return plan._replace(effects=effects, diff=diff, request=request)


class _UnresolvedError(Exception):
    """Conflicts are left, so many."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def _dry_run(target: _Target, theirs: str, into: str, strategy: str, rules: Mapping[str, Any]) -> Checkpoint[Any]:
    try:
        return target.thread.merge(
            theirs, into, strategy=strategy or None, resolve={**rules} if rules else None, dry_run=True
        )
    except ConflictError as error:
        if error.conflicts:
            raise _UnresolvedError(len(error.conflicts)) from None
        raise


def _conflicts(target: _Target, theirs: str, into: str, rules: Mapping[str, str]) -> list[ConflictRow]:
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


# Tags, pins, pruning ----------------------------------------------------------------------------------------------


def _plan_tag(target: _Target, form: ActionForm) -> ActionPlan:
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
    return plan._replace(effects=effects, request=_request("PUT", address, {"at": at.id, "move": moves}))


def _plan_untag(target: _Target, form: ActionForm) -> ActionPlan:
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
    return plan._replace(effects=effects, request=_request("DELETE", f"{target.address}/tags/{segment(tag)}", None))


def _plan_pin(target: _Target, form: ActionForm) -> ActionPlan:
    at, reason = target.at, form.text("reason")
    return ActionPlan(
        [ActionField("reason", "Reason", reason, hint="case 17, audit 2026")],
        "Pin",
        python=f"{target.python}.pin({python_text(at.id)}, reason={python_text(reason)})",
        cli=f"holdfast pin {shell_text(target.name)} {shell_text(at.id)} --reason {shell_text(reason)}",
        effects=[f"No pruning removes #{at.step} until it is unpinned."],
        request=_request("POST", f"{target.address}/pins", {"at": at.id, "reason": reason}),
    )


def _plan_unpin(target: _Target, form: ActionForm) -> ActionPlan:  # noqa: ARG001
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
        effects=effects, request=_request("DELETE", f"{target.address}/pins?at={segment(at.id)}", None)
    )


def _plan_prune(target: _Target, form: ActionForm) -> ActionPlan:
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
    body = {"threads": [target.name], "keep_last": _require(plan, lambda: _count(last)), "keep_within": within or None}
    dry = inputs.PruneRequest(**body, dry_run=True)  # type: ignore[arg-type]
    found = _require(plan, lambda: prune(target.call, inputs.NoParams(), dry))
    if not found.dropped:
        return plan._replace(effects=[f"Nothing would be removed: all {plural(found.kept, 'step')} are kept."])
    effects = [
        f"{plural(found.dropped, 'step')} are removed for good, about {size(max(0, found.bytes))}. "
        f"{plural(found.kept, 'step')} are kept.",
        "The last step of each branch, tagged, labelled and pinned steps are always kept.",
    ]
    return plan._replace(effects=effects, request=_request("POST", "/api/v1/prunes", {**body, "dry_run": False}))


def _count(text: str) -> int | None:
    if text and not text.isdecimal():
        raise InvalidError("how many steps to keep is a number")
    return int(text) if text else None


# All of them ------------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """An action on a checkpoint, or on its thread."""

    name: str
    title: str
    plan: Callable[[_Target, ActionForm], ActionPlan]
    owner_only: bool = False


ACTIONS = {
    each.name: each
    for each in (
        Action("fork", "Fork here", _plan_fork),
        Action("edit", "Edit and fork", _plan_edit),
        Action("restore", "Restore", _plan_restore),
        Action("merge", "Merge a branch", _plan_merge),
        Action("tag", "Tag", _plan_tag),
        Action("untag", "Remove a tag", _plan_untag),
        Action("pin", "Pin", _plan_pin),
        Action("unpin", "Unpin", _plan_unpin),
        Action("prune", "Prune the thread", _plan_prune, owner_only=True),
    )
}


class _UnmetError(Exception):
    """Something that was filled in does not do: the plan is shown with it, and cannot be made."""

    def __init__(self, plan: ActionPlan, error: HoldfastError) -> None:
        super().__init__(error)
        self.plan = plan._replace(problem=to_problem(error))


def _require(plan: ActionPlan, work: Callable[[], T]) -> T:
    """Do something that what was filled in may not allow."""
    try:
        return work()
    except HoldfastError as error:
        raise _UnmetError(plan, error) from None


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
    absent = {"untag"} if not found.tags else set()
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
    detail = get_thread(call, inputs.ThreadParams(thread=name))
    target = _Target(call, name, thread, thread.resolve(at), thread.resolve(), detail)
    try:
        plan = known.plan(target, form)
    except _UnmetError as unmet:
        plan = unmet.plan
    seen = form.text("accept") or form.text("seen") or target.head.id
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


def _stale(target: _Target, seen: str) -> models.DiffModel | None:
    """Return what changed since the form was opened; None if nothing did."""
    if seen == target.head.id:
        return None
    try:
        return to_diff(target.thread.diff(seen, target.head.id).without_internal())
    except NotFoundError:  # it was pruned
        return models.DiffModel(old=None, new=None, summary=[], changes=[], total=0)
