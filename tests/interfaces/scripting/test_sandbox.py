"""A sandbox: results, errors, hooks, identities, nested calls, threads, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import (
    ConfigError,
    DeniedError,
    InvalidError,
    NotFoundError,
    ScriptError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    VetoError,
)
from holdfast.interfaces.scripting import process
from holdfast.scripts import Sandbox, ScriptHook
from tests.interfaces.scripting.cases import ScriptClerk
from tests.support.cases import case

LANGUAGES = ("lua", "javascript")


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.fixture(params=LANGUAGES)
def sandbox(request: pytest.FixtureRequest, store: holdfast.Store) -> Iterator[Sandbox]:
    with Sandbox(request.param, store, timeout=30) as sandbox:
        yield sandbox


def pick(sandbox: Sandbox, lua: str, javascript: str) -> str:
    return lua if sandbox.language == "lua" else javascript


# Results and errors ------------------------------------------------------------------------------------------------


def test_state_of_a_script_lasts_from_run_to_run(sandbox: Sandbox) -> None:
    sandbox.run(pick(sandbox, "count = args.start", "globalThis.count = args.start"), args={"start": 4})
    assert sandbox.run(pick(sandbox, "count = count + 1 return count", "return ++globalThis.count")) == 5
    assert sandbox.run("") is None


def test_functions_of_a_result_can_be_called(sandbox: Sandbox, store: holdfast.Store) -> None:
    add = sandbox.run(pick(sandbox, "return function(a, b) return a + b end", "return (a, b) => a + b"))
    assert add(2, 3) == 5
    made = sandbox.run(
        pick(
            sandbox,
            "return {save = function(id, state) return store:thread(id):put(state).step end}",
            "return {save: async (id, state) => (await store.thread(id).put(state)).step}",
        )
    )
    assert made["save"]("chat", {"a": [1, None]}) == 0
    assert store.thread("chat").get().state == {"a": [1, None]}


def test_records_of_a_result_are_dicts(sandbox: Sandbox, store: holdfast.Store) -> None:
    saved = store.thread("chat").put({"a": 1})
    result = sandbox.run(pick(sandbox, "return store:thread('chat'):get()", "return await store.thread('chat').get()"))
    assert result["id"] == saved.id
    assert result["time"] == saved.time
    assert result["state"] == {"a": 1}


def test_an_error_that_is_not_handled_is_that_of_the_call(sandbox: Sandbox) -> None:
    source = pick(sandbox, "\n\nstore:thread('nothing'):get()", "\n\nawait store.thread('nothing').get()")
    with pytest.raises(NotFoundError) as raised:
        sandbox.run(source, name="example")
    assert raised.value.code == "not-found"
    assert "example:3" in "".join(raised.value.__notes__)


def test_an_error_can_be_handled(sandbox: Sandbox) -> None:
    lua = """
        local ok, e = pcall(function() store:thread('nothing'):get() end)
        return {ok, e.code, e.name, e:is('NotFoundError'), e:is('HoldfastError'), e:is('DeniedError')}
    """
    javascript = """
        try { await store.thread('nothing').get() } catch (e) {
            const { NotFoundError, HoldfastError, DeniedError } = holdfast.errors;
            const kinds = [NotFoundError, HoldfastError, DeniedError].map((kind) => e instanceof kind);
            return [false, e.code, e.name, ...kinds];
        }
    """
    assert sandbox.run(pick(sandbox, lua, javascript)) == [False, "not-found", "NotFoundError", True, True, False]


def test_an_error_of_the_script_says_where(sandbox: Sandbox) -> None:
    source = pick(sandbox, "local x = 1\nerror('boom')", "const x = 1\nthrow new Error('boom')")
    with pytest.raises(ScriptError, match="boom") as raised:
        sandbox.run(source, name="mine")
    assert raised.value.code == "script-failed"
    assert "mine:2" in raised.value.trace
    assert "mine:2" in str(raised.value)


def test_an_error_that_a_script_raises_by_its_class(sandbox: Sandbox) -> None:
    source = pick(
        sandbox,
        "error(holdfast.errors.ConflictError('taken', {where = 'here', hint = 'Wait', code = 'under-way'}))",
        "throw new holdfast.errors.ConflictError('taken', {where: 'here', hint: 'Wait', code: 'under-way'})",
    )
    with pytest.raises(holdfast.errors.ConflictError) as raised:
        sandbox.run(source)
    assert (raised.value.code, str(raised.value)) == ("under-way", "taken (at here). Wait")


def test_a_syntax_error(sandbox: Sandbox) -> None:
    with pytest.raises(ScriptError, match=pick(sandbox, "mine:3: ", "line 3: ")) as raised:
        sandbox.run("\n\nreturn 1 +* 2", name="mine")
    assert raised.value.code == "script-syntax"
    assert sandbox.run("return 1") == 1


def test_a_syntax_error_of_data_is_no_error_of_the_script(store: holdfast.Store) -> None:
    with Sandbox("javascript", store) as sandbox, pytest.raises(ScriptError, match="SyntaxError") as raised:
        sandbox.run("return JSON.parse('{')")
    assert raised.value.code == "script-failed"


def test_output(store: holdfast.Store, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with Sandbox("lua", store, output=lines.append) as sandbox:
        sandbox.run("print('a', 1, nil, true)")
    with Sandbox("javascript", store, output=lines.append) as sandbox:
        sandbox.run("print('a', 1, {b: 2n}); console.log([null])")
    assert lines == ["a\t1\tnil\ttrue", 'a 1 {"b":"2"}', "[null]"]
    with caplog.at_level("INFO", "holdfast.scripts"), Sandbox("lua", store) as sandbox:
        sandbox.run("print('logged')")
    assert "logged" in caplog.text


# Promises ----------------------------------------------------------------------------------------------------------


def test_promises(store: holdfast.Store) -> None:
    store.thread("a").put({"n": 1})
    store.thread("b").put({"n": 2})
    with Sandbox("javascript", store) as sandbox:
        together = "const all = await Promise.all(['a', 'b'].map((id) => store.thread(id).get()));"
        together += "return all.map((c) => c.state.n)"
        assert sandbox.run(together) == [1, 2]
        assert sandbox.run("return store.thread('a').get().then((c) => c.state.n + 1)") == 2
        settled = "const all = await Promise.allSettled(['a', 'c'].map((id) => store.thread(id).get()));"
        settled += "return all.map((each) => each.status)"
        assert sandbox.run(settled) == ["fulfilled", "rejected"]
        assert sandbox.run(
            "return await Promise.race([store.thread('b').get(), new Promise(() => {})]).then((c) => c.id)"
        )
        assert sandbox.run("return store.thread('c').get().catch((error) => error.code)") == "not-found"
        assert sandbox.run("store.thread('late').put({n: 3}); return 1") == 1
        assert store.thread("late").get().state == {"n": 3}  # what is not awaited is done all the same
        with pytest.raises(NotFoundError):
            sandbox.run("store.thread('c').get(); return 1")  # and its error is no secret


def test_calls_that_nobody_waits_for(store: holdfast.Store, subtests: pytest.Subtests) -> None:
    store.thread("a").put({"n": 1})
    with Sandbox("javascript", store) as sandbox:
        for source in (
            "store.thread('c').get(); await store.thread('a').get(); return 1",
            "Promise.all([store.thread('c').get()]); return 1",
            "['c'].forEach(async (id) => { await store.thread(id).get() }); return 1",
            "store.thread('c').get().then((found) => found); return 1",
        ):
            with case(subtests, source), pytest.raises(NotFoundError):
                sandbox.run(source)
        for source in (
            "store.thread('c').get().catch(() => 0); return 1",
            "store.thread('c').get().then((found) => found).catch(() => 0); return 1",
            "try { await store.thread('c').get() } catch {} return 1",
        ):
            with case(subtests, source):
                assert sandbox.run(source) == 1
        sandbox.run("store.thread('first').put({}).then(() => store.thread('second').put({}))")
        assert store.thread("second").get().state == {}
        with pytest.raises(ScriptError, match="boom"):
            sandbox.run("store.thread('third').put({}); throw new Error('boom')")
        assert store.thread("third").get().state == {}, "it is left for the next run"
        later = sandbox.run("return (id) => { store.thread(id).put({}); return 1 }")
        assert later("fourth") == 1
        assert store.thread("fourth").get().state == {}


# Identities --------------------------------------------------------------------------------------------------------


def test_a_script_has_the_rights_of_its_identity(store: holdfast.Store) -> None:
    store.state("agent:other")["secret"] = 1
    store.thread("owned").put({"a": 1})
    view = store.as_identity("agent:me")
    for language in LANGUAGES:
        with Sandbox(language, view) as sandbox:  # type: ignore[arg-type]
            mine = pick(
                sandbox,
                "store:state('agent:me'):set('x', 1) return store:state('agent:me'):get('x')",
                "const s = store.state('agent:me'); await s.set('x', 1); return await s.get('x')",
            )
            assert sandbox.run(mine) == 1
            for lua, javascript in (
                (
                    "return store:state('agent:other'):get('secret')",
                    "return await store.state('agent:other').get('secret')",
                ),
                ("store:state('agent:other'):set('secret', 2)", "await store.state('agent:other').set('secret', 2)"),
            ):
                with pytest.raises(DeniedError):
                    sandbox.run(pick(sandbox, lua, javascript))
            with pytest.raises(NotFoundError):  # as if it did not exist
                sandbox.run(pick(sandbox, "store:thread('owned'):get()", "await store.thread('owned').get()"))
            for name in ("hooks", "jobs", "as_identity", "put"):
                with pytest.raises(UnsupportedError, match=f"IdentityView has no '{name}' in scripts"):
                    sandbox.run(pick(sandbox, f"return store.{name}", f"return await store.{name}"))
    assert store.state("agent:other")["secret"] == 1
    assert {record.actor for record in store.audit.query() if record.outcome == "denied"} == {"agent:me"}


# Hooks -------------------------------------------------------------------------------------------------------------


def test_hooks_of_a_script_act_on_changes_of_the_host(sandbox: Sandbox, store: holdfast.Store) -> None:
    lua = """
        store.hooks:before('state.set', {name = 'limit', key = 'budget'})(function(call)
            if call.value > 100 then error(holdfast.errors.VetoError('too much')) end
            call:note{checked = true}
            return call.value + 1
        end)
        store.hooks:before('state.set', {name = 'null', key = 'null'})(
            function() return holdfast.ReplaceValue(holdfast.null) end
        )
    """
    javascript = """
        await store.hooks.before('state.set', {name: 'limit', key: 'budget'})(async (call) => {
            if (call.value > 100) throw new holdfast.errors.VetoError('too much');
            await call.note({checked: true});
            return call.value + 1;
        });
        await store.hooks.before('state.set', {name: 'null', key: 'null'})(() => holdfast.ReplaceValue(null));
    """
    sandbox.run(pick(sandbox, lua, javascript))
    state = store.state("agent:a")
    state["budget"] = 50
    assert state["budget"] == 51
    with pytest.raises(VetoError, match="too much") as refused:
        state["budget"] = 500
    assert refused.value.code == "vetoed"
    state["null"] = 5
    assert state["null"] is None
    (noted,) = [record for record in store.audit.query() if record.action == "set" and "checked" in record.detail]
    assert noted.detail["checked"] is True
    sandbox.close()
    assert store.hooks.list() == []
    state["budget"] = 500


def test_a_hook_may_call_the_store_while_the_script_waits(sandbox: Sandbox, store: holdfast.Store) -> None:
    lua = """
        store.hooks:before('state.set', {key = 'a'})(
            function(call) store:state('agent:log'):append('seen', call.key) end
        )
        store:state('agent:a'):set('a', 1)
        return store:state('agent:log'):get('seen')
    """
    javascript = """
        await store.hooks.before('state.set', {key: 'a'})((call) => store.state('agent:log').append('seen', call.key));
        await store.state('agent:a').set('a', 1);
        return await store.state('agent:log').get('seen');
    """
    assert sandbox.run(pick(sandbox, lua, javascript)) == ["a"]


def test_hooks_in_files(store: holdfast.Store, tmp_path: Path) -> None:
    (tmp_path / "limit.lua").write_text(
        "return function(call) if call.value == 'loop' then while true do end end "
        "if call.value == 'bad' then error(holdfast.errors.VetoError('bad')) end end"
    )
    (tmp_path / "upper.js").write_text("return (call) => call.value.toUpperCase()")
    limit = ScriptHook(tmp_path / "limit.lua", store, timeout=0.3)
    upper = ScriptHook(tmp_path / "upper.js", store)
    store.hooks.before("state.set", key="a")(limit)
    store.hooks.before("state.set", key="b")(upper)
    state = store.state("agent:a")
    with pytest.raises(VetoError):
        state["a"] = "bad"
    state["a"] = "loop"  # the hook is stopped, and the change proceeds, as with any hook that fails
    with pytest.raises(VetoError):
        state["a"] = "bad"  # a new process
    state["b"] = "x"
    assert state["b"] == "X"
    assert [info.name for info in store.hooks.list()] == ["limit", "upper"]
    limit.close()
    upper.close()
    (tmp_path / "none.lua").write_text("return 1")
    with pytest.raises(InvalidError, match="returns a function"):
        ScriptHook(tmp_path / "none.lua", store)


def test_calls_that_wait_for_a_hook_that_is_stopped_have_a_new_process(store: holdfast.Store, tmp_path: Path) -> None:
    (tmp_path / "hook.lua").write_text(
        "return function(call) if call.value == 'grow' then local t = {} while true do t[#t + 1] = {} end end "
        "return call.value .. '!' end"
    )
    hook = ScriptHook(tmp_path / "hook.lua", store, timeout=60, memory=4 << 20)
    store.hooks.before("state.set", key="k", fail_closed=True, budget=120, max_failures=1000)(hook)

    def change(number: int) -> Any:
        state = store.state(f"agent:{number}")
        try:
            state["k"] = "grow" if number % 4 == 0 else "x"
        except VetoError as error:
            return error.code
        return state["k"]

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(change, range(12)))
    assert results == ["hook-failed" if number % 4 == 0 else "x!" for number in range(12)]
    hook.close()
    with pytest.raises(UnavailableError) as raised:
        hook(None)  # it starts no further process
    assert raised.value.code == "closed"


# Several at once ---------------------------------------------------------------------------------------------------


def test_threads_take_turns(sandbox: Sandbox, store: holdfast.Store) -> None:
    source = pick(
        sandbox,
        "for i = 1, 10 do store:state('agent:a'):increment('n') end",
        "for (let i = 0; i < 10; i++) await store.state('agent:a').increment('n')",
    )
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: sandbox.run(source), range(8)))
    assert store.state("agent:a")["n"] == 80


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.nightly)])
def test_sandboxes_side_by_side(store: holdfast.Store, count: int) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda number: Sandbox(LANGUAGES[number % 2], store, timeout=60), range(count)))  # type: ignore[arg-type]
    assert len({each.pid for each in made}) == count
    with ThreadPoolExecutor(count) as threads:
        lua, javascript = (
            "return store:state('agent:a'):increment('n')",
            "return await store.state('agent:a').increment('n')",
        )
        results = list(threads.map(lambda each: each.run(pick(each, lua, javascript)), made))
    for each in made:
        each.close()
    assert sorted(results) == list(range(1, count + 1))
    assert not any(Path(f"/proc/{each.pid}").exists() for each in made)


# The end, and the limits -------------------------------------------------------------------------------------------


def test_a_closed_sandbox(sandbox: Sandbox) -> None:
    function = sandbox.run(pick(sandbox, "return function() return 1 end", "return () => 1"))
    sandbox.close()
    sandbox.close()
    for call in (lambda: sandbox.run("return 1"), function):
        with pytest.raises(UnavailableError) as raised:
            call()
        assert raised.value.code == "closed"
    assert "closed" in repr(sandbox)


def test_a_killed_process_is_reported(sandbox: Sandbox) -> None:
    os.kill(sandbox.pid, signal.SIGKILL)
    with pytest.raises(ScriptError, match="signal 9") as raised:
        sandbox.run("return 1")
    assert raised.value.code == "script-stopped"
    assert sandbox.closed


def test_closing_stops_a_script_that_runs(sandbox: Sandbox) -> None:
    started = threading.Event()
    sandbox._output = lambda _: started.set()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, pick(sandbox, "print(1) while true do end", "print(1); for (;;);"))
        assert started.wait(20)
        sandbox.close()
        with pytest.raises(ScriptError) as raised:
            running.result(20)
    assert raised.value.code == "script-stopped"


def test_the_system_limits_the_process(sandbox: Sandbox) -> None:
    sandbox.run("return 1")
    limits = Path(f"/proc/{sandbox.pid}/limits").read_text()
    values = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert values["Max open files"] == values["Max file size"] == values["Max processes"] == "0"
    assert int(values["Max address space"]) < 400 << 20
    assert int(values["Max cpu time"]) < 60
    environment = Path(f"/proc/{sandbox.pid}/environ").read_bytes()
    assert environment == b""


def test_functions_last_as_long_as_the_call_that_gets_them(sandbox: Sandbox, store: holdfast.Store) -> None:
    lua = """
        for i = 1, 50 do store:transaction(function(t) return i end) end
        function on_set(call) end
        store.hooks:before('state.set', {name = 'kept'})(on_set)
        return function() end
    """
    javascript = """
        for (let i = 0; i < 50; i++) await store.transaction((t) => i);
        globalThis.on_set = (call) => {};
        await store.hooks.before('state.set', {name: 'kept'})(on_set);
        return () => {};
    """
    sandbox.run(pick(sandbox, lua, javascript))
    assert len(sandbox._calls._functions) == 2  # the hook, and the result
    store.state("agent:a")["k"] = 1
    assert store.hooks.list()[0].failures == 0
    sandbox.run(pick(sandbox, "store.hooks:remove(on_set)", "await store.hooks.remove(on_set)"))
    assert store.hooks.list() == []
    many = "local t = {} for i = 1, 10001 do t[i] = function() end end return t"
    with pytest.raises(TooLargeError, match="functions"):
        sandbox.run(pick(sandbox, many, "return Array.from({length: 10001}, () => () => 1)"))


def test_long_paths_are_not_remembered(sandbox: Sandbox) -> None:
    hook = pick(sandbox, "store.hooks:before('state.set', {name = ('x'):rep(%d)})", "")
    hook = hook or "store.hooks.before('state.set', {name: 'x'.repeat(%d)})"
    for size in (10, 5000):
        with pytest.raises(InvalidError):
            sandbox.run(pick(sandbox, f"{hook % size}(1)", f"await {hook % size}(1)"))
    assert max(map(len, sandbox._calls._handles)) < 1000


def test_a_sandbox_belongs_to_its_process(store: holdfast.Store) -> None:
    with Sandbox("lua", store) as sandbox:
        sandbox._owner += 1  # as after a fork
        with pytest.raises(UnavailableError, match="only be used in the process"):
            sandbox.run("return 1")
        sandbox._owner -= 1
        assert sandbox.run("return 1") == 1


def test_a_worker_ends_with_its_host() -> None:
    code = (
        "import holdfast, os; from holdfast.scripts import Sandbox\n"
        "store = holdfast.open('memory://')\n"
        "idle, busy = (Sandbox('lua', store, timeout=0.5, output=lambda _: os._exit(0)) for _ in range(2))\n"
        "print(idle.pid, busy.pid, flush=True); busy.run('print(1) while true do end')"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left = made.stdout.split()
    assert len(left) == 2
    wait = threading.Event()
    for _ in range(400):
        left = [pid for pid in left if is_running(pid)]
        if not left:
            return
        wait.wait(0.05)
    pytest.fail("a worker is still there")


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.nightly
def test_the_system_ends_a_script_if_the_host_does_not(store: holdfast.Store) -> None:
    with Sandbox("lua", store, timeout=0.2) as sandbox:
        sandbox._limits = sandbox._limits._replace(timeout=60)  # as a host that is late
        with pytest.raises(ScriptError) as raised:
            sandbox.run("while true do end")
    assert raised.value.code == "script-timeout"


def test_large_results_are_refused(store: holdfast.Store) -> None:
    store.thread("large").put({"text": "x" * (2 << 20)})
    with Sandbox("lua", store, max_message=1 << 20) as sandbox:
        with pytest.raises(TooLargeError):
            sandbox.run("return store:thread('large'):get()")
        with pytest.raises(TooLargeError):
            sandbox.run("return string.rep('x', 2 << 20)")
        with pytest.raises(TooLargeError):
            sandbox.run("return 1", args={"text": "x" * (2 << 20)})
        assert sandbox.run("return 1") == 1
        with pytest.raises(TooLargeError, match="prints"):
            sandbox.run("while true do print(string.rep('x', 60000)) end")
        assert sandbox.closed


def test_expressions_do_not_run_in_the_host(sandbox: Sandbox, store: holdfast.Store) -> None:
    store.agents.create(ScriptClerk, "clerk").conversation.append("a" * 40)
    lua = "store.agents:restore('clerk').conversation:search(holdfast.opaque('regex', '[\"(a+)+$\", 0]'))"
    javascript = (
        "await (await store.agents.restore('clerk')).conversation.search(holdfast.opaque('regex', ['(a+)+$', 0]))"
    )
    with pytest.raises(UnsupportedError, match="searches for text"):
        sandbox.run(pick(sandbox, lua, javascript))


def test_arguments_are_checked(store: holdfast.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, options in (
        (("python", store), {}),
        (("lua", object()), {}),
        (("lua", store), {"memory": 5}),
        (("lua", store), {"timeout": -1}),
        (("lua", store), {"max_message": "1"}),
    ):
        with pytest.raises(InvalidError):
            Sandbox(*arguments, **options)  # type: ignore[arg-type]
    with Sandbox("lua", store) as sandbox:
        with pytest.raises(InvalidError):
            sandbox.run(b"return 1")  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            sandbox.run_file(tmp_path / "none.lua")
        (tmp_path / "bad.lua").write_bytes(b"\xff")
        with pytest.raises(InvalidError):
            sandbox.run_file(tmp_path / "bad.lua")
    with pytest.raises(InvalidError):
        process.find_language("script.py")
    monkeypatch.setattr(process, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="lupa") as missing:
        Sandbox("lua", store)
    assert ".[scripts]" in missing.value.hint


# Backups ------------------------------------------------------------------------------------------------------------


def test_long_work_ends_with_the_time_of_the_script(store: holdfast.Store, tmp_path: Path) -> None:
    store.thread("t").put({"a": 1})
    with Sandbox("lua", store, backups={"main": store.backups(tmp_path / "backups")}) as sandbox:
        for message in (
            b'[[0,[["backups",["main"]]]],"create",[]]',
            b'[[0,[["maintenance",[]]]],"verify",[]]',
        ):
            kind, answer = sandbox._execute(message, -1.0)
            assert (kind, b"script-timeout" in answer) == ("E", True)
            assert sandbox._execute(message, 60.0)[0] == "R"
        with pytest.raises(DeniedError, match="no repository of this name"):
            sandbox.run('return store:backups("other"):list()')
        assert len(sandbox.run('return store:backups("main"):list()')) == 1


# Forged messages ---------------------------------------------------------------------------------------------------


FORGED: list[bytes] = [
    *(b"", b"{}", b"[1]", b"nope", b'[[0,[]],"get",{}]', b'[[7,[]],"get",[]]', b'[[0,[["_engine",[]]]],"get",[]]'),
    *(
        b'[["replay",[]],"record",[]]',
        b'[["os",[]],"run",[]]',
        b'[[[],[]],"run",[]]',
        b'[["replay",[["_code",[]]]],"get",[]]',
    ),
    *(b'[[0,[]],"__class__",[]]', b'[[0,[]],".tenant",[]]', b'[[0,[]],"close",[]]', b'[[0,[]],"()",[]]'),
    *(b'[[0,[["thread",["t"]]]],"_save",[]]', b'[["x",[]],"get",[]]', b"[" * 5000, b'[[0,[[[],[]]]],"get",[]]'),
    *(
        b'[[0,[]],"get",[{"$script":["handle",[0,[["close",[]]]]]}]]',
        b'[[0,[]],"get",[{"$script":["operator","open",[]]}]]',
    ),
    b'[[0,[]],"put",["x",{"$registered":["os.system",["id"]]}]]',
    b'[[0,[["artifacts",[]]]],"register",[{"$path":["posix","/etc/passwd"]}]]',
    b'[[0,[["artifacts",[]]]],"save",["x","/tmp/x"]]',
    b'[[0,[["backups",["/tmp/x"]]]],"create",[]]',
    b'[[0,[["audit",[]]]],"export",["/tmp/x"]]',
    *(
        b'[[0,[["jobs",[]]]],"add",["x","%s",{"settings":{"folder":"/tmp/x","older_than":"1d"}}]]' % kind
        for kind in (b"archive-audit", b"heads", b"backup", b"alerts", b"erase", b"migrate")
    ),
    b'[[0,[]],"put",["x",{"n":' + b"9" * 5000 + b"}]]",
]
"""What a process could send whose engine was taken over."""


def test_forged_calls_are_refused(store: holdfast.Store, subtests: pytest.Subtests) -> None:
    with Sandbox("lua", store) as sandbox:
        for message in FORGED:
            with case(subtests, message[:60]):
                kind, answer = sandbox._execute(message, 5.0)
                assert kind == "E", answer
        kind, answer = sandbox._execute(b'[[0,[]],"status",[]]', 5.0)
        assert (kind, answer[-15:]) == ("R", b'"details":{}}]}')
