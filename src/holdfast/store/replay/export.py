"""Recordings to keep with tests: without credentials and personal data, and with a test that replays them."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from holdfast.backends.fsutil import open_private
from holdfast.backends.runtime.drivers import run as drive
from holdfast.codec import default_codec
from holdfast.engine.model.steps import RECORDED, PendingWriteRow
from holdfast.engine.namespaces import CONTENT_KINDS, split_name, thread_name
from holdfast.errors import ConflictError
from holdfast.security.sensitive.detector import Detector, parse_formats
from holdfast.security.sensitive.packed_values import replace_texts, texts_of
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.opener import open as open_store
from holdfast.store.replay.process import TIMEOUT
from holdfast.store.replay.report import ReplayReport
from holdfast.store.replay.threads import ask_for_graph, copied, lines_to_export
from holdfast.store.saved_checkpoint import SavedCheckpoint
from holdfast.store.store import Store
from holdfast.store.store_rows import pack_rows

_OWN_METADATA = frozenset({"source", "step", "parents", "run_id", "checkpoint_ns", "checkpoint_id"})
_SHORTEST = 6
"""Shorter texts are replaced only where they are found, and not wherever they occur."""

_TEST = '''"""Replays a recorded run with the code of today: no model and no tool is called."""

from pathlib import Path

from holdfast import replay


def test_{name}_replays_as_recorded() -> None:
    replay.run(Path(__file__).with_name("{name}.replay"), {graph}{env}).check()
'''


def export(
    store: Store,
    thread: str,
    folder: str | os.PathLike[str],
    graph: str,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> tuple[Path, Path]:
    """Write a recorded thread and the pytest file that replays it to a folder. Returns both paths.

    Texts that look like credentials or personal data are replaced by `[redacted:…]`, equal texts by equal ones.
    Personal data that only the code of the graph contains, such as an address in a prompt, stays. The recording is
    replayed once with the `graph`, named as `module:name`: `ConflictError`, and nothing is written, if it is not as
    recorded. A test file that is there already is kept, and the recording replaced.
    """
    lines = lines_to_export(store, thread)
    data, redactor = io.BytesIO(), _Redactor()
    with copied(store, lines) as scratch, open_store("memory://", tenant=store.tenant) as target:
        drive(_copy_redacted(scratch, target, thread, redactor))
        target.maintenance.export(data, kinds=CONTENT_KINDS)
        _check(ask_for_graph(pack_rows(target), graph, env, timeout), bool(redactor.replaced))
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", redactor.redact_text("", thread), flags=re.ASCII).strip("_").lower() or "thread"
    recording, test = place / f"{name}.replay", place / f"test_{name}.py"
    with open_private(recording, "wb") as out:
        out.write(data.getvalue())
    if not test.exists():
        given = f", env={json.dumps(dict(env))}" if env else ""
        test.write_text(_TEST.format(name=name, graph=json.dumps(graph), env=given), encoding="utf-8")
    return recording, test


def _check(report: ReplayReport, is_redacted: bool) -> None:
    if report.divergence is None or not is_redacted:
        report.check()
        return
    raise ConflictError(
        f"the recording without its sensitive data does not replay: {report.divergence}",
        where=f"thread {report.thread!r}",
        hint="If the thread itself replays, write it as it is with replay.record, and keep the file private",
        code="replay-diverged",
    )


async def _copy_redacted(source: Store, target: Store, thread: str, redactor: _Redactor) -> None:
    """Copy a thread with its namespaces, checkpoint by checkpoint, without its sensitive data."""
    before, after = CheckpointStore(source), CheckpointStore(target)
    redactor.search(thread, is_given=True)
    records = []
    async for saved, rows in _checkpoints(before, source, thread):
        is_input = saved.metadata.get("source") != "loop" and not split_name(saved.thread)[1]
        redactor.search([_described(saved), saved.state if is_input else None], is_given=True)
        records += [(row.place, default_codec.unpack(row.packed)) for row in rows if row.channel == RECORDED]
    for _, record in sorted(records, key=itemgetter(0)):  # by when they ended: a later one may have what one returned
        redactor.search(record.get("resumed"), is_given=True)
        for call in sorted(record["calls"], key=itemgetter(2)):
            redactor.search(call[4], is_given=False)
            redactor.search([*call[5:], _streamed(call)], is_given=True)
    async for saved, rows in _checkpoints(before, source, thread):
        redactor.search([saved.state, *(default_codec.unpack(row.packed) for row in rows)], is_given=False)
    redactor.decide()
    async for saved, rows in _checkpoints(before, source, thread):
        thread_id, namespace = split_name(saved.thread)
        name = thread_name(redactor.redact_text("", thread_id), namespace)
        await after.save(
            name,
            redactor.redact(saved.state),
            id=saved.id,
            stamp=saved.stamp,
            parent=saved.parent,
            bookkeeping=saved.bookkeeping,
            metadata={**saved.metadata, **redactor.redact(_described(saved))},
            kind=str(saved.metadata.get("source", "save")),
        )
        redacted = [row._replace(packed=_redact_row(redactor, row), schema="") for row in rows]
        await target._handle.engine.writes.put(target._handle.thread_line(name), saved.id, redacted)


async def _checkpoints(
    checkpoints: CheckpointStore, store: Store, thread: str
) -> AsyncIterator[tuple[SavedCheckpoint, list[PendingWriteRow]]]:
    """Yield the checkpoints of a thread and its namespaces, the oldest first, with what tasks wrote after them."""
    engine = store._handle.engine
    for name in await checkpoints.namespaces(thread_name(thread)):
        line = store._handle.thread_line(name)
        found = [each async for page in await checkpoints.list_checkpoints([name]) for each in page]
        for saved in reversed(found):
            point = await engine.lines.find(line, saved.id)
            (rows,) = await engine.writes.of_many(line, [point])
            yield saved, list(rows)


def _described(saved: SavedCheckpoint) -> dict[str, Any]:
    return {
        name: value
        for name, value in saved.metadata.items()
        if name not in _OWN_METADATA and not name.startswith("langgraph_")
    }


def _redact_row(redactor: _Redactor, row: PendingWriteRow) -> bytes:
    value = default_codec.unpack(row.packed)
    if row.channel == RECORDED:
        for call in value["calls"]:
            given, result, *rest = call[4:]
            redacted = redactor.redact(result)
            text = _streamed(call)
            for outcome in rest if redacted != result or redactor.redact_text("", text) != text else ():
                outcome.pop("chunks", None)  # they have the text in parts
            call[4:] = [redactor.redact(given), redacted, *redactor.redact(rest)]
        for name in {"resumed", "questions", "error"} & value.keys():
            value[name] = redactor.redact(value[name])
        return default_codec.pack(value)
    return default_codec.pack(redactor.redact(value))


def _streamed(call: list[Any]) -> str:
    """Return the text of the chunks of a call."""
    chunks = [outcome.get("chunks") for outcome in call[6:]]
    return "".join(text for name, text in texts_of(default_codec.pack(chunks)) if name == "content")


class _Redactor:
    """Replaces sensitive texts by the same texts wherever they occur, so that what is compared stays equal."""

    def __init__(self) -> None:
        self._detector = Detector(parse_formats("all"))
        self._formats: dict[str, str] = {}
        self._given: set[str] = set()
        self.replaced: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def search(self, value: Any, *, is_given: bool) -> None:
        """Note the sensitive texts of a value that are not known yet: the run was given them, or its code has them."""
        for name, text in texts_of(default_codec.pack(value)):
            for span in self._detector.find_in_field(name, text):
                found = text[span.start : span.end]
                if found not in self._formats:
                    self._formats[found] = span.format
                    if is_given:
                        self._given.add(found)

    def decide(self) -> None:
        """Decide what each text is replaced by."""
        credentials = parse_formats("credentials")
        counts: dict[str, int] = {}
        for text, format_ in self._formats.items():
            if text in self._given or format_ in credentials:
                number = counts[format_] = counts.get(format_, 0) + 1
                self.replaced[text] = f"[redacted:{format_}{f'-{number}' if number > 1 else ''}]"
        long = sorted((each for each in self.replaced if len(each) >= _SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, long))) if long else None

    def redact(self, value: Any) -> Any:
        """Return a value without sensitive texts."""
        if not self.replaced:
            return value
        replace: Callable[..., str] = lambda _, name, text: self.redact_text(name, text)  # noqa: E731
        return default_codec.unpack(replace_texts(default_codec.pack(value), (), "", replace))

    def redact_text(self, name: str, text: str) -> str:
        """Return the text of a field without what is sensitive."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self.replaced[match[0]], text)
        for span in reversed(self._detector.find_in_field(name, text)):
            marker = self.replaced.get(text[span.start : span.end])
            if marker is not None:
                text = f"{text[: span.start]}{marker}{text[span.end :]}"
        return text
