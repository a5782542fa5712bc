"""Rights between processes: what is taken away is gone for all of them at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import DeniedError
from tests.agents.autosaved import until

READER = """
import sys, time, holdfast
from holdfast.errors import DeniedError
with holdfast.open(sys.argv[1]) as store:
    state = store.as_identity(agent="b").state(agent="a")
    assert state["plan"] == 0
    print("ready", flush=True)
    wrote = 0
    while True:
        try:
            state["plan"]
            state["count"] = wrote
            wrote += 1
            time.sleep(0.005)  # or else a machine that is slow to look has ever more to look at
        except DeniedError as denied:
            print(time.time_ns(), denied.code, wrote, flush=True)
            break
"""


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_revoked_grant_is_gone_in_other_processes(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:///{tmp_path}/store"
    with holdfast.open(url) as store:
        store.state(agent="a")["plan"] = 0
        given = store.access.grant("agent:b", ["read", "write"], "agent:a")
        with subprocess.Popen([sys.executable, "-c", READER, url], stdout=subprocess.PIPE, text=True) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
                until(lambda: "count" in store.state(agent="a"), 60)
                store.access.revoke(given)
                revoked = time.time_ns()
                versions = store.state(agent="a").item("count").version
                when, code, wrote = reader.stdout.readline().split()
                assert reader.wait(60) == 0
            finally:
                reader.kill()
        assert code == "grant-revoked"
        assert int(when) - revoked < 30 * 10**9
        # Not one write came after it was revoked, and all before it are there.
        assert store.state(agent="a").item("count").version == versions
        assert store.state(agent="a")["count"] == int(wrote) - 1
        (row,) = store.audit.query(actor="agent:b", kind="denied")
        assert "was revoked at" in row.detail["why"]
        assert store.audit.verify().ok


WRITER = """
import sys, holdfast
from holdfast.errors import DeniedError
with holdfast.open(sys.argv[1]) as store:
    me = store.as_identity(agent=sys.argv[2], read_window=0.01)
    for number in range(20):
        me.state(agent=sys.argv[2])["k"] = number
        me.state(agent=sys.argv[2]).get("k")
        try:
            me.state(agent="nobody").get("k")
        except DeniedError:
            pass
"""


def test_several_processes_note_what_they_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    names = ["a", "b"]
    with holdfast.open(url) as store:
        started = [subprocess.Popen([sys.executable, "-c", WRITER, url, name]) for name in names]
        assert [process.wait(300) for process in started] == [0, 0]
        for name in names:
            assert len(store.audit.query(actor=f"agent:{name}", kind="denied", limit=1000)) == 20
            assert len(store.audit.query(actor=f"agent:{name}", kind="change", limit=1000)) == 20
            reads = store.audit.query(actor=f"agent:{name}", kind="read", limit=1000)
            assert sum(row.detail.get("times", 1) for row in reads) == 20
        assert store.audit.verify().ok


def test_a_grant_to_one_process_is_none_to_another_identity(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    with holdfast.open(url) as one, holdfast.open(url) as other:
        one.state(agent="a")["plan"] = 1
        state = other.as_identity(agent="b").state(agent="a")
        with pytest.raises(DeniedError):
            state.get("plan")
        one.access.grant("agent:b", "read", "agent:a")
        assert state["plan"] == 1
        with pytest.raises(DeniedError):
            other.as_identity(agent="c").state(agent="a").get("plan")
