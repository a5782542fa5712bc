"""Finding the data of a person in a store: whole lines, steps of lines that others share, artifacts and sessions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.interface import Change, Delete, Get, Put, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES, REFS, STEPS, Key
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import ACCESS, AGENTS, AUDIT, HOOKS, is_thread, root_of, steps_of
from holdfast.engine.row_format import ERASE, SUBJECT, Line, StepRef, info_of, subject_key
from holdfast.engine.subject_names import (
    METADATA_KEY,
    MIXED,
    subject_of_line,
    subject_of_name,
    subjects_in,
    subjects_of_step,
)
from holdfast.engine.system_line import SystemLine, read_latest
from holdfast.engine.types import Progress
from holdfast.schemas.registry import LINE as SCHEMAS
from holdfast.security.access.identity_guard import read_owners
from holdfast.security.audit.erasure_ledger import LINE as LEDGER
from holdfast.security.audit.thread_audit import recorded
from holdfast.state.artifacts.content import CONTENT_PREFIX
from holdfast.state.sessions.records import LINE as SESSIONS

KEPT = frozenset({ACCESS, AUDIT, LEDGER, SCHEMAS, ARTIFACTS, SESSIONS, HOOKS})
"""Lines that are nobody's: rights, the audit, schemas and the ledger of erasures; and lines of records, each of which
has a subject of its own."""

IsSubject = Callable[[str], bool]
"""Returns whether a name is that of the person."""


@dataclass
class SubjectData:
    """Everything that a store has of a person."""

    lines: list[Line] = field(default_factory=list)
    """Lines that are the person's as a whole; first threads, each followed by its namespaces."""
    steps: dict[Line, set[tuple[int, int]]] = field(default_factory=dict)
    """The person's steps in lines that others share, by their positions."""
    artifacts: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing."""
        return not (self.lines or self.steps or self.artifacts or self.sessions)

    @property
    def every_line(self) -> list[Line]:
        """All lines that are deleted or rewritten."""
        return [*self.lines, *self.steps]


@dataclass
class _LineSteps:
    """The subjects that the steps of a line name."""

    named: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    """Users that made steps which name nobody."""
    mine_named: set[tuple[int, int]] = field(default_factory=set)
    mine_made: set[tuple[int, int]] = field(default_factory=set)
    has_nobodys: bool = False
    """Whether there are steps that name nobody, and that no user made."""


class SubjectFinder:
    """Finds the data of a person, by all names that `is_subject` accepts.

    `until` leaves out lines and records that were created later, and steps that were saved later: in nanoseconds since
    1970.
    `known_line` says by the salt of a line whether it is the person's, whatever else is known of it.
    `metadata_keys` are the entries of a checkpoint's metadata that name its subject. `lines` are those to search;
    without them, all are.
    """

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        is_subject: IsSubject,
        *,
        until: int | None = None,
        metadata_keys: Iterable[str] = (METADATA_KEY,),
        known_line: Callable[[bytes], bool] | None = None,
        lines: Container[Line] | None = None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._is_subject = is_subject
        self._until = until
        self._keys = tuple(metadata_keys)
        self._known_line = known_line
        self._lines = lines
        self.owns_tenant: bool = False
        self._known: set[Line] = set()
        """Lines that `known_line` knows."""
        self._candidates: set[Line] = set()
        """Threads that have steps of the person, by their roots."""

    async def find(self, progress: Progress | None = None) -> SubjectData:
        """Find everything. Reads the metadata of every step of the tenant, and remembers only threads that may be the
        person's."""
        await self.read_tenant()
        created = await self._creation_times()
        found = SubjectData()
        sessions = await self._find_sessions(found)
        await self._find_artifacts(found)
        steps = await self._read_steps(created, progress)
        if not self.owns_tenant:
            await self._add_candidates(created, steps)
        names = sorted(created, key=lambda line: line.name)
        assigned = await read_subjects(self._engine, names)
        for line in [each for each in assigned if each.name.startswith(AGENTS) and assigned[each] != MIXED]:
            assigned.setdefault(steps_of(line), assigned[line])  # its durable steps, signals and timers are theirs, too
        agents = await self._agent_subjects([line for line in names if line.name.startswith(AGENTS)])
        threads: dict[Line, list[Line]] = {}
        for line in names:
            threads.setdefault(root_of(line), []).append(line)
        made = {root_of(line) for line, each in steps.items() if each.made and is_thread(line.name)}
        owners = await read_owners(self._engine, made)
        for root, family in threads.items():
            subject = assigned.get(root, assigned.get(family[0]))
            if subject is not None and subject != MIXED:
                if self._is_subject(subject):
                    found.lines += family
                continue
            if self.owns_tenant or any(line in self._known for line in family):
                found.lines += family
            elif is_thread(root.name):
                owned = self._is_subject(subject_of_name(owners.get(root, "")))
                self._add_thread(family, steps, found, owned=owned, mixed=subject == MIXED)
            elif self._is_mine(root, sessions, agents):
                found.lines += family
            else:
                self._add_steps(root, steps, found)
        return found

    async def _creation_times(self) -> dict[Line, int]:
        """Return when lines were created that may be somebody's; of threads, only if all are the person's."""
        found: dict[Line, int] = {}
        known_line = self._known_line
        async for row in scan_rows(self._engine.context.backend, LINES, (self._tenant,), bodies=known_line is not None):
            time, name = int(row.columns[0]), str(row.key[1])
            if not self._is_searched(name):
                continue
            if known_line is not None and known_line(info_of(row).salt):
                self._known.add(Line(self._tenant, name))
            if (
                (self.owns_tenant or not is_thread(name))
                and name not in KEPT
                and not name.startswith(CONTENT_PREFIX)
                and (self._until is None or time <= self._until)
            ):
                found[Line(self._tenant, name)] = time
        return found

    def _is_searched(self, name: str) -> bool:
        return self._lines is None or Line(self._tenant, name) in self._lines

    def _is_mine(self, line: Line, sessions: Sequence[str], agents: Mapping[Line, tuple[str, ...]]) -> bool:
        """Return whether a line that is no thread is the person's by its name, its session or its agent."""
        by_name = subject_of_line(line)
        if names := (by_name,) if by_name else agents.get(line, ()):
            return any(map(self._is_subject, names))
        return any(line.name == name or line.name.startswith(f"{name}/") for name in sessions)

    def _add_thread(
        self, family: Sequence[Line], steps: Mapping[Line, _LineSteps], found: SubjectData, *, owned: bool, mixed: bool
    ) -> None:
        """Add a thread: it is the person's if steps name no other, or if the person owns it and nobody else wrote."""
        seen = [steps[line] for line in family if line in steps]
        named = {name for each in seen for name in each.named}
        made = {name for each in seen for name in each.made}
        is_whole = named or (owned and not any(each.has_nobodys for each in seen))
        if is_whole and not mixed and all(map(self._is_subject, named | made)):
            found.lines += family
            return
        for line in family:
            self._add_steps(line, steps, found)

    def _add_steps(self, line: Line, steps: Mapping[Line, _LineSteps], found: SubjectData) -> None:
        if line in steps and (mine := steps[line].mine_named | steps[line].mine_made):
            found.steps[line] = mine

    async def read_tenant(self) -> None:
        """Read whether everything of the tenant is the person's."""
        (rows,) = await self._engine.context.backend.read([Get(REFS, [tenant_key(self._tenant)])])
        self.owns_tenant = bool(rows) and self._is_subject(str(rows[0].columns[0]))

    async def _read_steps(self, created: Mapping[Line, int], progress: Progress | None) -> dict[Line, _LineSteps]:
        """Read the subjects that the steps of lines name; and note which threads have steps of the person."""
        found: dict[Line, _LineSteps] = {}
        count = 0
        async for line, point in self._engine.lines.every_step(self._tenant):
            count += 1
            if progress is not None and count % 1000 == 0:
                progress(count, None, "steps read")
            if line in created:
                self._add_step(found, line, point)
            elif not self.owns_tenant and is_thread(line.name) and self._is_own_step(line, point):
                self._candidates.add(root_of(line))
        return found

    async def _add_candidates(self, created: dict[Line, int], steps: dict[Line, _LineSteps]) -> None:
        """Add the threads that have steps of the person, are assigned to the person, or are known to be the
        person's."""
        backend = self._engine.context.backend
        candidates = self._candidates | {root_of(line) for line in self._known if is_thread(line.name)}
        async for row in scan_rows(backend, REFS, (self._tenant,)):
            if row.key[2] == SUBJECT and row.key[1] and self._is_subject(str(row.columns[0])):
                candidates.add(Line(self._tenant, str(row.key[1])))
        for root in candidates:
            family = [line for line in await self._engine.lines.family(root) if self._is_searched(line.name)]
            (rows,) = await backend.read([Get(LINES, [tuple(line) for line in family])])
            for row in rows:
                line, time = Line(self._tenant, str(row.key[1])), int(row.columns[0])
                if is_thread(line.name) and (self._until is None or time <= self._until):
                    created[line] = time
                    async for each in scan_rows(backend, STEPS, tuple(line), bodies=False):
                        self._add_step(steps, line, StepRef.of(each))

    def _is_own_step(self, line: Line, point: StepRef) -> bool:
        if point.pruned or not point.metadata or not self._may_matter(point) or not self._is_searched(line.name):
            return False
        named, made = subjects_of_step(point, self._keys)
        return any(map(self._is_subject, named or ([made] if made else ())))

    def _add_step(self, found: dict[Line, _LineSteps], line: Line, point: StepRef) -> None:
        """Add a step to those of its line."""
        if point.pruned or not self._may_matter(point):
            return
        each = found.setdefault(line, _LineSteps())
        named, made = subjects_of_step(point, self._keys)
        if not named and not made:
            each.has_nobodys = True
            return
        each.named.update(named)
        if named:
            if any(map(self._is_subject, named)):
                each.mine_named.add(point[:2])
            return
        each.made.add(made)
        if self._is_subject(made):
            each.mine_made.add(point[:2])

    def _may_matter(self, point: StepRef) -> bool:
        return point.kind != ERASE and (self._until is None or point.time <= self._until)

    # Records ----------------------------------------------------------------------------------------------------

    async def _find_sessions(self, found: SubjectData) -> list[str]:
        """Find the person's sessions. Returns the lines of their scopes: names need not say whose they are."""
        names = []
        for id, stored in (await self._records(Line(self._tenant, SESSIONS))).items():
            if self.is_record(stored):
                found.sessions.append(id)
                names.append(MARK + str(stored["scope"]))
        return names

    async def _find_artifacts(self, found: SubjectData) -> None:
        for id, stored in (await self._records(Line(self._tenant, ARTIFACTS))).items():
            if not id.startswith("\0") and self.is_record(stored):
                found.artifacts.append(id)

    async def _records(self, line: Line) -> Mapping[str, Any]:
        if not self._is_searched(line.name):
            return {}
        return await SystemLine(self._engine, line).read(lambda entries: entries.with_prefix(""))

    def is_record(self, stored: object) -> bool:
        """Return whether the record of an artifact or a session is the person's: by its metadata, or else by the scope
        or an identity."""
        if isinstance(stored, Mapping) and self._until is not None:
            if stored.get("created", stored.get("started", 0)) > self._until:
                return False
        if not isinstance(stored, Mapping) or self.owns_tenant:
            return self.owns_tenant
        named = subjects_in(stored.get("metadata"), self._keys)
        if named:
            return any(map(self._is_subject, named))
        users = (subject_of_name(str(stored.get(name) or "")) for name in ("scope", "owner", "by"))
        user = next(filter(None, users), "")
        return bool(user) and self._is_subject(user)

    async def _agent_subjects(self, agents: Iterable[Line]) -> dict[Line, tuple[str, ...]]:
        """Return the subjects that the metadata of agents name. The durable steps of an agent are theirs, too."""
        found = {}
        for line in agents:
            subjects = await self._named_by_agent(line)
            if subjects:
                found[line] = found[steps_of(line)] = subjects
        return found

    async def _named_by_agent(self, line: Line) -> tuple[str, ...]:
        async def look(_: Any, loaded: Any) -> tuple[str, ...]:
            entry = None
            if loaded is not None:
                entry = await self._engine.entries.find(line, loaded, pack_name("metadata"))
            metadata = None if entry is None else unpack(self._engine.context.codec, entry.value)
            return subjects_in(metadata, self._keys)

        return await read_latest(self._engine, line, look)


