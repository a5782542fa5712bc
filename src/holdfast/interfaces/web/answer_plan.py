"""Answers to interrupts: the fields in which a question is shown and answered, and the answer that they make.

LangChain's forms are known (`HumanInterrupt`, `HITLRequest`, the approval of a tool), and a JSON Schema of the answer,
where the graph gave one. Any other question is answered with a text, or with JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast._views import plain
from holdfast.codec.value_text import json_text
from holdfast.engine.types import Question
from holdfast.errors import ConflictError, InvalidError
from holdfast.interfaces.web.action_plan import (
    ActionField,
    ActionForm,
    ActionPlan,
    ActionTarget,
    build_request,
    require,
)
from holdfast.interfaces.web.page_renderer import python_text, shell_text

_LABELS = {
    "accept": "Accept",
    "edit": "Edit",
    "respond": "Respond",
    "response": "Respond",
    "ignore": "Ignore",
    "approve": "Approve",
    "reject": "Reject",
}
_MOST_FIELDS = 30


class Asked(NamedTuple):
    """A part of a question that is answered by itself: what is to be done, and what may be answered."""

    title: str
    description: str
    arguments: Sequence[tuple[str, str]]
    """The arguments of the action, as text."""
    prefix: str
    """The start of the names of its fields."""


class QuestionView(NamedTuple):
    """A question as it is shown."""

    question: Question
    parts: Sequence[Asked]
    text: str
    """The question itself, if it has no parts."""


def view_question(question: Question) -> QuestionView:
    """Return a question as it is shown: LangChain's forms by their parts, another one as a text."""
    value = plain(question.value)
    parts = [each.asked for each in _requests(value)]
    text = "" if parts else value if isinstance(value, str) else json_text(value, indent=2)
    return QuestionView(question, parts, text)


def question_text(value: Any) -> str:
    """Return a question in a line: what LangChain's forms describe, or the start of another one."""
    found = [each.asked for each in _requests(plain(value))]
    return "; ".join(each.description or each.title for each in found)


class _Request(NamedTuple):
    """A request of LangChain's forms."""

    asked: Asked
    name: str
    args: Any
    allowed: Sequence[str]
    form: str
    """`human`, `hitl` or `tool`: how the answer is built."""


def _requests(value: Any) -> list[_Request]:
    """Return the requests in a question; none if it is not one of LangChain's forms."""
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        rules = {
            each.get("action_name"): each.get("allowed_decisions")
            for each in value.get("review_configs") or ()
            if isinstance(each, Mapping)
        }
        every = ("approve", "edit", "reject", "respond")
        asked = [each for each in value["action_requests"] if isinstance(each, Mapping)]
        return [
            _request(n, each.get("name"), each, rules.get(each.get("name")) or every, "hitl")
            for n, each in enumerate(asked[:_MOST_FIELDS])
        ]
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        return [_request(0, value.get("name"), value, ("approve", "edit", "reject", "respond"), "tool")]
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(each, Mapping) and "action_request" in each for each in items):
        return []
    found: list[_Request] = []
    for n, each in enumerate(items[:_MOST_FIELDS]):
        action, rule = each["action_request"], each.get("config")
        action, rule = (part if isinstance(part, Mapping) else {} for part in (action, rule))
        allowed = [how for how in ("accept", "edit", "respond", "ignore") if rule.get(f"allow_{how}", not rule)]
        described = {**action, "description": each.get("description")}
        found.append(_request(n, action.get("action"), described, allowed, "human"))
    return found


def _request(number: int, name: object, request: Mapping[str, Any], allowed: Sequence[Any], form: str) -> _Request:
    args = request.get("args", {})
    pairs = args.items() if isinstance(args, Mapping) else [("", args)]
    shown = [(str(key), value if isinstance(value, str) else json_text(value)) for key, value in pairs]
    asked = Asked(str(name or ""), str(request.get("description") or ""), shown, f"{number}.")
    return _Request(asked, str(name or ""), args, [str(each) for each in allowed], form)


