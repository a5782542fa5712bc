"""What the codes of errors mean."""

from __future__ import annotations

from typing import NamedTuple


class ErrorText(NamedTuple):
    """A code of an error: what it means, usual causes, what to do, and how a command ends with it."""

    code: str
    meaning: str
    causes: tuple[str, ...]
    remedy: str
    exit_code: int = 1


ERRORS = (
    ErrorText(
        "error",
        "Something went wrong that has no kind of its own.",
        (),
        "Read the message: it says what, where, and what to do.",
    ),
    ErrorText(
        "not-found",
        "What was named is not there: a thread, a checkpoint, a branch, a name, a job, or a place in a state.",
        (
            "It is misspelt, or the beginning of an id fits none.",
            "It belongs to another tenant, or to another store.",
            "It was deleted, or pruned.",
        ),
        "See what there is: `holdfast threads`, `holdfast log THREAD`, `holdfast branch THREAD`, `holdfast tag "
        "THREAD`. Name the tenant with --tenant.",
        3,
    ),
    ErrorText(
        "no-store",
        "There is no store where one was to be read. Commands that read make none.",
        (
            "The path in the URL is misspelt, or relative to another directory.",
            "Nothing was saved yet: saving a first checkpoint makes the store.",
        ),
        "Name the store with --store, HOLDFAST_STORE or holdfast.toml. A path from the root has four slashes: "
        "sqlite:////var/lib/agents.db.",
        10,
    ),
    ErrorText(
        "conflict",
        "Somebody else was first, or both sides changed the same thing. Nothing was changed.",
        (
            "Another writer followed the same checkpoint.",
            "A name, or the name of a branch, is taken.",
            "A merge met places that both branches changed.",
        ),
        "Read again and decide: save on top of what is there now, take another name, or merge with a strategy.",
        4,
    ),
    ErrorText(
        "under-way",
        "Another process is doing this at the moment, and only one may.",
        (
            "A prune, a compaction or a copy of the thread is running, or the job is.",
            "A process was killed while it did so: its right lasts for a minute after its last sign of life.",
        ),
        "Wait for it to end, or a minute if its process died, and try again.",
        4,
    ),
    ErrorText(
        "lease-lost",
        "This process was taken for dead while it worked, and another took over. It stopped before its next change, so "
        "nothing is spoilt.",
        ("The machine was asleep or overloaded.", "Its clock was set by more than a minute."),
        "Nothing has to be done: the other one does the work. If it happens often, look at the machine's load and its "
        "clock.",
        4,
    ),
    ErrorText(
        "version-mismatch",
        "A key of scoped state has another version than was expected, or what a transaction read was changed before it "
        "ended. Nothing was changed.",
        ("Somebody else wrote the key meanwhile.", "The key has expired, or was deleted."),
        "Read the key again and apply the change to what is there; or have that done: `store.transact`, "
        "`state.change`, `on_conflict=`.",
        4,
    ),
    ErrorText(
        "unanswered",
        "A responder has the request, and did not answer in time. The request was cancelled.",
        ("Its handler takes longer than the timeout.", "It waits for something itself."),
        "Allow it more time (`timeout`), or make the handler quicker.",
    ),
    ErrorText(
        "no-responder",
        "No responder took the request in time. The request was cancelled.",
        ("None is running, or all are busy.", "They serve requests of another name, tenant or store."),
        "Start a responder, start more of them, or allow more time (`timeout`).",
    ),
    ErrorText(
        "responder-died",
        "The responder that had the request gave no sign of life any more, and no other took it in time. The request "
        "was cancelled.",
        ("Its process was killed, or its machine went away.", "It holds requests for longer than it gives signs."),
        "Run more than one responder, with a lease that is shorter than the timeout: another then takes over in time.",
    ),
    ErrorText(
        "handler-failed",
        "The responder's own code raised an error while it answered the request.",
        ("The request has something in it that the handler does not expect.", "The handler has a bug."),
        "The error's `kind` and `message` say what it was; look at the responder.",
    ),
    ErrorText(
        "transient",
        "A failure that may pass. Nothing was changed.",
        ("A server is restarting, or the network was cut.", "A disk could not be read for a moment."),
        "Try again. A store opened through retry: does that by itself.",
    ),
    ErrorText(
        "busy",
        "Other processes kept the SQLite file locked for longer than busy_timeout.",
        (
            "Many processes write at once, or one writes very much.",
            "A process hangs in the middle of writing, or is stopped in a debugger.",
        ),
        "Try again; raise busy_timeout in the URL; end the process that hangs. For many writers, use PostgreSQL.",
    ),
    ErrorText(
        "disk-full",
        "The disk is full. Nothing of this change was stored, and nothing that was stored before is lost.",
        ("Other files, or the store itself, have grown.",),
        "Make room and try again. `holdfast prune` and a tidy job give room back; `holdfast doctor` says how much is "
        "left.",
    ),
    ErrorText(
        "uncertain",
        "No answer came: a change may have been made, or may yet be.",
        ("The network was cut, or the server went away, after the change was sent.",),
        "Look whether it was made before you do it again. Saving again under the same id is always safe.",
    ),
    ErrorText(
        "unavailable",
        "The store does nothing more until it is opened anew.",
        ("Its disk or its server failed.", "It was closed by another part of the program."),
        "Look at the disk or the server, and open the store anew.",
    ),
    ErrorText(
        "closed",
        "The store was closed, and is used again.",
        ("A `with` block ended before the last use of its store.", "A thread or task outlived it."),
        "Open it again, or close it later.",
    ),
    ErrorText(
        "write-failed",
        "Writing or flushing failed, and what was being written may or may not be stored. Nothing more is read or "
        "written until the store is opened anew: a flush that failed is never tried again.",
        ("The disk is failing, was removed, or is a network disk that went away.",),
        "Look at the disk and the system's log, then open the store anew and see what was saved last.",
    ),
    ErrorText(
        "unreachable",
        "A store could not be opened: no connection to its server could be made.",
        (
            "The server is not running, or not yet.",
            "The host or the port in the URL is wrong, or the name does not resolve.",
            "A firewall is in between.",
        ),
        "Start the server or correct the URL. To wait for a server that is being started, open the store with "
        "`connect_timeout=30`.",
    ),
    ErrorText(
        "corrupt",
        "Stored bytes are not what was written. Holdfast does not return them.",
        (
            "A disk or its memory failed; a file was cut or copied while it was in use.",
            "Another program wrote into the store.",
        ),
        "Keep a copy of the store. `holdfast verify` says what is affected; `holdfast repair --from URL` mends it from "
        "a copy, and without one keeps all that still reads.",
        5,
    ),
    ErrorText(
        "denied",
        "The caller may not do this, or the key that would allow it is missing.",
        (
            "The user may not write to the file or its directory.",
            "The database refuses this role.",
            "An identity (`store.as_identity`) tried what is not its own, and was not granted to it.",
        ),
        "Grant the right (`store.access.grant`), or run as the user who owns the store. `holdfast doctor` names the "
        "file.",
    ),
    ErrorText(
        "grant-revoked",
        "The grant that would have allowed this was taken back. Nothing was read or changed, and the try is in the "
        "audit.",
        ("Whoever owns the scope, or the store, revoked it.", "The identity was cut off."),
        "Ask whoever gave it for another. `store.access.grants(dead=True)` says who revoked it and when.",
    ),
    ErrorText(
        "grant-expired",
        "The grant that would have allowed this was given for a time, which is over. Nothing was read or changed, and "
        "the try is in the audit.",
        ("The work took longer than the grant was given for.", "The clocks of two machines differ."),
        "Ask whoever gave it for another, with a later `until`.",
    ),
    ErrorText(
        "session-ended",
        "The session has ended, and takes no more writes. Nothing was changed.",
        ("It was ended, here or by another process.", "Its time was up, and it was collected."),
        "Start another session; or resume this one, if it was archived or kept when it ended (`sessions.resume`). Give "
        "sessions that wait for people a longer `idle`, or touch them.",
    ),
    ErrorText(
        "vetoed",
        "A hook of the program refused the change, and says why. Nothing was changed.",
        ("The value breaks a rule that was registered with `store.hooks`, such as a schema.",),
        "Give a value that fits, or change the hook. `store.hooks.history()` tells of it.",
    ),
    ErrorText(
        "hook-failed",
        "A hook that must not be left out failed, took too long, or is off because it did so again and again. Nothing "
        "was changed.",
        ("The hook has a bug, or what it asks does not answer.", "Its time budget is too short for this machine."),
        "See `store.hooks.list()` for its last error. It is tried again after a while, by itself.",
    ),
    ErrorText(
        "unsupported",
        "A value, a format or an operation that cannot be handled here.",
        (
            "The state holds an object that cannot be kept, such as a connection; `where` is its path.",
            "The store was written by a newer release of Holdfast.",
            "The backend cannot do this.",
        ),
        "Keep an id instead of the object, or register its class; update Holdfast.",
    ),
    ErrorText(
        "invalid",
        "The call breaks a rule: a name too long, a revision that cannot be read, two changes in one place.",
        (),
        "Mend the call. The message says which rule, and where.",
        2,
    ),
    ErrorText(
        "circular-reference",
        "A value contains itself.",
        ("Two objects of the state refer to each other.",),
        "Save an id in place of one of them.",
    ),
    ErrorText(
        "too-deep",
        "A value is nested more deeply than the format allows.",
        ("A tree or a linked list was built of dicts in dicts.",),
        "Save it flat, as a list of nodes.",
    ),
    ErrorText(
        "too-large",
        "A value, or what a record claims to hold, exceeds a limit.",
        ("A state grew without bound.", "A file was put into a state."),
        "Save large values as values of their own, keep files outside, or raise Limits.max_bytes.",
    ),
    ErrorText(
        "config",
        "Settings are wrong: a URL, an option, or holdfast.toml.",
        ("A URL lacks its scheme, or an option is misspelt.", "holdfast.toml names a variable that is not set."),
        "Mend the setting. `holdfast doctor` looks at all of them.",
    ),
    ErrorText(
        "not-installed",
        "An optional part is not installed.",
        ("The store's driver comes with an extra of this package.",),
        "Install it: pip install 'holdfast[EXTRA]'. The message names the extra.",
    ),
    ErrorText(
        "no-store-named",
        "A command or call needs a store, and none is named.",
        ("HOLDFAST_STORE is not set, and no holdfast.toml here or above has [stores.default].",),
        "Give --store URL, set HOLDFAST_STORE, or write a holdfast.toml.",
        10,
    ),
    ErrorText(
        "agent-conflict",
        "Another saved the agent meanwhile, or deleted it. Nothing was saved, and the live agent is as it was.",
        (
            "Two processes run one agent, or two objects of one process do.",
            "It was rolled back, resolved or handed over by hand while it ran.",
        ),
        "Take on what is there with `agent.reload()` and apply the change to it; or have both sides merged: "
        '`on_conflict="merge"`, or a function. Run an agent in one place at a time.',
        4,
    ),
    ErrorText(
        "agent-exists",
        "There is an agent of this id already. Nothing was changed.",
        ("It was created before; `create` and `import_` make new ones only.",),
        "Bring it back with `store.agents.restore`, delete it, or use another id.",
        4,
    ),
    ErrorText(
        "agent-class-unknown",
        "The class of an agent is not known to this program. The agent is as it was.",
        (
            "The module that declares the class was not imported yet.",
            "The class has another name now.",
        ),
        "Import the module that declares it before agents are restored: nothing that a store names is imported by "
        "itself. Keep the old name with `name=`.",
        3,
    ),
    ErrorText(
        "agent-schema",
        "The agent was saved with fields of another form than its class has here. The agent is as it was.",
        (
            "The class has a newer `schema`, and no `upgrade`.",
            "An older release of the application runs beside a newer one.",
        ),
        "Give the class an `upgrade(fields, from_schema)`; or run the release that saved the agent, or a later one.",
    ),
    ErrorText(
        "agent-invalid",
        "The agent's own code refuses its state: nothing was saved, or nothing was taken on.",
        (
            "`validate` raised an error; its message is that of this error.",
            "The constructor does not take the configuration that was saved.",
        ),
        "Mend the state, or the rule. The message says what the agent's code has against it.",
    ),
    ErrorText(
        "no-transition",
        "The machine, or the life of the agent, has no such transition from where it stands. Nothing was changed.",
        (
            "The trigger is misspelt.",
            "The agent is in another state than the program takes it to be.",
        ),
        "See `agent.state` and `agent.status`; the message names the triggers that lead on from there.",
    ),
    ErrorText(
        "nested-transition",
        "A transition was begun from within an action of the same agent, and would wait for itself.",
        ("An action, a guard or a hook calls `transition`, `pause` or `stop` of its own agent.",),
        "Have the action return first, and begin the next transition afterwards.",
    ),
    ErrorText(
        "transition-incomplete",
        "Something that takes two phases was begun and not finished: the process ended in between, or another is at "
        "it.",
        (
            "The process was killed during the action.",
            'The policy is `on_incomplete="manual"`.',
        ),
        'Resolve it: `store.agents.resolve(id, "back" or "forward")`, or `holdfast agent resolve`. Other '
        "policies have it resolved at the next start.",
        4,
    ),
    ErrorText(
        "transfer-refused",
        "The agent that was to take over does not. The one that hands over is as it was.",
        (
            "Its `accepts` said no, or raised an error.",
            "It is not in a state in which it takes anything over.",
        ),
        "Hand over to another, or to this one later. The message says why it refused.",
    ),
    ErrorText(
        "tool-denied",
        "The agent may not use this tool. The try is counted.",
        (
            "The tool needs a permission that the agent does not have.",
            "The tool was denied to it by name.",
        ),
        "Allow it: `agent.tools.allow(permission)` or `agent.tools.allow(tool=name)`.",
    ),
    ErrorText(
        "snapshot",
        "Something is wrong with a snapshot. What is raised has a kind of its own.",
        (),
        "Read the message: it says what, where, and what to do.",
    ),
    ErrorText(
        "snapshot-not-found",
        "There is no snapshot at that place, or no such directory.",
        (
            "The path or the name in the bucket is misspelt.",
            "It was deleted.",
        ),
        "See what there is: `holdfast snapshot list PLACE`.",
        3,
    ),
    ErrorText(
        "snapshot-exists",
        "There is a file of that name, or an agent of that id, already. It is as it was.",
        ("A snapshot is not overwritten, and an agent not replaced, unasked.",),
        "Take another name, or give --overwrite; restore an agent under another id with --id.",
        4,
    ),
    ErrorText(
        "snapshot-corrupt",
        "The file is damaged, cut off, forged, or no snapshot at all. Nothing of it was used.",
        (
            "It was altered, or not copied to its end.",
            "It was edited: its seal covers every byte.",
            "It is another file, of the same name.",
        ),
        "Take another copy of it. `holdfast snapshot verify` tells which are sound.",
        5,
    ),
    ErrorText(
        "snapshot-refused",
        "It holds, or would hold, what is not let through: a class that is not allowed, a secret, or a template that "
        "can run code.",
        (
            "A model's class is not one of langchain-core: whoever restores has to allow it.",
            "A key stands in the settings, in a header or in the conversation.",
            "Somebody made the file to do harm.",
        ),
        "If you trust where it comes from, allow the class: `restore(…, allow=[ChatOpenAI])`. Take secrets out of what "
        "is frozen; say `not_secret=` of fields that only look like one.",
    ),
    ErrorText(
        "snapshot-unsupported",
        "This cannot be kept in a snapshot, or the snapshot was made by a newer release.",
        (
            "A function, a tool or a lambda is in it: these are code.",
            "A value is of a type that LangChain does not serialize. The message has the path to it.",
            "The graph was not made by create_agent.",
        ),
        "Leave it out, or give it again when you restore. Read newer snapshots with a newer Holdfast.",
    ),
    ErrorText(
        "snapshot-invalid",
        "What was given does not fit: tools or middleware that are missing or differ, a secret that was not given, a "
        "name that is none.",
        (
            "The code of a tool has changed since the snapshot was taken.",
            "Code and secrets are not in a snapshot, and were not given again.",
        ),
        "See what it needs: `holdfast snapshot show FILE`. Give just that, or `accept_changes=True`.",
    ),
    ErrorText(
        "snapshot-too-large",
        "The snapshot, or what it unpacks to, exceeds a limit.",
        (
            "A long conversation is in it.",
            "It is a bomb: a small file that unpacks to a huge one.",
        ),
        "If you know where it comes from, give a larger `limit`.",
    ),
    ErrorText(
        "usage",
        "The command line asks for what cannot be.",
        ("An option or argument is misspelt, or missing.",),
        "See `holdfast COMMAND --help`.",
        2,
    ),
    ErrorText(
        "internal",
        "Something failed that Holdfast did not foresee: a mistake in Holdfast, or in a function that it was given.",
        (),
        "Run the command with --verbose to see where. If it is not in your own code, report it.",
    ),
)
"""Every code of an error."""
