"""Protection: whatever a program writes, no secret is stored, and what was replaced is recorded."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import open_body
from holdfast.errors import ConfigError, DeniedError, InvalidError, NotFoundError, VetoError
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.security.sensitive.detector import Detector
from holdfast.security.sensitive.log_filter import LOGGERS
from holdfast.security.sensitive.markers import Markers
from holdfast.store.store import AsyncStore, Store
from tests.agents.greeters import Greeter
from tests.security.sensitive.samples import github_token
from tests.support.cases import case


class FixedKeys:
    """Keys of a test."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys or (b"k" * 32,)

    def keys(self) -> tuple[bytes, ...]:
        return self._keys


KEYS = FixedKeys()


def make_store(**options: Any) -> Store:
    return Store(Engine(EngineContext(MemoryBackend(), fold_every=3, **options)), "")


@pytest.fixture
def store() -> Iterator[Store]:
    with make_store() as opened:
        yield opened


def stored_text(store: Store | AsyncStore) -> str:
    """Everything that is stored: columns, and the content of bodies."""
    context, parts = store._engine.context, []
    for table in TABLES:
        for row in run(context.backend.read([Scan(table, ())]))[0]:
            parts.append(repr((row.key, row.columns)))
            if row.body:
                try:
                    parts.append(open_body(row, context.max_bytes).decode("latin-1"))
                except holdfast.errors.HoldfastError:
                    parts.append(row.body.decode("latin-1"))
    return "\n".join(parts)


def secret(name: str) -> str:
    return github_token(Random(name))


