"""Probes: for every public name of the objects that an identity is given, an attempt at another's state.

`PROBES` has, for each kind of object, an attempt for each of its names; `HARMLESS` the names through which nothing of
another's can be had, and why. A name that is in neither fails the suite: whoever adds a public function says here how
it is probed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, TypeAlias

from holdfast.agents.definition.builder import persistent
from holdfast.engine.model.scopes import Scope
from holdfast.state.artifacts.api import ArtifactSource
from holdfast.store.identity_view import IdentityView
from holdfast.testing.security.world import KEY, AsyncSpy, Spy, World

Probe: TypeAlias = Callable[[World, Any], Any]

VICTIM: dict[str, Any] = {"agent": "victim"}


def _state(act: Any) -> Any:
    return act.state(**VICTIM)


def _mine(act: Any) -> Any:
    return act.state(agent="intruder")


def _pinned(act: Any) -> Any:
    """One's own state, made to be another's."""
    state = _mine(act)
    state.scope = Scope.of(**VICTIM)
    return state


def _then(value: Any, use: Callable[[Any], Any]) -> Any:
    """Use what comes, awaited where it must be."""
    if isinstance(value, Awaitable):

        async def following() -> Any:
            return use(await value)

        return following()
    return use(value)


def _all(items: Any) -> Any:
    """Everything of an iterable, or of an async one."""
    if not isinstance(items, AsyncIterable):
        return list(items)

    async def gathered() -> list[Any]:
        return [item async for item in items]

    return gathered()


def _inside(is_sync: bool, block: Any, use: Callable[[Any], Any]) -> Any:
    """Use what a block gives, in `with` or in `async with`."""
    if is_sync:
        with block as entered:
            return use(entered)

    async def following() -> Any:
        async with block as entered:
            value = use(entered)
            return await value if isinstance(value, Awaitable) else value

    return following()


def _is_sync(act: Any) -> bool:
    return isinstance(act, IdentityView)


def _within(act: Any, use: Callable[[Any], Any]) -> Any:
    """Do something in a transaction, with the victim's state."""
    return _inside(_is_sync(act), act.transaction(), lambda together: use(together.state(**VICTIM)))


def _transacted(act: Any) -> Any:
    if _is_sync(act):
        return act.transaction(lambda together: together.state(**VICTIM)[KEY])

    async def read(together: Any) -> Any:
        return await together.state(**VICTIM).get(KEY)

    return act.transaction(read)


def _watch(act: Any, use: Callable[[Any], Any]) -> Any:
    return use(_state(act).watch())


def _topic(act: Any) -> Any:
    return act.sharing.topic("news", **VICTIM)


def _subscribed(act: Any, use: Callable[[Any], Any]) -> Any:
    return _then(_topic(act).subscribe("reader", start="start"), use)


def _requests(act: Any) -> Any:
    return act.sharing.requests("help", **VICTIM)


def _pipeline(act: Any) -> Any:
    return act.sharing.pipeline("work", ["one", "two"], **VICTIM)


def _document(act: Any) -> Any:
    return act.sharing.document("text", **VICTIM)


def _session(world: World, act: Any) -> Any:
    """A session that somebody handed over."""
    return type(act.sessions)._session_class(act._handle, "s1", world.session._record, "active")


def _using(act: Any) -> Any:
    return _inside(_is_sync(act), act.artifacts.using("blob"), lambda _: None)


def _ended(world: World, act: Any) -> Any:
    return _inside(_is_sync(act), _session(world, act), lambda session: session.touch())


def spy(act: Any) -> Any:
    """An agent that nobody has yet."""
    return Spy() if _is_sync(act) else AsyncSpy()


def _agent(act: Any, status: str = "created") -> Any:
    """An agent of one's own that is said to be the victim's; and to be where it is not."""
    agent = spy(act).attach(act, "victim")
    agent.persister.data.status = status
    return agent


def _stored(act: Any) -> Any:
    """An agent of one's own that takes the victim's messages for its own."""
    agent = _agent(act)
    agent.persister.point = act._handle.engine.lines.cached_tip(agent.persister.line.line).point
    agent.persister.data.conversation.reset(1, 1, agent.persister.read_messages)
    return agent


def _kept(act: Any) -> Any:
    return act.agents.attach(Plain(), "victim")


