"""A message history of LangChain in a store.

    python -m examples.frameworks.langchain_history

It prints the messages as another process reads them, and who wrote what, when.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast
from holdfast.langchain import HoldfastChatHistory


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agents.db"
        with holdfast.open(path) as store:
            history = HoldfastChatHistory("chat-1", store)
            history.add_user_message("What is a holdfast?")
            history.add_ai_message("What anchors kelp to the rock.")
        with holdfast.open(path) as store:
            for message in HoldfastChatHistory("chat-1", store).messages:
                print(f"{message.type}: {message.content}")
            print("checkpoints:", len(store.thread("chat-1").log()))


if __name__ == "__main__":
    main()
