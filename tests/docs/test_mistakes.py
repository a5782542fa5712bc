"""Each mistake of the page is made, and answered with what the page says: what is wrong, and what to do."""

from __future__ import annotations

import re

import pytest

import holdfast
from holdfast.errors import InvalidError
from tools import mistakes

_SAYS_HOW = re.compile(r"\bmust\b|\bat least\b|\bat most\b|Did you mean|Choose from|: from holdfast")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HOLDFAST_STORE", "unset")  # so that it is as before afterwards
    monkeypatch.delenv("HOLDFAST_STORE")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning", "ignore:unclosed file")
def test_each_mistake_is_answered_as_the_page_says() -> None:
    page = mistakes.PAGE.read_text(encoding="utf-8")
    assert len(mistakes.typed(page)) >= 100
    assert "\n".join(mistakes.rewritten(page)) + "\n" == page, "run: python -m tools.mistakes"


def test_each_answer_says_what_to_do() -> None:
    rows = [line.split(" | ") for line in mistakes.PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    silent = [row[0] for row in rows if row[-1].strip(" |") == "" and not _SAYS_HOW.search(row[1])]
    assert silent == []


def test_what_is_no_mistake_is_noticed() -> None:
    with pytest.raises(AssertionError, match="is no mistake"):
        list(mistakes.rewritten("| `thread.get()` | | |"))
    with pytest.raises(AssertionError, match="is no mistake"):
        list(mistakes.rewritten("| `holdfast threads` | | |"))


def test_a_state_that_is_a_model_is_answered_with_model_dump() -> None:
    pydantic = pytest.importorskip("pydantic")
    plan = pydantic.create_model("Plan", goal=(str, "tides"))
    with holdfast.open("memory://") as store:
        thread = store.thread("chat-1")
        with pytest.raises(InvalidError, match=r"the state must be a dict, not Plan .* state\.model_dump\(\)"):
            thread.put(plan())
        thread.put(plan().model_dump())
        assert plan.model_validate(thread.get().state) == plan()
