"""How a thread and the namespaces in it are called in a store.

A thread's own checkpoints are in the line of the same name. Those of a namespace, as a subgraph has one, are in a line
of their own, `chat-1␟child:6f…`: what is done to the thread as a whole is done to them, too. No two pairs of thread and
namespace share a name.
"""

from __future__ import annotations

from holdfast.engine.model.scopes import MARK as STATE
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError

MARK = "␟"
"""Between a thread's name and a namespace; doubled where it is part of the thread's own."""

AGENTS = f"{STATE}agents:"
"""How names of lines start that hold what is kept of agents."""


def is_thread(name: str) -> bool:
    """Whether a line of this name is a thread, or a namespace of one. Others hold the state of scopes, and what is kept
    of sessions, grants and the like."""
    return not name.startswith(STATE)


def has_messages(name: str) -> bool:
    """Whether a line of this name may have conversations in it: those of threads have, and those of agents."""
    return is_thread(name) or name.startswith(AGENTS)


def check_thread(name: str) -> str:
    """The name of a thread that is to be saved to. `InvalidError` if a line of this name holds something else."""
    if not is_thread(name):
        raise InvalidError(
            f"names that start with {STATE} are those of state, and no thread's",
            where=repr(name)[:80],
            hint="Change state by store.state(…); choose another name for a thread",
        )
    return name


def thread_name(thread_id: str, namespace: str = "") -> str:
    """The name under which a store keeps the checkpoints of a thread, or of a namespace in it."""
    check_thread(thread_id)
    if namespace.startswith(MARK):
        raise InvalidError(f"a namespace does not start with {MARK}", where=repr(namespace)[:80])
    name = thread_id.replace(MARK, MARK * 2)
    return name + MARK + namespace if namespace or not thread_id else name


def split_name(name: str) -> tuple[str, str]:
    """The thread's id and the namespace, of a name in a store."""
    thread_id, start = "", 0
    while (place := name.find(MARK, start)) >= 0:
        thread_id += name[start:place]
        if name[place + 1 : place + 2] != MARK:
            return thread_id, name[place + 1 :]
        thread_id, start = thread_id + MARK, place + 2
    return thread_id + name[start:], ""


def root_of(line: Line) -> Line:
    """The line of the thread that a namespace's line belongs to; a thread's own is its root."""
    name, place = line.name, 0
    if not is_thread(name):
        return line  # a scope's name may have the mark in it
    while (place := name.find(MARK, place)) >= 0:
        if name[place + 1 : place + 2] != MARK:
            return line._replace(name=name[:place] or MARK)
        place += 2
    return line


def rename_line(line: Line, root: Line, new: Line) -> Line:
    """Return the new name of a thread's line, or of one of its namespaces, when the thread is renamed."""
    rest = line.name if root.name == MARK else line.name[len(root.name) :]
    return new if line == root else new._replace(name=new.name + rest)


def below(root: Line) -> str:
    """What the names of the lines of a thread's namespaces start with, and perhaps others."""
    return root.name if root.name == MARK else root.name + MARK
