"""A store that looks like one of an agent at work, for pages to show."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import holdfast
from holdfast.access import Policy
from holdfast.agents import Machine
from holdfast.backends import run
from holdfast.errors import HoldfastError
from holdfast.savers import CheckpointStore
from holdfast.schemas import Migration, Schema, SchemaSet, add
from tests.interfaces.web.recorded_graph import record_run
from tests.interfaces.web.recorded_hooks import record_hooks

QUESTIONS = (
    "What is a holdfast?",
    "How does kelp stay on the rock in a storm?",
    "Which animals live between the branches of a holdfast?",
    "Can you find a source from after 2015?",
)
ANSWERS = (
    "A holdfast is what anchors kelp to the rock. Unlike a root, it takes up **no nutrients**.",
    "It grips with many branched fingers, the `haptera`. They grow down and out, each around some roughness of the "
    "stone:\n\n```text\nblade\n  stipe\n    holdfast  (haptera)\n```",
    "Brittle stars, worms, small crabs and juvenile mussels: up to 70 species in one holdfast.",
    "Yes: Teagle et al. (2017) reviewed kelp as habitat formers.",
)


def messages_of(turn: int) -> list[dict[str, Any]]:
    """The messages of a turn: a question, a call of a tool, its result and an answer."""
    number = turn % len(QUESTIONS)
    usage = {"prompt_tokens": 300 + 40 * turn, "completion_tokens": 20 + number}
    call = {"id": f"call-{turn}", "name": "search", "args": {"query": QUESTIONS[number][:24], "limit": 3}}
    return [
        {"role": "user", "content": QUESTIONS[number]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{turn}", "content": f"3 results for turn {turn}: [a, b, c]"},
        {"role": "assistant", "content": ANSWERS[number], "model": "kelp-2", "usage": usage},
    ]


_TALK = 600
"""After so many steps, no further message is added."""

NODES = ("input", "agent", "tools", "agent")


def fill_thread(store: holdfast.Store, name: str, steps: int, forks: int = 2) -> None:
    """A conversation of so many steps, with forks, a merge, tags, and an interrupt at its end."""
    thread, said = store.thread(name), list[dict[str, Any]]()
    for step in range(steps):
        id, metadata, done = f"{step:08}", {"node": NODES[step % 4]}, step // 4
        if step < _TALK:
            said.append(messages_of(done)[step % 4])
            plan = {"goal": "explain holdfasts", "done": done, "open": ["sources", "summary"]}
            budget = {"tokens": 40_000 - 28 * done, "currency": "EUR"}
            thread.put({"messages": said, "plan": plan, "budget": budget}, id=id, metadata=metadata)
        else:  # the rest only counts: to save thousands of steps takes long enough
            thread.update({"budget.tokens": 40_000 - step}, id=id, metadata=metadata)
    for number in range(forks):
        at = f"{steps * (number + 2) // (forks + 3):08}"
        branch = ("what-if", "shorter", "other")[number % 3] + ("" if number < 3 else str(number))
        thread.fork(branch, at=at, changes={"plan.goal": f"answer in {number + 1} sentences"})
        for more in range(3):
            store.thread(name).update({"plan.done": 1000 + more}, branch=branch, metadata={"node": "agent"})
    if forks:
        thread.merge("what-if", strategy="ours")
    thread.tag("asked", f"{steps // 2:08}")
    thread.label("reviewed", f"{steps - 2:08}")
    head = thread.get().id
    question = [(-3, "__interrupt__", "May I send this answer to the customer?")]  # numbered as LangGraph's savers do
    run(CheckpointStore(store).put_writes(name, head, question, task_id="3f0c-approve", status="waiting"))
    result = [(0, "messages", {"role": "assistant"})]
    run(CheckpointStore(store).put_writes(name, head, result, task_id="77aa-draft"))


def fill_statuses(store: holdfast.Store) -> None:
    """Threads of graphs: one waits for an answer, one failed, one has the result of a tool that failed."""
    from tests.interfaces.web.waiting_graphs import run_graphs

    run_graphs(store)


HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def fill_odd(store: holdfast.Store) -> None:
    """Threads with markup in every field, text in other directions, a long text, and values of many types."""
    calls = [{"id": "1", "name": HOSTILE, "args": {HOSTILE: HOSTILE}}]
    images = ["https://evil.example/x.png", "data:image/svg+xml;base64,PHN2Zz4="]
    state = {
        "messages": [
            {"role": "user", "content": HOSTILE, "name": HOSTILE},
            {"role": "assistant", "content": "مرحبا، كيف حالك؟ 👋🏽", "tool_calls": calls},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": each}} for each in images]},
            {
                "role": "assistant",
                "content": [
                    {"type": "reasoning", "reasoning": HOSTILE},
                    {"type": "file", "filename": HOSTILE},
                    {"type": "server_tool_use", "name": HOSTILE, "input": HOSTILE},
                    {"type": HOSTILE, HOSTILE: HOSTILE},
                    {
                        "type": "text",
                        "text": f"# {HOSTILE}\n```{HOSTILE}\n{HOSTILE}\n```\n[x](javascript:x)",
                    },
                ],
                "model": HOSTILE,
                "usage": {"input_tokens": HOSTILE, "output_tokens": 3},
            },
        ],
        HOSTILE: {HOSTILE: HOSTILE},
        "text": "A long text. " * 20_000,
        "none": None,
        "yes": True,
        "number": 12.5,
        "empty": [],
        "bytes": b"\x00\x01",
    }
    thread = store.thread(HOSTILE)
    thread.put(state, metadata={"node": HOSTILE, HOSTILE: HOSTILE}, id="c1")
    thread.update({"text": HOSTILE, "yes": False}, id="c2")
    thread.tag("<i>tag", "c1")
    thread.label(HOSTILE, "c1")
    thread.fork("<i>branch", at="c1")
    thread.pin("c1", reason=HOSTILE)
    store.state(agent=HOSTILE).set(HOSTILE, HOSTILE)
    store.state(agent=HOSTILE).set(HOSTILE, [HOSTILE])
    store.sessions.start(HOSTILE, user=HOSTILE, metadata={HOSTILE: HOSTILE}).state[HOSTILE] = HOSTILE
    made = store.artifacts.register(
        b"x", id="odd", type=HOSTILE, producer=HOSTILE, name=HOSTILE, metadata={HOSTILE: HOSTILE}
    )
    with store.artifacts.using(made.id):
        store.state(agent=HOSTILE).set("linked", 1)
    store.hooks.before("state.set", name=HOSTILE, record="full")(lambda call: HOSTILE)
    store.state(agent=HOSTILE).set("hooked", [HOSTILE])
    store.hooks.remove(HOSTILE)
    store.jobs.add(HOSTILE, "verify", schedule="0 3 * * *")
    store.runs.submit(HOSTILE, [HOSTILE], graph=HOSTILE)
    odd = f"user:{quote(HOSTILE, safe='')}"
    store.access.grant(odd, "read", thread=HOSTILE)
    store.access.grant(odd, "read", odd, keys=HOSTILE)
    store.access.join(HOSTILE, odd)
    store.access.define_role(HOSTILE, Policy().allow("read", HOSTILE, keys=HOSTILE))
    store.access.assign(HOSTILE, odd)
    store.access.freeze(odd, reason=HOSTILE)
    store.access.issue_token(odd, name=HOSTILE)
    store.thread("of-nobody").put({HOSTILE: 1}, metadata={"subject": HOSTILE})
    agent = Baker().attach(store, HOSTILE)
    agent.start()
    agent.conversation.append({"role": HOSTILE, "content": HOSTILE})
    agent.transition("knead", 1)
    fill_steps(store, agent, HOSTILE[HOSTILE.index("<img") :])  # a name has no slash


class Baker(holdfast.agents.PersistentAgent, name="web-baker", on_incomplete="manual"):
    """An agent with a machine, one of whose transitions a crash can interrupt."""

    loaves: int = 0

    machine = Machine("idle", "kneading", "baking", "cooling", "closed", final=["closed"])
    machine.add("knead", "idle", "kneading", action="mix")
    machine.add("rest", "kneading", "kneading")
    machine.add("bake", "kneading", "baking", action="heat")
    machine.add("cool", "baking", "cooling")
    machine.add("sell", "cooling", "idle")
    machine.add("close", "*", "closed")

    def mix(self, count: int) -> None:
        self.loaves += count
        self.conversation.append({"role": "user", "content": f"{count} loaves, please"})
        self.conversation.append({"role": "assistant", "content": f"I knead the dough of **{self.loaves}** loaves."})

    def heat(self, degrees: int) -> None:
        if degrees < 0:
            raise KeyboardInterrupt  # as if the process ended here
        if degrees < 200:
            raise ValueError("the oven is cold")


def charge(amount: float) -> dict[str, float]:
    """A step: one that is done, one that fails, and one whose process ends."""
    if amount < 0:
        raise KeyboardInterrupt  # as if the process ended here
    if amount > 100:
        raise ValueError("the card was declined: its limit is 100 EUR")
    return {"paid": amount}


def fill_steps(store: holdfast.Store, agent: holdfast.agents.PersistentAgent, name: str = "") -> None:
    """Durable steps of each outcome, timers and waiting signals; all with a name, if one is given."""
    agent.once(name or "charge-42", charge, 9.5)
    with contextlib.suppress(KeyboardInterrupt):
        agent.once(f"{name}2" if name else "charge-43", charge, -1.0)
    with contextlib.suppress(ValueError):
        agent.once(f"{name}3" if name else "charge-44", charge, 900.0)
    agent.timers.set(name or "reminder", "2h")
    agent.timers.set(f"{name}2" if name else "give-up", "7d", value=name)
    store.agents.signal(agent.id, name or "approved", {"by": name or "Ada"}, id=f"{name}approval-42")


def fill_agents(store: holdfast.Store) -> None:
    """Agents in several states; one failed a transition, and one was interrupted by a crash."""
    for number in range(4):
        baker = Baker().attach(store, f"baker-{number}")
        baker.start()
        for day in range(number + 1):
            baker.transition("knead", 12 + day)
            baker.transition("rest")
            try:
                baker.transition("bake", 180 if day == 1 else 230)
            except ValueError:
                baker.transition("bake", 230)
            baker.transition("cool")
            if day < number:
                baker.transition("sell")
        if number == 3:
            fill_steps(store, baker)
    crashed = Baker().attach(store, "baker-crashed")
    crashed.start()
    crashed.transition("knead", 3)
    with contextlib.suppress(KeyboardInterrupt):
        crashed.transition("bake", -1)


class NoteV1(TypedDict):
    """The first form of notes."""

    text: str


class NoteV2(TypedDict):
    """The second form of notes."""

    text: str
    language: str


def fill_rest(store: holdfast.Store, backups: Path) -> None:
    """State of scopes, sessions, artifacts, schemas with a migration, backups with a drill, jobs and denials."""
    plan = store.state(agent="researcher")
    for number in range(4):
        plan["plan"] = {"goal": "tides", "done": number, "note": f"After {number} of 4 sources the tide is clear."}
    plan["sources"] = ["Teagle 2017", "Steneck 2002"]
    store.state(workflow="w1", step="fetch")["cursor"] = "page-12"
    store.state()["limits"] = {"tokens": 40_000}
    store.state(user="alice")["language"] = "en"
    with store.sessions.start("visit-1", user="alice", metadata={"channel": "web"}) as session:
        session.state["seen"] = 3
        report = store.artifacts.register(b"kelp,70\n", type="table", producer="researcher", name="species.csv")
        with store.artifacts.using(report.id):
            plan["table"] = report.id
    store.sessions.start("visit-2", user="bob").state["cart"] = ["dulse"]
    schemas = SchemaSet(
        Schema("note", "1.0.0", NoteV1),
        Schema("note", "2.0.0", NoteV2),
        Migration("note", "1.0.0", "2.0.0", add("language", default="en")),
    )
    store.schemas.attach(schemas, "note@1.0.0", threads="note-*")
    for number in range(3):
        store.thread(f"note-{number}").put({"text": f"note {number}"})
    store.schemas.up(schemas, "note")
    repository = store.backups(backups)
    repository.create(reason="before the storm")
    repository.schedule("every 1h")
    store.thread("support-0").put({"count": 100})
    repository.create()
    repository.drill()
    store.jobs.add("nightly", "verify", schedule="0 3 * * *")
    store.jobs.run("nightly")
    store.jobs.add("tidy", "prune", schedule="every 1d", settings={"keep_last": 100})
    fill_access(store)
    with contextlib.suppress(HoldfastError):
        store.as_identity("user:eve").thread("chat-1").get()
    record_hooks(store)
    record_run(store)


def fill_access(store: holdfast.Store) -> None:
    """Rights of several kinds, a token, somebody who is frozen, and data of a person."""
    store.access.grant("user:bob", "read", thread="support-*", until="30d")
    store.access.grant("group:editors", ("read", "write"), agent="researcher", keys="plan*")
    store.access.revoke(store.access.grant("user:eve", "read", thread="chat-1"))
    store.access.join("editors", "user:alice", "agent:writer")
    store.access.define_role("auditor", Policy().deny("read", keys="secret/**").allow("read", "agent:*"))
    store.access.assign("auditor", "user:carol")
    store.access.freeze("user:eve", reason="case 17")
    store.access.issue_token("user:alice", until="30d", name="laptop")
    store.thread("visit-of-alice").put({"said": "good tide"}, metadata={"subject": "alice"})


VIEWS = {
    "overview": "/",
    "threads": "/threads",
    "search": "/search?q=haptera",
    "conversation": "/threads/chat-1",
    "state": "/threads/chat-1/00000050?tab=state",
    "diff": "/threads/chat-1/00000050?tab=diff&a=00000040",
    "pending": "/threads/chat-1?tab=pending",
    "waiting": "/threads/refund-17",
    "failed": "/threads/refund-18",
    "failed-tool": "/threads/weather-3",
    "failed-threads": "/threads?status=failed",
    "metadata": "/threads/chat-1?tab=metadata",
    "compare": "/compare/chat-1?a=shorter&b=main",
    "usage": "/usage",
    "inspect": "/threads/chat-1/00000050/inspect?path=plan.done",
    "scopes": "/state",
    "scope": "/state/agent%3Aresearcher",
    "key": "/state/agent%3Aresearcher/plan",
    "agents": "/agents",
    "agent": "/agents/baker-3",
    "incomplete": "/agents/baker-crashed",
    "sessions": "/sessions",
    "session": "/sessions/visit-1",
    "artifacts": "/artifacts",
    "artifact": "/artifacts/odd",
    "schemas": "/schemas?count=1",
    "schema": "/schemas/note%402.0.0",
    "backups": "/backups",
    "restore": "/backups?backup=1",
    "restore-in-place": "/backups?backup=1&in_place=1",
    "jobs": "/jobs",
    "job": "/jobs/nightly",
    "access": "/access",
    "grants": "/access/grants",
    "roles": "/access/roles",
    "tokens": "/access/tokens",
    "identity": "/access/identities/user%3Aalice",
    "person": "/access/persons?subject=alice",
    "audit": "/audit",
    "timeline": "/timeline",
    "hooks": "/hooks",
    "hook-statistics": "/hooks/statistics",
    "undelivered": "/hooks/undelivered",
    "recorded": "/threads/weather?tab=recording",
    "recording": "/threads/weather/HEAD/recording",
    "what-if": "/threads/weather/HEAD/recording?change=1%3Alook%230",
    "verify": "/verify?level=hashes",
    "metrics": "/metrics/plots",
}
"""An address of each view, of a store that `fill_store` filled."""


def find_call(store: holdfast.Store, hook: str = "limit_discount", outcome: str = "changed") -> str:
    """The address of a recorded call of a hook."""
    found = next(each for each in store.hooks.history(hook) if each.outcome == outcome)
    return f"/hooks/calls/{quote(found.reference, safe='')}"


_ODD = quote(HOSTILE, safe="")
ODD_VIEWS = (
    "/",
    "/threads",
    "/search?q=owned",
    f"/search?q={_ODD}",
    *(f"/threads/{_ODD}/c1{query}" for query in ("", "?tab=state", "?tab=metadata")),
    f"/threads/{_ODD}/c2?tab=diff&a=c1",
    f"/compare/{_ODD}?a={quote('<i>branch')}&b=main",
    f"/compare/{_ODD}?a=c1&b=c2",
    f"/threads/{_ODD}/c2/inspect?path=text",
    "/state",
    f"/state/agent%3A{quote(quote(HOSTILE, safe=''), safe='')}",
    f"/agents?prefix={_ODD}",
    f"/agents/{_ODD}",
    f"/sessions?user={_ODD}",
    f"/sessions/{_ODD}",
    f"/artifacts?type={_ODD}",
    "/artifacts/odd",
    "/jobs",
    f"/jobs/{_ODD}",
    "/runs",
    "/access",
    "/access/grants",
    "/access/roles",
    "/access/tokens",
    f"/access/identities/user%3A{quote(quote(HOSTILE, safe=''), safe='')}",
    f"/access/identities/group%3A{_ODD}",
    f"/access/persons?subject={_ODD}",
    f"/audit?thread={_ODD}",
    f"/timeline?thread={_ODD}",
    "/usage?by=model",
    "/usage?by=checkpoint",
    f"/usage?thread={_ODD}&where=haptera",
    "/hooks",
    "/hooks/statistics",
    f"/hooks/undelivered?hook={_ODD}",
    f"/hooks?hook={_ODD}&scope={_ODD}",
    f"/threads/{_ODD}/c1/recording?change={_ODD}&value={_ODD}&since={_ODD}",
    f"/verify?level=hashes&thread={_ODD}",
)
"""Addresses of what `fill_odd` made."""

ACTION_VIEWS = {
    "bulk-prune": "/bulk/prune?thread=chat-1&thread=support-0&keep_last=10",
    "schedule-job": "/jobs/nightly/schedule",
    "grant": "/access/actions/grant?to=user%3Abob&place=thread%3Asupport-*",
    "issue-token": "/access/actions/issue-token?identity=user%3Aalice",
    "erase": "/access/actions/erase?subject=alice",
    "fork": "/threads/chat-1/00000050/actions/fork?branch=retry",
    "edit": "/threads/chat-1/00000050/actions/edit?branch=retry&path=plan.goal&value=%22rest%22",
    "restore-step": "/threads/chat-1/00000050/actions/restore",
    "merge": "/threads/chat-1/00000050/actions/merge?theirs=shorter",
    "prune": "/threads/chat-1/00000050/actions/prune?keep_last=10",
    "resolve-step": "/agents/baker-3/steps/charge-43/resolve?how=retry",
    "cancel-timer": "/agents/baker-3/timers/give-up/cancel",
    "signal": "/agents/baker-3/signal?name=approved&value=no",
}
"""An address of some actions, of the same store where it may be changed."""


def fill_store(store: holdfast.Store, folder: Path) -> None:
    """Everything that pages show."""
    fill_thread(store, "chat-1", 120)
    fill_odd(store)
    for number in range(3):
        store.thread(f"support-{number}").put({"count": number})
    fill_statuses(store)
    fill_agents(store)
    fill_rest(store, folder / "backups")
