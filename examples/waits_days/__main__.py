"""A workflow that waits for days: no process is there meanwhile, and another one goes on when the answer comes.

    python -m examples.waits_days

It prints the state of the run, for how long it waits, and how it ends.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import holdfast
from holdfast.agents import PersistentAgent


class Invoice(PersistentAgent, name="example-invoice"):
    """Sends an invoice, and waits for up to three days until it is paid."""

    def run(self, customer: str) -> str:
        """Called again by each worker that takes the run up; what is done is not done again."""
        self.once("send", send, customer)
        paid = self.wait_for("paid", timeout="3d", key="payment")
        outcome: str = self.once("close", close, customer, paid.value if paid is not None else None)
        return outcome


def send(customer: str) -> str:
    """Send the invoice."""
    print("sending an invoice to", customer)
    return "sent"


def close(customer: str, amount: float | None) -> str:
    """Close the case."""
    return f"{customer} paid {amount}" if amount is not None else f"a reminder goes to {customer}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agents.db"
        with holdfast.open(path) as store:  # on Monday
            store.agents.create(Invoice, "invoice-1")
            run = store.runs.submit(None, ["Ada"], agent="invoice-1")
            store.worker(Invoice).run_due()
            waiting = store.runs.get(run.id)
            print("the run is", waiting.state)
            if waiting.due is not None:  # when it goes on without an answer
                print(f"it waits for {round((waiting.due - datetime.now(UTC)).total_seconds() / 86400)} days at most")
        with holdfast.open(path) as store:  # on Wednesday, perhaps on another machine
            store.worker(Invoice).run_due()
            print("nothing came yet: the run is", store.runs.get(run.id).state)
            store.agents.signal("invoice-1", "paid", 9.5)
            store.worker(Invoice).run_due()
            done = store.runs.get(run.id)
            print(f"the run is {done.state}: {done.result}")


if __name__ == "__main__":
    main()
