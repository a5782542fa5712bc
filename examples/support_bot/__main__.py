"""A support bot that hands a conversation to a person's desk, which refunds once, after an approval.

    python -m examples.support_bot

It prints who has the conversation, and the refund, which is paid once though it is asked for twice.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast
from holdfast.agents import Offer, PersistentAgent

PAID: list[str] = []


class Bot(PersistentAgent, name="support-bot"):
    """Answers what it can, and gives the rest away."""

    def answer(self, text: str) -> bool:
        """Answer a message; False if it is for a person."""
        self.conversation.append({"role": "user", "content": text})
        if "refund" in text:
            self.context["topic"] = "refund"
            return False
        self.conversation.append({"role": "assistant", "content": "Have you tried to turn it off and on again?"})
        return True


class Desk(PersistentAgent, name="support-desk"):
    """Stands for a team of people."""

    def accepts(self, offer: Offer) -> bool:
        """Take only what it is there for."""
        return offer.context.get("topic") == "refund"

    def refund(self, order: str) -> str:
        """Wait until it is approved, and pay it once."""
        approval = self.wait_for("approved", timeout="30s", key=f"approval-{order}")
        if approval is None:
            return "nobody approved it"
        self.once(f"refund-{order}", pay, order)
        return f"refunded, approved by {approval.value}"


def pay(order: str) -> str:
    """Pay, in place of a call of a bank."""
    PAID.append(order)
    return f"receipt of {order}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        bot, desk = Bot().attach(store, "chat-7"), Desk().attach(store, "desk-1")
        bot.start()
        desk.start()
        print("the bot answers:", bot.answer("It does not work"))
        print("the bot answers:", bot.answer("I want a refund of order 42"))
        bot.transfer(desk, reason="a refund")
        print(f"messages: the bot has {len(bot.conversation)}, the desk {len(desk.conversation)}")
        store.agents.signal("desk-1", "approved", "Ada", id="approval-42")  # from the web, by HTTP or by a command
        print(desk.refund("42"))
        print(desk.refund("42"))
        print("paid:", *PAID)


if __name__ == "__main__":
    main()