# The form ---------------------------------------------------------------------------------------------------------


def plan_answer(target: ActionTarget, form: ActionForm) -> ActionPlan:
    """Return what an answer to a question of the thread would do."""
    status = target.thread.status()
    id = form.text("question")
    question = next((each for each in status.questions if each.id == id or not id), None)
    if question is None:
        plan = ActionPlan([], "Answer")
        return require(plan, lambda: _refuse(status.status))
    schema = question.schema if isinstance(question.schema, Mapping) else None
    requests = _requests(plain(question.value))
    if requests:
        fields = [field for each in requests for field in _request_fields(each, form, schema, len(requests) > 1)]
    else:
        fields = list(_schema_fields(schema, form)) if schema else _plain_fields(form)
    plan = ActionPlan([ActionField("question", "", question.id, "hidden"), *fields], "Answer")
    value = require(plan, lambda: _value(requests, schema, form))
    argument = "" if len(status.questions) == 1 else f", question={python_text(question.id)}"
    option = "" if len(status.questions) == 1 else f" --question {shell_text(question.id)}"
    return plan._replace(
        python=f"{target.python}.answer({value!r}{argument})",
        cli=f"holdfast answer {shell_text(target.name)} {shell_text(json_text(value))}{option}",
        effects=[_next_step(len(status.questions) - 1)],
        request=build_request(
            "POST", f"{target.address}/answers", {"value": value, "question": question.id}, "checkpoint"
        ),
    )


def _next_step(left: int) -> str:
    if left:
        return f"The answer is stored. {left} more of its questions wait."
    return (
        "The answer is stored. The graph goes on with graph.invoke(None, …); a run that waits is queued for a worker."
    )


def _refuse(status: str) -> ActionPlan:
    raise ConflictError(f"the thread is {status}, and waits for no such answer", hint="Another may have answered")


def _request_fields(request: _Request, form: ActionForm, schema: Any, several: bool) -> Iterator[ActionField]:
    """Yield the fields of a request: what to do, and what that needs."""
    allowed = _allowed(request, schema)
    prefix, how = request.asked.prefix, _chosen(request, form, schema)
    options = [(each, _LABELS.get(each, each)) for each in allowed]
    yield ActionField(f"{prefix}how", request.asked.title if several else "", how, "choice", options)
    if how == "edit":
        text = form.raw(f"{prefix}args", json_text(request.args, indent=2))
        yield ActionField(f"{prefix}args", "Arguments as JSON", text, "long")
    elif how in ("respond", "reject"):
        label = "Answer" if how == "respond" else "Reason"
        yield ActionField(f"{prefix}message", label, form.raw(f"{prefix}message"), "long")


def _allowed(request: _Request, schema: Any) -> Sequence[str]:
    """Return the decisions that may be made; those that a schema of the answer names."""
    if request.form != "tool" or not isinstance(schema, Mapping):
        return request.allowed
    mapping = (schema.get("discriminator") or {}).get("mapping")
    named = list(mapping) if isinstance(mapping, Mapping) else [_only_type(schema)]
    return [each for each in request.allowed if each in named] or request.allowed


def _only_type(schema: Mapping[str, Any]) -> Any:
    properties = schema.get("properties")
    kind = properties.get("type") if isinstance(properties, Mapping) else None
    return kind.get("const") if isinstance(kind, Mapping) else None


def _chosen(request: _Request, form: ActionForm, schema: Any) -> str:
    allowed = _allowed(request, schema)
    how = form.text(f"{request.asked.prefix}how")
    return how if how in allowed else allowed[0] if allowed else ""


def _plain_fields(form: ActionForm) -> list[ActionField]:
    as_json = form.text("as") == "json"
    options = [("text", "Text"), ("json", "JSON")]
    return [
        ActionField("value", "Answer", form.raw("value"), "long", hint='{"approved": true}' if as_json else ""),
        ActionField("as", "As", "json" if as_json else "text", "choice", options),
    ]


