"""The rows that are removed together with the steps that a rewrite drops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.backends.interface import Backend, Change, Delete, Row, Scan
from holdfast.backends.tables import BRANCHES, OBJECTS, REFS, WRITES
from holdfast.engine.model.large_pointers import parse_pointer
from holdfast.engine.projection.rows import transitions, without
from holdfast.engine.rewrite.progress import RewriteProgress
from holdfast.engine.rewrite.row_sizes import rows_below
from holdfast.engine.row_format import is_about_step


@dataclass(frozen=True)
class LineRemoval:
    """The rows of a line that were read once, since it may take long: later appends do not change them."""

    backend: Backend
    objects: frozenset[bytes]
    """The digests of the stored large values."""
    written: frozenset[str]
    """The ids of the steps that have pending writes."""
    shown: Sequence[Row]
    """The readable rows of steps."""
    words: Sequence[Change]
    """The changes of the text index."""

    @classmethod
    async def of(cls, backend: Backend, walk: RewriteProgress, words: Sequence[Change]) -> LineRemoval:
        """Read the rows of a line."""
        line = tuple(walk.line)
        objects = {bytes(row.key[2]) async for row in rows_below(backend, OBJECTS, line, bodies=False)}  # type: ignore[arg-type]
        written = {str(row.key[2]) async for row in rows_below(backend, WRITES, line, bodies=False)}
        return cls(backend, frozenset(objects), frozenset(written), await transitions(backend, walk.line), words)

    async def changes(self, walk: RewriteProgress, switched: Iterable[Change]) -> list[Change]:
        """Return what is removed together with the dropped steps, besides what the switch removes."""
        line = walk.line
        (refs,) = await self.backend.read([Scan(REFS, tuple(line))])
        ids = walk.dropped_ids - walk.kept_ids
        changes: list[Change] = [Delete(WRITES, (*line, id)) for id in sorted(ids & self.written)]
        changes += (Delete(REFS, row.key) for row in refs if is_about_step(row) and row.columns[0] in ids)
        used = {parse_pointer(pointer).digest for pointer in walk.pointers}
        changes += (Delete(OBJECTS, (*line, digest)) for digest in sorted(self.objects - used))
        changes += self.words
        deleted = {each.prefix[2:] for each in switched if isinstance(each, Delete) and each.space is BRANCHES}
        remaining = [branch for branch in walk.branches[1:] if (branch.branch,) not in deleted]
        return changes + await without(self.backend, line, ids, remaining, self.shown)
