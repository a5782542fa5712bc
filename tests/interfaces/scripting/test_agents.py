"""Agents, sessions and conversations in scripts: what a script changes is saved as in Python, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast.agents import Autosave, Machine, PersistentAgent, persistent
from holdfast.errors import DeniedError, HoldfastError, InvalidError, UnsupportedError, VetoError
from holdfast.schemas import Schema
from holdfast.scripts import Sandbox
from tests.support.cases import case


@dataclass
class Card:
    name: str
    due: date


class Planner(PersistentAgent, name="script-planner"):
    served: int = 0
    plan: dict[str, Any] = {}
    notes: list[Any] = []
    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy", action="note_work")

    def note_work(self, data: Any) -> None:
        self.context["worked"] = True
        self.plan["steps"] = 1


class Chooser(PersistentAgent, name="script-chooser"):
    """An agent that chooses its fields itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = {"total": 1}

    def persist(self) -> dict[str, Any]:
        return dict(self.inside)

    def restore(self, fields: Any) -> None:
        self.inside = dict(fields)


@persistent(name="script-plain")
@dataclass
class Plain:
    total: int = 1


class Total(TypedDict):
    total: int


class Strict(PersistentAgent, name="script-strict", schema=Schema("strict", "1.0.0", Total)):
    total: int = 0


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as made:
        yield made


@pytest.fixture(params=["lua", "javascript"])
def sandbox(request: pytest.FixtureRequest, store: holdfast.Store) -> Iterator[Sandbox]:
    with Sandbox(request.param, store) as made:
        yield made


def run(sandbox: Sandbox, lua: str, javascript: str, **args: Any) -> Any:
    return sandbox.run(lua if sandbox.language == "lua" else javascript, args=args)


def test_changes_of_an_agent_are_saved(store: holdfast.Store, sandbox: Sandbox) -> None:
    shown = run(
        sandbox,
        """
        local a = store.agents:create("script-planner", "a")
        a.served = a.served + 5
        a.context.topic = "tides"
        a.metadata.tier = {gold = true}
        table.insert(a.notes, "one")
        local plan = a.plan
        plan.goal = "read"
        a:save()
        plan.more = {1, 2}
        a.context.topic = nil
        a.context.deep = {list = {1, {b = 2}}}
        a.conversation:append("hello")
        a:save()
        a.context.deep.list[2].b = 3
        a:save()
        return {a.served, a.plan, a.notes, a.context, #a.conversation}
        """,
        """
        const a = await store.agents.create("script-planner", "a");
        a.served = await a.served + 5;
        (await a.context).topic = "tides";
        (await a.metadata).tier = {gold: true};
        (await a.notes).push("one");
        const plan = await a.plan;
        plan.goal = "read";
        await a.save();
        plan.more = [1, 2];
        delete (await a.context).topic;
        (await a.context).deep = {list: [1, {b: 2}]};
        await a.conversation.append("hello");
        await a.save();
        (await a.context).deep.list[1].b = 3;
        await a.save();
        return [await a.served, await a.plan, await a.notes, await a.context, await a.conversation.count()];
        """,
    )
    record = store.agents.load("a")
    plan, context = {"goal": "read", "more": [1, 2]}, {"deep": {"list": [1, {"b": 3}]}}
    assert shown == [5, plan, ["one"], context, 1]
    assert (record.fields["served"], record.fields["plan"], record.fields["notes"]) == (5, plan, ["one"])
    assert (record.context, record.metadata) == (context, {"tier": {"gold": True}})
    assert store.agents.messages("a") == ["hello"]
    second = store.agents.load("a", version=2)
    assert (second.fields["plan"], second.context) == ({"goal": "read"}, {"topic": "tides"})


