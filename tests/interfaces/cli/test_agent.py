"""`holdfast agent`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import Machine, Offer, PersistentAgent
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.engine.model.scopes import MARK
from tests.damaged import flipped
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


class Potter(PersistentAgent, name="cli-potter"):
    """Its kiln breaks, or ends the process, if told so; and so do its stop, and a transfer to it."""

    pots: int = 0

    machine = Machine("idle", "firing", "cooling")
    machine.add("fire", "idle", "cooling", via="firing", action="burn")
    machine.add("cool", "cooling", "idle")

    def burn(self, what: str) -> None:
        if what == "breaks":
            raise ValueError("the kiln broke")
        if what == "dies":
            raise KeyboardInterrupt  # as a kill: nothing is recorded of it
        self.pots += 1

    def accepts(self, offer: Offer) -> bool:
        if offer.reason == "dies before":
            raise KeyboardInterrupt
        return True

    def on_receive(self, offer: Offer) -> None:
        if offer.reason == "dies after":
            raise KeyboardInterrupt

    def on_stop(self) -> None:
        if self.context.get("dies"):
            raise KeyboardInterrupt


@pytest.fixture
def potters(url: str) -> Iterator[holdfast.Store]:
    """`anna`, with two firings behind her, one of them failed, and a conversation; and `ben`, in whose firing the
    process ended."""
    with holdfast.open(url) as store:
        anna = Potter(kiln="big").attach(store, "anna")
        anna.metadata["guild"] = "clay"
        anna.start()
        anna.transition("fire", "well")
        anna.transition("cool")
        with pytest.raises(ValueError, match="broke"):
            anna.transition("fire", "breaks")
        anna.tools.declare("wheel", ["power"], "turns")
        anna.tools.allow("power")
        with anna.tools.use("wheel"):
            anna.context["clay"] = "red"
        anna.tools.declare("kiln", ["gas"])
        with pytest.raises(holdfast.errors.DeniedError), anna.tools.use("kiln"):
            pass
        for number in range(20):
            anna.conversation.append({"role": "user" if number % 2 == 0 else "assistant", "content": f"word {number}"})
        anna.stop()
        ben = Potter(kiln="small").attach(store, "ben")
        ben.start()
        with pytest.raises(KeyboardInterrupt):
            ben.transition("fire", "dies")
        yield store


def test_agents_are_listed(hf: Hf, potters: holdfast.Store) -> None:
    listed = hf("agent").lines
    heads = ["AGENT", "CLASS", "STATUS", "STATE", "VERSION", "SAVED", "MESSAGES", "METADATA", "PENDING"]
    assert listed[0].split() == heads
    assert listed[1].split()[:4] == ["anna", "cli-potter", "stopped", "idle"]
    assert '{"guild":"clay"}' in listed[1]
    assert listed[2].split()[:4] == ["ben", "cli-potter", "running", "firing"]

    def ids(*words: str) -> list[str]:
        return [each["id"] for each in hf("agent", "list", *words, "--json").records]

    assert ids() == ["anna", "ben"]
    assert ids("--class", "cli-potter", "--status", "running") == ["ben"]
    assert ids("--state", "idle") == ["anna"]
    assert ids("--pending") == ["ben"]
    assert "transition fire" in listed[2]
    assert ids("--meta", "guild=clay") == ["anna"]
    assert ids("--after", "anna") == ["ben"]
    assert ids("-n", "1") == ["anna"]
    assert ids("--prefix", "b") == ["ben"]
    assert hf("agent", "list", "--class", "nobody").err == "There are no such agents.\n"


def test_a_store_without_agents(hf: Hf) -> None:
    assert hf("agent").err == "There are no agents.\n"
    assert hf("agent", "list", "--json").records == []
    for command in ("show", "messages", "transitions", "history", "export"):
        assert hf("agent", command, "nobody").code == 3, command
    assert "hint: See holdfast agent list" in hf("agent", "show", "nobody").err


def test_an_agent_is_shown(hf: Hf, potters: holdfast.Store) -> None:
    shown = hf("agent", "show", "anna").lines
    assert shown[0] == "agent anna"
    header = [" ".join(line.split()) for line in shown]
    assert {"Class: cli-potter", "Schema: 1", "Status: stopped", "State: idle", "Messages: 20"} <= set(header)
    assert any(line.startswith("Tokens: ") for line in header)
    assert "  kiln: big" in shown
    assert "  pots: 1" in shown
    assert "  clay: red" in shown
    tools = next(number for number, line in enumerate(shown) if line.startswith("NAME"))
    assert shown[tools + 1].split()[:6] == ["kiln", "gas", "0", "0", "1", "0.0"]
    assert shown[tools + 2].split()[:5] == ["wheel", "power", "1", "0", "0"]
    assert "conversation (20 messages)" in shown
    assert "  … 8 messages before (--full shows all)" in shown
    assert shown[-1] == "  assistant: word 19"
    assert "  user: word 0" in hf("agent", "show", "anna", "--full").lines
    assert "conversation" not in hf("agent", "show", "anna", "-n", "0").out
    assert not any(line.startswith("Pending:") for line in shown)


def test_an_older_version_is_shown(hf: Hf, potters: holdfast.Store) -> None:
    (now,) = hf("agent", "show", "anna", "--json").records
    (then,) = hf("agent", "show", "anna", "--version", "1", "--json").records
    assert (then["version"], then["status"], then["fields"], then["messages"]) == (1, "running", {"pots": 0}, 0)
    assert (now["status"], now["fields"], now["messages"], len(now["conversation"])) == ("stopped", {"pots": 1}, 20, 12)
    assert now["pending"] is None
    assert hf("agent", "show", "anna", "--version", "99").code == 3


def test_what_is_pending_is_shown_with_what_to_do(hf: Hf, potters: holdfast.Store) -> None:
    shown = hf("agent", "show", "ben")
    assert "Pending: transition fire, idle → cooling, started" in " ".join(shown.out.split())
    assert "holdfast agent resolve ben --back" in shown.out
    (record,) = hf("agent", "show", "ben", "--json").records
    assert (record["pending"]["trigger"], record["pending"]["data"]) == ("fire", "dies")


def test_messages(hf: Hf, potters: holdfast.Store) -> None:
    said = hf("agent", "messages", "anna").lines
    assert said[0] == "conversation (20 messages)"
    assert said[1:3] == ["  user: word 0", "  assistant: word 1"]
    assert [each["content"] for each in hf("agent", "messages", "anna", "-n", "2", "--json").records] == [
        "word 18",
        "word 19",
    ]
    assert hf("agent", "messages", "anna", "--version", "1", "--json").records == []
    assert hf("agent", "messages", "ben").err == "ben has no messages.\n"


def test_transitions(hf: Hf, potters: holdfast.Store) -> None:
    listed = hf("agent", "transitions", "anna").lines
    assert listed[0].split() == ["TIME", "KIND", "TRIGGER", "SOURCE", "TARGET", "OUTCOME", "DURATION", "ERROR", "ACTOR"]
    assert [line.split()[3:7] for line in listed[1:]] == [
        ["fire", "idle", "cooling", "error"],
        ["cool", "cooling", "idle", "ok"],
        ["fire", "idle", "cooling", "ok"],
    ]
    assert listed[1].endswith("ValueError: the kiln broke")

    def found(*words: str) -> list[dict[str, Any]]:
        return hf("agent", "transitions", "anna", *words, "--json").records

    assert [each["trigger"] for each in found("--outcome", "ok")] == ["cool", "fire"]
    assert [each["data"] for each in found("--trigger", "fire")] == ["breaks", "well"]
    (latest,) = found("-n", "1")
    assert [each["trigger"] for each in found("--before", latest["cursor"])] == ["cool", "fire"]
    assert hf("agent", "transitions", "anna", "--trigger", "glaze").err == "There are no such transitions.\n"
    assert hf("agent", "transitions", "ben").err == "ben has no transitions.\n"


def test_the_machine_is_drawn_of_what_was_taken(hf: Hf, potters: holdfast.Store) -> None:
    drawn = hf("agent", "transitions", "anna", "--mermaid").lines
    assert drawn[0] == "stateDiagram-v2"
    assert any(line.endswith(": fire (1×, 1 failed)") for line in drawn)
    assert hf("agent", "transitions", "anna", "--dot").lines[0] == "digraph machine {"
    (record,) = hf("agent", "transitions", "anna", "--mermaid", "--json").records
    assert record["diagram"].splitlines() == drawn
    assert record["state"] == "idle"
    assert {"source": "idle", "trigger": "fire", "target": "cooling", "taken": 1, "failed": 1} in record["transitions"]


def test_history(hf: Hf, potters: holdfast.Store) -> None:
    listed = hf("agent", "history", "anna").lines
    assert listed[0].split() == ["VERSION", "TIME", "KIND", "STATUS", "STATE", "ACTOR", "MESSAGES"]
    records = hf("agent", "history", "anna", "--json").records
    assert len(records) == len(listed) - 1
    versions = [each["version"] for each in records]
    assert versions == list(range(len(versions), 0, -1))
    assert records[0]["status"] == "stopped"
    older = hf("agent", "history", "anna", "--before", "3", "-n", "1", "--json").records
    assert [each["version"] for each in older] == [2]


def test_a_diff(hf: Hf, potters: holdfast.Store) -> None:
    shown = hf("agent", "diff", "anna", "1")
    assert "pots" in shown.out
    assert shown.code == 0
    assert hf("agent", "diff", "anna", "1", "--exit-code").code == 6
    same = hf("agent", "diff", "anna", "1", "1", "--exit-code")
    assert (same.code, same.err) == (0, "Nothing differs.\n")
    (record,) = hf("agent", "diff", "anna", "1", "2", "--json").records
    assert (record["a"], record["b"]) == (1, 2)
    assert record["changes"]
    assert "status" in hf("agent", "diff", "anna").out  # what the stop changed


def test_a_transfer(hf: Hf, potters: holdfast.Store) -> None:
    assert hf("agent", "transfers", "anna").err == "anna has no transfers.\n"
    assert hf("agent", "transfer", "anna", "nobody", "--yes").code == 3
    hf("agent", "resolve", "ben", "--back")
    dry = hf("agent", "transfer", "anna", "ben", "--dry-run")
    assert dry.err == "Would transfer 20 messages from anna to ben, which has 0.\n"
    assert hf("agent", "transfer", "anna", "ben").code == 2  # nobody to ask
    done = hf("agent", "transfer", "anna", "ben", "-m", "she left", "--context", "urgent=true", "--yes")
    assert done.err == "Transferred 20 messages from anna to ben.\n"
    anna, ben = potters.agents.load("anna"), potters.agents.load("ben")
    assert (anna.messages, ben.messages, ben.context) == (0, 20, {"clay": "red", "urgent": True})
    listed = hf("agent", "transfers", "anna").lines
    assert listed[0].split() == ["TIME", "FROM", "TO", "PHASE", "MESSAGES", "REASON", "ACTOR"]
    assert listed[1].split()[2:6] == ["anna", "ben", "given", "20"]
    assert listed[1].endswith("she left")
    (record,) = hf("agent", "transfer", "ben", "anna", "--yes", "--json").records
    assert (record["source"], record["target"], record["messages"]) == ("ben", "anna", 20)
    assert len(hf("agent", "transfers", "ben", "--json").records) == 2


@pytest.mark.parametrize(("way", "state", "word"), [("back", "idle", "undone"), ("forward", "cooling", "finished")])
def test_what_is_half_done_is_resolved(hf: Hf, potters: holdfast.Store, way: str, state: str, word: str) -> None:
    dry = hf("agent", "resolve", "ben", f"--{way}", "--dry-run")
    assert dry.err.startswith("transition fire, idle → cooling, started ")
    assert dry.err.endswith(f": would be {word}.\n")
    assert potters.agents.load("ben").pending is not None
    done = hf("agent", "resolve", "ben", f"--{way}")
    assert f": {word}." in done.err
    assert ("Its action was not run" in done.err) is (way == "forward")
    record = potters.agents.load("ben")
    assert (record.pending, record.state, record.fields["pots"]) == (None, state, 0)
    assert hf("agent", "list", "--pending", "--json").records == []
    again = hf("agent", "resolve", "ben", f"--{way}")
    assert (again.code, again.err) == (0, "ben has no pending change.\n")


def test_a_stop_that_was_interrupted_is_resolved(hf: Hf, potters: holdfast.Store) -> None:
    cora = Potter().attach(potters, "cora")
    cora.start()
    cora.context["dies"] = True
    with pytest.raises(KeyboardInterrupt):
        cora.stop()
    assert "Pending: stop, running → stopped, started" in " ".join(hf("agent", "show", "cora").out.split())
    assert hf("agent", "resolve", "cora", "--forward").err.endswith(
        ": finished. The callbacks of the agent were not run.\n"
    )
    assert potters.agents.load("cora").status == "stopped"


def test_a_transfer_that_was_interrupted_is_resolved(hf: Hf, potters: holdfast.Store) -> None:
    giver, taker = (Potter().attach(potters, id) for id in ("giver", "taker"))
    giver.start()
    taker.start()
    giver.conversation.append({"role": "user", "content": "Pots?"})
    with pytest.raises(KeyboardInterrupt):
        giver.transfer(taker, reason="dies before")
    assert "Pending: transfer, giver → taker, started" in " ".join(hf("agent", "show", "giver").out.split())
    assert ": undone." in hf("agent", "resolve", "giver", "--back").err
    giver.reload()
    with pytest.raises(KeyboardInterrupt):
        giver.transfer(taker, reason="dies after")
    shown = hf("agent", "show", "taker").out
    assert "transfer, giver → taker, not acknowledged, started" in shown
    assert "--back" not in shown
    assert ": would be finished." in hf("agent", "resolve", "taker", "--back", "--dry-run").err
    done = hf("agent", "resolve", "taker", "--back").err
    assert done.endswith(": finished. It could not be undone. The callbacks of the agents were not run.\n")
    assert (potters.agents.load("giver").messages, potters.agents.load("taker").messages) == (0, 1)


def test_resolving_as_json(hf: Hf, potters: holdfast.Store) -> None:
    (dry,) = hf("agent", "resolve", "ben", "--back", "--dry-run", "--json").records
    assert (dry["agent"], dry["resolved"], dry["dry_run"], dry["pending"]["trigger"]) == ("ben", "back", True, "fire")
    (done,) = hf("agent", "resolve", "ben", "--forward", "--json").records
    assert (done["agent"], done["resolved"], done["ran"], done["dry_run"]) == ("ben", "forward", False, False)
    (none,) = hf("agent", "resolve", "ben", "--back", "--json").records
    assert (none["resolved"], none["pending"]) == ("none", None)
    assert hf("agent", "resolve", "ben").code == 2


def test_a_rollback(hf: Hf, potters: holdfast.Store) -> None:
    dry = hf("agent", "rollback", "anna", "1", "--dry-run")
    assert "would be rolled back to version 1: running, idle" in dry.err
    assert "last version in state cooling" in hf("agent", "rollback", "anna", "cooling", "--dry-run").err
    assert hf("agent", "rollback", "anna", "1").code == 2  # nobody to ask
    before = potters.agents.load("anna").version
    done = hf("agent", "rollback", "anna", "1", "--yes")
    assert done.err == f"Rolled anna back to 1, as version {before + 1}.\n"
    assert potters.agents.load("anna").fields == {"pots": 0}
    assert hf("agent", "list", "--prefix", "anna", "--json").records[0]["version"] == before + 1
    (record,) = hf("agent", "rollback", "anna", "cooling", "--yes", "--json").records
    assert (record["version"], potters.agents.load("anna").state) == (before + 2, "cooling")
    assert hf("agent", "rollback", "ben", "1", "--yes").code == 4  # something of it is half-done


def test_an_agent_is_exported(hf: Hf, potters: holdfast.Store, tmp_path: Path) -> None:
    printed = json.loads(hf("agent", "export", "anna").out)
    assert printed["id"] == "anna"
    assert len(printed["state"]["conversation"]) == 20
    done = hf("agent", "export", "anna", "anna.json")
    assert done.err.startswith("Wrote anna.json: ")
    assert json.loads((tmp_path / "anna.json").read_text(encoding="utf-8")) == printed
    assert not [*tmp_path.glob("*.part"), *tmp_path.glob(".*.part")]
    (told,) = hf("agent", "export", "anna", "anna.json", "--version", "1", "--json").records
    assert (told["id"], told["file"]) == ("anna", "anna.json")
    assert json.loads((tmp_path / "anna.json").read_text(encoding="utf-8"))["state"]["conversation"] == []
    assert hf("agent", "export", "anna", "--json").code == 2
    assert hf("agent", "export", "anna", "nowhere/anna.json").code == 3


def test_an_exported_agent_is_imported(hf: Hf, potters: holdfast.Store, tmp_path: Path) -> None:
    hf("agent", "export", "anna", "anna.json")
    assert hf("agent", "import", "anna.json").code == 4  # she is there
    assert hf("agent", "import", "anna.json", "--id", "anna-2").err == "Imported anna-2 with 20 messages.\n"
    twin = potters.agents.restore("anna-2")
    assert (twin.pots, twin.conversation[-1]["content"], twin.state) == (1, "word 19", "idle")
    (record,) = hf("agent", "import", "-", "--id", "anna-3", "--json", typed=hf("agent", "export", "anna").out).records
    assert (record["id"], record["messages"]) == ("anna-3", 20)
    assert hf("agent", "import", "nowhere.json").code == 3
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    assert hf("agent", "import", "bad.json").code == 2
    (tmp_path / "bad.json").write_text("[]", encoding="utf-8")
    assert hf("agent", "import", "bad.json").code == 2


def test_nothing_is_changed_by_an_export_and_an_import(hf: Hf, potters: holdfast.Store, tmp_path: Path) -> None:
    """Not by the care for terminals either: numbers of any size, halves of characters, what turns a text around."""
    anna = potters.agents.restore("anna")
    hard = [10**30, 1.5e300, "\ud800", "\x7f\x9b", "\u202eback", "\U000e0001", "Grüße"]
    anna.context["hard"] = hard
    anna.save()
    (tmp_path / "anna.json.new").symlink_to(tmp_path / "elsewhere")
    for typed, file in ((hf("agent", "export", "anna").out, "-"), (None, "anna.json")):
        if typed is None:
            assert hf("agent", "export", "anna", file).code == 0
        done = hf("agent", "import", file, "--id", f"twin{file}", typed=typed or "")
        assert done.code == 0, done.err
        assert potters.agents.load(f"twin{file}").context["hard"] == hard
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    assert hf("agent", "import", "deep.json").code == 2


def test_help_shows_examples_as_lines(hf: Hf) -> None:
    assert "\n  holdfast agent transitions committer -n 20\n" in hf("agent", "transitions", "--help").out


def test_an_agent_is_deleted(hf: Hf, potters: holdfast.Store) -> None:
    assert hf("agent", "delete", "anna", "--dry-run").err == "Would delete anna with all of its history.\n"
    assert hf("agent", "delete", "anna").code == 2
    assert hf("agent", "delete", "anna", "--yes").err == "Deleted anna with all of its history.\n"
    assert hf("agent", "show", "anna").code == 3
    (record,) = hf("agent", "delete", "ben", "--yes", "--json").records
    assert record["deleted"]


def test_a_damaged_agent(hf: Hf, potters: holdfast.Store) -> None:
    backend = potters._engine.context.stored
    (rows,) = run(backend.read([Scan(STEPS, ("", f"{MARK}agents:anna"))]))
    damaged = Row(rows[-1].key, rows[-1].columns, flipped(rows[-1].body, -17))
    run(backend.apply([Put(STEPS, damaged)]))
    shown = hf("agent", "show", "anna")
    assert shown.code == 5
    assert "Older versions may be intact" in shown.err
    assert hf("agent", "list", "--prefix", "anna").code == 0
    last = str(len(rows) - 1)
    assert hf("agent", "history", "anna", "-n", "1", "--json").records[0]["version"] == len(rows)
    assert hf("agent", "show", "anna", "--version", last).code == 0
    assert hf("agent", "delete", "anna", "--yes").code == 0
    assert hf("agent", "show", "anna").code == 3


def test_who_may(hf: Hf, potters: holdfast.Store) -> None:
    denied = hf("agent", "show", "anna", "--as", "agent:ben", "--json")
    assert denied.error["code"] == "denied"
    assert hf("agent", "resolve", "ben", "--back", "--as", "agent:anna").code == 1
    assert hf("agent", "show", "ben", "--as", "agent:ben").code == 0
    hf("grant", "agent:ben", "read", "agent:anna")
    assert hf("agent", "transitions", "anna", "--as", "agent:ben").code == 0
    assert hf("agent", "delete", "anna", "--yes", "--as", "agent:ben").code == 1


def test_text_from_a_store_does_nothing_to_a_terminal(hf: Hf, potters: holdfast.Store) -> None:
    evil = Potter(kiln="\x1b[31mred").attach(potters, "evil")
    evil.metadata["\x1b]0;x\x07"] = "\x1b[2J"
    evil.conversation.append({"role": "user", "content": "\x1b[2J"})
    evil.save()
    for words in (("list",), ("show", "evil"), ("messages", "evil"), ("history", "evil"), ("export", "evil")):
        assert "\x1b" not in hf("agent", *words).out


def test_ids_are_completed(potters: holdfast.Store) -> None:
    from holdfast.interfaces.cli.completion_types import AGENT

    assert list(AGENT.names(potters, "", "an")) == ["anna"]
