"""Verifying a store, thread by thread."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.port import Scan
from holdfast.backends.scanning import Hole, sturdy_rows
from holdfast.backends.spaces import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, WRITES
from holdfast.engine.core import Engine
from holdfast.engine.findings import Code, Finding, Level, Weight
from holdfast.engine.protected import LEASE
from holdfast.engine.records import Line
from holdfast.engine.verify import look
from holdfast.engine.words import Progress
from holdfast.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.upkeep.heads import Heads, compare_head
from holdfast.upkeep.remade import compare_made

MOST_FINDINGS = 10_000
"""How many findings a report lists; beyond that they are counted."""

_OF_LINES = (STEPS, BRANCHES, FOLDS, NODES, OBJECTS, WRITES, REFS)
"""Spaces in which there is nothing but what belongs to lines."""


@dataclass
class Report:
    """What was verified, and what was found.

    `next` is where to go on, as `after`, if not all threads were looked at. `found` counts the findings, also those
    that are too many to be listed.
    """

    store: str
    tenant: str
    level: str
    threads: int = 0
    steps: int = 0
    nodes: int = 0
    objects: int = 0
    writes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    next: str | None = None
    found: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged. Notices, and rows that can be made again, are no damage."""
        return not self.damage

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage."""
        return [each for each in self.findings if each.weight is Weight.DAMAGE]

    @property
    def damaged(self) -> list[str]:
        """The threads in which something is damaged."""
        return sorted({each.thread for each in self.damage if each.thread})

    def add(self, finding: Finding) -> None:
        """Another finding. Damage is listed before all else."""
        self.found += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        elif finding.weight is Weight.DAMAGE:
            for place, other in enumerate(self.findings):
                if other.weight is not Weight.DAMAGE:
                    self.findings[place] = finding
                    return

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: getattr(self, name) for name in _TOLD}
        return {**told, "sound": self.sound, "findings": [each.plain() for each in self.findings]}


_TOLD = (
    "store", "tenant", "level", "threads", "steps", "nodes", "objects", "writes", "bytes", "seconds", "next", "found",
)  # fmt: skip


def level_of(level: object) -> Level:
    """A level by its name."""
    for each in Level:
        if level == each.value:
            return each
    raise Invalid(f"the level is {', '.join(each.value for each in Level)}, not {level!r}")


async def verify(
    engine: Engine,
    tenant: str,
    threads: Sequence[str] | None = None,
    *,
    level: Level = Level.HASHES,
    heads: Heads | None = None,
    progress: Progress | None = None,
    after: str = "",
    limit: int | None = None,
    report: Report | None = None,
) -> Report:
    """Verify threads of a tenant, or all of them and the store itself; those after a name, up to a limit. `report` is
    one to go on with."""
    if heads is not None and heads.tenant != tenant:
        raise Invalid(f"the heads are those of tenant {heads.tenant!r}", hint="Open the store for that tenant")
    return await _Run(engine, tenant, level, heads, progress, report).run(threads, after, limit)


class _Run:
    """One verification."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        level: Level,
        heads: Heads | None,
        progress: Progress | None,
        report: Report | None,
    ) -> None:
        self._engine = engine
        self._backend = engine.ground.backend
        self._tenant = tenant
        self._level = level
        self._heads = heads
        self._tell = progress
        self._began = time.monotonic()
        self.report = report or Report(self._backend.url, tenant, level.value)

    async def run(self, threads: Sequence[str] | None, after: str, limit: int | None) -> Report:
        if threads is not None:
            for name in threads:
                await self._thread(name, len(threads), named=True)
        else:
            await self._store(after, limit)
        self.report.seconds = time.monotonic() - self._began
        return self.report

    async def _store(self, after: str, limit: int | None) -> None:
        if not after:
            await self._own_check()
        total = await self._total(after)
        previous = after
        async for name in self._names(after):
            if limit is not None and self.report.threads >= limit:
                self.report.next = previous
                return
            await self._between(previous, name)
            await self._thread(name, total)
            previous = name
        await self._between(previous, None)
        if self._heads is not None:
            for name in sorted(self._heads.threads):
                if name > after and not await self._is_there(name):
                    await self._compare(name)

    async def _own_check(self) -> None:
        try:
            found = await self._backend.check()
        except Corrupt as error:
            found = [str(error)]
        for what in found:
            self.report.add(Finding(Code.STORE_CHECK, what))

    async def _total(self, after: str) -> int | None:
        if self._tell is None:
            return None
        try:
            return self.report.threads + len(await self._engine.lines.names(self._tenant, after=after))
        except Corrupt:
            return None

    async def _names(self, after: str) -> AsyncIterator[str]:
        """The threads by name, also those whose own row cannot be read, if their names can be made out."""
        holes: list[Hole] = []
        told = 0
        async for row in sturdy_rows(self._backend, LINES, (self._tenant,), holes, exact=True):
            for hole in holes[told:]:
                if hole.start and str(hole.start[0]) > after:
                    yield str(hole.start[0])
            told = len(holes)
            if str(row.key[1]) > after:
                yield str(row.key[1])
        for hole in holes[told:]:
            if hole.start and str(hole.start[0]) > after:
                yield str(hole.start[0])
        for hole in holes:
            if not _is_one(hole):
                what = f"some threads cannot be listed, from {hole.start!r} on: {hole.error}"
                key = (self._tenant, *hole.start)
                self.report.add(Finding(Code.UNREADABLE_ROWS, what, self._tenant, space=LINES.name, key=key))

    async def _thread(self, name: str, total: int | None, *, named: bool = False) -> None:
        line = Line(self._tenant, name)
        check = await look(self._engine.ground, line, self._level)
        found = check.found
        report = self.report
        report.threads += 1
        report.steps += found.steps
        report.nodes += found.nodes
        report.objects += found.objects
        report.writes += found.writes
        report.bytes += found.bytes
        if (
            named
            and check.info is None
            and not found.findings
            and (self._heads is None or name not in self._heads.threads)
        ):
            raise NotFound("there is no such thread", where=f"thread {line}", hint="See threads()")
        for finding in found.findings:
            report.add(finding)
        if self._level >= Level.DECODE:
            await self._made(line)
        await self._compare(name)
        if self._tell is not None:
            self._tell(report.threads, total, name)

    async def _made(self, line: Line) -> None:
        found = await compare_made(self._engine, line)
        if found:
            # What writers did meanwhile is in both, the second time.
            again = {each.same for each in await compare_made(self._engine, line)}
            for finding in found:
                if finding.same in again:
                    self.report.add(finding)

    async def _compare(self, name: str) -> None:
        if self._heads is None or name not in self._heads.threads:
            return
        try:
            for finding in await compare_head(self._backend, self._heads, name):
                self.report.add(finding)
        except Conflict:
            what = "the thread kept changing, and was not compared with its head"
            self.report.add(Finding(Code.NOT_COMPARED, what, self._tenant, name))

    async def _is_there(self, name: str) -> bool:
        try:
            (rows,) = await self._backend.read([Scan(LINES, (self._tenant, name), limit=1)])
        except Corrupt:
            return True
        return bool(rows)

    async def _between(self, before: str, name: str | None) -> None:
        """Rows that belong to no thread, between two threads."""
        start = f"{before}\0" if before else "\0"  # what belongs to the whole store has no name
        while name is None or start < name:
            stop = () if name is None else (name,)
            scans = [Scan(space, (self._tenant,), (start,), stop, limit=1, bodies=False) for space in _OF_LINES]
            try:
                found = await self._backend.read(scans)
            except Corrupt:
                return  # told of already, where the store checks itself
            strays = {str(rows[0].key[1]) for rows in found if rows}
            if not strays:
                return
            stray = min(strays)
            await self._stray(Line(self._tenant, stray))
            start = f"{stray}\0"

    async def _stray(self, line: Line) -> None:
        """Rows of a thread that has no row of its own; or has by now."""
        found = await self._backend.read(
            [Scan(LINES, tuple(line)), *(Scan(space, tuple(line), limit=2, bodies=False) for space in _OF_LINES)]
        )
        if found[0]:
            return
        spaces = [
            space.name
            for space, rows in zip(_OF_LINES, found[1:], strict=True)
            if any(space is not REFS or row.key[2] != LEASE for row in rows)
        ]
        if STEPS.name in spaces or BRANCHES.name in spaces:
            for finding in (await look(self._engine.ground, line, self._level)).found.findings:
                self.report.add(finding)
        elif spaces:
            what = f"rows of {', '.join(spaces)} belong to no thread"
            self.report.add(Finding(Code.ORPHAN, what, *line, space=spaces[0], key=tuple(line)))


def _is_one(hole: Hole) -> bool:
    """Whether a hole is a single thread."""
    return len(hole.start) == 1 and hole.stop == (f"{hole.start[0]!s}\0",)
