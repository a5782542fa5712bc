"""A store, a thread, a state and a timeline are tables in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast

PROGRAM = """\
import holdfast
store = holdfast.open("agents.db")
thread = store.thread("chat <b>1</b>")
thread.put({"messages": ["hello"]}, tag="asked")
state = store.state(agent="researcher")
state["plan <i>"] = ["read", "write"]
"""
SHOWN = {
    "store": ["sqlite:///", "chat &lt;b&gt;1&lt;/b&gt;"],
    "thread": ["chat &lt;b&gt;1&lt;/b&gt;", "save"],
    "state": ["agent:researcher", "plan &lt;i&gt;", "read"],
    "store.timeline": ["timeline", "checkpoint"],
    'store.thread("none")': ["none"],
}


def check(html: dict[str, str]) -> None:
    assert html.keys() == SHOWN.keys()
    for name, texts in SHOWN.items():
        assert html[name].startswith("<table>"), name
        assert [each for each in texts if each not in html[name]] == [], html[name]
        assert "<b>" not in html[name]
        assert "<i>" not in html[name]


def test_handles_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    check({name: eval(name, names)._repr_html_() for name in SHOWN})
    names["store"].close()


def test_a_long_state_is_cut() -> None:
    with holdfast.open("memory://") as store:
        state = store.state(agent="researcher")
        state.batch({f"key {number:03}": number for number in range(60)})
        html = state._repr_html_()
        assert "key 049" in html
        assert "key 050" not in html
        assert "… and 10 more" in html


@pytest.mark.nightly
def test_in_a_notebook(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    v4: Any = nbformat.v4
    client: Any = NotebookClient
    book = v4.new_notebook(cells=[v4.new_code_cell(text) for text in (PROGRAM, *SHOWN)])
    client(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = book.cells[1:]
    check({cell.source: cell.outputs[0].data["text/html"] for cell in shown})
