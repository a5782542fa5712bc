"""Every operation of the API, called by those who may not: they get nothing of what is not theirs, and change nothing.

The requests are made up from the document, with the names of things that exist. The owner sends the same, and sees it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

import holdfast
from holdfast.maintenance.verify.heads import ThreadHead
from tests.interfaces.http.kit import SECONDS, ServedStore
from tests.interfaces.http.test_openapi_schemathesis import DAILY, SCHEMA
from tests.support.nightly import by_night

WORD = "quetzalcoatlus"
"""Is in whatever belongs to nobody but the owner."""

OPEN = ("/health/live", "/health/ready")
SHOWN = {"get_value", "get_messages", "search", "get_key", "get_history", "get_blame", "list_items", "get_content"}
"""Some operations that show the word to the owner."""


@dataclass
class Walk:
    """A served store, and those who call it."""

    served: ServedStore
    names: dict[str, str]
    """What the parameters of requests are, by name, or by the part of a path that they follow."""
    refused: dict[str, str | None]
    """The tokens of those who get no answer at all."""
    limited: dict[str, str]
    """The tokens of those who get some answers, and change nothing that has the word."""
    read_only: str

    def send(self, case: Any, token: str | None) -> Any:
        """Send a request, without the headers and cookies that it was made up with."""
        case.cookies = {}
        case.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return case.call(base_url=self.served.url, timeout=SECONDS)

    def name_things(self, case: Any) -> None:
        """Let a request be about what exists."""
        for parameters in (case.path_parameters, case.query):
            for name in parameters or {}:
                own = f"{case.path.split('/')[3]}.{name}"
                parameters[name] = self.names.get(own) or self.names.get(name, parameters[name])

    def heads(self) -> dict[str, ThreadHead]:
        """Return the heads of all lines, but for the audit, which notes who was refused, and for the lists to which
        everybody may add something of their own."""
        found = self.served.store.maintenance.heads().threads
        return {name: head for name, head in found.items() if name[1:] not in ("audit", "access", "sessions")}


@pytest.fixture(scope="module")
def walk(filled_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    file = tmp_path_factory.mktemp("walk") / "agents.db"
    shutil.copyfile(filled_file, file)
    with (
        holdfast.open(file) as store,
        holdfast.open(file, tenant="other") as tenant,
        ServedStore(store, write=True) as served,
    ):
        store.thread("private").put({"text": WORD, "messages": [{"role": "user", "content": WORD}]}, tag="v1")
        store.state(agent="private")["secret"] = WORD
        artifact = store.artifacts.register(WORD.encode(), name=WORD)
        session = store.sessions.start(user=WORD)
        store.jobs.add("tidy", "tidy")
        store.thread("shared").put({"text": "for some"})
        access = store.access
        for right in ("read", "write"):
            access.grant(f"user:{right}er", right, thread="shared")
        tokens = {name: access.issue_token(f"user:{name}") for name in ("reader", "writer", "frozen", "other", "gone")}
        access.freeze("user:frozen")
        access.revoke_token(tokens.pop("gone"))
        revoked = access.issue_token(None)
        access.revoke_token(revoked)
        expired = access.issue_token(None, until=0.001)
        names = {
            "thread": "private", "at": "HEAD", "scope": "agent:private", "key": "secret", "tag": "v1", "query": WORD,
            "path": "text", "confirm": "private", "branch": "main", "name": "tidy", "artifacts.id": artifact.id,
            "sessions.id": session.id, "agents.id": "private",
        }  # fmt: skip
        refused = {
            "nobody": None,
            "forged": revoked.secret[:-1] + ("a" if revoked.secret[-1] != "a" else "b"),
            "revoked": revoked.secret,
            "expired": expired.secret,
            "tenant": tenant.access.issue_token(None).secret,
        }
        limited = {name: token.secret for name, token in tokens.items()}
        yield Walk(served, names, refused, limited, access.issue_token(None, read_only=True).secret)


@pytest.mark.nightly
@(SCHEMA if by_night() else SCHEMA.include(operation_id=DAILY)).parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=5, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_an_operation_gives_nothing_to_those_who_may_not(case: Any, walk: Walk) -> None:
    walk.name_things(case)
    before = walk.heads()
    for who, token in walk.refused.items():
        answer = walk.send(case, token)
        # 401 for most; 405 for another method than the document has, and 429 after many wrong tokens.
        assert case.path in OPEN or answer.status_code in (401, 405, 429), who
        assert WORD not in answer.text, who
    for who, secret in {**walk.limited, "read only": walk.read_only}.items():
        answer = walk.send(case, secret)
        assert answer.status_code < 500, (who, answer.text)
        assert WORD not in answer.text or who == "read only" or WORD in str(case.body), who
    after = walk.heads()
    assert {name: head for name, head in after.items() if name in before} == before
    name = case.operation.definition.raw["operationId"]
    if case.method == "GET" and name in SHOWN:
        # What was made up may lack a parameter: the control has all that are known.
        given = [each["name"] for each in case.operation.definition.raw["parameters"] if each["in"] == "query"]
        case.query = {each: walk.names[each] for each in given if each in walk.names}
        assert WORD in walk.send(case, walk.served.token).text, name
