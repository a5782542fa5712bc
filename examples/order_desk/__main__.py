"""An agent that charges a card, waits for an approval, and ships a parcel: interrupted anywhere, it does each once.

    python -m examples.order_desk

It prints each thing that is done, and how the order ended, each time that it is asked.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import holdfast
from holdfast.agents import PersistentAgent, Retry, StepRecord

POWER = ["off", "on"]
"""Whether there is power when the parcel is shipped: not at first."""


class OrderDesk(PersistentAgent, name="order-desk"):
    """Takes an order from its payment to its parcel."""

    def work(self, order: int) -> str:
        """Do what is left to do, and return how it ended."""
        receipt = self.once(f"charge-{order}", charge, order, retry=Retry(3, backoff=0.01))
        approval = self.wait_for("approved", timeout="30s", key=f"approval-{order}")
        if approval is None:
            return f"nobody approved order {order}"
        parcel = self.once(f"ship-{order}", ship, order, receipt["paid"], on_unknown=look_at_the_dock)
        return f"{parcel}, approved by {approval.value['by']}"


def charge(order: int, idempotency_key: str) -> dict[str, Any]:
    """Charge the card. A real service would get the idempotency key."""
    print(f"charging order {order}, with a key of {len(idempotency_key)} characters")
    return {"paid": 9.5}


def ship(order: int, paid: float) -> str:
    """Ship the parcel, if there is power until the end."""
    print(f"shipping order {order}, for which {paid} was paid")
    if POWER.pop(0) == "off":
        raise KeyboardInterrupt("the power is gone")
    return f"parcel {order}"


def look_at_the_dock(record: StepRecord) -> str:
    """Find out what became of an attempt that was interrupted."""
    print(f"attempt {record.attempts} of {record.key} was interrupted; the parcel is at the dock")
    return "the parcel at the dock"


def main() -> None:
    """Work on an order, and resume it after the power came back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.db"
        for _ in range(3):
            with holdfast.open(path) as store:
                desk = OrderDesk().attach(store, "order-42")
                desk.start()
                store.agents.signal("order-42", "approved", {"by": "Ada"}, id="approval-42")
                try:
                    print(desk.work(42))
                except KeyboardInterrupt as error:
                    print(error)


if __name__ == "__main__":
    main()
