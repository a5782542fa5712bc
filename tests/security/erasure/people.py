"""A store with the data of two persons, everywhere that data can be; and what is left of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.agents import PersistentAgent
from holdfast.backends.interface import Scan
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, TABLES
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import DeniedError
from holdfast.security.encryption.key_rows import KeyRow
from holdfast.security.encryption.store_keys import subject_digest
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.security.encryption.planted import _expanded

KINDS = {
    "message",
    "large",
    "metadata",
    "write",
    "branch",
    "assigned",
    "state",
    "session",
    "sessionstate",
    "artifact",
    "artifactmeta",
    "content",
    "deleted",
    "agent",
    "group",
    "groupkey",
    "late",
    "topic",
    "document",
    "global",
    "key",
    "step",
    "freeze",
    "noted",
}
"""Where words are planted."""

_PLANTED = re.compile(rb"planted-(u-[12])-([a-z]+)")


class Notes(PersistentAgent, name="erasure-notes"):
    """An agent with a field."""

    text: str = ""


def plant_few(store: Store) -> None:
    """Save data of both, in the most usual places."""
    store.thread("group").put({"messages": ["ours"]})
    for user in ("u-1", "u-2"):
        store.thread(f"{user} chat").put({"text": f"planted-{user}-message."}, metadata={"subject": user})
        store.thread(f"{user} file").put({"text": f"planted-{user}-assigned."})
        store.erasure.set_subject(user, f"{user} file")
        store.state(user=user)["note"] = f"planted-{user}-state."
        before = store.thread("group").get().state["messages"]
        store.thread("group").put({"messages": [*before, f"planted-{user}-group."]}, metadata={"subject": user})


def few_states(store: Store, user: str) -> Mapping[str, Any]:
    """Return what a person has of it."""
    return {
        "chat": [(each.id, each.hash) for each in store.thread(f"{user} chat").log()],
        "state": dict(store.state(user=user).items()),
        "texts": [store.thread(f"{user} {name}").get().state for name in ("chat", "file")],
        "group": [each for each in store.thread("group").get().state["messages"] if user in each or each == "ours"],
    }


def plant(store: Store) -> None:
    """Save data of `u-1` and of `u-2`, wherever data can be."""
    store.hooks.before("state.set", record=True, inline=True, name="watch")(lambda _: None)
    store.hooks.after("state.set", record=True, name="follow")(lambda _: None)
    store.hooks.before("state.set", inline=True, name="note", scope="global", key="shared")(
        lambda call: call.note(old=repr(call.old))
    )
    for number, user in enumerate(("u-1", "u-2")):
        plant_own(store, user)
        plant_shared(store, user, number)
    for name in ("group", "late"):
        store.thread(name).put({**store.thread(name).get().state, "owner": "nobody's"})
    assert store.hooks.drain(30)


def plant_own(store: Store, user: str) -> None:
    """Save what is a person's alone."""

    def word(kind: str) -> str:
        return f"planted-{user}-{kind}."

    chat = store.thread(f"{user} chat")
    for number in range(3):
        chat.put(
            {"messages": [{"role": "user", "content": word("message")}] * (number + 1), "large": word("large") * 9000},
            metadata={"subject": user, "about": word("metadata")},
        )
    Checkpointer(store).put_writes(f"{user} chat", chat.get().id, [("out", word("write"))], task_id="t")
    chat.fork("other")
    chat.put({"n": word("branch")}, branch="other")
    store.thread(f"{user} file").put({"text": word("assigned")})
    store.erasure.set_subject(user, f"{user} file")
    state = store.state(user=user, agent="writer")
    state["note"] = word("state")
    state["note"] = "later"
    state[word("key")] = 1
    store.access.freeze(f"user:{user}/agent:writer", reason=word("freeze"))
    store.access.unfreeze(f"user:{user}/agent:writer")
    session = store.sessions.start(f"s {user}", user=user, metadata={"about": word("session")})
    session.state["seen"] = word("sessionstate")
    store.artifacts.register(word("artifact").encode() * 2, metadata={"subject": user, "about": word("artifactmeta")})
    store.artifacts.register(word("content").encode() * 3000, metadata={"subject": user})
    gone = store.artifacts.register(word("deleted").encode() * 400, metadata={"subject": user})
    store.artifacts.delete(gone.id)
    agent = Notes().attach(store, f"notes {user}")
    agent.metadata["subject"] = user
    agent.text = word("agent")
    agent.save()
    agent.once(word("step"), lambda: 1)


