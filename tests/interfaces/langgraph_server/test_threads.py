"""Threads of a served store by LangGraph's own client: made, listed, read at their checkpoints, changed and deleted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from langgraph_sdk import get_client, schema
from langgraph_sdk.errors import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableEntityError,
)

import holdfast
from holdfast.engine.namespaces import thread_name
from holdfast.interfaces.langgraph_server.threads import RECORD
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph_server.kit import Clients, approval, nested, serving, support, values_of


def has_shape(value: Any, kind: Any) -> bool:
    """Whether a value is of a type of the client: its fields, and theirs. Raises an error that says what differs."""
    msgspec.convert(value, kind)
    return True


def run_on(store: holdfast.Store, thread: str, graph: Any, state: Any) -> None:
    """Run a graph in this program."""
    bound = graph.copy(update={"checkpointer": HoldfastSaver(store)})
    bound.invoke(state, {"configurable": {"thread_id": thread}})


def copied(threads: Any, id: str) -> Any:
    """Copy a thread, and return the copy: the client's type says that nothing is returned."""
    return threads.copy(id)


def test_a_server_says_that_it_is_there(clients: Clients) -> None:
    http = clients.owner.http
    assert http.get("/ok") == {"ok": True}
    assert http.get("/info")["version"] == holdfast.__version__


def test_a_thread_is_made_read_changed_and_deleted(clients: Clients) -> None:
    threads = clients.owner.threads
    made = threads.create(metadata={"user": "ada", "nested": {"a": 1, "b": 2}})
    uuid.UUID(made["thread_id"])  # raises an error for anything else
    assert has_shape(made, schema.Thread)
    assert (made["status"], made["values"], made["interrupts"]) == ("idle", None, {})
    id = made["thread_id"]
    assert threads.get(id) == made
    changed = threads.update(id, metadata={"topic": "kelp"})
    assert changed["metadata"] == {"user": "ada", "nested": {"a": 1, "b": 2}, "topic": "kelp"}
    assert changed["created_at"] == made["created_at"] < changed["updated_at"]
    threads.delete(id)
    for call in (lambda: threads.get(id), lambda: threads.delete(id), lambda: threads.update(id, metadata={})):
        with pytest.raises(NotFoundError):
            call()


def test_a_thread_that_is_there_is_not_made_again(clients: Clients) -> None:
    threads, id = clients.owner.threads, "made-once"
    threads.create(thread_id=id, metadata={"n": 1})
    with pytest.raises(ConflictError):
        threads.create(thread_id=id, metadata={"n": 2})
    assert threads.create(thread_id=id, if_exists="do_nothing")["metadata"] == {"n": 1}
    clients.store.thread("of-a-program").put({"messages": []})
    with pytest.raises(ConflictError):
        threads.create(thread_id="of-a-program")


def test_states_of_a_thread_are_those_of_the_graph(clients: Clients) -> None:
    threads, id = clients.owner.threads, str(uuid.uuid4())
    threads.create(thread_id=id, graph_id="approval")
    run_on(clients.store, id, approval(), {"messages": [("user", "hello")], "log": []})
    found = threads.get(id)
    assert found["status"] == "interrupted"
    ((asked,),) = found["interrupts"].values()
    assert asked["value"] == {"question": "Who approves?"}
    state: Any = threads.get_state(id)
    assert has_shape(state, schema.ThreadState)
    assert has_shape(state["checkpoint"], schema.Checkpoint)
    (task,) = state["tasks"]
    assert has_shape(task, schema.ThreadTask)
    assert task["interrupts"] == state["interrupts"] == [asked]
    assert (state["next"], state["values"]["log"]) == (["ask"], ["planned plainly"])
    assert state["values"]["messages"][0]["type"] == "human"
    history = threads.get_history(id)
    assert [each["next"] for each in history] == [["ask"], ["plan"], ["__start__"]]
    assert history[0] == state
    for each in history:
        assert threads.get_state(id, checkpoint=each["checkpoint"]) == each
        assert threads.get_state(id, checkpoint_id=each["checkpoint"]["checkpoint_id"]) == each
    earlier = threads.get_history(id, before=history[0]["checkpoint"], limit=1)
    assert earlier == history[1:2]
    assert threads.get_history(id, metadata={"source": "input"}) == history[2:]
    chosen: Any = threads.get_state(id, select=["next", "values.log"])
    assert chosen == {
        "next": ["ask"],
        "values": {"log": state["values"]["log"]},
    }
    with pytest.raises(NotFoundError):
        threads.get_state(id, checkpoint_id="1f000000-0000-6000-8000-000000000000")


