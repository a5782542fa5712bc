"""The examples do what they say that they show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import VetoError
from holdfast.hooks import HookContext
from holdfast.scripts import ScriptHook
from tests.interfaces.cli import kit

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples" / "agents").glob("*.py"))


def run(name: str) -> list[str]:
    """Run an example as its docstring says to. Returns the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", "-m", f"examples.agents.{name}"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_greeter_knows_whom_it_met() -> None:
    assert run("greeter") == [
        "Hello, Ada!",
        "Hello, Grace!",
        "Hello again, Ada: that makes 2",
        "Hello again, Ada: that makes 3",
        "door: greeter, stopped, version 5",
    ]


def test_the_haiku_agent_goes_on_with_its_conversation() -> None:
    printed = run("haiku")
    assert [line[:3] for line in printed if line.startswith("(")] == ["(1)", "(2)", "(3)"]
    assert printed[2] == "back, in the form 5-7-5, with 4 messages"
    assert printed[-1] == "collected: tides, kelp, git"


def test_the_graph_remembers_people_across_conversations() -> None:
    assert run("remembering_graph") == [
        "I know 0 things about ann",
        "I know 0 things about ben",
        "I know 1 things about ann",
        "tea: ['fact-0']",
        "left: [('memories', 'ben')]",
    ]


def test_two_processes_share_a_chat() -> None:
    assert run("shared_chat") == [
        "desk: 40 messages, in order",
        "helper: 40 messages, in order",
        "tokens: 280",
        "at the start: You answer briefly.",
        "branches: 1",
    ]


def test_the_leaked_key_is_noticed_and_replaced() -> None:
    assert run("leaked_key") == [
        "credentials in clear at 1 place: holdfast doctor",
        "credentials in clear at 1 place: github-token at messages[1] of thread:chat-1",
        "replaced in 1 thread, 1 checkpoint pruned",
        "I use the token [redacted:github-token]",
        "Does [redacted:github-token] work?",
        "0 credentials are left",
    ]


def test_the_order_desk_charges_and_ships_once() -> None:
    done = "the parcel at the dock, approved by Ada"
    assert run("order_desk") == [
        "charging order 42, with a key of 32 characters",
        "shipping order 42, for which 9.5 was paid",
        "the power is gone",
        "attempt 1 of ship-42 was interrupted; the parcel is at the dock",
        *[done] * 2,
    ]


def test_what_happened_is_told_in_order_and_with_its_causes() -> None:
    printed = run("what_happened")
    assert printed[1:5] == [
        "  checkpoint save thread:chat-7  messages[1] · a kite, please",
        '  change set agent:planner plan "kite"',
        "  change set agent:buyer order {2}",
        "  hook hand-over agent:planner plan",
    ]
    assert printed[-2:] == ["change set agent:buyer order", "  change set agent:planner plan"]


@pytest.mark.nightly
def test_a_recorded_chat_is_replayed() -> None:
    assert run("replayed_chat") == [
        "the same code: as recorded, 6 steps and 6 calls",
        "another prompt: input at step 2",
        "another tide: output at step 5",
    ]


