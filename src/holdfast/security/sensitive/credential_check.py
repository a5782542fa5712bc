"""The check for credentials in what is stored. It goes on where it was: first over all lines, then over those that the
feed of changes names. It knows where credentials are, and of which format, and never has them or parts of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from holdfast._structs import decode_json
from holdfast.backends.interface import Expect, Get, Put, Row, Scan
from holdfast.backends.tables import LINES, REFS, STEPS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.model.scopes import place_of_line
from holdfast.engine.row_format import Line
from holdfast.errors import HoldfastError, InvalidError, TransientError, UnavailableError
from holdfast.security.sensitive.detector import Detector, mask, parse_formats
from holdfast.security.sensitive.formats import CREDENTIALS, FORMATS
from holdfast.security.sensitive.markers import TO_PROTECT, TO_REDACT
from holdfast.security.sensitive.protector import policies_of
from holdfast.security.sensitive.scan import RECORD_PATHS, SensitiveFinding, SensitiveScan, has_texts

NOTICED: Final = "credentials"
"""The kind of the ref of a tenant that has the progress of the check."""

MOST_PLACES = 100
"""How many places are remembered; of others, only that there are some."""

_LONGEST_PATH = 200

_SLACK = 5 * 60 * 10**9
"""By how many nanoseconds the clocks of those who save may differ from that of the check."""

Report: TypeAlias = Callable[[int, str], Awaitable[None]]
"""Called after each line, with the number of lines that were searched, and the name. It may raise to end the check."""


def noticed_formats() -> frozenset[str]:
    """Return the formats that are looked for: all of credentials, but for random text that nothing names a secret. Ids
    and data in base64 look the same."""
    return parse_formats(CREDENTIALS) - {"high-entropy"}


class CredentialPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a credential is."""

    line: str
    checkpoint: str = ""
    """Empty if it is gone, and others may still have the credential."""
    path: str = ""
    format: str = ""
    times: int = 1


class CredentialProgress(msgspec.Struct, omit_defaults=True):
    """How far the check got, and what it found."""

    formats: str = ""
    """A digest of the formats that it looked for: with others, it starts over."""
    token: str = ""
    """The token of the feed of changes."""
    since: int = 0
    """The time from which on steps are searched."""
    after: str | None = ""
    """The last line that was searched, in the first round over all of them; None, if that is done."""
    places: list[CredentialPlace] = []
    more: bool = False
    """Whether there are further places."""


class CredentialReport(msgspec.Struct, frozen=True):
    """Credentials that are stored in clear: where they are, whether there are more, and whether all that is stored was
    searched."""

    findings: list[SensitiveFinding]
    more: bool
    complete: bool

    @property
    def remedies(self) -> tuple[str, str]:
        """The setting and the command that replace credentials in what is saved, and in what is stored."""
        return TO_PROTECT, TO_REDACT

    def describe(self, most: int = 3) -> str:
        """Return a sentence about what was found."""
        listed = "; ".join(f"{each.format} at {each.path} of {each.scope}" for each in self.findings[:most])
        count = f"{len(self.findings)} places" if len(self.findings) != 1 else "1 place"
        return f"credentials in clear at {count}{' or more' if self.more else ''}: {listed}" + (
            "; …" if len(self.findings) > most else ""
        )


_FORMATS: Final = hashlib.sha256("".join(each.pattern.pattern for each in FORMATS).encode()).hexdigest()[:16]


