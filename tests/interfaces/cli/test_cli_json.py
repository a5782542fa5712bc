"""`--json`: every command writes the words of the Python API, and times in one form."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import click
import pytest

import holdfast
from holdfast import agents, engine, history, hooks, maintenance, schemas, security, state, store
from holdfast.agents import PersistentAgent
from holdfast.interfaces.cli.main import cli
from tests.interfaces.cli import kit
from tests.support.cases import case


class Writer(PersistentAgent, name="cli-json-writer"):
    """An agent with a field."""

    notes: list[str] = []


SCHEMAS = """
from holdfast.schemas import Migration, Schema, SchemaSet, add

schemas = SchemaSet(
    Schema("chat", "1", {"type": "object", "properties": {"a": {"type": "integer"}}}),
    Schema("chat", "2", {"type": "object", "properties": {"a": {"type": "string"}}}),
    Migration("chat", "1", "2", add("b", default=1)),
)
"""

# Every command, in an order in which each succeeds (or ends with the code that follows a `#`).
COMMANDS = """
threads
threads --kind all
log t1 --all -p
show t1
show t1 --path count
diff t1
diff t1 --patch
blame t1 count
blame t1 count --history
grep message
grep -c message
grep --index
grep --drop-index
timeline
timeline kind:checkpoint --html timeline.html --otlp spans.json
timeline --thread t1 --of count
watch --since 1d -n 1
usage t1 --by model
status
branch t1
branch t1 new
branch t1 -m new newer
branch t1 -d newer --yes
switch t1 other
switch t1 main
merge t1 other # 4
merge t1 other -s ours
fork t1 forked c2 --set count=9
restore t1 c1
undo t1
append t1 said 1
tag t1 v1
tag t1
tag t1 -d v1
label t1 seen c0
label t1
label t1 -d seen c0
run script.lua name=tides
pin t1 c1 -m why
pin t1
pin t1 c1 -d
hold t2 -m why
hold
hold t2 -d
expire t2 30d
expire t2
expire t2 never
agent list
agent show anna
agent messages anna
agent transitions anna
agent transitions anna --mermaid
agent history anna
agent diff anna
agent resolve anna --back
agent steps anna
agent steps anna charge-1
agent resolve-step anna charge-1 --retry
agent timers anna
agent cancel-timer anna reminder
agent signal anna approved 1 --id s1
agent signal anna
agent transfer anna ben --yes
agent transfers anna
agent export anna anna.json
agent import anna.json --id carl
agent rollback carl 1 --yes
agent delete carl --yes
agent unsaved
agent prune-steps --older-than 1d
agent save-state crawl-7 --type crawler --state idle
agent record-transition crawl-7 idle busy --trigger fetch
snapshot create anna anna.hfsnap
snapshot show anna.hfsnap
snapshot verify anna.hfsnap
snapshot list .
snapshot restore anna.hfsnap --id dora
snapshot delete anna.hfsnap --yes
schema lock
schema check
schema show
schema show chat
schema diff chat@1
schema docs
schema docs --format html -o schemas.html
migrate status
migrate plan chat
migrate up chat --no-backup --yes
migrate down chat --to 1 --yes
migrate new chat --from 1 --to 2
migrate test --examples 3 # 6
state set agent:a plan 1 --ttl 2h
state patch agent:a deep x=1
state get agent:a plan
state list
state list agent:a
state list agent:a --values
state history agent:a --values
state diff agent:a 1
state rollback agent:a 1 --dry-run
state watch agent:a --cursor '' -n 1
state expire agent:a plan 1h
state copy agent:a agent:b
state move agent:b agent:c
state delete agent:c deep
session start s1 --user alice --on-end archive
session list
session show s1
session touch s1
session update s1 a=1
session end s1
session resume s1
session collect
session delete s1 --yes
grant give agent:b read agent:a --until 2h
grant list
grant check agent:b read agent:a
grant join editors agent:b
grant groups
grant leave editors agent:b
grant define reader rules.json
grant assign reader agent:b
grant roles
grant unassign reader agent:b
grant drop reader --yes
grant allow-children user:alice
grant parents
grant forbid-children user:alice
grant cut-off agent:b --yes
grant freeze agent:b -m why
grant frozen
grant unfreeze agent:b
audit
audit verify
audit export audit.jsonl
audit check audit.jsonl
hooks history
hooks stats
hooks archive hooks.jsonl --keep-last 1
audit archive segment.jsonl --older-than 0s
redaction scan
prune t1 --keep-last 3 --dry-run
prune --all --keep-last 3 --orphans --yes
quota --threads 1000
verify
heads heads.json
repair --dry-run
jobs add nightly verify --every 1d
jobs list
jobs pause nightly
jobs resume nightly
jobs run nightly
jobs work --once
jobs log nightly
jobs kinds
jobs remove nightly --yes
runs submit support --thread t1
runs list
runs limit 3 --graph support
runs limits
copy copy.db t1
export t1.gz t1
import t1.gz --dry-run
backup create -r repository
delete t2 --yes
token issue user:alice
token list
metrics show
metrics dashboard
metrics rules
alerts list
alerts silence backup-age 1h
backup create -r repository
backup list -r repository
backup show -r repository
backup diff 1 -r repository
backup verify -r repository
backup restore latest t1 --dry-run -r repository
backup drill -r repository
backup repair -r repository
backup prune --keep-last 1 --dry-run -r repository
backup pin 1 -r repository
backup suspend-deletion -r repository
backup allow-deletion --yes -r repository
backup schedule -r repository
erase --subject nobody --yes
redaction redact --yes
erase list
erase key
doctor
explain no-store
completion bash
version
help log
"""
NO_RECORDS = {"grant revoke", "token revoke", "ui", "serve", "backup follow", "alerts test"}
"""The first two need an id: their records are those of `grant list` and `token list`. `alerts test` needs a receiver:
test_alerts.py runs it. The others run until they are stopped: tests/interfaces/web runs them."""
NO_RECORDS |= {"erase set-subject", "erase show", "erase verify"}
"""They need a thread, or a certificate: test_erase.py runs them."""
NO_RECORDS |= {f"encryption-keys {each}" for each in ("list", "add", "rotate", "reencrypt", "destroy", "check")}
"""They need an encrypted store: test_encryption_keys.py runs them."""
NO_RECORDS |= {f"replay {each}" for each in ("record", "run", "hooks", "compare", "export")}
"""They need a recorded run: test_replay_command.py runs them."""
NO_RECORDS |= {f"hooks {each}" for each in ("undelivered", "retry", "discard")}
"""They need a call that was not delivered: test_timeline.py runs them."""
NO_RECORDS |= {
    "work",
    *(f"runs {each}" for each in ("show", "follow", "cancel", "retry", "answer", "resolve", "delete")),
}
"""They need a run and a worker: test_runs.py runs them."""
NO_RECORDS |= {"mcp", "estimate"}
"""The first runs until it is stopped, and the second needs a database of another saver or of sessions: test_transfer.py
and test_peer_sessions.py run it."""
NO_RECORDS |= {"init"}
"""It writes the file that the others have: test_stores.py runs it."""
NO_RECORDS |= {"answer"}
"""It needs a graph that asks: test_answers.py runs it."""
NO_RECORDS |= {"backup add-key", "backup keys"}
"""They need an encrypted repository: test_backup_keys.py runs them."""

MAY_BE_EMPTY = ("agent transitions anna", "agent unsaved", "jobs work --once", "schema check")

OPEN = {
    "state",
    "value",
    "metadata",
    "status",
    "details",
    "settings",
    "conversation",
    "base",
    "ours",
    "theirs",
    "before",
    "data",
}
OPEN |= {"old", "new", "configuration", "fields", "context", "workflow", "tools", "versions", "script", "details"}
OPEN |= {"labels", "buckets", "definition", "patch", "rules", "changes", "detail", "heads", "removed"}
"""Fields whose content is the user's own, or is defined elsewhere."""