def test_the_state_of_a_subgraph_is_read(clients: Clients) -> None:
    threads, id = clients.owner.threads, "with-subgraph"
    threads.create(thread_id=id, graph_id="nested")
    run_on(clients.store, id, nested(), {"log": []})
    (task,) = threads.get_state(id, subgraphs=True)["tasks"]
    inner: Any = task["state"]
    assert has_shape(inner, schema.ThreadState)
    assert inner["next"] == ["ask"]
    assert inner["checkpoint"]["checkpoint_ns"].startswith("inner:")
    tasks: Any = threads.get_state(id)["tasks"]
    (named,) = tasks
    assert named["state"] is None
    assert named["checkpoint"]["checkpoint_ns"] == inner["checkpoint"]["checkpoint_ns"]
    assert threads.get_state(id, checkpoint=named["checkpoint"])["values"] == inner["values"]


def test_a_state_is_changed_as_a_node_would(clients: Clients) -> None:
    threads = clients.owner.threads
    id = threads.create(graph_id="support")["thread_id"]
    run_on(clients.store, id, support(), {"log": ["begun"]})
    before: Any = threads.get_state(id)
    made = threads.update_state(id, {"log": ["by hand"]}, as_node="reply")
    assert has_shape(made, schema.ThreadUpdateStateResponse)
    after: Any = threads.get_state(id)
    assert after["checkpoint"]["checkpoint_id"] == made["checkpoint"]["checkpoint_id"]
    assert after["values"]["log"] == [*before["values"]["log"], "by hand"]
    branch = threads.update_state(id, {"log": ["aside"]}, as_node="plan", checkpoint=before["checkpoint"])
    aside: Any = threads.get_state(id, checkpoint=branch["checkpoint"])
    assert aside["values"]["log"] == [*before["values"]["log"], "aside"]
    assert aside["next"] == ["reply"]


def test_a_thread_begins_with_the_states_of_steps(clients: Clients) -> None:
    steps: list[dict[str, Sequence[dict[str, Any]]]] = [
        {"updates": [{"values": {"log": ["given"]}, "as_node": "plan"}]},
        {"updates": [{"values": None, "command": {"update": {"log": ["commanded"]}}, "as_node": "plan"}]},
    ]
    made: Any = clients.owner.threads.create(graph_id="support", supersteps=steps)
    assert made["values"]["log"] == ["given", "commanded"]
    assert clients.owner.threads.get_state(made["thread_id"])["next"] == ["reply"]


def test_a_thread_is_copied_with_its_history(clients: Clients) -> None:
    threads = clients.owner.threads
    id = threads.create(graph_id="support", metadata={"user": "ada"})["thread_id"]
    run_on(clients.store, id, support(), {"log": []})
    copy = copied(threads, id)
    assert copy["thread_id"] != id
    assert copy["metadata"] == threads.get(id)["metadata"]
    ids = [each["checkpoint"]["checkpoint_id"] for each in threads.get_history(id)]
    assert [each["checkpoint"]["checkpoint_id"] for each in threads.get_history(copy["thread_id"])] == ids


def test_threads_are_found_by_metadata_values_and_status(clients: Clients) -> None:
    threads = clients.owner.threads
    mark = {"suite": "search"}
    ids = [threads.create(graph_id="support", metadata={**mark, "n": n})["thread_id"] for n in range(5)]
    run_on(clients.store, ids[2], support(), {"log": ["sought"]})
    found = threads.search(metadata=mark)
    assert found[0]["thread_id"] == ids[2]
    assert {each["thread_id"] for each in found} == set(ids)
    assert [each["thread_id"] for each in threads.search(metadata={**mark, "n": 3})] == [ids[3]]
    assert threads.count(metadata=mark) == 5
    assert threads.count(metadata={"suite": "none"}) == 0
    by_name = threads.search(metadata=mark, sort_by="thread_id", sort_order="asc", limit=2, offset=1)
    assert [each["thread_id"] for each in by_name] == sorted(ids)[1:3]
    values = {"log": ["sought", "planned plainly", "replied"]}
    assert [each["thread_id"] for each in threads.search(metadata=mark, values=values)] == [ids[2]]
    chosen: list[Any] = threads.search(ids=[ids[0], "missing"], select=["thread_id"])
    assert chosen == [{"thread_id": ids[0]}]
    assert threads.search(metadata=mark, status="busy") == []
    assert len(threads.search(metadata=mark, status="idle")) == 5


