"""What every command has: shared options, the store, errors and exit codes."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    TooDeepError,
    TransientError,
)
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import (
    SHARED_NAMES,
    CliContext,
    command,
    dry_run_option,
    group,
    shared_options,
    yes_option,
)
from holdfast.interfaces.cli.main import COMMANDS, cli
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]
NAMES = [name for names in COMMANDS.values() for name in names]


def test_shared_options_stand_before_and_after_the_command(url: str) -> None:
    before = kit.run("--store", url, "--json", "threads")
    after = kit.run("threads", "--json", "--store", url)
    assert before == after
    assert [record["thread"] for record in before.records] == ["chat/anna", "t1", "t2"]


def test_what_stands_after_counts_for_more(url: str) -> None:
    assert kit.run("--store", "sqlite:///elsewhere.db", "threads", "--store", url).code == 0


def test_a_tenant_sees_its_own(url: str) -> None:
    with holdfast.open(url, tenant="acme") as store:
        store.thread("theirs").put({"a": 1})
    assert kit.run("threads", "--names", "--tenant", "acme", store=url).lines == ["theirs"]
    assert "theirs" not in kit.run("threads", "--names", store=url).lines


def test_the_store_comes_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", url)
    assert kit.run("threads", "--names").lines == ["chat/anna", "t1", "t2"]


def test_the_store_comes_from_the_settings_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(f'[stores.default]\nurl = "{url}"\n[stores.other]\nurl = "memory://"\n')
    assert kit.run("threads", "--names").lines == ["chat/anna", "t1", "t2"]
    assert kit.run("threads", "--names", store="stores.other").lines == []


def test_a_path_is_a_store_where_that_is_plain(url: str, tmp_path: Path) -> None:
    assert kit.run("threads", "--names", store="agents.db").lines == ["chat/anna", "t1", "t2"]
    assert kit.run("threads", "--names", store=str(tmp_path / "agents.db")).code == 0
    with holdfast.open(f"file://{tmp_path}/a dir") as store:
        store.thread("t9").put({})
    assert kit.run("threads", "--names", store="./a dir").lines == ["t9"]


@pytest.mark.parametrize("store", ["nope.db", "sqlite:///nope.db", "file:nope", "nope/", "readonly:?store=nope.db"])
def test_no_store_is_made_by_looking(store: str, tmp_path: Path) -> None:
    found = kit.run("threads", store=store)
    assert (found.code, found.out) == (10, "")
    assert found.err.startswith("error[no-store]: ")
    assert "--store" in found.err
    assert list(tmp_path.iterdir()) == []


def test_no_store_is_named() -> None:
    found = kit.run("threads")
    assert found.code == 10
    assert "error[no-store-named]" in found.err
    assert "HOLDFAST_STORE" in found.err


def test_errors_as_json() -> None:
    found = kit.run("threads", "--json", store="nope.db")
    assert found.code == found.error["exit_code"] == 10
    assert found.error["code"] == "no-store"
    assert found.error["hint"]
    assert json.loads(found.err)


def test_wrong_commands_and_options(hf: Hf) -> None:
    found = hf("thread")
    assert found.code == 2
    assert "error[usage]: there is no command 'thread'. Did you mean threads?" in found.err
    assert "there is no command 'get'. Did you mean show?" in hf("get").err
    assert kit.run("log").code == 2
    assert "Usage: holdfast log" in kit.run("log").err
    assert hf("threads", "--nonsense").code == 2
    found = hf("--json", "threads", "--nonsense")
    assert found.error["code"] == "usage"
    assert "Usage" not in found.err


def test_only_what_is_near_is_suggested(hf: Hf) -> None:
    assert "Did you mean" not in hf("zebra").err
    assert "Did you mean '--since'?" in hf("log", "t1", "--sinc", "2h").err
    assert "Did you mean" not in hf("log", "t1", "--zebra").err
    assert "Did you mean" not in hf("show", "t1", "HEAD~99").err, "HEAD is right; the number is not"
    assert "there are only 5 checkpoints before 'HEAD'" in hf("show", "t1", "HEAD~99").err
    assert "there is no checkpoint before 'HEAD'" in hf("show", "t2", "HEAD~1").err
    assert "Did you mean other?" in hf("switch", "t1", "othr").err


def test_choices_are_on_the_line_of_the_error() -> None:
    found = kit.run("completion").err
    assert "Choose from: bash, zsh, fish\n" in found
    assert "\\" not in found


def test_there_is_no_traceback_unless_asked_for(hf: Hf) -> None:
    found = hf("show", "nope")
    assert found.code == 3
    assert "Traceback" not in found.err
    assert "hint: See holdfast threads" in found.err
    assert "Traceback" in hf("show", "nope", "--verbose").err


def test_an_error_that_nobody_foresaw(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.cli.threads.ago", lambda _: 1 / 0)
    found = hf("status", "--all")
    assert found.code == 1
    assert "error[internal]: ZeroDivisionError: division by zero" in found.err
    assert "--verbose" in found.err
    monkeypatch.setattr(CliContext, "open", lambda *_: Path("/nowhere/at/all").read_text())
    assert "The operating system reported this error" in hf("status", "--all").err


def test_exit_codes(subtests: pytest.Subtests) -> None:
    for error, code in (
        (NotFoundError("x"), 3),
        (ConflictError("x"), 4),
        (CorruptError("x"), 5),
        (InvalidError("x"), 2),
        (TooDeepError("x"), 1),
        (ConfigError("x"), 1),
        (TransientError("x"), 1),
        (NotFoundError("x", code="no-store"), 10),
        (ConfigError("x", code="no-store-named"), 10),
        (ConflictError("x", code="lease-lost"), 4),
    ):
        with subtests.test(error.code):
            assert exit_codes.exit_code(error) == code
            assert code in exit_codes.EXIT_CODES


def test_interrupted(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.interfaces.cli.threads.ago", interrupted)
    assert hf("status", "--all").code == 130


def test_what_is_said_of_an_error_does_nothing_to_the_terminal(hf: Hf) -> None:
    found = hf("show", "a\x1b]0;pwned\x07\nb", "-v")
    assert found.code == 3
    assert "\x1b" not in found.err
    assert "\x07" not in found.err


def test_every_command_is_there_and_has_help(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name):
            found = kit.run(name, "--help")
            assert found.code == 0
            assert found.out.startswith(f"Usage: holdfast {name}")
            assert "--json" in found.out
            assert "--store URL" in found.out
            assert kit.run("help", name).out.strip() == found.out.strip()


def test_every_command_takes_the_shared_options(subtests: pytest.Subtests) -> None:
    assert {option.name for option in shared_options()} == SHARED_NAMES
    for name in NAMES:
        with subtests.test(name):
            found = cli.get_command(click.Context(cli), name)
            assert found is not None
            shared = [each.name for each in found.params if each.name in SHARED_NAMES and not each.expose_value]
            assert sorted(filter(None, shared)) == sorted(SHARED_NAMES)
            assert found.help


def meant(words: list[str]) -> click.Command:
    """The command that words run."""
    found: click.Command = cli
    left = list(words)
    while isinstance(found, click.Group) and left and not left[0].startswith("-"):
        context = click.Context(found)
        _, inner, left = found.resolve_command(context, left)
        assert inner is not None
        found = inner
    return found


def examples(name: str) -> list[list[str]]:
    """What a command's help shows that can be typed, as words."""
    shown = re.findall(
        r"^(?:\w+: +|.* \| )?(holdfast .*)|`(holdfast [^`]*)`",
        inspect.cleandoc(meant(name.split()).help or ""),
        re.MULTILINE,
    )
    return [shlex.split(re.split(r"\s{2,}|\s[|&>]", line or quoted)[0]) for line, quoted in shown]


