"""What a step changed, in a few words."""

from __future__ import annotations

from holdfast.codec import default_codec
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import as_items, as_map
from holdfast.engine.model.steps import Step
from holdfast.engine.projection.rendering import messages
from holdfast.engine.projection.rows import is_hidden
from holdfast.errors import HoldfastError
from holdfast.interfaces.cli.formatting import cut, first_line
from holdfast.interfaces.cli.json_output import encode
from holdfast.interfaces.cli.value_view import tool_calls

_SHORT = 24
"""Up to so many bytes, a value is shown."""

_SAID = 60
"""How many columns of what a message says are shown."""


def channel_name(packed: bytes) -> str:
    """The name of a channel, of which a step has the packed form."""
    try:
        return str(default_codec.unpack(packed))
    except HoldfastError:
        return packed.hex()


def changed(step: Step) -> list[str]:
    """The channels that a step put, changed or removed."""
    return [channel_name(key) for key, _ in step.edit.put] + [channel_name(key) for key in step.edit.removed]


def summary(step: Step, *, hidden: bool = False) -> list[str]:
    """The same, each with how much of it: `messages +2`, `plan ~1`, `count=3`, `-draft`. The frameworks' own channels
    are left out unless the `hidden` ones are asked for."""
    put = [(channel_name(key), _amount(operation)) for key, operation in step.edit.put]
    removed = [(channel_name(key), "-") for key in step.edit.removed]
    shown = [f"{name}{amount}" for name, amount in put if hidden or not is_hidden(name)]
    shown += [f"{sign}{name}" for name, sign in removed if hidden or not is_hidden(name)]
    return shown or (["only internal channels"] if put or removed else [])


def said(step: Step) -> str:
    """The first words of the last message that a step brought, and whose they are: `assistant: Next is abc.` Empty if
    it brought none."""
    for key, operation in step.edit.put:
        item, name = _last(operation), channel_name(key)
        if item is None or is_pointer(item) or is_hidden(name):
            continue
        try:
            found = messages(name, [item])
        except HoldfastError:
            continue  # the step can be read, and says itself how much it changed
        if found:
            (message,) = found
            who = " ".join(filter(None, (message.role, message.name)))
            if text := first_line(message.content):
                return cut(f"{who}: {text}" if who else text, _SAID)
            return next((cut(f"{who} calls {call}", _SAID) for call in tool_calls(message)), "")
    return ""


def _last(operation: Operation) -> bytes | None:
    """The last of the items that an operation puts into a list."""
    if isinstance(operation, EditList):
        put = [part for part in operation.parts if not isinstance(part, KeepRun | ChangeItem) and part]
        return put[-1][-1] if put else None
    items = as_items(operation.value) if isinstance(operation, Set) else None
    return items[-1] if items else None


def _amount(operation: Operation) -> str:
    if isinstance(operation, EditMap):
        amounts: tuple[tuple[str, int], ...] = (("~", len(operation.put)), ("-", len(operation.removed)))
    elif isinstance(operation, EditList):
        added = touched = dropped = at = 0
        for part in operation.parts:
            if isinstance(part, KeepRun):
                dropped += max(0, part.start - at)
                at = part.start + part.length
            elif isinstance(part, ChangeItem):
                touched += 1
                dropped += max(0, part.place - at)
                at = part.place + 1
            else:
                added += len(part)
        amounts = (("+", added), ("~", touched), ("-", dropped))
    elif isinstance(operation, Set):
        return _value(operation.value)
    else:
        return ""
    return "".join(f" {sign}{count}" for sign, count in amounts if count)


def _value(packed: bytes) -> str:
    """What a channel was set to: how many items, or the value itself if it is a short one."""
    items, entries = as_items(packed), as_map(packed)
    if items is not None:
        return f"[{len(items)}]"
    if entries is not None:
        return f"{{{len(entries)}}}"
    if len(packed) > _SHORT:
        return ""
    try:
        return f"={encode(default_codec.unpack(packed))}"
    except HoldfastError:
        return ""
