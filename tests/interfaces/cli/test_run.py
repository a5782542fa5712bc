"""`holdfast run`: scripts by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "count.lua").write_text("print('threads', #store:threads()) return args")
    (tmp_path / "count.js").write_text("console.log('threads', (await store.threads()).length); return args.text")
    (tmp_path / "write.lua").write_text("store:state('agent:a'):set('k', 1)")
    (tmp_path / "other.js").write_text("await store.state('agent:b').set('k', 1)")
    (tmp_path / "loop.lua").write_text("while true do end")
    (tmp_path / "bad.js").write_text("return 1 +")
    (tmp_path / "missing.lua").write_text("store:thread('nothing'):get()")
    (tmp_path / "terminal.lua").write_text("return '\\27[31mred'")
    return tmp_path


def test_output_and_result(url: str, scripts: Path) -> None:
    lua = kit.run("run", str(scripts / "count.lua"), "n=5", "text=a b", store=url)
    assert (lua.code, lua.err) == (0, "")
    assert lua.lines[0].split() == ["threads", str(len(threads(url)))]
    assert lua.lines[1] == '{"n":5,"text":"a b"}'
    javascript = kit.run("run", str(scripts / "count.js"), "text=plain", store=url)
    assert javascript.lines == [f"threads {len(threads(url))}", "plain"]
    as_json = kit.run("run", str(scripts / "count.js"), "text=plain", "--json", store=url)
    assert as_json.records == [{"text": f"threads {len(threads(url))}"}, {"value": "plain"}]


def threads(url: str) -> list[str]:
    with holdfast.open(url) as store:
        return [each.thread for each in store.threads()]


def test_codes_of_errors(url: str, scripts: Path) -> None:
    for arguments, code, exit_code in (
        (("missing.lua",), "not-found", 3),
        (("bad.js",), "script-syntax", 1),
        (("loop.lua", "--timeout", "0.3s"), "script-timeout", 1),
        (("none.lua",), "not-found", 3),
        (("other.js", "--as", "agent:a"), "denied", 1),
        (("write.lua", "--read-only"), "denied", 1),
    ):
        name, *options = arguments
        result = kit.run("run", str(scripts / name), *options, "--json", store=url)
        assert (result.error["code"], result.code) == (code, exit_code), result.err
    assert kit.run("run", str(scripts / "count.py"), store=url).code == 2
    assert kit.run("run", str(scripts / "count.lua"), "novalue", store=url).code == 2


def test_a_script_writes_as_who_runs_it(url: str, scripts: Path) -> None:
    assert kit.run("run", str(scripts / "write.lua"), "--as", "agent:a", store=url).code == 0
    with holdfast.open(url) as store:
        assert store.state("agent:a")["k"] == 1
        assert {record.actor for record in store.audit.query() if record.action == "set"} == {"agent:a"}


def test_a_result_cannot_control_the_terminal(url: str, scripts: Path) -> None:
    assert "\x1b" not in kit.run("run", str(scripts / "terminal.lua"), store=url).out


def test_a_script_has_the_repositories_that_are_named(url: str, tmp_path: Path) -> None:
    script, repository = tmp_path / "backup.lua", str(tmp_path / "backups")
    script.write_text('return store:backups("main"):create({reason = "by a script"}).number')
    assert kit.run("run", str(script), "--backups", f"main={repository}", store=url).lines == ["1"]
    assert "by a script" in kit.run("backup", "list", "--repository", repository, store=url).out
    for wrong in (["--backups", "main"], ["--backups", f"main={repository}", "--as", "agent:a"]):
        assert kit.run("run", str(script), *wrong, store=url).code == 2
    assert kit.run("run", str(script), "--json", store=url).error["code"] == "denied"


def test_a_script_has_the_code_and_recordings_that_are_named(url: str, tmp_path: Path) -> None:
    script, missing = tmp_path / "replay.js", str(tmp_path / "none.replay")
    script.write_text("return await holdfast.replay.run('case', args.graph)")
    named = ["--code", "shop=tests.none:graph", "--recording", f"case={missing}"]
    denied = kit.run("run", str(script), "graph=tests.none:graph", *named, "--json", store=url)
    assert denied.error["code"] == "denied"
    found = kit.run("run", str(script), "graph=shop", *named, "--json", store=url)
    assert (found.error["code"], missing in found.err) == ("not-found", True)
    for option in ("--code", "--recording"):
        assert kit.run("run", str(script), option, "nothing", store=url).code == 2
