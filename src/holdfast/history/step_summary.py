"""Summaries of steps: which channels a step changed and by how much, and the message that it added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.json import decode, encode
from msgspec.structs import replace

from holdfast.backends.interface import Query, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.codec import default_codec
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import ChangeItem, Combine, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import as_items, as_map, count_items
from holdfast.engine.model.steps import Step
from holdfast.engine.projection.rendering import RenderedMessage, in_common_form, is_hidden, messages
from holdfast.engine.row_format import Line, open_step
from holdfast.engine.subject_names import METADATA_KEY, subject_of_name, subjects_in
from holdfast.engine.types import ThreadInfo, framework_of
from holdfast.errors import HoldfastError

_SHORT = 24
"""The largest packed value that a summary contains."""

_LATEST = 3
"""In so many of its latest steps, the last message of a thread is looked for."""

_LONGEST = 200
ONLY_INTERNAL = "only internal channels"
"""What is said of a step that changed nothing else."""

_BOOKKEEPING, _SEEN = "__checkpoint__", "seen by "
"""The channel of a graph's bookkeeping, and how its entries for nodes start."""

USERS = ("user_id", "user", METADATA_KEY)
"""The entries of metadata that say whose thread it is."""


def changed_channels(step: Step) -> list[str]:
    """Return the channels that a step put, changed or removed."""
    return [_channel(key) for key, _ in step.edit.put] + [_channel(key) for key in step.edit.removed]


def summarize(step: Step, *, hidden: bool = False) -> list[str]:
    """Return the channels that a step changed, each with how much: `messages +2`, `plan ~1`, `count=3`, `-draft`.

    Internal channels of frameworks are left out unless `hidden`.
    """
    put = [(_channel(key), _amount(operation)) for key, operation in step.edit.put]
    removed = [_channel(key) for key in step.edit.removed]
    parts = [f"{name}{amount}" for name, amount in put if hidden or not is_hidden(name)]
    parts += [f"-{name}" for name in removed if hidden or not is_hidden(name)]
    return parts or ([ONLY_INTERNAL] if put or removed else [])


def last_message(step: Step) -> str:
    """Return the first line of the last message that a step added, with its role: `assistant: Next is abc.`"""
    for key, operation in step.edit.put:
        item, name = _last_item(operation), _channel(key)
        if item is None or is_pointer(item) or is_hidden(name):
            continue
        try:
            rendered = messages(name, [item])
        except HoldfastError:
            continue  # damaged: the summary says how much the step changed
        if rendered:
            (message,) = rendered
            who = " ".join(filter(None, (message.role, message.name, "failed" if is_failed_tool(message) else "")))
            text = next((line.strip() for line in message.content.splitlines() if line.strip()), "")
            if text:
                return f"{who}: {text}" if who else text
            return next((f"{who} calls {call}" for call in tool_calls(message)), "")
    return ""


def nodes_of(step: Step) -> list[str]:
    """Return the nodes of a graph whose work a step stored: LangGraph notes in it which versions each of them has
    seen."""
    for key, operation in step.edit.put:
        if _channel(key) != _BOOKKEEPING:
            continue
        if isinstance(operation, EditMap):
            names = (_channel(entry) for entry, _ in operation.put)
            return [name.removeprefix(_SEEN) for name in names if name.startswith(_SEEN)]
        if isinstance(operation, Set) and not is_pointer(operation.value):
            return _latest_nodes(operation.value)
    return []


def _latest_nodes(bookkeeping: bytes) -> list[str]:
    """Return the nodes that have seen the newest versions, of all that ever ran."""
    try:
        found = default_codec.unpack(bookkeeping)
    except HoldfastError:
        return []
    noted = found.items() if isinstance(found, dict) else ()
    seen = {str(name).removeprefix(_SEEN): versions for name, versions in noted if str(name).startswith(_SEEN)}
    newest = {
        name: max(map(str, versions.values()), key=_order, default="")
        for name, versions in seen.items()
        if isinstance(versions, dict)
    }
    latest = max(newest.values(), key=_order, default="")
    return [name for name, version in newest.items() if version == latest]


def _order(version: str) -> tuple[int, str]:
    """Return the place of a version among others: a number, or a text that begins with one."""
    number = version.partition(".")[0]
    return (int(number) if number.isdecimal() else -1, version)


def has_failed_tool(step: Step) -> bool:
    """Return whether a step added the result of a tool that says that it failed."""
    for key, operation in step.edit.put:
        if isinstance(operation, Set) and b"error" not in operation.value:
            continue  # it is not taken apart
        suspects = [item for item in added_items(operation) if b"error" in item and not is_pointer(item)]
        try:
            rendered = messages(_channel(key), suspects) if suspects else None
        except HoldfastError:
            continue  # damaged: its own page says so
        if any(is_failed_tool(each) for each in rendered or ()):
            return True
    return False


