"""Routes that only call an operation of the Python API: a table of their addresses. Parameters, bodies and results are
made from the signature of the operation; who may call it, and what must be confirmed, from its declaration."""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from holdfast.engine.pages import Page
from holdfast.interfaces.http import models
from holdfast.interfaces.http.calls import find_receiver
from holdfast.interfaces.http.routes import FileContent, Limit, Route, input_type, names_in
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import open_thread
from holdfast.maintenance.doctor.result import CheckResult
from holdfast.store.catalogue import CataloguedOperation, resolve_annotation, store_parts
from holdfast.store.timeline.causality import CausalNode


class Forward(NamedTuple):
    """A route that calls an operation, given as `part.name`."""

    name: str
    address: str
    """The method, and the path below `/api/v1`."""
    operation: str
    status: int = 0
    """By default, 201 of a POST, and 200 of the others."""
    renamed: Mapping[str, str] = {}
    """Parameters of the operation that have another name in requests."""
    without: str = ""
    """Parameters of the operation that requests do not have."""

    @property
    def method(self) -> str:
        """The method of requests."""
        return self.address.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path of requests."""
        return self.address.partition(" ")[2]

    @property
    def path_names(self) -> list[str]:
        """The parameters that are parts of the path."""
        return names_in(self.path)


FORWARDS = (
    Forward("list_scopes", "GET /scopes", "store.scopes"),
    Forward("list_items", "GET /scopes/{scope}/items", "state.list_items"),
    Forward("get_item", "GET /scopes/{scope}/keys/{key}", "state.item"),
    Forward("get_key_history", "GET /scopes/{scope}/keys/{key}/history", "state.history"),
    Forward("list_threads", "GET /threads", "store.threads"),
    Forward("get_thread_status", "GET /threads/{thread}/status", "thread.status"),
    Forward("answer", "POST /threads/{thread}/answers", "thread.answer"),
    Forward("list_branches", "GET /threads/{thread}/branches", "thread.branches"),
    Forward("fork", "POST /threads/{thread}/forks", "thread.fork"),
    Forward("restore", "POST /threads/{thread}/restores", "thread.restore"),
    Forward("merge", "POST /threads/{thread}/merges", "thread.merge"),
    Forward("switch", "POST /threads/{thread}/switches", "thread.switch"),
    Forward(
        "delete_branch", "DELETE /threads/{thread}/branches/{branch}", "thread.delete_branch", 0, {"name": "branch"}
    ),
    Forward("set_tag", "PUT /threads/{thread}/tags/{tag}", "thread.tag"),
    Forward("remove_tag", "DELETE /threads/{thread}/tags/{tag}", "thread.untag"),
    Forward("add_label", "PUT /threads/{thread}/labels/{label}", "thread.label"),
    Forward("remove_label", "DELETE /threads/{thread}/labels/{label}", "thread.unlabel"),
    Forward("add_pin", "POST /threads/{thread}/pins", "thread.pin"),
    Forward("remove_pin", "DELETE /threads/{thread}/pins", "thread.unpin"),
    Forward("list_sessions", "GET /sessions", "sessions.list", without="metadata"),
    Forward("get_session", "GET /sessions/{id}", "sessions.get"),
    Forward("start_session", "POST /sessions", "sessions.start", 201, {"id": "session"}),
    Forward("end_session", "POST /sessions/{id}/end", "sessions.end", 200),
    Forward("list_artifacts", "GET /artifacts", "artifacts.list"),
    Forward("get_artifact", "GET /artifacts/{id}", "artifacts.get"),
    Forward("get_artifact_content", "GET /artifacts/{id}/content", "artifacts.read"),
    Forward("list_artifact_changes", "GET /artifacts/{id}/changes", "artifacts.changes"),
    Forward("list_agents", "GET /agents", "agents.list", without="metadata"),
    Forward("get_agent", "GET /agents/{id}", "agents.load"),
    Forward("resolve_agent", "POST /agents/{id}/resolutions", "agents.resolve", 200),
    Forward("save_agent_state", "PUT /agents/{id}/state", "agents.save_state"),
    Forward("list_transitions", "GET /agents/{id}/transitions", "agents.transitions"),
    Forward(
        "record_transition",
        "POST /agents/{id}/transitions",
        "agents.record_transition",
        201,
        {"from_": "source", "to": "target"},
    ),
    Forward("list_steps", "GET /agents/{id}/steps", "steps.list"),
    Forward("get_step", "GET /agents/{id}/steps/{key}", "steps.get"),
    Forward("list_signals", "GET /agents/{id}/signals", "steps.signals"),
    Forward("send_signal", "POST /agents/{id}/signals", "agents.signal", 201, {"agent": "id", "id": "signal_id"}),
    Forward("list_timers", "GET /agents/{id}/timers", "timers.list"),
    Forward("set_timer", "PUT /agents/{id}/timers/{name}", "timers.set"),
    Forward("cancel_timer", "DELETE /agents/{id}/timers/{name}", "timers.cancel"),
    Forward("query_timeline", "GET /timeline", "timeline.query", without="scan_limit"),
    Forward("get_causes", "GET /timeline/{id}/causes", "timeline.causes", without="thread path at scope key"),
    Forward("get_effects", "GET /timeline/{id}/effects", "timeline.effects"),
    Forward("list_hook_executions", "GET /hooks/executions", "hooks.history"),
    Forward("get_hook_execution", "GET /hooks/executions/{reference}", "hooks.get"),
    Forward("get_hook_statistics", "GET /hooks/statistics", "hooks.statistics"),
    Forward("list_undelivered_calls", "GET /hooks/undelivered", "hooks.undelivered"),
    Forward("retry_call", "POST /hooks/undelivered/{reference}/retries", "hooks.retry", 200),
    Forward("retry_failed_calls", "POST /hooks/undelivered/retries", "hooks.retry_failed", 200),
    Forward("discard_call", "DELETE /hooks/undelivered/{reference}", "hooks.discard"),
    Forward("list_jobs", "GET /jobs", "jobs.list"),
    Forward("get_job", "GET /jobs/{name}", "jobs.get"),
    Forward("run_job", "POST /jobs/{name}/runs", "jobs.run"),
    Forward("pause_job", "PUT /jobs/{name}/pause", "jobs.pause"),
    Forward("resume_job", "DELETE /jobs/{name}/pause", "jobs.resume"),
    Forward("list_alerts", "GET /alerts", "alerts.list"),
    Forward("silence_alert", "PUT /alerts/{rule}/silence", "alerts.silence"),
    Forward("run_doctor", "GET /doctor", "maintenance.doctor"),
    Forward("verify", "GET /verify", "maintenance.verify", without="heads"),
    Forward("query_audit", "GET /audit", "audit.query"),
    Forward("list_keys", "GET /encryption-keys", "encryption_keys.list"),
    Forward("rotate_keys", "POST /encryption-keys/rotations", "encryption_keys.rotate"),
    Forward("list_erasures", "GET /erasures", "erasure.certificates"),
)

_LIMIT = 1000
"""How many items are read by default where an operation reads all."""


def forward_routes() -> list[Route]:
    """Return the routes of the table."""
    return [make_route(each) for each in FORWARDS]


def make_route(forward: Forward) -> Route:
    """Return the route of a row."""
    part, _, name = forward.operation.partition(".")
    operation = store_parts()[part].operation(name)
    if operation is None:
        raise ValueError(f"there is no operation {forward.operation}")
    fields = _fields(operation, forward)
    in_body = [each for each in fields if forward.method not in _QUERY and each[0] not in forward.path_names]
    result, convert = _result(operation)
    return Route(
        forward.method,
        forward.path,
        forward.name,
        first_sentence(operation.function),
        partial(_run, forward, operation, convert),
        input_type(forward.name, "Params", [each for each in fields if each not in in_body]),
        input_type(forward.name, "Request", in_body) if in_body else None,
        result,
        forward.status or (201 if forward.method == "POST" else 200),
        forward.method != "GET",
    )


_QUERY = ("GET", "DELETE")


def first_sentence(function: Any) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def _run(
    forward: Forward,
    operation: CataloguedOperation,
    convert: Callable[[Any], Any] | None,
    call: Call,
    /,
    **given: Any,
) -> Any:
    """Call an operation for a request, and return its result as it is sent."""
    names = [given[name] for name in operation.part.names]
    sent = {name: forward.renamed.get(name, name) for name in _parameters(operation)}
    options = {name: given[each] for name, each in sent.items() if given.get(each) is not None}
    if operation.declaration.confirm and not operation.reads(options):
        call.require_confirmation()
    if operation.part.name == "thread" and operation.declaration.changes:
        receiver: Any = open_thread(call, names[0])
    else:
        if operation.declaration.changes:
            call.refuse_condition()
        receiver = find_receiver(call, operation.part, names, owner_only=operation.owner_only)
    result = getattr(receiver, operation.name)(**options)
    return _done(result, given[forward.path_names[-1]]) if convert is None else convert(result)


# Parameters -------------------------------------------------------------------------------------------------------


def _parameters(operation: CataloguedOperation) -> Mapping[str, inspect.Parameter]:
    return dict(list(inspect.signature(operation.function).parameters.items())[1:])


def _fields(operation: CataloguedOperation, forward: Forward) -> list[tuple[Any, ...]]:
    """Return the fields of a request: the parameters that can be written in JSON, or in a query."""
    found: list[tuple[Any, ...]] = [(each, str) for each in operation.part.names]
    for name, parameter in _parameters(operation).items():
        sent = forward.renamed.get(name, name)
        if name in forward.without.split():
            continue
        hint = resolve_annotation(parameter.annotation, operation.function)
        kind = _json_type(hint)
        if kind is None and _is_function(hint):  # a server calls none of the caller's
            continue
        if kind is None or (forward.method in _QUERY and _is_nested(kind)):
            raise ValueError(f"{forward.name} cannot take {name} of {forward.operation}: name it in `without`")
        if sent in forward.path_names:
            found.append((sent, str))
        elif name == "limit":
            found.append((sent, Limit, parameter.default or _LIMIT))
        elif parameter.default is parameter.empty:
            found.append((sent, kind))
        elif isinstance(parameter.default, str | int | float | None):
            found.append((sent, kind, parameter.default))
        else:  # the default of Python is no JSON
            found.append((sent, kind | None, None))
    return found


def _json_type(hint: Any) -> Any:
    """Return the type by which a parameter is sent; None if it cannot be: a function, or an object of Python."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        others = [each for each in arguments if each is not NoneType]
        kind = str if str in others else next(filter(None, map(_json_type, others)), None)
        return kind | None if kind is not None and NoneType in arguments else kind
    if hint in (str, int, float, bool, Any) or origin is Literal:
        return hint
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, Any]
    if origin is not None and origin is not Callable and issubclass(origin, Iterable):
        item = _json_type(arguments[0])
        return None if item is None else list[item]  # type: ignore[valid-type]
    return None