def test_a_value_that_was_read_stays_the_agents(store: holdfast.Store, sandbox: Sandbox) -> None:
    """An action of the host changes what the script holds a copy of: both changes are kept, and seen."""
    seen = run(
        sandbox,
        """
        local a = store.agents:create("script-planner", "a")
        local plan, context = a.plan, a.context
        a:start()
        a:transition("work")
        plan.goal = "read"
        context.topic = "tides"
        local same = {a.plan == plan, a.context == context}
        local given = {n = 1}
        a.plan = given
        given.n = 2
        a:save()
        return {same, context.worked, a.plan == given, a.plan}
        """,
        """
        const a = await store.agents.create("script-planner", "a");
        const plan = await a.plan, context = await a.context;
        await a.start();
        await a.transition("work");
        plan.goal = "read";
        context.topic = "tides";
        const same = [await a.plan === plan, await a.context === context];
        const given = {n: 1};
        a.plan = given;
        given.n = 2;
        await a.save();
        return [same, context.worked, await a.plan === given, await a.plan];
        """,
    )
    assert seen == [[True, True], True, True, {"n": 2}]
    assert store.agents.load("a").context == {"worked": True, "topic": "tides"}
    assert store.agents.load("a").fields["plan"] == {"n": 2}


def test_objects_of_python_stay_what_they_are(store: holdfast.Store, sandbox: Sandbox) -> None:
    agent = store.agents.create(Planner, "a")
    agent.plan.update(card=Card("tides", date(2026, 1, 2)), pair=(1, 2), rate=1.0)
    agent.notes.extend([Card("moon", date(2026, 1, 3)), 1])
    agent.save()
    run(
        sandbox,
        """
        local a = store.agents:restore("a")
        a.plan.n = 1
        a.notes[2] = 2
        a:save()
        """,
        """
        const a = await store.agents.restore("a");
        (await a.plan).n = 1;
        (await a.notes)[1] = 2;
        await a.save();
        """,
    )
    fields = store.agents.load("a").fields
    assert fields["plan"] == {"card": Card("tides", date(2026, 1, 2)), "pair": (1, 2), "rate": 1.0, "n": 1}
    assert type(fields["plan"]["rate"]) is float
    assert fields["notes"] == [Card("moon", date(2026, 1, 3)), 2]