class CredentialCheck:
    """Searches what is stored of a tenant, from where an earlier check was."""

    def __init__(self, engine: Engine, tenant: str, known: CredentialProgress, row: Row | None = None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._backend = engine.context.backend
        self._row = row
        self._scan = SensitiveScan(engine, tenant, Detector(noticed_formats()), policies_of(engine))
        self.progress: CredentialProgress = known if known.formats == _FORMATS else CredentialProgress()

    @classmethod
    async def open(cls, engine: Engine, tenant: str) -> CredentialCheck:
        """Return a check that goes on where the one was that was stored last."""
        return cls(engine, tenant, *await _read(engine, tenant))

    async def store(self) -> None:
        """Store how far the check got, without places that have gone meanwhile."""
        while True:
            self.progress.places = await self._without_erased()
            before, version = self._row, 1 if self._row is None else int(self._row.columns[1]) + 1
            new = Row(_key(self._tenant), (msgspec.json.encode(self.progress).decode(), version))
            condition = Expect(REFS, new.key, None if before is None else before.columns)
            if await self._backend.apply([condition, Put(REFS, new)]) is None:
                self._row = new
                return
            _, self._row = await _read(self._engine, self._tenant)

    async def _without_erased(self) -> list[CredentialPlace]:
        """Return the places that are still there; of others, which lines have to be searched again, as a whole."""
        places, tenant = self.progress.places, self._tenant
        there = {*await self.stored(places)}
        names = sorted({each.line for each in places if each not in there})
        (lines,) = await self._backend.read([Get(LINES, [(tenant, name) for name in names])])
        again = [CredentialPlace(str(row.key[1])) for row in lines]
        return [*(each for each in places if each in there), *again]

    async def stored(self, places: Sequence[CredentialPlace]) -> list[CredentialPlace]:
        """Return the places whose checkpoints are still there, and records of the audit and reasons that still have
        some: these may be rewritten."""
        known, tenant = [each for each in places if each.checkpoint], self._tenant
        scans = [Scan(STEPS, (tenant, each.line, each.checkpoint), by="id", limit=1, bodies=False) for each in known]
        found = await self._backend.read(scans)
        there = [each for each, rows in zip(known, found, strict=True) if rows]
        records = {(each.line, each.checkpoint) for each in there if each.path.startswith(RECORD_PATHS)}
        left = {
            (name, each.path[:_LONGEST_PATH], each.format)
            for name, id in sorted(records)
            for each in await self._scan.records(Line(tenant, name), [id])
        }
        return [
            each
            for each in there
            if not each.path.startswith(RECORD_PATHS) or (each.line, each.path, each.format) in left
        ]

    async def run(self, report: Report) -> None:
        """Search what is new."""
        done = 0
        for again in (True, False):
            if not self.progress.token:
                await self._start()
            async for line in self._lines():
                await self._search(line, 0)
                self.progress.after = line.name
                await report(done := done + 1, mask(place_of_line(line.name)))
            self.progress.after = None
            now = self._engine.context.clock()
            changes = None
            with suppress(InvalidError):  # the token of another store: this one was copied
                changes = await self._backend.changes(self.progress.token)
            if changes is None or not changes.complete:
                self.progress.token = ""
                if again:
                    continue
                return
            for tenant, name in changes.lines:
                if tenant == self._tenant and name and has_texts(name):
                    await self._search(Line(tenant, name), self.progress.since)
                    await report(done := done + 1, mask(place_of_line(name)))
            self.progress.token, self.progress.since = changes.token, now
            if self.progress.after is None:
                return

    async def _start(self) -> None:
        now, changes = self._engine.context.clock(), await self._backend.changes()
        self.progress = CredentialProgress(_FORMATS, changes.token, now, places=self.progress.places)

    async def _lines(self) -> AsyncIterator[Line]:
        if self.progress.after is not None:
            async for line in lines_of_kinds(self._backend, self._tenant, after=self.progress.after):
                if has_texts(line.name):
                    yield line

    async def _search(self, line: Line, since: int) -> None:
        """Search a line: what was saved since a time; or all, if something else about it changed."""
        progress = self.progress
        known = [each for each in progress.places if each.line == line.name]
        kept = await self.stored(known)
        found: list[SensitiveFinding] | None = None
        try:
            if since and len(kept) == len(known):
                found = await self._scan.recent(line, since - _SLACK)
            if found is None:
                found = await self._scan.whole(line)
                kept = []
        except (TransientError, UnavailableError):
            raise  # nothing is known of the line, and it is searched again
        except HoldfastError:  # deleted meanwhile, or damaged, as `verify` says
            found = []
        places = {(each.path, each.format): each for each in kept}
        for each in found:
            path = each.path[:_LONGEST_PATH]
            place = CredentialPlace(line.name, each.checkpoint, path, each.format, each.times)
            places.setdefault((path, each.format), place)
        others = [each for each in progress.places if each.line != line.name]
        if since and progress.more and len(places) < len(known):  # there is room for those that are not remembered
            progress.after, progress.more, others = "", False, []
        room = MOST_PLACES - len(others)
        progress.places = [*others, *[*places.values()][:room]]
        progress.more = progress.more or len(places) > room


async def look(engine: Engine, tenant: str, seconds: float | None) -> CredentialReport:
    """Return where credentials are: what was found before, and what is found from there on within some seconds. That is
    not stored; the next call in this process goes on from it."""
    known = engine.context.noticed
    progress, _ = await _read(engine, tenant)
    if tenant in known and known[tenant].since > progress.since:
        progress = known[tenant]
    check = CredentialCheck(engine, tenant, msgspec.structs.replace(progress))
    end = None if seconds is None else time.monotonic() + seconds

    async def report(done: int, what: str) -> None:  # noqa: ARG001
        if end is not None and time.monotonic() > end:
            raise _TimeIsUp

    complete = True
    try:
        await check.run(report)
    except _TimeIsUp:
        complete = False
    known[tenant] = check.progress
    findings = [
        SensitiveFinding(mask(place_of_line(each.line)), each.checkpoint, each.path, each.format, each.times)
        for each in await check.stored(check.progress.places)
    ]
    return CredentialReport(findings, check.progress.more, complete)


class _TimeIsUp(Exception):
    """The check has taken as long as it may."""


async def count_places(engine: Engine, tenant: str) -> int | None:
    """Return at how many places credentials were found, at most `MOST_PLACES`; None if nobody has looked."""
    progress, row = await _read(engine, tenant)
    return None if row is None else sum(bool(each.checkpoint) for each in progress.places)


async def forget_erased(engine: Engine, tenant: str) -> None:
    """Remove what is stored about places whose checkpoints are gone: it has the names of their threads."""
    # Also if there is nothing to remove: whoever is at it looks again at what is still there.
    await (await CredentialCheck.open(engine, tenant)).store()


async def _read(engine: Engine, tenant: str) -> tuple[CredentialProgress, Row | None]:
    (rows,) = await engine.context.backend.read([Get(REFS, [_key(tenant)])])
    if not rows:
        return CredentialProgress(), None
    try:
        return decode_json(str(rows[0].columns[0]), CredentialProgress), rows[0]
    except msgspec.MsgspecError:  # of another release
        return CredentialProgress(), rows[0]


def _key(tenant: str) -> Key:
    return (tenant, "", NOTICED, "", "")
