"""What a step changed, in a few words."""

from __future__ import annotations

from holdfast.cli.records import encode
from holdfast.codec import default_codec
from holdfast.errors import HoldfastError
from holdfast.model.operations import Change, EditList, EditMap, Keep, Operation, Set
from holdfast.model.packed import as_items, as_map
from holdfast.model.steps import Step

_SHORT = 24
"""Up to so many bytes, a value is shown."""


def channel_name(packed: bytes) -> str:
    """The name of a channel, of which a step has the packed form."""
    try:
        return str(default_codec.unpack(packed))
    except HoldfastError:
        return packed.hex()


def changed(step: Step) -> list[str]:
    """The channels that a step put, changed or removed."""
    return [channel_name(key) for key, _ in step.edit.put] + [channel_name(key) for key in step.edit.removed]


def summary(step: Step) -> list[str]:
    """The same, each with how much of it: `messages +2`, `plan ~1`, `count=3`, `-draft`."""
    named = [f"{channel_name(key)}{_amount(operation)}" for key, operation in step.edit.put]
    return named + [f"-{channel_name(key)}" for key in step.edit.removed]


def _amount(operation: Operation) -> str:
    if isinstance(operation, EditMap):
        amounts: tuple[tuple[str, int], ...] = (("~", len(operation.put)), ("-", len(operation.removed)))
    elif isinstance(operation, EditList):
        added = touched = dropped = at = 0
        for part in operation.parts:
            if isinstance(part, Keep):
                dropped += max(0, part.start - at)
                at = part.start + part.length
            elif isinstance(part, Change):
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
