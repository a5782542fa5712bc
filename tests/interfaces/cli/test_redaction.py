"""`holdfast redaction scan`: says where secrets are, and never what they are."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import holdfast
from tests.interfaces.cli import kit
from tests.security.sensitive.samples import github_token

Hf = Callable[..., kit.Result]


def test_scan_lists_paths_and_no_values(hf: Hf, url: str) -> None:
    done = hf("redaction", "scan")
    assert (done.code, done.out) == (0, "")
    assert "Scanned" in done.err
    key = github_token(Random("cli"))
    with holdfast.open(url) as store:
        store.thread("leaky").put({"messages": ["hi", {"content": f"use {key} twice: {key}"}], "password": "hunter22"})
        store.thread("leaky").put({"messages": ["gone"]})
        store.state(agent="x")["note"] = key
        store.thread("mail").put({"text": "a@example.com"})
    done = hf("redaction", "scan", "--json")
    assert done.code == 6
    (record,) = done.records
    assert [(each["scope"], each["path"], each["format"], each["times"]) for each in record["findings"]] == [
        ("agent:x", "note", "github-token", 1)
    ]
    done = hf("redaction", "scan", "--history", "--kind", "thread")
    assert done.code == 6
    assert [line.split()[2:] for line in done.lines[1:]] == [
        ["messages[1].content", "github-token", "2"],
        ["password", "field", "1"],
    ]
    for shown in (done.out, done.err, hf("redaction", "scan", "--history", "--json").out):
        assert key not in shown
        assert "hunter22" not in shown
    (record,) = hf("redaction", "scan", "--format", "email", "--json").records
    assert [each["scope"] for each in record["findings"]] == ["thread:mail"]
    assert hf("redaction", "scan", "--format", "nonsense").code != 0
