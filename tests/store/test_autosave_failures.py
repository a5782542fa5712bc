"""What an autosave does when saving fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import HoldfastError, InvalidError, UnsupportedError

BAD: dict[str, Any] = {"client": object()}


def test_a_last_save_that_fails_is_told() -> None:
    with (
        holdfast.open("memory://") as store,
        pytest.raises(UnsupportedError),
        holdfast.savers.AutoCheckpointer(store, "t", lambda: BAD, holdfast.savers.OnEvent("x")) as autosave,
    ):
        autosave.step()


def test_it_does_not_hide_what_went_wrong_before() -> None:
    with holdfast.open("memory://") as store:
        with (  # noqa: PT012 - the block is what fails
            pytest.raises(KeyError, match="mine") as caught,
            holdfast.savers.AutoCheckpointer(store, "t", lambda: BAD, holdfast.savers.OnEvent("x")) as autosave,
        ):
            autosave.step()
            raise KeyError("mine")
        assert "could not be saved" in caught.value.__notes__[0]


def test_nor_under_asyncio() -> None:
    async def go() -> None:
        async with holdfast.aopen("memory://") as store:
            autosave = holdfast.savers.AsyncAutoCheckpointer(store, "t", lambda: BAD, holdfast.savers.OnEvent("x"))
            with pytest.raises(KeyError) as caught:  # noqa: PT012
                async with autosave:
                    await autosave.step()
                    raise KeyError("mine")
            assert "could not be saved" in caught.value.__notes__[0]

    asyncio.run(go())


def test_steps_that_could_not_be_saved_count_on() -> None:
    state: dict[str, Any] = dict(BAD)
    with holdfast.open("memory://") as store:
        autosave = holdfast.savers.AutoCheckpointer(store, "t", lambda: state, holdfast.savers.EveryStep(2))
        assert autosave.step() is None
        with pytest.raises(HoldfastError):
            autosave.step()
        state.clear()
        assert autosave.step() is not None


def test_transactions_are_entered_as_the_store_is_used() -> None:
    async def go() -> None:
        async with holdfast.aopen("memory://") as store:
            with pytest.raises(InvalidError, match="async with"), store.transaction():
                pass

    asyncio.run(go())
    with holdfast.open("memory://") as store:

        async def wrong() -> None:
            async with store.transaction():
                pass

        with pytest.raises(InvalidError, match="entered with `with`"):
            asyncio.run(wrong())
        together = store.transaction()
        for n in (1, 2):
            with together:
                together.put("t", {"n": n})
        assert [checkpoint.step for checkpoint in store.thread("t").log().all()] == [1, 0]


def test_names_go_and_checkpoints_stay() -> None:
    with holdfast.open("memory://") as store:
        saved = store.thread("t").put({"n": 1}, tag="good")
        store.thread("t").untag("good")
        assert store.thread("t").tags() == {}
        assert store.thread("t").get(saved.id).state == {"n": 1}
        assert holdfast.savers.Checkpointer(store).put_writes("none", "1", [], task_id="x") is None
        assert [thread.thread for thread in store.threads()] == ["t"]
