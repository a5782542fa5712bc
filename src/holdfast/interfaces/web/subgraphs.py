"""Subgraphs of threads: what they are called, where they stand in a list, and the step of their parent.

A subgraph stores its steps under the thread in a namespace: the node that runs it, and the task, for each one above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.types import Checkpoint, ThreadInfo
from holdfast.errors import HoldfastError
from holdfast.interfaces.http.service import Call

_BETWEEN, _TASK = "|", ":"
_MOST = 40
"""Of so many subgraphs of a thread, it is looked where they ran."""


class Crumb(NamedTuple):
    """A thread on the way to a subgraph: its name in the store, and what it is called."""

    thread: str
    title: str


def crumbs_of(name: str) -> list[Crumb]:
    """Return a thread with its subgraphs, down to the one of this name."""
    root, namespace = split_name(name)
    parts = namespace.split(_BETWEEN) if namespace else []
    inner = [
        Crumb(thread_name(root, _BETWEEN.join(parts[: depth + 1])), part.partition(_TASK)[0])
        for depth, part in enumerate(parts)
    ]
    return [Crumb(thread_name(root), root), *inner]


def thread_title(name: str) -> str:
    """Return what a thread is called: a subgraph by the nodes that lead to it."""
    return " ▸ ".join(each.title for each in crumbs_of(name))


def nest(threads: Sequence[ThreadInfo]) -> list[ThreadInfo]:
    """Return the threads of a list, each followed by its subgraphs that are in it, too."""
    listed = {each.thread for each in threads}
    below: dict[str, list[ThreadInfo]] = {}
    for each in threads:
        crumbs = crumbs_of(each.thread)
        parent = next((crumb.thread for crumb in reversed(crumbs[:-1]) if crumb.thread in listed), "")
        below.setdefault(parent, []).append(each)
    found: list[ThreadInfo] = []
    waiting = list(reversed(below.get("", ())))
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += reversed(below.get(each.thread, ()))
    return found


class Subgraph(NamedTuple):
    """A subgraph that ran after a step: its thread, the node, and how many steps it has."""

    thread: str
    node: str
    steps: int


def list_subgraphs(call: Call, name: str, checkpoint: Checkpoint) -> list[Subgraph]:
    """Return the subgraphs that ran to get to a checkpoint, or run after it."""
    root, namespace = split_name(name)
    start = thread_name(root, f"{namespace}{_BETWEEN}") if namespace else thread_name(root, "x")[:-1]
    found = []
    for each in call.store.threads(prefix=start, limit=_MOST):
        crumbs = crumbs_of(each.thread)
        if len(crumbs) < 2 or crumbs[-2].thread != name or each.damaged:
            continue
        try:
            parents = call.store.thread(each.thread).find().metadata.get("parents")
        except HoldfastError:
            continue  # deleted meanwhile, or damaged: its own page says so
        if isinstance(parents, dict) and parents.get(namespace) in (checkpoint.id, checkpoint.parent):
            found.append(Subgraph(each.thread, crumbs[-1].title, each.steps))
    return found