TIMES = {"time", "created", "updated", "started", "ended", "due", "until", "revoked", "expires", "modified", "since"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def interrupt() -> None:
    """End a step as Ctrl-C does."""
    raise KeyboardInterrupt


def leaves(command: click.Command, path: str = "") -> Iterator[str]:
    """The commands that do something, as they are typed."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaves(inner, f"{path} {name}".strip())
    else:
        yield path


def fields(record: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a record, and of those in it."""
    if isinstance(record, list):
        for each in record:
            yield from fields(each)
    elif isinstance(record, dict):
        for name, value in record.items():
            yield name, value
            if name not in OPEN:
                yield from fields(value)


@pytest.fixture
def full(url: str, tmp_path: Path) -> str:
    with holdfast.open(url) as store:
        store.hooks.after("agent.start", name="follow")(lambda _: None)
        for id in ("anna", "ben"):
            agent = Writer().attach(store, id)
            agent.start()
            agent.conversation.append({"role": "user", "content": "hello"})
            agent.timers.set("reminder", "1h")
            with pytest.raises(KeyboardInterrupt):
                agent.once("charge-1", interrupt)
            agent.stop()
    (tmp_path / "holdfast.toml").write_text('[schemas]\nmodule = "cli_json_schemas"\n')
    (tmp_path / "cli_json_schemas.py").write_text(SCHEMAS)
    (tmp_path / "script.lua").write_text("print(args.name) return store:thread('t1'):get().state")
    (tmp_path / "rules.json").write_text('[{"effect": "allow", "right": "read"}]')
    return url


def test_the_list_has_every_command() -> None:
    typed = [line.partition(" #")[0] for line in COMMANDS.strip().splitlines()]
    missing = [path for path in leaves(cli) if not any(f"{line} ".startswith(f"{path} ") for line in typed)]
    assert set(missing) == NO_RECORDS


def test_every_command_uses_the_same_words(full: str, subtests: pytest.Subtests) -> None:
    for line in COMMANDS.strip().splitlines():
        typed, _, code = line.partition(" # ")
        with case(subtests, typed):
            result = kit.run(*shlex.split(typed), "--json", store=full)
            assert result.code == int(code or 0), result.err
            assert result.records or typed in (
                "agent transitions anna",
                "agent unsaved",
                "jobs work --once",
                "schema check",
            )
            for name, value in fields(result.records):
                assert name in WORDS, f"{name} is not a word of the API"
                if name in TIMES and value is not None and typed != "session collect":  # which counts
                    assert TIME.fullmatch(value), f"{name}: {value}"


def api_words() -> Iterator[str]:
    """The fields of everything that the Python API returns, and the parameters of its methods."""
    for root in (agents, engine, history, hooks, maintenance, schemas, security, state, store):
        modules = [importlib.import_module(each.name) for each in walk_packages(root.__path__, f"{root.__name__}.")]
        for each in {value for module in modules for value in vars(module).values() if isinstance(value, type)}:
            for declared in ("_fields", "__dataclass_fields__", "__slots__"):
                found = getattr(each, declared, ())
                yield from found if isinstance(found, tuple | dict) else ()
            for name, member in inspect.getmembers(each):
                yield name
                if inspect.isfunction(member):
                    yield from inspect.signature(member).parameters


WORDS = {*api_words()}
WORDS |= {
    *[
        "a",
        "about",
        "assigned",
        "b",
        "branch_name",
        "causes",
        "command",
        "copied",
        "definition",
        "deleted",
        "diagram",
        "digest",
        "durable",
        "exit_code",
        "file",
        "forgotten",
        "group",
        "heads",
        "held",
        "help",
        "holders",
        "holdfast",
        "ids",
        "joined",
        "largest",
        "line_bytes",
        "meaning",
        "members",
        "op",
        "orphans",
        "pinned",
        "python",
        "reasons",
        "records",
        "renamed_from",
        "rights",
        "script",
        "shared",
        "shell",
        "skipped",
        "spared",
        "sqlite",
        "touched",
        "unproven",
        "who",
    ]
}
"""Words of the command line, and of reports that are not exported."""
