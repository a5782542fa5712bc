"""A git assistant that is killed in the middle of a commit, and comes back without committing twice.

It works on a real repository in a temporary directory: it stages a change, has it turned down, stages it again and
commits it. Each of these is a transition of its machine, and each is durable. What it does with git are tools that take
permissions, and it may not push. The process that commits is killed (SIGKILL) at the worst moment: git has made the
commit, and the agent had no time to note that. The next process finds the transition half-done, takes it again, and its
action sees that there is nothing left to commit.

    python -m examples.git_assistant

It prints the states that the agent comes to, the report of the recovery, git's log, which tools were used how often,
and a picture of the machine with what was taken how often, for Mermaid.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast.agents import Machine, PersistentAgent, Recovery, count_transitions, mermaid

ID = "committer"
TOOLS = {"add": "write", "reset": "write", "commit": "write", "diff": "read", "log": "read", "push": "network"}
"""The commands of git that it knows, and what it takes to use them."""


class GitAssistant(PersistentAgent, name="git-assistant"):
    """Looks after one repository."""

    staged: list[str] = []
    commits: int = 0

    machine = Machine("idle", "reviewing", "committing")
    machine.add("stage", "idle", "reviewing", action="add")
    machine.add("turn down", "reviewing", "idle", action="unstage")
    # What was begun is finished: the action is written so that it can run twice.
    machine.add("commit", "reviewing", "idle", via="committing", action="commit", on_incomplete="forward")

    def on_start(self) -> None:
        """Say which tools there are, and what of them it may use."""
        for tool, permission in TOOLS.items():
            self.tools.declare(tool, [permission])
        self.tools.allow("read", "write")

    def git(self, command: str, *words: str) -> str:
        """Run git in the repository, if the agent may."""
        with self.tools.use(command):
            line = ["git", "-C", self.configuration["repository"], command, *words]
            return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    def add(self, paths: list[str]) -> None:
        """The action of `stage`."""
        self.git("add", "--", *paths)
        self.staged = paths

    def unstage(self, reason: str) -> None:
        """The action of `turn down`."""
        self.git("reset", "--quiet")
        self.staged = []
        self.conversation.append({"role": "user", "content": reason})

    def commit(self, message: str) -> None:
        """The action of `commit`. After a crash it runs again: then there may be nothing left to commit."""
        if self.git("diff", "--cached", "--name-only"):
            self.git("commit", "--quiet", "--message", message)
            die_if_told()
        self.commits += 1
        self.staged = []

    def handle_recovery(self, recovery: Recovery) -> None:
        """Called at a start that finds something half-done."""
        print("recovery: ", recovery)


def prepare(directory: Path) -> tuple[Path, str]:
    """A repository with a change in it, and the address of a store."""
    repository = directory / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    settings = {"user.name": "Assistant", "user.email": "assistant@example.com", "commit.gpgsign": "false"}
    for key, value in settings.items():
        subprocess.run(["git", "-C", str(repository), "config", key, value], check=True)
    (repository / "tides.md").write_text("The moon pulls the sea.\n", encoding="utf-8")
    return repository, f"sqlite:///{(directory / 'agents.db').as_posix()}"


def work(repository: Path, url: str) -> None:
    """Everything up to the commit."""
    with holdfast.open(url) as store:
        agent = GitAssistant(repository=str(repository)).attach(store, ID)
        agent.start()
        print("stage:    ", agent.transition("stage", ["tides.md"]))
        print("turn down:", agent.transition("turn down", "say why"))
        print("stage:    ", agent.transition("stage", ["tides.md"]))
        try:
            agent.git("push")
        except holdfast.errors.DeniedError as denied:
            print("push:     ", denied.what)
        agent.stop()


def commit(url: str) -> None:
    """The process that is killed: it brings the agent back by its id, and has it commit."""
    with holdfast.open(url) as store:
        agent = store.agents.restore(ID)
        agent.start()
        agent.transition("commit", "Say what makes the tides")


def die_if_told() -> None:
    """Wait to be killed, in the process that is to be."""
    if "--killed" in sys.argv:
        print("git has committed", flush=True)
        sys.stdin.read()


def commit_and_be_killed(url: str) -> None:
    """Run `commit` in a process of its own, and kill that when git has committed and the agent has not noted it."""
    command = [sys.executable, __file__, "--killed", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        print("commit:   ", process.stdout.readline().strip(), "and the agent is killed")
        process.kill()


def come_back(url: str) -> None:
    """The next process: the start finds the commit half-done, and finishes it."""
    with holdfast.open(url) as store:
        agent = store.agents.restore(ID)
        agent.start()
        print(f"back:      {agent.status}, {agent.state}, commits: {agent.commits}")
        print("git log:  ", agent.git("log", "--format=%an: %s"))
        # What the killed process did between two saves is not among these: that it committed is known to git alone.
        used = [agent.tools[name] for name in agent.tools]
        print("tools:    ", ", ".join(f"{tool.name} {tool.uses}" for tool in used if tool.uses))
        print("denied:   ", ", ".join(f"{tool.name} {tool.denied}" for tool in used if tool.denied))
        agent.stop()
        taken = count_transitions(store.agents.transitions(ID).all())
        print(mermaid(GitAssistant.machine, taken, current=agent.state))


def main() -> None:
    if shutil.which("git") is None:
        raise SystemExit("git is not installed: this example works on a repository, and needs it")
    if sys.argv[1:2] == ["--killed"]:
        commit(sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as place:
        repository, url = prepare(Path(place))
        work(repository, url)
        commit_and_be_killed(url)
        come_back(url)


if __name__ == "__main__":
    main()
