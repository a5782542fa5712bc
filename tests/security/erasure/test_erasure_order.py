"""Histories in which a person is erased and comes back: a copy, a restore and an import have what was stored after the
erasure, and nothing from before, as a model says that knows only the order of what was done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import ConflictError
from holdfast.maintenance.erasure.finder import SubjectFinder
from holdfast.store.store import Store
from tests.support.nightly import mostly_nightly

_PERSON, _OTHER = "u-1", "u-2"
_KEY = generate_key()
_ENCRYPTION: dict[str, Callable[[], Encryption | None]] = {
    "clear": lambda: None,
    "encrypted": lambda: Encryption(LocalKeys(_KEY)),
    "hidden names": lambda: Encryption(LocalKeys(_KEY), hide_names=True),
}


def _open(url: str | Path, kind: str) -> Store:
    encryption = _ENCRYPTION[kind]()
    return holdfast.open(url) if encryption is None else holdfast.open(url, encryption=encryption)


class _Item(NamedTuple):
    """Something that was stored: what, under which name, and whose it is."""

    kind: str
    name: str
    subjects: tuple[str, ...]


def _store_item(store: Store, item: _Item) -> None:
    subject = item.subjects[0] if len(item.subjects) == 1 else list(item.subjects)
    match item.kind:
        case "artifact":
            store.artifacts.register(f"of {item.name}".encode(), id=item.name, metadata={"subject": subject})
        case "large artifact":
            content = f"of {item.name}".encode() * 9000
            store.artifacts.register(content, id=item.name, metadata={"subject": subject})
        case "session":
            store.sessions.start(item.name, metadata={"subject": subject}, on_end="keep").state["of"] = item.name
        case "session of a user":
            store.sessions.start(item.name, user=item.subjects[0], on_end="keep").state["of"] = item.name
        case "thread":
            store.thread(item.name).put({"of": item.name}, metadata={"subject": subject})
        case "scope":
            store.state(user=item.subjects[0], agent=item.name)["of"] = item.name


_KINDS = ("artifact", "large artifact", "session", "session of a user", "thread", "scope")
_SHARED = ("artifact", "large artifact", "session")


def _names(store: Store) -> set[str]:
    """Return the names of all items that a store has, after a look at what is in each."""
    found = {each.thread for each in store.threads()}
    assert all(store.thread(name).get().state == {"of": name} for name in found)
    for artifact in store.artifacts.list():
        assert store.artifacts.read(artifact.id).startswith(f"of {artifact.id}".encode())
        found.add(artifact.id)
    states = {str(each.scope): dict(store.state(each.scope).items()) for each in store.scopes()}
    # A session is there with its record: those are never set back, so that of a later one may be there, too.
    with_state = {scope.rpartition("session:")[2] for scope, state in states.items() if "session:" in scope and state}
    assert with_state <= {each.id for each in store.sessions.list()}
    return found | {str(state["of"]) for state in states.values() if state}


class _Model:
    """The items that were stored and the erasures, in their order."""

    def __init__(self) -> None:
        self.now = 0
        self.stored: dict[_Item, int] = {}
        self.erased: list[int] = [0]

    def has(self, then: int, known: int) -> set[str]:
        """Return the items of a moment, without those that were erased by another one."""
        erased = max(time for time in self.erased if time <= known)
        return {
            item.name
            for item, time in self.stored.items()
            if time <= then and (time > erased or _PERSON not in item.subjects)
        }


def _losses(findings: Iterable[object]) -> list[str]:
    """Return findings, but for what is left over: a moment between backups may have values of later checkpoints."""
    return [str(each) for each in findings if "orphan" not in str(each)]


@pytest.mark.parametrize("kind", mostly_nightly(_ENCRYPTION, daily=["hidden names"]))
@pytest.mark.parametrize("seed", mostly_nightly(range(30), daily=[1]))
def test_what_a_person_stores_after_an_erasure_stays_wherever_it_is_copied(
    seed: int, kind: str, tmp_path: Path
) -> None:
    rng, model, backups = random.Random(seed), _Model(), dict[str, int]()
    exports: dict[Path, int] = {}
    store, copy, elsewhere = (_open(tmp_path / f"{name}.db", kind) for name in ("store", "copy", "elsewhere"))
    repository = tmp_path / "backups"
    at_elsewhere = rng.randint(5, 25)
    for number in range(30):
        model.now = number + 1
        action = rng.choices(("store", "erase", "backup", "export", "copy"), (6, 1, 1, 1, 1))[0]
        if number == at_elsewhere:
            elsewhere.erasure.erase(_PERSON)
        if action == "store":
            item_kind = rng.choice(_KINDS)
            every = [(_PERSON,), (_OTHER,), *([(_OTHER, _PERSON)] if item_kind in _SHARED else [])]
            item = _Item(item_kind, f"item-{number}", rng.choice(every))
            _store_item(store, item)
            model.stored[item] = model.now
        elif action == "erase":
            store.erasure.erase(_PERSON)
            model.erased.append(model.now)
        elif action == "backup":
            backups[store.backups(repository).create().id] = model.now
        elif action == "export" and kind == "clear":
            store.maintenance.export(exported := tmp_path / f"{number}.jsonl", kinds="all")
            exports[exported] = model.now
        elif action == "copy":
            store.maintenance.copy_to(copy)
            assert _names(copy) == model.has(model.now, model.now)
    model.now += 1
    last = store.backups(repository).create().id
    backups[last] = model.now
    now = model.has(model.now, model.now)
    assert _names(store) == now
    for name, then in backups.items():
        with _open("memory://", kind) as new:
            new.backups(repository).restore(name)
            found = _names(new)
            assert found == model.has(then, model.now), (name, then)
            assert new.maintenance.verify(kinds="all").findings == []
    for file, then in exports.items():
        with _open("memory://", kind) as new:
            new.maintenance.import_(file, kinds="all")
            assert _names(new) == model.has(then, then)
    for _ in range(2):
        store.maintenance.copy_to(copy)
        assert _names(copy) == now
        assert _losses(copy.maintenance.verify(kinds="all").findings) == []
    assert _losses(store.backups(repository).drill().findings) == []
    # A store that erased the person on its own gets what was stored after that.
    store.maintenance.copy_to(elsewhere)
    expected = {
        item.name
        for item, time in model.stored.items()
        if item.name in now and (time > at_elsewhere or _PERSON not in item.subjects)
    }
    assert _names(elsewhere) == expected
    for each in (store, copy, elsewhere):
        each.close()


def test_a_drill_says_what_a_restore_would_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(kind, f"the {kind}", (_PERSON,)) for kind in _KINDS]
    with holdfast.open(tmp_path / "a.db") as store:
        _store_item(store, _Item("artifact", "before", (_PERSON,)))
        backups = store.backups(tmp_path / "backups")
        first = backups.create().id
        store.erasure.erase(_PERSON)
        for item in items:
            _store_item(store, item)
        backups.create()
        assert backups.drill().findings == backups.drill(first).findings == ()  # what was erased is gone here, too
        # As if the time of records said nothing of when they were stored.
        is_record = SubjectFinder.is_record

        def is_record_at_any_time(self: SubjectFinder, stored: object) -> bool:
            later = {key: value for key, value in stored.items() if key not in ("created", "started")}  # type: ignore[attr-defined]
            return is_record(self, later)

        monkeypatch.setattr(SubjectFinder, "is_record", is_record_at_any_time)
        named = {each.partition(":")[0] for each in backups.drill().findings}
        assert {"artifacts", "sessions"} <= named
        with holdfast.open("memory://") as new:
            new.backups(tmp_path / "backups").restore()
            assert _names(new) < _names(store)  # it would


def test_a_copy_to_a_store_with_records_of_its_own_says_what_to_do() -> None:
    with holdfast.open("memory://") as store, holdfast.open("memory://") as other:
        for kind in ("artifact", "session"):
            _store_item(store, _Item(kind, f"the {kind}", (_PERSON,)))
        other.erasure.erase(_PERSON)
        store.maintenance.copy_to(other)
        assert _names(other) == set()
        with pytest.raises(ConflictError, match="the record of artifacts has a checkpoint there") as caught:
            store.maintenance.copy_to(other)
        assert "␞" not in str(caught.value)
        assert "Copy to a new store" in caught.value.hint


def test_a_reason_that_is_given_after_an_erasure_is_copied() -> None:
    with holdfast.open("memory://") as store, holdfast.open("memory://") as copy:
        store.access.freeze(f"user:{_OTHER}", reason="of the other")
        store.erasure.erase(_PERSON)
        store.access.freeze(f"user:{_PERSON}", reason="given later")
        for _ in range(2):
            store.maintenance.copy_to(copy)
            assert copy.access.frozen() == store.access.frozen()
        assert "given later" in str(copy.access.frozen())
