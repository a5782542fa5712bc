"""Stores to run commands on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.interfaces.http.kit import ServedStore


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No store, no pager and no colours but what a test asks for."""
    for name in ("HOLDFAST_STORE", "HOLDFAST_CONFIG", "HOLDFAST_PAGER", "PAGER", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def fill(store: holdfast.Store) -> None:
    """A thread `t1` of six checkpoints `c0` to `c5` on main and two, `b3` and `b4`, on the branch `other`, which leaves
    after `c2`; a thread `t2` of one; and `chat/anna`.

    `t1` has the name `good` at `c1` and the tag `seen` at `c1` and `c4`.
    """
    said = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n}"} for n in range(6)]
    for n in range(6):
        store.thread("t1").put({"messages": said[: n + 1], "count": n}, id=f"c{n}", metadata={"source": "loop", "n": n})
    store.thread("t1").fork("other", at="c2")
    for n in (3, 4):
        store.thread("t1").put({"messages": said[:3], "count": n * 100}, id=f"b{n}", branch="other")
    store.thread("t1").tag("good", "c1")
    store.thread("t1").label("seen", "c1")
    store.thread("t1").label("seen", "c4")
    store.thread("t2").put({"plan": {"goal": "rest", "steps": ["one", "two"]}})
    store.thread("chat/anna").put({"messages": [{"role": "user", "content": "hello"}]})


@pytest.fixture(scope="session")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that `fill` filled: to be copied, which is quicker than to fill another one."""
    file = tmp_path_factory.mktemp("filled") / "agents.db"
    with holdfast.open(f"sqlite:///{file}") as store:
        fill(store)
    return file


@pytest.fixture
def url(filled_file: Path, tmp_path: Path) -> str:
    """A store in a SQLite file, filled by `fill`."""
    assert [each.name for each in filled_file.parent.iterdir()] == [filled_file.name], (
        "what is beside it would not be copied"
    )
    shutil.copyfile(filled_file, tmp_path / "agents.db")
    return f"sqlite:///{tmp_path}/agents.db"


NOT_SERVED = frozenset(
    {
        # They write or read files beside the store, or run where it is.
        "test_an_export_is_checked_without_the_store",
        "test_an_export_of_an_altered_audit_tells",
        "test_calls_of_hooks_are_archived",
        "test_work_once_runs_what_is_due_and_tells",
        "test_work_waits_for_jobs_and_ends_with_ctrl_c",
        "test_a_watch_goes_on_from_a_cursor_without_a_gap",
        "test_a_watch_tells_that_a_scope_is_gone_or_pruned",
        "test_damage_is_told_and_mended_from_a_copy",
        "test_what_is_lost_is_named",
        "test_a_file_that_does_not_open_is_salvaged",
        "test_a_store_that_does_not_open",
        # They name another tenant, interrupt the process that verifies, or follow a scope as an identity.
        "test_none",
        "test_ctrl_c_says_where_to_go_on",
        "test_acting_as_an_identity",
        "test_wrong_use_is_told",
    }
)
"""Tests of commands that a served store refuses: `test_cli_served.py` has what they say."""

DAILY_SERVED = frozenset(
    {
        "test_the_history_of_the_latest",
        "test_what_the_latest_checkpoint_changed",
        "test_a_grant_is_given_used_and_revoked",
    }
)
"""Tests that the ordinary run makes over HTTP, too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of commands on a served store, too."""
    name = metafunc.function.__name__
    if (
        "served_mode" in metafunc.fixturenames
        and name not in NOT_SERVED
        and not metafunc.module.__name__.endswith(LOCAL)
    ):
        marks = () if name in DAILY_SERVED else (pytest.mark.nightly,)
        metafunc.parametrize("served_mode", ["file", pytest.param("served", marks=marks)], indirect=True)


LOCAL = (
    *("test_copy_export", "test_snapshot", "test_schema", "test_doctor"),
    *("test_cli_served", "test_cli_completion", "test_cli_frame"),
    "test_runs",
)
"""Modules about files, the installation, the command line itself, and workers, which need the code of what they do."""


@pytest.fixture
def served_mode(request: pytest.FixtureRequest) -> str:
    """How commands use the store: `file`, or `served`, over HTTP."""
    mode: str = getattr(request, "param", "file")
    return mode


@pytest.fixture
def hf(url: str, served_mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., kit.Result]]:
    """Runs a command on that store: `hf("log", "t1")`."""
    with ExitStack() as stack:
        location = url
        if served_mode == "served":
            served = stack.enter_context(ServedStore(stack.enter_context(holdfast.open(url)), write=True))
            monkeypatch.setenv("HOLDFAST_TOKEN", served.token)
            location = served.url

        def run(*arguments: str | Path, typed: str = "") -> kit.Result:
            return kit.run(*arguments, store=location, typed=typed)

        yield run
