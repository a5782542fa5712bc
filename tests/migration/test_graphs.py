"""A thread that last month's graph saved is resumed by today's, whose channels and nodes are others."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import holdfast
from holdfast.errors import ConflictError, InvalidError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, custom, merge, remove, rename, split


class Old(TypedDict):
    """The state of last month."""

    log: Annotated[list[str], operator.add]
    name: str
    count: int
    scratch: str


class New(TypedDict):
    """The state of today: renamed, split, retyped, removed, added."""

    notes: Annotated[list[str], operator.add]
    first: str
    last: str
    count: str
    plan: list[str]


TO_NEW = Migration(
    "graph",
    "1.0.0",
    "2.0.0",
    rename("log", "notes"),
    split("name", ("first", "last"), separator=" "),
    convert("count", str, int),
    remove("scratch"),
    add("plan", default=[]),
    nodes={"ask": "question"},
)
OLD = SchemaSet(Schema("graph", "1.0.0", Old))
NEW = SchemaSet(Schema("graph", "1.0.0", Old), Schema("graph", "2.0.0", New), TO_NEW)

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def old_graph(saver: HoldfastSaver) -> Any:
    def begin(state: Old) -> dict[str, Any]:
        return {"log": ["begun"], "count": state["count"] + 1, "scratch": "x"}

    def ask(state: Old) -> dict[str, Any]:
        return {"log": [f"old {interrupt('ready?')}"]}

    builder = StateGraph(Old)
    builder.add_node("begin", begin)
    builder.add_node("ask", ask)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def new_graph(saver: HoldfastSaver, node: str = "question") -> Any:
    def begin(state: New) -> dict[str, Any]:
        return {"notes": ["begun anew"]}

    def question(state: New) -> dict[str, Any]:
        return {"notes": [f"new {interrupt('ready?')} {state['first']}|{state['last']}|{state['count']!r}"]}

    builder = StateGraph(New)
    builder.add_node("begin", begin)
    builder.add_node(node, question)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", node)
    builder.add_edge(node, END)
    return builder.compile(checkpointer=saver)


START_STATE = {"log": ["start"], "name": "Ann Bee", "count": 1}
RESUMED = {
    "notes": ["start", "begun", "new yes Ann|Bee|'2'"],
    "first": "Ann",
    "last": "Bee",
    "count": "2",
    "plan": [],
}


def test_an_interrupted_thread_is_resumed_by_the_new_graph(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        assert "__interrupt__" in old_graph(HoldfastSaver(store, schema=OLD)).invoke(START_STATE, CONFIG)
        assert store.thread("t").get().schema == "graph@1.0.0"
    with holdfast.open(tmp_path / "a.db") as store:
        graph = new_graph(HoldfastSaver(store, schema=NEW))
        state = graph.get_state(CONFIG)
        assert state.next == ("question",), "the node that is next has its new name"
        assert state.values == {"notes": ["start", "begun"], "first": "Ann", "last": "Bee", "count": "2", "plan": []}
        assert graph.invoke(Command(resume="yes"), CONFIG) == RESUMED
        assert store.thread("t").get().schema == "graph@2.0.0"
        assert [each.values.get("count") for each in graph.get_state_history(CONFIG)] == ["2", "2", "1", None]
        assert graph.invoke({"notes": ["again"]}, CONFIG)["__interrupt__"]
        assert store.maintenance.verify().ok


def test_a_finished_thread_goes_on_in_the_new_graph(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        graph = old_graph(HoldfastSaver(store, schema=OLD))
        graph.invoke(START_STATE, CONFIG)
        graph.invoke(Command(resume="sure"), CONFIG)
    with holdfast.open(tmp_path / "a.db") as store:
        graph = new_graph(HoldfastSaver(store, schema=NEW))
        found = graph.invoke({"notes": ["more"]}, CONFIG)
        assert found["notes"] == ["start", "begun", "old sure", "more", "begun anew"]
        with pytest.raises(ConflictError, match="is incompatible with this program"):
            old_graph(HoldfastSaver(store, schema=OLD)).invoke(START_STATE, CONFIG)


def test_a_bulk_migration_leaves_threads_in_the_middle_of_a_step_alone(tmp_path: Path) -> None:
    other: Any = {"configurable": {"thread_id": "done"}}
    with holdfast.open(tmp_path / "a.db") as store:
        graph = old_graph(HoldfastSaver(store, schema=OLD))
        graph.invoke(START_STATE, CONFIG)
        graph.invoke(START_STATE, other)
        graph.invoke(Command(resume="sure"), other)
        report = store.schemas.up(NEW)
        assert (report.migrated, report.deferred) == (1, ["t"])
        graph = new_graph(HoldfastSaver(store, schema=NEW))
        assert graph.get_state(other).values["notes"] == ["start", "begun", "old sure"]
        assert graph.invoke({"notes": ["more"]}, other)["notes"][-2:] == ["more", "begun anew"]
        assert graph.invoke(Command(resume="yes"), CONFIG) == RESUMED
        assert store.schemas.up(NEW).complete


def test_a_release_without_a_schema_is_refused_on_a_thread_of_todays(tmp_path: Path) -> None:
    other: Any = {"configurable": {"thread_id": "stopped"}}
    with holdfast.open(tmp_path / "a.db") as plain, holdfast.open(tmp_path / "a.db") as store:
        old = old_graph(HoldfastSaver(plain))
        for config in (CONFIG, other):
            old.invoke(START_STATE, config)
        old.invoke(Command(resume="sure"), CONFIG)
        new = new_graph(HoldfastSaver(store, schema=NEW))
        found = new.invoke({"notes": ["more"]}, CONFIG)
        late: list[Any] = [START_STATE, Command(resume="late")]
        for given in late:
            with pytest.raises(ConflictError) as refused:
                old.invoke(given, CONFIG)
            assert refused.value.code == "schema-missing"
        assert new.get_state(CONFIG).values["notes"] == found["notes"]
        assert "new on Ann" in new.invoke(Command(resume="on"), CONFIG)["notes"][-1]
        # A thread that stopped before the upgrade is finished by either.
        assert old.invoke(Command(resume="sure"), other)["log"][-1] == "old sure"


def test_what_a_release_without_a_schema_wrote_after_a_checkpoint_of_todays_is_migrated(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as plain, holdfast.open(tmp_path / "a.db") as store:
        new = two_tasks(New, HoldfastSaver(store, schema=NEW), {"notes": ["w"]}, [])
        new.invoke({"notes": ["start"], "first": "Ann", "last": "Bee", "count": "1", "plan": []}, CONFIG)
        at = new.get_state(CONFIG).config
        HoldfastSaver(plain).put_writes(at, [("log", ["late"])], "task", "~__pregel_pull, late")
        found = HoldfastSaver(store, schema=NEW).get_tuple(CONFIG)
        assert found is not None
        assert ("task", "notes", ["late"]) in (found.pending_writes or [])


def two_tasks(state: type, saver: HoldfastSaver, write: dict[str, Any], ran: list[str], node: str = "work") -> Any:
    """A graph with two nodes at a time, of which one stops and the other has written."""

    def work(_: Any) -> dict[str, Any]:
        ran.append(node)
        return write

    def stop(_: Any) -> dict[str, Any]:
        interrupt("wait")
        return {}

    builder: Any = StateGraph(state)
    builder.add_node(node, work)
    builder.add_node("stop", stop)
    for name in (node, "stop"):
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("write", [{"log": ["w"]}, {"name": "Cid Dee"}, {"count": 7}, {"scratch": "s"}])
def test_what_a_task_wrote_is_migrated_with_its_checkpoint(tmp_path: Path, write: dict[str, Any]) -> None:
    ran: list[str] = []
    with holdfast.open(tmp_path / "a.db") as store:
        two_tasks(Old, HoldfastSaver(store, schema=OLD), write, ran).invoke(START_STATE, CONFIG)
        graph = two_tasks(New, HoldfastSaver(store, schema=NEW), {"notes": ["not again"]}, ran)
        found = graph.invoke(Command(resume=1), CONFIG)
    assert ran == ["work"], "what had run does not run again"
    expected: dict[str, Any] = {"notes": ["start"], "first": "Ann", "last": "Bee", "count": "1", "plan": []}
    changed: dict[str, dict[str, Any]] = {
        "log": {"notes": ["start", "w"]},
        "name": {"first": "Cid", "last": "Dee"},
        "count": {"count": "7"},
    }
    (channel,) = write
    assert found == expected | changed.get(channel, {})


def test_writes_that_cannot_be_migrated_refuse_the_resume(tmp_path: Path) -> None:
    class Joined(TypedDict):
        log: Annotated[list[str], operator.add]
        both: str

    class Custom(TypedDict):
        log: Annotated[list[str], operator.add]

    joined = Migration(
        "graph",
        "1.0.0",
        "2.0.0",
        merge(("name", "scratch"), "both", lambda a, b: a + b, lossy=True),
        remove("count"),
    )
    whole = Migration("graph", "1.0.0", "2.0.0", custom(lambda state: {"log": state["log"]}, lossy=True))
    cases: list[tuple[type, Migration, dict[str, Any]]] = [
        (Joined, joined, {"name": "x"}),
        (Custom, whole, {"log": ["x"]}),
    ]
    for number, (state, migration, write) in enumerate(cases):
        config: Any = {"configurable": {"thread_id": "t"}}
        with holdfast.open(tmp_path / f"{number}.db") as store:
            two_tasks(Old, HoldfastSaver(store, schema=OLD), write, []).invoke(START_STATE, config)
            schemas = SchemaSet(*OLD, Schema("graph", "2.0.0", state), migration)
            graph = two_tasks(state, HoldfastSaver(store, schema=schemas), {}, [])
            before = [each.id for each in store.thread("t").log()]
            with pytest.raises(UnsupportedError) as refused:
                graph.invoke(Command(resume=1), config)
            assert refused.value.code == "migration-pending"
            assert [each.id for each in store.thread("t").log()] == before, "nothing was written"
            with pytest.raises(ConflictError, match="is incompatible with this program"):
                HoldfastSaver(store, schema=OLD).get_tuple(config)
            assert "holdfast migrate down" in refused.value.hint
            store.schemas.down(schemas, to="1.0.0")
            two_tasks(Old, HoldfastSaver(store, schema=OLD), write, []).invoke(Command(resume=1), config)


def renaming(**nodes: str) -> SchemaSet:
    """The schemas with a migration that renames these nodes."""
    migration = Migration("graph", "1.0.0", "2.0.0", *TO_NEW.operations, nodes=nodes)
    return SchemaSet(*OLD, Schema("graph", "2.0.0", New), migration)


def questions(state: type, saver: HoldfastSaver, node: str, *, sent: bool = False, joins: bool = False) -> Any:
    """A graph that stops twice in a node. That is reached by an edge, by a packet, or from two nodes at once."""
    channel = "log" if state is Old else "notes"

    def ask(_: Any) -> dict[str, Any]:
        return {channel: [f"{interrupt('first?')} {interrupt('second?')}"]}

    builder: Any = StateGraph(state)
    builder.add_node(node, ask)
    if joins:
        for each in ("left", "right"):
            builder.add_node(each, lambda _, each=each: {channel: [each]})
            builder.add_edge(START, each)
        builder.add_edge(["left", "right"], node)
    elif sent:
        builder.add_node("begin", lambda _: {})
        builder.add_edge(START, "begin")
        builder.add_conditional_edges("begin", lambda _: [Send(node, {}), Send(node, {})], [node])
    else:
        builder.add_edge(START, node)
    builder.add_edge(node, END)
    return builder.compile(checkpointer=saver)


def asked(graph: Any) -> list[tuple[str, str]]:
    return [(each.id, each.value) for task in graph.get_state(CONFIG).tasks for each in task.interrupts]


@pytest.mark.parametrize("way", [{}, {"joins": True}, {"sent": True}])
@pytest.mark.parametrize("by_id", [False, True])
def test_questions_of_a_renamed_node_are_answered(tmp_path: Path, way: dict[str, bool], by_id: bool) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        old = questions(Old, HoldfastSaver(store, schema=OLD), "ask", **way)
        old.invoke(START_STATE, CONFIG)
        before = asked(old)
        if way.get("sent"):  # both packets of the step are answered by their ids
            by_id = True
        graph = questions(New, HoldfastSaver(store, schema=renaming(ask="confirm")), "confirm", **way)
        assert [value for _, value in asked(graph)] == [value for _, value in before] != []
        assert not {id for id, _ in asked(graph)} & {id for id, _ in before}, "ids depend on the name of the node"
        found: Any = {}
        for answer in ("A", "B"):
            resume = {id: answer for id, _ in asked(graph)} if by_id else answer
            found = graph.invoke(Command(resume=resume), CONFIG)
        assert found["notes"][-1] == "A B"
        assert found["notes"].count("A B") == len(before)
        assert asked(graph) == []


def test_what_a_renamed_node_wrote_is_not_done_again(tmp_path: Path) -> None:
    ran: list[str] = []
    with holdfast.open(tmp_path / "a.db") as store:
        two_tasks(Old, HoldfastSaver(store, schema=OLD), {"log": ["w"]}, ran).invoke(START_STATE, CONFIG)
        graph = two_tasks(New, HoldfastSaver(store, schema=renaming(work="labour")), {"notes": ["no"]}, ran, "labour")
        assert graph.invoke(Command(resume=1), CONFIG)["notes"] == ["start", "w"]
    assert ran == ["work"]


def test_tasks_that_cannot_be_found_under_the_new_name_refuse_the_resume(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, schema=OLD)
        questions(Old, saver, "ask").invoke(START_STATE, CONFIG)
        at = saver.get_tuple(CONFIG)
        assert at is not None
        saver.put_writes(at.config, [("log", ["x"])], "an id of another release", "~__pregel_pull, ask")
        graph = questions(New, HoldfastSaver(store, schema=renaming(ask="confirm")), "confirm")
        with pytest.raises(UnsupportedError) as refused:
            graph.invoke(Command(resume="A"), CONFIG)
        assert refused.value.code == "migration-pending"


def test_a_downgrade_defers_a_thread_with_writes_of_the_newer_version(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        schemas = renaming()
        for config in (CONFIG, {"configurable": {"thread_id": "untouched"}}):
            questions(Old, HoldfastSaver(store, schema=OLD), "ask").invoke(START_STATE, config)
        questions(New, HoldfastSaver(store, schema=schemas), "ask").invoke(Command(resume="A"), CONFIG)
        report = store.schemas.down(schemas, to="1.0.0")
        assert (report.deferred, report.complete, report.skipped) == (["t"], False, 1)
        assert store.schemas.registered().retired == frozenset()
        old = questions(Old, HoldfastSaver(store, schema=OLD), "ask")
        with pytest.raises(UnsupportedError) as refused:
            old.invoke(Command(resume="B"), CONFIG)
        assert refused.value.code == "schema-newer"
        store.schemas.up(schemas)
        new = questions(New, HoldfastSaver(store, schema=schemas), "ask")
        assert new.invoke(Command(resume="B"), CONFIG)["notes"] == ["start", "A B"]


class OldChild(TypedDict):
    """The state of a subgraph."""

    text: str


class NewChild(TypedDict):
    """Its state today."""

    words: list[str]


CHILD = SchemaSet(
    Schema("child", "1.0.0", OldChild),
    Schema("child", "2.0.0", NewChild),
    Migration("child", "1.0.0", "2.0.0", rename("text", "words"), convert("words", str.split, " ".join)),
)


def with_child(saver: HoldfastSaver, *, new: bool, node: str = "call") -> Any:
    def old_inner(state: OldChild) -> dict[str, Any]:
        return {"text": f"{state['text']} {interrupt('more?')}"}

    def new_inner(state: NewChild) -> dict[str, Any]:
        return {"words": [*state["words"], "new", interrupt("more?")]}

    inner: Any = StateGraph(NewChild if new else OldChild)
    inner.add_node("first", lambda state: {"words": state["words"]} if new else {"text": "one two"})
    inner.add_node("inner", new_inner if new else old_inner)
    inner.add_edge(START, "first")
    inner.add_edge("first", "inner")
    inner.add_edge("inner", END)
    child = inner.compile()

    def old_call(state: Old) -> dict[str, Any]:
        return {"log": [child.invoke({"text": "zero"})["text"]]}

    def new_call(state: New) -> dict[str, Any]:
        return {"notes": [" ".join(child.invoke({"words": ["zero"]})["words"])]}

    builder: Any = StateGraph(New if new else Old)
    builder.add_node(node, new_call if new else old_call)
    builder.add_edge(START, node)
    builder.add_edge(node, END)
    return builder.compile(checkpointer=saver)


def test_a_subgraph_in_the_middle_of_an_interrupt(tmp_path: Path) -> None:
    old_child = SchemaSet(*OLD, *[each for each in CHILD if str(each.version) == "1.0.0"])
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, schema=old_child, subgraphs={"call": "child"})
        with_child(saver, new=False).invoke(START_STATE, CONFIG)
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, schema=SchemaSet(NEW, CHILD), subgraphs={"call": "child"})
        found = with_child(saver, new=True).invoke(Command(resume="three"), CONFIG)
        assert found["notes"] == ["start", "one two new three"], "the child goes on with what it had"


def test_a_subgraph_at_work_in_a_renamed_node_refuses_the_resume(tmp_path: Path) -> None:
    """Its namespace has the name of the node: it would not be found, and start again."""
    renamed = Migration("graph", "1.0.0", "2.0.0", *TO_NEW.operations, nodes={"call": "research"})
    schemas = SchemaSet(*[each for each in NEW if each.name == "graph"], renamed, CHILD)
    old_child = SchemaSet(*OLD, *[each for each in CHILD if str(each.version) == "1.0.0"])
    done: Any = {"configurable": {"thread_id": "done"}}
    with holdfast.open(tmp_path / "a.db") as store:
        graph = with_child(HoldfastSaver(store, schema=old_child, subgraphs={"call": "child"}), new=False)
        for config in (CONFIG, done):
            graph.invoke(START_STATE, config)
        graph.invoke(Command(resume="three"), done)
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, schema=schemas, subgraphs={"research": "child"})
        graph = with_child(saver, new=True, node="research")
        before = {each.thread: store.thread(each.thread).find().id for each in store.threads()}
        with pytest.raises(UnsupportedError) as refused:
            graph.invoke(Command(resume="four"), CONFIG)
        assert refused.value.code == "migration-pending"
        assert "'call', which is called 'research' now" in refused.value.what
        assert {each.thread: store.thread(each.thread).find().id for each in store.threads()} == before
        assert graph.get_state(done).values["notes"] == ["start", "one two three"], "one that had finished goes on"
        assert "__interrupt__" in graph.invoke({"notes": ["more"]}, done)


def nested(saver: HoldfastSaver, node: str, levels: int) -> Any:
    """Return a graph whose innermost subgraph asks two questions in a node of this name."""

    def ask(state: NewChild) -> dict[str, Any]:
        return {"words": [interrupt("one?"), interrupt("two?")]}

    inner: Any = StateGraph(NewChild)
    inner.add_node(node, ask)
    inner.add_edge(START, node)
    for _ in range(levels):
        outer: Any = StateGraph(NewChild)
        outer.add_node("call", inner.compile())
        outer.add_edge(START, "call")
        inner = outer
    return inner.compile(checkpointer=saver)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("answered", ["old", "new"])
def test_questions_of_a_renamed_node_in_a_subgraph_are_answered_by_id(
    tmp_path: Path, levels: int, answered: str
) -> None:
    """The graphs around it keep its questions, too, with ids that have the name of the node."""
    place = {"|".join(["call"] * levels): "child"}
    graph, child = Schema("graph", "1.0.0", NewChild), Schema("child", "1.0.0", NewChild)
    renamed = (Schema("child", "1.1.0", NewChild), Migration("child", "1.0.0", "1.1.0", nodes={"ask": "confirm"}))
    with holdfast.open(tmp_path / "a.db") as store:
        old = nested(HoldfastSaver(store, schema=SchemaSet(graph, child), subgraphs=place), "ask", levels)
        old.invoke({"words": []}, CONFIG)
        if answered == "old":
            old.invoke(Command(resume="A"), CONFIG)
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, schema=SchemaSet(graph, child, *renamed), subgraphs=place)
        new = nested(saver, "confirm", levels)

        def question() -> tuple[str, str]:
            ((value, id),) = [(each.value, each.id) for each in new.get_state(CONFIG).interrupts]
            assert [each.id for each in next(new.get_state_history(CONFIG)).interrupts] == [id]
            return value, id

        if answered != "old":
            value, id = question()
            assert value == "one?"
            new.invoke(Command(resume={id: "A"}), CONFIG)
        value, id = question()
        assert value == "two?"
        assert new.invoke(Command(resume={id: "B"}), CONFIG)["words"] == ["A", "B"]


def test_what_a_graph_saves_is_validated(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        graph = old_graph(HoldfastSaver(store, schema=OLD))
        with pytest.raises(InvalidError) as refused:
            graph.invoke({**START_STATE, "name": 5}, CONFIG)
        assert (refused.value.code, "name" in refused.value.where) == ("schema-mismatch", True)
        graph = old_graph(HoldfastSaver(store, schema=OLD, validate="off"))
        graph.invoke({**START_STATE, "name": 5}, {"configurable": {"thread_id": "u"}})


def test_a_state_class_works_as_it_is(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        old_graph(HoldfastSaver(store, schema=Old)).invoke(START_STATE, CONFIG)
        assert store.thread("t").get().schema == "Old@1.0.0"
