"""`holdfast answer`: answers to threads that wait."""

from __future__ import annotations

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.runs import parse_json


@command("answer")
@click.argument("thread", type=THREAD)
@click.argument("value", metavar="[JSON]", required=False)
@click.option("--question", metavar="ID", help="The question that is answered, if several wait.")
def answer(session: CliContext, thread: str, value: str | None, question: str | None) -> None:
    """Answer the question at which a thread waits, or list its questions, if no answer is given.

    The graph goes on when it is invoked with the input None. A run that waits is queued for a worker.

    \b
    holdfast answer chat-1
    holdfast answer chat-1 '"yes"'
    holdfast answer chat-1 '[{"type": "accept", "args": null}]' --question 7f3a
    """
    if value is None:
        status = session.open().thread(thread).status()
        session.list(status.questions, none="No question waits for an answer.", value=lambda each: _text(each.value))
        return
    status = session.open(write=True).thread(thread).answer(parse_json(value, "the answer"), question=question)
    waiting = "".join(f"\nStill waiting: {safe(each.id)}  {_text(each.value)}" for each in status.questions)
    session.tell(f"The thread {safe(thread)} is {status.status}.{waiting}", status)


def _text(value: object) -> str:
    from holdfast._views import plain
    from holdfast.codec.value_text import json_text

    return safe(json_text(plain(value)))[:200]
