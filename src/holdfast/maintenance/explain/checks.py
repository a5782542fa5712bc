"""What the doctor's checks mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CheckText(NamedTuple):
    """A check of the doctor: what it looks at, what usually causes a finding, and the remedy."""

    meaning: str
    causes: tuple[str, ...]
    remedy: str


CHECKS: Mapping[str, CheckText] = {
    "python": CheckText("Which Python and which Holdfast run.", (), "None is needed."),
    "drivers": CheckText(
        "What Holdfast needs, and what its extras bring: installed, and new enough.",
        ("Another package holds a driver back at an old release.",),
        "Update it: pip install --upgrade 'holdfast[EXTRA]'.",
    ),
    "extras": CheckText(
        "Which optional drivers are not installed.", (), "If you need one: pip install 'holdfast[EXTRA]'."
    ),
    "sqlite-release": CheckText(
        "The SQLite that stores use. Before 3.51.3 two connections could spoil a write-ahead log.",
        ("An old apsw, or one that was built against the system's SQLite.",),
        "pip install --upgrade apsw.",
    ),
    "python-sqlite": CheckText(
        "The SQLite that Python carries, which other programs of this machine may use on a store's file.",
        ("The release of Python is older than SQLite's correction.",),
        "Stores do not use it. Do not write to a store's file with it; reading is safe.",
    ),
    "settings-file": CheckText(
        "Whether holdfast.toml is found, can be read, and names stores that make sense.",
        ("A table is misspelt, a store is made of itself, or a variable that it names is not set.",),
        "Mend the file, or name another in HOLDFAST_CONFIG.",
    ),
    "settings-secret": CheckText(
        "Whether a password stands in a settings file that others may read.",
        ("The URL of a server was written with its password.",),
        "Write ${VARIABLE} in its place, or take the right to read from others: chmod 600 holdfast.toml.",
    ),
    "settings-variables": CheckText(
        "Whether the variables of the environment that start with HOLDFAST_ are ones that are read.",
        ("A variable is misspelt, or was renamed.",),
        "Rename it. HOLDFAST_STORE, HOLDFAST_CONFIG and HOLDFAST_PAGER are read, and those that holdfast.toml names.",
    ),
    "store-named": CheckText(
        "Whether a store is named, and what it is.",
        ("Neither --store, nor HOLDFAST_STORE, nor holdfast.toml names one.",),
        "Name one. The rest of the doctor's checks need it.",
    ),
    "store-there": CheckText(
        "Whether the file or directory of the store is there.",
        ("The path is misspelt, or relative to another directory.", "Nothing was saved yet."),
        "Check the URL. Absolute paths: sqlite:////var/lib/agents.db, file:///var/lib/agents.",
    ),
    "store-permissions": CheckText(
        "Whether this user may read and write the store's file and its directory, and whether too many others may.",
        ("The store was made by another user, for example by a service or as root.",),
        "Grant the right, on the directory too: SQLite puts its log beside the file.",
    ),
    "store-disk": CheckText(
        "Whether a SQLite file is on a local disk. Over a network its locks and its log do not work, and it can be "
        "damaged.",
        ("A home directory or a volume is mounted from another machine.",),
        "Move the file to a local disk, or use a server: PostgreSQL, MongoDB, Redis.",
    ),
    "store-log": CheckText(
        "How much waits in SQLite's write-ahead log. It is written back into the file from time to time.",
        ("A process reads without end, or hangs, and keeps the log from being written back.",),
        "End that process; then a tidy job, or opening and closing the store, writes it back.",
    ),
    "disk-space": CheckText(
        "How much room the disk has left, against what the store takes. Compacting and pruning need some of it.",
        ("The store or other files have grown.",),
        "Delete other files, prune the store, or move it to a larger disk.",
    ),
    "store-opens": CheckText(
        "Whether the store can be opened and read.",
        (
            "The server is not reachable, or refuses the user.",
            "The driver is not installed.",
            "The file is another application's, damaged, or of a newer release.",
        ),
        "The finding ends with the code of the error: look that up.",
    ),
    "clock": CheckText(
        "Whether this machine's clock goes right: no checkpoint may be newer than now.",
        ("A clock was wrong when a checkpoint was saved, or is wrong now.",),
        "Set the clocks, and keep them with NTP. Times in a thread never go backwards, so new checkpoints get the time "
        "of the one that is ahead.",
    ),
    "readable-rows": CheckText(
        "Whether the readable rows beside the log tell of the latest checkpoints.",
        ("A program wrote to the store that makes no such rows.",),
        "store.maintenance.project(), or a job of the kind project, makes them.",
    ),
    "text-index": CheckText(
        "Whether there is an index of words for searching, and whether it is complete.",
        ("None was asked for, or making it was interrupted.",),
        "store.maintenance.build_index(), or a job of the kind index, makes it.",
    ),
    "jobs": CheckText("Whether scheduled work is done.", (), "See `holdfast jobs`; the finer codes say what is wrong."),
    "jobs-damaged": CheckText(
        "A job's row cannot be read.",
        ("Its bytes are damaged, or were written by a newer release.",),
        "Remove the job and add it anew: `holdfast jobs remove NAME`.",
    ),
    "jobs-unknown": CheckText(
        "A job is of a kind that is not known here. Runners here leave it to others.",
        ("The package that brings the kind is not installed here.",),
        "Install it, or run the job where it is.",
    ),
    "jobs-failing": CheckText(
        "The last runs of a job failed, or found something. A job that fails is tried again after a minute, then after "
        "two, and so on up to an hour.",
        ("The job's settings do not fit any more.", "The store, a server or a disk fails.", "Verifying found damage."),
        "`holdfast jobs log NAME` says why; `holdfast jobs run NAME` tries it now.",
    ),
    "jobs-overdue": CheckText(
        "A job should have run an hour ago or more, and did not.",
        ("No runner is at work, or it is busy with a long job.",),
        "Start one: `holdfast jobs work` as a service, or a Runner in your program.",
    ),
    "leases": CheckText(
        "Rights to do what only one may do, left by processes that died.",
        ("A process was killed, or lost its connection, in the middle of a prune, a copy or a job.",),
        "None is needed: whoever is next takes them over.",
    ),
    "quarantine": CheckText(
        "Whether repairs put damaged rows aside.",
        ("`holdfast repair` without a copy to repair from.",),
        "`holdfast repair --from URL` brings back what a copy has.",
    ),
    "copies": CheckText(
        "How far a copy is behind, in stores that are copied as they are written (write-behind:, mirror:).",
        ("The copy's store cannot be reached.", "More is written than can be sent."),
        "Look at the copy's store. What waits is kept, and sent as soon as it can.",
    ),
    "sqlite-vacuum": CheckText(
        "How the SQLite file was made: the size of its pages, their checksums, and whether room that is freed goes "
        "back to the disk.",
        ("The file was made or vacuumed by another tool.",),
        "Copy the store into a new file, with `holdfast copy`; give room back with a tidy job.",
    ),
}
"""The doctor's checks by code. `store-check`, which verifying has too, is among the findings."""