def test_the_conversation_is_handed_over_once_it_is_accepted() -> None:
    printed = run("handover")
    assert printed[0].startswith("refused: ")
    assert printed[1] == "football: the greeter has 2 messages, the poet 0"
    assert printed[2] == "kelp: the greeter has 0 messages, the poet 4"
    assert "a holdfast grips the dark rock" in printed[3]
    assert printed[4:] == ["given: a haiku on kelp", "refused: a haiku on football"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_git_assistant_is_killed_and_commits_once() -> None:
    printed = run("git_assistant")
    said = dict(re.findall(r"^([a-z ]+): +(.*)$", "\n".join(printed), re.MULTILINE))
    assert [line.split()[-1] for line in printed[:3]] == ["reviewing", "idle", "reviewing"]
    assert "may not use the tool 'push'" in said["push"]
    assert said["commit"] == "git has committed and the agent is killed"
    assert "transition 'commit' reviewing → idle: finished" in said["recovery"]
    assert said["back"] == "running, idle, commits: 1"
    assert said["git log"] == "Assistant: Say what makes the tides"
    assert printed.count("git log:   Assistant: Say what makes the tides") == 1
    assert said["tools"] == "add 2, diff 1, log 1, reset 1"
    assert said["denied"] == "push 1"
    assert "stateDiagram-v2" in printed
    assert any(line.endswith(": stage (2×)") for line in printed)


def test_without_git_the_git_assistant_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.agents.git_assistant"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "git is not installed: this example works on a repository, and needs it\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is killed by a signal")
def test_the_night_shift_goes_on_after_a_worker_was_killed() -> None:
    assert run("night_shift") == [
        "the first worker ended with -9",
        "the second worker ended with 0",
        "order-1 done after 2 attempts: receipt of order-1, order-1 is on its way",
        "order-2 done after 1 attempts: receipt of order-2, order-2 is on its way",
        "order-3 done after 1 attempts: receipt of order-3, order-3 is on its way",
        "charged: order-1 order-2 order-3",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_how_it_is_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"    python -m examples.agents.{path.stem}\n" in text
    assert "\nIt prints " in text
    assert len(text.splitlines()) < 180


SCRIPTS = ROOT / "examples" / "scripts"


def run_script(name: str, store: str, *arguments: str) -> tuple[int, list[str], str]:
    """Run a script by the command line, as it says to. Returns the exit code, the lines that it printed, and errors."""
    done = kit.run("run", SCRIPTS / name, *arguments, store=store)
    return done.code, done.lines, done.err


def test_the_recap_has_new_checkpoints_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with holdfast.open(url) as store:
        store.thread("chat-1").put({"messages": ["hi", "ho"]})
        store.thread("chat-2").put({"messages": []})
        store.thread("other").put({"messages": ["x"]})
    assert run_script("recap.lua", url, "prefix=chat-") == (0, ["chat-1: 2 messages", "chat-2: 0 messages", "2"], "")
    assert run_script("recap.lua", url, "prefix=chat-") == (0, ["0"], "")
    with holdfast.open(url) as store:
        store.thread("chat-2").update({"messages": ["new"]})
        assert run_script("recap.lua", url, "prefix=chat-")[1] == ["chat-2: 1 messages", "1"]
        recap = store.state("agent:recap")["recap/chat-1"]
        assert (recap["messages"], recap["last"]) == (2, "ho")
        assert recap["time"] == store.thread("chat-1").get().time


def test_a_budget_is_moved_or_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with holdfast.open(url) as store:
        store.state("agent:alice")["budget"] = 40
    arguments = ("from=alice", "to=bob", "amount=25")
    assert run_script("move_budget.js", url, *arguments) == (0, ["alice: 15", "bob: 25"], "")
    code, printed, error = run_script("move_budget.js", url, *arguments)
    assert (code, printed) == (1, [])
    assert "alice has 15, and not 25" in error
    with holdfast.open(url) as store:
        assert [store.state(f"agent:{name}")["budget"] for name in ("alice", "bob")] == [15, 25]


def test_hooks_of_the_examples() -> None:
    with holdfast.open("memory://") as store:
        limit, redact = (ScriptHook(SCRIPTS / name, store) for name in ("limit_budget.lua", "redact.js"))
        store.hooks.before("state.set", scope="agent:*", key="budget", fail_closed=True)(limit)
        store.hooks.before("state.*", scope="agent:*")(redact)
        state = store.state("agent:a")
        state["budget"] = 100
        for value in (101, "much"):
            with pytest.raises(VetoError):
                state["budget"] = value
        state["note"] = {"text": ["write to ada@example.org", 1.5, None]}
        assert state["note"] == {"text": ["write to [address]", 1.5, None]}
        limit.close()
        redact.close()


@pytest.mark.nightly
def test_recorded_hooks_are_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with holdfast.open(url) as store:

        @store.hooks.before("state.set", record=True)
        def limit(call: HookContext) -> Any:
            return min(call.value, 200)

        for value in (50, 150):
            store.state("agent:a")["budget"] = value
    code, printed, errors = run_script("check_hooks.js", url, "--code", "hooks=tests.store.replayed_hooks:register")
    assert (code, errors) == (0, "")
    assert printed[0] == "limit of agent:a budget: changed, and was ok"
    assert printed[-1].startswith("2 calls, 1 differ; ")
    assert run_script("check_hooks.js", url)[0] == 1


@pytest.mark.parametrize("path", sorted(SCRIPTS.iterdir()), ids=lambda path: path.name)
def test_a_script_says_how_it_is_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"examples/scripts/{path.name}" in text
    assert len(text.splitlines()) < 60
