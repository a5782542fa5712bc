"""The salt of a line: it keys all ids and digests that are stored in the clear, and goes where the line goes."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator

import pytest

from holdfast.backends.interface import Backend, Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FOLDS, LINES, NODES, OBJECTS, STEPS, Table
from holdfast.engine.lines import new_salt
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.large_pointers import pointer_to
from holdfast.engine.model.large_values import set_aside
from holdfast.engine.model.line_salt import NO_SALT, SALT_SIZE
from holdfast.engine.model.nodes import check_node, encode_node
from holdfast.engine.model.packed_state import pack_state
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import Workspace
from holdfast.engine.row_format import Line, info_of, info_row, open_fold, open_step
from holdfast.errors import ConflictError, CorruptError
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.store import Store
from tests.engine.lines import Backends, store_on
from tests.support.nightly import mostly_nightly

LINE = Line("", "t")
LARGE = "secret " * 20_000


@pytest.fixture(params=["memory", "sqlite"])
def backends(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Backends]:
    opened = Backends(request.param, tmp_path)
    yield opened
    opened.close()


def fill(store: Store, name: str = "t", *, steps: int = 8) -> None:
    for number in range(steps):
        store.thread(name).put(
            {"answer": "yes", "n": number, "items": list(range(number)), "report": LARGE}, id=f"{number:02}"
        )


def rows(on: Backend, table: Table, line: Line = LINE) -> list[tuple[object, ...]]:
    found = run(on.read([Scan(table, tuple(line))]))[0]
    return [(*row.key[2:], *row.columns) for row in found]


def salt_of(store: Store, name: str = "t") -> bytes:
    return run(store._engine.lines.info(Line("", name))).salt


def hashes(store: Store, name: str = "t") -> list[str]:
    return [each.hash for each in store.thread(name).log().all()]


def damage(on: Backend, table: Table) -> None:
    row = run(on.read([Scan(table, tuple(LINE))]))[0][0]
    run(on.apply([Put(table, row._replace(body=row.body[:-1] + bytes([row.body[-1] ^ 1])))]))


def test_every_line_has_a_salt_of_its_own(backends: Backends) -> None:
    on = backends()
    store = store_on(on, fold_every=3)
    fill(store)
    fill(store, "u")
    store.state(agent="a")["k"] = "yes"
    (found,) = run(store._engine.context.backend.read([Scan(LINES, ("",))]))
    salts = [info_of(row).salt for row in found]
    assert all(len(salt) == SALT_SIZE for salt in salts)
    assert len(set(salts)) == len(salts) > 2
    for table, width in ((STEPS, 6), (NODES, 1), (OBJECTS, 0)):
        # The same content has another name in another line.
        one, other = ({row[width] for row in rows(on, table, Line("", name))} for name in ("t", "u"))
        assert one.isdisjoint(other), table.name
        assert len(one) == len(other) > 0


def test_without_the_salt_a_guess_is_not_confirmed(backends: Backends) -> None:
    on = backends()
    store = store_on(on, fold_every=3)
    fill(store)
    engine = store._engine
    clear = {value for table in (STEPS, NODES, OBJECTS, FOLDS) for row in rows(on, table) for value in row}
    (steps, folds) = run(engine.context.backend.read([Scan(STEPS, tuple(LINE)), Scan(FOLDS, tuple(LINE))]))
    header = open_step(LINE, steps[0], 1 << 20).header  # all that a guess needs besides the state
    state = pack_state(engine.context.codec, {"answer": "yes", "n": 0, "items": [], "report": LARGE})
    root = open_fold(folds[0], folds[0].columns[1])  # type: ignore[arg-type]
    ws = Workspace()
    assert root.child is not None
    loaded = run(engine.states.get(LINE, run(engine.lines.find(LINE, "02"))))
    run(engine.states.nodes(LINE, loaded, ws.load_all([root.child])))
    leaf = ws.leaf(root.child)

    def confirmed(salt: bytes) -> set[str]:
        edit, _ = set_aside(diff_maps({}, state), salt)
        guesses = {
            "step": Step(header, edit).commit(salt),
            "value": pointer_to(engine.context.codec.pack(LARGE), salt).digest,
            "node": encode_node(leaf, salt)[0],
        }
        return {name for name, guess in guesses.items() if guess in clear}

    assert confirmed(salt_of(store)) == {"step", "value", "node"}  # the control
    for salt in (NO_SALT, new_salt(), salt_of(store)[::-1]):
        assert confirmed(salt) == set()


def test_copies_keep_the_salt_and_all_hashes(backends: Backends) -> None:
    store = store_on(backends(), fold_every=3)
    fill(store)
    store.thread("t").fork("side", at="04")
    store.thread("t").put({"answer": "no"}, branch="side")
    expected = salt_of(store), hashes(store)
    copy = store_on(backends(), fold_every=3)
    store.maintenance.copy_to(copy)
    file = io.BytesIO()
    store.maintenance.export(file)
    imported = store_on(backends(), fold_every=3)
    file.seek(0)
    imported.maintenance.import_(file)
    run(CheckpointStore(store).copy("t", "renamed"))
    for target, name in ((copy, "t"), (imported, "t"), (store, "renamed")):
        assert (salt_of(target, name), hashes(target, name)) == expected
        target.thread(name).put({"later": True})
        target.maintenance.compact(name)
        target.maintenance.prune(name, keep_last=2)
        assert salt_of(target, name) == expected[0]
        assert target.maintenance.verify(level="decode").findings == []
    store.thread("t").put({"goes": "on"}, id="99")
    fresh = store_on(backends(), fold_every=3)
    fresh.thread("t").put({"another": "thread"})
    with pytest.raises(ConflictError):
        store.maintenance.copy_to(fresh)


@pytest.mark.parametrize("steps", mostly_nightly([2, 8], daily=[8]), ids=["short", "folded"])
@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
def test_a_line_that_lost_its_row_gets_its_salt_back(backends: Backends, steps: int, pruned: bool, lost: bool) -> None:
    on = backends()
    store = store_on(on, fold_every=3)
    fill(store, steps=steps)
    if pruned:
        store.maintenance.prune("t", keep_last=1)
    expected = salt_of(store), hashes(store)
    if lost:
        run(on.apply([Delete(LINES, tuple(LINE))]))
    else:
        damage(on, LINES)
    store = store_on(on, fold_every=3)
    assert not store.maintenance.verify().ok
    assert store.maintenance.repair().lost == []
    assert (salt_of(store), hashes(store)) == expected
    assert store.maintenance.verify(level="decode").damage == []
    store.thread("t").put({"goes": "on"})
    assert store.maintenance.verify(level="decode").damage == []


def test_verifying_checks_every_name(backends: Backends) -> None:
    """With another salt, all names are wrong: so each of them is compared with the content."""
    on = backends()
    store = store_on(on, fold_every=3)
    fill(store)
    info = run(store._engine.lines.info(LINE))
    run(store._engine.context.backend.apply([Put(LINES, info_row(LINE, info._replace(salt=new_salt())))]))
    spaces = {each.space for each in store_on(on, fold_every=3).maintenance.verify().damage}
    assert spaces >= {"steps", "nodes", "objects"}
    with pytest.raises(CorruptError, match="not the one its id names"):
        check_node(b"x" * 20, b"node", info.salt)
    with pytest.raises(CorruptError, match="no salt"):
        info_row(LINE, info._replace(salt=b""))


def test_equal_large_values_of_two_threads_do_not_differ(backends: Backends) -> None:
    store = store_on(backends(), fold_every=3)
    for name in ("t", "u"):
        store.thread(name).put({"report": LARGE, "list": [LARGE, 1], "who": name})
        for _ in range(3):
            store.thread(name).update({"n": 1})
            store.thread(name).update({"n": 2})
    assert [each.path for each in store.thread("t").diff("HEAD", other="u")] == [("who",)]
    store.thread("u").update({"report": LARGE + "more"})
    assert [each.path for each in store.thread("t").diff("HEAD", other="u")] == [("report",), ("who",)]  # the control
    assert not list(store.thread("t").diff("HEAD", state=store.thread("t").get().state))
