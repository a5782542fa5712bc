"""Operations of the API on what was recorded: calls of hooks, runs of graphs, and their replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from holdfast import replay
from holdfast._views import plain
from holdfast.backends.runtime.drivers import run
from holdfast.codec import default_codec
from holdfast.engine.model.missing import MISSING
from holdfast.engine.pages import Page
from holdfast.engine.projection.rendering import messages
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.messages import to_message
from holdfast.interfaces.http.routes import Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import get_log, read_parts
from holdfast.interfaces.http.values import StateParts, long_text
from holdfast.recording.journal import RESULTS, decode_items, restore_error
from holdfast.recording.journal import Call as RecordedCall
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.replay.report import ReplayReport
from holdfast.store.replay.threads import ReplayedCall

RECORDINGS = RouteTable()

_LONGEST = 4000
"""How many characters of an input or a result are sent."""

_MESSAGES = 6
"""How many of the messages that a model was given are sent: the last ones."""

_MAX_STEPS = 200

_OtherValue = Annotated[Any, Meta(description="Given to the hook in place of the recorded value, if it is not null.")]
_OtherFields = Annotated[
    dict[str, Any] | None,
    Meta(description="Others of `key`, `value`, `old`, `actor` and `metadata` than were recorded."),
]
_Since = Annotated[str | None, Meta(description="The checkpoint to replay from.")]
_Until = Annotated[str | None, Meta(description="The checkpoint to replay up to.")]
_Results = Annotated[dict[str, Any] | None, Meta(description="Results of calls to replace, by the names of the calls.")]


# Hooks ------------------------------------------------------------------------------------------------------------


@RECORDINGS.post("/hooks/executions/{reference}/replays", status=200)
def replay_hook(call: Call, reference: str, *, value: _OtherValue = None, changes: _OtherFields = None) -> ReplayedCall:
    """Replay a recorded call with the hooks that the server was started with, on a fork of the state."""
    store, code = call.owned, call.service.options.hooks
    if not code:
        raise _unknown_code("hooks", "--hooks MODULE:FUNCTION")
    with call.service.replaying():
        report = replay.run_hooks(
            store,
            code,
            reference=reference,
            value=value,
            changes=changes,
            timeout=call.service.options.replay_timeout,
        )
    return report.calls[0]


def _unknown_code(what: str, option: str) -> UnsupportedError:
    return UnsupportedError(
        f"the server does not know the code of the {what}", hint=f"Start it with {option}, or replay where the code is"
    )


# Recorded runs ----------------------------------------------------------------------------------------------------


@RECORDINGS.get("/threads/{thread}/recording")
def get_recording(
    call: Call, thread: str, *, at: str | None = None, limit: Limit = 50, cursor: str | None = None
) -> Page[models.RecordedStepModel]:
    """List recorded calls of models and tools in the steps that lead to a checkpoint, the latest first."""
    if limit > _MAX_STEPS:
        raise InvalidError(f"a page of a recording must have 1 to {_MAX_STEPS} checkpoints")
    log = get_log(call, thread, at=at, first_parent=True, limit=limit, cursor=cursor)
    entries = [each for each in log if each.id and not each.damage]
    records = read_records(call, thread, [each.id for each in entries])
    items: list[models.RecordedStepModel] = []
    later: datetime | None = None
    for entry, found in zip(entries, records, strict=True):
        seconds = None if later is None else max(0.0, (later - entry.time).total_seconds())
        if found:
            tasks = list(to_tasks(call, thread, entry.id, found))
            items.append(
                models.RecordedStepModel(id=entry.id, step=entry.step, time=entry.time, seconds=seconds, tasks=tasks)
            )
        later = entry.time
    return Page(items, log.next)


def read_records(call: Call, thread: str, ids: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Read what was recorded after each of some checkpoints, as it is stored."""
    found: list[list[dict[str, Any]]] = run(CheckpointStore(call.store).read_recorded(thread, ids))
    return found or [[] for _ in ids]


@RECORDINGS.post("/threads/{thread}/replays", status=200)
def replay_thread(
    call: Call, thread: str, *, since: _Since = None, until: _Until = None, changes: _Results = None
) -> ReplayReport:
    """Replay a recorded thread with the graph that the server was started with, and compare."""
    store, graph = call.owned, call.service.options.graph
    if not graph:
        raise _unknown_code("graph", "--graph MODULE:NAME")
    with call.service.replaying():
        return replay.run(
            store,
            graph,
            thread=thread,
            since=since,
            until=until,
            changes=changes or {},
            timeout=call.service.options.replay_timeout,
        )


