"""Reading a store over HTTP: what comes is what the library says, in the form of the document."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import openapi_spec_validator
import pytest

import holdfast
from holdfast._views import plain
from holdfast.interfaces.http import values
from tests.interfaces.http.kit import DOCUMENT, ServedStore, checked, thread_path


def test_the_document_is_openapi_3_1() -> None:
    openapi_spec_validator.validate(DOCUMENT)
    names = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) > 30


READS = (
    "",
    "/status",
    "/threads",
    "/threads/chat",
    "/threads/chat/branches",
    "/threads/chat/status",
    "/usage?by=model&since=1d",
    "/threads/chat/log",
    "/threads/chat/checkpoints/HEAD",
    "/threads/chat/checkpoints/HEAD/value",
    "/threads/chat/checkpoints/HEAD/messages",
    "/threads/chat/diff",
    "/threads/chat/blame?path=plan",
    "/threads/chat/history?path=count",
    "/search?query=kelp",
    "/scopes",
    "/scopes/agent:writer/items",
    "/scopes/global/items",
    "/scopes/agent:writer/keys/draft/history",
    "/sessions",
    "/artifacts",
    "/agents",
    "/jobs",
    "/doctor",
    "/alerts",
    "/verify",
    "/audit",
    "/timeline",
    "/timeline?query=kind%3Acheckpoint&oldest_first=true",
    "/scopes/agent:writer/keys/draft",
    "/hooks/executions",
    "/hooks/statistics",
    "/hooks/undelivered",
    "/threads/chat/recording",
    "/schemas",
    "/erasures",
    "/backups",
)

ELSEWHERE = {
    ("GET", f"/api/v1{path}")
    for path in (
        "/agents/{id}",
        "/agents/{id}/transitions",
        "/agents/{id}/steps",
        "/agents/{id}/steps/{key}",
        "/agents/{id}/timers",
        "/agents/{id}/signals",
        "/artifacts/{id}",
        "/hooks/executions/{reference}",
        "/timeline/{id}/causes",
        "/timeline/{id}/effects",
        "/artifacts/{id}/changes",
        "/backups/{name}/verification",
        "/jobs/{name}",
        "/encryption-keys",
        "/sessions/{id}",
    )
}
"""Operations that tests of their own try: they need an agent, an id, a repository or a key."""


def test_every_operation_that_reads_fits_the_document(served: ServedStore) -> None:
    for path in READS:
        answer = served.get(path)
        assert answer.status == 200, (path, answer.text)
    for path in ("/health/live", "/health/ready"):
        assert served.request("GET", path).status == 200
    reading = {
        ("GET", path)
        for path, operations in DOCUMENT["paths"].items()
        if "application/json" in operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    }
    assert reading - checked <= ELSEWHERE
    assert reading >= ELSEWHERE


def test_threads_come_in_pages(served: ServedStore) -> None:
    names, cursor = [], None
    while True:
        page = served.get("/threads?limit=1" + (f"&cursor={quote(cursor, safe='')}" if cursor else "")).json
        names += [each["thread"] for each in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert names == [each.thread for each in served.store.threads()] == ["a/b c?#%/ü", "chat"]


def test_a_thread_with_an_odd_name_is_found(served: ServedStore) -> None:
    assert served.get(thread_path("a/b c?#%/ü")).json["thread"]["name"] == "a/b c?#%/ü"


def test_a_log_has_what_each_step_changed_and_comes_in_pages(served: ServedStore) -> None:
    whole = served.get("/threads/chat/log?all_branches=true").json["items"]
    assert len(whole) == 13
    head = next(each for each in whole if each["head"])
    assert (head["id"], head["step"], head["branches"], head["revision"]) == ("c9", 9, ["main"], "#9")
    assert "count=9" in head["summary"]
    assert head["message"] == "assistant: message 9 about kelp"
    parts, cursor = [], None
    while True:
        page = served.get("/threads/chat/log?all_branches=true&limit=4" + (f"&cursor={cursor}" if cursor else "")).json
        parts += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert parts == whole


def test_a_checkpoint_by_revisions(served: ServedStore) -> None:
    for at, id in (("HEAD", "c9"), ("%233", "c3"), ("good", "c3"), ("HEAD~2", "c7"), ("what-if", "w2"), ("c5", "c5")):
        found = served.get(f"/threads/chat/checkpoints/{at}").json
        assert found["checkpoint"]["id"] == id, at
    found = served.get("/threads/chat/checkpoints/c3").json
    assert (found["tags"], found["branch_name"], found["channels"]) == (["good"], "main", ["messages", "count", "plan"])
    assert served.get("/threads/chat/checkpoints/c5").json["pins"][0]["reason"] == "proof"


def test_states_are_read_part_by_part(served: ServedStore) -> None:
    channels = served.get("/threads/chat/checkpoints/HEAD/value").json
    assert [(each["key"], each["kind"]) for each in channels["items"]] == [
        ("messages", "array"),
        ("count", "number"),
        ("plan", "object"),
    ]
    page = served.get("/threads/chat/checkpoints/HEAD/value?path=messages&start=4&limit=2").json
    assert (page["total"], [each["path"] for each in page["items"]]) == (10, ["messages[4]", "messages[5]"])
    leaf = served.get("/threads/chat/checkpoints/HEAD/value?path=messages%5B4%5D.content").json
    assert leaf["value"] == "message 4 about kelp"
    assert served.get("/threads/chat/checkpoints/HEAD/value?path=nothing").json["code"] == "not-found"


def test_a_large_value_is_read_by_range(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(40_000))
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"text": text, "data": bytes(range(256))})
        with ServedStore(store) as served:
            node = served.get("/threads/t/checkpoints/HEAD/value").json["items"][0]
            assert (node["kind"], node["preview"]) == ("large", "")
            assert node["bytes"] > len(text)
            assert served.get("/threads/t/checkpoints/HEAD/value?path=text").json["value"] == text[: 64 << 10]
            path = "/threads/t/checkpoints/HEAD/content?path=text"
            whole = served.get(path)
            assert (whole.text, whole.headers["content-disposition"]) == (text, "attachment")
            part = served.get(path, headers={"Range": "bytes=100-199"})
            assert (part.status, part.text) == (206, text[100:200])
            assert part.headers["content-range"] == f"bytes 100-199/{len(text)}"
            assert served.get(path, headers={"Range": "bytes=-7"}).text == text[-7:]
            assert served.get(path, headers={"Range": f"bytes={len(text)}-"}).status == 416
            data = served.get("/threads/t/checkpoints/HEAD/content?path=data")
            assert (data.body, data.headers["content-type"]) == (bytes(range(256)), "application/octet-stream")


def test_a_page_of_a_long_list_does_not_convert_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def convert(value: object) -> object:
        sizes.append(len(repr(value)))
        return plain(value)

    monkeypatch.setattr(values, "plain", convert)
    rows = [{"number": number, "text": "kelp " * 10} for number in range(5000)]
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("long").put({"rows": rows, "names": {f"k{number}": "x" * 40 for number in range(5000)}})
        with ServedStore(store) as served:
            base = "/threads/long/checkpoints/HEAD/value"
            found = {each["key"]: each for each in served.get(base).json["items"]}
            assert (found["rows"]["kind"], found["rows"]["length"]) == ("array", 5000)
            assert found["names"]["kind"] == "object"
            assert sum(sizes) < 10_000
            page = served.get(f"{base}?path=rows&start=4990&limit=50").json
            assert (page["total"], [each["key"] for each in page["items"]]) == (
                5000,
                [str(n) for n in range(4990, 5000)],
            )
            names = served.get(f"{base}?path=names&start=10&limit=2").json
            assert (names["total"], [each["preview"] for each in names["items"]]) == (5000, ["x" * 40] * 2)
            assert served.get(f"{base}?path=rows[4999].number").json["value"] == 4999
    assert 0 < sum(sizes) < 10_000  # the list has 400,000


def test_a_comparison_has_words_and_sides(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"text": "the kelp is green", "gone": 1}, id="a")
        store.thread("t").put({"text": "the kelp was green", "new": [1]}, id="b")
        with ServedStore(store) as served:
            diff = served.get("/threads/t/diff?a=a&b=b").json
    assert (diff["old"]["id"], diff["new"]["id"], diff["total"]) == ("a", "b", 3)
    change = next(each for each in diff["changes"] if each["path"] == "text")
    assert change["words"] == [["=", "the kelp "], ["-", "is"], ["+", "was"], ["=", " green"]]
    assert {each["channel"]: each["kind"] for each in diff["summary"]} == {
        "text": "change",
        "gone": "remove",
        "new": "add",
    }


def test_an_answer_that_the_caller_has_is_not_sent_again(served: ServedStore) -> None:
    first = served.get("/threads/chat")
    again = served.get("/threads/chat", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert served.get("/threads/chat", headers={"If-None-Match": '"other"'}).status == 200


def test_transitions_of_an_agent(tmp_path: Path) -> None:
    @holdfast.agents.persistent(name="served.Worker", fields=[])
    class Worker:
        pass

    with holdfast.open(tmp_path / "a.db") as store:
        store.agents.create(Worker, "w1")
        with ServedStore(store) as served:
            assert served.get("/agents").json["items"][0]["id"] == "w1"
            assert served.get("/agents/w1/transitions").status == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/threads/none", 404, "not-found"),
        ("/threads/chat/checkpoints/nope", 404, "not-found"),
        ("/threads/chat/log?limit=many", 400, "invalid"),
        ("/threads/chat/log?limit=0", 400, "invalid"),
        ("/threads?limit=1&limit=2", 400, "invalid"),
        ("/threads?colour=red", 400, "invalid"),
        ("/threads/chat?thread=other", 400, "invalid"),
        ("/search?query=%28", 400, "invalid"),
        ("/nothing", 404, "not-found"),
        ("/threads/chat/", 404, "not-found"),
    ],
)
def test_errors_are_problems_with_codes(served: ServedStore, path: str, status: int, code: str) -> None:
    answer = served.get(path)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_page_has_so_many_items_at_most(served: ServedStore) -> None:
    assert served.get("/threads?limit=10000").status == 200
    for limit in (10_001, 999_999_999, 0, -1):
        answer = served.get(f"/threads?limit={limit}")
        assert (answer.status, answer.json["code"]) == (400, "invalid")