def test_agents_of_every_kind_have_fields(store: holdfast.Store, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for name in ("script-chooser", "script-plain", "script-strict"):
        with case(subtests, name):
            run(
                sandbox,
                "local a = store.agents:create(args.name, args.name) a.total = a.total + 6 a:save()",
                "const a = await store.agents.create(args.name, args.name); a.total = await a.total + 6; "
                "await a.save()",
                name=name,
            )
            assert store.agents.load(name).fields["total"] in (6, 7)
    with pytest.raises(InvalidError, match="it is str, not int"):
        run(
            sandbox,
            "local a = store.agents:restore('script-strict') a.total = 'many' a:save()",
            "const a = await store.agents.restore('script-strict'); a.total = 'many'; await a.save()",
        )


def test_what_was_changed_last_reaches_the_agent(store: holdfast.Store, sandbox: Sandbox) -> None:
    """Also without a call that follows: at the end of a script, and of a function; and of an agent given to a call."""
    agents = [store.agents.create(Planner, name) for name in ("giver", "taker")]
    set_topic = run(
        sandbox,
        """
        giver, taker = args.giver, args.taker
        return function(topic) giver.context.topic = topic end
        """,
        """
        globalThis.giver = args.giver; globalThis.taker = args.taker;
        return async (topic) => { (await giver.context).topic = topic };
        """,
        giver=agents[0],
        taker=agents[1],
    )
    set_topic("tides")
    assert agents[0].context == {"topic": "tides"}
    run(
        sandbox,
        "taker.context.mine = 1 giver:transfer(taker)",
        "(await taker.context).mine = 1; await giver.transfer(taker)",
    )
    assert store.agents.load("taker").context == {"mine": 1, "topic": "tides"}
    run(sandbox, "taker.plan.goal = 1", "(await taker.plan).goal = 1")
    assert agents[1].plan == {"goal": 1}


def test_a_field_that_is_set_is_written_through(store: holdfast.Store, sandbox: Sandbox) -> None:
    agent = store.agents.attach(Planner(), "a", autosave=Autosave(write_through=True))
    agent.start()
    run(sandbox, "args.agent.served = 3", "args.agent.served = 3", agent=agent)
    assert store.agents.load("a").fields["served"] == 3
    agent.stop()


def test_saves_of_a_script_meet_hooks_and_rights(store: holdfast.Store) -> None:
    writer = store.as_identity("agent:a")
    writer.agents.create(Planner, "a")
    store.agents.create(Planner, "b")
    for language in ("lua", "javascript"):
        with Sandbox(language, writer) as sandbox:
            with pytest.raises(DeniedError):
                run(
                    sandbox,
                    "return store.agents:restore('b').plan",
                    "return await (await store.agents.restore('b')).plan",
                )

            @store.hooks.before("agent.save")
            def refuse(call: Any) -> None:
                raise VetoError("no")

            with pytest.raises(VetoError):
                run(
                    sandbox,
                    "local a = store.agents:restore('a') a.served = 1 a:save()",
                    "const a = await store.agents.restore('a'); a.served = 1; await a.save()",
                )
            store.hooks.remove(refuse)
    assert store.agents.load("a").fields["served"] == 0


WRONG = (
    ("a:svae()", "await a.svae()", UnsupportedError, "Agent has no 'svae' in scripts. The nearest is 'save'"),
    ("a.conversation:apend(1)", "await a.conversation.apend(1)", UnsupportedError, "The nearest is 'append'"),
    ("store:state('agent:a'):lisst_keys()", "await store.state('agent:a').lisst_keys()", UnsupportedError, "list_keys"),
    (
        "store:thraed('t')",
        "await store.thraed('t')",
        UnsupportedError,
        "Store has no 'thraed'.*The nearest is 'thread'",
    ),
    ("store.agnets:list()", "await store.agnets.list()", UnsupportedError, "Store has no 'agnets'.*'agents'"),
    ("store.maintenance:export('f')", "await store.maintenance.export('f')", UnsupportedError, "files of the host"),
    (
        "holdfast.replay.rnu()",
        "await holdfast.replay.rnu()",
        UnsupportedError,
        "Replay has no 'rnu'.*The nearest is 'run'",
    ),
    ("return a.contxt", "return await a.contxt", UnsupportedError, "The nearest is 'context'"),
    ("a.serverd = 1", "a.serverd = 1", UnsupportedError, "Agent has no 'serverd'.*The nearest is 'served'"),
    ("a.context = {}", "a.context = {}", InvalidError, "Change its entries"),
    ("a.status = 'x'", "a.status = 'x'", InvalidError, "'status' of Agent cannot be set"),
    ("a.save = 1", "a.save = 1", InvalidError, "'save' of Agent cannot be set"),
    ("a.served = nil", "a.served = undefined", InvalidError, "is set to a value"),
    ("store.x = 1", "store.x = 1", InvalidError, "'x' of Store cannot be set"),
    ("s.status = 'x'", "s.status = 'x'", InvalidError, "'status' of Session cannot be set"),
    ("a.context.f = print a:save()", "(await a.context).f = print; await a.save()", UnsupportedError, "function"),
    ("return a.conversation[1]", "return await a.conversation[0]", UnsupportedError, "Conversation has no"),
    ("return #store", "return await store.length", UnsupportedError, "Store has no"),
)


def test_what_cannot_be_done_says_so(store: holdfast.Store, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    run(
        sandbox,
        "a, s = store.agents:create('script-planner', 'a'), store.sessions:start('s')",
        "Object.assign(globalThis, {a: await store.agents.create('script-planner', 'a'), "
        "s: await store.sessions.start('s')})",
    )
    for lua, javascript, kind, text in WRONG:
        with case(subtests, lua):
            with pytest.raises(HoldfastError, match=text) as caught:
                run(sandbox, lua, javascript)
            assert type(caught.value) is kind
            run(sandbox, "a.context.f = nil", "delete (await a.context).f")
    assert store.agents.load("a").version == 1


def test_javascript_says_what_to_await(store: holdfast.Store) -> None:
    store.agents.create(Planner, "a")
    with Sandbox("javascript", store) as sandbox:
        sandbox.run("globalThis.a = await store.agents.restore('a')")
        with pytest.raises(InvalidError, match="Await it first"):
            sandbox.run("a.plan.goal = 1")
        with pytest.raises(UnsupportedError, match="Await it first"):
            sandbox.run("await store.state('agent:a').set('n', a.served)")


def test_sessions_and_absent_fields(store: holdfast.Store, sandbox: Sandbox) -> None:
    shown = run(
        sandbox,
        """
        local s = store.sessions:start("s1", {metadata = {k = 1}})
        s.state:save("seen", {1})
        local names = {}
        for name in pairs(s) do names[name] = true end
        return {s.id, s.metadata, s.state:load("seen"), s.state:list_keys(), names.status, names.touch == nil}
        """,
        """
        const s = await store.sessions.start("s1", {metadata: {k: 1}});
        await s.state.save("seen", [1]);
        const names = Object.keys(s);
        return [s.id, s.metadata, await s.state.load("seen"), await s.state.list_keys(), names.includes("status"),
          !names.includes("touch")];
        """,
    )
    assert shown == ["s1", {"k": 1}, [1], ["seen"], True, True]
    run(
        sandbox,
        "store.hooks:before('state.set')(function(call) if call.old == nil then return 'new' end return 'old' end)",
        "await store.hooks.before('state.set')((call) => (call.old === undefined ? 'new' : 'old'))",
    )
    state = store.state("agent:a")
    for expected in ("new", "old"):
        state["k"] = 1
        assert state["k"] == expected


def test_a_run_that_fails_spoils_no_later_one(
    store: holdfast.Store, sandbox: Sandbox, subtests: pytest.Subtests
) -> None:
    store.agents.create(Planner, "a")
    run(
        sandbox,
        """
        a = store.agents:restore("a"); held = a.plan
        store.hooks:before("state.set", {name = "redact", key = "secrets/*"})(function(call) return "***" end)
        """,
        """
        globalThis.a = await store.agents.restore("a"); globalThis.held = await a.plan;
        await store.hooks.before("state.set", {name: "redact", key: "secrets/*"})((call) => "***");
        """,
    )
    store.agents.create(Planner, "b")
    causes = {
        "a function": ("a.plan.bad = function() end", "(await a.plan).bad = () => 1", "a function cannot be stored"),
        "a function in what it holds": ("held.bad = print", "held.bad = print", "a function cannot be stored"),
        "a cycle": ("a.plan.bad = a.plan", "(await a.plan).bad = await a.plan", "a value contains itself"),
        "with a good change": (
            "a.context.lost = 1; a.notes[1] = print",
            "(await a.context).lost = 1; (await a.notes)[0] = print",
            "a function cannot be stored",
        ),
        "an error of its own": ("a.plan.bad = 1; error('no')", "(await a.plan).bad = 1; throw Error('no')", "no"),
        "of an agent that it lets go": (
            'store.agents:restore("b").plan.bad = print',
            '(await (await store.agents.restore("b")).plan).bad = print',
            "a function cannot be stored",
        ),
    }
    if sandbox.language == "javascript":
        never = "(await a.plan).bad = print; await new Promise(() => {})"
        causes["a promise that nothing settles"] = ("", never, "nothing settles")
    for number, (name, (lua, javascript, what)) in enumerate(causes.items(), 1):
        with subtests.test(name):
            with pytest.raises(HoldfastError, match=what):
                run(sandbox, lua, javascript)
            assert run(sandbox, "return 1", "return 1") == 1
            state = store.state("agent:x")
            state["secrets/key"] = "tk-1"
            assert state["secrets/key"] == "***"
            seen = run(
                sandbox,
                "held.good = args.n; a:save(); return {a.plan, held, a.notes}",
                "held.good = args.n; await a.save(); return [await a.plan, held, await a.notes]",
                n=number,
            )
            good = {"good": number}
            assert seen == [good, good, []]
            assert store.agents.load("a").fields["plan"] == good
    assert store.hooks.list()[0].failures == 0


def test_a_hook_answers_for_its_own_changes_only(store: holdfast.Store, sandbox: Sandbox) -> None:
    """It runs in the middle of a run that changes agents, too."""
    store.agents.create(Planner, "a")
    run(
        sandbox,
        """
        a, b = store.agents:restore("a"), store.agents:create("script-planner", "b")
        store.hooks:before("state.set", {name = "redact", key = "secrets/*"})(function(call)
          if call.value == "fail" then b.plan.bad = print end
          b.plan.seen = 1
          return "***"
        end)
        """,
        """
        globalThis.a = await store.agents.restore("a");
        globalThis.b = await store.agents.create("script-planner", "b");
        await store.hooks.before("state.set", {name: "redact", key: "secrets/*"})(async (call) => {
          if (call.value === "fail") (await b.plan).bad = print;
          (await b.plan).seen = 1;
          return "***";
        });
        """,
    )
    seen = run(
        sandbox,
        """
        local state = store:state("agent:x")
        a.plan.callback = print
        state:set("secrets/one", "tk-1")
        a.plan.callback, a.plan.kept = nil, 1
        state:set("secrets/two", "fail")
        a:save(); b:save()
        return {state:get("secrets/one"), a.plan, b.plan}
        """,
        """
        const state = store.state("agent:x"), plan = await a.plan;
        plan.callback = print;
        await state.set("secrets/one", "tk-1");
        delete plan.callback; plan.kept = 1;
        await state.set("secrets/two", "fail");
        await a.save(); await b.save();
        return [await state.get("secrets/one"), await a.plan, await b.plan];
        """,
    )
    assert seen == ["***", {"kept": 1}, {"seen": 1}]
    assert store.agents.load("a").fields["plan"] == {"kept": 1}
    assert store.hooks.list()[0].failures == 1, "only that which it made itself"


def test_good_changes_reach_the_agent_beside_a_bad_one_that_the_script_takes_back(
    store: holdfast.Store, sandbox: Sandbox
) -> None:
    store.agents.create(Planner, "a")
    run(
        sandbox,
        """
        local a = store.agents:restore("a")
        for _, name in ipairs{"context", "plan", "metadata"} do
          a.context.n, a.plan.n, a.metadata.n = name, name, name
          a[name].bad = print
          assert(not pcall(a.save, a))
          a[name].bad = nil
        end
        a:save()
        """,
        """
        const a = await store.agents.restore("a");
        for (const name of ["context", "plan", "metadata"]) {
          (await a.context).n = name; (await a.plan).n = name; (await a.metadata).n = name;
          (await a[name]).bad = print;
          try { await a.save(); throw null } catch (error) { if (error === null) throw Error("it is saved") }
          delete (await a[name]).bad;
        }
        await a.save();
        """,
    )
    record = store.agents.load("a")
    assert (record.context, record.fields["plan"], record.metadata) == ({"n": "metadata"},) * 3


def test_a_list_that_a_script_empties_stays_one(store: holdfast.Store, subtests: pytest.Subtests) -> None:
    causes = {
        "after a save": ["a.notes = {5}; a.plan.l = {5}; a:save(); table.remove(a.notes); table.remove(a.plan.l)"],
        "in the next run": ["a.notes = {5}; a.plan.l = {5}; a:save()", "table.remove(a.notes); table.remove(a.plan.l)"],
        "at once": ["a.notes = {5}; table.remove(a.notes); a.plan.l = {5}; table.remove(a.plan.l)"],
        "after a change of the host": [
            "a.notes = {5}; a.plan.l = {5}; n = a.notes; a:start(); a:transition('work')",
            "n[1] = nil; a.plan.l[1] = nil",
        ],
    }
    for number, (name, runs) in enumerate(causes.items()):
        with subtests.test(name), Sandbox("lua", store) as sandbox:
            id = f"a{number}"
            sandbox.run('a = store.agents:create("script-planner", args.id)', args={"id": id})
            for each in runs:
                sandbox.run(each)
            sandbox.run("a:save()")
            fields = store.agents.load(id).fields
            assert (fields["notes"], fields["plan"]["l"]) == ([], [])
    with subtests.test("a table that becomes a dict is one"), Sandbox("lua", store) as sandbox:
        sandbox.run('a = store.agents:create("script-planner", "d"); a.plan.d = {5}; a:save()')
        sandbox.run("a.plan.d[1] = nil; a.plan.d.x = 1; a:save(); a.plan.d.x = nil; a:save()")
        assert store.agents.load("d").fields["plan"] == {"d": {}}
