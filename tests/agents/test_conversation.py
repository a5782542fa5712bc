"""The conversation of an agent: additions at a constant cost, reads on request, summaries as one step."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.api.conversation import Conversation, MessageMatch
from holdfast.agents.definition.options import Autosave
from holdfast.agents.runtime.message_buffer import MessageBuffer, estimate, role_of, text_of
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import CONVERSATION_HISTORY
from holdfast.codec import OpaqueValue
from holdfast.errors import ConflictError, InvalidError, TransientError, UnsupportedError


class Talker(PersistentAgent, name="talker-of-tests"):
    """An agent that talks."""


class Counting(PersistentAgent, name="counting-talker-of-tests"):
    """An agent that counts tokens its own way."""

    def count_tokens(self, message: Any) -> int:
        """One for each character."""
        return len(message["content"])


class AsyncTalker(AsyncPersistentAgent, name="async-talker-of-tests"):
    """One for asyncio."""


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    """A store in memory."""
    with holdfast.open("memory://") as opened:
        yield opened


def said(text: str, role: str = "user") -> dict[str, str]:
    """A message."""
    return {"role": role, "content": text}


def talked(store: holdfast.Store, count: int, id: str = "t") -> Talker:
    """An agent that was saved with so many messages."""
    agent = Talker().attach(store, id)
    agent.conversation.extend(said(str(number)) for number in range(count))
    agent.save()
    return agent


def test_messages_come_back_in_their_order_and_go_on(store: holdfast.Store) -> None:
    agent = talked(store, 3)
    agent.conversation.append("a text")
    agent.save()
    again = store.agents.restore("t")
    assert list(again.conversation) == [said("0"), said("1"), said("2"), "a text"]
    again.conversation.append(said("4"))
    again.save()
    assert list(store.agents.restore("t").conversation)[-2:] == ["a text", said("4")]
    assert store.agents.load("t").messages == 5


def test_before_it_is_attached_a_conversation_is_there_already() -> None:
    agent = Talker()
    agent.conversation.append(said("hello"))
    assert agent.conversation.say(said("you")) == 1
    assert agent.conversation.summarize("both", keep_last=1) == 1
    assert agent.conversation.all() == [{"role": "system", "content": "both"}, said("you")]
    assert repr(agent.conversation) == "<Conversation of 2 messages>"


def test_nothing_is_read_before_it_is_asked_for(store: holdfast.Store) -> None:
    talked(store, 1000)
    agent = store.agents.restore("t")
    messages = agent._data.conversation
    read = []
    source = messages._read

    async def noted(start: int, stop: int) -> list[Any]:
        read.append((start, stop))
        return list(await source(start, stop))

    messages._read = noted
    assert len(agent.conversation) == 1000
    agent.conversation.append(said("new"))
    agent.save()
    assert read == []
    assert agent.conversation.last(2) == [said("999"), said("new")]
    assert agent.conversation[-2:] == [said("999"), said("new")]
    assert read == [(999, 1000)]
    assert agent.conversation[500] == said("500")
    assert agent.conversation.slice(10, 12) == [said("10"), said("11")]
    assert agent.conversation[0:1001:500] == [said("0"), said("500"), said("new")]
    assert len(list(agent.conversation)) == 1001
    count = len(read)
    assert list(agent.conversation)[3] == said("3")
    assert len(read) == count


def test_places_that_there_are_not(store: holdfast.Store) -> None:
    agent = talked(store, 2)
    assert agent.conversation[-2] == agent.conversation.get(0) == said("0")
    for place in (2, -3):
        with pytest.raises(IndexError, match="2 messages"):
            agent.conversation.get(place)
    assert agent.conversation.last(0) == []
    assert agent.conversation.last(9) == [said("0"), said("1")]
    with pytest.raises(InvalidError):
        agent.conversation.last(-1)


def test_search_finds_texts_and_expressions_and_roles(store: holdfast.Store) -> None:
    agent = Talker().attach(store, "s")
    agent.conversation.extend([said("Good Morning"), said("MORNING to you", "assistant"), said("bye")] * 200)
    agent.save()
    again = store.agents.restore("s").conversation
    assert again.search("morning", limit=2) == [
        MessageMatch(0, said("Good Morning")),
        MessageMatch(1, said("MORNING to you", "assistant")),
    ]
    assert [found.position for found in again.search("morning", role="assistant", limit=2, reverse=True)] == [598, 595]
    assert len(again.search(re.compile("^b.e$"))) == 200
    assert again.search("evening") == []
    assert len(again.search(role="assistant")) == 200


def test_a_window_is_what_there_is_room_for(store: holdfast.Store) -> None:
    agent = Counting().attach(store, "w")
    agent.conversation.append(said("rules", "system"))
    agent.conversation.extend(said("x" * 10) for _ in range(300))
    agent.save()
    again = store.agents.restore("w")
    assert again.conversation.tokens == 3005
    window = again.conversation.window(max_tokens=37)
    assert [len(each["content"]) for each in window] == [5, 10, 10, 10]
    assert len(again.conversation.window(max_tokens=37, system=False)) == 3
    assert [each["role"] for each in again.conversation.window(max_messages=3)] == ["system", "user", "user"]
    assert len(again.conversation.window()) == 301
    assert again.conversation.window(max_messages=0) == []
    assert len(again.conversation.window(max_tokens=4)) == 0
    assert len(again.conversation.window(max_tokens=1000)) == 100


@given(st.integers(0, 150), st.integers(0, 160), st.integers(0, 900), st.booleans())
def test_a_window_is_the_longest_end_that_fits(count: int, most: int, tokens: int, lead: bool) -> None:
    talk = Conversation(MessageBuffer(tokens=lambda message: len(message["content"])))
    talk.extend([said("s" * 7, "system")] * lead + [said("x" * (number % 13)) for number in range(count)])
    found = talk.window(max_messages=most, max_tokens=tokens)
    every = talk.all()
    first = every[:1] if lead and most and tokens >= 7 else []
    room = tokens - 7 * len(first)
    expected: list[Any] = []
    for message in reversed(every[len(first) :]):
        room -= len(message["content"])
        if room < 0 or len(expected) + len(first) >= most:
            break
        expected.insert(0, message)
    assert found == first + expected


def test_a_summary_is_a_step_and_history_keeps_what_it_replaced(store: holdfast.Store) -> None:
    agent = Talker().attach(store, "s")
    agent.conversation.append(said("rules", "system"))
    agent.conversation.extend(said(str(number)) for number in range(20))
    agent.save()
    before = agent.version
    again = store.agents.restore("s")
    heard: list[Any] = []

    def summary(old: list[Any]) -> str:
        heard.extend(old)
        return f"{len(old)} messages"

    assert again.conversation.summarize(summary, keep_last=2) == 18
    assert heard == [said(str(number)) for number in range(18)]
    assert again.version == before + 1
    expected = [said("rules", "system"), said("18 messages", "system"), said("18"), said("19")]
    assert list(store.agents.restore("s").conversation) == expected
    assert again.conversation.tokens == sum(map(estimate, expected))
    line = again.persister.line
    old = run(line.read_messages(run(line.require_step(before))))
    assert len(old) == 21
    assert again.conversation.summarize("nothing", keep_last=3) == 0
    assert again.version == before + 1
    assert again.conversation.summarize(said("all", "assistant"), system=False) == 4
    assert list(again.conversation) == [said("all", "assistant")]


def test_what_is_added_while_a_summary_is_made_stays(store: holdfast.Store) -> None:
    agent = talked(store, 10)
    again = store.agents.restore("t")

    def slow(old: list[Any]) -> Any:
        again.conversation.append(said("late"))
        return said("sum", "system")

    again.conversation.summarize(slow, keep_last=1)
    assert list(store.agents.restore("t").conversation) == [said("sum", "system"), said("9"), said("late")]
    with pytest.raises(ConflictError):  # the other one goes on from before
        agent.save()


def test_a_conversation_that_is_rewritten_while_it_is_summarized_is_not_lost(store: holdfast.Store) -> None:
    agent = talked(store, 10)

    def other(old: list[Any]) -> Any:
        agent.conversation.clear()
        return said("sum")

    with pytest.raises(ConflictError, match="rewritten"):
        agent.conversation.summarize(other)
    assert list(agent.conversation) == []


def test_clear_and_replace_are_saved_and_can_be_added_to(store: holdfast.Store) -> None:
    agent = talked(store, 5)
    agent.conversation.replace([said("new")])
    agent.conversation.append(said("more"))
    agent.save()
    agent.conversation.append(said("most"))
    agent.save()
    assert list(store.agents.restore("t").conversation) == [said("new"), said("more"), said("most")]
    agent.conversation.clear()
    agent.save()
    again = store.agents.restore("t")
    assert (list(again.conversation), len(again.conversation), again.conversation.tokens) == ([], 0, 0)
    again.conversation.append(said("first"))
    again.save()
    assert list(store.agents.restore("t").conversation) == [said("first")]


def test_a_message_that_is_changed_after_it_was_saved_does_no_harm(store: holdfast.Store) -> None:
    agent = Talker().attach(store, "m")
    message = said("as it was")
    agent.conversation.append(message)
    agent.save()
    message["content"] = "changed"
    agent.conversation.append(said("next"))
    agent.save()
    assert list(store.agents.restore("m").conversation) == [said("as it was"), said("next")]
    unsaved = said("not yet saved")
    agent.conversation.append(unsaved)
    unsaved["content"] = "changed before it was saved"
    agent.save()
    assert store.agents.restore("m").conversation[-1] == said("changed before it was saved")
    assert store.maintenance.verify().findings == []


def test_what_cannot_be_kept_is_refused_when_it_is_added(store: holdfast.Store) -> None:
    agent = talked(store, 1)
    before = list(agent.conversation)
    wrong = {"role": "user", "content": lambda: None}
    with pytest.raises(UnsupportedError, match="content"):
        agent.conversation.append(wrong)
    with pytest.raises(UnsupportedError):
        agent.conversation.replace([wrong])
    with pytest.raises(UnsupportedError):
        agent.conversation.summarize(wrong)
    agent.save()
    assert list(agent.conversation) == list(store.agents.restore("t").conversation) == before


def test_what_was_added_before_there_was_a_store_is_refused_by_the_save(store: holdfast.Store) -> None:
    agent = Talker()
    agent.conversation.append({"role": "user", "content": lambda: None})
    agent.attach(store, "t")
    with pytest.raises(UnsupportedError):
        agent.save()
    agent.conversation.replace([said("better")])
    agent.save()
    assert list(store.agents.restore("t").conversation) == [said("better")]


def test_messages_of_langchain_are_messages(store: holdfast.Store) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    agent = Talker().attach(store, "l")
    agent.conversation.extend(
        [
            messages.SystemMessage("be kind"),
            messages.HumanMessage("hello"),
            messages.AIMessage([{"type": "text", "text": "good"}, {"type": "text", "text": "day"}]),
        ]
    )
    agent.save()
    again = store.agents.restore("l").conversation
    assert [role_of(message) for message in again] == ["system", "user", "assistant"]
    assert again.search("DAY")[0].position == 2
    assert again.window(max_messages=2)[0] == messages.SystemMessage("be kind")


def test_text_and_role_of_what_is_no_message() -> None:
    assert (text_of(7), role_of(7), text_of("hm"), role_of("hm")) == ("", "", "hm", "")
    assert (text_of({"content": 3}), role_of({"type": "human", "content": ""})) == ("", "user")
    assert text_of({"content": ["a", {"text": "b"}, {"image": 1}, 4]}) == "a\nb"
    inert = OpaqueValue(77, b"\x91\xa1a")
    assert (text_of(inert), role_of(inert)) == ("", "")
    assert (estimate("12345"), estimate("")) == (6, 4)


def test_people_can_query_the_messages_of_an_agent_as_those_of_a_thread() -> None:
    with holdfast.open("memory://", project=True) as store:
        agent = Talker().attach(store, "q")

        def rows() -> list[tuple[Any, ...]]:
            (found,) = run(
                store._engine.context.backend.read(
                    [Scan(CONVERSATION_HISTORY, (store.tenant, agent.persister.line.line.name))]
                )
            )
            return [(*row.key[2:], *row.columns[:4]) for row in found]

        for number in range(70):
            agent.conversation.append(said(str(number)))
            agent.save()
        assert len(rows()) == 70
        assert rows()[-1][:2] == ("conversation", 69)
        assert "69" in rows()[-1]
        agent.conversation.summarize("all of it", keep_last=1)
        assert [row[1] for row in rows()] == [0, 1]
        assert store.maintenance.verify().findings == []


def test_who_reads_while_another_does_reads_again() -> None:
    messages, asked = MessageBuffer(), []

    async def read(start: int, stop: int) -> list[Any]:
        asked.append((start, stop))
        if len(asked) == 1:
            await messages.slice(-2, None)
        return list(range(start, stop))

    messages.reset(10, 40, read)
    assert run(messages.slice(5, None)) == [5, 6, 7, 8, 9]
    assert asked == [(5, 10), (8, 10), (5, 8)]
    assert run(messages.slice(7, 9)) == [7, 8]
    assert len(asked) == 3


def test_what_was_saved_of_messages_that_are_others_by_now_does_not_count() -> None:
    messages, changes = MessageBuffer(), []
    messages.on_change = lambda: changes.append(len(messages))
    messages.extend([1, 2])
    said = messages.unsaved_messages()
    messages.replace([3])
    messages.mark_saved(said)
    assert messages.unsaved_messages()[:3] == (0, [3], True)
    assert changes == [2, 1]


def test_the_same_for_asyncio() -> None:
    async def scenario() -> None:
        async with await holdfast.aopen("memory://") as store:
            agent = AsyncTalker().attach(store, "a")
            agent.conversation.extend(said(str(number)) for number in range(10))
            await agent.conversation.say(said("10"))
            await agent.save()
            again = await store.agents.restore("a")
            assert [message["content"] async for message in again.conversation] == [str(number) for number in range(11)]
            assert await again.conversation.get(-1) == said("10")
            assert await again.conversation.last(1) == [said("10")]
            assert [found.position for found in await again.conversation.search("10")] == [10]
            assert len(await again.conversation.window(max_messages=3)) == 3

            async def summary(old: list[Any]) -> str:
                await asyncio.sleep(0)
                return f"{len(old)}"

            assert await again.conversation.summarize(summary, keep_last=1) == 10
            assert await again.conversation.all() == [said("10", "system"), said("10")]
            with pytest.raises(InvalidError, match="awaited"):
                again.conversation[0]

    asyncio.run(scenario())


def test_the_last_of_many_messages_costs_what_the_first_did(store: holdfast.Store) -> None:
    agent = Talker().attach(store, "many")
    agent.save()
    taken: list[float] = []
    for number in range(600):
        started = time.thread_time()
        agent.conversation.append(said(f"{number:06}"))
        agent.save()
        taken.append(time.thread_time() - started)
    first, last = sorted(taken[50:200])[75], sorted(taken[-150:])[75]
    assert last < 3 * first
    assert len(agent.conversation) == 600
    assert len(store.agents.restore("many").conversation.last(1)) == 1


@given(st.lists(st.sampled_from(["append", "save", "restore", "clear", "summarize", "read", "replace"]), max_size=25))
def test_whatever_is_done_the_conversation_is_that_of_a_list(todo: list[str]) -> None:
    with holdfast.open("memory://") as store:
        agent = Talker().attach(store, "r")
        model: list[Any] = []
        saved: list[Any] = []
        for number, what in enumerate(todo):
            talk = agent.conversation
            if what == "append":
                talk.append(number)
                model.append(number)
            elif what == "save":
                agent.save()
                saved = list(model)
            elif what == "restore" and agent.version:
                agent, model = store.agents.restore("r"), list(saved)
            elif what == "clear":
                talk.clear()
                model = []
            elif what == "replace":
                talk.replace([number, number])
                model = [number, number]
            elif what == "summarize":
                if talk.summarize({"content": number}, keep_last=2):
                    model = [{"content": number}, *model[-2:]]
                    saved = list(model)
            elif what == "read":
                assert talk.last(2) == model[-2:]
            assert len(agent.conversation) == len(model)
        assert list(agent.conversation) == model
        assert agent.conversation.tokens == sum(map(estimate, model))


def test_a_summary_is_one_step_also_where_every_change_is_saved_at_once() -> None:
    with holdfast.open("memory://") as store:
        agent = Talker().attach(store, "w", autosave=Autosave(write_through=True))
        agent.start()
        for number in range(5):
            agent.conversation.say(said(str(number)))
        assert store.agents.load("w").messages == 5
        before = agent.version
        agent.conversation.summarize("all")
        assert (agent.version, store.agents.load("w").messages) == (before + 1, 1)
        agent.stop()


def test_a_summary_that_cannot_be_saved_is_saved_later() -> None:
    with holdfast.open("memory://") as store:
        agent = Talker().attach(store, "f", autosave=Autosave(interval=1000))
        agent.conversation.extend(said(str(number)) for number in range(5))
        agent.save()
        backend: Any = store._engine.context.backend

        async def fails(changes: Any) -> None:
            raise TransientError("the store is down")

        backend.apply = fails
        with pytest.raises(TransientError):
            agent.conversation.summarize("all")
        del backend.apply
        agent.flush()
        assert store.agents.messages("f") == [said("all", "system")]


def test_what_could_not_be_saved_is_packed_once(store: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Talker().attach(store, "a")
    agent.save()
    agent.conversation.extend(said(str(number)) for number in range(100))
    codec, packed = agent.persister.line.handle.codec, list[int]()
    real = type(codec).pack_items

    def counted(self: Any, items: Any) -> list[bytes]:
        found = list(items)
        packed.append(len(found))
        return real(self, found)

    monkeypatch.setattr(type(codec), "pack_items", counted)
    agent.persister.capture()
    agent.conversation.append(said("one more"))
    agent.persister.capture()
    assert [count for count in packed if count >= 100] == [100]  # the others are what else is saved, and the last one
    agent.save()
    assert [each["content"] for each in store.agents.messages("a")] == [*map(str, range(100)), "one more"]
