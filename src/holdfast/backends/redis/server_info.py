"""What a Redis server says of itself: how it keeps what it is given, and for how long."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import exceptions

from holdfast.backends.redis.connections import RedisConnections


class RedisServer(NamedTuple):
    """A server, as far as it could be asked; what it does not tell is empty."""

    name: str = ""
    version: str = ""
    policy: str = ""
    """What it does when its memory is full."""
    memory: int = 0
    most_memory: int = 0
    settings: dict[str, str] = {}  # noqa: RUF012 - never changed
    """Those that say what is on the disk when it answers."""

    @property
    def flushes(self) -> bool:
        """Whether what it answers to is on its disk."""
        wanted = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
        return self.settings == wanted

    def status(self) -> dict[str, int | float | str]:
        """For people and monitors."""
        return {
            "server": f"{self.name} {self.version}",
            "memory": self.memory,
            "max memory": self.most_memory,
            **self.settings,
        }


_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")


async def ask_server(links: RedisConnections) -> RedisServer:
    """Ask. Hosted servers often do not tell their settings; then what they keep is not known, and not promised."""
    commands = [("INFO", "server"), ("INFO", "memory"), *(("CONFIG", "GET", name) for name in _SETTINGS)]
    server, memory, *settings = await links.ask(*commands)
    told = {**_fields(server), **_fields(memory)}
    return RedisServer(
        told.get("server_name", "redis"),
        told.get("valkey_version") or told.get("redis_version", ""),
        told.get("maxmemory_policy", ""),
        int(told.get("used_memory", 0)),
        int(told.get("maxmemory", 0)),
        {name: value for answer in settings for name, value in _pairs(answer).items()},
    )


def _fields(answer: Any) -> dict[str, str]:
    if isinstance(answer, exceptions.RedisError):
        return {}
    lines = [line.partition(":") for line in answer.decode(errors="replace").splitlines()]
    return {name: value for name, colon, value in lines if colon}


def _pairs(answer: Any) -> dict[str, str]:
    if isinstance(answer, exceptions.RedisError):
        return {}
    texts = [text.decode(errors="replace") for text in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))