def _is_function(hint: Any) -> bool:
    """Whether a parameter is a function, or None."""
    return any(get_origin(each) is abc.Callable for each in (hint, *get_args(hint)))


def _is_nested(kind: Any) -> bool:
    return get_origin(kind) in (dict, list) or any(map(_is_nested, get_args(kind)))


# Results ----------------------------------------------------------------------------------------------------------


def to_doctor(checks: Sequence[CheckResult]) -> models.DoctorModel:
    """Return the checks of the doctor as a response."""
    return models.DoctorModel(ok=all(each.ok for each in checks), items=list(checks))


def to_nodes(tree: CausalNode) -> list[models.CausalNodeModel]:
    """Return a tree as a list, each node before those that it leads to."""
    return [
        models.CausalNodeModel(depth=depth, id=node.id, events=list(node.events), more=node.more)
        for depth, node in tree.walk()
    ]


_RESULTS: Mapping[Any, tuple[Any, Callable[[Any], Any]]] = {
    bytes: (FileContent, lambda data: FileContent(data, "application/octet-stream")),
    int: (models.CountModel, lambda count: models.CountModel(count=count)),
    CausalNode: (list[models.CausalNodeModel], to_nodes),
    "maintenance.doctor": (models.DoctorModel, to_doctor),
    "agents.signal": (models.SentSignalModel, lambda new: models.SentSignalModel(new=new)),
}
"""How results that are no records are sent, by the operation or by the type."""


def _result(operation: CataloguedOperation) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return the type of a result as it is sent, and how it is converted to that; None for what a change concerned."""
    hint = resolve_annotation(inspect.signature(operation.function).return_annotation, operation.function)
    for key in (f"{operation.part.name}.{operation.name}", hint):
        if key in _RESULTS:
            return _RESULTS[key]
    if hint in (NoneType, bool, str, list[str]):
        return models.DoneModel, None
    bases = getattr(hint, "__orig_bases__", ()) if isinstance(hint, type) else ()  # a list or page of its own class
    return next((each for each in bases if get_origin(each) in (Page, list)), hint), lambda result: result


def _done(result: Any, name: str) -> models.DoneModel:
    """Return what a change concerned: what it returns, or, if that is whether there was something, its name."""
    if isinstance(result, bool):
        return models.DoneModel(ids=[name] if result else [])
    return models.DoneModel(ids=[result] if isinstance(result, str) else result or [])
