"""The disk is lost, then a thread is damaged by hand: both come back, from a backup that a drill has proved.

    python -m examples.disaster_recovery

It prints what the drill found, what was restored, and what a repair replaced.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, backups = folder / "agents.db", folder / "backups"
        with holdfast.open(path) as store:
            for number in range(5):
                store.thread(f"chat-{number}").put({"messages": [f"hello {number}"]})
            store.backups(backups).create()
            print("the drill:", "passed" if store.backups(backups).drill().ok else "failed")

        path.unlink()
        with holdfast.open(folder / "new.db") as store:
            store.backups(backups).restore()
            print("restored:", *(each.thread for each in store.threads()))
            print("verified:", store.maintenance.verify().ok)

        with sqlite3.connect(folder / "new.db") as file:  # a bit flips, or somebody edits the file
            file.execute("UPDATE steps SET body = zeroblob(8) WHERE rowid = (SELECT min(rowid) FROM steps)")
        file.close()
        with holdfast.open(folder / "new.db") as store:
            print("damaged:", not store.maintenance.verify().ok)
            store.maintenance.repair(source=f"backup:{backups}")
            print("repaired:", store.maintenance.verify().ok)


if __name__ == "__main__":
    main()