class _StateLists(Mapping[str, Sequence[Any]]):
    """The lists that recorded inputs refer to: those of the state, of which only parts are read, and the results."""

    def __init__(self, parts: StateParts, results: Sequence[Any]) -> None:
        self._parts = parts
        self._results = results

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self._results if name == RESULTS else _StateList(self._parts, name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._parts.names(), RESULTS))

    def __len__(self) -> int:
        return len(self._parts.names()) + 1


class _StateList(Sequence[Any]):
    """A list in a state, of which parts are read."""

    def __init__(self, parts: StateParts, name: str) -> None:
        self._parts = parts
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        try:
            if isinstance(index, slice):
                return self._parts.slice(self._name, index.start, index.stop)
            return self._parts.slice(self._name, index, index + 1)[0]
        except (NotFoundError, LookupError, TypeError):  # the channel was removed, or holds something else now
            return []

    def __len__(self) -> int:
        return self._parts.node((self._name,)).length or 0


def to_tasks(
    call: Call, thread: str, id: str, records: Sequence[Mapping[str, Any]]
) -> Iterator[models.RecordedTaskModel]:
    """Yield the tasks that were recorded after a checkpoint, as they are sent."""
    parts = read_parts(call, thread, id)
    numbers: dict[str, int] = {}
    for record in records:
        task = str(record.get("key", ""))
        calls = [restore_call(each) for each in record.get("calls", ())]
        lists = _StateLists(parts, [each.result for each in calls])
        first = numbers.get(task, 0)  # a task that ran again goes on counting
        numbers[task] = first + len(calls)
        yield models.RecordedTaskModel(
            task=task,
            mode=str(record.get("mode", "full")),
            resumed=[long_text(each, _LONGEST)[0] for each in record.get("resumed") or ()],
            calls=[_to_call(f"{task}#{first + number}", each, lists) for number, each in enumerate(calls)],
        )


def restore_call(record: Sequence[Any]) -> RecordedCall:
    """Return a stored call. One whose values could not be stored has only its name."""
    return RecordedCall.of_record([*record, *[None] * (6 - len(record))])


def _to_call(name: str, call: RecordedCall, lists: _StateLists) -> models.RecordedCallModel:
    given, shown, total, known = call.input, list[models.MessageModel](), 0, True
    if call.kind == "model" and isinstance(given, list) and len(given) == 2:
        items, given = given
        total = sum(map(_run_length, items))
        last = decode_items(_tail(items, _MESSAGES), lists)
        known = total <= _MESSAGES and MISSING not in last
        shown = _messages([each for each in last if each is not MISSING], total - len(last))
        given = given[1] if isinstance(given, list) and len(given) > 1 else None
    answer = _messages([call.result], 0) if _is_object(call.result) else []
    trees = [_short_json(each) for each in (given, call.result)]
    error = error_text(call.error) if call.end else ""
    return models.RecordedCallModel(
        name=name,
        kind=call.kind,
        called=call.name,
        input=trees[0][0],
        messages=shown,
        given=total,
        result=trees[1][0],
        answer=answer[0] if answer else None,
        error=error[:_LONGEST],
        chunks=len(call.chunks or ()),
        ended=call.end > 0,
        complete=known and len(error) <= _LONGEST and trees[0][1] and trees[1][1],
        time=to_datetime(call.began) if call.began else None,
        seconds=call.took / 1e9,
    )


def error_text(stored: Any) -> str:
    """Return a recorded error as text; empty if there is none. The text of one whose class is not known names it."""
    if stored is None:
        return ""
    error = restore_error(stored)
    name = type(error).__name__
    return str(error) if name == "RecordedError" else f"{name}: {error}"


def _short_json(value: Any) -> tuple[Any, bool]:
    """Return a value as JSON, and True; the start of its text, and False, if it is long."""
    text, whole = long_text(value, _LONGEST)
    return (plain(value), True) if whole else (text, False)


def _is_object(value: Any) -> bool:
    return value is not None and not isinstance(value, str | int | float | list | tuple)


def _messages(found: Sequence[Any], start: int) -> list[models.MessageModel]:
    """Return values as messages; none if they are not."""
    rendered = messages("recorded", default_codec.pack_items(found)) or ()
    return [replace(to_message("", start + number, each), path="") for number, each in enumerate(rendered)]


def _run_length(item: Sequence[Any]) -> int:
    return int(item[2]) if len(item) == 3 and isinstance(item[0], str) else 1


def _tail(items: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """Return what stands for the last of some encoded items."""
    found: list[Sequence[Any]] = []
    for item in reversed(items):
        length = _run_length(item)
        if length > count:
            item = [item[0], item[1] + length - count, count]
        if count:
            found.insert(0, item)
        count -= min(count, length)
    return found
