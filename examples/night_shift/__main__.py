"""Orders that are worked on by processes which are killed: each is charged once.

    python -m examples.night_shift

Three orders are submitted, and a worker, a process of its own, is killed while it ships the first one. Another one goes
on where it stopped.

It prints how the workers ended, what became of the orders, and what was charged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast

ORDERS = ("order-1", "order-2", "order-3")


def ledger() -> Path:
    """The file that stands for a payment service."""
    return Path(os.environ["NIGHT_SHIFT"]) / "charges.txt"


@holdfast.step
def charge(order: str) -> str:
    """Charge an order."""
    with ledger().open("a", encoding="utf-8") as file:
        file.write(f"{order}\n")
    return f"receipt of {order}"


@holdfast.step(on_unknown="retry")
def ship(order: str) -> str:
    """Ship an order, which may be asked for twice."""
    if os.environ.get("NIGHT_SHIFT_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{order} is on its way"


@holdfast.workflow
def sell(order: str) -> list[str]:
    """Charge, then ship."""
    return [charge(order), ship(order)]


def work(**environment: str) -> int:
    """Work in a process of its own until nothing is left."""
    command = [sys.executable, "-m", "examples.night_shift", "work"]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


def main() -> None:
    """Run the demonstration, or a worker."""
    if sys.argv[1:] == ["work"]:
        with holdfast.open(Path(os.environ["NIGHT_SHIFT"]) / "orders.db") as store:
            store.worker(sell, concurrency=1).run_due()
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NIGHT_SHIFT"] = folder
        with holdfast.open(Path(folder) / "orders.db") as store:
            runs = [store.runs.submit(order, [order], graph=sell) for order in ORDERS]
            print("the first worker ended with", work(NIGHT_SHIFT_DIES="1"))
            print("the second worker ended with", work())
            for run in map(store.runs.get, [each.id for each in runs]):
                print(run.thread, run.state, "after", run.attempts, "attempts:", ", ".join(run.result))
        print("charged:", *ledger().read_text(encoding="utf-8").split())


if __name__ == "__main__":
    main()
