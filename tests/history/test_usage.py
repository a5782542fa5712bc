"""Usage: the tokens that messages say, summed over the checkpoints that added them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, InvalidError
from holdfast.history.usage import TokenPrice, price_of
from holdfast.langgraph import HoldfastSaver
from holdfast.store.store import Store

PRICES = {"gpt-5": {"input": 1.0, "cached": 0.1, "output": 10.0}}
_NUMBERS = itertools.count()


def answer(tokens: int = 100, model: str = "gpt-5", **more: Any) -> AIMessage:
    """An answer of a model, which took so many tokens, and a tenth of that for its words."""
    usage: Any = {"input_tokens": tokens, "output_tokens": tokens // 10, "total_tokens": tokens + tokens // 10}
    values = {"id": f"m{next(_NUMBERS)}", **more}
    return AIMessage("yes", usage_metadata=usage, response_metadata={"model_name": model}, **values)


def plain(tokens: int = 100, **more: Any) -> dict[str, Any]:
    """An answer as OpenAI's API has it."""
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens // 10, **more}
    return {"role": "assistant", "content": "yes", "model": "gpt-5", "usage": usage}


def sums(store: Any, **options: Any) -> dict[str, tuple[int, int]]:
    """The number of messages and of tokens of the input, by key."""
    return {each.key: (each.messages, each.input) for each in store.usage(**options).sums}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def test_a_message_counts_once_however_often_it_is_saved(store: holdfast.Store) -> None:
    said: list[Any] = []
    for _ in range(5):
        said = [*said, HumanMessage("?", id=f"h{len(said)}"), answer()]
        store.thread("chat").put({"messages": said})
    assert sums(store, by="thread") == {"chat": (5, 500)}
    store.thread("chat").fork("again", at="#2", changes={"plan": "other"})
    store.thread("chat").put({"messages": [*said[:4], answer(7)]}, branch="again")
    assert sums(store, by="thread") == {"chat": (6, 507)}  # what the branches share, once
    store.thread("chat").merge("again", strategy="theirs")
    store.thread("chat").restore("#1")
    store.thread("chat").put({"messages": said})
    assert sums(store, by="thread") == {"chat": (6, 507)}


def test_messages_without_ids_count_where_they_were_added(store: holdfast.Store) -> None:
    for _ in range(3):
        store.thread("chat").append("messages", plain())
    assert sums(store, by="thread") == {"chat": (3, 300)}  # equal ones, too
    store.thread("chat").fork("other", at="#1")
    store.thread("chat").restore("#1")
    assert sums(store, by="thread") == {"chat": (3, 300)}


def test_each_key(store: holdfast.Store) -> None:
    first = store.thread("a").put({"messages": [answer(10)]}, metadata={"user": "alice", "agent": "writer"})
    store.thread("b").put({"messages": [answer(20, "o3")]}, metadata={"user_id": "bob", "lc_agent_name": "critic"})
    store.as_identity(user="carol", agent="helper").thread("c").put({"messages": [answer(30)]})
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert sums(store) in ({today: (3, 60)}, {first.time.strftime("%Y-%m-%d"): (3, 60)})
    assert sums(store, by="thread") == {"a": (1, 10), "b": (1, 20), "c": (1, 30)}
    assert sums(store, by="user") == {"alice": (1, 10), "bob": (1, 20), "carol": (1, 30)}
    assert sums(store, by="agent") == {"writer": (1, 10), "critic": (1, 20), "helper": (1, 30)}
    assert sums(store, by="model") == {"gpt-5": (2, 40), "o3": (1, 20)}
    assert sums(store, by="checkpoint", where="thread:a") == {f"a {first.id}": (1, 10)}
    with pytest.raises(InvalidError, match="summed by day"):
        store.usage(by="year")  # type: ignore[arg-type]


def test_days_are_in_order_and_others_by_cost() -> None:
    days = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (3, 1, 2)]
    now = days[0]
    context = EngineContext(MemoryBackend(), MemoryCache(1 << 20), clock=lambda: int(now.timestamp() * 1e9))
    store = Store(Engine(context), "")
    for number, now in enumerate(days):  # noqa: B007 - the clock reads it
        store.thread(f"t{number}").put({"messages": [answer(10 * (number + 1), "gpt-5" if number else "dear")]})
    prices = {"dear": {"input": 1000, "output": 1000}, "gpt-5": {"input": 1, "output": 1}}
    assert [each.key for each in store.usage(by="thread", prices=prices).sums] == ["t0", "t2", "t1"]
    assert list(sums(store).items()) == [("2026-03-01", (1, 20)), ("2026-03-02", (1, 30)), ("2026-03-03", (1, 10))]
    store.close()


