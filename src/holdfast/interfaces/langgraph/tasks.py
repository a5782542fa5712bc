"""Ids of LangGraph's tasks, for what a task of a node wrote that is called otherwise now.

The id of a task is a hash of its checkpoint, its node and what triggers that; the id of an interrupt is one of the
task's. A new id is given only if the same computation gives the old one: if not, another release of LangGraph made it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.store.graph_schemas import RenamedTask, TaskPlace

_PULL, _PUSH = "__pregel_pull", "__pregel_push"
_MAX_INTERRUPTS = 1000


def rename_task(place: TaskPlace, path: str, task: str, nodes: Mapping[str, str]) -> RenamedTask | None:
    """Return the id of a task under the new name of its node; as it is, if the node was not renamed. None if the id
    cannot be computed. `nodes` are the new names by the old ones."""
    pull = f"~{_PULL}, "
    if path.startswith(pull):
        old = path.removeprefix(pull)
        if old not in nodes:
            return RenamedTask(task, path)
        for triggers in _triggers(place, old):
            if task == _task_id(place, old, _PULL, *sorted(triggers)):
                renamed = sorted(place.rename_channel(each, nodes) for each in triggers)
                return _renamed(place, task, old, nodes[old], f"{pull}{nodes[old]}", (_PULL, *renamed))
        return None
    if not path.startswith(f"~{_PUSH}, "):
        return RenamedTask(task, path)
    if any(f"~{_PULL}, {old}, " in path for old in nodes):
        return None  # a function that was called in the node: nothing says which
    number = path.split(", ")[1]
    old = place.sends[int(number)] if number.isdigit() and int(number) < len(place.sends) else ""
    if old not in nodes:
        return RenamedTask(task, path)
    parts = (_PUSH, str(int(number)))
    return _renamed(place, task, old, nodes[old], path, parts) if task == _task_id(place, old, *parts) else None


def _renamed(place: TaskPlace, task: str, old: str, new: str, path: str, parts: Sequence[str]) -> RenamedTask:
    id = _task_id(place, new, *parts)
    before, after = f"{_namespace(place, old)}:{task}", f"{_namespace(place, new)}:{id}"
    return RenamedTask(id, path, partial(_rename_interrupts, before, after))


def _triggers(place: TaskPlace, node: str) -> Iterator[list[str]]:
    """Yield what may trigger a node: an edge, and those of several nodes that it waits for."""
    joins = [each for each in place.channels if each.startswith("join:") and each.endswith(f":{node}")]
    yield [f"branch:to:{node}"]
    if joins:
        yield [f"branch:to:{node}", *joins]


def _task_id(place: TaskPlace, node: str, *parts: str) -> str:
    text = "".join((_namespace(place, node), str(place.step), node, *parts))
    try:
        data = bytes.fromhex(place.id.replace("-", "")) + text.encode()
    except ValueError:
        return ""
    found = _xxh3(data) if place.version > 1 else hashlib.sha1(data, usedforsecurity=False).hexdigest()
    return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:32]}"


def _namespace(place: TaskPlace, node: str) -> str:
    return f"{place.namespace}|{node}" if place.namespace else node


def _xxh3(data: bytes) -> str:
    from xxhash import xxh3_128_hexdigest  # LangGraph needs it, too

    return xxh3_128_hexdigest(data)


def _rename_interrupts(before: str, after: str, value: Any) -> Any:
    """Return interrupts of a task with the ids that they have in its new namespace."""
    if not isinstance(value, list | tuple):
        return value
    find: Callable[[Any], Any] = partial(_rename_interrupt, before, after)
    return type(value)(map(find, value))


def _rename_interrupt(before: str, after: str, interrupt: Any) -> Any:
    id = getattr(interrupt, "id", None)
    for answered in range(_MAX_INTERRUPTS):
        suffix = f"|{answered}" if answered else ""
        if id == _xxh3(f"{before}{suffix}".encode()):
            interrupt = copy.copy(interrupt)
            interrupt.id = _xxh3(f"{after}{suffix}".encode())
            break
    return interrupt
