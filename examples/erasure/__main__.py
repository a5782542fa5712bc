"""A person asks to be forgotten: what is stored about them is found and erased, and stays so after a restore.

    python -m examples.erasure

It prints what is found, what is erased and certified, and that a backup from before does not bring it back.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        backups = store.backups(Path(folder) / "backups")
        store.thread("chat-1").put({"text": "I live in Harbour Street"}, metadata={"subject": "u-1842"})
        store.thread("chat-2").put({"text": "Hello"}, metadata={"subject": "u-7"})
        store.state(user="u-1842")["language"] = "Danish"
        backups.create(reason="before")

        for name in store.erasure.erase("u-1842", dry_run=True).names:
            print("found:", name)
        report = store.erasure.erase("u-1842")
        print("erased:", dict(report.erased))
        print("threads that are left:", *(each.thread for each in store.threads()))

        backups.restore()  # the latest, which is from before
        print("threads after a restore:", *(each.thread for each in store.threads()))
        print("the audit verifies:", store.audit.verify().ok)


if __name__ == "__main__":
    main()