def plant_shared(store: Store, user: str, number: int) -> None:
    """Save what a person wrote where others write, too."""

    def word(kind: str) -> str:
        return f"planted-{user}-{kind}."

    group = store.thread("group")
    before = group.get().state["messages"] if number else []
    group.put({"messages": [*before, {"content": word("group")}], user: word("groupkey")}, metadata={"subject": user})
    late = store.thread("late")
    if not number:
        late.put({"messages": ["ours"]})
    late.put({"messages": [*late.get().state["messages"], word("late")]}, metadata={"subject": user})
    for each in ("topic/news", "document/page", "requests/help"):
        store.access.grant(f"user:{user}", ["read", "write"], custom=each)
    me = store.as_identity(user=user)
    store.sharing.topic("news").publish(f"ours {number}")
    me.sharing.topic("news").publish(word("topic"))
    page = me.sharing.document("page")
    page.edit(lambda text: f"{text}{word('document')}. ", default="")
    store.sharing.document("page").edit(lambda text: f"{text}Ours. ", default="")
    store.access.grant(f"user:{user}", ["read", "write"], "global")
    me.state()[f"by {user}"] = word("global")
    me.state()["shared"] = word("noted")
    store.state()["shared"] = "ours"  # the note about it has what was there before


def opened_rows(store: Store) -> Iterator[bytes]:
    """Yield everything in all tables of a store, decrypted with all the keys that it has."""
    context = store._engine.context
    for table in TABLES:
        for row in run(context.stored.read([Scan(table, ())]))[0]:
            try:
                opened = context.rows.decode(table, row)
            except DeniedError:  # nobody has the key any more
                opened = row
            yield repr((opened.key, opened.columns)).encode()
            yield opened.body


def found_in(data: Iterable[bytes]) -> dict[str, set[str]]:
    """Return what is to be found of each person, also inside of compressed parts and of records."""
    found: dict[str, set[str]] = {"u-1": set(), "u-2": set()}
    for each in data:
        for part in _expanded(each):
            for user, kind in _PLANTED.findall(part):
                found[user.decode()].add(kind.decode())
    return found


def states_of(store: Store, user: str) -> Mapping[str, Any]:
    """Return everything of a person, as the API has it."""
    chat = store.thread(f"{user} chat")
    mine = [each for each in store.artifacts.list() if each.metadata.get("subject") == user]
    return {
        "log": [(each.id, each.hash, each.metadata) for each in chat.log()],
        "chat": [chat.get(at=each.id).state for each in chat.log()],
        "writes": chat.pending_writes(),
        "file": store.thread(f"{user} file").get().state,
        "state": dict(store.state(user=user, agent="writer").items()),
        "artifacts": [(each, store.artifacts.read(each.id)) for each in mine],
        "agent": store.agents.load(f"notes {user}").fields,
        "topic": [each.value for each in store.sharing.topic("news").read() if each.actor == f"user:{user}"],
        "group": [each for each in store.thread("group").get().state["messages"] if user in each["content"]],
        "late": [each for each in store.thread("late").get().state["messages"] if user in each],
        "session": (store.sessions.get(f"s {user}").metadata, dict(store.sessions.get(f"s {user}").state.items())),
        "global": store.state()[f"by {user}"],
    }


def collect_garbage(store: Store) -> None:
    """Delete what files and object storage keep for other readers, as if the time for that had passed."""
    backend: Any = store._engine.context.stored
    while isinstance(backend, Wrapper):
        backend = backend.inner
    if isinstance(backend, ObjectStoreBackend):
        for _ in range(3):
            run(backend._run_once(lambda: backend._opened().garbage_collector.tidy(0)))


def by_subject(store: Store, user: str) -> set[str]:
    """Return the lines whose keys are encrypted by the key of a person."""
    rows: Any = store._engine.context.rows
    keys, tenant = rows.store_keys, run(rows.store_keys.require_tenant(""))
    found = run(keys.backend.read([Scan(KEYS, ())]))[0]
    by = subject_digest(tenant, user)
    return {row.line for row in map(KeyRow.of, found) if row.subject == by}
