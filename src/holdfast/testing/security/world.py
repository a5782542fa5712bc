"""A store with an agent that has secrets, and one that wants them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.runtime.drivers import run
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import AUDIT
from holdfast.security.audit.query import AuditRecord
from holdfast.state.sessions.api import Session
from holdfast.state.sharing.requests import Request
from holdfast.store.identity_view import AsyncIdentityView, IdentityView
from holdfast.store.store import AsyncStore, Store

SECRET = "the launch code is 0000"
KEY = "plan"


class Spy(PersistentAgent, name="holdfast.testing: spy"):
    """Has a secret."""

    secret: str = ""
    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy")


class AsyncSpy(AsyncPersistentAgent, name="holdfast.testing: async spy"):
    """Has a secret, for asyncio."""

    secret: str = ""
    machine = Spy.machine


class World:
    """The victim is `agent:victim`, the intruder `agent:intruder`. Both have something of every kind.

    They are written to the store when a world is made: it must have no agents of these names. Files go to the folder.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.folder = folder
        self.store = store
        self.astore: AsyncStore = AsyncStore(store._engine, store.tenant)
        self.victim: IdentityView = self.store.as_identity(agent="victim")
        self.victim.thread("victim").put({KEY: SECRET})
        self.intruder: IdentityView = self.store.as_identity(agent="intruder")
        self.aintruder: AsyncIdentityView = self.astore.as_identity(agent="intruder")
        self.victim.state(agent="victim").batch({KEY: SECRET, "notes": {"code": SECRET}})
        self.intruder.state(agent="intruder")["mine"] = 1
        topic = self.victim.sharing.topic("news", agent="victim")
        topic.subscribe("reader", start="start").receive(0)
        topic.publish(SECRET)
        requests = self.victim.sharing.requests("help", agent="victim")
        self.asked: str = requests.ask(SECRET)
        self.request: Request | None = requests.take()
        self.waiting: str = requests.ask(SECRET)
        pipeline = self.victim.sharing.pipeline("work", ["one", "two"], agent="victim")
        pipeline.put_many([SECRET, SECRET])
        task = pipeline.take("one")
        assert task is not None
        self.task = task
        self.victim.sharing.document("text", agent="victim").edit(lambda _: SECRET)
        self.session: Session = self.store.sessions.start(
            "s1", user="victim", on_end="archive", metadata={"about": SECRET}
        )
        self.session.state[KEY] = SECRET
        ended = self.store.sessions.start("s2", user="victim", on_end="archive")
        ended.state[KEY] = SECRET
        ended.end()
        agent = self.victim.agents.create(Spy, "victim")
        agent.secret = SECRET
        agent.metadata["about"] = SECRET
        agent.conversation.append(SECRET)
        agent.save()
        self.document: dict[str, Any] = self.victim.agents.export("victim")
        self.intruder.agents.create(Spy, "intruder")
        self.victim.artifacts.register(SECRET.encode(), id="blob")
        with self.victim.artifacts.using("blob"):
            self.victim.state(agent="victim")["made"] = SECRET

    def heads(self) -> dict[str, str]:
        """Return where every line ends but that of the audit: what changes when anything is written."""
        lines = run(self.store._engine.lines.names(self.store.tenant, MARK))
        points = {line.name: run(self.store._engine.lines.latest_step(line)) for line in lines if line.name != AUDIT}
        return {name: point.hash.hex() for name, point in points.items() if point is not None}

    def tries(self) -> list[AuditRecord]:
        """Return what the intruder was denied."""
        run(self.astore._flush_audit())
        return self.store.audit.query(actor="agent:intruder", kind="denied", limit=10_000)

    def close(self) -> None:
        self.store.close()


def done(probe: Callable[[Any], Any], acting: IdentityView | AsyncIdentityView) -> Any:
    """Return the result of a probe, awaited and iterated."""
    if isinstance(acting, IdentityView):
        return _drained(probe(acting))

    async def awaiting() -> Any:
        value = probe(acting)
        while inspect.isawaitable(value):
            value = await value
        if hasattr(value, "__aiter__"):
            return [await anext(aiter(value))]
        return _drained(value)

    return asyncio.run(awaiting())


def _drained(value: Any) -> Any:
    return [next(value)] if isinstance(value, Iterator) else value
