"""`holdfast token`: issue, list and revoke tokens."""

from __future__ import annotations

from collections.abc import Callable

import holdfast
from tests.interfaces.cli.kit import Result


def test_tokens_are_issued_listed_and_revoked(hf: Callable[..., Result], url: str) -> None:
    issued = hf("token", "issue", "user:alice", "--until", "2h", "--name", "laptop")
    secret = issued.out.strip()
    assert secret.startswith("hf_")
    with holdfast.open(url) as store:
        found = store.access.find_token(secret)
    assert found is not None
    assert (found.identity, found.name, found.read_only) == ("user:alice", "laptop", False)
    listed = hf("token", "list")
    assert found.id in listed.out
    assert secret not in listed.out
    assert hf("token").out == listed.out
    assert hf("token", "revoke", found.id).code == 0
    assert hf("token", "list").out == ""
    assert "revoked" in hf("token", "list", "--dead").out
    assert hf("token", "revoke", "none").code == 3


def test_a_token_is_for_an_identity_or_for_the_owner(hf: Callable[..., Result]) -> None:
    assert hf("token", "issue").code == hf("token", "issue", "user:a", "--owner").code == 2
    record = hf("token", "issue", "--owner", "--read-only", "--until", "never", "--json").records[0]
    assert (record["identity"], record["read_only"], record["until"]) == ("", True, None)
