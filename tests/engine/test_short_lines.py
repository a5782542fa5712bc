"""Short lines are looked at together, in memory, and the result is as if each had been looked at in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.backends.interface import Delete, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FIELDS, FOLDS, REFS, STEPS, WRITES
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.context import EngineContext
from holdfast.engine.copy import short_lines
from holdfast.engine.copy.short_lines import read_stored_lines
from holdfast.engine.row_format import Line
from holdfast.maintenance import orphans
from holdfast.maintenance.verify import heads, verifier
from holdfast.store.store import Store


@pytest.fixture(params=["plain", "indexed", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    options: dict[str, Any] = {"encryption": Encryption(LocalKeys(generate_key()))}
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", **(options if request.param == "encrypted" else {})) as opened:
        for name in "abcdefgh":
            for number in range(40 if name == "d" else 3):
                opened.thread(name).put({"n": number, "text": name * 50}, metadata={"user": f"u{number % 2}"})
        opened.thread("b").fork("side", at="HEAD~1", changes={"n": 7})
        opened.thread("c").tag("good", at="HEAD~2")
        opened.thread("e").hold(reason="evidence")
        opened.maintenance.prune(keep_last=1, threads=["f"])
        opened.state(agent="researcher").set("key", "value")
        if request.param == "indexed":
            opened.maintenance.build_index()
        yield opened


def change(store: Store, *changes: Any) -> None:
    assert run(store._engine.context.backend.apply(changes)) is None


def damage(store: Store) -> None:
    """Remove and add rows of short threads and a long one, and of one that there is not."""
    (rows,) = run(store._engine.context.backend.read([Scan(STEPS, ("", "a"))]))
    change(
        store,
        Delete(STEPS, rows[1].key),
        Delete(FOLDS, ("", "d")),
        Delete(FIELDS, ("", "g")),
        Put(REFS, Row(("", "c", "label", "nothing", "none"), ("none", 1))),
        Put(WRITES, Row(("", "cc", "none", "task", 0), ("", "n"), b"")),
    )


def everything(store: Store) -> list[Any]:
    """Return what looks at all threads, and how it tells its progress."""
    told: list[tuple[int, int | None, str]] = []

    def progress(*how: Any) -> None:
        told.append(how)

    reports = [
        replace(store.maintenance.verify(level=level, progress=progress), seconds=0.0)
        for level in ("structure", "hashes")
    ]
    after: str | None = ""
    while after is not None:
        reports.append(replace(store.maintenance.verify(after=after, limit=2), seconds=0.0))
        after = reports[-1].next
    reports += [replace(store.maintenance.verify(kinds="thread", progress=progress), seconds=0.0)]
    swept = store.maintenance.sweep_orphans(grace=0, dry_run=True, progress=progress)
    return [*reports, swept, store.maintenance.heads().threads, store.maintenance.heads(kinds="thread").threads, told]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_found_together_is_what_is_found_one_by_one(
    store: Store, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_damaged:
        damage(store)
    loaded: list[int] = []

    async def counted(context: EngineContext, lines: Sequence[Line], *more: Any) -> Any:
        found = await read_stored_lines(context, lines, *more)
        loaded.append(len(found))
        return found

    async def none(*_: Any) -> Any:
        return {}

    found = []
    for how in (counted, none):
        for module in (heads, orphans, verifier):
            monkeypatch.setattr(module, "read_stored_lines", how)
            monkeypatch.setattr(module, "GROUP", 3)
        found.append(everything(store))
    together, one_by_one = found
    for ours, theirs in zip(together, one_by_one, strict=True):
        assert ours == theirs
    assert any(each.findings for each in together[:2]) == is_damaged
    assert (max(loaded) == 3) != store._engine.context.rows.hides_columns, "those of an encrypted store are read alone"


def test_no_line_is_read_after_rows_of_another(store: Store) -> None:
    if store._engine.context.rows.hides_columns:
        return
    lines = [Line("", name) for name in ("a", "b", "c", "e", "f")]  # and d, which is long, is between them
    context = store._engine.context
    short = run(read_stored_lines(context, lines))
    assert list(short) == lines[:3]
    for line, rows in short.items():
        assert run(context.stored.read([Scan(STEPS, tuple(line))])) == [rows[STEPS]]
    damage(store)
    assert list(run(read_stored_lines(context, [Line("", name) for name in ("c", "e")]))) == [Line("", "c")]
    assert not run(read_stored_lines(context, [Line("", "d")]))


def test_so_many_rows_are_read_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if store._engine.context.rows.hides_columns:
        return
    monkeypatch.setattr(short_lines, "_ROWS", 8)
    lines = [Line("", name) for name in "abc"]
    assert list(run(read_stored_lines(store._engine.context, lines))) == lines[:2]