def test_forms_of_usage(store: holdfast.Store) -> None:
    """LangChain's, those of providers and other frameworks, at any depth, also in large messages and in a dict."""
    cached: Any = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11, "input_token_details": {"cache_read": 4}}
    forms: list[Any] = [
        AIMessage("a", usage_metadata=cached),
        AIMessage("a", response_metadata={"token_usage": {"prompt_tokens": 10, "completion_tokens": 1}, "model": "m"}),
        {"role": "assistant", "usage": {"input_tokens": 10, "output_tokens": 1}, "content": "x" * 200_000},
        {"role": "assistant", "usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}},
        {"role": "assistant", "response_metadata": {"usage": {"input_tokens": 10, "output_tokens": 1}}},
        {"kind": "response", "usage": {"input_tokens": 10, "cache_read_tokens": 4}, "model_name": "m"},
        {"author": "desk", "usage_metadata": {"prompt_token_count": 10, "candidates_token_count": 1}},
        {"role": "assistant", "contents": [{"type": "usage", "usage_details": {"input_token_count": 10}}]},
    ]
    for number, form in enumerate(forms):
        store.thread(f"list-{number}").put({"messages": [form]})
        store.thread(f"dict-{number}").put({"answers": {"first": {"of": form}}})
        store.thread(f"value-{number}").put({"answer": form})
    found = store.usage(by="thread", prices={})
    assert {each.key: each.input for each in found.sums} == {
        f"{place}-{number}": 10 for place in ("list", "dict", "value") for number in range(len(forms))
    }
    assert found.total.cached == 3 * (4 + 4 + 4)
    assert found.unpriced == ["", "m"]


@pytest.mark.parametrize(
    "usage",
    [
        *[{"input_tokens": value} for value in list[Any](("12", -1, True, None, 1 << 60, 1.5, [], {}))],
        *("12_tokens", ["_tokens"], {"_tokens": 12}),
    ],
)
def test_what_is_no_number_of_tokens_does_not_count(store: holdfast.Store, usage: Any) -> None:
    store.thread("odd").put(
        {"messages": [{"role": "assistant", "usage": usage}, {"role": "user", "content": "_tokens"}]}
    )
    store.thread("control").put({"messages": [plain(3)]})
    assert sums(store, by="thread") == {"control": (1, 3)}


# What counts ------------------------------------------------------------------------------------------------------


def test_only_matching_checkpoints(store: holdfast.Store) -> None:
    first = store.thread("chat").put({"messages": [answer(1)]}, metadata={"user": "alice"})
    second = store.thread("chat").append("messages", answer(2), metadata={"user": "bob"})
    store.thread("other").put({"messages": [answer(4)]})
    assert store.usage(where="meta.user=bob").total.input == 2
    assert store.usage(where="thread:chat").total.input == 3
    assert store.usage(since=second.time).total.input == 6
    assert store.usage(until=second.time).total.input == 1
    assert store.usage(since=first.time, until=second.time).total.input == 1
    assert store.usage(since="1h").total.input == 7
    assert not store.usage(until="1h").sums
    with pytest.raises(InvalidError, match="column"):
        store.usage(where="(")
    with pytest.raises(InvalidError, match="not a time"):
        store.usage(since="soon")


def test_a_limit_stops_and_says_so(store: holdfast.Store) -> None:
    for number in range(6):
        store.thread(f"t{number // 3}").append("messages", answer(1))
    whole = store.usage(scan_limit=None)
    assert (whole.total.input, whole.examined, whole.stopped) == (6, 6, False)
    assert not store.usage(scan_limit=6).stopped
    assert store.usage(scan_limit=3).stopped
    calls: list[tuple[int, int | None, str]] = []
    store.usage(progress=lambda *call: calls.append(call))
    assert calls == [(1, None, "t0"), (2, None, "t1")]


def test_a_subgraph_counts_in_its_thread(store: holdfast.Store) -> None:
    said = answer(5)
    store.thread("chat").put({"messages": [said]})
    config: Any = {"configurable": {"thread_id": "chat", "checkpoint_ns": "child:1"}}
    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"messages": [said, answer(7)]}}
    HoldfastSaver(store).put(config, checkpoint, {}, {"messages": 1})
    assert sums(store, by="thread") == {"chat": (2, 12)}


# Prices -----------------------------------------------------------------------------------------------------------


def test_costs(store: holdfast.Store) -> None:
    store.thread("a").append("messages", plain(1_000_000, prompt_tokens_details={"cached_tokens": 400_000}))
    store.thread("b").append("messages", answer(1_000_000, "gpt-5-2025-08-07"))
    store.thread("c").append("messages", answer(1_000_000, "gpt-50"))
    found = store.usage(by="thread", prices=PRICES)
    assert {each.key: each.cost for each in found.sums} == {"b": 2.0, "a": 1.64, "c": 0.0}
    assert found.unpriced == ["gpt-50"]
    assert found.total.cost == pytest.approx(3.64)
    assert store.usage(prices={"gpt-5": {"input": 1, "output": 0}}).total.cost == 2


