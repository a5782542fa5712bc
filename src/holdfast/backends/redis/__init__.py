"""A store in Redis or Valkey: fast, in memory, and as safe as the server's append-only file is set up to be."""

from holdfast._lazy import missing_extra

try:
    from holdfast.backends.redis.backend import RedisBackend
except ImportError as error:
    raise missing_extra("redis", error) from error

__all__ = ["RedisBackend"]
