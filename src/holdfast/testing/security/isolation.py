"""Runs the probes: an identity without rights gets nothing of another's, and every attempt is in the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.api.agents import Agents, AsyncAgents
from holdfast.agents.api.conversation import AsyncConversation, Conversation
from holdfast.agents.api.handle import AgentHandle, AsyncAgentHandle
from holdfast.agents.steps.api import AsyncSteps, AsyncTimers, Steps, Timers
from holdfast.backends.runtime.drivers import run
from holdfast.errors import DeniedError
from holdfast.state.api import StateTransaction
from holdfast.state.artifacts.api import Artifacts, AsyncArtifacts
from holdfast.state.scope_state import AsyncState, State
from holdfast.state.sessions.api import AsyncSession, AsyncSessions, Session, Sessions
from holdfast.state.sharing.api import AsyncSharing, Sharing
from holdfast.state.sharing.documents import AsyncDocument, Document
from holdfast.state.sharing.pipeline import AsyncPipeline, Pipeline
from holdfast.state.sharing.requests import AsyncRequests, Requests
from holdfast.state.sharing.topic import AsyncSubscription, AsyncTopic, Subscription, Topic
from holdfast.state.transactions import AsyncTransactionState, TransactionState
from holdfast.state.watcher import AsyncWatch, Watch
from holdfast.store.erasure import AsyncIdentityErasure, IdentityErasure
from holdfast.store.identity_view import AsyncIdentityView, IdentityView
from holdfast.store.redaction import AsyncIdentityRedaction, IdentityRedaction
from holdfast.store.store import Store
from holdfast.store.timeline.api import AsyncTimeline, Timeline
from holdfast.testing.security.probes import PROBES, QUIET, Probe
from holdfast.testing.security.world import KEY, SECRET, World, done

KINDS: dict[str, tuple[type, ...]] = {
    "acting": (IdentityView, AsyncIdentityView),
    "state": (State, AsyncState),
    "transaction": (StateTransaction,),
    "state in a transaction": (TransactionState, AsyncTransactionState),
    "watch": (Watch, AsyncWatch),
    "sharing": (Sharing, AsyncSharing),
    "topic": (Topic, AsyncTopic),
    "subscription": (Subscription, AsyncSubscription),
    "requests": (Requests, AsyncRequests),
    "pipeline": (Pipeline, AsyncPipeline),
    "document": (Document, AsyncDocument),
    "sessions": (Sessions, AsyncSessions),
    "session": (Session, AsyncSession),
    "artifacts": (Artifacts, AsyncArtifacts),
    "agents": (Agents, AsyncAgents),
    "agent": (PersistentAgent, AsyncPersistentAgent),
    "kept": (AgentHandle, AsyncAgentHandle),
    "steps": (Steps, AsyncSteps),
    "timers": (Timers, AsyncTimers),
    "conversation": (Conversation, AsyncConversation),
    "redaction": (IdentityRedaction, AsyncIdentityRedaction),
    "erasure": (IdentityErasure, AsyncIdentityErasure),
    "timeline": (Timeline, AsyncTimeline),
}
"""The classes of each kind of object that an identity is given: the sync and the async form."""

_DUNDERS = [
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__contains__",
    "__iter__",
    "__len__",
    "__eq__",
    "__call__",
    "__next__",
    "__aiter__",
    "__anext__",
    "__enter__",
    "__aenter__",
]


def public(cls: type) -> set[str]:
    """Return the names through which a class can be used."""
    found = {name for name in dir(cls) if not name.startswith("_")}
    own = [vars(each) for each in cls.__mro__ if each is not object]
    return found | {name for name in _DUNDERS if any(each.get(name) is not None for each in own)}


def has(kind: str, name: str, acting: object) -> bool:
    """Return whether the form for sync or for asyncio has the name."""
    forms = KINDS[kind]
    form = forms[-1] if isinstance(acting, AsyncIdentityView) else forms[0]
    return name in public(form) or name == "scope"


def check_denied(world: World, probe: Probe, acting: IdentityView | AsyncIdentityView) -> None:
    """Check that a probe is denied, and that the attempt is in the audit."""
    count = len(world.tries())
    try:
        got = done(lambda act: probe(world, act), acting)
    except (DeniedError, LookupError) as error:
        assert SECRET not in str(error), "the error contains the secret"
    except Exception as error:
        raise AssertionError(f"the probe was not denied, but ended in {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"the probe was not denied, and returned {got!r}")
    assert len(world.tries()) > count, "the attempt is not in the audit"


def check_isolation(store: Store, folder: Path, *, kinds: Iterable[str] = tuple(KINDS)) -> int:
    """Try to read and to change what the agent `victim` has as the agent `intruder`, through every public function.

    Both are created in the store, with a thread, a session, an artifact and more; so use one for tests, opened as your
    program opens it: with its policies, hooks and encryption. `kinds` are those of the objects that are used, such as
    `state` and `agents`; by default all. Return the number of attempts. `AssertionError` names those that succeeded,
    that changed something, or that are not in the audit.
    """
    world, failed, count = World(store, folder), list[str](), 0
    chosen = frozenset(kinds)

    def attempt(kind: str, name: str, acting: Any, check: Callable[[], None]) -> None:
        nonlocal count
        count += 1
        try:
            check()
        except AssertionError as error:  # all are tried, and then reported
            failed.append(f"{kind}.{name} of {type(acting).__name__}: {error}")

    for kind, name, probe, acting in _attempts(QUIET, world, chosen):
        attempt(kind, name, acting, partial(_check_quiet, world, probe, acting))
    store.access.revoke(store.access.grant("agent:intruder", ["read", "write"], "agent:victim"))  # a stale grant
    before = world.heads()

    for kind, name, probe, acting in _attempts(PROBES, world, chosen):
        attempt(kind, name, acting, partial(check_denied, world, probe, acting))
        attempt(kind, name, acting, partial(_check_unchanged, world, before))
    run(world.astore._flush_audit())
    assert not (folder / "stolen").exists(), "an artifact was saved"
    assert store.audit.verify().ok
    assert not failed, "\n".join(failed)
    return count


def _check_quiet(world: World, probe: Probe, acting: IdentityView | AsyncIdentityView) -> None:
    shown = repr(done(partial(probe, world), acting))
    assert SECRET not in shown, "it returns the secret"
    assert "victim" not in shown, "it returns names"


def _check_unchanged(world: World, before: dict[str, str]) -> None:
    assert world.heads() == before, "something was changed"
    assert world.store.state(agent="victim")[KEY] == SECRET


def _attempts(
    table: Mapping[str, Mapping[str, Probe]], world: World, kinds: frozenset[str]
) -> Iterator[tuple[str, str, Probe, Any]]:
    """Yield the kind, the name and the probe of each, and who tries."""
    for kind, probes in table.items():
        for name, probe in probes.items() if kind in kinds else ():
            for acting in (world.intruder, world.aintruder):
                if has(kind, name, acting):
                    yield kind, name, probe, acting
