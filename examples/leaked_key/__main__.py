"""A key that somebody pasted into a chat is noticed, and replaced: in what is stored, and in what follows.

The check runs in the background; here a runner of jobs does what is due. It says where the key is, and never has it.

    python -m examples.leaked_key

It prints what was found, the message before and after, and what is left.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from string import ascii_letters, digits

import holdfast
from holdfast.jobs import JobRunner


def pasted_key() -> str:
    """Return what looks like a token of GitHub, and is none."""
    return "gh" + "p_" + "".join(Random(7).choices(ascii_letters + digits, k=36))


def main() -> None:
    """Chat, look, and replace."""
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "chat.db") as store:
        key = pasted_key()
        store.thread("chat-1").put({"messages": ["Why does my push fail?"]})
        store.thread("chat-1").put({"messages": ["Why does my push fail?", f"I use the token {key}"]})

        JobRunner(store).run_due()  # a program has one in the background, or `holdfast jobs work` runs
        print(store.jobs.get("credentials").runs[0].summary)
        print(store.redaction.credentials().describe())

        done = store.redaction.redact()
        print(f"replaced in {done.lines} thread, {done.checkpoints} checkpoint pruned")
        print(store.thread("chat-1").get().state["messages"][1])

        store.redaction.protect("redact")  # or HOLDFAST_REDACTION=redact, for all programs
        store.thread("chat-1").put({"messages": ["Why does my push fail?", f"Does {key} work?"]})
        print(store.thread("chat-1").get().state["messages"][1])
        print(f"{len(store.redaction.credentials().findings)} credentials are left")


if __name__ == "__main__":
    main()
