"""HEAD of a line: the step that the name of the line alone means, and that a save without a parent follows.

It is the step with the greatest id, as long as nobody saves beside it. A step that is saved on another branch than that
of HEAD says so itself: its column `beside` has the number of HEAD's branch, and the last step of that branch is HEAD
while such a step has the greatest id. So finding HEAD takes one query, and a second one only after a save beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.interface import Backend, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.row_format import AT_HEAD, Line, StepRef

_BESIDE = list(STEPS.columns).index("beside")

_PAGE = 256
"""How many steps are read at a time where HEAD's branch is gone."""


def newest_query(line: Line, bodies: bool = False) -> Scan:
    """Return the query for the step with the greatest id."""
    return Scan(STEPS, tuple(line), (), (), True, 1, "id", bodies)


def end_query(line: Line, branch: int, bodies: bool = False) -> Scan:
    """Return the query for the last step of a branch."""
    return Scan(STEPS, (*line, branch), (), (), True, 1, bodies=bodies)


async def find_head(backend: Backend, line: Line, newest: Row, bodies: bool = False) -> Row:
    """Return the row of HEAD, given that of the step with the greatest id.

    Only rows that are read with their bodies are checked for damage. Whoever takes that step for HEAD reads it so; if
    it names another branch, it is read so here. Lists, which are not to fail because of damage, read from a store
    that checks nothing.
    """
    while (branch := newest.columns[_BESIDE]) != AT_HEAD:
        ends, latest = await backend.read([end_query(line, int(branch), bodies), newest_query(line, bodies=True)])
        if latest and latest[0].columns[_BESIDE] != branch:
            newest = latest[0]  # HEAD was moved meanwhile, and the end of that branch may be beside it by now
        elif ends and not StepRef.of(ends[0]).pruned:
            return ends[0]
        else:
            return await _find_last_head(backend, line, newest, bodies)
    return newest


async def _find_last_head(backend: Backend, line: Line, newest: Row, bodies: bool) -> Row:
    """Return HEAD where the branch that it was on is lost: the end of the branch that it was on before."""
    before = ""
    while True:
        scan = Scan(STEPS, tuple(line), (), (before,) if before else (), True, _PAGE, "id", bodies=False)
        (rows,) = await backend.read([scan])
        for point in map(StepRef.of, rows):
            before = point.id
            if before and point.beside == AT_HEAD:
                queries = [end_query(line, point.branch, bodies), Scan(STEPS, (*line, *point[:2]), bodies=bodies)]
                found = [row for answer in await backend.read(queries) for row in answer]
                return next((row for row in found if not StepRef.of(row).pruned), newest)
        if len(rows) < _PAGE or not before:
            return newest


def head_of(points: Iterable[StepRef]) -> StepRef | None:
    """Return HEAD, given all steps of a line by position. As `find_head`, which reads only what it needs."""
    stored = [point for point in points if not point.pruned]
    by_id = sorted(stored, key=lambda point: (point.id, point.revision), reverse=True)
    ends = {point.branch: point for point in stored}
    if not by_id or by_id[0].beside == AT_HEAD:
        return by_id[0] if by_id else None
    branches = [by_id[0].beside, *(point.branch for point in by_id if point.beside == AT_HEAD)]
    return next((ends[branch] for branch in branches if branch in ends), by_id[0])


def is_in_history(graph: BranchGraph, head: StepRef, point: StepRef) -> bool:
    """Return whether a step is HEAD or leads to it along first parents."""
    return point.depth <= head.depth and graph.along(head.branch, point.depth) == Position(*point[:2])