def _schema_fields(schema: Mapping[str, Any], form: ActionForm) -> Iterator[ActionField]:
    """Yield the fields of an answer that has a schema: one for each property, or one for the value."""
    for name, rule in _properties(schema):
        label = str(rule.get("title") or name or "Answer")
        hint, default = str(rule.get("description") or "")[:200], rule.get("default")
        given = "" if default is None else default if isinstance(default, str) else json_text(default)
        value, choices = form.raw(f"value.{name}", given), rule.get("enum")
        if isinstance(choices, list) or rule.get("type") == "boolean":
            options = [(json_text(each), str(each)) for each in choices or (True, False)]
            known = [each for each, _ in options]
            quoted = value if value in known else json_text(value)
            chosen = quoted if quoted in known else known[0]
            yield ActionField(f"value.{name}", label, chosen, "select", options, hint)
        elif rule.get("type") in ("integer", "number"):
            yield ActionField(f"value.{name}", label, value, "number", hint=hint)
        elif rule.get("type") == "string":
            yield ActionField(f"value.{name}", label, value, "text", hint=hint)
        else:
            yield ActionField(f"value.{name}", f"{label} as JSON", value, "long", hint=hint)


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return [("", schema)]
    found = [(str(name), rule) for name, rule in properties.items() if isinstance(rule, Mapping)]
    return found[:_MOST_FIELDS]


# The answer -------------------------------------------------------------------------------------------------------


def _value(requests: Sequence[_Request], schema: Any, form: ActionForm) -> Any:
    """Return the answer that the fields make. `InvalidError` if they make none."""
    if requests:
        made = [_decision(each, form, schema) for each in requests]
        return {"human": made, "hitl": {"decisions": made}, "tool": made[0]}[requests[0].form]
    if schema is None:
        return _parse(form.raw("value"), "the answer") if form.text("as") == "json" else form.raw("value")
    values = {name: _field_value(name, rule, form) for name, rule in _properties(schema)}
    if "" in values:
        return values[""]
    required = schema.get("required") if isinstance(schema.get("required"), list) else []
    if missing := [name for name in required if values.get(name) is None]:
        raise InvalidError(f"{', '.join(map(str, missing))} must be filled in")
    return {name: value for name, value in values.items() if value is not None}


def _decision(request: _Request, form: ActionForm, schema: Any) -> dict[str, Any]:
    how, prefix = _chosen(request, form, schema), request.asked.prefix
    message = form.raw(f"{prefix}message")
    args = request.args
    if how == "edit":
        args = _parse(form.raw(f"{prefix}args", json_text(request.args)), "the arguments")
    if request.form == "human":
        answers = {"accept": None, "ignore": None, "respond": message, "edit": {"action": request.name, "args": args}}
        return {"type": "response" if how == "respond" else how, "args": answers.get(how)}
    if how == "edit":
        return {"type": "edit", "edited_action": {"name": request.name, "args": args}}
    if how == "respond" and not message:
        raise InvalidError("write what the tool would have answered")
    return {"type": how, **({"message": message} if message and how in ("reject", "respond") else {})}


def _field_value(name: str, rule: Mapping[str, Any], form: ActionForm) -> Any:
    default = rule.get("default")
    text = form.raw(
        f"value.{name}", "" if default is None else default if isinstance(default, str) else json_text(default)
    )
    if rule.get("type") == "string" and not isinstance(rule.get("enum"), list):
        return text if text or not name else None
    if not text and (isinstance(rule.get("enum"), list) or rule.get("type") == "boolean"):
        return (rule.get("enum") or [True])[0]
    return _parse(text, name or "the answer") if text else None


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        at = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) and "\n" in text else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidError(f"{what} is not JSON{at}: {reason}") from None
