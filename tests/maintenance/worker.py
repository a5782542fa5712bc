"""A runner in a process of its own: `python -m tests.maintenance.worker URL LIFE FILE`.

It knows the kind `slow`, which writes into a file that it began and, after a while, that it ended.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast
from holdfast.jobs import JobContext
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.runner import JobRunner
from holdfast.maintenance.jobs.types import JobType


def note(path: Path, text: str) -> None:
    """Add a line to a file that others write to."""
    with path.open("a") as file:
        file.write(f"{text}\n")


def main(url: str, life: str, path: str) -> None:
    """Work until killed."""
    file = Path(path)

    def slow(job: JobContext) -> str:
        note(file, f"began {job.name} {os.getpid()}")
        until = time.monotonic() + float(job.settings["seconds"])
        while time.monotonic() < until:
            time.sleep(0.02)
            job.progress(0, None, "")
        note(file, f"ended {job.name} {os.getpid()}")
        return f"{os.getpid()}"

    kinds = JobTypes()
    kinds.add(JobType("slow", "takes a while", slow, lambda settings: None))
    with holdfast.open(url) as store:
        note(file, f"ready - {os.getpid()}")
        JobRunner(store, kinds, look_every=0.05, life=float(life)).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
