"""Lines that are no threads, and are gone: against heads, nobody's loss passes for a removal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import holdfast
from holdfast.agents import PersistentAgent
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line
from holdfast.hooks import Validate
from holdfast.store.store import Store
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.nightly import mostly_nightly


class Keeper(PersistentAgent):
    """An agent that keeps something."""

    kept: int = 1


LARGE = b"content" * 400_000


def use(store: Store) -> None:
    """Make a line of every kind that is no thread."""
    store.thread("chat").put({"n": 1})
    store.hooks.add(Validate(int), "state.*", scope="agent:a")
    a = store.as_identity(agent="a")
    a.state(agent="a")["plan"] = 1
    a.grant("agent:b", "read", keys="pl*")
    store.as_identity(agent="b").state(agent="a").get("plan")
    store.agents.create(Keeper, "keeper")
    store.sessions.start("s", on_end="delete").state["step"] = 1
    store.artifacts.register(io.BytesIO(LARGE), id="large")
    store.sharing.topic("news").publish("hello")
    store.audit.query()  # which writes what was read


@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *COMPOSED], daily=["memory", "sqlite"]))
def test_a_line_that_is_gone_is_damage(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path)) as store:
        use(store)
        heads = store.maintenance.heads()
        assert store.maintenance.verify(heads=heads).findings == []
        backend, lines = store._engine.context.stored, [name for name in heads.threads if not is_thread(name)]
        assert {"␞audit", "␞access", "␞agent:a", "␞agents:keeper", "␞sessions", "␞artifacts"} < set(lines)
        assert any(name.startswith("␞content:") for name in lines)
        for name in lines:
            rows = run(backend.read([Scan(table, ("", name)) for table in TABLES]))
            run(backend.apply([Delete(table, ("", name)) for table in TABLES]))
            store._engine.context.cache.drop_all(Line("", name))
            report = store.maintenance.verify(heads=heads, level="structure")
            assert [(each.code, each.thread) for each in report.damage] == [(FindingCode.LOST_LINE, name)], name
            run(backend.apply([Put(table, row) for table, found in zip(TABLES, rows, strict=True) for row in found]))
        assert store.maintenance.verify(heads=heads).findings == []


def test_a_line_that_was_removed_is_a_notice(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        use(store)
        heads = store.maintenance.heads()
        store.sessions.get("s").end()
        store.agents.delete("keeper")
        store.artifacts.delete("large")
        store.sharing.topic("news").delete()
        report = store.maintenance.verify(heads=heads)
        gone = {each.thread for each in report.findings if each.code is FindingCode.GONE_THREAD}
        assert gone >= set(heads.threads) - set(store.maintenance.heads().threads)
        assert len(gone) > 3
        assert report.damage == []


def test_a_lost_line_is_repaired_from_a_copy(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "copy.db") as copy:
        use(store)
        store.maintenance.copy_to(copy)
        heads = store.maintenance.heads()
        run(store._engine.context.stored.apply([Delete(table, ("", "␞agent:a")) for table in TABLES]))
    with holdfast.open(tmp_path / "a.db") as store:
        alone = store.maintenance.repair(heads=heads)
        assert [each.code for each in alone.left] == [FindingCode.LOST_LINE]
        assert store.maintenance.repair(str(tmp_path / "copy.db"), heads=heads).ok
        assert store.maintenance.verify(heads=heads).ok
        assert store.state(agent="a")["plan"] == 1
