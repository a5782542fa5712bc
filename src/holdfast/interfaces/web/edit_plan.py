"""Edit and fork: values as they were typed, checked against a checkpoint, with what each would change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast._views import plain
from holdfast.codec.value_text import json_text
from holdfast.engine.model.missing import MISSING
from holdfast.engine.paths import parse_path, path_text
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.history.diff_text import Change
from holdfast.interfaces.http import models
from holdfast.interfaces.http.thread_reads import read_parts, to_change
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

_LONGEST = 200_000
"""How many characters of a value are edited in a form."""

_MOST_ROWS = 40


def plan_edit(target: ActionTarget, form: ActionForm) -> ActionPlan:
    """Return what a fork with edited values would do."""
    at, branch = target.at, form.text("branch", _free_name(target))
    rows = _given_rows(form) or [row for path in form.texts("path") for row in _rows_at(target, path.strip())]
    if form.text("more") or not rows:
        rows.append(EditRow("", ""))
    changes: dict[str | Sequence[Any], Any] = {}
    remove: list[str] = []
    shown: list[models.ChangeModel] = []
    checked: list[EditRow] = []
    for row in rows:
        if row.kind == "large":
            checked.append(row)
            continue
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
    sets = "".join(f" --set {shell_text(f'{path}={_cli_value(value)}')}" for path, value in changes.items())
    removes = "".join(f" --remove {shell_text(path)}" for path in remove)
    arguments = f", changes={changes!r}" if changes else ""
    arguments += f", remove={remove!r}" if remove else ""
    plan = ActionPlan(
        [branch_field(form)._replace(value=branch)],
        "Fork with these values",
        rows=checked,
        python=f"{target.python}.fork({python_text(word)}, {python_text(at.id)}{arguments})",
        cli=f"holdfast fork {shell_text(target.name)} {shell_text(word)} {shell_text(at.id)}{sets}{removes}",
        effects=[f"A branch {branch or '…'} starts at #{at.step}, with one step that changes these values."],
        diff=_edit_diff(shown) if shown else None,
    )
    if any(row.problem and row.kind != "large" for row in checked):
        return plan
    if not shown:
        return plan._replace(effects=[*plan.effects, "No value differs from the checkpoint yet."])
    require(plan, lambda: require_new_branch(target, branch))
    body = {"branch": branch, "at": at.id, "changes": changes, "remove": remove}
    require(plan, lambda: target.thread.fork(branch, at.id, changes=changes, remove=remove, dry_run=True))
    return plan._replace(request=build_request("POST", f"{target.address}/forks", body, "head"))


def _free_name(target: ActionTarget) -> str:
    """Return a name for the branch that none has yet."""
    taken = {each.name for each in target.detail.branches}
    names = (f"edit-{target.at.step}{number}" for number in ("", *(f"-{n}" for n in range(2, len(taken) + 3))))
    return next(name for name in names if name not in taken)


def _given_rows(form: ActionForm) -> list[EditRow]:
    """Return the values as they were typed."""
    paths, kinds = form.texts("path"), form.texts("kind")
    return [
        EditRow(
            paths[number].strip() if number < len(paths) else "",
            value.replace("\r\n", "\n"),
            kind="text" if kinds[number : number + 1] == ["text"] else "json",
        )
        for number, value in enumerate(form.texts("value"))
    ]


def _rows_at(target: ActionTarget, path: str) -> list[EditRow]:
    """Return what is edited of the value at a path: of a message its texts and the arguments of its calls, of an
    object of a class its fields, and else the value itself."""
    try:
        value = _read(target, path)
    except HoldfastError:
        return [EditRow(path, "")]
    tree = plain(value)
    if isinstance(tree, dict) and ("content" in tree and {"role", "type"} & tree.keys()):
        keys = parse_path(path)
        rows = [_row((*keys, *inside), part) for inside, part in _message_parts(tree)]
    elif isinstance(tree, dict) and not _is_plain(value):
        rows = [_row((*parse_path(path), name), part) for name, part in tree.items()]
    else:
        return [_row(parse_path(path), value)._replace(path=path)]
    return rows[:_MOST_ROWS]


def _message_parts(message: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the parts of a message that people edit, with their paths."""
    content = message["content"]
    blocks = content if isinstance(content, list) else ()
    texts = [number for number, block in enumerate(blocks) if isinstance(block, dict) and "text" in block]
    yield from ((("content", number, "text"), blocks[number]["text"]) for number in texts)
    if not texts:
        yield ("content",), content
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        inside: Any = call.get("function") if isinstance(call, dict) else None
        path, inside = (("function",), inside) if isinstance(inside, dict) else ((), call)
        for name in ("args", "arguments"):
            if isinstance(inside, dict) and name in inside:
                yield ("tool_calls", number, *path, name), inside[name]


def _row(path: tuple[Any, ...], value: Any) -> EditRow:
    """Return a value as it is edited: text as text, another one as JSON; a large one is not sent."""
    is_text = isinstance(value, str)
    text = value if is_text else json_text(plain(value), indent=2)
    if len(text) > _LONGEST:
        return EditRow(path_text(path), "", "It is too large to be edited here: use the command", "large")
    return EditRow(path_text(path), text, kind="text" if is_text else "json")


def _read(target: ActionTarget, path: str) -> Any:
    return read_parts(target.call, target.name, target.at.id).value(parse_path(path))


def _is_plain(value: Any) -> bool:
    """Whether a value is JSON, so that nothing of it is lost if it is written as JSON."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (str, int, float, bool)


def _cli_value(value: Any) -> str:
    """Return a value as the command takes it: a text as it is, unless it could be read as JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, ensure_ascii=False)


def _edited(target: ActionTarget, row: EditRow) -> Change | None:
    """Return the change that a row makes; None if it is not filled in, or changes nothing."""
    if not row.path:
        if row.value.strip():
            raise InvalidError("a value needs a path, such as plan.goal or messages[0].content")
        return None
    path, old = parse_path(row.path), _value_at(target, row.path)
    if row.kind == "text":
        return None if old == row.value else Change("change", path, path, old=old, new=row.value)
    if not row.value.strip():
        if old is MISSING:
            raise NotFoundError("there is nothing to remove")
        return Change("remove", path, path, old=plain(old))
    try:
        new = json.loads(row.value)
    except json.JSONDecodeError as error:
        raise InvalidError(
            f"the value is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}; a text needs "
            'quotes, as in "rest"'
        ) from None
    if old is MISSING:
        return Change("add", path, path, new=new)
    if json_text(plain(old)) == json_text(new):
        return None
    if not _is_plain(old):
        inside = f", such as {row.path}.content" if hasattr(old, "content") else ""
        raise InvalidError(f"the value has objects of classes, which JSON would replace: edit a field{inside}")
    return Change("change", path, path, old=old, new=new)


def _value_at(target: ActionTarget, path: str) -> Any:
    """Return the value at a path; `MISSING` if there is none."""
    try:
        return _read(target, path)
    except NotFoundError:
        return MISSING


def _edit_diff(changes: list[models.ChangeModel]) -> models.DiffModel:
    return models.DiffModel(old=None, new=None, summary=[], changes=changes, total=len(changes))