def _within_agent(agent: Any) -> Any:
    block = _inside(isinstance(agent, Spy), agent.change_block(), lambda _: setattr(agent, "secret", "taken"))
    return _then(block, lambda _: agent.save())


@persistent(name="holdfast.testing: plain spy")
class Plain:
    """Inherits nothing."""

    secret: str = ""


def _begun(agent: Any) -> Any:
    return agent.__enter__() if hasattr(agent, "__enter__") else agent.__aenter__()


_AGENT: dict[str, Callable[[Any], Any]] = {
    "__enter__": _begun,
    "__aenter__": _begun,
    "fail": lambda agent: agent.fail("taken"),
    "once": lambda agent: agent.once("charge-1", str),
    "sleep": lambda agent: agent.sleep(0.01, key="nap"),
    "sleep_until": lambda agent: agent.sleep_until("1s", key="nap"),
    "steps": lambda agent: agent.steps.list(),
    "timers": lambda agent: agent.timers.list(),
    "wait_for": lambda agent: agent.wait_for("approved", timeout=0),
    "flush": lambda agent: agent.flush(),
    "recover": lambda agent: _then(agent.reload(), lambda _: agent.recover("back")),
    "reload": lambda agent: agent.reload(),
    "rollback": lambda agent: agent.rollback(1),
    "save": lambda agent: agent.save(),
    "start": lambda agent: agent.start(),
    "stop": lambda agent: agent.stop(),
    "resume": lambda agent: agent.resume(),
    "transfer": lambda agent: agent.transfer("intruder", accept=True),
}

_STORED: dict[str, Callable[[Any], Any]] = {
    "all": lambda said: said.all(),
    "get": lambda said: said.get(0),
    "last": lambda said: said.last(1),
    "search": lambda said: said.search("code"),
    "slice": lambda said: said.slice(0, 1),
    "summarize": lambda said: said.summarize("taken"),
    "window": lambda said: said.window(max_messages=1),
    "__getitem__": lambda said: said[0] if hasattr(said, "__iter__") else said.get(0),
    "__iter__": iter,
    "__aiter__": aiter,
}


def _each(uses: dict[str, Callable[[Any], Any]], made: Callable[[Any], Any]) -> dict[str, Probe]:
    """A probe for each way to use what an identity makes."""

    def probe(use: Callable[[Any], Any]) -> Probe:
        return lambda _, act: use(made(act))

    return {name: probe(use) for name, use in uses.items()}


