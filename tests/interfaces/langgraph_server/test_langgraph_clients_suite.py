"""Every method of LangGraph's Python client, sync and async, with the answers that its types say."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

import msgspec
import pytest
from langgraph_sdk import get_client, schema
from langgraph_sdk.client import AssistantsClient, CronClient, RunsClient, StoreClient, ThreadsClient
from typing_extensions import TypedDict, is_typeddict

import holdfast
from tests import servers
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Clients, serving
from tests.support.nightly import mostly_nightly

PARTS = {
    "assistants": AssistantsClient,
    "threads": ThreadsClient,
    "runs": RunsClient,
    "crons": CronClient,
    "store": StoreClient,
}
ELSEWHERE = {("threads", "stream"), ("threads", "join_stream")}
"""What the suite of the event protocol calls."""

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
METHODS = {(part, name) for part, kind in PARTS.items() for name, _ in inspect.getmembers(kind, inspect.isfunction)}
CALLED = {(part, name) for part, name in METHODS if not name.startswith("_")} - ELSEWHERE


def checkable(kind: Any) -> Any:
    """Return a type of the client that answers can be checked by: without the context, which may be anything."""
    if get_origin(kind) is list:
        return list[checkable(get_args(kind)[0])]  # type: ignore[misc]
    hints = get_type_hints(kind) if is_typeddict(kind) else {}
    if hints.pop("context", None) is None:
        return kind
    return TypedDict(kind.__name__, hints)  # type: ignore[operator]


class Counted:
    """A client whose calls are counted, and awaited if they have to be."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls = Counter[tuple[str, str]]()

    async def __call__(self, method: str, *args: Any, is_: Any = None, **options: Any) -> Any:
        """Call a method, and check that the answer is of a type. A stream is read to its end."""
        part, _, name = method.partition(".")
        self.calls[part, name] += 1
        found = getattr(getattr(self._client, part), name)(*args, **options)
        if inspect.isasyncgen(found) or hasattr(found, "__aiter__"):
            return [each async for each in found]
        if hasattr(found, "__next__"):
            return list(found)
        if inspect.isawaitable(found):
            found = await found
        if is_ is not None:
            msgspec.convert(found, checkable(is_))
        return found

    async def fails(self, status: int, method: str, *args: Any, **options: Any) -> None:
        """Call a method, and check that it is refused."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the client raises several
            await self(method, *args, **options)
        response: Any = getattr(caught.value, "response", None)
        assert response is not None, caught.value
        assert response.status_code == status, response.text


async def of_assistants(call: Counted) -> None:
    """Assistants: those of graphs, further ones, versions, schemas."""
    Assistant = schema.Assistant
    first = await call("assistants.get", "support", is_=Assistant)
    assert (await call("assistants.get", first["assistant_id"])) == first
    await call.fails(404, "assistants.get", "missing")
    made = await call(
        "assistants.create",
        "support",
        context={"tone": "gruffly"},
        metadata={"suite": "a", "nested": {"b": 1, "c": 2}},
        name="Gruff",
        description="It is gruff",
        is_=Assistant,
    )
    id = made["assistant_id"]
    assert await call("assistants.create", "support", assistant_id=id, if_exists="do_nothing") == made
    await call.fails(409, "assistants.create", "support", assistant_id=id)
    await call.fails(404, "assistants.create", "missing")
    changed = await call("assistants.update", id, context={"tone": "softly"}, metadata={"more": 1}, is_=Assistant)
    assert (changed["version"], changed["metadata"]["more"]) == (2, 1)
    await call("assistants.update", id, name="Soft", description="It is soft")
    versions = await call("assistants.get_versions", id, is_=list[schema.AssistantVersion])
    assert [each["version"] for each in versions] == [3, 2, 1]
    assert len(await call("assistants.get_versions", id, limit=1, offset=1)) == 1
    assert len(await call("assistants.get_versions", id, metadata={"more": 1})) == 2
    assert (await call("assistants.set_latest", id, 1, is_=Assistant))["context"] == {"tone": "gruffly"}
    await call.fails(404, "assistants.set_latest", id, 9)
    found = await call("assistants.search", metadata={"nested": {"b": 1}}, is_=list[schema.Assistant])
    assert [each["assistant_id"] for each in found] == [id]
    whole = await call("assistants.search", graph_id="support", sort_by="name", sort_order="asc", limit=1, offset=0)
    assert len(whole) == 1
    paged = await call("assistants.search", limit=1, response_format="object")
    assert (len(paged["assistants"]), paged["next"]) == (1, "1")
    assert await call("assistants.search", name="gru", select=["name"]) == [{"name": "Gruff"}]
    assert await call("assistants.count", metadata={"suite": "a"}, is_=int) == 1
    assert await call("assistants.count", graph_id="nested") == 1
    assert {each["id"] for each in (await call("assistants.get_graph", "support"))["nodes"]} >= {"plan", "reply"}
    assert (await call("assistants.get_graph", "nested", xray=True))["nodes"]
    schemas = await call("assistants.get_schemas", "support", is_=schema.GraphSchema)
    assert "messages" in schemas["state_schema"]["properties"]
    assert set(await call("assistants.get_subgraphs", "nested", is_=schema.Subgraphs)) == {"inner"}
    assert await call("assistants.get_subgraphs", "support") == {}
    assert set(await call("assistants.get_subgraphs", "nested", namespace="inner", recurse=True)) == {"inner"}
    thread = (await call("threads.create"))["thread_id"]
    other = (await call("threads.create"))["thread_id"]
    await call("runs.wait", thread, id, input=HELLO)
    await call("runs.wait", other, "support", input=HELLO)
    await call("assistants.delete", id, delete_threads=True)
    await call.fails(404, "threads.get", thread)
    await call("threads.get", other)
    await call.fails(404, "assistants.get", id)
    await call.fails(400, "assistants.delete", first["assistant_id"])


async def of_threads(call: Counted) -> None:
    """Threads: their metadata, states, history, times to live."""
    Thread = schema.Thread
    made = await call("threads.create", metadata={"suite": "t"}, graph_id="support", is_=Thread)
    id = made["thread_id"]
    named = f"named-{id}"
    await call("threads.create", thread_id=named, metadata={"suite": "t"})
    await call.fails(409, "threads.create", thread_id=named)
    assert (await call("threads.create", thread_id=named, if_exists="do_nothing"))["thread_id"] == named
    steps = [{"updates": [{"values": {"log": ["first"]}, "as_node": "plan"}]}]
    copied = await call("threads.create", graph_id="support", supersteps=steps)
    assert copied["values"]["log"] == ["first"]
    assert (await call("threads.get", id, is_=Thread))["status"] == "idle"
    await call.fails(404, "threads.get", "missing")
    updated = await call("threads.update", id, metadata={"more": [1]}, is_=Thread)
    assert updated["metadata"] == {"suite": "t", "graph_id": "support", "more": [1]}
    assert await call("threads.update", id, metadata={"minimal": True}, return_minimal=True) is None
    lasting = await call("threads.create", ttl=60)
    ttl = (await call("threads.get", lasting["thread_id"], include=["ttl"]))["ttl"]
    assert (ttl["ttl_minutes"], ttl["strategy"]) == (60, "delete")
    assert (await call("threads.get", id, include=["ttl"]))["ttl"] is None
    await call("threads.update", id, metadata={}, ttl={"ttl": 43_200, "strategy": "delete"})
    expires = (await call("threads.get", id, include=["ttl"]))["ttl"]["expires_at"]
    assert datetime.fromisoformat(expires) > datetime.now(UTC) + timedelta(days=29)
    await call.fails(422, "threads.create", ttl={"ttl": 5, "strategy": "keep_latest"})
    await call.fails(400, "threads.create", ttl=-1)
    await call.fails(422, "threads.get", id, include=["size"])

    values = {"log": ["second"], "messages": [{"role": "user", "content": "kelp"}]}
    where = await call("threads.update_state", id, values, as_node="plan", is_=schema.ThreadUpdateStateResponse)
    await call("threads.update_state", id, {"log": ["third"]}, as_node="reply", checkpoint=where["checkpoint"])
    await call("threads.update_state", id, {"log": ["branch"]}, checkpoint_id=where["checkpoint"]["checkpoint_id"])
    state = await call("threads.get_state", id, is_=schema.ThreadState)
    assert state["values"]["log"] == ["second", "branch"]
    earlier = await call("threads.get_state", id, checkpoint=where["checkpoint"], is_=schema.ThreadState)
    assert earlier["values"]["log"] == ["second"]
    again = await call("threads.get_state", id, checkpoint_id=where["checkpoint"]["checkpoint_id"], subgraphs=True)
    assert again["values"] == earlier["values"]
    assert set(await call("threads.get_state", id, select=["values.log", "next"])) == {"values", "next"}
    await call.fails(404, "threads.get_state", id, checkpoint_id="1ef4a9b8-d7da-679a-a45a-872054341df2")
    history = await call("threads.get_history", id, is_=list[schema.ThreadState])
    assert len(history) >= 3
    assert len(await call("threads.get_history", id, limit=1)) == 1
    assert len(await call("threads.get_history", id, before=history[0]["checkpoint"])) == len(history) - 1
    assert await call("threads.get_history", id, metadata={"source": "update"})
    assert await call("threads.get_history", id, checkpoint=where["checkpoint"], limit=2)

    found = await call("threads.search", metadata={"suite": "t"}, is_=list[schema.Thread])
    assert {each["thread_id"] for each in found} == {id, named}
    assert [each["thread_id"] for each in await call("threads.search", values={"log": ["second", "branch"]})] == [id]
    assert [each["thread_id"] for each in await call("threads.search", ids=[named], status="idle")] == [named]
    ordered = await call("threads.search", metadata={"suite": "t"}, sort_by="thread_id", sort_order="asc", limit=1)
    assert ordered[0]["thread_id"] == min(id, named)
    assert await call("threads.search", ids=[id], select=["thread_id"]) == [{"thread_id": id}]
    paths = {"last": "values.messages[-1].content", "none": "values.messages[7]", "suite": "metadata.suite"}
    (extracted,) = await call("threads.search", ids=[id], extract=paths, select=["thread_id"])
    assert extracted == {"thread_id": id, "extracted": {"last": "kelp", "none": None, "suite": "t"}}
    await call.fails(400, "threads.search", extract={"a": "values..b"})
    await call.fails(400, "threads.search", extract={str(number): "values" for number in range(11)})
    assert await call("threads.count", metadata={"suite": "t"}, is_=int) == 2
    assert await call("threads.count", status="error") == 0
    copy = await call("threads.copy", id)
    assert (await call("threads.get_state", copy["thread_id"]))["values"] == state["values"]
    assert await call("threads.prune", [id], strategy="keep_latest") == {"pruned_count": 1}
    assert len(await call("threads.get_history", id)) == 1
    assert await call("threads.prune", [copy["thread_id"], "missing"]) == {"pruned_count": 1}
    await call("threads.delete", named)
    await call.fails(404, "threads.delete", named)


async def of_runs(call: Counted) -> None:
    """Runs: awaited, streamed, joined, cancelled, on threads and without."""
    Run = schema.Run
    thread = (await call("threads.create", graph_id="support"))["thread_id"]
    made = await call("runs.create", thread, "support", input=HELLO, metadata={"n": 1}, is_=Run)
    assert (await call("runs.join", thread, made["run_id"]))["log"] == ["planned plainly", "replied"]
    assert (await call("runs.get", thread, made["run_id"], is_=Run))["status"] == "success"
    assert len(await call("runs.list", thread, is_=list[schema.Run])) == 1
    assert await call("runs.list", thread, status="error") == []
    assert await call("runs.list", thread, limit=1, select=["status"]) == [{"status": "success"}]
    stored = await call("runs.join_stream", thread, made["run_id"], stream_mode="values")
    assert stored[-1].data["log"] == ["planned plainly", "replied"]
    rest = await call("runs.join_stream", thread, made["run_id"], last_event_id=stored[-2].id)
    assert [each.id for each in rest] == [stored[-1].id]

    modes = ["values", "updates", "custom", "messages-tuple", "debug", "tasks", "checkpoints", "tools"]
    options = {"input": HELLO, "stream_resumable": True, "if_not_exists": "create", "config": {"tags": ["a"]}}
    parts = await call("runs.stream", f"new-{thread}", "support", stream_mode=modes, **options)
    assert [int(each.id) for each in parts] == list(range(len(parts)))
    typed = await call("runs.stream", thread, "support", input=HELLO, stream_mode="updates", version="v2")
    assert {each["type"] for each in typed} >= {"updates"}
    for mode in ("messages", "events", "values"):
        assert await call("runs.stream", None, "support", input=HELLO, stream_mode=mode, durability="sync")
    inner = await call("runs.stream", None, "nested", input=HELLO, stream_mode="updates", stream_subgraphs=True)
    assert any("|inner" in each.event for each in inner)

    waited = await call("runs.wait", thread, "support", input=HELLO, context={"tone": "kindly"}, durability="async")
    assert waited["log"][-2] == "planned kindly"
    before = len(await call("threads.get_history", thread, limit=100))
    await call("runs.wait", thread, "support", input=HELLO, durability="exit")
    assert len(await call("threads.get_history", thread, limit=100)) == before + 1
    checkpoint = (await call("threads.get_history", thread, limit=1))[0]["checkpoint"]
    await call("runs.wait", thread, "support", input=HELLO, checkpoint=checkpoint)
    await call("runs.wait", thread, "support", input=HELLO, checkpoint_id=checkpoint["checkpoint_id"])
    await call("runs.wait", thread, "support", input=HELLO, interrupt_before=["reply"])
    assert (await call("threads.get_state", thread))["next"] == ["reply"]
    await call("runs.wait", thread, "support", interrupt_after="*")

    asks = (await call("threads.create"))["thread_id"]
    asked = await call("runs.wait", asks, "approval", input=HELLO)
    question = asked["__interrupt__"][0]["id"]
    assert (await call("threads.search", status="interrupted", ids=[asks]))[0]["interrupts"]
    unknown: Any = {"resume": {"0" * 32: "Eve"}}
    with pytest.raises(Exception, match="UnknownInterruptError"):
        await call("runs.wait", asks, "approval", command=unknown, strict_resume=True)
    assert (await call("threads.get", asks))["status"] == "interrupted"
    done = await call("runs.wait", asks, "approval", command={"resume": {question: "Ada"}}, strict_resume=True)
    assert done["log"][-2] == "approved by Ada"
    await call("runs.wait", asks, "support", command={"update": {"log": ["by hand"]}, "goto": "reply"})

    busy = (await call("threads.create"))["thread_id"]
    slow = {**HELLO, "pause": 8}
    first = await call("runs.create", busy, "support", input=slow)
    await call.fails(409, "runs.create", busy, "support", input=HELLO, multitask_strategy="reject")
    second = await call("runs.create", busy, "support", input=HELLO, multitask_strategy="enqueue")
    assert second["status"] == "pending"
    third = await call("runs.create", busy, "support", input=slow, multitask_strategy="interrupt")
    assert (await call("runs.get", busy, first["run_id"]))["status"] == "interrupted"
    await call("runs.create", busy, "support", input=slow, multitask_strategy="rollback")
    await call.fails(404, "runs.get", busy, third["run_id"])
    await call("runs.cancel_many", thread_id=busy, status="all")
    later = await call("runs.create", busy, "support", input=HELLO, after_seconds=3600)
    await call("runs.cancel", busy, later["run_id"], wait=True, action="interrupt")
    await call("runs.cancel", busy, later["run_id"])
    await call("runs.delete", busy, later["run_id"])
    batch = [
        {"thread_id": thread, "assistant_id": "support", "input": HELLO},
        {"assistant_id": "support", "input": HELLO},
    ]
    for each in await call("runs.create_batch", batch, is_=list[schema.Run]):
        assert await call("runs.join", each["thread_id"], each["run_id"])
    kept = await call("runs.create", None, "support", input=HELLO, on_completion="keep")
    await call("runs.join", kept["thread_id"], kept["run_id"])
    await call("threads.get", kept["thread_id"])
    assert await call("runs.wait", None, "support", input=HELLO, on_disconnect="cancel", on_completion="delete")

    for refused in (
        {"feedback_keys": ["a"]},
        {"langsmith_tracing": {"project_name": "a"}},
        {"config": {"callbacks": 1}},
    ):
        await call.fails(422, "runs.stream", thread, "support", input=HELLO, **refused)
    await call.fails(400, "runs.create", thread, "support", input=HELLO, webhook="http://127.0.0.1:9/")
    await call.fails(404, "runs.create", thread, "missing", input=HELLO)
    await call.fails(404, "runs.create", "missing", "support", input=HELLO, if_not_exists="reject")


async def of_crons(call: Counted) -> None:
    """Runs by the clock."""
    Cron = schema.Cron
    thread = (await call("threads.create"))["thread_id"]
    made = await call("crons.create", "support", schedule="27 15 * * *", input=HELLO, metadata={"s": 1}, is_=Cron)
    assert (made["enabled"], made["on_run_completed"], made["next_run_date"][11:16]) == (True, "delete", "15:27")
    end = datetime.now(UTC) + timedelta(days=400)
    on_thread = await call(
        "crons.create_for_thread",
        thread,
        "support",
        schedule="0 9 1 1 *",
        timezone=ZoneInfo("Europe/Berlin"),
        input=HELLO,
        end_time=end,
        enabled=True,
        multitask_strategy="enqueue",
        stream_mode=["values"],
        durability="sync",
        is_=Cron,
    )
    assert (on_thread["timezone"], on_thread["thread_id"]) == ("Europe/Berlin", thread)
    assert on_thread["next_run_date"][5:16] == "01-01T08:00"
    assert await call("crons.count", is_=int) == 2
    assert await call("crons.count", thread_id=thread, assistant_id="support") == 1
    assert await call("crons.count", metadata={"s": 1}) == 1
    found = await call("crons.search", metadata={"s": 1}, is_=list[schema.Cron])
    assert [each["cron_id"] for each in found] == [made["cron_id"]]
    both = await call("crons.search", assistant_id="support", sort_by="next_run_date", sort_order="asc", limit=5)
    assert len(both) == 2
    assert await call("crons.search", thread_id=thread, select=["schedule"]) == [{"schedule": "0 9 1 1 *"}]
    changed = await call("crons.update", made["cron_id"], schedule="0 10 * * *", timezone="UTC", is_=Cron)
    assert changed["next_run_date"][11:16] == "10:00"
    assert (await call("crons.update", made["cron_id"], enabled=False, input={"log": ["x"]}))["next_run_date"] is None
    assert [each["cron_id"] for each in await call("crons.search", enabled=False)] == [made["cron_id"]]
    assert (await call("crons.update", on_thread["cron_id"], end_time=None))["end_time"] is None
    await call.fails(400, "crons.create", "support", schedule="every 5m")
    await call.fails(400, "crons.create", "support", schedule="61 * * * *")
    await call.fails(400, "crons.create", "support", schedule="0 * * * *", timezone="Mars/Olympus")
    await call.fails(404, "crons.create", "missing", schedule="0 * * * *")
    await call.fails(404, "crons.create_for_thread", "missing", "support", schedule="0 * * * *")
    await call.fails(400, "crons.create", "support", schedule="0 * * * *", webhook="http://10.0.0.1/")
    await call("crons.delete", made["cron_id"])
    await call("crons.delete", on_thread["cron_id"])
    await call.fails(404, "crons.delete", made["cron_id"])
    await call.fails(404, "crons.update", "1ef3cefa-4c09-6926-96d0-3dc97fd5e39b", enabled=True)


async def of_store(call: Counted) -> None:
    """Items of the store."""
    place = ["documents", "ada"]
    assert await call("store.put_item", place, key="a", value={"title": "Kelp", "n": 1}) is None
    await call("store.put_item", [*place, "drafts"], key="b", value={"title": "Wrack"})
    item = await call("store.get_item", place, key="a", is_=schema.Item)
    assert item["value"] == {"title": "Kelp", "n": 1}
    found = await call("store.search_items", ["documents"], limit=5, is_=schema.SearchItemsResponse)
    assert {each["key"] for each in found["items"]} == {"a", "b"}
    assert len((await call("store.search_items", ["documents"], filter={"n": 1}))["items"]) == 1
    names = await call("store.list_namespaces", prefix=["documents"], is_=schema.ListNamespaceResponse)
    assert names["namespaces"] == [place, [*place, "drafts"]]
    assert (await call("store.list_namespaces", prefix=["documents"], max_depth=2))["namespaces"] == [place]
    await call("store.delete_item", place, key="a")
    await call.fails(404, "store.get_item", place, key="a")


ALL = (of_assistants, of_threads, of_runs, of_crons, of_store)


async def whole(call: Counted) -> None:
    """Make all calls."""
    for each in ALL:
        await each(call)


def check(calls: Counter[tuple[str, str]]) -> None:
    """Check that every method was called, and how many calls were made."""
    assert set(calls) == CALLED
    assert calls.total() >= 120, calls.total()


def suite_async(clients: Clients) -> Counter[tuple[str, str]]:
    """Make all calls by the asynchronous client."""

    async def calls() -> Counter[tuple[str, str]]:
        async with get_client(url=clients.served.url, api_key=clients.served.token, timeout=SECONDS) as client:
            counted = Counted(client)
            await whole(counted)
            return counted.calls

    return asyncio.run(calls())


def suite_sync(clients: Clients) -> Counter[tuple[str, str]]:
    """Make them by the synchronous one."""
    counted = Counted(clients.owner)
    asyncio.run(whole(counted))
    return counted.calls


@pytest.mark.time_limit(300)
@pytest.mark.parametrize(
    ("kind", "suite"),
    mostly_nightly(
        [(kind, suite) for kind in ("sqlite", "postgres") for suite in (suite_sync, suite_async)],
        daily=[("sqlite", suite_sync)],
    ),
)
def test_every_method_of_the_client(tmp_path: Path, kind: str, suite: Callable[[Clients], Any]) -> None:
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else servers.postgres()
    with holdfast.open(url) as store, serving(store) as clients:
        check(suite(clients))


def test_the_sync_client_has_the_same_methods(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, work=False) as clients:
        for part, name in CALLED | ELSEWHERE:
            assert callable(getattr(getattr(clients.owner, part), name))
    assert len(CALLED | ELSEWHERE) >= 45
    assert get_type_hints(schema.Cron)["enabled"] is bool