# Every way to write --------------------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def _graph(saver: HoldfastSaver, key: str, *, interrupt: bool = False) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"you said {key}")]})
    builder.add_node("again", lambda state: {"messages": [AIMessage("done")]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "again")
    builder.add_edge("again", END)
    return builder.compile(checkpointer=saver, interrupt_before=["again"] if interrupt else None)


def _langgraph(store: Store, key: str) -> None:
    graph = _graph(HoldfastSaver(store), key)
    config: Any = {"configurable": {"thread_id": "graph"}, "metadata": {"note": key}}
    for _ in range(2):
        graph.invoke({"messages": [HumanMessage(f"my key: {key}")]}, config)


def _pending(store: Store, key: str) -> None:
    config: Any = {"configurable": {"thread_id": "pending"}}
    _graph(HoldfastSaver(store), key, interrupt=True).invoke({"messages": [HumanMessage(key)]}, config)


def _agent(store: Store, key: str) -> None:
    agent = store.agents.create(Greeter, "greeter", configuration={"greeting": key}, metadata={"why": key})
    agent.start()
    agent.greet(key)
    agent.notes = {"api_key": key}
    agent.save()
    agent.fail(f"broken: {key}")


def _transaction(store: Store, key: str) -> None:
    with store.transaction() as together:
        together.put("in-transaction", {"text": key})
        together.state(agent="t")["text"] = key


def _branches(store: Store, key: str) -> None:
    thread = store.thread("merged")
    thread.put({"a": 1, "b": 1})
    thread.fork("other")
    thread.update({"a": key})
    thread.switch("other")
    thread.update({"b": key})
    thread.merge("main")
    thread.restore(at="HEAD~1")


def _hooked(store: Store, key: str) -> None:
    @store.hooks.before("state.set", scope="user:hooked", record=True)
    def replace(call: Any) -> Any:
        call.note(seen=f"{call.value}")
        return f"{call.value} and {key}"

    store.state(user="hooked")["note"] = key

    @store.hooks.before("state.set", scope="user:vetoed", record=True)
    def veto(call: Any) -> None:
        raise VetoError(f"no {call.value}")

    with pytest.raises(VetoError) as vetoed:
        store.state(user="vetoed")["note"] = key
    assert (key in str(vetoed.value)) == (not store.redaction.list())

    store.hooks.after("state.set", scope="user:after", record=True, name="after")(lambda call: None)
    store.state(user="after")["note"] = key
    store.hooks.before("checkpoint.save", record=True, name="saved")(lambda call: None)
    store.thread("with-hook").put({"text": key}, metadata={"note": key})


def _reasons(store: Store, key: str) -> None:
    store.thread("reasons").put({"n": 1})
    thread = store.thread("reasons")
    for _ in range(2):
        thread.pin(reason=f"for {key}")
        thread.hold(reason=f"case {key}")
        store.thread("reasons").hold(reason=f"other {key}")
    assert len(thread.pins()) == 1
    thread.unpin(reason=f"for {key}")
    thread.release(reason=f"case {key}")
    store.thread("reasons").release(reason=f"other {key}")
    assert not thread.pins()
    assert not thread.holds()
    thread.pin(reason=f"again {key}")


def _text_in_parts(store: Store, key: str) -> None:
    """A secret that no single write contains."""
    thread = store.thread("parts")
    text = "The text is long enough to be stored as a difference. " * 100
    thread.put({"text": text + key[:10]})
    thread.put({"text": text + key})
    thread.update({"text": text + "changed, and " + key})


def _large_dicts(store: Store, key: str) -> None:
    large: dict[str, Any] = {f"k{number}": "v" * 40 for number in range(60)}
    store.thread("large-dict").put({"map": {**large, key: {"x": key, "y": "z" * 2000}}})
    store.thread("large-dict").put({"map": {**large, "new": 1, key: {"x": key, "y": "z" * 1999}, f"also {key}": "v"}})
    state = store.state(agent="large-dict")
    state["map"] = large
    state.patch("map", {(key,): {"x": key}})
    state.patch("map", {(key, "x"): f"more {key}"})  # there is no such key any more: it is created again


def _patches(store: Store, key: str) -> None:
    state = store.state(agent="patched")
    state["value"] = {"a": {"b": ["x", "y"]}, "many": {str(number): "v" * 40 for number in range(60)}}
    state.patch("value", {("a", "b", 1): key, ("many", "7"): key, ("new",): {"deep": [key]}})
    state.append("list", key)
    state.append("list", {"k": key})
    state.change("value", lambda value: {**value, "changed": key})


WRITES: dict[str, Callable[[Store, str], object]] = {
    "thread.put": lambda store, key: store.thread("plain").put({"messages": ["hi", {"role": "user", "content": key}]}),
    "thread.update": lambda store, key: (
        store.thread("u").put({"a": {"b": 1}}),
        store.thread("u").update({"a.b": key, "c": [key]}),
    ),
    "metadata": lambda store, key: store.thread("meta").put({"a": 1}, metadata={"note": {"deep": [key]}}),
    "large value": lambda store, key: store.thread("large").put({"text": "x " * 50_000 + key}),
    "large list": lambda store, key: store.thread("list").put({"messages": ["m"] * 100 + [key] + ["n"] * 100}),
    "key of a dict": lambda store, key: store.thread("dict").put({"map": {key: 1, "other": {"x" + " " + key: 2}}}),
    "below a key of a dict": lambda store, key: store.thread("below").put(
        {"map": {key: {"x": key}, "y": {key: [key]}}}
    ),
    "key of a large dict": _large_dicts,
    "bytes": lambda store, key: store.thread("bytes").put({"data": key.encode()}),
    "tuple and set": lambda store, key: store.thread("types").put({"t": (key, 1), "s": {key, 2}, "e": ValueError(key)}),
    "scope": lambda store, key: store.state(agent="a").set("note", f"x {key}"),
    "patches": _patches,
    "reasons": _reasons,
    "text in parts": _text_in_parts,
    "transaction": _transaction,
    "branches": _branches,
    "langgraph": _langgraph,
    "pending writes": _pending,
    "agent": _agent,
    "hooks": _hooked,
    "session": lambda store, key: store.sessions.start("s1", metadata={"note": key}),
    "artifact": lambda store, key: store.artifacts.register(b"content", id="a1", metadata={"note": key}),
    "topic": lambda store, key: store.sharing.topic("news", agent="a").publish({"text": key}),
    "requests": lambda store, key: store.sharing.requests("help", agent="a").ask({"text": key}),
    "pipeline": lambda store, key: store.sharing.pipeline("work", ["one"], agent="a").put({"text": key}),
    "document": lambda store, key: store.sharing.document("text", agent="a").edit(lambda _: {"text": key}),
}


@pytest.mark.parametrize("action", ["tokenise", "redact"])
def test_no_write_stores_a_secret(subtests: pytest.Subtests, action: Any) -> None:
    for name, write in WRITES.items():
        with case(subtests, name), make_store(project=True) as store:
            store.redaction.protect(action, keys=KEYS)
            write(store, secret(name))
            store.hooks.drain()
            assert secret(name) not in stored_text(store)
            assert secret(name)[:20] not in stored_text(store) or name == "text in parts"
            assert store.audit.query(action="protect"), "it was replaced in silence"
            assert store.maintenance.verify().ok
            assert store.audit.verify().ok


def test_every_write_stores_the_secret_without_a_policy(subtests: pytest.Subtests) -> None:
    """The control: the search finds all of them."""
    for name, write in WRITES.items():
        with case(subtests, name), make_store(project=True) as store:
            write(store, secret(name))
            store.hooks.drain()
            assert secret(name) in stored_text(store)


def test_a_refused_write_changes_nothing(subtests: pytest.Subtests) -> None:
    for name, write in WRITES.items():
        with case(subtests, name), make_store() as store:
            store.redaction.protect("refuse")
            with pytest.raises(DeniedError) as error:
                write(store, secret(name))
            assert secret(name) not in f"{error.value} {error.value.where} {error.value.hint}"
            if not isinstance(error.value, VetoError):
                assert error.value.code == "redaction-refused"
                assert store.audit.query(action="protect", outcome="denied")
            assert secret(name) not in stored_text(store)


# Reading back --------------------------------------------------------------------------------------------------------


def test_tokens_are_revealed_in_their_thread_only(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    key = secret("x")
    store.thread("a").put({"message": HumanMessage(f"use {key}!"), "again": key, "n": 1})
    store.thread("b").put({"text": key})
    state, other = store.thread("a").get().state, store.thread("b").get().state
    assert key not in str(state)
    token = state["again"]
    assert token in state["message"].content  # equal secrets of a thread have equal tokens
    assert token != other["text"]
    assert store.redaction.reveal(state, thread="a") == {"message": HumanMessage(f"use {key}!"), "again": key, "n": 1}
    assert store.redaction.reveal(state, thread="b") == state
    assert store.redaction.reveal("nothing", thread="a") == "nothing"
    record = store.audit.query(action="reveal", thread="a")[-1]
    assert record.detail == {"formats": {"github-token": 2}, "left": 0}
    store.state(agent="x")["k"] = key
    assert store.redaction.reveal(store.state(agent="x")["k"], agent="x") == key


def test_redaction_shows_what_is_equal(store: Store) -> None:
    store.redaction.protect("redact", keys=KEYS)
    store.thread("a").put({"x": secret("1"), "y": secret("1"), "z": secret("2")})
    store.thread("b").put({"x": secret("1")})
    state = store.thread("a").get().state
    assert state["x"] == state["y"] == store.thread("b").get().state["x"] != state["z"]
    assert re.fullmatch(r"\[redacted:github-token:[0-9a-f]{8}\.[0-9a-f]{20}\.[0-9a-f]{12}\]", state["x"])
    with make_store() as other:
        other.redaction.protect("redact", keys=FixedKeys(b"o" * 32))
        other.thread("a").put({"x": secret("1")})
        assert other.thread("a").get().state["x"] != state["x"]


def test_keys_are_rotated(store: Store) -> None:
    old, new = b"1" * 32, b"2" * 32
    store.redaction.protect(keys=FixedKeys(old))
    store.thread("a").put({"text": secret("x")})
    first = store.thread("a").get().state["text"]
    store.redaction.protect(keys=FixedKeys(new, old))
    store.thread("a").put({"text": secret("x"), "other": f"{secret('y')} {first}"})
    state = store.thread("a").get().state
    assert state["text"] != first
    assert first in state["other"]  # a token is not replaced again
    revealed = store.redaction.reveal(state, thread="a")
    assert revealed == {"text": secret("x"), "other": f"{secret('y')} {secret('x')}"}
    assert store.redaction.reveal(state, thread="a", keys=FixedKeys(b"3" * 32)) == state


def test_a_forged_marker_hides_nothing(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    key = secret("x")
    forged = f"[token:github-token:00000000.{key}.000000000000]"
    genuine = Markers(KEYS, "").tokenise("v", "field", "a")
    altered = genuine.replace("field", "email")
    store.thread("a").put({"forged": forged, "password": forged, "api_key": altered, "token": genuine})
    state = store.thread("a").get().state
    assert key not in str(state)
    assert state["token"] == genuine
    assert altered not in state["api_key"]


def test_the_same_state_again_adds_nothing(store: Store) -> None:
    """A graph goes on with the values that it has: they are replaced by the same tokens, and recorded once."""
    store.redaction.protect(keys=KEYS)
    messages = [f"message {number}" for number in range(40)]
    messages[7] = f"my key is {secret('x')}"
    for number in range(5):
        messages.append(f"more {number}")
        store.thread("a").put({"messages": messages})
    assert store.thread("a").put({"messages": messages}, if_changed=True).id == store.thread("a").get().id
    assert [change.path for change in store.thread("a").diff("HEAD~1", "HEAD").changes] == [("messages", 44)]
    assert len(store.audit.query(action="protect")) == 1
    messages[30] = messages[7]
    store.thread("a").put({"messages": messages})
    (latest, _) = store.audit.query(action="protect")
    assert [each["path"] for each in latest.detail["replaced"]] == ["messages[30]"]


def test_langgraph_puts_of_the_same_checkpoint_are_one(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    saver = HoldfastSaver(store)
    config: Any = {"configurable": {"thread_id": "t"}}
    _graph(saver, secret("x")).invoke({"messages": [HumanMessage(secret("x"))]}, config)
    found = saver.get_tuple(config)
    assert found is not None
    steps = len(store.thread("t").log())
    plain = store.redaction.reveal(found.checkpoint, thread="t")
    assert plain != found.checkpoint
    saver.put(found.parent_config or config, plain, found.metadata, {})
    assert len(store.thread("t").log()) == steps


def test_reports_have_no_secrets(store: Store) -> None:
    """Not even where these are keys, which are parts of paths."""
    key = secret("x")
    store.thread("a").put({"map": {key: {"x": key}}, "list": [{key: [key]}]})
    store.thread("a").put({"map": {**{f"k{number}": "v" * 40 for number in range(60)}, key: {"x": key}}})
    report = store.redaction.scan(history=True)
    assert len(report.findings) >= 5
    assert key not in str(report)
    assert len(set(report.findings)) == len(report.findings)


def test_policies_by_scope_and_key(store: Store) -> None:
    key = secret("x")
    store.redaction.protect("redact", keys=KEYS)
    store.redaction.protect("refuse", scope="agent:strict")
    store.redaction.protect("allow", scope="vault", key="secrets")
    store.redaction.protect("tokenise", formats="email", scope="mail-*", keys=KEYS)
    store.thread("vault").put({"secrets": key, "other": key})
    state = store.thread("vault").get().state
    assert state["secrets"] == key
    assert state["other"].startswith("[redacted:")
    with pytest.raises(DeniedError):
        store.state(agent="strict")["x"] = key
    store.thread("mail-1").put({"text": f"a@example.com {key}"})
    store.thread("other").put({"text": "a@example.com"})
    assert re.match(r"\[token:email:.*\] \[redacted:github", store.thread("mail-1").get().state["text"])
    assert store.thread("other").get().state == {"text": "a@example.com"}
    names = [each.name for each in store.redaction.list()]
    assert names == ["redact ** **", "refuse agent:strict **", "allow vault secrets", "tokenise mail-* **"]
    store.redaction.remove("refuse agent:strict **")
    with pytest.raises(NotFoundError):
        store.redaction.remove("refuse agent:strict **")
    store.state(agent="strict")["x"] = key


def test_all_of_a_field_is_a_secret(store: Store, subtests: pytest.Subtests) -> None:
    store.redaction.protect(keys=KEYS)
    plain: dict[str, Any] = {
        "password": "hunter22",
        "config": {"dbPassword": "hunter22", "nested": {"api_key": ["one1", "two2"]}},
        "secrets": {"db": "hunter22", "deep": {"x": "also this"}},
        "cookie": "y" + "x1" * 500_000,
        "schema": {"properties": {"password": {"type": "string", "description": "The password"}}},
        "usage": {"max_tokens": 5, "token_count": "17", "tokens": ["a", "b"]},
        "placeholder": {"password": "${DB_PASSWORD}", "token": "<your token>", "secret": None},
    }
    store.thread("a").put(plain)
    state = store.thread("a").get().state
    for name in ("schema", "usage", "placeholder"):
        with case(subtests, name):
            assert state[name] == plain[name]
    assert "hunter22" not in str(state)
    assert "also this" not in str(state)
    assert "one1" not in str(state)
    assert store.redaction.reveal(state, thread="a") == plain


def test_contents_of_artifacts_are_left_alone(store: Store, subtests: pytest.Subtests) -> None:
    """They are known by their hash. What is said of them is protected."""
    store.redaction.protect(keys=KEYS)
    for size in (1, 2_000, 90_000):
        with case(subtests, size):
            content = f"{secret('x')} token=a1B2c3D4e5F6 ".encode() * size
            id = store.artifacts.register(content, name=secret("x"), metadata={"n": secret("x")}).id
            assert store.artifacts.read(id) == content
            assert secret("x") not in str(store.artifacts.get(id))


def test_messages_between_agents_are_searched_by_names_too(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    store.sharing.topic("news", agent="a").publish({"password": "hunter22"})
    store.sessions.start("s1", metadata={"password": "hunter22"})
    store.sharing.document("d", agent="a").edit(lambda _: {"password": "hunter22"})
    assert "hunter22" not in stored_text(store)


def test_encrypt_has_keys_of_its_own(store: Store) -> None:
    with pytest.raises(InvalidError):
        store.redaction.protect("encrypt")
    store.redaction.protect("encrypt", formats="card", keys=FixedKeys(b"c" * 32))
    store.redaction.protect("tokenise", keys=KEYS)
    store.thread("a").put({"card": "4111 1111 1111 1111", "text": secret("x")})
    state = store.thread("a").get().state
    assert state["card"].startswith("[sealed:card:")
    assert store.redaction.reveal(state, thread="a") == {"card": "4111 1111 1111 1111", "text": secret("x")}
    only_tokens = store.redaction.reveal(state, thread="a", keys=KEYS)
    assert only_tokens == {"card": state["card"], "text": secret("x")}


def test_an_identity_needs_the_right_to_reveal(store: Store) -> None:
    store.redaction.protect(keys=KEYS)
    alice = store.as_identity(user="alice")
    alice.thread("mine").put({"text": secret("x")})
    state = alice.thread("mine").get().state
    with pytest.raises(DeniedError):  # its owner does not have the right `keys`
        alice.redaction.reveal(state, thread="mine")
    with pytest.raises(DeniedError):
        alice.redaction.reveal(state, user="alice")
    assert [each.action for each in store.audit.query(outcome="denied", actor="user:alice")]
    grant = store.access.grant("user:alice", "keys", thread="mine")
    assert alice.redaction.reveal(state, thread="mine") == {"text": secret("x")}
    assert store.audit.query(action="reveal", actor="user:alice")
    with pytest.raises(NotFoundError):
        alice.redaction.reveal(state, thread="other")
    store.access.revoke(grant)
    with pytest.raises(DeniedError):
        alice.redaction.reveal(state, thread="mine")


def test_logs_are_redacted(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    key = secret("x")
    store.redaction.protect("redact", keys=KEYS)
    log = logging.getLogger("holdfast.hooks")
    with caplog.at_level(logging.INFO):
        log.warning("a hook failed with %s", key)
        try:
            raise ValueError(key)
        except ValueError:
            log.exception("failed")
        logging.getLogger("mine").warning("mine %s", key)
    assert key not in "".join(caplog.handler.format(each) for each in caplog.records if each.name != "mine")
    assert key in caplog.text  # the control: other loggers have no filter, until they are given one
    record = logging.LogRecord("mine", logging.INFO, "", 1, "text %s", (key,), None)
    assert store.redaction.log_filter().filter(record)
    assert key not in record.getMessage()


def test_all_loggers_have_a_filter() -> None:
    from pathlib import Path

    source = Path(holdfast.__file__).parent
    found = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r'getLogger\("holdfast\.(\w+)"\)', file.read_text())
    }
    assert found == set(LOGGERS)


def test_async_stores_are_protected() -> None:
    async def use() -> None:
        store = AsyncStore(Engine(EngineContext(MemoryBackend())), "")
        store.redaction.protect(keys=KEYS)
        await asyncio.gather(*(store.thread(f"t{number}").put({"text": secret("x")}) for number in range(5)))
        assert secret("x") not in stored_text(store)
        state = (await store.thread("t1").get()).state
        assert await store.redaction.reveal(state, thread="t1") == {"text": secret("x")}
        assert (await store.redaction.scan()).findings == []
        await store.close()

    asyncio.run(use())


def test_missing_keys_and_wrong_arguments(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_REDACTION_KEYS", raising=False)
    with pytest.raises(DeniedError) as error:
        store.redaction.protect()
    assert error.value.code == "key-missing"
    with pytest.raises(ConfigError):
        store.redaction.protect(keys=FixedKeys(b"short"))
    with pytest.raises(InvalidError):
        store.redaction.protect("hide", keys=KEYS)  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        store.redaction.protect(formats="emails", keys=KEYS)
    with pytest.raises(InvalidError):
        store.redaction.protect(scope="", keys=KEYS)
    assert store.redaction.list() == []


@pytest.mark.parametrize("cold", [False, True])
def test_only_what_is_new_is_searched(monkeypatch: pytest.MonkeyPatch, cold: bool) -> None:
    backend = MemoryBackend()
    messages = [HumanMessage(f"message {number} " + "with some words " * 20, id=str(number)) for number in range(501)]
    searched: list[int] = []
    find = Detector.find

    def counted(self: Detector, text: str) -> Any:
        searched.append(len(text))
        return find(self, text)

    monkeypatch.setattr(Detector, "find", counted)
    first = second = Store(Engine(EngineContext(backend)), "")
    first.redaction.protect(keys=KEYS)
    first.thread("chat").put({"messages": messages[:500], "other": "text"})
    if cold:  # a process that has nothing in its caches
        second = Store(Engine(EngineContext(backend)), "")
        second.redaction.protect(keys=KEYS)
    searched.clear()
    second.thread("chat").put({"messages": messages, "other": "text"})
    assert 300 < sum(searched) < 2_000


def test_messages_of_models_stay_as_they_are(store: Store) -> None:
    """Ids, signatures, encrypted reasoning, usage and images are no secrets, random as they are."""
    random = Random("models")

    def base64_of(size: int) -> str:
        return base64.b64encode(random.randbytes(size)).decode()

    store.redaction.protect("redact", formats="all", keys=KEYS)
    answer = AIMessage(
        [
            {"type": "thinking", "thinking": "Let me see.", "signature": base64_of(240)},
            {
                "type": "reasoning",
                "id": f"rs_{random.randbytes(24).hex()}",
                "encrypted_content": "gAAAAA" + base64_of(600),
            },
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,iVBORw0KGgo{base64_of(900)}"}},
            {
                "type": "text",
                "text": "The checksum is 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.",
            },
        ],
        id="run--1f1e25f4-c868-6751-8129-9c9dd8929229-0",
        tool_calls=[{"name": "search", "args": {"token_limit": "5"}, "id": "call_Hq3Tzv0wY7mDq0aE8uB2kL9x"}],
        response_metadata={
            "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
            "token_usage": {"completion_tokens": 20, "prompt_tokens": 9},
            "model_name": "gpt-4o-2024-08-06",
            "system_fingerprint": "fp_44709d6fcb",
            "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
        },
        usage_metadata={"input_tokens": 9, "output_tokens": 20, "total_tokens": 29},
    )
    state = {
        "messages": [HumanMessage("hi", id="1f1e25f4-c868-6751-8129-9c9dd8929229"), answer],
        "next_page_token": "Cg1",
    }
    store.thread("a").put(state)
    assert store.thread("a").get().state == state
    assert not store.audit.query(action="protect")


def test_markers_are_frozen() -> None:
    """What was stored once is revealed by every later release."""
    markers, sealed = Markers(KEYS, "acme"), Markers(KEYS, "acme", "sealed")
    value, token, seal = (
        "a@example.com",
        "[token:email:37dffad5.2CDCAGHHJb9U0O_LKS_WCzgIHnvrjNSfPt22xRs.3e02d33dcbb5]",
        "[sealed:email:37dffad5.TOUyjjN-u1XHZ8IYU_tXtHR76SIZdsSFTQPBpFY.3bbe0dd6b73e]",
    )
    assert markers.redact(value, "email") == "[redacted:email:37dffad5.a8e94dc233164743c38f.69682719c6b4]"
    assert markers.tokenise(value, "email", "chat-1") == token
    assert sealed.tokenise(value, "email", "chat-1") == seal
    assert markers.reveal(f"{token} {seal}", "chat-1") == (f"{value} {seal}", ["email"], 0)
    assert sealed.reveal(f"{token} {seal}", "chat-1") == (f"{token} {value}", ["email"], 0)
    assert Markers(KEYS, "other").reveal(token, "chat-1") == (token, [], 1)