PROBES: dict[str, dict[str, Probe]] = {
    "acting": {
        "state": lambda _, act: _state(act).get(KEY),
        "transaction": lambda _, act: _transacted(act),
        "grant": lambda _, act: act.grant("agent:intruder", ["read", "write"], **VICTIM),
        "revoke": lambda world, act: act.revoke(world.store.access.grants(dead=True)[0]),
        "sharing": lambda _, act: _topic(act).read(),
        "sessions": lambda _, act: act.sessions.get("s1"),
        "redaction": lambda _, act: act.redaction.reveal("[token:x]", **VICTIM),
        "erasure": lambda _, act: act.erasure.erase("victim"),
        "artifacts": lambda _, act: act.artifacts.get("blob"),
        "agents": lambda _, act: act.agents.load("victim"),
        "thread": lambda _, act: act.thread("victim").put({KEY: "taken"}),
        "runs": lambda _, act: act.runs.submit("victim", {KEY: "taken"}, graph="any"),
    },
    "sharing": {
        "topic": lambda _, act: _topic(act).read(),
        "requests": lambda _, act: _requests(act).pending(),
        "pipeline": lambda _, act: _pipeline(act).stats(),
        "document": lambda _, act: _document(act).read(),
    },
    "state": {
        "at": lambda _, act: _state(act).at(1),
        "batch": lambda _, act: _state(act).batch({KEY: "taken"}),
        "change": lambda _, act: _state(act).change(KEY, lambda value: value),
        "clear": lambda _, act: _state(act).clear(),
        "copy_to": lambda _, act: _state(act).copy_to(_mine(act)),
        "delete": lambda _, act: _state(act).delete(KEY),
        "diff": lambda _, act: _state(act).diff(0),
        "expire": lambda _, act: _state(act).expire(KEY, 1),
        "get": lambda _, act: _state(act).get(KEY),
        "get_at": lambda _, act: _state(act).get_at(KEY, 1),
        "has": lambda _, act: _state(act).has(KEY),
        "count": lambda _, act: _state(act).count(),
        "history": lambda _, act: _state(act).history(KEY),
        "item": lambda _, act: _state(act).item(KEY),
        "items": lambda _, act: _first(_state(act).items()),
        "keys": lambda _, act: _first(_state(act).keys()),
        "values": lambda _, act: _first(_state(act).values()),
        "list_items": lambda _, act: _state(act).list_items(),
        "list_keys": lambda _, act: _state(act).list_keys(),
        "move_to": lambda _, act: _mine(act).move_to(_state(act)),
        "patch": lambda _, act: _state(act).patch("notes", {"code": "taken"}),
        "increment": lambda _, act: _state(act).increment("count"),
        "append": lambda _, act: _state(act).append("list", "taken"),
        "add_to_set": lambda _, act: _state(act).add_to_set("set", "taken"),
        "max": lambda _, act: _state(act).max("max", "taken"),
        "pop": lambda _, act: _state(act).pop(KEY),
        "popitem": lambda _, act: _state(act).popitem(),
        "rollback": lambda _, act: _state(act).rollback(1),
        "set": lambda _, act: _state(act).set(KEY, "taken"),
        "setdefault": lambda _, act: _state(act).setdefault("new", "taken"),
        "update": lambda _, act: _state(act).update({KEY: "taken"}),
        "watch": lambda _, act: _watch(act, lambda watch: watch.poll()),
        "scope": lambda _, act: _pinned(act).set(KEY, "taken"),
        "__getitem__": lambda _, act: _state(act)[KEY],
        "__setitem__": lambda _, act: _state(act).__setitem__(KEY, "taken"),
        "__delitem__": lambda _, act: _state(act).__delitem__(KEY),
        "__contains__": lambda _, act: KEY in _state(act),
        "__iter__": lambda _, act: iter(_state(act)),
        "__len__": lambda _, act: len(_state(act)),
        "__eq__": lambda _, act: _state(act) == {},
    },
    "transaction": {
        "state": lambda _, act: _within(act, lambda state: state.get(KEY)),
        "__enter__": lambda _, act: _within(act, lambda state: state.set(KEY, "taken")),
        "__aenter__": lambda _, act: _within(act, lambda state: state.delete(KEY)),
    },
    "state in a transaction": {
        "get": lambda _, act: _within(act, lambda state: state.get(KEY)),
        "has": lambda _, act: _within(act, lambda state: state.has(KEY)),
        "set": lambda _, act: _within(act, lambda state: state.set(KEY, "taken")),
        "delete": lambda _, act: _within(act, lambda state: state.delete(KEY)),
        "__getitem__": lambda _, act: _within(act, lambda state: state[KEY]),
        "__setitem__": lambda _, act: _within(act, lambda state: state.__setitem__(KEY, "taken")),
        "__delitem__": lambda _, act: _within(act, lambda state: state.__delitem__(KEY)),
        "__contains__": lambda _, act: _within(act, lambda state: KEY in state),
        "change": lambda _, act: _within(act, lambda state: state.change(KEY, lambda value: value, "taken")),
        "increment": lambda _, act: _within(act, lambda state: state.increment("count")),
        "append": lambda _, act: _within(act, lambda state: state.append("list", "taken")),
        "add_to_set": lambda _, act: _within(act, lambda state: state.add_to_set("set", "taken")),
        "max": lambda _, act: _within(act, lambda state: state.max("max", "taken")),
        "patch": lambda _, act: _within(act, lambda state: state.patch(KEY, {"taken": 1})),
        "expire": lambda _, act: _within(act, lambda state: state.expire(KEY, 1)),
        "list_keys": lambda _, act: _within(act, lambda state: state.list_keys()),
        "keys": lambda _, act: _within(act, lambda state: _all(state.keys())),
        "items": lambda _, act: _within(act, lambda state: _all(state.items())),
        "values": lambda _, act: _within(act, lambda state: list(state.values())),
        "pop": lambda _, act: _within(act, lambda state: state.pop(KEY)),
        "popitem": lambda _, act: _within(act, lambda state: state.popitem()),
        "setdefault": lambda _, act: _within(act, lambda state: state.setdefault(KEY, "taken")),
        "update": lambda _, act: _within(act, lambda state: state.update({KEY: "taken"})),
        "clear": lambda _, act: _within(act, lambda state: state.clear()),
        "__iter__": lambda _, act: _within(act, list),
        "__len__": lambda _, act: _within(act, len),
        "__eq__": lambda _, act: _within(act, lambda state: state == {}),
    },
    "watch": {
        "start": lambda _, act: _watch(act, lambda watch: watch.start()),
        "poll": lambda _, act: _watch(act, lambda watch: watch.poll()),
        "__iter__": lambda _, act: _watch(act, iter),
        "__next__": lambda _, act: _watch(act, next),
        "__aiter__": lambda _, act: _watch(act, aiter),
        "__anext__": lambda _, act: _watch(act, anext),
        "__enter__": lambda _, act: _watch(act, lambda watch: watch.__enter__().poll()),
        "__aenter__": lambda _, act: _watch(act, lambda watch: _then(watch.__aenter__(), lambda each: each.poll())),
    },
    "topic": {
        "count": lambda _, act: _topic(act).count(),
        "delete": lambda _, act: _topic(act).delete(),
        "publish": lambda _, act: _topic(act).publish("taken"),
        "read": lambda _, act: _topic(act).read(),
        "subscribe": lambda _, act: _subscribed(act, lambda each: each.receive(0)),
        "subscribers": lambda _, act: _topic(act).subscribers(),
        "trim": lambda _, act: _topic(act).trim(older_than=1),
        "unsubscribe": lambda _, act: _topic(act).unsubscribe("reader"),
    },
    "subscription": {
        "ack": lambda _, act: _subscribed(act, lambda each: each.ack()),
        "deliver": lambda _, act: _subscribed(act, lambda each: each.deliver(lambda _: None, timeout=0)),
        "lag": lambda _, act: _subscribed(act, lambda each: each.lag()),
        "receive": lambda _, act: _subscribed(act, lambda each: each.receive(0)),
        "receive_many": lambda _, act: _subscribed(act, lambda each: each.receive_many(timeout=0)),
        "rewind": lambda _, act: _subscribed(act, lambda each: each.rewind()),
        "__iter__": lambda _, act: _subscribed(act, iter),
        "__next__": lambda _, act: _subscribed(act, next),
        "__aiter__": lambda _, act: _subscribed(act, aiter),
        "__anext__": lambda _, act: _subscribed(act, anext),
    },
    "requests": {
        "answer": lambda world, act: _requests(act).answer(world.request, "taken"),
        "ask": lambda _, act: _requests(act).ask("taken", timeout=0.1),
        "call": lambda _, act: _requests(act).call("taken", timeout=0.1),
        "cancel": lambda world, act: _requests(act).cancel(world.waiting),
        "extend": lambda world, act: _requests(act).extend(world.request),
        "fail": lambda world, act: _requests(act).fail(world.request, "taken"),
        "pending": lambda _, act: _requests(act).pending(),
        "serve": lambda _, act: _requests(act).serve(lambda _: "taken", timeout=0, limit=1),
        "take": lambda _, act: _requests(act).take(),
        "trim": lambda _, act: _requests(act).trim(keep=1),
        "wait": lambda world, act: _requests(act).wait(world.asked, timeout=0.1),
    },
    "pipeline": {
        "dead": lambda _, act: _pipeline(act).dead(),
        "done": lambda world, act: _pipeline(act).done(world.task, "taken"),
        "extend": lambda world, act: _pipeline(act).extend(world.task),
        "fail": lambda world, act: _pipeline(act).fail(world.task, "taken"),
        "forget": lambda world, act: _pipeline(act).forget([world.task.id]),
        "put": lambda _, act: _pipeline(act).put("taken"),
        "put_many": lambda _, act: _pipeline(act).put_many(["taken"]),
        "requeue": lambda world, act: _pipeline(act).requeue(world.task.id),
        "results": lambda _, act: _pipeline(act).results(),
        "stats": lambda _, act: _pipeline(act).stats(),
        "take": lambda _, act: _pipeline(act).take("one"),
        "trim": lambda _, act: _pipeline(act).trim(keep=1),
        "work": lambda _, act: _pipeline(act).work("one", lambda item: item, timeout=0, limit=1),
    },
    "document": {
        "delete": lambda _, act: _document(act).delete(),
        "edit": lambda _, act: _document(act).edit(lambda value: value),
        "history": lambda _, act: _document(act).history(),
        "read": lambda _, act: _document(act).read(),
        "patch": lambda _, act: _document(act).patch({"taken": 1}),
        "save": lambda _, act: _document(act).save("taken", 0),
        "wait": lambda _, act: _document(act).wait(0, 0),
    },
    "sessions": {
        "archived": lambda _, act: act.sessions.archived("s2"),
        "collect": lambda _, act: act.sessions.collect(),
        "delete": lambda _, act: act.sessions.delete("s1"),
        "end": lambda _, act: act.sessions.end("s1"),
        "get": lambda _, act: act.sessions.get("s1"),
        "resume": lambda _, act: act.sessions.resume("s2"),
        "start": lambda _, act: act.sessions.start("s3", user="victim"),
        "touch": lambda _, act: act.sessions.touch("s1"),
        "update": lambda _, act: act.sessions.update("s1", {"about": "taken"}),
    },
    "session": {
        "end": lambda world, act: _session(world, act).end(),
        "touch": lambda world, act: _session(world, act).touch(),
        "state": lambda world, act: _session(world, act).state.get(KEY),
        "__enter__": _ended,
        "__aenter__": _ended,
    },
    "artifacts": {
        "changes": lambda _, act: act.artifacts.changes("blob"),
        "delete": lambda _, act: act.artifacts.delete("blob"),
        "get": lambda _, act: act.artifacts.get("blob"),
        "of": lambda _, act: act.artifacts.of("agent:victim"),
        "open": lambda _, act: act.artifacts.open("blob"),
        "read": lambda _, act: act.artifacts.read("blob"),
        "save": lambda world, act: act.artifacts.save("blob", world.folder / "stolen"),
        "using": lambda _, act: _using(act),
        "verify": lambda _, act: act.artifacts.verify("blob"),
    },
    "agents": {
        "attach": lambda _, act: act.agents.attach(spy(act), "victim").save(),
        "create": lambda _, act: act.agents.create("holdfast.testing: spy", "victim"),
        "delete": lambda _, act: act.agents.delete("victim"),
        "diff": lambda _, act: act.agents.diff("victim"),
        "exists": lambda _, act: act.agents.exists("victim"),
        "machine": lambda _, act: act.agents.machine("victim"),
        "prune_steps": lambda _, act: act.agents.prune_steps("0s", agent="victim"),
        "export": lambda _, act: act.agents.export("victim"),
        "history": lambda _, act: act.agents.history("victim"),
        "import_": lambda world, act: act.agents.import_(world.document),
        "load": lambda _, act: act.agents.load("victim"),
        "messages": lambda _, act: act.agents.messages("victim"),
        "record_transition": lambda _, act: act.agents.record_transition("victim", "idle", "busy"),
        "resolve": lambda _, act: act.agents.resolve("victim", "back"),
        "restore": lambda _, act: act.agents.restore("victim"),
        "rollback": lambda _, act: act.agents.rollback("victim", 1),
        "save_state": lambda _, act: act.agents.save_state("victim", state="taken"),
        "signal": lambda _, act: act.agents.signal("victim", "approved"),
        "steps": lambda _, act: act.agents.steps("victim").list(),
        "timers": lambda _, act: act.agents.timers("victim").list(),
        "transfer": lambda _, act: act.agents.transfer("victim", "intruder", accept=True),
        "transfer_many": lambda _, act: act.agents.transfer_many({"victim": "intruder"}, accept=True),
        "transfers": lambda _, act: act.agents.transfers("victim"),
        "transitions": lambda _, act: act.agents.transitions("victim"),
    },
    "agent": {
        **_each(_AGENT, lambda act: _agent(act)),
        "attach": lambda _, act: spy(act).attach(act, "victim").reload(),
        "change_block": lambda _, act: _within_agent(_agent(act)),
        "pause": lambda _, act: _agent(act, "running").pause(),
        "transition": lambda _, act: _agent(act).transition("work"),
    },
    "kept": _each(_AGENT, _kept),
    "steps": {
        "get": lambda _, act: act.agents.steps("victim").get("charge-1"),
        "list": lambda _, act: act.agents.steps("victim").list(),
        "once": lambda _, act: act.agents.steps("victim").once("charge-1", str),
        "resolve": lambda _, act: act.agents.steps("victim").resolve("charge-1", result=1),
        "signals": lambda _, act: act.agents.steps("victim").signals(),
        "version": lambda _, act: act.agents.steps("victim").version("new-pricing"),
    },
    "timers": {
        "cancel": lambda _, act: act.agents.timers("victim").cancel("reminder"),
        "list": lambda _, act: act.agents.timers("victim").list(),
        "set": lambda _, act: act.agents.timers("victim").set("reminder", "1h"),
    },
    "conversation": _each(_STORED, lambda act: _stored(act).conversation),
    "redaction": {"reveal": lambda _, act: act.redaction.reveal("[token:x]", **VICTIM)},
    "erasure": {"erase": lambda _, act: act.erasure.erase("victim")},
    "timeline": {"causes": lambda _, act: act.timeline.causes(key=KEY, scope="agent:victim")},
}