INNER = [
    f"{name} {inner}"
    for name in ("agent", "state", "session", "grant", "audit")
    if isinstance(group_ := cli.get_command(click.Context(cli), name), click.Group)
    for inner in group_.list_commands(click.Context(group_))
]


def test_help_teaches_with_examples_that_can_be_typed(subtests: pytest.Subtests) -> None:
    for name in (*(name for name in NAMES if name != "version"), *INNER):
        with subtests.test(name):
            own = [words[1:] for words in examples(name) if words[1 : 1 + len(name.split())] == name.split()]
            assert own
            for words in own:
                known = {option for each in meant(words).params for option in each.opts}
                given = [word.partition("=")[0] for word in words if re.match(r"-[^\d]", word)]
                assert known.issuperset(given)
                assert "--json" in known


def test_arguments_are_no_options(hf: Hf) -> None:
    shown = hf("log", "--help").out
    assert shown.startswith("Usage: holdfast log [OPTIONS] THREAD [REVISION]\n")
    assert shown.partition("\nOptions:\n")[2].startswith("  -n, --limit N")


@pytest.mark.parametrize("words", [("completion", "bash"), ("help", "log"), ("version",)], ids=" ".join)
def test_help_as_json(hf: Hf, words: tuple[str, ...]) -> None:
    (record,) = hf(*words, "--json").records
    assert words[1:] in ((), ("bash",)) or record["command"] == "holdfast log"
    assert all(record.values())


