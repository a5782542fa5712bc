"""Actions on several threads, which are ticked in their list: each with a dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast._views import size
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.cli.formatting import plural
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.action_plan import ActionField, ActionForm, ActionPlan
from holdfast.interfaces.web.download import Download, new_download
from holdfast.interfaces.web.operation_form import FilledForm
from holdfast.interfaces.web.page_renderer import python_text, shell_text

_MOST = 500
"""How many threads are ticked at most."""

_FORMATS = (("holdfast", "everything, for holdfast import"), ("json", "every state as JSON, for other tools"))


class ThreadEffect(NamedTuple):
    """What an action would do with a thread."""

    thread: str
    steps: int
    what: str


class Dry(NamedTuple):
    """The dry run of an action: what would be so, and of each thread; and what does it."""

    effects: Sequence[str]
    threads: Sequence[ThreadEffect]
    python: str
    cli: str
    apply: Callable[[], None] | None
    """None if there is nothing to do."""


class BulkAction(NamedTuple):
    """An action on several threads."""

    title: str
    button: str
    fields: Sequence[ActionField]
    plan: Callable[[Call, Sequence[str], Mapping[str, str]], Dry]
    confirm: str = ""
    """The start of what is typed before it is done; the number of threads follows."""
    reads: bool = False
    of_owner: bool = True
    back: str = "/threads"


def offered_in_bulk(call: Call) -> list[tuple[str, str]]:
    """Return the actions that the caller can choose, with their buttons."""
    writes = call.service.may_write(call.caller)
    return [
        (name, each.button)
        for name, each in BULK.items()
        if (writes or each.reads) and not (each.of_owner and call.caller.identity)
    ]


def bulk_values(call: Call, action: str, form: ActionForm) -> dict[str, Any]:
    """Return what the form of an action on several threads shows; and do it, if it was sent to be done."""
    chosen = BULK.get(action)
    if chosen is None or (action, chosen.button) not in offered_in_bulk(call):
        raise NotFoundError("there is no such action here", hint="Tick threads in their list")
    names = _names(form)
    given = {each.name: form.text(each.name, each.value) for each in chosen.fields}
    fields = [each._replace(value=given[each.name]) for each in chosen.fields]
    confirm = f"{chosen.confirm} {len(names)}" if chosen.confirm else ""
    plan = ActionPlan(fields, chosen.button, confirm=confirm)
    filled = FilledForm(plan, False, False, form.text("typed"))
    values: dict[str, Any] = {
        "form": chosen,
        "threads": names,
        "rows": [],
        "download": "",
        "secret": "",
        "report": None,
    }
    try:
        dry = chosen.plan(call, names, given)
        filled = filled._replace(
            plan=plan._replace(effects=dry.effects, python=dry.python, cli=dry.cli), ready=dry.apply is not None
        )
        values |= {"rows": dry.threads, "download": f"/bulk/{action}/file" if chosen.reads else ""}
        if form.sent and form.text("do") == "1" and dry.apply is not None and not chosen.reads:
            call.require_write()
            if confirm and filled.typed != confirm:
                raise InvalidError(f"it is done only if {confirm!r} is typed")
            dry.apply()
            filled = filled._replace(done=True)
    except HoldfastError as error:
        filled = filled._replace(plan=filled.plan._replace(problem=to_problem(error)))
    return {**values, "filled": filled, "plan": filled.plan}


def export_threads(call: Call, action: str, form: ActionForm) -> Download:
    """Return several threads as a file."""
    if action != "export":
        raise NotFoundError("there is no such file")
    as_json = form.text("format") == "json"
    with new_download("threads.jsonl.gz" if as_json else "threads.holdfast.gz") as made:
        maintenance = call.owned.maintenance
        maintenance.export(made.path, threads=_names(form), format="json" if as_json else "holdfast")
        return made


def _names(form: ActionForm) -> list[str]:
    names = list(dict.fromkeys(form.texts("thread")))
    if not names:
        raise InvalidError("no thread is ticked", hint="Tick threads in their list, by a click or by x")
    if len(names) > _MOST:
        raise InvalidError(f"at most {_MOST} threads are ticked", hint="Use the command, with a prefix or a query")
    return names


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(python_text, names))}]"


def _words(names: Sequence[str]) -> str:
    return " ".join(map(shell_text, names))


def _plan_delete(call: Call, names: Sequence[str], _: Mapping[str, str]) -> Dry:
    maintenance = call.owned.maintenance
    found = maintenance.delete(names, dry_run=True)
    steps, bytes_ = sum(each.steps for each in found), sum(each.bytes for each in found)
    return Dry(
        [f"{plural(len(found), 'thread')} with {plural(steps, 'step')} are deleted for good, about {size(bytes_)}."],
        [ThreadEffect(each.thread, each.steps, "deleted") for each in found],
        f"store.maintenance.delete({_list(names)})",
        f"holdfast delete {_words(names)}",
        lambda: _ignore(maintenance.delete(names)),
    )


def _plan_prune(call: Call, names: Sequence[str], given: Mapping[str, str]) -> Dry:
    maintenance, rules = call.owned.maintenance, dict[str, Any]()
    if given["keep_last"]:
        if not given["keep_last"].isdecimal():
            raise InvalidError("the number of steps to keep must be a number")
        rules["keep_last"] = int(given["keep_last"])
    if given["keep_within"]:
        rules["keep_within"] = given["keep_within"]
    if not rules:
        raise InvalidError("nothing says what to keep", hint="Give a number of steps, or a time such as 30d")
    found = maintenance.prune(names, dry_run=True, **rules)
    options = "".join(f" --{name.replace('_', '-')} {shell_text(value)}" for name, value in rules.items())
    return Dry(
        [
            f"{plural(found.dropped, 'step')} are removed for good, about {size(max(0, found.bytes))}. "
            f"{plural(found.kept, 'step')} are kept.",
            "The last step of each branch, tagged, labelled and pinned steps are always kept.",
        ],
        [
            ThreadEffect(each.thread, each.kept + each.dropped, each.problem or f"{each.dropped:,} removed")
            for each in found.threads
        ],
        f"store.maintenance.prune({_list(names)}, {', '.join(f'{name}={value!r}' for name, value in rules.items())})",
        f"holdfast prune {_words(names)}{options}",
        (lambda: _ignore(maintenance.prune(names, **rules))) if found.dropped else None,
    )


def _plan_tag(call: Call, names: Sequence[str], given: Mapping[str, str]) -> Dry:
    tag = given["tag"]
    threads = {name: call.store.thread(name) for name in names}
    rows = []
    for name, thread in threads.items():
        had, head = thread.tags().get(tag), thread.find()
        what = f"#{head.step} is tagged" if had != head.id else f"#{head.step} has it"
        rows.append(
            ThreadEffect(
                name, head.step + 1, what + (", and an older step no more" if had not in (None, head.id) else "")
            )
        )

    def apply() -> None:
        for thread in threads.values():
            thread.tag(tag, move=True)

    word = tag or "…"
    return Dry(
        [f"The last step of each of {plural(len(names), 'thread')} has the tag {word}."],
        rows,
        f"for name in {_list(names)}:\n    store.thread(name).tag({python_text(word)}, move=True)",
        "\n".join(f"holdfast tag {shell_text(name)} {shell_text(word)} --force" for name in names[:3])
        + ("\n…" if len(names) > 3 else ""),
        apply if tag else None,
    )


def _plan_export(call: Call, names: Sequence[str], given: Mapping[str, str]) -> Dry:
    found = [call.owned.thread(name).info() for name in names]
    steps = sum(each.steps for each in found)
    as_json = given["format"] == "json"
    file = "threads.jsonl.gz" if as_json else "threads.holdfast.gz"
    python = (
        f"store.maintenance.export({file!r}, threads={_list(names)}{', format=' + repr('json') if as_json else ''})"
    )
    return Dry(
        [f"A file has {plural(len(found), 'thread')} with {plural(steps, 'step')}. The store stays as it is."],
        [ThreadEffect(each.thread, each.steps, "exported") for each in found],
        python,
        f"holdfast export {file} {_words(names)}{' --format json' if as_json else ''}",
        lambda: None,
    )


def _ignore(_: object) -> None:
    """Return nothing: a report says what was done to who calls the operation, and the list of threads to who looks."""


BULK: Mapping[str, BulkAction] = {
    "tag": BulkAction("Tag threads", "Tag", [ActionField("tag", "Tag", "", hint="good")], _plan_tag, of_owner=False),
    "export": BulkAction(
        "Export threads",
        "Export",
        [ActionField("format", "As", "holdfast", "select", _FORMATS)],
        _plan_export,
        reads=True,
    ),
    "prune": BulkAction(
        "Prune threads",
        "Prune",
        [
            ActionField("keep_last", "Keep the last", "100", "number", hint="100"),
            ActionField("keep_within", "Keep those of the last", "", hint="30d, 12h"),
        ],
        _plan_prune,
        confirm="prune",
    ),
    "delete": BulkAction("Delete threads", "Delete", [], _plan_delete, confirm="delete"),
}
"""The actions, by their addresses below `/bulk`."""
