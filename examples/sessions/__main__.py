"""Visits of users whose state ends with them, is archived, and comes back when they do.

    python -m examples.sessions

It prints what is left after the end of a session, what a late write gets, and what a resumed session has.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast
from holdfast.errors import DeniedError


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        with store.sessions.start(user="ada", idle=1800, metadata={"channel": "web"}) as visit:
            visit.state["cart"] = ["book"]
        print("after the visit:", dict(visit.state))

        order = store.sessions.start("order-17", user="ada", on_end="archive")
        order.state["cart"] = ["book", "lamp"]
        order.end("paid")
        try:
            order.state["cart"] = []
        except DeniedError as refused:
            print("a late write:", refused.code)
        print("archived:", store.sessions.archived("order-17"))
        print("resumed:", store.sessions.resume("order-17").state["cart"])


if __name__ == "__main__":
    main()