def test_help_of_all(hf: Hf) -> None:
    found = kit.run("--help")
    assert found.code == 0
    assert found.out == kit.run("-h").out
    assert found.out.strip() == kit.run("help").out.strip()
    for name in NAMES:
        assert f"\n  {name} " in found.out
    assert hf("help", "nonsense").code == 2
    assert hf("help", "threads", "nonsense").code == 2


def test_without_a_command_there_is_help() -> None:
    found = kit.run()
    assert found.code == 2
    assert "Usage: holdfast" in found.err


def test_version(hf: Hf) -> None:
    assert kit.run("--version").out == f"holdfast {holdfast.__version__}\n"
    assert hf("version").out == f"holdfast {holdfast.__version__}\n"
    assert "SQLite 3." in hf("version", "-v").out
    assert hf("version", "--json").records[0]["holdfast"] == holdfast.__version__


def test_the_module_runs() -> None:
    found = kit.spawn("--version")
    assert found == (0, f"holdfast {holdfast.__version__}\n", "")


def test_whoever_reads_the_output_may_stop(url: str) -> None:
    with holdfast.open(url) as store, store.transaction() as together:
        for number in range(1500):
            together.put("long", {"number": number, "text": "twenty characters …"})
    words = " ".join(f"'{word}'" for word in kit.command("log", "long", "--oneline", "--store", url))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1; echo ${{PIPESTATUS[0]}}"],
        env=kit.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    first, status = done.stdout.splitlines()
    assert "number=1499" in first
    assert (int(status), done.stderr) == (exit_codes.BROKEN_PIPE, "")


# For commands of others -------------------------------------------------------------------------------------------


@command("trial")
@yes_option
@dry_run_option
def trial(session: CliContext) -> None:
    """Try things out."""
    session.warn("careful")
    session.note("a note")
    with session.progress("Trying") as tell:
        tell(1, 2, "things")
    if not session.dry_run:
        session.confirm("Really?")
    session.out.line("done")


def run_trial(*arguments: str) -> tuple[int, str, str]:
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    session = CliContext()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = 0
        try:
            trial.main(list(arguments), "trial", standalone_mode=False, obj=session)
        except InvalidError as error:
            code = exit_codes.report(error, as_json=False, color=False)
        session.close()
    return code, out.getvalue(), err.getvalue()


def test_what_destroys_asks_and_cannot_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run_trial()
    assert (code, out) == (2, "")
    assert err.startswith("warning: careful\na note\nerror[invalid]: this needs a confirmation")
    assert "--yes" in err
    assert run_trial("--yes") == (0, "done\n", "warning: careful\na note\n")
    assert run_trial("--dry-run", "--quiet") == (0, "done\n", "warning: careful\n")


def test_groups_of_commands() -> None:
    @group("things")
    def things(session: CliContext) -> None:
        """Several things."""

    things.add_command(trial)
    context = click.Context(things, info_name="things")
    text = things.get_help(context)
    assert "Options of every command:" in text
    assert "trial  Try things out." in text


def test_a_closed_stdout_is_no_terminal() -> None:
    code = (
        "import sys; sys.stdout.close(); from holdfast.interfaces.cli.output import on_terminal; "
        "sys.exit(on_terminal(sys.stdout))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