def test_threads_of_programs_are_threads_like_others(clients: Clients) -> None:
    run_on(clients.store, "of-invoke", support(), {"log": []})
    threads = clients.owner.threads
    assert [each["thread_id"] for each in threads.search(ids=["of-invoke"])] == ["of-invoke"]
    threads.update("of-invoke", metadata={"graph_id": "support"})
    assert values_of(threads, "of-invoke")["log"] == ["planned plainly", "replied"]
    id = threads.create(graph_id="support", metadata={"who": "ada"})["thread_id"]
    run_on(clients.store, id, support(), {"log": []})
    assert [each.kind for each in clients.store.thread(id).log()] == ["loop", "loop", "loop", "input"]
    clients.store.thread(id).delete()
    with pytest.raises(NotFoundError):
        threads.get(id)


def test_threads_are_pruned(clients: Clients) -> None:
    threads = clients.owner.threads
    ids = [threads.create(graph_id="support")["thread_id"] for _ in range(2)]
    for id in ids:
        run_on(clients.store, id, support(), {"log": []})
    assert threads.prune(ids, strategy="keep_latest") == {"pruned_count": 2}
    assert [len(threads.get_history(id)) for id in ids] == [1, 1]
    assert values_of(threads, ids[0])["log"] == ["planned plainly", "replied"]
    assert threads.prune([*ids, "missing"]) == {"pruned_count": 2}
    assert threads.search(ids=ids) == []


def test_what_is_not_possible_is_refused(clients: Clients) -> None:
    threads = clients.owner.threads
    id = threads.create()["thread_id"]
    calls: list[Callable[[], Any]] = [
        lambda: threads.create(ttl={"ttl": 5, "strategy": "keep_latest"}),
        lambda: threads.update(id, metadata={}, ttl={"ttl": 5, "strategy": "keep_latest"}),
        lambda: threads.get(id, include=["size"]),
    ]
    for call in calls:
        with pytest.raises(UnprocessableEntityError):
            call()
    with pytest.raises(BadRequestError):
        clients.owner.http.post("/threads", json={"unknown": 1})
    with pytest.raises(BadRequestError):  # nothing says which of the graphs has it
        threads.get_state(id)
    for name in ("a␟client:record", "none"):
        with pytest.raises(NotFoundError):
            threads.get(name)
    with pytest.raises(BadRequestError):
        threads.get("␞access")


def test_the_async_client_calls_the_same(clients: Clients) -> None:
    async def all_calls() -> None:
        async with get_client(url=clients.served.url, api_key=clients.served.token) as client:
            id = (await client.threads.create(graph_id="support", metadata={"a": 1}))["thread_id"]
            await client.threads.update_state(id, {"log": ["x"]}, as_node="plan")
            assert (await client.threads.get_state(id))["next"] == ["reply"]
            assert [each["thread_id"] for each in await client.threads.search(ids=[id])] == [id]
            assert (await client.assistants.get("support"))["graph_id"] == "support"
            await client.threads.delete(id)

    asyncio.run(all_calls())


# Who may -----------------------------------------------------------------------------------------------------------


def test_an_identity_has_its_own_threads(clients: Clients) -> None:
    ada, ben = clients.of("user:ada").threads, clients.of("user:ben").threads
    id = ada.create(graph_id="support", metadata={"suite": "own"})["thread_id"]
    ada.update_state(id, {"log": ["hers"]}, as_node="plan")
    assert clients.store.thread(id).owner() == "user:ada"
    assert values_of(ada, id)["log"] == ["hers"]
    assert [each["thread_id"] for each in ada.search(metadata={"suite": "own"})] == [id]
    assert ben.search(metadata={"suite": "own"}) == [] == ben.search(ids=[id])
    assert ben.count(metadata={"suite": "own"}) == 0
    assert ben.prune([id]) == {"pruned_count": 0}
    for call in (
        lambda: ben.get(id),
        lambda: ben.get_state(id),
        lambda: ben.get_history(id),
        lambda: ben.update(id, metadata={"a": 1}),
        lambda: ben.update_state(id, {"log": ["his"]}, as_node="plan"),
        lambda: ben.copy(id),
        lambda: ben.delete(id),
    ):
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises((PermissionDeniedError, ConflictError)):
        ben.create(thread_id=id)
    assert values_of(ada, id)["log"] == ["hers"]
    copy = copied(ada, id)["thread_id"]
    assert clients.store.thread(copy).owner() == "user:ada"


