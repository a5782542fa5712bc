"""A greeter: a plain class, which knows nothing of Holdfast, is made durable by a decorator.

It is stopped, its process could end here, and it is brought back by its id: it knows whom it has met.

    python -m examples.greeter

It prints what the greeter says, and what is in the store at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import holdfast
from holdfast.agents import persistent


@persistent(name="greeter", fields=("met",), configuration=("greeting",))
class Greeter:
    """Greets people, and those it has met before in another way. `met` is kept; `greeting` is what it is made with."""

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.met: dict[str, int] = {}

    def greet(self, name: str) -> str:
        """What it says to somebody."""
        times = self.met[name] = self.met.get(name, 0) + 1
        return f"{self.greeting}, {name}!" if times == 1 else f"{self.greeting} again, {name}: that makes {times}"


def main(directory: Path) -> None:
    url = f"sqlite:///{(directory / 'agents.db').as_posix()}"
    with holdfast.open(url) as store:
        kept = store.agents.create(Greeter, "door", greeting="Hello")
        kept.start()
        for name in ("Ada", "Grace", "Ada"):
            print(kept.agent.greet(name))
        kept.stop()  # saves it

    with holdfast.open(url) as store:
        kept = store.agents.restore("door")
        kept.start()
        print(kept.agent.greet("Ada"))
        kept.stop()
        for each in store.agents.list():
            print(f"{each.id}: {each.kind}, {each.status}, version {each.version}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