_BATCH = 500


def tenant_key(tenant: str) -> Key:
    """Return the key of the reference to the subject that all of a tenant belongs to."""
    return subject_key(Line(tenant, ""))


async def read_subjects(engine: Engine, lines: Iterable[Line]) -> dict[Line, str]:
    """Return the subjects that lines are assigned to, by line: `MIXED` if it is marked so. Others are left out."""
    roots = {line: root_of(line) for line in lines}
    keys = [subject_key(root) for root in dict.fromkeys(roots.values())]
    found: dict[Key, str] = {}
    for start in range(0, len(keys), _BATCH):
        (rows,) = await engine.context.backend.read([Get(REFS, keys[start : start + _BATCH])])
        found |= {row.key: str(row.columns[0]) for row in rows}
    return {line: found[key] for line, root in roots.items() if (key := subject_key(root)) in found}


async def set_subject(engine: Engine, line: Line, subject: str | None) -> None:
    """Assign a line to a subject, mark it as mixed (`MIXED`), or remove either with None. A tenant, if the name of the
    line is empty."""
    detail = {"mixed": True} if subject == MIXED else {"removed": True} if subject is None else {}
    apply = recorded(engine, line, "set-subject", detail)
    while True:
        row = Row(subject_key(line), (subject or "", engine.context.clock()))
        changes: list[Change] = [Delete(REFS, row.key) if subject is None else Put(REFS, row)]
        if line.name:
            changes = [*engine.lines.new_version(line, await engine.lines.info(line)), *changes]
        if await apply(changes) is None:
            engine.context.cache.drop(("line", line))
            break
    if line.name:
        await _assign_keys(engine, await engine.lines.family(line), "" if subject in (None, MIXED) else str(subject))


async def _assign_keys(engine: Engine, lines: Iterable[Line], subject: str) -> None:
    """Encrypt the keys of lines with that of their subject, if the store is encrypted."""
    if not engine.context.rows.hides_columns:
        return
    from holdfast.security.encryption.encrypted_rows import EncryptedRows

    if isinstance(engine.context.rows, EncryptedRows):
        for line in lines:
            await engine.context.rows.store_keys.subjects.assign((line.tenant, line.name), subject)