QUIET: dict[str, dict[str, Probe]] = {
    "acting": {
        "scopes": lambda _, act: act.scopes(),
        "grants": lambda _, act: act.grants(dead=True),
        "granted": lambda _, act: act.granted(dead=True),
        "threads": lambda _, act: act.threads(),
        "changes": lambda _, act: act.changes(),
        "search": lambda _, act: list(act.search("launch")) if _is_sync(act) else None,
        "usage": lambda _, act: act.usage(by="thread"),
        "timeline": lambda _, act: list(act.timeline.query("launch")) if _is_sync(act) else None,
    },
    "timeline": {
        "query": lambda _, act: list(act.timeline.query()) if _is_sync(act) else None,
        "effects": lambda world, act: _effects(world, act) if _is_sync(act) else None,
    },
    "sessions": {"list": lambda _, act: act.sessions.list(user="victim")},
    "artifacts": {
        "list": lambda _, act: act.artifacts.list(producer="agent:victim"),
        "register": lambda _, act: act.artifacts.register(b"mine", id="mine"),
        "register_many": lambda _, act: act.artifacts.register_many([ArtifactSource(b"mine", id="mine too")]),
    },
    "agents": {
        "unsaved": lambda _, act: act.agents.unsaved(),
        "list": lambda _, act: act.agents.list(),
        "metrics": lambda _, act: act.agents.metrics(),
    },
}
"""Tries that are no try at anything of the victim's: they succeed, and must have nothing of it to show."""

