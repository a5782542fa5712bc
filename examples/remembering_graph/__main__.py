"""A LangGraph agent that remembers people across conversations.

    python -m examples.remembering_graph

Its checkpoints and its long-term memory are in one store. Needs no key: the model is played.

It prints what the agent knows in each conversation, what a search finds, and what is left when one person was erased.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict

import holdfast
from holdfast.langgraph import HoldfastSaver, HoldfastStore


class Chat(TypedDict):
    text: str
    answer: str


def answer(state: Chat, config: RunnableConfig, *, store: BaseStore) -> dict[str, str]:
    """Answer, and remember what was said for other conversations."""
    person = config["configurable"]["user"]
    known = store.search(("memories", person), filter={"kind": "fact"})
    store.put(("memories", person), f"fact-{len(known)}", {"kind": "fact", "text": state["text"]})
    return {"answer": f"I know {len(known)} things about {person}"}


def main() -> None:
    """Talk to two people in three conversations, and forget one of them."""
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        memory = HoldfastStore(store, users=[("memories", "{user}")])
        builder = StateGraph(Chat).add_node("answer", answer).add_edge(START, "answer")
        graph = builder.compile(checkpointer=HoldfastSaver(store), store=memory)
        for number, (person, text) in enumerate([("ann", "I like tea"), ("ben", "I row"), ("ann", "I paint")]):
            config: RunnableConfig = {"configurable": {"thread_id": f"chat-{number}", "user": person}}
            print(graph.invoke({"text": text, "answer": ""}, config)["answer"])
        print("tea:", [item.key for item in memory.search(("memories",), filter={"text": "I like tea"})])
        store.erasure.erase("ann")
        print("left:", memory.list_namespaces())


if __name__ == "__main__":
    main()