def test_the_longest_name_that_a_model_continues() -> None:
    prices = {name: TokenPrice(1, number) for number, name in enumerate(("gpt-5", "gpt-5-mini", "claude"))}
    for model, name in {
        "gpt-5": "gpt-5",
        "gpt-5-2025": "gpt-5",
        "gpt-5-mini-2025": "gpt-5-mini",
        "claude@20250501": "claude",
        "claude:latest": "claude",
    }.items():
        assert price_of(model, prices) is prices[name]
    assert price_of("gpt-51", prices) is price_of("", prices) is price_of("gpt", prices) is None


@pytest.mark.parametrize("prices", [{"m": 1}, {"m": {"input": 1}}, {"m": {"input": -1, "output": 1}}, [1], {"m": None}])
def test_what_is_no_price_is_refused(store: holdfast.Store, prices: Any) -> None:
    with pytest.raises(InvalidError, match="prices are given by model"):
        store.usage(prices=prices)


def test_prices_of_the_settings_file(store: holdfast.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.thread("a").append("messages", answer(1_000_000))
    file = tmp_path / "holdfast.toml"
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    assert store.usage().total.cost == 0  # no file, no prices
    file.write_text('[prices]\n"gpt-5" = { input = 2, output = 10 }\n')
    assert store.usage().total.cost == 3
    file.write_text("[prices]\ngpt = 2\n")
    with pytest.raises(ConfigError, match="only models"):
        store.usage()
    file.write_text("[prices.gpt]\nin = 2\n")
    with pytest.raises(InvalidError, match="prices are given by model"):
        store.usage()


# With other features ----------------------------------------------------------------------------------------------


def test_an_identity_has_the_usage_of_what_it_may_read(store: holdfast.Store) -> None:
    alice, bob = store.as_identity(user="alice"), store.as_identity(user="bob")
    alice.thread("hers").put({"messages": [answer(1)]})
    bob.thread("his").put({"messages": [answer(2)]})
    store.thread("ours").put({"messages": [answer(4)]})
    assert sums(alice, by="thread") == {"hers": (1, 1)}
    assert sums(bob, by="thread") == {"his": (1, 2)}
    assert store.usage().total.input == 7  # the control
    store.access.freeze("user:bob")
    assert not sums(bob)


def test_tenants_are_apart(tmp_path: Path) -> None:
    for tenant in ("one", "two"):
        with holdfast.open(f"sqlite:///{tmp_path}/store.db", tenant=tenant) as store:
            store.thread("chat").put({"messages": [answer(len(tenant))]})
            assert sums(store, by="thread") == {"chat": (1, 3)}


def test_of_an_encrypted_store(tmp_path: Path) -> None:
    keys = Encryption(LocalKeys(b"k" * 32))
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", encryption=keys) as store:
        store.thread("chat").put({"messages": [answer(9)]})
        assert store.usage().total.input == 9


def test_after_a_prune_tokens_count_at_the_next_checkpoint(store: holdfast.Store) -> None:
    for _ in range(6):
        store.thread("chat").append("messages", answer(1))
    before = store.usage().total
    store.maintenance.prune(keep_last=2)
    after = store.usage(by="checkpoint")
    assert (after.total.messages, after.total.input) == (before.messages, before.input) == (6, 6)
    assert len(after.sums) == 2


def test_what_is_erased_or_deleted_counts_no_more(store: holdfast.Store) -> None:
    store.as_identity(user="alice").thread("hers").put({"messages": [answer(1)]})
    store.thread("gone").put({"messages": [answer(2)]})
    store.thread("left").put({"messages": [answer(4)]})
    assert store.usage().total.input == 7
    store.erasure.erase("alice")
    store.thread("gone").delete()
    assert store.usage().total.input == 4


def test_a_copied_and_a_restored_store_have_the_same(store: holdfast.Store, tmp_path: Path) -> None:
    store.thread("chat").put({"messages": [answer(3)]})
    with holdfast.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        store.maintenance.copy_to(copy)
        assert copy.usage().total == store.usage().total
    backups = store.backups(tmp_path / "backups")
    backups.create()
    with holdfast.open(f"sqlite:///{tmp_path}/restored.db") as restored:
        restored.backups(tmp_path / "backups").restore()
        assert restored.usage().total == store.usage().total


def test_a_damaged_checkpoint_is_counted_as_unreadable(store: holdfast.Store, tmp_path: Path) -> None:
    import sqlite3

    for _ in range(3):
        store.thread("chat").append("messages", answer(1))
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE steps SET body = x'00' WHERE seq = 1")
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as damaged:
        found = damaged.usage()
        assert (found.total.messages, found.unreadable) == (2, 1)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(1, 50), max_size=4)), max_size=12))
def test_the_sum_is_that_of_all_calls(turns: list[tuple[int, list[int]]]) -> None:
    with holdfast.open("memory://") as store:
        expected: dict[str, int] = {}
        states: dict[int, list[Any]] = {}
        for thread, tokens in turns:
            states[thread] = [*states.get(thread, []), *map(answer, tokens)]
            store.thread(str(thread)).put({"messages": states[thread]})
            if tokens:
                expected[str(thread)] = expected.get(str(thread), 0) + sum(tokens)
        assert {each.key: each.input for each in store.usage(by="thread").sums} == expected
