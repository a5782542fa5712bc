"""What each feature adds to the calls of a saver: only who uses it should pay for it."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import Any, TypedDict

import holdfast
from benchmarks.call_costs import IN_MEMORY, Chat, quartile
from benchmarks.measure import Figure, Result, Table, turns
from holdfast.encryption import Encryption, LocalKeys
from holdfast.hooks import CountChanges
from holdfast.langgraph import HoldfastSaver

_MESSAGES = 20
_TURNS = 120

_CEILINGS = {
    "no hook any more": 1.1,
    "a hook": 1.5,
    "a quota": 1.3,
    "an identity": 1.6,
    "encryption": 1.6,
    "a schema": 1.6,
    "readable rows": 2.2,
}
_GOALS = {"no hook any more": 1.02, "an identity": 1.3}
_GOAL = 1.15


class _State(TypedDict):
    messages: list[Any]


def features_of_a_put() -> Result:
    """CPU of a saver's calls with one feature in use, beside a store without any"""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, ExitStack() as stack:

        def open_store(name: str, **options: Any) -> holdfast.Store:
            return stack.enter_context(holdfast.open(f"{folder}/{name}.db", **options))

        stores = {name: open_store(name) for name in ("nothing", "no hook any more", "a hook", "a quota")}
        stores["a hook"].hooks.add(CountChanges(), "checkpoint.save")
        removed = stores["no hook any more"].hooks
        removed.add(CountChanges(), "checkpoint.save")
        removed.remove(removed.list()[0].name)
        stores["a quota"].maintenance.set_quota(bytes=1 << 40)
        savers = {name: HoldfastSaver(store) for name, store in stores.items()}
        savers["an identity"] = HoldfastSaver(open_store("identity").as_identity(agent="researcher"))
        savers["encryption"] = HoldfastSaver(open_store("encryption", encryption=Encryption(LocalKeys(os.urandom(32)))))
        savers["a schema"] = HoldfastSaver(open_store("schema"), schema=_State)
        savers["readable rows"] = HoldfastSaver(open_store("rows", project=True))
        chats = {name: Chat(saver, "chat", _MESSAGES) for name, saver in savers.items()}
        for name in turns(chats, _TURNS):
            chats[name].turn()
    taken = {name: {call: quartile(spent) for call, spent in chat.spent.items()} for name, chat in chats.items()}
    plain = taken["nothing"]
    rows = [
        (name, [f"{cost:.0f} ({cost / plain[call]:.2f})" for call, cost in costs.items()])
        for name, costs in taken.items()
    ]
    figures = [
        Figure(
            f"features: CPU of a saver's calls with {name} / without",
            sum(taken[name].values()) / sum(plain.values()),
            "x",
            ceiling=ceiling,
            goal=_GOALS.get(name, _GOAL),
            note=f"{taken[name]['put']:.0f} us a put against {plain['put']:.0f}",
        )
        for name, ceiling in _CEILINGS.items()
    ]
    return Result(figures, tables=[Table("CPU of a saver's calls, µs, and beside none", [*plain], rows)])


CASES = (features_of_a_put,)
