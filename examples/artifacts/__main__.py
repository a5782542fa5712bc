"""Files that agents make, with their hashes, and which values of the state were made from them.

    python -m examples.artifacts

It prints what a report was made from, which values a wrong file has reached, and that equal content is stored once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as name, holdfast.open(Path(name) / "agents.db") as store:
        source = Path(name) / "prices.csv"
        source.write_bytes(b"lamp,20\nbook,10\n" * 1000)
        prices = store.artifacts.register(source, type="dataset", producer="crawler")
        plan = store.state(agent="buyer")
        with store.artifacts.using(prices.id):
            plan["budget"] = 30
            plan["items"] = ["lamp", "book"]
        print(
            "made from",
            prices.name,
            "of",
            prices.size,
            "bytes:",
            *(each.key for each in store.artifacts.changes(prices.id)),
        )
        print(
            "the budget is from:",
            *(store.artifacts.get(each.artifact).name for each in store.artifacts.of(plan, "budget")),
        )
        store.artifacts.verify(prices.id)
        again = store.artifacts.register(source.read_bytes(), name="copy.csv", type="dataset")
        print("the copy is stored once:", again.same_as == prices.id)


if __name__ == "__main__":
    main()