def is_failed_tool(message: RenderedMessage) -> bool:
    """Return whether a message is the result of a tool that says that it failed."""
    if message.role != "tool" or "error" not in message.json:
        return False
    tree = decode(message.json)
    return isinstance(tree, dict) and (tree.get("status") == "error" or tree.get("is_error") is True)


async def preview_threads(engine: Engine, tenant: str, threads: Sequence[ThreadInfo]) -> list[ThreadInfo]:
    """Return threads with what their latest steps say: the last message, and whose thread it is. Of a damaged step,
    nothing is said."""
    queries: list[Query] = [
        Scan(STEPS, (tenant, each.thread), (), (f"{each.latest}\0",), True, _LATEST, "id")
        for each in threads
        if each.latest
    ]
    answers = iter(await read_despite_damage(engine.context.backend, queries) if queries else ())
    return [_previewed(engine, tenant, each, next(answers)) if each.latest else each for each in threads]


def _previewed(engine: Engine, tenant: str, info: ThreadInfo, rows: Sequence[Row]) -> ThreadInfo:
    line, message, changes, user, framework = Line(tenant, info.thread), "", "", "", info.framework
    for row in rows:
        if row.key[2] != rows[0].key[2]:
            continue  # of another branch
        try:
            step = open_step(line, row, engine.context.max_bytes)
            metadata = engine.context.codec.unpack(step.header.metadata)
        except HoldfastError:
            break
        user = user or next(iter(subjects_in(metadata, USERS)), "") or subject_of_name(step.header.origin.actor)
        framework = framework or framework_of(metadata)
        changes = changes or ", ".join(summarize(step))
        message = last_message(step)
        if message:
            break
    return replace(info, message=(message or changes)[:_LONGEST], user=user[:_LONGEST], framework=framework)


def tool_calls(message: RenderedMessage) -> Iterator[str]:
    """Yield the tool calls of a message, as in `search({"q":"cats"})`."""
    tree = decode(message.json)
    calls = in_common_form(tree).get("tool_calls") if isinstance(tree, dict) else None
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call.get("function")
            called = function if isinstance(function, dict) else call
            arguments = called.get("args", called.get("arguments", {}))
            name = called.get("name") or called.get("tool_name", "")
            yield f"{name}({arguments if isinstance(arguments, str) else _json(arguments)})"


def _json(value: Any) -> str:
    return encode(value).decode()


def _channel(packed: bytes) -> str:
    try:
        return str(default_codec.unpack(packed))
    except HoldfastError:
        return packed.hex()


def _last_item(operation: Operation) -> bytes | None:
    """Return the last item that an operation puts into a list."""
    items = added_items(operation)
    return items[-1] if items else None


def added_items(operation: Operation) -> Sequence[bytes]:
    """Return the items that an operation puts into a list."""
    if isinstance(operation, EditList):
        return [item for part in operation.parts if not isinstance(part, KeepRun | ChangeItem) for item in part]
    if isinstance(operation, Combine):
        return operation.items or ()
    return (as_items(operation.value) if isinstance(operation, Set) else None) or ()


def _amount(operation: Operation) -> str:
    if isinstance(operation, EditMap):
        amounts: tuple[tuple[str, int], ...] = (("~", len(operation.put)), ("-", len(operation.removed)))
    elif isinstance(operation, EditList):
        added = changed = removed = at = 0
        for part in operation.parts:
            if isinstance(part, KeepRun):
                removed += max(0, part.start - at)
                at = part.start + part.length
            elif isinstance(part, ChangeItem):
                changed += 1
                removed += max(0, part.place - at)
                at = part.place + 1
            else:
                added += len(part)
        amounts = (("+", added), ("~", changed), ("-", removed))
    elif isinstance(operation, Set):
        return _value(operation.value)
    else:
        amounts = (("+", len(added_items(operation))),)
    return "".join(f" {sign}{count}" for sign, count in amounts if count)


def _value(packed: bytes) -> str:
    """Return the number of items, or a short value itself."""
    if (count := count_items(packed)) is not None:
        return f"[{count}]"
    if (entries := as_map(packed)) is not None:
        return f"{{{len(entries)}}}"
    if len(packed) > _SHORT:
        return ""
    try:
        return f"={_json(default_codec.to_plain(default_codec.unpack(packed)))}"
    except HoldfastError:
        return ""