_IN_HAND = dict.fromkeys(
    (
        "autosave_error",
        "mark_changed",
        "update_field",
        "configuration",
        "context",
        "conversation",
        "id",
        "persister",
        "metadata",
        "metrics",
        "recoveries",
        "state",
        "status",
        "tools",
        "version",
        "workflow",
    ),
    "what one has in memory oneself",
)

HARMLESS: dict[str, dict[str, str]] = {
    "acting": {"identity": "who one is", "mode": "how one acts"},
    "transaction": {"written": "what one has written oneself"},
    "state in a transaction": {"scope": "a name that one gave"},
    "watch": {
        "cursor": "text that says where one is",
        "close": "ends one's own watch",
        "scope": "a name that one gave",
    },
    "artifacts": {"Source": "the form of what one registers"},
    "topic": {"scope": "a name that one gave"},
    "subscription": {"cursor": "where one is oneself"},
    "requests": {"scope": "a name that one gave"},
    "pipeline": {"scope": "a name that one gave"},
    "document": {"scope": "a name that one gave"},
    "agent": {
        **_IN_HAND,
        **dict.fromkeys(("handle_recovery", "machine", "persist", "restore", "validate"), "what its author wrote"),
    },
    "kept": {
        **_IN_HAND,
        **dict.fromkeys(("agent",), "what one attached oneself"),
        **dict.fromkeys(("change_block", "pause", "transition"), "as those of an agent"),
    },
    "conversation": {
        **dict.fromkeys(("append", "clear", "extend", "replace", "say"), "change only what is in memory"),
        **dict.fromkeys(("tokens", "__len__"), "counted in memory"),
    },
    "session": dict.fromkeys(
        ("by", "ended", "id", "metadata", "on_end", "owner", "reason", "scope", "started", "status", "user"),
        "what whoever handed it over had in hand",
    ),
}


def _effects(world: World, act: Any) -> str:
    """Return what is said about the effects of an event that may not be seen."""
    try:
        return repr(act.timeline.effects(world.store.timeline.query(scope="agent:victim")[0].id))
    except LookupError as error:
        return str(error)


def _first(several: Any) -> Any:
    return iter(several) if hasattr(several, "__iter__") else several
