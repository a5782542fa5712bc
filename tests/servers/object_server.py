"""What the servers of object storage have in common."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import Any, ClassVar

from tests.servers.processes import Server

BUCKET = "places"


class ObjectServer(Server):
    """A server of object storage, with one bucket: SeaweedFS has room for few."""

    scheme: ClassVar[str]
    """How URLs of its places begin."""

    def __init__(self, identity: bytes | None = None) -> None:
        self._numbers = itertools.count(1)
        super().__init__(identity)

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What to open a store with besides its URL."""

    def fresh(self) -> str:
        """The URL of a place that is empty."""
        return f"{self.scheme}://{BUCKET}/place-{next(self._numbers)}"
