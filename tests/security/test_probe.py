"""Nothing of another's is had through any public function, and every try is in the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DeniedError, HoldfastError, InvalidError
from holdfast.security.access.policy import Policy, Right
from holdfast.state.scope_state import State
from holdfast.store.catalogue import store_parts
from holdfast.testing.security.isolation import KINDS, check_denied, has, public
from holdfast.testing.security.names import HOSTILE_NAMES
from holdfast.testing.security.probes import HARMLESS, PROBES, QUIET, spy
from holdfast.testing.security.world import KEY, SECRET, World, done
from tests.state.kit import Clock, store_on
from tests.support.nightly import mostly_nightly

_CONTROLS = {chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0xD800, 0xE000))}


def make_world(folder: Path) -> World:
    return World(store_on(MemoryBackend(), Clock()), folder)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.close()


def known(kind: str) -> set[str]:
    return {*PROBES[kind], *QUIET.get(kind, ()), *HARMLESS.get(kind, ())}


def test_every_public_name_is_probed(subtests: pytest.Subtests) -> None:
    for kind, classes in KINDS.items():
        for cls in classes:
            with subtests.test(cls.__name__):
                assert public(cls) - known(kind) == set(), "say in holdfast/testing/security/probes.py how it is probed"


def test_a_function_that_nobody_thought_of_is_found() -> None:
    class Leaky(State):
        def peek(self) -> None:
            """Not probed."""

    assert public(Leaky) - known("state") == {"peek"}


def test_nothing_leads_back_to_the_store(world: World) -> None:
    for acting in (world.intruder, world.aintruder):
        for name in (
            "engine",
            "tenant",
            "put",
            "get",
            "log",
            "access",
            "audit",
            "as_identity",
            "hooks",
            "delete",
        ):
            assert not hasattr(acting, name)


_OWN_RULES = {"redaction.reveal", "erasure.erase"}
"""Operations that need a right to every thread of a person, or where a token is: their own tests have these."""


@pytest.mark.nightly
def test_the_rights_that_are_declared_are_the_ones_that_are_needed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    every = get_args(Right)
    tried = 0
    for part in store_parts().values():
        for operation in part.operations() if part.name in PROBES else ():
            probe = PROBES[part.name].get(operation.name)
            if operation.owner_only or probe is None or f"{part.name}.{operation.name}" in _OWN_RULES:
                continue
            others = [each for each in every if each not in operation.rights]
            with subtests.test(f"{part.name}.{operation.name}"):
                assert not _is_denied(probe, tmp_path, operation.rights), "it needs more than it declares"
                assert _is_denied(probe, tmp_path, others), "it needs less than it declares"
                tried += 1
    assert tried > 50


def _is_denied(probe: Callable[..., Any], folder: Path, rights: Iterable[Any]) -> bool:
    with closing(make_world(folder)) as world:
        acting = world.store.as_identity("agent:intruder", mode="custom", policy=Policy().allow(rights))
        try:
            done(partial(probe, world), acting)
        except DeniedError:
            return True
        except HoldfastError:
            return False  # allowed, and not possible: nothing there to change
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_gets_nothing(world: World, kind: str, subtests: pytest.Subtests) -> None:
    given = world.store.access.grant("agent:intruder", ["read", "write"], "agent:victim")  # a stale one: revoked since
    world.store.access.revoke(given)
    before = world.heads()
    for name, probe in PROBES[kind].items():
        with subtests.test(name):
            for acting in (world.intruder, world.aintruder):
                if has(kind, name, acting):
                    check_denied(world, probe, acting)
            assert world.heads() == before
            assert world.store.state(agent="victim")[KEY] == SECRET
            assert not (world.folder / "stolen").exists()
    assert world.store.audit.verify().ok


def test_what_is_shown_to_a_stranger_has_nothing_of_it(world: World, subtests: pytest.Subtests) -> None:
    for kind, probes in QUIET.items():
        for name, probe in probes.items():
            with subtests.test(f"{kind}-{name}"):
                for acting in (world.intruder, world.aintruder):
                    if has(kind, name, acting):
                        shown = repr(done(partial(probe, world), acting))
                        assert SECRET not in shown
                        assert "victim" not in shown
    assert world.store.state(agent="victim")[KEY] == SECRET


# Names ------------------------------------------------------------------------------------------------------------


THIRD = pytest.mark.parametrize("third", mostly_nightly(range(3), daily=[0]))
"""The names are tried in three parts."""


@THIRD
def test_no_name_stands_for_anothers(third: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, name in [*HOSTILE_NAMES.items()][third::3]:
        with subtests.test(what), closing(make_world(tmp_path)) as world:
            check_others(world, name)


def check_others(world: World, name: str) -> None:
    """See that a name gives nothing of another's."""
    before = world.heads()
    uses: list[Any] = [
        lambda act: act.state(agent=name).get(KEY),
        lambda act: act.state(f"agent:{name}").get(KEY),
        lambda act: act.state(name).get(KEY),
        lambda act: act.state(agent="intruder", custom=name, user=name).get(KEY),
        lambda act: act.state(agent="victim").get(name),
        lambda act: act.state(agent="victim").set(name, "taken"),
        lambda act: act.grant("agent:intruder", ["read", "write"], f"agent:{name}"),
        lambda act: act.sharing.topic(name, agent="victim").read(),
        lambda act: act.agents.load(name),
        lambda act: act.agents.delete(name),
        lambda act: act.agents.attach(spy(act), name).save(),
    ]
    tries = world.tries()
    for acting in (world.intruder, world.aintruder):
        for use in uses:
            tried = len(tries)
            with pytest.raises((DeniedError, InvalidError)):
                done(use, acting)
            tries = world.tries()
            assert len(tries) > tried, "the try is not in the audit"
    assert all(len(each.scope) <= 1024 and not _CONTROLS & set(each.scope + each.key) for each in tries)
    assert world.heads() == before


@THIRD
def test_no_name_below_ones_own_is_anothers(third: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, name in [*HOSTILE_NAMES.items()][third::3]:
        with subtests.test(what), closing(make_world(tmp_path)) as world:
            check_own(world, name)


def check_own(world: World, name: str) -> None:
    """See that a name below one's own changes nothing of another's."""
    before = world.store.state(agent="victim").list_items()
    for use in (
        lambda act: act.state(agent="intruder", custom=name).set(KEY, "mine"),
        lambda act: act.state(f"agent:intruder/custom:{name}").set(KEY, "mine"),
        lambda act: act.state(agent="intruder").set(name, "mine"),
    ):
        try:
            done(use, world.intruder)
        except (InvalidError, DeniedError):
            continue
    assert world.store.state(agent="victim").list_items() == before
    for line in world.heads():
        assert "intruder" in line or "mine" not in repr(
            world.store.audit.query(actor="agent:intruder", scope=None, key=line)
        )
