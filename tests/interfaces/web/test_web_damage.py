"""Pages of a store that has damage: it is said plainly where it is, and the rest works."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.errors import CorruptError
from holdfast.interfaces.web.pages import page_routes
from tests.damaged import flipped
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.test_pages import get


def test_a_damaged_checkpoint_is_said_plainly_and_the_rest_works(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with holdfast.open(file) as store:
        for number in range(4):
            said = [{"role": "user", "content": f"message {n}"} for n in range(number + 1)]
            store.thread("chat").put({"messages": said}, id=f"c{number}")
        store.thread("other").put({"n": 1})
    with holdfast.open(file) as store:
        backend = store._engine.context.stored
        (rows,) = run(backend.read([Scan(STEPS, ("", "chat"))]))
        run(backend.apply([Put(STEPS, Row(rows[2].key, rows[2].columns, flipped(rows[2].body, -17)))]))
    with holdfast.open(file) as store, ServedStore(store, page_routes, write=True) as served:
        for path in ("/threads/chat", "/threads/chat/c2", "/threads/chat/c2?tab=state", "/threads/chat/c2?tab=diff"):
            answer = get(served, path)
            assert answer.status == 200, path
            assert "#1 is the last one before it that can" in answer.text, path
            assert "damage" in answer.text, path
            assert "holdfast explain corrupt" in answer.text, path
            assert "Traceback" not in answer.text
        before = get(served, "/threads/chat/c1")
        assert before.status == 200
        assert "message 1" in before.text
        assert "damaged" in before.text, "the history marks it"
        for path in ("/", "/threads", "/threads/other", "/verify", "/threads/chat/c1/actions/fork?branch=x"):
            assert get(served, path).status == 200, path
        found = get(served, "/verify?level=hashes").text
        assert "finding" in found
        assert "/threads/chat" in found


def test_damage_in_one_place_leaves_the_rest_of_the_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        store.thread("chat").put({"n": 1})
        assert served.request("GET", "/health/ready", token=None).status == 200
        assert "cannot be read" not in get(served, "/").text
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:

        def damaged(*arguments: object, **options: object) -> None:
            raise CorruptError("the file is damaged")

        monkeypatch.setattr(type(store.jobs), "list", damaged)
        page = get(served, "/")
        assert page.status == 200
        assert "Jobs cannot be read" in page.text
        assert "/threads/chat" in page.text
        assert served.request("GET", "/health/ready", token=None).status == 503


def test_the_list_of_threads_marks_a_damaged_one(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    with holdfast.open(url) as store:
        store.thread("chat").put({"n": 1})
        store.thread("other").put({"n": 1})
    (first,) = (tmp_path / "store").rglob("line=chat/birth")
    with holdfast.open(url) as store, ServedStore(store, page_routes) as served:
        assert "damaged" not in get(served, "/threads").text
    first.write_bytes(flipped(first.read_bytes(), 60))
    with holdfast.open(url) as store, ServedStore(store, page_routes) as served:
        row = get(served, "/threads").text.partition('href="/threads/chat">chat</a></th>')[2].partition("</tr>")[0]
        assert '<td class="num"><span class="chip bad">damaged' in row
        listed = served.request("GET", "/api/v1/threads").json["items"]
        assert [(each["thread"], each["damaged"]) for each in listed] == [("chat", True), ("other", False)]
        assert served.request("GET", "/api/v1/status").json["damaged"] == 1