def test_tenants_are_apart(clients: Clients, tmp_path: Any) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(holdfast.open(tmp_path / "a.db", tenant=name)) for name in ("one", "two"))
        first, second = (stack.enter_context(serving(each, work=False)) for each in (one, two))
        id = first.owner.threads.create(metadata={"a": 1})["thread_id"]
        assert second.owner.threads.search() == []
        assert len(first.owner.threads.search()) == 1
        with pytest.raises(NotFoundError):
            second.owner.threads.get(id)


def test_who_has_no_token_is_refused(clients: Clients) -> None:
    for token in ("wrong", ""):
        with pytest.raises(AuthenticationError):
            clients.client(token).threads.search()


def test_an_oversized_body_is_refused(clients: Clients) -> None:
    with pytest.raises(APIStatusError) as caught:
        clients.owner.threads.create(metadata={"a": "x" * (17 << 20)})
    assert caught.value.status_code == 413
    assert caught.value.code == "too-large"


def test_a_store_that_is_served_for_reading_is_not_changed(tmp_path: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        run_on(store, "t", support(), {"log": []})
        with serving(store, {"support": support}, work=False, write=False) as clients:
            threads = clients.owner.threads
            assert values_of(threads, "t")["log"] == ["planned plainly", "replied"]
            for call in (threads.create, lambda: threads.delete("t"), lambda: threads.update("t", metadata={})):
                with pytest.raises(PermissionDeniedError):
                    call()
        assert [each.thread for each in store.threads()] == ["t"]


def test_threads_are_found_by_their_metadata_without_a_look_at_the_others(clients: Clients) -> None:
    threads, names = clients.owner.threads, iter("abc")
    for user in ("ada-of-kelp", "bob-of-kelp", "ada-of-kelp"):
        threads.create(thread_id=next(names), metadata={"user": user, "place": 1207, "text": 'a "quoted" \\ word'})
    assert [each["thread_id"] for each in threads.search(metadata={"user": "ada-of-kelp"})] == ["c", "a"]
    threads.update("a", metadata={"user": "eve-of-kelp"})
    run_on(clients.store, "c", support(), {"messages": [("user", "hello")]})
    assert [each["thread_id"] for each in threads.search(metadata={"user": "ada-of-kelp"})] == ["c"], "a had it earlier"
    assert [each["thread_id"] for each in threads.search(metadata={"user": "eve-of-kelp", "place": 1207})] == ["a"]
    assert [each["thread_id"] for each in threads.search(metadata={"place": 1207})] == ["c", "a", "b"], (
        "the last changed first"
    )
    assert len(threads.search(metadata={"text": 'a "quoted" \\ word'})) == 3
    assert threads.search(metadata={"user": "nobody"}) == []
    assert threads.count(metadata={"user": "bob-of-kelp"}) == 1


def test_threads_are_found_by_metadata_of_before_a_prune_and_helpers_are_not(clients: Clients) -> None:
    threads, store = clients.owner.threads, clients.store
    threads.create(thread_id="pruned", metadata={"owner": "ivy"})
    threads.update("pruned", metadata={"topic": "kelp"})
    store.maintenance.prune(prefix="pruned", keep_last=1)
    assert len(store.thread(thread_name("pruned", RECORD)).log()) == 1
    assert [each["thread_id"] for each in threads.search(metadata={"owner": "ivy"})] == ["pruned"]
    threads.create(thread_id="temporary-ivy", metadata={"owner": "ivy"})
    assert threads.get("temporary-ivy")["metadata"] == {"owner": "ivy"}
    assert [each["thread_id"] for each in threads.search(metadata={"owner": "ivy"})] == ["pruned"]
