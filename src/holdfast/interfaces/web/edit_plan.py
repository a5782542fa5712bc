"""Edit and fork: values as they were typed, checked against a checkpoint, with what each would change."""

from __future__ import annotations

import json
from typing import Any

from holdfast.codec.value_text import json_text
from holdfast.engine.model.missing import MISSING
from holdfast.engine.paths import parse_path, path_text
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.history.diff_text import Change
from holdfast.interfaces.http import models
from holdfast.interfaces.http.thread_reads import get_value, to_change
from holdfast.interfaces.web.action_plan import (
    ActionForm,
    ActionPlan,
    ActionTarget,
    EditRow,
    branch_field,
    build_request,
    require,
    require_new_branch,
)
from holdfast.interfaces.web.page_renderer import python_text, shell_text


def plan_edit(target: ActionTarget, form: ActionForm) -> ActionPlan:
    """Return what a fork with edited values would do."""
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
    sets = "".join(f" --set {shell_text(f'{path}={json_text(value)}')}" for path, value in changes.items())
    removes = "".join(f" --remove {shell_text(path)}" for path in remove)
    arguments = f", changes={changes!r}" if changes else ""
    arguments += f", remove={remove!r}" if remove else ""
    plan = ActionPlan(
        [branch_field(form)],
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
    require(plan, lambda: require_new_branch(target, branch))
    body = {"branch": branch, "at": at.id, "changes": changes, "remove": remove}
    return plan._replace(request=build_request("POST", f"{target.address}/forks", body, "head"))


def _current_json(target: ActionTarget, path: str) -> str:
    """Return the value at a path as JSON, to be edited; empty for one that is not there, or is large."""
    try:
        part = get_value(target.call, target.name, target.at.id, path=path)
    except HoldfastError:
        return ""
    return "" if part.value is None and part.node.kind != "null" else json_text(part.value, indent=2)


def _edited(target: ActionTarget, row: EditRow) -> Change | None:
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
                raise InvalidError(f"{path_text(path[:end])} is not an object, and has no keys to set")
        return Change("add", path, path, new=new)
    return None if json_text(old) == json_text(new) else Change("change", path, path, old=old, new=new)


def _value_at(target: ActionTarget, path: str) -> Any:
    """Return the value at a path as plain JSON; a large one only by its kind. `MISSING` if there is none."""
    try:
        part = get_value(target.call, target.name, target.at.id, path=path, limit=1)
    except NotFoundError:
        return MISSING
    if part.value is None and part.node.kind != "null":
        return {"object": {}, "array": []}.get(part.node.kind, f"({part.node.kind}, too large to show)")
    return part.value


def _edit_diff(changes: list[models.ChangeModel]) -> models.DiffModel:
    return models.DiffModel(old=None, new=None, summary=[], changes=changes, total=len(changes))
