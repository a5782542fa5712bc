"""A store in Redis or Valkey: fast, in memory, and as safe as the server's append-only file is set up to be."""

from holdfast.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
