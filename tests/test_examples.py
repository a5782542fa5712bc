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
from tests import servers
from tests.docs.markdown import links, split
from tests.interfaces.cli import kit

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
EXAMPLES = sorted(path.parent for path in FOLDER.rglob("__main__.py"))
ELSEWHERE = {"adk_notes", "maf_review", "pydantic_desk"}
"""Examples of frameworks that are installed in environments of their own: `make adapters` runs them."""
DAILY = {"greeter", "order_desk", "time_travel", "research_agent", "tenants"}
"""The others are run by night."""


def console(example: Path) -> tuple[list[str], str]:
    """The commands that the README of an example shows, and what they print."""
    (block,) = (block for block in split(example / "README.md")[0] if block.info == "console")
    lines = block.text.splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")], "\n".join(
        line for line in lines if not line.startswith("$ ")
    )


def shown(printed: str, text: str) -> bool:
    """Whether that was printed that a README shows, where `…` stands for what differs each time."""
    pattern = ".*".join(re.escape(part) for part in text.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.name, marks=() if path.name in DAILY else pytest.mark.nightly)
        for path in EXAMPLES
        if path.name not in ELSEWHERE
    ],
)
@pytest.mark.time_limit(120)
def test_an_example_prints_what_it_says(example: Path) -> None:
    if example.name == "git_assistant" and shutil.which("git") is None:
        pytest.skip("git is not installed")
    if example.name in {"night_shift", "research_agent"} and not hasattr(os, "fork"):
        pytest.skip("a process is killed by a signal")
    commands, text = console(example)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if "POSTGRES_URL" in commands[0]:
        environment["POSTGRES_URL"] = servers.postgres()
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", *commands[-1].split()[1:]],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert shown(done.stdout, text), done.stdout


def test_what_is_not_shown_is_noticed() -> None:
    assert shown("a 1 b\nc\n", "a … b\nc")
    assert not shown("a 1 b\nc\nd\n", "a … b\nc")
    assert not shown("a 1 b", "b … b")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run(example: Path) -> None:
    text = (example / "__main__.py").read_text(encoding="utf-8")
    module = ".".join(example.relative_to(ROOT).parts)
    assert f"    python -m {module}\n" in text
    assert "\nIt prints " in text
    assert len(text.splitlines()) < 180
    assert console(example)[0][-1] == f"python -m {module}"


def test_the_index_has_all_examples() -> None:
    listed = {target for _, target in links(FOLDER / "README.md") if target.endswith("README.md")}
    folders = {path.relative_to(FOLDER).as_posix() for path in [*EXAMPLES, FOLDER / "scripts"]}
    assert listed == {f"{folder}/README.md" for folder in folders}


@pytest.mark.nightly
def test_the_exported_conversation_is_a_test(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.replay_in_ci", str(tmp_path)], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    assert "1 passed" in subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout


def test_without_git_the_git_assistant_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.git_assistant"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "git is not installed: this example works on a repository, and needs it\n"


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


@pytest.mark.parametrize("path", sorted({*SCRIPTS.iterdir()} - {SCRIPTS / "README.md"}), ids=lambda path: path.name)
def test_a_script_says_how_it_is_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"examples/scripts/{path.name}" in text
    assert len(text.splitlines()) < 60
