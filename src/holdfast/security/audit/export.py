"""Exports of the audit, which a third party can check without the store.

A file has one JSON document a line: first a header; then each step with its rows and everything that its hash covers;
then the head of each line; last the digest of all that, signed with the key of the store. A checker recomputes every
hash, compares the rows with the digests of the steps, compares the heads with heads that were exported at another time
(`Store.heads`), and checks the signature: hashes alone can be made again by whoever alters the file.

Of an encrypted store, every line after the header is encrypted with a key of the file. The header has that key,
encrypted by the master key.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from holdfast._fields import count, fill
from holdfast.backends.fsutil import flush_folder, open_private
from holdfast.backends.interface import BlockingCall
from holdfast.backends.tables import EVENTS
from holdfast.codec import Codec, default_codec
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, digest
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.integrity.check import find_salt
from holdfast.engine.model.scopes import MARK
from holdfast.engine.model.steps import StepHeader, StepParent, StubProof, commit_hash
from holdfast.engine.namespaces import AUDIT, LineKind, line_kind, short_name
from holdfast.engine.row_format import ERASE, Line
from holdfast.errors import CorruptError, DeniedError, HoldfastError, InvalidError
from holdfast.security.audit.archive_records import LINE, ArchivedRange, ArchiveRecords, segment_of
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.audit.retain import REMOVE, STEP
from holdfast.security.audit.signature import is_signed, parse_public_key, public_key_of, sign
from holdfast.security.audit.thread_audit import CHANGING, record
from holdfast.security.audit.verify import (
    ACTION,
    AuditedStep,
    AuditFinding,
    AuditResult,
    audited_lines,
    audited_steps,
    chain_name,
    check_stub,
    compare_heads,
    find_mismatches,
    id_of,
    packed_detail,
    with_key,
)
from holdfast.security.encryption.file_key import FileKey, new_file_key, open_file_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from holdfast.security.encryption.provider import KeyProvider


_MARK, _FORMAT = "holdfast audit", 1
_PURPOSE = "audit"
_COLUMNS = tuple(EVENTS.columns)
_UNSIGNED, _SIGNED = {"digest"}, {"digest", "public_key", "signature"}
_COPY = "Use another copy of it"
_CLEAR = "If it was exported in the clear on purpose, check it without a key"


class AuditExport(msgspec.Struct, frozen=True):
    """The result of an export: the counts, and the head of each line (the number of its steps, and the hash of the
    last)."""

    path: str
    lines: int
    steps: int
    rows: int
    digest: str
    heads: Mapping[str, tuple[int, str]]
    public_key: str = ""
    """The key that checks the signature, in hex; empty if the file is not signed: without cryptography, or a key in a
    store that is open for reading only."""


class SegmentInfo(NamedTuple):
    """A segment of the archived audit: its number, and the time before which its steps are."""

    number: int
    before: int


class AuditWriter:
    """Writes steps of the audit to a file."""

    rows: int
    steps: int

    def __init__(self, file: IO[bytes], key: FileKey | None, signer: Ed25519PrivateKey | None) -> None:
        self._file = file
        self._key = key
        self._signer = signer
        self.public_key: str = "" if signer is None else public_key_of(signer)
        self._whole = hashlib.sha256()
        self._number = 0
        self.heads: dict[str, tuple[int, str]] = {}
        self.steps = self.rows = 0

    @classmethod
    async def open(
        cls,
        engine: Engine,
        tenant: str,
        file: IO[bytes],
        signer: Ed25519PrivateKey | None,
        segment: SegmentInfo | None = None,
    ) -> Self:
        """Write the header. The rest is encrypted, if the store is."""
        key = await new_file_key(engine, _PURPOSE)
        writer = cls(file, key, signer)
        header: dict[str, Any] = {"kind": _MARK, "format": _FORMAT, "tenant": tenant}
        header["columns"] = ["number", *_COLUMNS, "detail"]
        if segment is not None:
            header["segment"] = segment._asdict()
        writer._write(header | ({} if key is None else {"sealed": key.wrapped}))
        return writer

    def _write(self, document: Mapping[str, Any]) -> None:
        line = _encode(document)
        self._whole.update(line)
        sealed = self._key is not None and self._number
        self._file.write(self._key.seal(line, self._number).encode() + b"\n" if sealed and self._key else line)
        self._number += 1

    def start(self, chain: str, position: tuple[int, str] | None) -> None:
        """Begin a line where the segment before ended: with the number of steps so far, and the hash of the last."""
        if chain not in self.heads and position is not None:
            self._write({"line": chain, "start": position})
            self.heads[chain] = position

    def step(self, engine: Engine, line: Line, salt: bytes, audited: AuditedStep, **more: Any) -> None:
        """Write a step."""
        self._write(_document(engine, line, salt, audited) | more)
        point = audited.point
        self.heads[chain_name(line, point.branch)] = (point.seq + 1, point.hash.hex())
        self.steps += 1
        self.rows += len(audited.rows)

    def end(self) -> str:
        """Write the heads and the digest, signed, and return it."""
        self._write({"heads": self.heads})
        sha = self._whole.hexdigest()
        if self._signer is None:
            self._write({"digest": sha})
        else:
            self._write({"digest": sha, "public_key": self.public_key, "signature": sign(_signed(sha), self._signer)})
        return sha


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _signed(digest: str) -> bytes:
    return f"{_MARK} {_FORMAT} {digest}".encode()


async def find_signer(engine: Engine, tenant: str) -> Ed25519PrivateKey | None:
    """Return the key that signs an export; None without the extra for it, and if the store has none and is open for
    reading only."""
    try:
        from holdfast.security.audit.signing_key import export_key
    except ImportError:
        return None
    return await export_key(engine, tenant)


async def export(engine: Engine, tenant: str, path: str | Path) -> AuditExport:
    """Write the audit to a file, atomically."""
    temporary = Path(f"{path}.new")
    signer = await find_signer(engine, tenant)  # which the audit records if it is new, so before that is read
    archived = await ArchiveRecords(engine, tenant).ranges()
    replaced = await ErasureLedger(engine, tenant).replaced_digests()
    with open_private(temporary, "wb") as file:
        writer = await AuditWriter.open(engine, tenant, file, signer)
        lines = await audited_lines(engine, tenant)
        for line in lines:
            salt, own = await find_salt(engine.context, line), [each for each in archived if each.line == line.name]
            async for audited in audited_steps(engine, line):
                more: dict[str, Any] = {}
                if left := replaced.get((line.name, id_of(audited))):
                    more["erased"] = left
                if not audited.rows and (segment := segment_of(own, id_of(audited))):
                    more["archived"] = segment
                writer.step(engine, line, salt, audited, **more)
        sha = writer.end()
    temporary.replace(path)
    return AuditExport(str(path), len(lines), writer.steps, writer.rows, sha, writer.heads, writer.public_key)


def _document(engine: Engine, line: Line, salt: bytes, audited: AuditedStep) -> dict[str, Any]:
    point, step, rows, problem, proof, _ = audited
    found: dict[str, Any] = {"line": chain_name(line, point.branch), "seq": point.seq, "hash": point.hash.hex()}
    limit = engine.context.max_bytes
    if step is None and problem:
        return found | {"damaged": problem}
    found["rows"] = [[row.key[3], *row.columns, _base64(packed_detail(row, limit))] for row in rows]
    if step is None:
        found |= {"pruned": True, "merged": [parent.commit.hex() for parent in point.merged]}
        if proof is not None:
            found |= {"id": proof.id, "events": proof.events, "content": proof.content.hex()}
        return found
    header = step.header
    found |= {
        "id": header.id,
        "parents": [parent.commit.hex() for parent in header.parents],
        "time": header.time,
        "stamp": header.stamp,
        "action": header.kind,
        "schema": header.schema,
        "key_schemas": [[_base64(name), schema] for name, schema in header.key_schemas],
        "metadata": _base64(header.metadata),
        "about": engine.context.codec.to_plain(engine.context.codec.unpack(header.metadata)),
        "operations": [[_base64(name), each.hex()] for name, each in step.digests(salt)],
        "events": header.events,
        "salt": _base64(header.salt),
    }
    return found


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


class AuditCheck(AuditResult, msgspec.Struct, frozen=True):
    """The result of a check of an exported audit. Compare what it says of erased steps with certificates of erasure."""

    segment: int = 0
    """The number of the segment, if the file is one. It continues from the one before it: pass the heads of that."""
    heads: dict[str, tuple[int, str]] = {}
    """The head of each line in the file: the number of its steps, and the hash of the last."""
    removed: dict[str, int] = {}
    """The lines that were removed according to the audit, and how many steps they had."""
    public_key: str = ""
    """The key that the file was signed with, in hex; empty if it was not signed."""


def check_audit(
    path: str | Path,
    heads: Mapping[str, tuple[int, str]] | None = None,
    *,
    keys: KeyProvider | str | None = None,
    public_key: str | None = None,
) -> AuditCheck:
    """Check an exported audit, with the file only. That of an encrypted store needs `keys`, the master key; with them,
    a file that is not encrypted is refused.

    `public_key` is that of the store, `store.erasure.public_key()`: a file that it did not sign is refused. Without it,
    the file is checked with the key that it names, which may be anybody's.

    `heads` has the number of steps that each line had at an earlier time, and the hash of the last of them: the file
    must continue from there, or say that the line was removed since.
    """
    checked = AuditCheck()
    documents = _documents(Path(path), keys, None if public_key is None else parse_public_key(public_key))
    first = next(documents, {})
    if first.get("kind") != _MARK or first.get("format") != _FORMAT:
        raise InvalidError(
            "the file holds no exported audit", where=str(path), hint="Write one with store.audit.export()"
        )
    hashes: dict[str, dict[int, str]] = {}
    ends: Any = None
    fill(checked, segment=_segment_number(first))
    for document in documents:
        if "heads" in document:
            ends = document["heads"]
            continue
        if "digest" in document:
            fill(checked, public_key=document.get("public_key", ""))
            continue
        if checked.segment and set(document) == {"line", "start"} and document["line"] not in hashes:
            length, last = document["start"]
            hashes[str(document["line"])] = {int(length) - 1: str(last)}
            continue
        try:
            _check_step(document, hashes, checked)
        except (KeyError, TypeError, ValueError, HoldfastError) as error:
            where = (str(document.get("line", "")), str(document.get("id", "")))
            checked.findings.append(AuditFinding(*where, f"the line of the file cannot be read: {error}"))
    for line, chain_hashes in hashes.items():
        checked.heads[line] = (max(chain_hashes) + 1, chain_hashes[max(chain_hashes)]) if chain_hashes else (0, "")
    if ends != {line: list(end) for line, end in checked.heads.items()}:
        checked.findings.append(AuditFinding("", "", "the ends of the lines are not those that the file says"))
    checked.findings.extend(
        compare_heads(heads or {}, lambda name, seq: hashes.get(name, {}).get(seq), checked.removed)
    )
    return checked


def _documents(
    path: Path, keys: KeyProvider | str | None = None, public_key: str | None = None
) -> Iterator[dict[str, Any]]:
    """Return the documents of a file. The last one, the digest, is checked."""
    whole, key = hashlib.sha256(), None
    with path.open("rb") as file:
        for number, text in enumerate(file):
            line = text if key is None else key.unseal(text.removesuffix(b"\n"), number, str(path))
            try:
                document = json.loads(line)
            except ValueError as error:
                raise CorruptError(f"a line of the exported audit is not JSON: {error}", where=str(path)) from error
            if not isinstance(document, dict):
                raise CorruptError("a line of the exported audit is not a JSON object", where=str(path))
            if "digest" in document:
                if line != _encode(document):  # nothing covers its own bytes
                    raise CorruptError("the file is not as it was written", where=str(path), hint=_COPY)
                _check_end(document, whole.hexdigest(), public_key, str(path))
                if file.read(1):
                    raise CorruptError(
                        "the file has data after the end of the exported audit",
                        where=str(path),
                        hint="The data was added later, and is not part of the audit. Use another copy of the file",
                    )
                yield document
                return
            whole.update(line)
            if not number and keys is not None and "sealed" not in document:
                # Whoever has no key could have written it.
                raise CorruptError("the file is not encrypted", where=str(path), hint=_CLEAR, code="tampered")
            if not number and document.get("kind") == _MARK and "sealed" in document:
                key = open_file_key(document["sealed"], _PURPOSE, _provider(keys), str(path))
            yield document
    raise CorruptError("the end of the file is missing", where=str(path), hint=_COPY)


def _check_end(document: Mapping[str, Any], digest: str, public_key: str | None, where: str) -> None:
    """Check the last document of a file: the digest of the others, and the signature if there is or must be one."""
    if document["digest"] != digest or set(document) not in (_UNSIGNED, _SIGNED):
        raise CorruptError("the file is not as it was written", where=where, hint=_COPY)
    if set(document) == _UNSIGNED:
        if public_key is not None:
            raise CorruptError("the exported audit is not signed", where=where, hint=_COPY, code="tampered")
        return
    signed_by, signature = document["public_key"], document["signature"]
    if public_key not in (None, signed_by):
        what = f"the exported audit was signed with another key, {ascii(signed_by)[1:17]}…"
        raise CorruptError(what, where=where, hint="Ask whoever exported it for the original", code="tampered")
    if not isinstance(signature, str) or not is_signed(_signed(digest), signature, str(signed_by)):
        raise CorruptError("the signature is not that of the exported audit", where=where, hint=_COPY, code="tampered")


def _segment_number(header: Mapping[str, Any]) -> int:
    segment = header.get("segment")
    number = segment.get("number") if isinstance(segment, dict) else None
    return number if type(number) is int else 0


def _provider(keys: KeyProvider | str | None) -> KeyProvider | None:
    if not isinstance(keys, str):
        return keys
    from holdfast.security.encryption.settings import provider_for

    return provider_for(keys)


def _check_step(document: dict[str, Any], hashes: dict[str, dict[int, str]], checked: AuditCheck) -> None:
    line, seq, commit = str(document["line"]), int(document["seq"]), str(document["hash"])
    chain_hashes = hashes.setdefault(line, {})
    id = str(document.get("id", ""))
    count(checked, steps=1)
    wrong: list[str] = []
    following = max(chain_hashes, default=-1) + 1
    if seq != following:
        wrong.append(f"steps {following} to {seq - 1} are missing")
    before = chain_hashes.get(seq - 1)
    chain_hashes[seq] = commit
    if "erased" in document and document["erased"] == digest(_rows_of(document)[1]):
        count(checked, erased=1)
        expected = str(document["erased"])
    elif "archived" in document and not document["rows"] and not checked.segment:
        count(checked, archived=1)
        expected = digest(())
    else:
        expected = str(document.get("events", ""))
    if document.get("pruned"):
        count(checked, pruned=1)
        wrong += _check_pruned(document, line, before, erased=expected != document.get("events", ""))
    elif "damaged" in document:
        wrong.append(str(document["damaged"]))
    else:
        parents = [bytes.fromhex(parent) for parent in document["parents"]]
        metadata = b64decode(document["metadata"], validate=True)
        header = StepHeader(
            id,
            tuple(StepParent(0, 0, parent) for parent in parents),
            document["time"],
            document["stamp"],
            document["action"],
            document["schema"],
            metadata,
            document["events"],
            b64decode(document["salt"], validate=True),
            key_schemas=tuple((b64decode(name, validate=True), schema) for name, schema in document["key_schemas"]),
        )
        digests = tuple((b64decode(name, validate=True), bytes.fromhex(each)) for name, each in document["operations"])
        if commit_hash(header, digests, b"").hex() != commit:
            wrong.append("its hash is not that of its content")
        follows = parents[0].hex() if parents else None
        if before is not None and before != follows:
            wrong.append("it does not follow the step before it")
        if seq == 0 and BETWEEN in line and not checked.segment and not _belongs_to(line, follows, hashes):
            wrong.append("its branch does not go on from a step of the line")
        wrong += _check_rows(default_codec, metadata, document, expected)
        if line == AUDIT:
            checked.removed.update(_removed_lines(default_codec, document))
    count(checked, rows=len(document.get("rows", ())))
    checked.findings.extend(AuditFinding(line, id, what) for what in wrong)


def _check_pruned(document: dict[str, Any], line: str, before: str | None, *, erased: bool) -> list[str]:
    """Check what a pruned step left. The first step of a branch is not compared with the one that it followed."""
    proof = None
    if "content" in document:
        proof = StubProof(document["id"], document["events"], bytes.fromhex(document["content"]))
    known = before is not None or (document["seq"] == 0 and BETWEEN not in line)
    first = None if not known else () if before is None else (bytes.fromhex(before),)
    merged = [StepParent(0, 0, bytes.fromhex(parent)) for parent in document["merged"]]
    name, commit = line.partition(BETWEEN)[0], bytes.fromhex(document["hash"])
    return check_stub(name, commit, proof, first, merged, *_rows_of(document), erased=erased)


def _rows_of(document: dict[str, Any]) -> tuple[list[int], list[tuple[Sequence[Any], bytes]]]:
    """Return the numbers and the contents of the rows of a step."""
    rows = document["rows"]
    return [row[0] for row in rows], [(row[1:-1], b64decode(row[-1], validate=True)) for row in rows]


def _belongs_to(chained: str, commit: str | None, hashes: Mapping[str, Mapping[int, str]]) -> bool:
    """Whether a hash is that of a step of the line that a branch belongs to."""
    line = chained.partition(BETWEEN)[0]
    return any(
        commit in chain_hashes.values() for name, chain_hashes in hashes.items() if name.partition(BETWEEN)[0] == line
    )


def _removed_lines(codec: Codec, document: dict[str, Any]) -> dict[str, int]:
    """Return the lines that a step removed, and how many steps they had."""
    found = {}
    for _, _, kind, _, action, target, *_, detail in document["rows"]:
        about = codec.unpack(b64decode(detail, validate=True)) if detail else {}
        if kind == "change" and action in (REMOVE, ERASE) and "steps" in about and STEP not in about:
            found[MARK + target.removesuffix(BETWEEN)] = int(about["steps"])
    return found


def _check_rows(codec: Codec, metadata: bytes, document: dict[str, Any], expected: str) -> list[str]:
    about: dict[str, Any] = codec.unpack(metadata)
    changed = [b64decode(name, validate=True) for name, _ in document["operations"]]
    wrong = [] if codec.to_plain(about) == document["about"] else ["what it says about itself is not its metadata"]
    return wrong + find_mismatches(expected, *_rows_of(document), with_key(about, changed))


# Archive --------------------------------------------------------------------------------------------------------------
#
# Archiving the audit: records of some age are written to a file, a *segment*, and removed from the store.
#
# A segment has the form of an exported audit, is signed like one, and is encrypted if the store is. It starts where
# the one before it ended, so segments form a chain, and each is checked alone or against the heads of the one before
# (`check_audit`). In the store the steps stay, with their hashes and the digests of their records. A system line says
# which steps have their records in a segment, in the same batch that removes them. So a record that is missing for any
# other reason is found as before.
#
# Records that say what was removed or erased stay in the store: a verification needs them.

ARCHIVED_KINDS: frozenset[LineKind] = frozenset({"audit", "access", "scope", "session", "system"})
"""The kinds of lines whose records are archived by default. Those of agents list their transitions."""

_RETAINED = frozenset({REMOVE, ERASE, "erased"})
"""Actions whose records stay in the store."""

_AT_ONCE = 200
"""The number of steps whose records are removed together."""


class AuditArchive(msgspec.Struct, frozen=True):
    """The result of archiving: the file, the number of the segment, the numbers of lines, steps and records in it, the
    digest of the file, the heads that the next segment starts from, and lines that a legal hold protects."""

    path: str
    segment: int
    lines: int
    steps: int
    rows: int
    digest: str
    heads: Mapping[str, tuple[int, str]]
    held: tuple[str, ...] = ()
    dry_run: bool = False
    public_key: str = ""
    """The key that checks the signature of the file, in hex; empty if it is not signed."""


async def archive(
    engine: Engine,
    tenant: str,
    path: str | Path,
    before: int,
    kinds: frozenset[LineKind],
    *,
    dry_run: bool = False,
    only: str = "",
    unseen: int | None = None,
) -> AuditArchive:
    """Write records from before a time to a file, which must not exist, and then remove them. `CorruptError` if the
    audit does not verify: nothing is removed then. With `only`, those of the line of this name. Records of what was
    removed or came from elsewhere stay, if they are not older than `unseen`: there may be no backup yet that has them.
    """
    target, temporary = Path(path), Path(f"{path}.new")
    if target.exists():
        raise InvalidError("the file exists", where=str(path), hint="Each segment has a file of its own")
    signer = None if dry_run else await find_signer(engine, tenant)
    records = ArchiveRecords(engine, tenant)
    ranges = await records.ranges()
    number = max((each.segment for each in ranges), default=0) + 1
    replaced = await ErasureLedger(engine, tenant).replaced_digests()
    plan: dict[Line, list[_PlannedStep]] = {}
    held: list[str] = []
    with open_private(temporary, "wb") as file:
        try:
            writer = await AuditWriter.open(engine, tenant, file, signer, SegmentInfo(number, before))
            for line in await audited_lines(engine, tenant):
                if line_kind(line.name) not in kinds or line.name == LINE or only not in ("", line.name):
                    continue
                if await _is_held(engine, line):
                    held.append(short_name(line.name))
                    continue
                own = [each for each in ranges if each.line == line.name]
                plan[line] = await _write_line(engine, line, own, replaced, before, writer, unseen)
            sha = writer.end()
            file.flush()
            await BlockingCall(lambda: os.fsync(file.fileno()))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if dry_run or not any(plan.values()):
        temporary.unlink()
    else:
        temporary.replace(target)
        await BlockingCall(lambda: flush_folder(target.absolute().parent))
        for line, steps in plan.items():
            for start in range(0, len(steps), _AT_ONCE):
                await _remove(records, number, line, steps[start : start + _AT_ONCE])
        detail = {"segment": number, "file": target.name, "sha256": sha}
        await record(engine, [Line(tenant, AUDIT)], "archive", detail)
    counts = [step for steps in plan.values() for step in steps]
    return AuditArchive(
        str(path),
        number,
        sum(map(bool, plan.values())),
        len(counts),
        sum(step.rows for step in counts if not step.is_retained),
        sha,
        writer.heads,
        tuple(held),
        dry_run,
        writer.public_key,
    )


class _PlannedStep(NamedTuple):
    """A step with records that is in the segment."""

    id: str
    rows: int
    is_retained: bool


async def _remove(records: ArchiveRecords, number: int, line: Line, steps: Sequence[_PlannedStep]) -> None:
    retained = frozenset(step.id for step in steps if step.is_retained)
    gone = [step for step in steps if not step.is_retained]
    rows = sum(step.rows for step in gone)
    await records.move(
        ArchivedRange(number, line.name, steps[0].id, steps[-1].id, retained, rows), [step.id for step in gone]
    )


async def _is_held(engine: Engine, line: Line) -> bool:
    try:
        await require_no_hold(engine.context.backend, [line])
    except DeniedError:
        return True
    return False


async def _write_line(
    engine: Engine,
    line: Line,
    archived: Sequence[ArchivedRange],
    replaced: Mapping[tuple[str, str], str],
    before: int,
    writer: AuditWriter,
    unseen: int | None,
) -> list[_PlannedStep]:
    """Write the steps of a line from before a time that are in no segment yet. Returns those that have records."""
    last = max((each.last for each in archived), default="")
    salt = await find_salt(engine.context, line)
    found: list[_PlannedStep] = []
    positions: dict[str, tuple[int, str]] = {}
    ended: set[str] = set()
    async for audited in audited_steps(engine, line):
        point, id = audited.point, id_of(audited)
        chain = chain_name(line, point.branch)
        if chain in ended:
            continue
        if id <= last and chain not in writer.heads:
            positions[chain] = (point.seq + 1, point.hash.hex())
            continue
        if point.time >= before:
            ended.add(chain)
            continue
        writer.start(chain, positions.get(chain))
        left = replaced.get((line.name, id), "")
        _check(engine, line, audited, left)
        writer.step(engine, line, salt, audited, **({"erased": left} if left else {}))
        if audited.rows:
            is_unseen = line.name == AUDIT and unseen is not None and point.time >= unseen
            kept = _RETAINED | CHANGING if is_unseen else _RETAINED
            retained = any(row.columns[ACTION] in kept for row in audited.rows)
            found.append(_PlannedStep(id, len(audited.rows), retained))
    for chain, position in positions.items():
        writer.start(chain, position)
    return sorted(found)


def _check(engine: Engine, line: Line, audited: AuditedStep, left: str) -> None:
    """Require that the records of a step are those that it was written with, or what an erasure left."""
    step, proof, limit = audited.step, audited.proof, engine.context.max_bytes
    expected = step.header.events if step is not None else "" if proof is None else proof.events
    contents: list[tuple[Sequence[Any], bytes]] = [(row.columns, packed_detail(row, limit)) for row in audited.rows]
    if left and digest(contents) == left:
        return
    if audited.problem or find_mismatches(expected, [int(row.key[3]) for row in audited.rows], contents, {}):
        raise CorruptError(
            "records of the audit are not those that were written, so nothing is archived",
            where=f"step {id_of(audited)} of {short_name(line.name)}",
            hint="store.audit.verify() and `holdfast audit verify` list what is wrong",
        )
