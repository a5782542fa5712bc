"""Forms by which the store's owner calls an operation: each with what will be true, the same as Python and as a
command, and a code from the terminal where a browser must confirm it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.http.calls import find_receiver
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.action_plan import ActionField, ActionForm, ActionPlan
from holdfast.interfaces.web.page_renderer import python_text, shell_text
from holdfast.store.catalogue import store_parts

Given = Mapping[str, str]
"""What was filled in, by the names of the fields."""


class OperationForm(NamedTuple):
    """A form of an operation, given as `part.name`."""

    title: str
    operation: str
    button: str
    back: str
    """The page that it belongs to."""
    fields: Sequence[ActionField]
    """Each with its default."""
    required: str
    """The fields that must be filled in."""
    arguments: Callable[[Given], tuple[Sequence[Any], Mapping[str, Any]]]
    """Returns the arguments of the operation, by position and by name. Raises `InvalidError`."""
    effects: Callable[[Given], Sequence[str]]
    """Says what will be true."""
    words: Callable[[Given], Sequence[str]]
    """Returns the words of the command; those that are empty are left out."""
    confirm: str = ""
    """The field that is typed again before it is done."""


class FilledForm(NamedTuple):
    """A form as it was filled in, and as it is shown."""

    plan: ActionPlan
    ready: bool
    """Whether it can be done."""
    needs_code: bool
    typed: str
    result: Any = None
    done: bool = False


def fill_form(call: Call, form: OperationForm, sent: ActionForm) -> FilledForm:
    """Return a form as it was filled in; and call its operation if it was sent to be done."""
    call.require_write()
    given = {each.name: sent.text(each.name, each.value) for each in form.fields}
    fields = [each._replace(value=given[each.name]) for each in form.fields]
    part, _, name = form.operation.partition(".")
    operation = store_parts()[part].operation(name)
    assert operation is not None, form.operation  # noqa: S101 - a table of ours names it
    needs_code = bool(operation.declaration.confirm and call.caller.session)
    plan = ActionPlan(fields, form.button, cli=_command(form.words(given)), effects=form.effects(given))
    plan = plan._replace(confirm=given[form.confirm] if form.confirm else "")
    filled = FilledForm(plan, False, needs_code, sent.text("typed"))
    missing = next((each for each in form.required.split() if not given[each]), "")
    asked = sent.sent and sent.text("do") == "1"
    try:
        if missing:
            if not asked:
                return filled
            label = next(each.label for each in form.fields if each.name == missing)
            raise InvalidError(f"nothing is filled in for {label!r}")
        values, options = form.arguments(given)
        filled = filled._replace(plan=plan._replace(python=_python(form.operation, values, options)), ready=True)
        if not asked:
            return filled
        if plan.confirm and filled.typed != plan.confirm:
            raise InvalidError("it is done only if the name is typed again")
        receiver = find_receiver(call, operation.part, [], owner_only=True)
        if needs_code:
            call.require_confirmation()
        return filled._replace(result=getattr(receiver, name)(*values, **options), done=True)
    except HoldfastError as error:
        return filled._replace(plan=filled.plan._replace(problem=to_problem(error)))


def _command(words: Sequence[str]) -> str:
    return " ".join(["holdfast", *(shell_text(each) for each in words if each)])


def _python(operation: str, values: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Return a call as Python."""
    given = [*map(_literal, values), *(f"{name}={_literal(value)}" for name, value in options.items())]
    return f"store.{operation}({', '.join(given)})"


def _literal(value: Any) -> str:
    return python_text(value) if isinstance(value, str) else repr(value)
