"""Two processes answer in one chat: each appends, nobody waits for the other, and nothing is lost.

A chat without a framework is a thread with a list of messages. `append` adds to it without loading it, so that a turn
costs the same however long the chat is. The desk and its helper, another process, append at the same time.

    python -m examples.shared_chat

It prints how many messages of each are in the chat, whether each one's are in order, the number of tokens that both
counted, and the end of the chat as it was at an earlier moment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast

TURNS = 20
TOKENS = 7


def answer(path: Path, who: str) -> None:
    """Add some turns to the chat."""
    with holdfast.open(path) as store:
        chat = store.thread("chat")
        for number in range(TURNS):
            question = {"role": "user", "content": f"question {number} to the {who}", "to": who}
            chat.append("messages", question, {"role": "assistant", "content": f"answer {number}", "to": who})
            chat.increment("tokens", TOKENS)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.db"
        with holdfast.open(path) as store:
            opened = store.thread("chat").append("messages", {"role": "system", "content": "You answer briefly."})
            helper = subprocess.Popen([sys.executable, "-m", "examples.shared_chat", str(path)])
            answer(path, "desk")
            helper.wait()
            chat = store.thread("chat")
            messages = chat.get().state["messages"]
            for who in ("desk", "helper"):
                own = [message["content"] for message in messages if message.get("to") == who]
                answers = [content for content in own if content.startswith("answer")]
                in_order = answers == [f"answer {number}" for number in range(TURNS)]
                print(f"{who}: {len(own)} messages, {'in order' if in_order else 'mixed up'}")
            print(f"tokens: {chat.get().state['tokens']}")
            print(f"at the start: {chat.get(at=opened).state['messages'][-1]['content']}")
            print(f"branches: {chat.info().branches}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        answer(Path(sys.argv[1]), "helper")
    else:
        main()
