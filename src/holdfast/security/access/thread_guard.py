"""Rights to threads: who owns one, and who else may do what with it.

The owner of a thread is in a row of its own, under the thread's root line, so that it holds for all namespaces and
moves with the thread. A thread without one belongs to the store's owner. The first identity that saves a thread which
does not exist creates the row: the store lets only one create it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Change, Create, Delete, Expect, Get, Put, Row
from holdfast.backends.tables import LINES, LINKS, REFS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, root_of, split_name
from holdfast.engine.row_format import Line, owner_key

_BATCH = 500


class ThreadOwnership(NamedTuple):
    """The stored owner of a thread."""

    root: Line
    owner: Row | None
    """The row of the owner; None if the thread belongs to the store's owner, or to nobody yet."""
    is_free: bool
    """Whether no thread has the name."""
    former: Row | None
    """The row of the owner whose thread somebody else deleted: the name stays reserved for that owner."""

    @property
    def name(self) -> str:
        """The identity that owns the thread, or for which its name is reserved; empty for none."""
        if self.owner is not None:
            return str(self.owner.columns[0])
        return str(self.former.columns[1]) if self.is_free and self.former is not None else ""

    @property
    def thread(self) -> str:
        """The name of the thread, as patterns match it: in the normal form that these have."""
        return unicodedata.normalize("NFC", split_name(self.root.name)[0] or self.root.name)

    def unchanged(self) -> list[Change]:
        """Return the conditions that all of this stays so."""
        changes: list[Change] = [Expect(REFS, owner_key(self.root), None if self.owner is None else self.owner.columns)]
        if self.owner is None:
            changes.append(Expect(LINKS, _former_key(self.root), None if self.former is None else self.former.columns))
        return changes

    def claim(self, actor: str, now: int) -> list[Change]:
        """Return the changes that make an identity the owner of a thread that does not exist yet."""
        claimed: list[Change] = [
            *self.unchanged()[1:],
            Create(REFS, Row(owner_key(self.root), (actor, now))),
            Expect(LINES, tuple(self.root), None),
        ]
        return claimed if self.former is None else [*claimed, Delete(LINKS, _former_key(self.root))]

    def reserve(self, now: int) -> list[Change]:
        """Return the change that reserves the name of a thread for its owner, when somebody else deletes it."""
        return [Put(LINKS, Row(_former_key(self.root), (now, self.name)))]


async def read_ownership(engine: Engine, line: Line) -> ThreadOwnership:
    """Read who owns a thread, by its line or that of a namespace."""
    root = root_of(line)
    owners, lines, former = await engine.context.backend.read(
        [Get(REFS, [owner_key(root)]), Get(LINES, [tuple(root)]), Get(LINKS, [_former_key(root)])]
    )
    is_free = not owners and not lines and len(await engine.lines.family(root)) == 1
    return ThreadOwnership(root, owners[0] if owners else None, is_free, former[0] if former else None)


async def read_owners(engine: Engine, lines: Iterable[Line]) -> dict[Line, str]:
    """Return the owners of the threads of some lines; empty for the store's owner."""
    roots = {line: root_of(line) for line in lines}
    found: dict[Key, str] = {}
    keys = [owner_key(root) for root in dict.fromkeys(roots.values())]
    for start in range(0, len(keys), _BATCH):
        (rows,) = await engine.context.backend.read([Get(REFS, keys[start : start + _BATCH])])
        found |= {row.key: str(row.columns[0]) for row in rows}
    return {line: found.get(owner_key(root), "") for line, root in roots.items()}


def set_owner_changes(root: Line, owner: str, now: int) -> Sequence[Change]:
    """Return the changes that give a thread an owner; the store's owner, if that is empty."""
    changes: list[Change] = [Delete(LINKS, _former_key(root))]
    if owner:
        return [*changes, Put(REFS, Row(owner_key(root), (owner, now)))]
    return [*changes, Delete(REFS, owner_key(root))]


def _former_key(root: Line) -> Key:
    return (root.tenant, ACCESS, "owner", root.name, "")
